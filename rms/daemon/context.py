"""What the parts of a daemon share: its settings, and where it keeps and asks what it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event
from rms.core.model.jobs import JobId
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State
from rms.daemon.clock import Clock
from rms.daemon.jobs import JobRuntime
from rms.daemon.journal import Journal
from rms.daemon.metrics import Metrics
from rms.daemon.private import Private
from rms.daemon.resize import BOOT_S, GRACE_S
from rms.formats.prices import Prices
from rms.launch.base import Launcher
from rms.launch.power import PowerCommands

Notes = dict[str, dict[str, Any]]
"""Facts that a restarted daemon needs, by key."""


class Handle(Protocol):
    """Hands an event to the scheduler, through the journal; returns what was decided on it."""

    def __call__(self, event: Event, notes: Notes | None = None) -> list[Decision]:
        """Enter the event, and these facts with it."""


@dataclass(frozen=True)
class Settings:
    """What is chosen when a daemon starts.

    Attributes:
        policy: name of the policy.
        now: the time in seconds since the epoch; never set back or forward.
        say: where to tell the operator what happened.
        grace_s: from SIGTERM to SIGKILL: time for a job to reach a resize point and write its
            checkpoint.
        boot_s: deadline for a world that boots beside a running one.
        where: what tells the nodes from others of the same names: an allocation's id, or "".
        prices: of electricity, None where they are not known.
        profiles: folder of measured profiles, or None.
        power_commands: what powers nodes off and on; None where that is in the books only.
        set_frequencies: whether frequencies are set that a policy decides.
        policy_modules: of users' own, whose functions policies may name that decide later.
        clock: what ``now`` is, where the time of day may come to differ from it.
        keep_entries: how many of the journal's entries are kept at least, None for all.
        assumed_s: run time to plan with for jobs without a limit; None: unlimited.
        debug: whether each event and what was decided on it is said.
    """

    policy: str
    now: Callable[[], float]
    say: Callable[[str], None]
    grace_s: float = GRACE_S
    boot_s: float = BOOT_S
    where: str = ""
    prices: Prices | None = None
    profiles: Path | None = None
    power_commands: PowerCommands | None = None
    set_frequencies: bool = True
    policy_modules: frozenset[str] = frozenset()
    clock: Clock | None = None
    keep_entries: int | None = None
    debug: bool = False
    assumed_s: float | None = None


@dataclass
class Context:
    """A scheduler and its jobs, and the outside world.

    Attributes:
        drained: names of nodes that are given to no more jobs.
        broken: names of nodes that could not be powered off or on, until somebody resumes them.
        nodes_wait: what nodes wait for that are asked for, "" where none are.
        private: tokens of jobs, and environments.
        metrics: what is counted for ``/metrics``.
    """

    settings: Settings
    scheduler: Scheduler
    jobs: dict[JobId, JobRuntime]
    journal: Journal
    launcher: Launcher
    drained: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    nodes_wait: str = ""
    private: Private = field(init=False)
    metrics: Metrics = field(default_factory=Metrics, init=False)
    _as_of_s: float | None = None

    def __post_init__(self) -> None:
        self.private = Private(self.launcher.state, self.launcher.instance_id)

    @property
    def state(self) -> State:
        """What the scheduler knows of jobs and nodes."""
        return self.scheduler.engine.state

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        return self.scheduler.cluster

    @property
    def controller_away(self) -> str:
        """The reason while Slurm's controller does not answer, else ""."""
        silent_s = self.launcher.silent_s()
        return f"SlurmctldDown: no answer for {silent_s:.0f} s" if silent_s else ""

    def now(self) -> float:
        """Return the wall clock's time, for deadlines."""
        return self.settings.now() if self._as_of_s is None else self._as_of_s

    @property
    def skew_s(self) -> float:
        """By how much the time of day, which files and meters follow, is ahead of :meth:`now`."""
        return 0.0 if self.settings.clock is None else self.settings.clock.skew_s

    def see_clock(self) -> None:
        """Say where the time of day was set."""
        _ = self.skew_s

    @contextlib.contextmanager
    def as_of(self, at_s: float) -> Iterator[None]:
        """Let the clock stand at an earlier time, to enter what happened then."""
        self._as_of_s = at_s
        try:
            yield
        finally:
            self._as_of_s = None

    def time(self) -> float:
        """Return the time for the next event: the wall clock, never going back."""
        return max(self.now(), self.state.now_s)

    def say(self, words: str) -> None:
        """Tell the operator."""
        self.settings.say(words)

    def set_broken(self, names: Iterable[str]) -> None:
        """Keep which nodes could not be powered off or on."""
        self.broken = frozenset(names)
        self.journal.note("broken", {"names": sorted(self.broken)})

    def note(self, kind: str, job: JobRuntime, value: dict[str, Any]) -> None:
        """Keep a fact about a job for a restarted daemon."""
        self.journal.note(f"{kind}/{job.id}", value)
