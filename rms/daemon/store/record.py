"""What the daemon knows of a job beside the scheduler: its processes, steps and resizes."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path

import msgspec

from rms.core.model.jobs import JobId
from rms.daemon.store.notes import Note, StepNote, StepsNote, SubmissionNote
from rms.launch.base import LaunchCommand, ManagedProcess, PendingCall
from rms.wire.messages import BootedWorld, ResizeRequest
from rms.wire.users import ResizeRow

REQUEUED = "REQUEUED"
"""The ending of a job that is to wait again."""


@dataclass
class Step:
    """One launcher line being run: a sequence of worlds, and how it ended.

    Attributes:
        worlds: launches by number: every mpiexec whose ranks are, or may become, the job.
        current: the launches that the job's ranks come from now.
        strategy: how the job wants to be resized.
        ranks: of each current launch, in rank order: ``(launch, how many ranks)``.
        has_polled: whether it asked for requests: a program of dmr, which leaves a record.
        ended_s: when the first current launch was seen to have ended.
        cooldown_s: time after a resize in which it is not asked for another.
        restartable: whether it would go on from a checkpoint if it were started again.
    """

    command: LaunchCommand
    worlds: dict[int, ManagedProcess] = field(default_factory=dict)
    current: tuple[int, ...] = ()
    strategy: str = "spawn"
    ranks: tuple[tuple[int, int], ...] = ()
    exit_code: int | None = None
    message: str = ""
    has_polled: bool = False
    ended_s: float | None = None
    cooldown_s: float = 0.0
    restartable: bool = False


class PendingResize(msgspec.Struct):
    """A resize in flight, from the decision to the last process gone.

    Attributes:
        number: of this resize among those decided for the job.
        slots: where the job is to be.
        strategy: how.
        launches: slots of each launch that was started for it, by number.
        pids: their processes.
        ready: those that wait for the running world to connect.
        state: see :mod:`rms.daemon.jobs.machine`.
        begun_s: when the new world was launched, or the job was told to end at a checkpoint.
        until_s: when that state must be over.
        leaving: launches that are to end.
        committed: whether it is the new world that goes on.
        reason: of a rollback.
        at_step: of a relaunch, where its checkpoint was written.
        told: whether the job is to know of it now. Not kept for a restarted daemon.
    """

    number: int
    slots: tuple[str, ...]
    strategy: str
    launches: dict[int, tuple[str, ...]] = {}
    pids: dict[int, int] = {}
    ready: dict[int, BootedWorld] = {}
    state: str = "requested"
    begun_s: float = 0.0
    until_s: float = 0.0
    leaving: list[int] = []
    committed: bool = False
    reason: str = ""
    at_step: int = 0
    told: bool = False

    @property
    def request(self) -> ResizeRequest:
        """What the job is to be told."""
        worlds = tuple(self.ready[n] for n in self.launches)
        return ResizeRequest(self.number, self.slots, self.strategy, worlds)

    def note(self) -> PendingResize:
        """Return a copy for a restarted daemon, whose deadlines begin anew."""
        return msgspec.structs.replace(copy.deepcopy(self), until_s=0.0, told=False)


class ResizeNote(Note, tag="resize"):
    """The resize of a job that is in flight."""

    resize: PendingResize | None = None


PACE_S = 5.0
"""How long a job's steps are counted at a size before the scheduler is told; then twice as long."""

COUNTS_PER_S = 200.0
COUNTS_AT_ONCE = 10
"""How many jobs' counts are entered in a second, and at once: those of a large array are all due at
the same time, each for an entry in the journal, its decisions and a pass. The rest count on."""


class CountPace:
    """Bounds how often counted steps are entered, of all jobs together."""

    def __init__(self) -> None:
        self._next_s = -inf

    def due(self, now_s: float) -> bool:
        """Return whether a count may be entered now."""
        return now_s >= self._next_s

    def entered(self, now_s: float) -> None:
        """Note that one is."""
        unused_s = now_s - (COUNTS_AT_ONCE - 1) / COUNTS_PER_S
        self._next_s = max(self._next_s, unused_s) + 1.0 / COUNTS_PER_S


@dataclass(frozen=True)
class StepCount:
    """Steps being counted at one size: from when and which step on, and for how long.

    The first moments at a size do not count (``span_s`` is 0 then): caches are cold.
    """

    since_s: float
    step: int
    span_s: float


class News:
    """Wakes those who wait for it. By a timer each: thousands wait, and a task each costs more."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self, hold_s: float = inf) -> None:
        """Return when there is news, or after a while."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        timer = None if hold_s == inf else loop.call_later(hold_s, _wake, waiting)
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            if timer is not None:
                timer.cancel()

    def tell(self) -> None:
        """Wake all who wait by now."""
        for waiting in self._waiting:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


@dataclass
class JobRuntime:
    """All of it.

    Attributes:
        submission: its submission, or that of its array.
        keys: of the launcher lines so far, in the order of ``steps``.
        launch_count: how many launches there were; the next has that number.
        resizes: those that are over.
        resize: the one in flight.
        call: what the resize in flight has asked of whoever owns the nodes.
        diagnosis: what was asked about the death of a job that failed.
        news: told when there is a resize request that the job does not know.
        rests_until_s: end of its cooldown.
        requested_ranks: how many its application would have, 0 where it has not said.
        ending: the state in which it is to end, once it was told to.
        signalled: it has got the signal that it asked for, before the end of its time.
        memory_s: when its memory was looked at last.
        fault: what has gone wrong about it in the daemon, "" where nothing has: it is being ended.
        summary: the last line of its output, "" while that is due, None where none is.
        exit_code: of its script, once it is over.
        count: steps being counted at its present size; None while it is resized.
        calm_until_s: until when there is nothing to be seen of it, unless a child of the daemon
            ends.
        seen: how many had ended when it was looked at last.
    """

    id: JobId
    submission: SubmissionNote = field(default_factory=SubmissionNote)
    script: ManagedProcess | None = None
    steps: list[Step] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    launch_count: int = 0
    resizes: list[ResizeRow] = field(default_factory=list)
    resize: PendingResize | None = None
    call: PendingCall | None = None
    diagnosis: PendingCall | None = None
    news: News = field(default_factory=News)
    rests_until_s: float = 0.0
    requested_ranks: int = 0
    step: int = 0
    total: int = 0
    ending: str | None = None
    fault: str = ""
    kill_at: float | None = None
    signalled: bool = False
    memory_s: float = -inf
    answer: str = ""
    summary: str | None = None
    exit_code: int | None = None
    count: StepCount | None = None
    calm_until_s: float = 0.0
    seen: int = 0

    @property
    def calm(self) -> bool:
        """Whether nothing is under way with it that takes looking: a resize, an end, a fault."""
        return self.resize is None and self.kill_at is None and not self.fault

    @cached_property
    def files(self) -> tuple[Path, Path | None]:
        """The files of its output and of its errors, if these are apart."""
        return self.submission.files(self.id)

    def rest(self, now_s: float, least_s: float = 0.0) -> bool:
        """Begin its cooldown, at least so long; return whether it has one."""
        step = self.running_step
        cooldown_s = max(least_s, 0.0 if step is None else step.cooldown_s)
        self.rests_until_s = now_s + cooldown_s
        return cooldown_s > 0

    def add_resize(self, row: ResizeRow) -> None:
        """Enter a resize that is over, once: a job tells a restarted daemon again."""
        self.resizes = [each for each in self.resizes if each.number != row.number] + [row]

    def stepped(self, now_s: float, *, enter: bool = True) -> tuple[int, float] | None:
        """Count the steps it has told; return steps and seconds when they are to be entered.

        Only of a script with one launcher line: of several each has its own steps.

        Args:
            enter: whether they may be entered now; else they are counted on.
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
        """The step that runs now."""
        return next((step for step in self.steps if step.exit_code is None), None)

    @property
    def restartable(self) -> bool | None:
        """Whether it resumes from a checkpoint when its script runs again; None before a poll."""
        polled = [step.restartable for step in self.steps if step.has_polled]
        return all(polled) if polled else None

    @property
    def request(self) -> ResizeRequest | None:
        """What the job is to do."""
        return self.resize.request if self.resize is not None and self.resize.told else None

    @property
    def resizing(self) -> str:
        """The state of a resize that is seen to by the daemon, else ""."""
        return "" if self.resize is None or self.resize.state == "requested" else self.resize.state

    def tell(self) -> None:
        """Wake up whoever waits for a resize request; later polls wait for the next."""
        self.news.tell()

    def steps_note(self) -> StepsNote:
        """Return what a restarted daemon needs to know of its steps."""
        steps = [
            StepNote(
                pids={number: world.pid for number, world in step.worlds.items()},
                current=step.current,
                strategy=step.strategy,
                ranks=step.ranks,
                exit_code=step.exit_code,
                message=step.message,
                has_polled=step.has_polled,
                cooldown_s=step.cooldown_s,
                restartable=step.restartable,
            )
            for step in self.steps
        ]
        return StepsNote(self.id, list(self.keys), self.launch_count, steps)

    def forget_processes(self) -> None:
        """Drop what was known of its processes, of which there are none any more."""
        self.script = self.resize = self.call = self.diagnosis = None
        self.ending = self.kill_at = None
        self.calm_until_s = 0.0
        self.signalled = False
        self.steps, self.keys, self.count = [], [], None
        self.step = self.total = self.requested_ranks = 0
