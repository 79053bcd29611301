"""The resize machine: the next actions of a resize in flight, without I/O and clock.

A resize begins with the decision and ends when the last superfluous process is gone. The daemon
feeds the machine an input (an event of the resize, or a report of the job) and carries out the
instructions that the machine returns. The machine changes nothing but the job's record.

The states are those of :class:`rms.daemon.store.record.ResizeState`. :data:`TABLE` lists the legal
inputs of all states. A pair that is not in the table is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

import msgspec

from rms.core.model.events import ResizeBegun, Resized, ResizeRolledBack
from rms.daemon.store.context import BOOT_S, GRACE_S
from rms.daemon.store.record import JobRuntime, NewLaunches, PendingResize, ResizeState, Step
from rms.launch.base import cores_of, hosts_of
from rms.wire.messages import (
    Begun,
    BootedWorld,
    CompletionRecord,
    Done,
    Failed,
    Ready,
    ResizeReport,
    RolledBack,
)
from rms.wire.users import ResizeRow

READY_S, MOVE_S, LEAVE_S = 1800.0, 180.0, 10.0  # deadlines of the states ready, moving and leaving
DIED = "the running world has died"
LATER_S = 10.0  # pause after a refusal that may be withdrawn later, and after a death
RELAUNCH = (ResizeState.STOPPING, ResizeState.STARTING)


# --- inputs --------------------------------------------------------------------------------------
#
# The reports of jobs (rms.wire.messages: Ready, Failed, Begun, Done, RolledBack) are inputs too.


class ResizeInput(msgspec.Struct, frozen=True):
    """Something that happened to a job or to its resize."""


class Decided(ResizeInput, frozen=True):
    """The scheduler decided a resize."""

    number: int
    slots: tuple[str, ...]
    strategy: str = ""  # a user's choice, or "" for the job's own
    refusal: str = ""  # why a running job cannot go over to these slots, or ""


class CallStarted(ResizeInput, frozen=True):
    """The owner of the nodes received the request and will answer."""


class CallAnswered(ResizeInput, frozen=True):
    """The owner of the nodes fulfilled the request, or refused it for a reason."""

    reason: str = ""


class Booted(ResizeInput, frozen=True):
    """The launches of the resize were started: their processes, or the failure."""

    pids: dict[int, int]
    failure: str = ""


class Observed(ResizeInput, frozen=True):
    """The state of the resize's processes at a tick; deadlines are checked."""

    ended: dict[int, int]  # exit status of launches of the resize that have ended
    gone: frozenset[int]  # launches that are to leave and have no processes any more


class WorldEnded(ResizeInput, frozen=True):
    """The world that was to end at a checkpoint has ended, with or without a record."""

    record: CompletionRecord | None


class StepEnded(ResizeInput, frozen=True):
    """The launcher line has ended; nothing is left to be resized."""


class WorldDied(ResizeInput, frozen=True):
    """The job's world has died; another one goes on from copies in memory."""


class ScriptEnded(ResizeInput, frozen=True):
    """The script has ended, and none of the job's processes is left."""

    nodes_lost: bool = False


class Polled(ResizeInput, frozen=True):
    """The job computes."""


class Adopted(ResizeInput, frozen=True):
    """A restarted daemon took the job over, with the resize of its note."""


Input = ResizeInput | Ready | Failed | Begun | Done | RolledBack


@dataclass(frozen=True)
class ResizeContext:
    """The time, and the scheduler's view of the job."""

    now_s: float  # wall clock, for deadlines
    at_s: float  # time of events, which never goes back
    slots: tuple[str, ...]
    # the job's next slots, None if the scheduler has no resize in flight
    requested: tuple[str, ...] | None = None
    resize_begun: bool = False  # whether the scheduler has received ``ResizeBegun``
    number: int = 1  # of the newest resize that was decided for the job


class Flight(NamedTuple):
    """A resize in flight, its job and its context: the arguments of a transition."""

    job: JobRuntime
    resize: PendingResize
    context: ResizeContext


# --- instructions --------------------------------------------------------------------------------
#
# Instructions are values, so that a test compares lists of them.


class ResizeAction(msgspec.Struct, frozen=True):
    """An action on the job, its processes or its nodes."""


class SaveCommand(msgspec.Struct, frozen=True):
    """A note for a restarted daemon, written with the next event or before the next command."""


class Act(StrEnum):
    """Actions without arguments."""

    KILL_JOB = "kill all processes of the job"
    TERMINATE = "ask the job's world to end at a checkpoint"
    TELL_JOB = "wake the job's poll: a resize request waits for it"
    OBSERVE = "observe the processes now"
    RUN_SCRIPT = "run the job's script again, at the new size"


class AskGrant(ResizeAction, frozen=True):
    """Ask the resource manager to let the job keep its nodes and add the new ones."""

    have: tuple[str, ...]
    wanted: tuple[str, ...]


class AskRelease(ResizeAction, frozen=True):
    """Ask the resource manager to reduce the job to these nodes."""

    hosts: tuple[str, ...]


class BootWorlds(ResizeAction, frozen=True):
    """Start launches of a step on their slots, for a resize; the ranks boot on ``cores``."""

    step: int
    launches: dict[int, tuple[str, ...]]
    resize: int
    cores: tuple[int, ...]


class KillLaunch(ResizeAction, frozen=True):
    """Kill the remaining processes of a launch."""

    launch: int


class SaveResize(SaveCommand, frozen=True):
    """Note the resize in flight for a restarted daemon; the note is empty after the last one."""

    note: PendingResize | None


class SaveSteps(SaveCommand, frozen=True):
    """Note the job's steps."""


class SaveFinishedResizes(SaveCommand, frozen=True):
    """Note the resizes that are over."""


class Decide(ResizeAction, frozen=True):
    """Start the resize over."""

    slots: tuple[str, ...]
    strategy: str = ""


class FindLaunches(ResizeAction, frozen=True):
    """Find the processes of these launches again."""

    launches: tuple[int, ...]


class Requeue(ResizeAction, frozen=True):
    """Let the job wait again."""

    reason: str


class GiveUp(ResizeAction, frozen=True):
    """End this run of the job, which hangs; the job waits again if it may."""

    reason: str


class Say(ResizeAction, frozen=True):
    """Tell the operator."""

    words: str


SchedulerEvent = ResizeBegun | Resized | ResizeRolledBack
Instruction = ResizeAction | Act | SaveCommand | SchedulerEvent
# Events for the scheduler and commands, to be carried out in order.
Instructions = list[Instruction]


@dataclass(frozen=True)
class ResizeMachine:
    """Answers inputs by instructions."""

    boot_s: float = BOOT_S
    grace_s: float = GRACE_S

    def handle(self, job: JobRuntime, context: ResizeContext, message: Input) -> Instructions:
        """Return the instructions for an input, in order."""
        resize = job.resize
        if isinstance(message, Decided):
            return self._decided(job, context, message)
        if isinstance(message, Adopted):
            return self._adopted(job, context)
        if isinstance(message, RolledBack) and job.running_step is not None:
            job.running_step.strategy = message.strategy  # before there can be another request
        if isinstance(message, Done) and (
            resize is None or resize.committed or message.number != resize.number
        ):
            return amended(job, message)
        if resize is None:
            return []
        if isinstance(message, Ready | Failed | Begun | Done | RolledBack) and (
            message.number != resize.number or context.requested is None
        ):
            return []
        transition = TABLE.get((resize.state, type(message)), ResizeMachine._wait)
        return transition(self, Flight(job, resize, context), message)

    def _wait(self, *_: object) -> Instructions:
        return []

    # --- the beginning -----------------------------------------------------------------------

    def _decided(self, job: JobRuntime, context: ResizeContext, message: Decided) -> Instructions:
        """Ask for the nodes; a job that cannot go over to them is to end at a checkpoint."""
        step, now = job.running_step, context.now_s
        if not message.refusal:
            strategy = "spawn" if step is None else message.strategy or step.strategy
            strategy = job.adapter or strategy
            job.resize = PendingResize(message.number, message.slots, strategy)
            return [AskGrant(tuple(hosts_of(context.slots)), tuple(hosts_of(message.slots)))]
        if step is None or not step.restartable:
            could_not = "and the job could not go on from a checkpoint (--checkpoint-dir --restart)"
            return roll_back(job, context, f"{message.refusal}; {could_not}")
        state = ResizeState.STOPPING
        job.resize = resize = PendingResize(message.number, message.slots, "relaunch", state=state)
        resize.begun_s, resize.until_s = now, now + self.grace_s
        return [SaveResize(resize.note()), ResizeBegun(context.at_s, job.id), Act.TERMINATE]

    def _call_started(self, at: Flight, message: CallStarted) -> Instructions:
        at.resize.state = ResizeState.GRANTING
        return [SaveResize(at.resize.note())]

    def _granted(self, at: Flight, message: CallAnswered) -> Instructions:
        """Boot the resize's launches, on nodes that the job holds by now; or tell it at once."""
        job, resize, context = at
        if message.reason:
            return close(resize, message.reason)
        if resize.state is ResizeState.GRANTING and job.ending is not None:
            return close(resize, "the job is ending")
        step, slots = job.running_step, resize.slots
        parts: list[tuple[str, ...]] = []
        if resize.strategy == "merge" and step is not None:
            resize.strategy, parts = merging(step, context.slots, slots)
        if resize.strategy in ("warm", "restart"):
            parts = [slots]
        if step is None or not parts:
            resize.told = True
            if resize.state is ResizeState.REQUESTED and not job.adapter:
                return [Act.TELL_JOB]
            resize.state, resize.until_s = ResizeState.READY, inf
            return [Act.TELL_JOB, SaveResize(resize.note())]
        resize.state = ResizeState.BOOTING
        resize.begun_s, resize.until_s = context.now_s, context.now_s + self.boot_s
        resize.new = NewLaunches(dict(enumerate(parts, job.launch_count)))
        job.launch_count += len(parts)
        own = cores_of(context.slots)
        spare = tuple(core for core in cores_of(slots) if core not in own)
        boot = BootWorlds(job.steps.index(step), resize.new.slots, resize.number, spare)
        return [SaveSteps(), SaveResize(resize.note()), boot]

    # --- a new world boots -------------------------------------------------------------------

    def _booted(self, at: Flight, message: Booted) -> Instructions:
        at.resize.new.pids = message.pids
        return (
            close(at.resize, message.failure) if message.failure else [SaveResize(at.resize.note())]
        )

    def _ready(self, at: Flight, message: Ready) -> Instructions:
        """Note that a launch waits for the running world; once all do, tell the job."""
        _, resize, context = at
        new = resize.new
        if message.launch not in new.slots:
            return []
        ranks, waited_s = len(new.slots[message.launch]), context.now_s - resize.begun_s
        new.ready[message.launch] = BootedWorld(
            message.launch, ranks, message.address, message.port, waited_s
        )
        if len(new.ready) < len(new.slots):
            return [SaveResize(resize.note())]
        resize.state, resize.told = ResizeState.READY, True
        resize.until_s = context.now_s + READY_S
        return [Act.TELL_JOB, SaveResize(resize.note())]

    def _check_boot(self, at: Flight, message: Observed) -> Instructions:
        """Roll back if a new launch has ended or a deadline has passed."""
        job, resize, context = at
        if message.ended and job.running_step is not None:
            status = max(message.ended.values())
            return close(resize, f"the new world ended with {status} while {resize.state}")
        if context.now_s <= resize.until_s:
            return []
        if resize.state is ResizeState.BOOTING:
            return close(resize, f"the new world was not ready within {self.boot_s:g} s")
        if resize.new.slots:
            return close(resize, f"the job came to no resize point within {READY_S:g} s")
        return []

    # --- the job goes over -------------------------------------------------------------------

    def _begun(self, at: Flight, message: Begun | Done) -> Instructions:
        """Enter that the job has stopped stepping, once."""
        job, resize, context = at
        instructions: Instructions = []
        if resize.state is ResizeState.READY:
            resize.state, resize.until_s = ResizeState.MOVING, context.now_s + MOVE_S
            instructions.append(SaveResize(resize.note()))
        if not context.resize_begun:
            instructions.append(ResizeBegun(context.at_s, job.id))
        return instructions

    def _done(self, at: Flight, message: Done) -> Instructions:
        """Commit: the new world is the job. Wait for the launches that leave."""
        job, resize, context = at
        instructions, step = self._begun(at, message), job.running_step
        job.add_resize(ResizeRow.of(context.at_s, message.resize, resize.number))
        if step is not None and message.launches:
            resize.leaving = [launch for launch in step.worlds if launch not in message.launches]
            step.current, step.ended_s = message.launches, None
        resize.state, resize.committed, resize.told = ResizeState.LEAVING, True, False
        resize.until_s = context.now_s + LEAVE_S
        saved = SaveFinishedResizes(), SaveSteps(), SaveResize(resize.note())
        return [*instructions, *saved, Act.OBSERVE]

    def _rolled_back(self, at: Flight, message: RolledBack) -> Instructions:
        job, resize, context = at
        if resize.state is not ResizeState.REQUESTED:
            return close(resize, message.reason)
        job.resize = None
        return roll_back(job, context, message.reason)

    def _check_move(self, at: Flight, message: Observed) -> Instructions:
        _, resize, context = at
        if context.now_s <= resize.until_s:
            return []
        resize.until_s = inf
        return [GiveUp(f"no report of its resize for {MOVE_S:g} s")]

    def _died(self, at: Flight, message: WorldDied) -> Instructions:
        """Drop a resize that the job does by itself."""
        job, _, context = at
        job.resize = None
        return [SaveResize(None), *roll_back(job, context, DIED)]

    # --- launches leave, nodes are given back ------------------------------------------------

    def _check_leaving(self, at: Flight, message: Observed) -> Instructions:
        """Kill launches that do not leave; when all are gone, give their nodes back."""
        job, resize, context = at
        closing = resize.state is ResizeState.CLOSING
        if closing and job.call is not None:
            return []  # the request for nodes has no answer yet
        left = [launch for launch in resize.leaving if launch not in message.gone]
        if left:
            kill = closing or context.now_s > resize.until_s
            return [KillLaunch(launch) for launch in left] if kill else []
        for step in job.steps:
            step.worlds = {n: w for n, w in step.worlds.items() if n not in resize.leaving}
        resize.state = ResizeState.RELEASING
        return [SaveSteps(), SaveResize(resize.note()), release(resize, context)]

    def _release_again(self, at: Flight, message: Observed) -> Instructions:
        return [release(at.resize, at.context)] if at.job.call is None else []

    def _released(self, at: Flight, message: CallAnswered) -> Instructions:
        """End the resize; a release that failed is tried again."""
        job, resize, context = at
        if message.reason:
            return [Say(f"job {job.id}: {message.reason}; tried again")]
        job.resize = None
        if resize.committed:
            return [SaveResize(None), Resized(context.at_s, job.id, job.rest(context.now_s))]
        return [SaveResize(None), *roll_back(job, context, resize.reason)]

    # --- a relaunch --------------------------------------------------------------------------

    def _check_stop(self, at: Flight, message: Observed) -> Instructions:
        """Kill a world that has not ended in time; it goes on from the checkpoint before."""
        job, resize, context = at
        step = job.running_step
        if context.now_s <= resize.until_s or resize.committed or step is None:
            return []
        resize.until_s, resize.reason = inf, "killed: no checkpoint in time"
        return [KillLaunch(launch) for launch in step.current]

    def _world_ended(self, at: Flight, message: WorldEnded) -> Instructions:
        """Commit the relaunch, unless the world died or ended for another reason."""
        record = message.record
        if at.resize.committed or (record is None and not at.resize.reason):
            return []
        if record is not None:
            if record.state != "CANCELLED":
                return []
            at.resize.at_step = record.step
        at.resize.committed = True
        return [SaveResize(at.resize.note()), Act.KILL_JOB]

    def _script_ended(self, at: Flight, message: ScriptEnded) -> Instructions:
        """Run the script again; if it could not start, requeue the job."""
        job, resize, context = at
        if job.ending is not None:
            return []
        if resize.state is ResizeState.STARTING:
            return [Requeue("could not start at its new size")] if message.nodes_lost else []
        if not resize.committed or context.requested is None:
            return []
        job.steps, job.keys = [], []
        resize.state = ResizeState.STARTING
        return [SaveSteps(), SaveResize(resize.note()), Act.RUN_SCRIPT]

    def _relaunched(self, at: Flight, message: Polled) -> Instructions:
        """End the relaunch: the job computes again."""
        job, resize, context = at
        stall_s = context.now_s - resize.begun_s
        sizes = len(context.slots), len(resize.slots)
        report = ResizeReport(resize.at_step, *sizes, "relaunch", stall_s, stall_s, 0.0, 0, 0.0)
        job.add_resize(ResizeRow.of(context.at_s, report, resize.number))
        job.resize = None
        resized = Resized(context.at_s, job.id, job.rest(context.now_s))
        return [SaveFinishedResizes(), SaveResize(None), resized]

    # --- a restarted daemon ------------------------------------------------------------------

    def _adopted(self, job: JobRuntime, context: ResizeContext) -> Instructions:
        resize, now = job.resize, context.now_s
        instructions: Instructions = []
        if resize is not None and (
            context.requested is None or resize.number != context.number
        ):  # its end was entered, and perhaps the next was decided
            job.resize = resize = None
            instructions.append(SaveResize(None))
        if context.requested is None:
            return instructions
        if resize is None:
            return [*instructions, Decide(context.requested)]
        if resize.state is ResizeState.GRANTING:
            job.resize = None
            return [Decide(resize.slots, resize.strategy)]
        if resize.state in RELAUNCH:
            resize.until_s = now + self.grace_s
            if resize.committed:
                return [Act.KILL_JOB] if resize.state is ResizeState.STOPPING else []
            return [Act.TERMINATE]
        if resize.state is ResizeState.BOOTING and not resize.new.pids:  # perhaps none was started
            job.resize = None
            again = Decide(resize.slots, resize.strategy)
            return [*map(KillLaunch, resize.new.slots), SaveResize(None), again]
        waits = {
            ResizeState.BOOTING: self.boot_s,
            ResizeState.READY: READY_S,
            ResizeState.MOVING: MOVE_S,
        }
        resize.until_s = now + waits.get(resize.state, LEAVE_S)
        instructions.append(Say(f"job {job.id}: its resize goes on, {resize.state}"))
        if resize.state in (ResizeState.READY, ResizeState.MOVING):
            resize.told = True
            instructions.append(Act.TELL_JOB)
        step = job.running_step
        lost = () if step is None else tuple(n for n in resize.new.slots if n not in step.worlds)
        return [*instructions, FindLaunches(lost)] if lost else instructions


# --- parts of several transitions ----------------------------------------------------------------


def merging(
    step: Step, have: tuple[str, ...], slots: tuple[str, ...]
) -> tuple[str, list[tuple[str, ...]]]:
    """Return ``merge`` and the slots of its launches (none for a shrink), or ``warm`` instead."""
    if len(slots) > len(have) and slots[: len(have)] == have:
        return "merge", [(slot,) for slot in slots[len(have) :]]
    kept = 0
    for _, ranks in step.ranks:
        kept += ranks
        if kept == len(slots) and slots == have[:kept]:
            return "merge", []
    return "warm", []


def amended(job: JobRuntime, message: Done) -> Instructions:
    """Enter the total stall of a completed resize, whose new world now begins its first step."""
    for row in job.resizes:
        whole = ResizeRow.of(row.at_s, message.resize, message.number)
        if row.number == message.number and row != whole:
            job.add_resize(whole)
            return [SaveFinishedResizes()]
    return []


def close(resize: PendingResize, reason: str) -> Instructions:
    """Roll back: kill the new launches. Their slots are free when their processes are gone."""
    resize.state, resize.reason, resize.told = ResizeState.CLOSING, reason, False
    resize.leaving = list(resize.new.slots)
    return [SaveResize(resize.note()), *map(KillLaunch, resize.leaving)]


def release(resize: PendingResize, context: ResizeContext) -> AskRelease:
    """Return the request to give back the nodes that the job no longer needs."""
    return AskRelease(tuple(hosts_of(resize.slots if resize.committed else context.slots)))


def roll_back(job: JobRuntime, context: ResizeContext, reason: str) -> Instructions:
    """Tell the scheduler that the job goes on as it was."""
    later = reason.startswith("later: ")
    rests = job.rest(context.now_s, LATER_S if later or reason == DIED else 0.0)
    return [ResizeRolledBack(context.at_s, job.id, reason, rests, later)]


# --- the table -----------------------------------------------------------------------------------

REQUESTED, GRANTING, BOOTING, READY, MOVING, LEAVING, CLOSING, RELEASING, STOPPING, STARTING = (
    ResizeState
)

_ROWS: tuple[tuple[type[Input], tuple[ResizeState, ...], Callable[..., Instructions]], ...] = (
    (CallStarted, (REQUESTED,), ResizeMachine._call_started),
    (CallAnswered, (REQUESTED, GRANTING), ResizeMachine._granted),
    (CallAnswered, (CLOSING,), lambda *_: [Act.OBSERVE]),
    (CallAnswered, (RELEASING,), ResizeMachine._released),
    (Booted, (BOOTING,), ResizeMachine._booted),
    (Ready, (BOOTING,), ResizeMachine._ready),
    (Failed, (BOOTING, READY), lambda _, at, message: close(at.resize, message.reason)),
    # After a restart the note may be older than the request that the job has received.
    (Begun, (REQUESTED, GRANTING, BOOTING, READY, MOVING), ResizeMachine._begun),
    (Done, (REQUESTED, GRANTING, BOOTING, READY, MOVING), ResizeMachine._done),
    (RolledBack, (REQUESTED, GRANTING, BOOTING, READY, MOVING), ResizeMachine._rolled_back),
    (Observed, (REQUESTED, GRANTING, STARTING), ResizeMachine._wait),
    (Observed, (BOOTING, READY), ResizeMachine._check_boot),
    (Observed, (MOVING,), ResizeMachine._check_move),
    (Observed, (LEAVING, CLOSING), ResizeMachine._check_leaving),
    (Observed, (RELEASING,), ResizeMachine._release_again),
    (Observed, (STOPPING,), ResizeMachine._check_stop),
    (StepEnded, (REQUESTED, LEAVING, STARTING), ResizeMachine._wait),
    (
        StepEnded,
        (GRANTING, BOOTING, READY, MOVING, CLOSING, RELEASING, STOPPING),
        lambda _, at, *__: close(at.resize, "the job ended"),
    ),
    (WorldDied, (REQUESTED,), ResizeMachine._died),
    (
        WorldDied,
        (GRANTING, BOOTING, READY, MOVING),
        lambda _, at, *__: close(at.resize, DIED),
    ),
    (WorldDied, (LEAVING, CLOSING, RELEASING), ResizeMachine._wait),
    (WorldEnded, (STOPPING,), ResizeMachine._world_ended),
    (ScriptEnded, (STOPPING, STARTING), ResizeMachine._script_ended),
    (Polled, (STARTING,), ResizeMachine._relaunched),
)

TABLE: dict[tuple[ResizeState, type[Input]], Callable[..., Instructions]] = {
    (state, kind): transition for kind, states, transition in _ROWS for state in states
}
"""The transitions of all legal pairs of a state and a type of input.

``Decided`` and ``Adopted`` are legal in every state and without a resize in flight.
"""


def is_legal(resize: PendingResize | None, message: Input) -> bool:
    """Return whether an input has a meaning in the present state."""
    if isinstance(message, Decided | Adopted | Done):
        return True
    return resize is not None and (resize.state, type(message)) in TABLE
