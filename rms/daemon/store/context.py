"""What a daemon says to whoever runs it: sentences with a level, on standard error.

No file is opened, so none has to be opened again: a journal, a pipe or the shell's ``2>>FILE``
keeps what is said. Where standard error is systemd's journal (``JOURNAL_STREAM``, systemd.exec(5)),
a line begins with its level as ``<4>`` (sd-daemon(3)), and has no time, which the journal adds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event
from rms.core.model.jobs import JobId
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State
from rms.daemon.jobs.machine import BOOT_S, GRACE_S
from rms.daemon.store.journal import Journal, JournalError
from rms.daemon.store.private import Private
from rms.daemon.store.record import JobRuntime
from rms.formats.prices import Prices
from rms.launch.base import Launcher, PowerCommands
from rms.power.meter import boot_id, boottime
from rms.wire.terminal import printable

LEVELS = {"debug": 7, "info": 6, "warning": 4}
"""As syslog(3) numbers them: the lower, the graver."""


class Sentence(str):
    """What is said at another level than ``info``."""

    level = "info"


def warning(words: str) -> str:
    """Return a sentence on what somebody should see to."""
    return _at("warning", words)


def debug(words: str) -> str:
    """Return a sentence for whoever looks for a fault."""
    return _at("debug", words)


def _at(level: str, words: str) -> Sentence:
    found = Sentence(words)
    found.level = level
    return found


class Log:
    """Says sentences of a level or graver; one that cannot be written, on a full disk, is lost."""

    def __init__(self, level: str, env: Mapping[str, str]) -> None:
        self.level, self._journal = level, _is_journal(env.get("JOURNAL_STREAM", ""))

    def __call__(self, words: str) -> None:
        """Say a sentence."""
        level = words.level if isinstance(words, Sentence) else "info"
        if LEVELS[level] > LEVELS[self.level]:
            return
        text = printable(words)
        if self._journal:
            line = f"<{LEVELS[level]}>{text}"
        else:
            named = "" if level == "info" else f"{level}: "
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {named}{text}"
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            print(line, file=sys.stderr, flush=True)


def _is_journal(stream: str) -> bool:
    """Return whether standard error is what systemd says that its journal is: ``DEVICE:INODE``."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


# FUSED rms.daemon.store.context: The daemon's clock: the time of day as it was when the machine booted, counted on from there.
#
# Somebody may set the time of day, or NTP may find it wrong, while jobs run: their limits, the time
# they are given to end and the energy of the model must not follow. So a daemon counts seconds of
# ``CLOCK_BOOTTIME``, which nobody sets, from an offset that is in the journal's notes: a daemon that
# is started again before the machine is booted again goes on with it. What else tells times (meters
# on the nodes, files) follows the time of day; by how much that differs is :attr:`Clock.skew_s`.

NOTE = "clock"
STEP_S = 1.0
"""A time of day that differs by less from what is counted was not set."""


class Clock:
    """Tells the time in seconds since the epoch.

    Args:
        journal: keeps the offset.
        uptime: counts seconds since the machine was booted.
        of_day: the time of day, in seconds since the epoch.
        boot: what tells this boot from others.
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
        known = journal.notes(NOTE).get(NOTE, {})
        goes_on = bool(self._boot) and known.get("boot") == self._boot
        self._offset_s = float(known["offset_s"]) if goes_on else of_day() - uptime()
        self._skew_s = 0.0
        if not goes_on:
            self._keep()

    def __call__(self) -> float:
        """Return the time."""
        return self._uptime() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Go on from a time at least: what has happened was not later than now."""
        if self() < at_s:
            self._offset_s = at_s - self._uptime()
            self._keep()

    @property
    def skew_s(self) -> float:
        """By how much the time of day is ahead of this clock: 0 until somebody sets it."""
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
        self._journal.note(NOTE, {"boot": self._boot, "offset_s": self._offset_s})


# FUSED rms.daemon.store.context: Errors that nobody has foreseen: each ends what it belongs to, and the daemon goes on.
#
# An error about a job ends that job (:meth:`rms.daemon.jobs.scripts.Scripts.fail`); one of a part of the
# daemon is said, once, and the part is asked again the next time. The journal's errors are not
# contained here: without it nothing may be decided.


def describe(error: Exception) -> str:
    """Return what an error says, and where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


class Faults:
    """Says what has gone wrong: the same again only after something else of that part."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, dict[str, str]()

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Contain errors of a part of the daemon."""
        try:
            yield
        except JournalError:
            raise
        except Exception as error:
            words = describe(error)
            if self._said.get(part) != words:
                self._said[part] = words
                self._say(warning(f"{part}: {words}; the rest goes on"))


# FUSED rms.daemon.store.context: What a daemon counts for who watches it from outside: since it was started, kept nowhere.

WAITS_S = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0)
PASSES_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STALLS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Histogram:
    """How many values were at most each of some bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts = tuple(bounds), [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """Counters and histograms.

    Attributes:
        waits_s: of jobs, from their submission to their start.
        passes_s: time that an event took, with what the policy decided on it.
        stalls_s: time that a job stood still for a resize.
        resizes: by outcome: ``done`` or ``rolled_back``.
        ended: jobs by the state in which they have ended.
    """

    def __init__(self) -> None:
        self.waits_s, self.passes_s = Histogram(WAITS_S), Histogram(PASSES_S)
        self.stalls_s = Histogram(STALLS_S)
        self.resizes = Counter[str](done=0, rolled_back=0)
        self.ended = Counter[str](COMPLETED=0, FAILED=0, CANCELLED=0, TIMEOUT=0)


def family(name: str, kind: str, words: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of a metric in Prometheus' text format 0.0.4.

    Args:
        samples: labels as ``state="RUNNING"``, or "", and the value of each.
    """
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    lines += [
        f"{name}{f'{{{labels}}}' if labels else ''} {value:.10g}" for labels, value in samples
    ]
    return lines


def label(name: str, value: str) -> str:
    """Return a label, its value escaped as the format asks for."""
    text = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{text}"'


def histogram(name: str, words: str, seen: Histogram) -> list[str]:
    """Return the lines of a histogram."""
    total, lines = 0, [f"# HELP {name} {words}", f"# TYPE {name} histogram"]
    for bound, count in zip((*map("{:g}".format, seen.bounds), "+Inf"), seen.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
    return [*lines, f"{name}_sum {seen.sum:.10g}", f"{name}_count {total}"]


# FUSED rms.daemon.store.context: What the parts of a daemon share: its settings, and where it keeps and asks what it knows.

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
        silent_s = self.launcher.nodes.silent_s()
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
