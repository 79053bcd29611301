"""The daemon's record of a job: everything that the scheduler does not need to know."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf
from pathlib import Path

import msgspec

from rms.core.model.jobs import JobId
from rms.daemon.store.notes import Note, StepNote, StepsNote, SubmissionNote
from rms.launch.base import LaunchCommand, ManagedProcess, PendingCall
from rms.wire.messages import BootedWorld, ResizeRequest
from rms.wire.users import ResizeRow

# Attributes of a step that its note has as well: all but the processes.
STEP_FACTS = StepNote.__struct_fields__[1:]
REQUEUED = "REQUEUED"  # the ending of a job that returns to the queue


@dataclass
class Death:
    """A world that has died, of a job that goes on from copies in memory.

    Attributes:
        at_s, step: when that was noticed, and the last step that the daemon knows of.
        why: one sentence.
        failed: whether it left a record of a failure, which may come from a lost node.
        call: the request for the cause.
        revived: whether the next world is about to be started.
    """

    at_s: float
    step: int
    why: str
    failed: bool = False
    call: PendingCall | None = None
    revived: bool = False


class Step(StepNote):
    """One launcher line of a job script: a sequence of worlds, and its end."""

    command: LaunchCommand
    # launches by number: every mpiexec whose ranks are, or may become, the job
    worlds: dict[int, ManagedProcess] = msgspec.field(default_factory=dict)
    ended_s: float | None = None  # when the first of the current launches was seen to have ended
    # since when it waits for its keepers, to be started; -inf before these are
    waits_s: float | None = None
    death: Death | None = None  # of its last world, until the next one computes
    # when it was at which step, for the newest messages of a job with keepers
    passed: deque[tuple[float, int]] = msgspec.field(default_factory=lambda: deque(maxlen=4096))


class ResizeState(StrEnum):
    """State of a resize in flight.

    A running job that cannot go over to other nodes is relaunched: it ends at a checkpoint and its
    script runs again at the new size. For the RMS it stays one job.

    Every state in which a world waits that was booted here has a deadline. A world that misses its
    deadline is killed, and its slots are free only when its processes are gone.
    """

    REQUESTED = "requested"  # nothing is started here; the job does everything itself (spawn)
    GRANTING = "granting"  # the owner of the nodes received the request to give them to the job
    BOOTING = "booting"  # the next world (of merge, the additional ranks) boots beside the present
    READY = "ready"  # the job gets the request, and connects at its next resize point
    MOVING = "moving"  # the job has stopped stepping
    LEAVING = "leaving"  # committed; the launches that are no longer the job's end
    CLOSING = "closing"  # rolled back; the new launches are killed
    RELEASING = "releasing"  # nodes that are no longer needed are released
    STOPPING = "stopping"  # a relaunch: the job ends at a checkpoint; its line gets no answer
    STARTING = "starting"  # its script runs again, until the job computes


class NewLaunches(msgspec.Struct):
    """Launches started for a resize, by number; none before the state ``booting``."""

    slots: dict[int, tuple[str, ...]] = {}
    pids: dict[int, int] = {}
    ready: dict[int, BootedWorld] = {}  # those that wait for the running world to connect


class PendingResize(msgspec.Struct):
    """A resize in flight, from the decision to the end of the last superfluous process."""

    number: int  # of this resize among those decided for the job
    slots: tuple[str, ...]  # the job's slots after the resize
    strategy: str
    state: ResizeState = ResizeState.REQUESTED
    new: NewLaunches = msgspec.field(default_factory=NewLaunches)
    # time of the launch of the new world, or of the request to end at a checkpoint
    begun_s: float = 0.0
    until_s: float = 0.0
    leaving: list[int] = []  # launches that are to end, in the states ``leaving`` and ``closing``
    committed: bool = False  # whether the new world goes on
    reason: str = ""
    at_step: int = 0  # of a relaunch, the step of its checkpoint
    told: bool = False  # whether the job may get the request now. Not kept for a restarted daemon.

    def note(self) -> PendingResize:
        """Return a copy for a restarted daemon, whose deadlines begin anew."""
        return msgspec.structs.replace(copy.deepcopy(self), until_s=0.0, told=False)


class ResizeNote(Note, tag="resize"):
    """The resize of a job that is in flight."""

    resize: PendingResize | None = None


# Time for which steps are counted at a size before the count is entered; doubled every time.
PACE_S = 5.0
# Rate limit for ``Stepped`` events of all jobs together (per second, and burst). The jobs of a
# large array are due at the same time, and an event costs a journal entry and a scheduler pass.
# Jobs above the limit go on counting.
COUNTS_PER_S = 200.0
COUNTS_AT_ONCE = 10


class StepRateLimit:
    """Limits the rate of ``Stepped`` events of all jobs together."""

    def __init__(self) -> None:
        self._next_s = -inf

    def due(self, now_s: float) -> bool:
        """Return whether a count may be entered now."""
        return now_s >= self._next_s

    def entered(self, now_s: float) -> None:
        """Note that a count was entered."""
        unused_s = now_s - (COUNTS_AT_ONCE - 1) / COUNTS_PER_S
        self._next_s = max(self._next_s, unused_s) + 1.0 / COUNTS_PER_S


@dataclass(frozen=True)
class StepCount:
    """A count of steps at one size: its begin in seconds and steps, and its length.

    The first count at a size is dropped (its ``span_s`` is 0), as caches are cold.
    """

    since_s: float
    step: int
    span_s: float


SILENT_S = 30.0
"""Time without a message of a job, or without a step, that is reported."""

STEPS_LATE = 20.0
"""A step is late after at least so many times the mean time of a step."""


@dataclass
class Pulse:
    """The last sign of life of a running step of a job: its messages and the steps that it makes.

    Attributes:
        heard_s: time of its last message.
        stepped_s, step: time of the last message with a new step, and that step.
        since_s, first: time and step of the first message.
        heard: whether there was one.
        reported: the line of the log about it, "" for a job that makes steps.
    """

    heard_s: float
    stepped_s: float
    since_s: float
    step: int = 0
    first: int = 0
    heard: bool = False
    reported: str = ""

    @classmethod
    def begin(cls, now_s: float, step: int) -> Pulse:
        """Return that of a job at its first message, or of one that is observed anew."""
        return cls(now_s, now_s, now_s, step, step)

    def hear(self, now_s: float, step: int) -> None:
        """Take in a message."""
        if not self.heard:  # a job that restarts has made steps before
            self.heard, self.since_s, self.first = True, now_s, step
        self.heard_s = now_s
        if step != self.step:
            self.stepped_s, self.step = now_s, step

    def late_s(self, limit_s: float) -> float:
        """Return the time from a step after which the next is late, at least a limit.

        The first may take as long as so many steps of the limit, as it comes after the set-up.
        """
        steps = self.step - self.first
        mean_s = (self.stepped_s - self.since_s) / steps if steps > 0 else limit_s
        return max(limit_s, STEPS_LATE * mean_s)

    def due_s(self, limit_s: float | None) -> float:
        """Return the time after which something may be wrong, if nothing happens before."""
        least_s = SILENT_S if limit_s is None else min(SILENT_S, limit_s)
        return min(self.heard_s + SILENT_S, self.stepped_s + self.late_s(least_s))

    def words(self, now_s: float) -> str:
        """Return what is wrong, "" for nothing."""
        if now_s > self.heard_s + SILENT_S:
            return f"no message of its ranks for {now_s - self.heard_s:.0f} s"
        if now_s > self.stepped_s + self.late_s(SILENT_S):
            return f"no step for {now_s - self.stepped_s:.0f} s, after step {self.step}"
        return ""


@dataclass
class JobRuntime:
    """Everything the daemon knows about a job that the scheduler does not."""

    id: JobId
    # its submission, or that of its array
    submission: SubmissionNote = field(default_factory=SubmissionNote)
    script: ManagedProcess | None = None
    steps: list[Step] = field(default_factory=list)
    # of the launcher lines so far, in the order of ``steps``
    keys: list[str] = field(default_factory=list)
    launch_count: int = 0  # number of launches so far; the next launch has this number
    keeper_count: int = 0  # number of keepers so far; the next one has this number
    run: int = 0  # how often it was requeued: what an earlier run writes and sends is ignored
    resizes: list[ResizeRow] = field(default_factory=list)
    resize: PendingResize | None = None
    call: PendingCall | None = None
    diagnosis: PendingCall | None = None  # the request for the cause of the job's failure
    rests_until_s: float = 0.0
    requested_ranks: int = 0
    user_strategy: str = ""  # a user's strategy for the resize that is to be decided next, or ""
    step: int = 0
    total: int = 0
    ending: str | None = None  # the state in which it is to end, once its end was requested
    fault: str = ""  # an error of the daemon about this job, which is being ended for it; else ""
    kill_at: float | None = None
    signalled: bool = False
    memory_s: float = -inf
    answer: str = ""
    summary: str | None = None  # last line of its output, "" while that is due, None without one
    exit_code: int | None = None
    pulse: Pulse | None = None  # of the running step, None before its first message
    polls: bool = False  # whether an earlier run of it has sent messages
    lost: str = ""  # why its present run was given up, "" for a run that goes on
    lost_since_s: float | None = None  # since when it has a node that is lost
    count: StepCount | None = None  # the present count of steps; None during a resize
    calm_until_s: float = 0.0  # skip checking this job until then unless a child of the daemon ends
    checked_ends: int = 0  # number of ended children at the last check of this job
    revives: bool = False  # whether a step of it waits for keepers, or its world has died
    heir: int | None = None  # number of the line whose step goes on when the script runs again
    inherited: Step | None = None  # that step

    @cached_property
    def wakeup(self) -> asyncio.Event:
        """Wakes the job's poll when a resize request waits for it; pending jobs have none."""
        return asyncio.Event()

    def wake(self) -> None:
        """Wake the polls that wait now."""
        self.wakeup.set()
        self.wakeup.clear()

    @property
    def calm(self) -> bool:
        """Whether no resize, end, death or fault needs a check in every round."""
        busy = self.resize is not None or self.revives
        return not busy and self.kill_at is None and not self.fault

    @cached_property
    def files(self) -> tuple[Path, Path | None]:
        """The files of its output and of its errors, if these are apart."""
        return self.submission.files(self.id)

    @property
    def adapter(self) -> str:
        """How its adapter notifies it of a new size, ``signal`` or ``command``; "" for messages."""
        return self.submission.resize_by.partition(":")[0]

    def rest(self, now_s: float, least_s: float = 0.0) -> bool:
        """Begin its cooldown of at least ``least_s``; return whether it has one."""
        step = self.running_step
        cooldown_s = max(least_s, self.submission.cooldown_s if step is None else step.cooldown_s)
        self.rests_until_s = now_s + cooldown_s
        return cooldown_s > 0

    def add_resize(self, row: ResizeRow) -> None:
        """Enter a finished resize once, as a job repeats its report to a restarted daemon."""
        self.resizes = [old for old in self.resizes if old.number != row.number] + [row]

    def stepped(self, now_s: float, *, enter: bool = True) -> tuple[int, float] | None:
        """Count the steps of the last poll; return steps and seconds when they are to be entered.

        Only scripts with one launcher line are counted, as every line has its own steps. Unless the
        count may be entered now (``enter``), counting goes on.
        """
        count = self.count
        if self.resize is not None or len(self.steps) != 1 or not 0 < self.step < self.total:
            self.count = None
            return None
        if count is None or self.step < count.step:
            self.count = StepCount(now_s, self.step, 0.0)
            return None
        steps, span_s = self.step - count.step, now_s - count.since_s
        if not steps or span_s <= count.span_s or (count.span_s and not enter):
            return None
        self.count = StepCount(now_s, self.step, 2.0 * count.span_s or PACE_S)
        return (steps, span_s) if count.span_s else None

    @property
    def running_step(self) -> Step | None:
        """The running step."""
        return next((step for step in self.steps if step.exit_code is None), None)

    @property
    def lasting(self) -> list[Step]:
        """The steps whose copies in memory are needed."""
        steps = [step for step in self.steps if step.exit_code is None]
        return steps if self.inherited is None else [*steps, self.inherited]

    @property
    def restartable(self) -> bool | None:
        """Whether it resumes from a checkpoint when its script runs again; None before a poll."""
        polled = [step.restartable for step in self.steps if step.has_polled]
        return all(polled) if polled else None

    @property
    def request(self) -> ResizeRequest | None:
        """The resize request for the job."""
        resize = self.resize
        if resize is None or not resize.told:
            return None
        worlds = tuple(resize.new.ready[n] for n in resize.new.slots)
        return ResizeRequest(resize.number, resize.slots, resize.strategy, worlds)

    def request_after(self, number: int) -> ResizeRequest | None:
        """Return the resize request if it is newer than a number."""
        request = self.request
        return request if request is not None and request.number > number else None

    @property
    def resizing(self) -> str:
        """The state of a resize in which the daemon takes part, else ""."""
        if self.resize is None or self.resize.state is ResizeState.REQUESTED:
            return ""
        return self.resize.state

    def steps_note(self) -> StepsNote:
        """Return the note of its steps for a restarted daemon."""

        def noted(step: Step) -> StepNote:
            pids = {number: world.pid for number, world in step.worlds.items()}
            return StepNote(pids=pids, **{name: getattr(step, name) for name in STEP_FACTS})

        return StepsNote(
            self.id,
            list(self.keys),
            self.launch_count,
            list(map(noted, self.steps)),
            self.run,
            self.heir,
            None if self.inherited is None else noted(self.inherited),
            self.keeper_count,
        )

    def forget_processes(self) -> None:
        """Drop everything about its processes: they have ended, or are on lost nodes."""
        self.run += 1
        self.script = self.resize = self.call = self.diagnosis = None
        self.ending = self.kill_at = None
        self.calm_until_s = 0.0
        self.signalled, self.user_strategy = False, ""
        self.polls |= any(step.has_polled for step in self.steps)
        self.pulse, self.lost, self.lost_since_s = None, "", None
        self.steps, self.keys, self.count = [], [], None
        self.revives, self.heir, self.inherited = False, None, None
        self.step = self.total = self.requested_ranks = 0
