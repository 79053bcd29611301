"""An output on a full disk ended commands with a traceback, and runs with MPI_Abort."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, Run, called

from dmr.bench import bench
from dmr.cli import main as dmr
from rms.cli.main import main as rms
from rms.wire import files

SMALL = ("run", "--case", "gaussian", "--grid", "8", "8", "8", "--steps", "2", "--backend", "numpy")
LIMITED = """
import resource, sys
sys.dont_write_bytecode = True
from mpdata.cli.main import main
from mpdata.parallel.app import Advection
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
build = Advection.build
def limited(*words):
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    build(*words)
Advection.build = limited
if sys.argv[1] != "run":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
sys.exit(main(sys.argv[1:]))
"""
"""``mpdata`` with files of at most 50 bytes once MPI has started."""

JOB = "[[jobs]]\nnodes = [1, 1]\nspeedup = { t1_s = 1.0, tc_s = 0.0 }\n"


@pytest.fixture
def full(mpdata_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which files written whole find no room; the working folder is above."""
    folder = tmp_path / "full"
    folder.mkdir()

    def open_full(mode: int = 0o666) -> object:
        def refuse(name: str, _: int) -> int:
            assert name.startswith(str(folder))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return refuse

    monkeypatch.setattr(files, "open_own", open_full)
    (tmp_path / "w.toml").write_text(JOB)
    return folder


def one_sentence(done: subprocess.CompletedProcess[str], name: str) -> None:
    error = done.stderr
    assert done.returncode == 1, error
    assert error.endswith(f": error: cannot write {name}: No space left on device\n"), error
    assert error.count("\n") == 1, error


@pytest.mark.parametrize(
    "words",
    [
        (*SMALL, "--json", "full/x"),
        (*SMALL, "--completion", "full/x"),
        ("cases", "--json", "full/x"),
    ],
    ids=["run --json", "run --completion", "cases --json"],
)
def test_outputs_of_mpdata(mpdata_here: Run, full: Path, words: tuple[str, ...]) -> None:
    one_sentence(mpdata_here(*words), "full/x")
    assert not list(full.iterdir())


@pytest.mark.parametrize("option", ["--json", "--per-job", "--out"])
def test_outputs_of_a_simulation(full: Path, option: str) -> None:
    words = ("simulate", "--workload", "w.toml", "--processors", "2", option, "full/x")
    one_sentence(called(rms, *words), "full/x")
    assert not list(full.iterdir())


def test_the_json_of_a_benchmark(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "bench", lambda *_: {"strategy": "warm"})
    one_sentence(called(dmr, "bench", "--json", "full/x"), "full/x")


@pytest.mark.parametrize("option", ["--json", "--completion"])
def test_two_ranks_end_without_an_abort(run: Run, tmp_path: Path, option: str) -> None:
    done = run(MPIEXEC, "-n", "2", sys.executable, "-c", LIMITED, *SMALL, option, "x")
    assert done.returncode == 1
    assert done.stderr == "mpdata: error: cannot write x: File too large\n"
    assert not list(tmp_path.iterdir())


PROGRAM = """
import resource
from mpi4py import MPI
import dmr
with dmr.malleable(MPI.COMM_WORLD, state={"x": 1}) as run:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    for _ in run.loop(2):
        pass
"""


def test_two_ranks_of_any_program(run: Run, tmp_path: Path) -> None:
    env = {"DMR_COMPLETION": str(tmp_path / "x")}
    done = run(MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM, env=env)
    assert done.returncode == 1
    assert done.stderr == f"dmr: error: cannot write {tmp_path / 'x'}: File too large\n"
    assert not list(tmp_path.iterdir())


CHECKPOINTS = ("--checkpoint-every", "1", "--checkpoint-dir", "saved")


@pytest.mark.parametrize(
    "words",
    [
        ("cases",),
        ("cases", "--help"),
        ("--print-completion", "bash"),
        SMALL,
        (*SMALL, *CHECKPOINTS),
    ],
    ids=["cases", "help", "completion", "run", "checkpoints"],
)
def test_standard_output_on_a_full_disk(run: Run, words: tuple[str, ...]) -> None:
    env = {"PYTHONUNBUFFERED": ""}
    done = run("sh", "-c", 'exec "$@" > out', "sh", sys.executable, "-c", LIMITED, *words, env=env)
    name = "mpdata cases" if "--help" in words else "mpdata"
    expected = f"{name}: error: cannot write standard output: File too large\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_folder_as_completion_record(run: Run, tmp_path: Path, ranks: str) -> None:
    (tmp_path / "folder").mkdir()
    words = (*SMALL, "--completion", "folder")
    done = run(MPIEXEC, "-n", ranks, sys.executable, "-m", "mpdata", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "mpdata: error: cannot write folder: Is a directory\n"
