"""A full disk is noted, and HDF5 never hears of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dmr.checkpoint import files
from dmr.checkpoint.files import WriteBehindFile, new_hdf5

FULL = Path("/dev/full")

CRASHES = """
import resource, sys
from pathlib import Path
import h5py, numpy as np
from dmr.checkpoint.files import WriteBehindFile
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for n in range(5):
    sink = WriteBehindFile(Path(sys.argv[1]) / f"{n}.h5")
    with h5py.File(sink, "w", libver="latest") as file:
        file.create_dataset("a", data=np.arange(4000.0))
        file["a"].attrs["b"] = "c"
    sink.close()
    print(sink.problem.errno)
"""


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    sink = WriteBehindFile(tmp_path / "a.h5")
    values = np.random.default_rng(1).random((300, 100))
    with h5py.File(sink, "w", libver="latest") as file:
        file["a"] = values
    sink.close()
    assert sink.problem is None
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["a"], values)


@pytest.mark.parametrize(("every", "begun"), [(10, [0, 1, 1, 2]), (0, [0, 0, 0, 0])])
def test_the_disk_begins_to_write_as_a_file_grows(
    every: int, begun: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[int] = []
    monkeypatch.setattr(files, "WRITE_BEHIND_BYTES", every)
    monkeypatch.setattr(files.libc, "begin_writeback", handles.append)
    with WriteBehindFile(tmp_path / "a") as sink:
        found = []
        for size in (4, 6, 9, 1):
            sink.write(bytes(size))
            found.append(len(handles))
        assert set(handles) <= {sink.fileno()}
    assert found == begun


def test_an_error_at_the_close_is_kept_unless_there_was_one(tmp_path: Path) -> None:
    """A file system of the network tells there that a disk is full."""
    for earlier in (None, OSError("earlier")):
        sink = WriteBehindFile(tmp_path / "a")
        sink.problem = earlier
        os.close(sink.fileno())
        sink.close()
        found = sink.problem
        assert found is not None
        assert found is earlier if earlier is not None else found.errno == errno.EBADF


def test_a_file_that_the_disk_has_not_accepted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"), new_hdf5(tmp_path / "a.h5") as (file, disk):
        file["a"] = 1.0
        disk.problem = OSError(errno.ENOSPC, "no space")
    with new_hdf5(tmp_path / "b.h5") as (file, _):
        file["a"] = 1.0
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["a"][()] == 1.0


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_length_that_cannot_be_set_is_kept_as_an_error() -> None:
    sink = WriteBehindFile(FULL)
    assert sink.truncate(5) == 5 and sink.problem is not None
    first = sink.problem
    assert sink.write(b"abc") == 3 and sink.truncate(6) == 6
    assert sink.truncate() == sink.tell()
    assert sink.truncate(None) == sink.tell()
    sink.close()
    assert sink.problem is first


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_the_first_error_is_kept_and_the_place_goes_on() -> None:
    sink = WriteBehindFile(FULL)
    assert sink.write(b"abc") == 3 and sink.write(np.arange(2.0)) == 16
    sink.close()
    assert sink.problem is not None and sink.problem.errno == errno.ENOSPC


def test_hdf5_lives_on_where_files_may_not_grow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASHES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.split() == [str(errno.EFBIG)] * 5


FRAMES = """
import resource, sys
from pathlib import Path
import numpy as np
from dmr.checkpoint.files import WriteBehindFile
from mpdata.cases import Request, make_setup
from mpdata.parallel.output import Frame, create
setup, path = make_setup("gaussian", Request(grid=(8, 8, 8))), Path(sys.argv[1])
sink = WriteBehindFile(path)
create(sink, setup, "f8")
sink.close()
for number in range(4):
    if number == 3:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2000, hard))
    sink = WriteBehindFile(path, "r+")
    frame = Frame(sink, number, number)
    frame.add(0, np.full((8, 8, 8), number))
    frame.close()
    sink.close()
    if sink.problem is not None:
        print(number, sink.problem.errno)
"""


def test_the_frames_before_a_full_disk_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    command = [sys.executable, "-c", FRAMES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.split() == ["3", str(errno.EFBIG)]
    with h5py.File(path) as file:
        assert file["step"][:].tolist() == file["time"][:].tolist() == [0, 1, 2]
        assert file["psi"].shape == (3, 8, 8, 8)
        assert (file["psi"][:] == np.arange(3).reshape(-1, 1, 1, 1)).all()
