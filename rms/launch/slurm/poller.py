"""Snapshots of Slurm's queue and nodes, taken about once a second on a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from rms.launch.slurm.commands import Slurm
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.output import QueuedJob
from rms.launch.slurm.site import UNFIT

HOLDING = "RUNNING,COMPLETING,SUSPENDED,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
"""States in which a job has nodes."""

RESERVED = ("reserved", "planned", "powered_down", "powering_down", "rebooting")
URGENT_S = 0.2
CALM_S = 1.0
AWAY_S = 2.0
"""Time between snapshots: while something is expected, while nothing is, where Slurm is away."""

SHARE = 0.2
"""Of the time that snapshots may take: a queue of thousands is not asked for all the time."""


@dataclass(frozen=True)
class QueueSnapshot:
    """What Slurm has answered at one time.

    Attributes:
        begun_s: the monotonic clock before Slurm was asked: what is known since may be missing;
            ``ended_s`` when it had answered.
        own: the jobs of this daemon by number, donors and ended ones too.
        unavailable: nodes that others hold, or that are not fit for work.
        hidden: nodes held by jobs that are not shown, or that have come between two questions.
    """

    begun_s: float
    ended_s: float
    own: Mapping[int, QueuedJob]
    unavailable: frozenset[str]
    hidden: frozenset[str]


def take_snapshot(slurm: Slurm, is_own: Callable[[str], bool]) -> QueueSnapshot:
    """Ask Slurm.

    Args:
        is_own: whether a job of this name and user is this daemon's.

    Raises:
        SlurmError: no answer.
    """
    begun_s = time.monotonic()
    own = {
        row.job_id: row
        for row in slurm.jobs("--states=all", f"--user={slurm.user}")
        if is_own(row.name)
    }
    ours: set[str] = set()
    others: set[str] = set()
    for row in slurm.jobs(f"--states={HOLDING}"):
        (ours if row.job_id in own else others).update(row.hosts)
    hidden: set[str] = set()
    for node in slurm.all_nodes():
        if node.state in ("allocated", "mixed") and node.name not in ours:
            hidden.add(node.name)
        if not node.responds or node.state in (*UNFIT, *RESERVED):
            others.add(node.name)
    return QueueSnapshot(begun_s, time.monotonic(), own, frozenset(others), frozenset(hidden))


class QueuePoller:
    """Asks for one snapshot after the other; never waits for an answer."""

    def __init__(self, executor: Executor, is_own: Callable[[str], bool]) -> None:
        self._executor, self._is_own = executor, is_own
        self._asked: Future[QueueSnapshot] | None = None
        self._next_s = self._pause_s = 0.0
        self._hidden: frozenset[str] = frozenset()
        self.trouble = ""

    def poll(self, *, urgent: bool) -> QueueSnapshot | None:
        """Return a snapshot that has just come in; ask for the next when it is time."""
        now = time.monotonic()
        found = None
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                found, self.trouble = asked.result(), ""
                self._pause_s = (found.ended_s - found.begun_s) / SHARE
                self._next_s = found.begun_s
                lasting, self._hidden = found.hidden & self._hidden, found.hidden
                found = replace(found, unavailable=found.unavailable | lasting)
            except Exception as error:  # of Slurm, or of what it prints: asked again in any case
                self.trouble = str(error) or type(error).__name__
                self._next_s = now + AWAY_S - CALM_S
        due_s = self._next_s + max(
            CALM_S if self.trouble or not urgent else URGENT_S, self._pause_s
        )
        if self._asked is None and now >= due_s:
            slurm = self._executor.slurm
            self._asked = self._executor.ask(lambda: take_snapshot(slurm, self._is_own))
        return found
