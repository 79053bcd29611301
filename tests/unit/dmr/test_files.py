"""State that is a file, on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import dmr
from dmr.data import files
from dmr.data.files import FileBytes


class Library:
    """What the file is made of, and the paths."""

    def __init__(self, data: bytes) -> None:
        self.data, self.paths = data, list[str]()

    def write(self, path: str) -> None:
        self.paths.append(path)
        Path(path).write_bytes(self.data)

    def read(self, path: str) -> None:
        self.paths.append(path)
        self.data = Path(path).read_bytes()


def block_of(library: Library) -> FileBytes:
    file = dmr.File(write=library.write, read=library.read)
    block = file.block(file.decompose((1,)), 0)
    block.join(MPI.COMM_SELF)
    return block


def test_bytes_come_and_go_and_nothing_is_left() -> None:
    library = Library(b"some bytes")
    block = block_of(library)
    block.update()
    library.data = b""
    assert block.items.tobytes() == b"some bytes"
    block.deliver()
    assert library.data == b"some bytes" and len(block.items) == 0
    assert len(set(library.paths)) == 2
    assert not any(Path(path).parent.exists() for path in library.paths)


def test_files_larger_than_a_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PART_BYTES", 7)
    library = Library(bytes(range(100)))
    block = block_of(library)
    block.update()
    block.deliver()
    assert library.data == bytes(range(100))


def test_all_bytes_are_of_rank_0() -> None:
    block = block_of(Library(b"abc"))
    cut = block.spec.decompose((3,))
    assert block.parts(cut) == {}
    block.update()
    assert list(block.parts(cut)) == [0] and block.ordered
    moved = block.moved_to(cut, 1)
    assert isinstance(moved, FileBytes) and moved.keep(block) == 0
    assert block.moved_to(cut, 0).keep(block) == 3
    pieces = [(None, np.frombuffer(b"ab", "u1")), (None, np.frombuffer(b"c", "u1"))]
    for rank, wanted in enumerate((b"abc", b"")):
        found = block.moved_to(cut, rank)
        read: Any = lambda box: iter(pieces)  # noqa: E731
        found.restore(read)
        assert found.items.tobytes() == wanted


def test_an_empty_file_is_refused_and_removed() -> None:
    library = Library(b"")
    with pytest.raises(dmr.UsageError, match=r"expected write.path. to make a file with bytes"):
        block_of(library).update()
    assert not Path(library.paths[0]).parent.exists()


def test_an_error_of_the_library_passes_and_the_folder_goes() -> None:
    library = Library(b"abc")
    block = block_of(library)
    block.update()

    def fail(path: str) -> None:
        library.paths.append(path)
        raise RuntimeError("expected another version")

    object.__setattr__(block.spec, "read", fail)
    with pytest.raises(RuntimeError, match="another version"):
        block.deliver()
    assert not Path(library.paths[-1]).parent.exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "_place", lambda: tmp_path / "missing")
    with pytest.raises(dmr.UsageError, match=r"expected a folder .*missing for files, got No such"):
        block_of(Library(b"abc")).update()


def test_little_shared_memory_means_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "LEAST_FREE_BYTES", 1 << 60)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library = Library(b"abc")
    block_of(library).update()
    assert Path(library.paths[0]).parent.parent == tmp_path


def test_outside_of_a_block_it_is_refused() -> None:
    file = dmr.File(write=print, read=print)
    with pytest.raises(RuntimeError, match=r"inside the block of dmr.malleable"):
        file.block(file.decompose((1,)), 0).update()


def test_a_file_and_a_field_have_a_name_each() -> None:
    from mpi_runs import runtime_on

    state = {"u": dmr.File(write=print, read=print)}
    fields = {"u": dmr.adapt(np.zeros(3), (3,))}
    words = r"expected a name each for fields and files, got u for both"
    with (
        pytest.raises(dmr.UsageError, match=words),
        dmr.malleable(runtime_on(MPI.COMM_SELF), fields, state=state),
    ):
        pass
