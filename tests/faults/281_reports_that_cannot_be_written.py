"""A hung program was not ended if its error message or its record could not be written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import DEADLINE_S

HANGS = """
import sys, time
from mpi4py import MPI
from dmr.system.watch import WATCH

def record(*_):
    if sys.argv[1] == "record":
        time.sleep(600)

with WATCH.running(1.0, 60.0, []):
    WATCH.on_end(record, lambda: None)
    with WATCH.within("a call"):
        time.sleep(600)
"""


@contextlib.contextmanager
def stderr(what: str) -> Iterator[int]:
    """Return a file on a full disk, a closed or a full pipe; else one that takes all."""
    if what not in ("closed", "full"):
        with Path("/dev/full" if what == "disk" else os.devnull).open("w") as file:
            yield file.fileno()
        return
    reads, writes = os.pipe()
    if what == "closed":
        os.close(reads)
    else:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, bytes(1))
        os.set_blocking(writes, True)
    try:
        yield writes
    finally:
        os.close(writes)
        if what == "full":
            os.close(reads)


@pytest.mark.parametrize("what", ["disk", "closed", "full", "record"])
def test_the_program_ends(what: str) -> None:
    with stderr(what) as file:
        words = [sys.executable, "-P", "-c", HANGS, what]
        done = subprocess.run(words, stderr=file, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
    assert done.returncode == 1
