"""Checkpoints are checked piece by piece, on the pass in which they are read."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import dmr
from dmr.checkpoint import files as checkpoint_files
from dmr.checkpoint import format as checkpoint_format
from dmr.checkpoint.format import BrokenCheckpointError, joined, problem_of_share, write_part
from dmr.data import gather
from dmr.data.field import Field
from dmr.state.progress import Progress
from dmr.system import libc

SHAPE = (24, 8, 5)
WHOLE = np.arange(24 * 8 * 5.0).reshape(SHAPE)
GRIDS = [(1, 1), (2, 1), (5, 1), (3, 2), (2, 4)]

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of five rows, which no block begins with."""
    monkeypatch.setattr(gather, "SLAB_BYTES", 5 * 8 * 5 * 8)


def blocks(grid: tuple[int, int]) -> list[Field]:
    spec = dmr.FieldSpec(SHAPE, "f8", lambda box: WHOLE[box.slices((0, 0, 0))], halo=1)
    decomposition = spec.decompose(grid)
    return [spec.block(decomposition, rank) for rank in range(decomposition.size)]


def write(folder: Path, grid: tuple[int, int]) -> Path:
    """Write a checkpoint as so many ranks would."""
    path, found = checkpoint_format.path_of(folder, 7), blocks(grid)
    for block in found:
        block.initialise()
    writer = checkpoint_format.Writer(path, Progress(step=7), {})
    if len(found) == 1:
        writer.add("a", SHAPE, np.dtype("f8"), found[0].stored_pieces())
    else:
        parts = checkpoint_format.parts_of(path, "0" * 8)
        parts.mkdir()
        told = [write_part(parts, rank, {"a": block}) for rank, block in enumerate(found)]
        assert [problem for problem, _ in told] == [None] * len(found)
        fields = {"a": found[0]}
        made = joined(parts, fields, [each for _, each in told])
        writer.link(made, {"a": (SHAPE, np.dtype("f8"))})
    assert writer.finish() is None
    return path


def restored(path: Path, grid: tuple[int, int]) -> list[Field]:
    """Read a checkpoint as so many ranks would, rank 0 first."""
    found = blocks(grid)
    parts = checkpoint_format.verify(path, {"a": found[0]}, {})
    for rank, block in enumerate(found):
        if parts is not None:
            checkpoint_format.verify_share(path, parts, {"a": block}, rank, len(found))
        assert checkpoint_format.read(path, {"a": block}).step == 7
    return found


def data_file(path: Path) -> Path:
    """Return the file that holds the last cells."""
    return max(path.parent.glob("*.parts/*.h5"), default=path)


def equal(found: Sequence[Field]) -> bool:
    return all(
        np.array_equal(block.interior, WHOLE[block.box.slices((0, 0, 0))]) for block in found
    )


@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("old", GRIDS)
def test_every_cell_comes_back(tmp_path: Path, old: tuple[int, int], new: tuple[int, int]) -> None:
    assert equal(restored(write(tmp_path, old), new))


@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("old", GRIDS)
@pytest.mark.parametrize("name", ["fields/a", "hashes/a"])
def test_one_changed_byte_is_refused(
    tmp_path: Path, old: tuple[int, int], new: tuple[int, int], name: str
) -> None:
    path = write(tmp_path, old)
    with h5py.File(data_file(path), "r+") as file:
        last = tuple(n - 1 for n in file[name].shape)
        file[name][last] += 1
    if name == "hashes/a" and new == (2, 4) and old[1] == 1:
        assert equal(restored(path, new))  # these check by the hash of the whole
        return
    with pytest.raises(BrokenCheckpointError, match="field a does not have the hash"):
        restored(path, new)


def test_a_part_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (other := tmp_path / "other").mkdir()
    path = write(here, (2, 1))
    np.negative(WHOLE, out=WHOLE)
    try:
        mine, its = data_file(path), data_file(write(other, (2, 1)))
    finally:
        np.negative(WHOLE, out=WHOLE)
    mine.write_bytes(its.read_bytes())
    with pytest.raises(BrokenCheckpointError, match=r"does not have the hash .* in part 1.h5"):
        restored(path, (1, 1))


def test_every_piece_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = write(tmp_path, (1, 1)), list[int]()
    reading = checkpoint_format.CheckedDataset._read

    def noted(self: checkpoint_format.CheckedDataset, start: int) -> Any:
        read.append(start // 5)
        return reading(self, start)

    monkeypatch.setattr(checkpoint_format.CheckedDataset, "_read", noted)
    (block,) = restored(path, (1, 1))
    assert read == [0, 1, 2, 3, 4] and equal([block])
    read.clear()
    assert equal(restored(path, (2, 1)))
    assert read == [0, 1, 2, 2, 3, 4]  # rows 0 to 11, and 12 to 23


def test_ranks_that_need_little_of_a_row_share_what_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path, (2, 1))
    parts = checkpoint_format.parts_at(path)
    assert parts is not None
    with h5py.File(data_file(path), "r+") as file:
        file["fields/a"][-1, -1, -1] += 1
    narrow, wide = blocks((2, 4))[0], blocks((2, 2))[0]
    shares = [problem_of_share(path, parts, {"a": narrow}, rank, 8) for rank in range(8)]
    assert [rank for rank, wrong in enumerate(shares) if wrong is not None] == [1]
    assert problem_of_share(path, parts, {"a": wide}, 1, 4) is None
    assert not checkpoint_format.read_by_pieces(parts.fields["a"], narrow.decomposition)


def test_lists_of_any_length_are_cut_into_pieces() -> None:
    hashes = checkpoint_format.PieceHashes(8)
    again = checkpoint_format.PieceHashes(8)
    values = np.arange(1000.0)
    hashes.update(values)
    for at in range(0, 1000, 7):
        again.update(values[at : at + 7])
    assert hashes.rows == 200 and hashes.whole.digest() == again.whole.digest()
    assert hashes._found == again._found and len(hashes._found) == 5


@pytest.mark.parametrize("slow", [True, False])
def test_memory_for_the_file_may_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    monkeypatch.setattr(checkpoint_files, "WRITEBACK_BYTES", 4096)
    monkeypatch.setattr(checkpoint_files, "SLOW_BYTES_PER_S", np.inf if slow else 0.0)
    forgotten: list[tuple[int, int]] = []
    forget = checkpoint_files.Sink._forget

    def noted(self: checkpoint_files.Sink, start: int, size: int) -> None:
        forgotten.append((start, size))
        forget(self, start, size)

    monkeypatch.setattr(checkpoint_files.Sink, "_forget", noted)
    values = np.random.default_rng(1).random((64, 1024))
    with checkpoint_files.Sink(tmp_path / "a") as file:
        for row in values:
            file.write(row)
        assert file.problem is None
    assert (tmp_path / "a").read_bytes() == values.tobytes()
    ends = [(start + size, after) for (start, size), (after, _) in pairwise(forgotten)]
    assert bool(forgotten) == slow and all(end == start for end, start in ends)


def test_an_error_of_the_disk_is_noted_while_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(libc, "sync_file_range", fails)
    file = checkpoint_files.Sink(tmp_path / "a")
    file.write(bytes(checkpoint_files.WRITEBACK_BYTES))
    file.close()
    assert file.problem is not None and file.problem.errno == errno.EIO


def can_be_read_plainly(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except (AttributeError, OSError):
        return False
    return hasattr(os, "RWF_NOWAIT")


@pytest.mark.parametrize("cached", [set(), {1, 2}, {0, 4}])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_not_in_memory_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, cached: set[int]
) -> None:
    path, plain = write(tmp_path, (1, 1)), list[tuple[int, bool]]()
    if not can_be_read_plainly(path):
        pytest.skip("no O_DIRECT on this file system")
    read = checkpoint_files.PlainReader.read

    def in_memory(self: checkpoint_files.PlainReader, at: int) -> bool:
        return (at - self._offset) // gather.SLAB_BYTES in cached

    def noted(self: checkpoint_files.PlainReader, start: int, size: int) -> memoryview | None:
        found = read(self, start, size)
        plain.append((start // gather.SLAB_BYTES, found is not None))
        return found

    monkeypatch.setattr(checkpoint_files.PlainReader, "read", noted)
    monkeypatch.setattr(checkpoint_files.PlainReader, "_in_memory", in_memory)
    assert equal(restored(path, (ranks, 1)))
    assert plain and all(by_plain == (piece not in cached) for piece, by_plain in plain)
    with h5py.File(path, "r+") as file:
        file["fields/a"][-1, -1, -1] += 1
    with pytest.raises(BrokenCheckpointError, match="field a does not have the hash"):
        restored(path, (ranks, 1))


def test_a_file_system_without_plain_reads_is_read_by_hdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, (1, 1))

    def fails(*_: Any) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(checkpoint_files.PlainReader, "_in_memory", lambda *_: False)
    monkeypatch.setattr(checkpoint_format.os, "preadv", fails)
    assert equal(restored(path, (2, 1)))
