"""How many of the project's files a change of one behaviour may concern: files entered by a run.

A file is entered if one of its functions is called, or one of its classes is made, in the daemon or
in a process that the daemon starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from daemon import LocalRms
from processes import program

ROOT = Path(__file__).resolve().parents[2]

SUBMISSION_FILES, RESIZE_FILES = 80, 14
"""Files of a daemon that takes one submission and ends, and how many more a resize may enter."""

PROFILER = """
import atexit, os, sys, threading

ROOT, FOLDER, FILES = os.environ["PROFILED_ROOT"], os.environ["PROFILED_FOLDER"], set()


def enter(frame, event, argument):
    if event == "call" and frame.f_code.co_name[0] != "<":
        FILES.add(frame.f_code.co_filename)


@atexit.register
def write():
    sys.setprofile(None)
    names = sorted(f for f in FILES if f.startswith(ROOT) and "/site-packages/" not in f)
    with open(f"{FOLDER}/{os.getpid()}", "w") as out:
        out.writelines(f"{name}\\n" for name in names)


sys.setprofile(enter)
threading.setprofile(enter)
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
