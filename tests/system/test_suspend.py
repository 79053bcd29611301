"""``rms suspend``, ``rms continue``: stopped processes, idle power, kept nodes, a later limit."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from daemon import POWER, Rms, served

COUNTS = "i=0; while [ ! -e go ]; do i=$((i + 1)); echo $i > count; sleep 0.05; done"
"""A job that counts, by a process of its own each time, until it may end."""


PROGRAM = """
import os, time
import dmr, numpy as np
from mpi4py import MPI
first, end = dmr.split_range(32, MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank)
field = np.ones((end - first + 2, 34))
with dmr.malleable(MPI.COMM_WORLD, {"t": dmr.adapt(field, (32, 32), halo=1)}) as run:
    for step in run.loop(100_000):
        run.fields["t"].exchange("edge")
        time.sleep(0.02)
        if os.path.exists("go"):
            break
"""


def state_of(pid: int) -> str:
    """Return the state of a process as the kernel has it: ``T`` while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def count(rms: Rms) -> int:
    """Return how far the job has counted."""
    file = rms.work / "count"
    return int(file.read_text() or 0) if file.exists() else 0


def stands_still(rms: Rms) -> int:
    """Return the count, which does not change."""
    now = count(rms)
    time.sleep(0.5)
    assert count(rms) == now
    return now


@pytest.mark.promise("suspend")
def test_a_suspended_job_keeps_its_nodes_and_draws_idle_power() -> None:
    with served(2, "--policy", "easy", "--grace", "5") as rms:
        job = rms.submit(COUNTS, "--nodes", "2")
        rms.until(lambda: count(rms) > 3, "a count")
        assert rms.ask("suspend", job)["ids"] == [job]
        assert rms.row(job)["state"] == "SUSPENDED"
        pids = list(rms.processes())
        assert pids and {state_of(pid) for pid in pids} == {"T"}
        at = stands_still(rms)
        waits = rms.submit("true", "--nodes", "1")
        first = rms.books()
        time.sleep(1.0)
        then = rms.books()
        assert rms.row(waits)["state"] == "PENDING"  # the nodes are kept
        assert [node["state"] for node in rms.get("/nodes")] == ["allocated"] * 2
        spent = {
            part: then["energy"][part] - first["energy"][part] for part in ("busy_j", "idle_j")
        }
        span_s = then["energy"]["at_s"] - first["energy"]["at_s"]
        assert spent["busy_j"] == 0.0
        assert spent["idle_j"] == pytest.approx(2 * 3.0 * span_s), POWER
        refused = rms.rms("resize", job, "1")
        assert refused.returncode != 0
        again = rms.rms("suspend", job)
        assert again.returncode == 2 and f"got {job}, SUSPENDED" in again.stderr
        assert rms.ask("continue", job)["ids"] == [job]
        assert rms.row(job)["state"] == "RUNNING"
        rms.until(lambda: count(rms) > at, "a further count")
        rms.hurry()
        assert rms.over(job, waits) == ["COMPLETED"] * 2
        rms.ends_well()


def test_the_time_limit_does_not_count_suspended_time() -> None:
    with served(1, "--policy", "fifo", "--grace", "1") as rms:
        job = rms.submit(COUNTS, "--time", "0:03")
        rms.until(lambda: count(rms) > 3, "a count")
        rms.ask("suspend", job)
        time.sleep(4.0)
        assert rms.row(job)["state"] == "SUSPENDED"
        rms.ask("continue", job)
        assert rms.row(job)["state"] == "RUNNING"
        assert rms.over(job) == ["TIMEOUT"]
        row = rms.row(job)
        assert row["end_s"] - row["start_s"] > 3.0 + 4.0


def test_a_suspended_job_survives_a_killed_daemon_and_can_be_cancelled() -> None:
    with served(1, "--policy", "fifo", "--grace", "5") as rms:
        job = rms.submit("trap 'echo ended > ended; exit 3' TERM; " + COUNTS)
        rms.until(lambda: count(rms) > 3, "a count")
        rms.ask("suspend", job)
        rms.end(signal.SIGKILL)
        rms.start()
        assert rms.row(job)["state"] == "SUSPENDED"
        assert {state_of(pid) for pid in rms.processes()} == {"T"}
        stands_still(rms)
        rms.ask("cancel", job)
        assert rms.over(job) == ["CANCELLED"]
        assert (rms.work / "ended").read_text() == "ended\n"  # its trap ran
        rms.nothing_left()
        assert rms.end() == 0
        rms.replays()


def test_wrong_jobs_are_refused_in_a_sentence() -> None:
    with served(1, "--policy", "fifo") as rms:
        running, waiting = rms.submit(COUNTS), rms.submit("true")
        rms.until(lambda: count(rms) > 0, "a count")
        for command, job, expected in (
            ("suspend", waiting, f"not being resized or ended, got {waiting}, PENDING"),
            ("suspend", "77", "expected the id of a job, got 77"),
            ("continue", running, f"expected a suspended job, got {running}, RUNNING"),
        ):
            done = rms.rms(command, job)
            assert done.returncode == 2 and expected in done.stderr, (command, done)
        rms.hurry()
        assert rms.over(running, waiting) == ["COMPLETED"] * 2


def test_a_malleable_job_is_resized_after_its_suspension_and_not_before() -> None:
    with served(2, "--policy", "fifo") as rms:
        (rms.work / "program.py").write_text(PROGRAM)
        options = ["--mode", "malleable", "--nodes", "1-2", "--preferred", "1"]
        job = rms.submit(f"mpirun {shlex.quote(sys.executable)} program.py", *options)
        rms.running(job)
        rms.ask("suspend", job)
        at = rms.row(job)["step"]
        rms.rms("resize", job, "2")  # waits, or is refused
        time.sleep(1.0)
        assert rms.row(job)["size"] == 1 and rms.row(job)["step"] == at
        rms.ask("continue", job)
        rms.running(job, at + 10)
        rms.resized(job, 2)
        assert rms.resizes(job) == [(1, 2)]
        rms.ask("suspend", job)
        assert {state_of(pid) for pid in rms.ranks()} == {"T"} and len(rms.ranks()) == 2
        rms.ask("continue", job)
        rms.running(job, rms.row(job)["step"] + 10)
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.end() == 0
        rms.nothing_left()
        rms.replays()
