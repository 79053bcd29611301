"""A full disk is noted, and HDF5 never hears of it."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dmr.checkpoint.files import WriteBehindFile

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
