"""mpiexec's command line, for MPICH's and Open MPI's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rms.wire.mpiexec import find_mpiexec, mpiexec_command


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.touch(mode=0o755)
    return file


def test_the_path_comes_before_what_lies_beside_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program(tmp_path / "bin", "mpiexec")
    beside = program(tmp_path / "python", "mpiexec")
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    assert find_mpiexec(str(found.parent)) == str(found)
    assert find_mpiexec(str(tmp_path)) == str(beside)
    beside.unlink()
    assert find_mpiexec(str(tmp_path)) is None


def test_mpich_is_told_nothing_but_what_to_start(tmp_path: Path) -> None:
    mpiexec = str(program(tmp_path / "mpich", "mpiexec"))
    where = ["-launcher", "slurm", "-hosts", "n1:2"]
    assert mpiexec_command(mpiexec, 2, ["a", "b"]) == [mpiexec, "-n", "2", "a", "b"]
    assert mpiexec_command(mpiexec, 2, ["a"], where) == [mpiexec, *where, "-n", "2", "a"]


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("linked", [False, True])
def test_open_mpi_may_oversubscribe_and_run_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, linked: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    mpiexec = program(tmp_path / "openmpi", "mpiexec")
    program(tmp_path / "openmpi", "ompi_info")
    if linked:
        link = tmp_path / "mpiexec"
        link.symlink_to(mpiexec)
        mpiexec = link
    root = ["--allow-run-as-root"] if user == 0 else []
    expected = [str(mpiexec), "--oversubscribe", *root, "-n", "3", "a"]
    assert mpiexec_command(str(mpiexec), 3, ["a"]) == expected
