"""Checkpoints: an index over a part for each rank, checked piece by piece as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoints import write
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr
from dmr.checkpoint.format import BrokenCheckpointError, read_checkpoint
from dmr.data.field import Field
from dmr.data.particles import Items

SHAPE = (24, 8, 5)
WHOLE = np.arange(24 * 8 * 5.0).reshape(SHAPE)
GRIDS = [(1, 1), (2, 1), (5, 1), (3, 2), (2, 4)]
PIECE_BYTES = 5 * 8 * 5 * 8  # five rows of the whole: no block begins with a piece


def blocks(grid: tuple[int, int]) -> list[Field]:
    spec = dmr.FieldSpec(SHAPE, "f8", lambda box: WHOLE[box.slices()], halo=1)
    decomposition = spec.decompose(grid)
    return [spec.block(decomposition, rank) for rank in range(decomposition.size)]


def written(folder: Path, grid: tuple[int, int]) -> Path:
    fields = blocks(grid)
    for block in fields:
        block.initialise()
    return write(folder, fields, 7, PIECE_BYTES)


def restored(path: Path, grid: tuple[int, int]) -> list[Field]:
    """Read a checkpoint as so many ranks would."""
    fields = blocks(grid)
    for block in fields:
        assert read_checkpoint(path, {"a": block}, {}).step == 7
    return fields


def last_part(path: Path) -> Path:
    return max(path.parent.glob("*.parts/*.h5"))


def equal(fields: Sequence[Field]) -> bool:
    return all(np.array_equal(block.interior, WHOLE[block.box.slices()]) for block in fields)


@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("old", GRIDS)
def test_every_cell_comes_back(tmp_path: Path, old: tuple[int, int], new: tuple[int, int]) -> None:
    assert equal(restored(written(tmp_path, old), new))


@pytest.mark.parametrize("grid", GRIDS)
def test_the_index_is_one_file_with_whole_datasets_for_other_readers(
    tmp_path: Path, grid: tuple[int, int]
) -> None:
    with h5py.File(written(tmp_path, grid)) as file:
        assert list(file["fields"]) == ["a"]
        assert np.array_equal(file["fields/a"], WHOLE)


@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("old", GRIDS)
@pytest.mark.parametrize("name", ["fields/a", "hashes/a"])
def test_one_changed_byte_of_a_part_is_refused(
    tmp_path: Path, old: tuple[int, int], new: tuple[int, int], name: str
) -> None:
    path = written(tmp_path, old)
    with h5py.File(last_part(path), "r+") as file:
        last = tuple(n - 1 for n in file[name].shape)
        file[name][last] += 1
    with pytest.raises(BrokenCheckpointError, match="field a does not have the hash"):
        restored(path, new)


@pytest.mark.parametrize("name", ["progress", "options", "index", "xxh3_128"])
def test_a_changed_index_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, (2, 1))
    with h5py.File(path, "r+") as file:
        if name == "index":
            file["index"][-1] ^= 1
        else:
            file.attrs[name] = str(file.attrs[name])[:-1] + " "
    with pytest.raises(BrokenCheckpointError, match="progress, options, edges or parts changed"):
        restored(path, (1, 1))


def test_a_part_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "here", (2, 1))
    np.negative(WHOLE, out=WHOLE)
    try:
        other = last_part(written(tmp_path / "other", (2, 1)))
    finally:
        np.negative(WHOLE, out=WHOLE)
    last_part(path).write_bytes(other.read_bytes())
    with pytest.raises(BrokenCheckpointError, match=r"does not have the hash .* in part 1.h5"):
        restored(path, (1, 1))


def test_a_part_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, (2, 1))
    with h5py.File(last_part(path), "r+") as file:
        cells = file["fields/a"][:-1]
        del file["fields/a"]
        file["fields/a"] = cells
    with pytest.raises(BrokenCheckpointError, match=r"part 1\.h5 has another shape"):
        restored(path, (1, 1))


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, (2, 1))
    last_part(path).unlink()
    with pytest.raises(BrokenCheckpointError, match=r"part 1.h5: No such file or directory"):
        restored(path, (1, 1))


@pytest.mark.parametrize("counts", [(0,), (0, 0), (7,), (40, 3), (0, 1, 77)])
def test_lists_of_any_length_come_back(tmp_path: Path, counts: tuple[int, ...]) -> None:
    """In pieces of ten items; all items belong to the last rank then."""
    spec = dmr.adapt_list(np.zeros((0, 2)), (9,), lambda items, cut: [cut.size - 1] * len(items))
    values = np.random.default_rng(1).random((sum(counts), 2))
    lists: list[Field] = []
    for rank, items in enumerate(np.split(values, np.cumsum(counts)[:-1])):
        block = spec.block(spec.decompose((len(counts),)), rank)
        assert isinstance(block, Items)
        block.items = items
        lists.append(block)
    path = write(tmp_path, lists, 7, 10 * values[:1].nbytes or 160)
    with h5py.File(path) as file:  # for other readers
        assert np.array_equal(file["fields/a"], values)
    for rank, count in ((0, 0), (1, len(values))):
        block = spec.block(spec.decompose((2,)), rank)
        read_checkpoint(path, {"a": block}, {})
        assert isinstance(block, Items) and len(block.items) == count
        assert count == 0 or np.array_equal(block.items, values)


def test_a_restarted_run_counts_the_requests_of_its_rms_from_the_first(tmp_path: Path) -> None:
    """Else it takes the first requests of the new run of the job for answered ones."""

    def answered(*, restart: bool) -> int:
        plan = dmr.Plan(checkpoint=dmr.Schedule(tmp_path, 2), restart=restart)
        fields = {"u": dmr.adapt(np.zeros(4), (4,))}
        with dmr.malleable(runtime_on(MPI.COMM_SELF), fields, plan) as run:
            before = run.progress.answered_request
            run.progress.answered_request = 3
            for _ in run.loop(3):
                pass
        return before

    assert (answered(restart=False), answered(restart=True)) == (0, 0)


def test_a_run_does_not_begin_anew_beside_broken_checkpoints(tmp_path: Path) -> None:
    def run(*, restart: bool) -> None:
        plan = dmr.Plan(checkpoint=dmr.Schedule(tmp_path, 2), restart=restart)
        fields = {"u": dmr.adapt(np.zeros(4), (4,))}
        with dmr.malleable(runtime_on(MPI.COMM_SELF), fields, plan) as run:
            for _ in run.loop(5):
                pass

    run(restart=False)
    broken = sorted(tmp_path.glob("*.h5"))
    for path in broken:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(dmr.UsageError, match="expected a whole checkpoint in") as error:
        run(restart=True)
    assert broken and all(path.name in str(error.value) for path in broken)
    assert sorted(tmp_path.glob("*.h5")) == broken
