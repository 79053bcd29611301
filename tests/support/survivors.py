"""A job with copies in memory below a daemon in this process (:mod:`killed`), whose worlds die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from killed import COMMAND, Bench, bench
from submissions import hand_in

from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.daemon.jobs.worlds import DEATH_S
from rms.daemon.store.record import JobRuntime, Step
from rms.launch.local import keepers_of
from rms.wire.messages import Poll

ONE = JobId("1")
KEEPERS = keepers_of(ONE)


@contextmanager
def surviving(folder: Path, *, computes: bool = True) -> Iterator[Bench]:
    """Open a daemon with job 1, which has four nodes and a keeper, and has polled once."""
    with bench(folder) as opened:
        spec = JobSpec(ONE, opened.now_s, 1, 4, 4, Mode.MALLEABLE)
        hand_in(opened.daemon, [spec], requeue=True, survive="1")
        if computes:
            opened.daemon.worlds.launch(job_of(opened), COMMAND, "key")
            opened.daemon.tick()
            polls(opened, 5)
        yield opened


def job_of(opened: Bench) -> JobRuntime:
    return opened.daemon.jobs[ONE]


def step_of(opened: Bench) -> Step:
    step = job_of(opened).running_step
    assert step is not None
    return step


def polls(opened: Bench, step: int, strategy: str = "warm") -> None:
    """Let the present world tell the daemon at which step it is."""
    ranks = tuple((launch, 4) for launch in step_of(opened).current)
    opened.daemon.worlds.poll(job_of(opened), Poll(step, 100, 0, strategy, ranks))


def dies(opened: Bench) -> None:
    """Let the present world die, and the daemon notice it, before it goes on."""
    with patch.object(opened.daemon.worlds, "_revive"):
        for launch in step_of(opened).current:
            opened.machine.end(ONE, launch, 9)
        passes(opened, DEATH_S + 1.0)


def passes(opened: Bench, seconds: float = 0.1, rounds: int = 3) -> None:
    """Let some rounds of the daemon pass."""
    for _ in range(rounds):
        opened.daemon.tick()
        opened.now_s += seconds


def worlds(opened: Bench) -> list[int | None]:
    """Return the launches that run."""
    return [launch for job, launch, _ in opened.machine.live.values() if job == ONE]
