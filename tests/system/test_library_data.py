"""Data that a library holds itself: by getter and setter, on any rank, by save and load."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("library_data")


@pytest.fixture(scope="module")
def last_lines() -> list[str]:
    """Return a list that keeps the last line of a run without resizes."""
    return []


def plain(run: Run, last_lines: list[str]) -> str:
    if not last_lines:
        done = run(MPIEXEC, "-n", "2", *WORDS)
        assert done.returncode == 0, done.stderr
        last_lines.append(done.stdout.splitlines()[-1])
        assert last_lines[0].startswith("u ") and last_lines[0].endswith("even True")
    return last_lines[0]


@pytest.mark.parametrize(
    ("script", "strategy"), [("7:3,20:2", "spawn"), ("7:3,20:2", "merge"), ("13:3", "restart")]
)
def test_it_travels_without_rebind(
    run: Run, last_lines: list[str], script: str, strategy: str
) -> None:
    env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
    words = ["merge"] if strategy == "merge" else []
    done = run(MPIEXEC, "-n", "2", *WORDS, *words, env=env)
    assert done.stdout.count(f"ranks by {strategy}") == script.count(":"), done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == plain(run, last_lines)


def test_it_is_in_checkpoints(run: Run, last_lines: list[str]) -> None:
    stopped = run(MPIEXEC, "-n", "2", *WORDS, "save")
    assert "stopped on purpose" in stopped.stderr
    done = run(MPIEXEC, "-n", "1", *WORDS, "again")
    assert "at step 20" in done.stdout, done.stdout + done.stderr
    wanted = plain(run, last_lines).replace("even True", "even False")
    assert done.stdout.splitlines()[-1] == wanted
