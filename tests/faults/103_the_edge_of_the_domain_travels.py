"""The halo at the edge of the domain, where the program owns it, was lost by a resize."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("edge_halo")


@pytest.fixture(scope="module")
def last_lines() -> list[str]:
    """Return a list that keeps the last line of a run without resizes."""
    return []


def plain(run: Run, last_lines: list[str]) -> str:
    if not last_lines:
        done = run(MPIEXEC, "-n", "2", *WORDS)
        assert done.returncode == 0, done.stderr
        last_lines.append(done.stdout.splitlines()[-1])
        assert last_lines[0].startswith("(14, 10) sum ")
    return last_lines[0]


@pytest.mark.parametrize(
    ("ranks", "script", "strategy"),
    [(1, "5:3,9:1", "spawn"), (2, "5:3,9:2", "merge"), (2, "9:1", "restart")],
)
def test_it_travels_with_its_block(
    run: Run, last_lines: list[str], ranks: int, script: str, strategy: str
) -> None:
    env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
    words = ["merge"] if strategy == "merge" else []
    done = run(MPIEXEC, "-n", str(ranks), *WORDS, *words, env=env)
    assert done.stdout.count(f"ranks by {strategy}") == script.count(":"), done.stdout
    assert done.stdout.splitlines()[-1] == plain(run, last_lines)


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_in_checkpoints(run: Run, last_lines: list[str], ranks: int) -> None:
    stopped = run(MPIEXEC, "-n", str(ranks), *WORDS, "save")
    assert "stopped on purpose" in stopped.stderr
    done = run(MPIEXEC, "-n", str(3 - ranks), *WORDS, "again")
    assert "step 7" in done.stdout and done.stdout.splitlines()[-1] == plain(run, last_lines)
