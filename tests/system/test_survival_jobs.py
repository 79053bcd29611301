"""Jobs with ``--survive``: ranks die, also with the daemon, and the answer is the same."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator

import pytest
from daemon import Rms, lent, served
from processes import MPIEXEC, program

from rms.daemon.jobs.worlds import TRIES

SURVIVOR = program("survivor")
STEPS = "30"
YIELD = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
SIZES = ("--mode", "malleable", "--nodes", "1-2", "--preferred", "2")


def crc(output: str) -> str:
    """Return the only result in an output."""
    (result,) = re.findall(r"^CRC (\w+) on", output, re.MULTILINE)
    return str(result)


@pytest.fixture(scope="module")
def undisturbed() -> str:
    env = {**os.environ, **YIELD, "SURVIVOR_PLAIN": "1"}
    command = [MPIEXEC, "-n", "2", *SURVIVOR, STEPS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=True)
    return crc(done.stdout)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Rms]:
    with served(2, "--policy", "fifo", "--boot-deadline", "120") as found:
        yield found


@pytest.fixture
def rms(daemon: Rms) -> Iterator[Rms]:
    with lent(daemon) as found:
        yield found


def survivor(
    rms: Rms, *kills: str, options: tuple[str, ...] = ("--no-kill",), pause_s: float = 0.1
) -> str:
    """Submit survivor.py on two ranks; return the id."""
    env = {**YIELD, "SURVIVOR_PAUSE": f"{pause_s}"}
    line = " ".join(f"{name}={value}" for name, value in env.items())
    body = (
        f"cd {shlex.quote(str(rms.work))}; {line} mpirun {shlex.join([*SURVIVOR, STEPS, *kills])}"
    )
    return rms.submit(body, *SIZES, *options)


def ends_well(rms: Rms, job: str, answer: str) -> None:
    assert rms.over(job) == ["COMPLETED"], rms.output(job) + rms.said()
    assert crc(rms.output(job)) == answer
    rms.nothing_left()


def deaths(rms: Rms, job: str) -> int:
    return rms.said().count(f"job {job}: a rank has died")


@pytest.mark.promise("survives")
@pytest.mark.parametrize(
    "kills",
    [
        ["step:17:1"],
        ["copy:13:1"],
        ["sent:13:0"],
        ["end:0:1"],
        ["step:17:1", "restore:0:0"],
        ["step:13:0", "copy:17:1", "step:25:1"],
    ],
)
def test_a_killed_rank(rms: Rms, undisturbed: str, kills: list[str]) -> None:
    job = survivor(rms, *kills)
    ends_well(rms, job, undisturbed)
    done = len(list(rms.work.glob("killed-*")))
    assert deaths(rms, job) == done > 0
    assert "restored from copies in memory at step" in rms.output(job)


@pytest.mark.promise("survives")
@pytest.mark.parametrize("kill", ["resize:0:1", "taken:0:0", "step:17:0"])
def test_a_killed_rank_of_a_resized_job(rms: Rms, undisturbed: str, kill: str) -> None:
    job = survivor(rms, kill, options=("--survive", "0.2"), pause_s=0.4)
    rms.running(job, 8)
    rms.ask("resize", job, "1")
    ends_well(rms, job, undisturbed)
    if list(rms.work.glob("killed-*")):  # a strategy may have no such place
        assert deaths(rms, job) or rms.rolled_back(job)


@pytest.mark.promise("survives")
def test_the_daemon_is_killed_meanwhile(rms: Rms, undisturbed: str) -> None:
    job = survivor(rms, "step:17:1")
    rms.until((rms.work / "killed-0").exists, "a killed rank")
    rms.end(signal.SIGKILL)
    rms.start()
    ends_well(rms, job, undisturbed)
    assert "restored from copies in memory at step" in rms.output(job)


@pytest.mark.promise("survives")
def test_a_killed_rank_and_a_cancelled_job(rms: Rms) -> None:
    job = survivor(rms, "step:17:1")
    rms.until((rms.work / "killed-0").exists, "a killed rank")
    rms.ask("cancel", job)
    assert rms.over(job) == ["CANCELLED"]
    rms.nothing_left()


def test_a_program_that_dies_again_and_again_ends(rms: Rms) -> None:
    job = survivor(rms, *["step:13:0"] * (3 * TRIES))
    assert rms.over(job) == ["FAILED"]
    assert rms.said().count(f"job {job}: computes again") == TRIES
    rms.nothing_left()


def test_a_plan_with_copies_in_another_job_says_so(rms: Rms, undisturbed: str) -> None:
    job = survivor(rms, options=())
    ends_well(rms, job, undisturbed)
    assert "note: no copies in memory: expected the program to be started by" in rms.output(job)
