"""How many of the project's files a change of one behaviour may concern: files entered by a run.

A file is entered if one of its functions is called or one of its classes is made, in any process
of the run.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from daemon import LocalRms
from processes import MPDATA, MPIEXEC, Run, program

ROOT = Path(__file__).resolve().parents[2]

SUBMISSION_FILES, RESIZE_FILES = 80, 14
"""Files of a daemon that takes one submission and ends, and how many more a resize may enter."""

HEAT_FILES, MPDATA_FILES = 30, 50
"""Files of a heat program with one resize, and of ``mpdata run`` on one rank."""

PROFILER = """
import atexit, os, sys, threading

ROOT, FOLDER, FILES = os.environ["PROFILED_ROOT"], os.environ["PROFILED_FOLDER"], set()


def enter(frame, event, argument):
    if event == "call" and frame.f_code.co_name[0] != "<":
        FILES.add(frame.f_code.co_filename)


@atexit.register
def write():
    sys.setprofile(None)
    own = tuple(ROOT.split(os.pathsep))
    names = sorted(f for f in FILES if f.startswith(own) and "/site-packages/" not in f)
    with open(f"{FOLDER}/{os.getpid()}", "w") as out:
        out.writelines(f"{name}\\n" for name in names)


sys.setprofile(enter)
threading.setprofile(enter)
"""


HEAT = """
import dmr, numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
first, end = dmr.split_range(64, comm.size, comm.rank)
t = np.zeros((end - first + 2, 34))
t[1:-1, 1:-1] = np.arange(first, end)[:, None]
with dmr.malleable(comm, {"t": dmr.adapt(t, (64, 32), halo=1)}) as run:
    for step in run.loop(30):
        run.fields["t"].exchange("edge")
        t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4
    whole = run.fields["t"].gather()
    if run.comm.rank == 0:
        print(run.world.size, whole.shape)
"""


class Profiled(LocalRms):
    """A daemon whose processes write which files of the project they enter."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "site").mkdir()
        (self.folder / "files").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(PROFILER)

    def environment(self) -> dict[str, str]:
        site, before = str(self.folder / "site"), os.environ.get("PYTHONPATH")
        return super().environment() | {
            "PYTHONPATH": os.pathsep.join([site, *([before] if before else [])]),
            "PROFILED_ROOT": f"{ROOT}/rms/",
            "PROFILED_FOLDER": str(self.folder / "files"),
        }

    def files(self) -> set[str]:
        """Return the files entered by all processes that have ended."""
        texts = [part.read_text() for part in (self.folder / "files").iterdir()]
        return {line for text in texts for line in text.splitlines()}


def served(*steps: Callable[[Profiled], None]) -> set[str]:
    """Return the files that a daemon and its jobs enter while these steps are made."""
    daemon = Profiled(2, "--policy", "fifo")
    try:
        for step in steps:
            step(daemon)
        assert daemon.end() == 0, daemon.said()
        daemon.nothing_left()
        return daemon.files()
    finally:
        daemon.close()


def submission(daemon: Profiled) -> None:
    """Submit a command and wait for its end."""
    assert daemon.rms("submit", "--", "true").returncode == 0
    assert daemon.over("1") == ["COMPLETED"]


def start(daemon: Profiled) -> None:
    """Start a malleable job on one node."""
    options = ["--mode", "malleable", "--nodes", "1-2", "--preferred", "1"]
    assert daemon.submit(f"mpirun {shlex.join(program('until_go'))}", *options) == "1"
    daemon.running("1")


def resize(daemon: Profiled) -> None:
    """Expand that job to two nodes."""
    daemon.resized("1", 2)
    daemon.until(lambda: len(daemon.resizes("1")) == 1, "the resize")


def wait(daemon: Profiled) -> None:
    """Let it end."""
    daemon.hurry()
    assert daemon.over("1") == ["COMPLETED"]


def test_files_that_a_submission_enters() -> None:
    files = served(submission)
    assert 20 < len(files) <= SUBMISSION_FILES, sorted(files)


def test_files_that_a_resize_enters_beside_those_of_its_job() -> None:
    more = served(start, resize, wait) - served(start, wait)
    assert len(more) <= RESIZE_FILES, sorted(more)


def entered(run: Run, folder: Path, *command: str, **variables: str) -> set[str]:
    """Return the files of the project that one rank, and the ranks that replace it, enter."""
    site, files = folder / "site", folder / "files"
    site.mkdir()
    files.mkdir()
    (site / "sitecustomize.py").write_text(PROFILER)
    before = os.environ.get("PYTHONPATH")
    env = variables | {
        "PYTHONPATH": os.pathsep.join([str(site), *([before] if before else [])]),
        "PROFILED_ROOT": os.pathsep.join(f"{ROOT}/{name}/" for name in ("dmr", "mpdata", "rms")),
        "PROFILED_FOLDER": str(files),
    }
    done = run(MPIEXEC, "-n", "1", *command, env=env)
    assert done.returncode == 0, done.stderr
    texts = [part.read_text() for part in files.iterdir()]
    return {line.removeprefix(f"{ROOT}/") for text in texts for line in text.splitlines()}


def test_files_that_a_program_with_a_resize_enters(run: Run, tmp_path: Path) -> None:
    heat = tmp_path / "heat.py"
    heat.write_text(HEAT)
    files = entered(run, tmp_path, sys.executable, str(heat), DMR_RESIZE_AT="10:2")
    assert "dmr/resize/replace.py" in files
    assert len(files) <= HEAT_FILES, sorted(files)


def test_files_that_a_run_of_mpdata_enters(run: Run, tmp_path: Path) -> None:
    files = entered(run, tmp_path, *MPDATA, "run", "--case", "cone", "--steps", "10")
    assert "dmr/loop/driver.py" in files
    assert len(files) <= MPDATA_FILES, sorted(files)
