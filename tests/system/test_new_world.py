"""A new world that cannot take over says why, at once and in words; the old one goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon import Rms, served
from faulty_jobs import FAULTY
from processes import MPIEXEC, Run, program

PROGRAM = program("failing_world")
GONE = "FileNotFoundError: [Errno 2] No such file or directory: 'gone'"
WHY = {
    "early": GONE,
    "early exit": "its program ended before it reached dmr.run",
    "script": GONE,
    "script alone": GONE,
    "script exit": "its program ended before it reached dmr.run",
    "fields": GONE,
    "thin": "cannot cut 1 cells into 2 blocks",
    "prepare": GONE,
    "build": GONE,
    "build alone": GONE,
}


@pytest.mark.parametrize("where", WHY)
@pytest.mark.parametrize("strategy", ["spawn", "merge", "restart"])
@pytest.mark.promise("new-world")
@pytest.mark.covering(0)
def test_under_mpirun(run: Run, alone: str, strategy: str, where: str) -> None:
    found = run(MPIEXEC, "-n", "1", *PROGRAM, where, strategy)
    assert found.returncode == 0, found.stderr
    (back,) = [line for line in found.stdout.splitlines() if "rolled back" in line]
    # Before its own first line nobody can say more than how a launch has ended.
    silent = strategy == "restart" and where.startswith("early")
    assert ("the new world ended with 1" if silent else WHY[where]) in back
    assert alone in found.stdout


def test_ranks_caught_waiting_for_one_that_fails_leave_too(run: Run, alone: str) -> None:
    found = run(MPIEXEC, "-n", "1", *PROGRAM, "script alone wait", "spawn")
    assert found.returncode == 0, found.stderr
    (back,) = [line for line in found.stdout.splitlines() if "rolled back" in line]
    assert f"rank 1: {GONE}" in back and alone in found.stdout


@pytest.fixture(scope="module")
def alone() -> str:
    command = [MPIEXEC, "-n", "1", *PROGRAM, "steady", "auto"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert found.stdout.endswith("on 1 ranks after 0 resizes\n")
    return found.stdout


@pytest.fixture(scope="module")
def rms() -> Iterator[Rms]:
    with served(2, "--policy", "fifo", "--boot-deadline", "120") as found:
        yield found


@pytest.mark.parametrize("where", [where for where in WHY if "early" not in where])
@pytest.mark.parametrize("strategy", ["warm", "merge", "restart"])
@pytest.mark.promise("new-world")
@pytest.mark.covering(1)
def test_under_the_rms(rms: Rms, alone: str, strategy: str, where: str) -> None:
    if strategy == "merge" and where == "thin":
        pytest.skip("a rank that joins asks for a block of the whole")
    (rms.work / "go").unlink(missing_ok=True)
    body = " ".join(["mpirun", *PROGRAM, f"'{where}'", strategy])
    job = rms.submit(body, "--mode", "malleable", "--nodes", "1-2", "--preferred", "1")
    rms.running(job)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert WHY[where] in rms.rolled_back(job)[0]
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert alone in rms.output(job)
    rms.nothing_left()


CHANGES = {
    "gone": "expected an input file",
    "changed": "option input: expected",
    "of another grid": "field psi: expected",
}


def arrays(path: Path, shape: tuple[int, int, int], seed: int) -> None:
    psi = np.random.default_rng(seed).uniform(1.0, 2.0, shape)
    faces = {
        f"c{axis + 1}": np.zeros([n + (a == axis) for a, n in enumerate(shape)])
        for axis in range(3)
    }
    np.savez(path, psi=psi, **faces)


@pytest.mark.parametrize("strategy", ["warm", "merge", "restart"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.promise("new-world")
@pytest.mark.covering(0)
def test_an_input_that_is_not_what_it_was(rms: Rms, strategy: str, change: str) -> None:
    data = rms.work / "data.npz"
    arrays(data, (12, 10, 4), 1)
    (rms.work / "go").unlink(missing_ok=True)
    slow = [*FAULTY, "none"]
    words = ["--input", str(data), "--steps", "400", "--backend", "numpy", "--every", "2"]
    body = " ".join(["mpirun", *slow, "run", *words, "--strategy", strategy, "--json", "out.json"])
    job = rms.submit(body, "--mode", "malleable", "--nodes", "1-2", "--preferred", "1")
    rms.running(job)
    if change == "gone":
        data.unlink()
    else:
        arrays(data, (12, 10, 4) if change == "changed" else (14, 10, 4), 2)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert CHANGES[change] in rms.rolled_back(job)[0]
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    found = json.loads((rms.work / "out.json").read_text())
    assert found["resizes"] == [] and found["ranks"] == 1
    rms.nothing_left()
