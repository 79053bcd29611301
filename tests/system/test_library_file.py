"""State that is a file of a library: moved, in checkpoints and copies in memory, and removed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, Run, program, until

WORDS = program("library_file")
LAST = "1 hash 4e0515a2d1991530a60df97dda65682a655eaf1742b1584bc26918da49dfe81b count 12"
"""Of a run that is left alone."""


def removed(output: str, least: int) -> None:
    """Check that no folder of a file is left; the shell that removes one may still run."""
    folders = {
        Path(path).parent for path in re.findall(r"path (/\S+?/dmr-[0-9a-f]{16}/state)", output)
    }
    assert len(folders) >= least, output
    until(lambda: not any(folder.exists() for folder in folders), "folders are left")


def test_a_run_that_is_left_alone_writes_no_file(run: Run) -> None:
    done = run(MPIEXEC, "-n", "1", *WORDS, "plain")
    assert done.stdout.splitlines() == [LAST], done.stderr


@pytest.mark.parametrize("strategy", ["spawn", "merge", "restart"])
def test_it_moves(run: Run, strategy: str) -> None:
    env = {"DMR_RESIZE_AT": "3:3,8:2", "DMR_STRATEGY": strategy}
    done = run(MPIEXEC, "-n", "2", *WORDS, "merge" if strategy == "merge" else "plain", env=env)
    assert done.stdout.count(f"ranks by {strategy}") == 2, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == LAST
    removed(done.stdout, 4)


@pytest.mark.wide
def test_files_of_100_mib_move(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, "plain", "100", env={"DMR_RESIZE_AT": "3:1"})
    assert "104.9 MB moved" in done.stdout, done.stdout + done.stderr
    left = run(MPIEXEC, "-n", "1", *WORDS, "plain", "100")
    assert done.stdout.splitlines()[-1] == left.stdout.splitlines()[-1]
    removed(done.stdout, 2)


def test_it_is_in_checkpoints(run: Run) -> None:
    stopped = run(MPIEXEC, "-n", "2", *WORDS, "save")
    assert "stopped on purpose" in stopped.stderr
    removed(stopped.stdout, 1)
    done = run(MPIEXEC, "-n", "3", *WORDS, "again")
    assert "at step 5" in done.stdout and done.stdout.splitlines()[-1] == LAST, done.stderr
    removed(done.stdout, 2)


def test_it_is_in_copies_in_memory(run: Run) -> None:
    words = [sys.executable, "-m", "dmr", "run", "--silent", "15", "-n", "2", "--", *WORDS, "die"]
    done = run(*words, env={"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"})
    assert "restored from copies in memory" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == LAST
    removed(done.stdout, 3)


@pytest.mark.parametrize("fault", ["raise", "kill", "kill-read"])
def test_it_is_removed_after_a_failure(run: Run, fault: str) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, fault, env={"DMR_RESIZE_AT": "3:3"})
    assert done.returncode != 0 and " hash " not in done.stdout
    removed(done.stdout, 2 if fault == "kill-read" else 1)


def test_a_write_that_makes_no_file_is_reported(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, "empty", env={"DMR_RESIZE_AT": "3:3"})
    words = "expected write(path) to make a file with bytes on the node of rank 0, got No such file"
    assert f"resize to 3 ranks rolled back: {words}" in done.stdout, done.stdout + done.stderr
    assert f"checkpoint at step 10 not written: {words}" in done.stdout
    assert done.stdout.splitlines()[-1] == LAST
