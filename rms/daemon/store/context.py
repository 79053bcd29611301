"""What the parts of a daemon share: its settings, clock and log, and the scheduler and its jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Event,
)
from rms.core.model.jobs import JobId
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State
from rms.daemon.store.journal import Journal, JournalError
from rms.daemon.store.metrics import Metrics
from rms.daemon.store.notes import BrokenNote, ClockNote, Note
from rms.daemon.store.private import Private
from rms.daemon.store.record import JobRuntime
from rms.formats.prices import Prices
from rms.launch.base import PowerCommands
from rms.launch.local import LocalLauncher
from rms.power.meter import boot_id, boottime
from rms.wire.users import PowerCap

BOOT_S, GRACE_S = 60.0, 10.0
"""Default deadlines of a world that boots beside a running one, and of a job that is to end."""


# --- the log -------------------------------------------------------------------------------------


class Sentence(str):
    """A log message of another level than ``info``."""

    level = "info"


def warning(words: str) -> str:
    """Return a message that an operator should act on."""
    return _at("warning", words)


def debug(words: str) -> str:
    """Return a message that is of use for finding a fault only."""
    return _at("debug", words)


def _at(level: str, words: str) -> Sentence:
    sentence = Sentence(words)
    sentence.level = level
    return sentence


def describe(error: Exception) -> str:
    """Return the message of an error, with the place where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


class Faults:
    """Contains unexpected errors of a part of the daemon, and logs each once in a row.

    An error about a job ends that job (:meth:`rms.daemon.jobs.scripts.Scripts.fail`). An error of
    another part is logged, and the part is called again in the next round. The journal's errors
    are not contained: without a journal the daemon must not decide anything.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last = say, dict[str, str]()

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Contain errors of a part of the daemon."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            words = describe(error)
            if self._last.get(part) != words:
                self._last[part] = words
                self._say(warning(f"{part}: {words}; the rest goes on"))


# --- the clock -----------------------------------------------------------------------------------

STEP_S = 1.0
"""Smallest difference between the time of day and the clock that counts as a change."""


class BootClock:
    """Tells the time in seconds since the epoch, unaffected by changes of the time of day.

    NTP or a user may set the time of day while jobs run: time limits, deadlines and the energy of
    the model must not follow. So the clock counts seconds of ``CLOCK_BOOTTIME`` from an offset in
    the journal's notes. A daemon that is restarted before the next boot of the machine continues
    with that offset. Meters on the nodes and time stamps of files follow the time of day; the
    difference is :attr:`skew_s`.

    Args:
        journal: keeps the offset.
        uptime: counts seconds since the boot of the machine.
        of_day: the time of day, in seconds since the epoch.
        boot: identifier of this boot.
    """

    def __init__(
        self,
        journal: Journal,
        say: Callable[[str], None],
        *,
        uptime: Callable[[], float] = boottime,
        of_day: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._journal, self._say, self._uptime, self._of_day = journal, say, uptime, of_day
        self._boot = boot_id() if boot is None else boot
        note = journal.noted(ClockNote)
        goes_on = bool(self._boot) and note.boot == self._boot
        self._offset_s = note.offset_s if goes_on else of_day() - uptime()
        self._skew_s = 0.0
        if not goes_on:
            self._keep()

    def __call__(self) -> float:
        """Return the time."""
        return self._uptime() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Continue from this time at least, the time of the last event in the journal."""
        if self() < at_s:
            self._offset_s = at_s - self._uptime()
            self._keep()

    @property
    def skew_s(self) -> float:
        """How far the time of day is ahead of this clock. A change of it is logged."""
        skew_s = self._of_day() - self()
        if abs(skew_s - self._skew_s) > STEP_S:
            words = (
                f"the time of day was set by {skew_s - self._skew_s:+.1f} s; times here go on as "
                f"before, {abs(skew_s):.1f} s {'behind' if skew_s > 0.0 else 'ahead of'} it"
            )
            self._say(warning(words))
            self._skew_s = skew_s
        return self._skew_s

    def _keep(self) -> None:
        self._journal.note(ClockNote(boot=self._boot, offset_s=self._offset_s))


# --- settings and context ------------------------------------------------------------------------


class Handle(Protocol):
    """Enters an event: journal, scheduler, journal of the decisions, actions."""

    def __call__(
        self, event: Event, notes: Sequence[Note] = (), number: int | None = None
    ) -> list[Decision]:
        """Enter the event, and notes in the same transaction; return the decisions.

        Args:
            number: its sequence number if it is in the journal already.
        """


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of a daemon, fixed when it starts.

    Attributes:
        policy: name of the policy.
        say: writes a message to the log.
        debug: whether each event and its decisions are logged.
        listen: ``unix:PATH`` or ``tcp:HOST:PORT``.
        parent: process whose end ends the daemon, or None.
        grace_s: from SIGTERM to SIGKILL: time for a job to reach a resize point and write its
            checkpoint.
        boot_s: deadline for a world that boots beside a running one.
        assumed_s: run time to plan with for jobs without a limit; None: unlimited.
        policy_modules: the user's modules whose functions a later policy may name.
        profiles: folder of measured profiles, or None.
        prices: of electricity, or None.
        power_cap: bound of the cluster's power; None to keep the bound of before a restart.
        power_commands: power nodes off and on; None: nodes are off in the books only.
        set_frequencies: whether the frequencies that a policy decides are set.
        meter_limit_w: bound of the power of a device, None for the default.
        governor: rule for the governor of tasks, "" to keep the rule of before a restart.
        keep_entries: least number of entries that the journal keeps, None for all.
        where: distinguishes the nodes from others of the same names: an allocation's id, or "".
        now: the time in seconds since the epoch, which is never set.
        clock: the clock behind ``now``, if the time of day may differ from it.
    """

    policy: str
    say: Callable[[str], None]
    debug: bool = False
    listen: str = ""
    parent: int | None = None
    grace_s: float = GRACE_S
    boot_s: float = BOOT_S
    assumed_s: float | None = None
    policy_modules: frozenset[str] = frozenset()
    profiles: Path | None = None
    prices: Prices | None = None
    power_cap: PowerCap | None = None
    power_commands: PowerCommands | None = None
    set_frequencies: bool = True
    meter_limit_w: float | None = None
    governor: str = ""
    keep_entries: int | None = None
    where: str = ""
    now: Callable[[], float] = time.time
    clock: BootClock | None = None


@dataclass
class Context:
    """A scheduler and its jobs, and the outside world.

    Attributes:
        drained: names of nodes that get no new jobs.
        broken: names of nodes that could not be powered off or on, until a user resumes them.
        nodes_wait: why requested nodes are not there yet, "" if none are requested.
        private: tokens and environments of jobs.
        metrics: counters for ``/metrics``.
    """

    settings: Settings
    scheduler: Scheduler
    jobs: dict[JobId, JobRuntime]
    journal: Journal
    launcher: LocalLauncher
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
        """The scheduler's state of jobs and nodes."""
        return self.scheduler.engine.state

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        return self.scheduler.cluster

    @property
    def controller_away(self) -> str:
        """The reason while Slurm's controller does not answer, else ""."""
        silent_s = self.launcher.nodes.silent_s()
        return f"SlurmctldDown: no answer for {silent_s:.0f} s" if silent_s else ""

    def now(self) -> float:
        """Return the wall clock's time, for deadlines."""
        return self.settings.now() if self._as_of_s is None else self._as_of_s

    @property
    def skew_s(self) -> float:
        """How far the time of day, which files and meters follow, is ahead of :meth:`now`."""
        return 0.0 if self.settings.clock is None else self.settings.clock.skew_s

    @contextlib.contextmanager
    def as_of(self, at_s: float) -> Iterator[None]:
        """Stop the clock at an earlier time, to enter an event of that time."""
        self._as_of_s = at_s
        try:
            yield
        finally:
            self._as_of_s = None

    def time(self) -> float:
        """Return the time for the next event: the wall clock, never going back."""
        return max(self.now(), self.state.now_s)

    def say(self, words: str) -> None:
        """Write a message to the log."""
        self.settings.say(words)

    def set_broken(self, names: Iterable[str]) -> None:
        """Note the nodes that could not be powered off or on."""
        self.broken = frozenset(names)
        self.journal.note(BrokenNote(names=sorted(self.broken)))
