"""A full disk is noted, and HDF5 never hears of it."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dmr.sink import Sink

FULL = Path("/dev/full")

CRASHES = """
import resource, sys
from pathlib import Path
import h5py, numpy as np
from dmr.sink import Sink
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for n in range(5):
    sink = Sink(Path(sys.argv[1]) / f"{n}.h5")
    with h5py.File(sink, "w", libver="latest") as file:
        file.create_dataset("a", data=np.arange(4000.0))
        file["a"].attrs["b"] = "c"
    sink.close()
    print(sink.problem.errno)
"""


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "a.h5")
    values = np.random.default_rng(1).random((300, 100))
    with h5py.File(sink, "w", libver="latest") as file:
        file["a"] = values
    sink.close()
    assert sink.problem is None
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["a"], values)


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_the_first_error_is_kept_and_the_place_goes_on() -> None:
    sink = Sink(FULL)
    assert sink.write(b"abc") == 3 and sink.write(np.arange(2.0)) == 16
    sink.close()
    assert sink.problem is not None and sink.problem.errno == errno.ENOSPC


def test_hdf5_lives_on_where_files_may_not_grow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CRASHES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.split() == [str(errno.EFBIG)] * 5
