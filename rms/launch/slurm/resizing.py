"""A running job of Slurm's at other nodes: grown by a donor, shrunk by a list of nodes.

Both look at what the job really has first, so that asking twice does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.output import JobDetails

DONOR = "rms-donor"
LATER_S = 8.0
"""How long nodes are waited for that are not free yet: those of a job that is just ending, or of
which a controller that has just started has not heard."""

AWAY_S = 60.0
"""How long a controller that does not answer is waited for before a resize is given up."""

AGAIN_S = 0.5


@dataclass(frozen=True)
class Donor:
    """A throw-away job by which a job gets nodes: its name, and salloc's options for it."""

    name: str
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a change: the job as it is, None where it is over, or why it could not be."""

    job: JobDetails | None = None
    failure: str = ""


def grow(
    executor: Executor, job: int, hosts: Sequence[str], wanted: Sequence[str], donor: Donor
) -> JobDetails:
    """Have a job hold ``hosts``; return what is known of it then.

    Raises:
        SlurmError: refused; it goes on as it was, without a donor.
    """
    slurm = executor.slurm
    now = slurm.job(job)
    if now.state != "RUNNING":
        raise SlurmError(f"expected a running job, got job {job}, {now.state}", Meaning.GONE)
    if now.batch_host is not None and now.batch_host not in wanted:
        raise SlurmError(
            f"the script of the job runs on {now.batch_host}, which Slurm cannot take from it"
        )
    missing = [host for host in hosts if host not in now.hosts]
    if not missing:
        return now
    slurm.cancel_named(donor.name)  # of a daemon that was killed
    _next_second(now)
    try:
        with executor.rate_limiter:
            return slurm.grow(job, len(missing), donor.name, *donor.options, on=missing)
    except SlurmError:
        now = slurm.job(job)
        if set(missing) <= set(now.hosts):
            return now  # it had them when it ended
        raise


def shrink(executor: Executor, job: int, hosts: Sequence[str]) -> JobDetails:
    """Have a job hold none but ``hosts``; return what is known of it then.

    Raises:
        SlurmError: refused; it has the nodes it had.
    """
    slurm = executor.slurm
    now = slurm.job(job)
    kept = [host for host in now.hosts if host in hosts]
    if now.state != "RUNNING" or len(kept) == len(now.hosts):
        return now
    _next_second(now)
    with executor.rate_limiter:
        return slurm.shrink(job, kept)


def _next_second(job: JobDetails) -> None:
    """Wait for the second after a job's last change: accounting keeps one record for each."""
    last_s = max(job.start_s or 0.0, job.resized_s or 0.0)
    time.sleep(min(1.0, max(0.0, last_s + 1.02 - time.time())))


class Retried:
    """A change of a running job that is asked for again while it may go through later.

    Args:
        change: asks Slurm for it, on a thread.
        give_up: after a while; else only where the job is over.
    """

    def __init__(
        self, executor: Executor, change: Callable[[], JobDetails], *, give_up: bool
    ) -> None:
        self._executor, self._change, self._give_up = executor, change, give_up
        self._first_s: dict[Meaning, float] = {}
        self._again_s = 0.0
        self._asked: Future[JobDetails] | None = executor.ask(change)

    def __call__(self) -> Outcome | None:
        """Return what became of it, None while that is open; asks again when it is time."""
        now = time.monotonic()
        if self._asked is None:
            if now >= self._again_s:
                self._asked = self._executor.ask(self._change)
            return None
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            return Outcome(asked.result())
        except Exception as error:  # of Slurm, or of what it prints
            return self._refused(error, now)

    def _refused(self, error: Exception, now: float) -> Outcome | None:
        meaning = error.meaning if isinstance(error, SlurmError) else Meaning.LATER
        if meaning is Meaning.GONE and not self._give_up:
            return Outcome()
        first_s = self._first_s.setdefault(meaning, now)
        # A controller that is just back refuses what it does once its nodes have reported.
        away = Meaning.UNREACHABLE in self._first_s
        later = away or meaning is Meaning.LATER
        patience_s = AWAY_S if away else LATER_S if later else 0.0
        if self._give_up and now >= first_s + patience_s:
            return Outcome(None, f"later: {error}" if later else str(error))
        self._again_s = now + (AGAIN_S if self._give_up else 4 * AGAIN_S)
        return None
