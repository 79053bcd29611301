"""What the resize machine is told: inputs, and the facts beside the job's record.

See :mod:`rms.daemon.jobs.machine`. What jobs report (:mod:`rms.wire.messages`) is input as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from rms.core.model.events import ResizeBegun, Resized, ResizeRolledBack
from rms.daemon.store.record import JobRuntime, PendingResize, Step
from rms.launch.base import cores_of, hosts_of
from rms.wire.messages import (
    Begun,
    BootedWorld,
    CompletionRecord,
    Done,
    Failed,
    Ready,
    RolledBack,
)
from rms.wire.messages import Resize as ResizeReport
from rms.wire.users import ResizeRow


@dataclass(frozen=True)
class Decided:
    """A resize was decided.

    Attributes:
        strategy: a user's choice, or "" for the job's own.
        refusal: why a running job cannot go over to these slots, or "".
    """

    number: int
    slots: tuple[str, ...]
    strategy: str = ""
    refusal: str = ""


@dataclass(frozen=True)
class CallStarted:
    """Whoever owns the nodes was asked, and will answer."""


@dataclass(frozen=True)
class CallAnswered:
    """They have done what they were asked (or there is nobody to ask), or say why not."""

    reason: str = ""


@dataclass(frozen=True)
class Booted:
    """The launches of the resize were started: their processes; or why one could not be."""

    pids: dict[int, int]
    failure: str = ""


@dataclass(frozen=True)
class Observed:
    """Its processes were looked at; deadlines are checked.

    Attributes:
        ended: exit status of launches of the resize that have ended.
        gone: launches that are to leave and have no processes any more.
    """

    ended: dict[int, int]
    gone: frozenset[int]


@dataclass(frozen=True)
class WorldEnded:
    """The world that was told to end at a checkpoint has ended, with this record or without."""

    record: CompletionRecord | None


@dataclass(frozen=True)
class StepEnded:
    """The launcher line has ended; nothing is left to be resized."""


@dataclass(frozen=True)
class ScriptEnded:
    """The script has ended, and none of the job's processes is left."""

    nodes_lost: bool = False


@dataclass(frozen=True)
class Polled:
    """The job computes."""


@dataclass(frozen=True)
class Adopted:
    """A restarted daemon has found the job, and the resize as it was noted."""


Input = (
    Decided
    | CallStarted
    | CallAnswered
    | Booted
    | Ready
    | Failed
    | Begun
    | Done
    | RolledBack
    | Observed
    | WorldEnded
    | StepEnded
    | ScriptEnded
    | Polled
    | Adopted
)


@dataclass(frozen=True)
class Facts:
    """What the machine is told of the job beside its record, and the time.

    Attributes:
        now_s: wall clock, for deadlines.
        at_s: time of events: never going back.
        slots: where the job is, by the scheduler.
        requested: where it is to be, None where the scheduler knows of no resize in flight.
        resize_begun: whether the scheduler knows that it has stopped stepping for it.
        number: of the newest resize that was decided for the job.
    """

    now_s: float
    at_s: float
    slots: tuple[str, ...]
    requested: tuple[str, ...] | None = None
    resize_begun: bool = False
    number: int = 1


# FUSED rms.daemon.jobs.machine: What the resize machine has done: instructions, to be carried out in order.
#
# See :mod:`rms.daemon.jobs.machine`. All are values, so that a test compares lists of them.


@dataclass(frozen=True)
class AskGrant:
    """Have whoever owns the nodes let the job hold those it has and those it is to have."""

    have: tuple[str, ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class AskRelease:
    """Have whoever owns the nodes let the job hold these only."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class BootWorlds:
    """Start launches of a step, each on its slots, for a resize; their ranks boot on ``cores``."""

    step: int
    launches: dict[int, tuple[str, ...]]
    resize: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class KillLaunch:
    """Kill what is left of a launch."""

    launch: int


@dataclass(frozen=True)
class KillJob:
    """Kill all processes of the job."""


@dataclass(frozen=True)
class Terminate:
    """Ask the job's world to end at a checkpoint."""


@dataclass(frozen=True)
class SaveResize:
    """Note the resize in flight for a restarted daemon; empty where there is none any more."""

    note: PendingResize | None


@dataclass(frozen=True)
class SaveSteps:
    """Note the job's steps."""


@dataclass(frozen=True)
class SavePast:
    """Note the resizes that are over."""


@dataclass(frozen=True)
class TellJob:
    """There is a resize request for the job."""


@dataclass(frozen=True)
class Observe:
    """Look at the processes now."""


@dataclass(frozen=True)
class Decide:
    """Take the decision up from its beginning."""

    slots: tuple[str, ...]
    strategy: str = ""


@dataclass(frozen=True)
class FindLaunches:
    """Find the processes of these launches again."""

    launches: tuple[int, ...]


@dataclass(frozen=True)
class RunScript:
    """Run the job's script again, at the new size."""


@dataclass(frozen=True)
class Requeue:
    """Let the job wait again."""

    reason: str


@dataclass(frozen=True)
class Say:
    """Tell the operator."""

    words: str


ResizeEvent = ResizeBegun | Resized | ResizeRolledBack
SaveCommand = SaveResize | SaveSteps | SavePast
RecordCommand = TellJob | Observe | Decide | Say
ProcessCommand = (
    AskGrant
    | AskRelease
    | BootWorlds
    | KillLaunch
    | KillJob
    | Terminate
    | FindLaunches
    | RunScript
    | Requeue
)
ActCommand = ResizeEvent | RecordCommand | ProcessCommand
Instruction = SaveCommand | ActCommand
Instructions = list[Instruction]
"""An event for the scheduler, or a command; to be carried out in order."""


# FUSED rms.daemon.jobs.machine: The resize machine: what is to be done next about a resize in flight. No I/O, no clock.
#
# A resize begins with the decision and ends when no process is left that should not be. The daemon
# hands the machine what happened (an input) and carries out what it returns (instructions); the only
# thing the machine changes is the job's record. Its states (:class:`rms.daemon.store.record.PendingResize`):
#
# - ``requested``: nothing is started here; once told, the job does everything itself (``spawn``).
# - ``granting``: whoever owns the nodes was asked to give them to the job.
# - ``booting``: the next world (of ``merge``, the additional ranks) boots beside the running one.
# - ``ready``: the job knows and connects at its next resize point.
# - ``moving``: it has stopped stepping.
# - ``leaving``: committed; the launches that are no longer the job's end.
# - ``closing``: rolled back; the new launches are killed.
# - ``releasing``: nodes no longer needed are given back.
#
# Where a running job cannot go over to other nodes, it ends at a checkpoint and its script runs again
# at the new size (a relaunch; for the RMS it stays one job):
#
# - ``stopping``: the job was told to end; its launcher line gets no answer.
# - ``starting``: its script runs again; done when the job computes again.
#
# Every state has a deadline in which a world waits that was booted here. A world that misses it is
# killed, and its slots are free only when its processes are gone.

BOOT_S, READY_S, MOVE_S = 60.0, 1800.0, 180.0
LEAVE_S, GRACE_S = 10.0, 10.0
LATER_S = 10.0
"""How long a job is left alone whose resize was refused, but may go through later."""

RELAUNCH = ("stopping", "starting")


# --- the machine ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResizeMachine:
    """Answers inputs by instructions.

    Attributes:
        boot_s: deadline for a world from its launch until it is ready.
        grace_s: deadline for a job to end at a checkpoint.
    """

    boot_s: float = BOOT_S
    grace_s: float = GRACE_S

    def handle(self, job: JobRuntime, facts: Facts, given: Input) -> Instructions:
        """Take in what happened; return what is to be done, in order."""
        if isinstance(given, Decided):
            return self._decided(job, facts, given)
        if isinstance(given, RolledBack) and job.running_step is not None:
            job.running_step.strategy = given.strategy  # before there can be another request
        if isinstance(given, Adopted):
            return self._adopted(job, facts)
        resize = job.resize
        if isinstance(given, Done) and (
            resize is None or resize.committed or given.number != resize.number
        ):
            return amended(job, given)
        if resize is None:
            return []
        if isinstance(given, Ready | Failed | Begun | Done | RolledBack):
            if given.number != resize.number or facts.requested is None:
                return []
            return self._reported(job, resize, facts, given)
        if isinstance(given, Observed):
            return self._observed(job, resize, facts, given)
        of_calls = CallStarted | CallAnswered | Booted | StepEnded
        if isinstance(given, of_calls):
            return self._answered(job, resize, facts, given)
        return self._relaunching(job, resize, facts, given)

    # --- its beginning -----------------------------------------------------------------------

    def _decided(self, job: JobRuntime, facts: Facts, given: Decided) -> Instructions:
        step = job.running_step
        if given.refusal:
            return self._stop(job, facts, given)
        strategy = "spawn" if step is None else given.strategy or step.strategy
        job.resize = PendingResize(given.number, given.slots, strategy)
        return [AskGrant(tuple(hosts_of(facts.slots)), tuple(hosts_of(given.slots)))]

    def _answered(
        self,
        job: JobRuntime,
        resize: PendingResize,
        facts: Facts,
        given: CallStarted | CallAnswered | Booted | StepEnded,
    ) -> Instructions:
        """Take in what became of what was commanded, or that the step is over."""
        if isinstance(given, CallStarted):
            if resize.state != "requested":
                return []
            resize.state = "granting"
            return [SaveResize(resize.note())]
        if isinstance(given, Booted):
            resize.pids = given.pids
            failed = given.failure
            return close(resize, failed) if failed else [SaveResize(resize.note())]
        if isinstance(given, StepEnded):
            seen_to = resize.state not in ("requested", "leaving", "starting")
            return close(resize, "the job ended") if seen_to else []
        if resize.state == "closing":  # that took the nodes; now the rest
            return [Observe()]
        if resize.state == "releasing":
            return self._released(job, resize, facts, given.reason)
        if resize.state not in ("requested", "granting"):
            return []
        if given.reason:
            return close(resize, given.reason)
        if resize.state == "granting" and job.ending is not None:
            return close(resize, "the job is told to end")
        return self._boot(job, resize, facts)

    def _boot(self, job: JobRuntime, resize: PendingResize, facts: Facts) -> Instructions:
        """Boot what a resize needs, on nodes that the job holds by now; or tell it at once."""
        step, slots = job.running_step, resize.slots
        parts: list[tuple[str, ...]] = []
        if resize.strategy == "merge" and step is not None:
            resize.strategy, parts = merging(step, facts.slots, slots)
        if resize.strategy in ("warm", "restart"):
            parts = [slots]
        if step is None or not parts:
            resize.told = True
            if resize.state == "requested":
                return [TellJob()]
            resize.state, resize.until_s = "ready", inf
            return [TellJob(), SaveResize(resize.note())]
        resize.state = "booting"
        resize.begun_s, resize.until_s = facts.now_s, facts.now_s + self.boot_s
        resize.launches = dict(enumerate(parts, job.launch_count))
        job.launch_count += len(parts)
        own = cores_of(facts.slots)
        spare = tuple(core for core in cores_of(slots) if core not in own)
        boot = BootWorlds(job.steps.index(step), resize.launches, resize.number, spare)
        return [SaveSteps(), SaveResize(resize.note()), boot]

    # --- what the job and its next world say -------------------------------------------------

    def _reported(
        self,
        job: JobRuntime,
        resize: PendingResize,
        facts: Facts,
        given: Ready | Failed | Begun | Done | RolledBack,
    ) -> Instructions:
        """Take a report; one heard already changes nothing."""
        if isinstance(given, Ready):
            heard = resize.state == "booting" and given.launch in resize.launches
            return ready(resize, facts, given) if heard else []
        if isinstance(given, Failed):
            return close(resize, given.reason) if resize.state in ("booting", "ready") else []
        if resize.state in ("leaving", "closing", "releasing"):
            return []
        if isinstance(given, RolledBack):
            if resize.state != "requested":
                return close(resize, given.reason)
            job.resize = None
            return roll_back(job, facts, given.reason)
        found: Instructions = []
        if resize.state == "ready":
            resize.state, resize.until_s = "moving", facts.now_s + MOVE_S
            found.append(SaveResize(resize.note()))
        if not facts.resize_begun:
            found.append(ResizeBegun(facts.at_s, job.id))
        return found + done(job, resize, facts, given) if isinstance(given, Done) else found

    # --- its processes, and deadlines --------------------------------------------------------

    def _observed(
        self, job: JobRuntime, resize: PendingResize, facts: Facts, given: Observed
    ) -> Instructions:
        late = facts.now_s > resize.until_s
        if resize.state in ("requested", "granting", "starting"):
            return []
        if resize.state == "stopping":
            return self._unstopped(job, resize) if late else []
        if resize.state in ("leaving", "closing"):
            if resize.state == "closing" and job.call is not None:
                return []  # nodes are being asked for still
            left = [launch for launch in resize.leaving if launch not in given.gone]
            if left:
                kill = late or resize.state == "closing"
                return [KillLaunch(launch) for launch in left] if kill else []
            for step in job.steps:
                step.worlds = {n: w for n, w in step.worlds.items() if n not in resize.leaving}
            resize.state = "releasing"
            return [SaveSteps(), SaveResize(resize.note()), release(resize, facts)]
        if resize.state == "releasing":
            return [release(resize, facts)] if job.call is None else []
        if resize.state in ("booting", "ready") and given.ended and job.running_step is not None:
            status = max(given.ended.values())
            return close(resize, f"the new world ended with {status} while {resize.state}")
        if late and resize.state == "booting":
            return close(resize, f"the new world was not ready within {self.boot_s:g} s")
        if late and resize.state == "ready" and resize.launches:
            return close(resize, f"the job came to no resize point within {READY_S:g} s")
        if late and resize.state == "moving":
            resize.until_s = inf
            words = f"job {job.id}: no word of its resize for {MOVE_S:g} s; it is ended"
            return [Say(words), KillJob()]
        return []

    def _released(
        self, job: JobRuntime, resize: PendingResize, facts: Facts, reason: str
    ) -> Instructions:
        """End a resize whose nodes are given back; where that failed, it is tried again."""
        if reason:
            return [Say(f"job {job.id}: {reason}; tried again")]
        job.resize = None
        if resize.committed:
            return [SaveResize(None), Resized(facts.at_s, job.id, job.rest(facts.now_s))]
        return [SaveResize(None), *roll_back(job, facts, resize.reason)]

    # --- a relaunch --------------------------------------------------------------------------

    def _stop(self, job: JobRuntime, facts: Facts, given: Decided) -> Instructions:
        """Tell a job to end at a checkpoint, if it can go on from one."""
        step, now = job.running_step, facts.now_s
        if step is None or not step.restartable:
            could_not = "and the job could not go on from a checkpoint (--checkpoint-dir --restart)"
            return roll_back(job, facts, f"{given.refusal}; {could_not}")
        job.resize = resize = PendingResize(given.number, given.slots, "relaunch", state="stopping")
        resize.begun_s, resize.until_s = now, now + self.grace_s
        return [SaveResize(resize.note()), ResizeBegun(facts.at_s, job.id), Terminate()]

    def _unstopped(self, job: JobRuntime, resize: PendingResize) -> Instructions:
        """End a world that has not ended in time; it goes on from the checkpoint before."""
        step = job.running_step
        if resize.committed or step is None:
            return []
        resize.until_s, resize.reason = inf, "killed: no checkpoint in time"
        return [KillLaunch(launch) for launch in step.current]

    def _relaunching(
        self,
        job: JobRuntime,
        resize: PendingResize,
        facts: Facts,
        given: WorldEnded | ScriptEnded | Polled,
    ) -> Instructions:
        if isinstance(given, Polled):
            return relaunched(job, resize, facts) if resize.state == "starting" else []
        if resize.state not in RELAUNCH:
            return []
        if isinstance(given, WorldEnded):
            return stopped(resize, given.record) if resize.state == "stopping" else []
        if job.ending is not None:
            return []
        if resize.state == "starting":
            return [Requeue("could not start at its new size")] if given.nodes_lost else []
        if not resize.committed or facts.requested is None:
            return []
        job.steps, job.keys = [], []
        resize.state = "starting"
        return [SaveSteps(), SaveResize(resize.note()), RunScript()]

    # --- a restarted daemon ------------------------------------------------------------------

    def _adopted(self, job: JobRuntime, facts: Facts) -> Instructions:
        """Go on with the resize that was in flight."""
        resize, now = job.resize, facts.now_s
        found: Instructions = []
        if resize is not None and (facts.requested is None or resize.number != facts.number):
            job.resize = resize = None  # its end was entered, and perhaps the next was decided
            found.append(SaveResize(None))
        if facts.requested is None:
            return found
        if resize is None:
            return [*found, Decide(facts.requested)]
        if resize.state == "granting":
            job.resize = None
            return [Decide(resize.slots, resize.strategy)]
        if resize.state in RELAUNCH:
            resize.until_s = now + self.grace_s
            if resize.committed:
                return [KillJob()] if resize.state == "stopping" else []
            return [Terminate()]
        if resize.state == "booting" and not resize.pids:  # perhaps none was started
            job.resize = None
            again = Decide(resize.slots, resize.strategy)
            return [*map(KillLaunch, resize.launches), SaveResize(None), again]
        waits = {"booting": self.boot_s, "ready": READY_S, "moving": MOVE_S}
        resize.until_s = now + waits.get(resize.state, LEAVE_S)
        found.append(Say(f"job {job.id}: its resize goes on, {resize.state}"))
        if resize.state in ("ready", "moving"):
            resize.told = True
            found.append(TellJob())
        step = job.running_step
        lost = () if step is None else tuple(n for n in resize.launches if n not in step.worlds)
        return [*found, FindLaunches(lost)] if lost else found


def merging(
    step: Step, have: tuple[str, ...], slots: tuple[str, ...]
) -> tuple[str, list[tuple[str, ...]]]:
    """Return how to merge: what each launch is to hold, none for a shrink; or warm instead."""
    if len(slots) > len(have) and slots[: len(have)] == have:
        return "merge", [(slot,) for slot in slots[len(have) :]]
    kept = 0
    for _, ranks in step.ranks:
        kept += ranks
        if kept == len(slots) and slots == have[:kept]:
            return "merge", []
    return "warm", []


def ready(resize: PendingResize, facts: Facts, given: Ready) -> Instructions:
    """Take in that a launch waits for the running world; once all do, tell the job."""
    resize.ready[given.launch] = BootedWorld(
        given.launch,
        len(resize.launches[given.launch]),
        given.address,
        given.port,
        facts.now_s - resize.begun_s,
    )
    if len(resize.ready) < len(resize.launches):
        return [SaveResize(resize.note())]
    resize.state, resize.until_s, resize.told = "ready", facts.now_s + READY_S, True
    return [TellJob(), SaveResize(resize.note())]


def done(job: JobRuntime, resize: PendingResize, facts: Facts, given: Done) -> Instructions:
    """The new world is the job: wait for those who leave, then free what they held."""
    step = job.running_step
    job.add_resize(ResizeRow.of(facts.at_s, given.resize, resize.number))
    if step is not None and given.launches:
        resize.leaving = [launch for launch in step.worlds if launch not in given.launches]
        step.current, step.ended_s = given.launches, None
    resize.state, resize.committed, resize.told = "leaving", True, False
    resize.until_s = facts.now_s + LEAVE_S
    return [SavePast(), SaveSteps(), SaveResize(resize.note()), Observe()]


def amended(job: JobRuntime, message: Done) -> Instructions:
    """Enter the total stall of a completed resize, whose new world now begins its first step."""
    for row in job.resizes:
        whole = ResizeRow.of(row.at_s, message.resize, message.number)
        if row.number == message.number and row != whole:
            job.add_resize(whole)
            return [SavePast()]
    return []


def close(resize: PendingResize, reason: str) -> Instructions:
    """Roll back: the new worlds are killed; their slots are free when they are gone."""
    resize.state, resize.reason, resize.told = "closing", reason, False
    resize.leaving = list(resize.launches)
    return [SaveResize(resize.note()), *map(KillLaunch, resize.leaving)]


def release(resize: PendingResize, facts: Facts) -> AskRelease:
    """Return who is to be asked to take back what is free now; until then it is the job's."""
    return AskRelease(tuple(hosts_of(resize.slots if resize.committed else facts.slots)))


def roll_back(job: JobRuntime, facts: Facts, reason: str) -> Instructions:
    """Tell the scheduler that the job goes on as it was."""
    later = reason.startswith("later: ")
    rests = job.rest(facts.now_s, LATER_S if later else 0.0)
    return [ResizeRolledBack(facts.at_s, job.id, reason, rests, later)]


def stopped(resize: PendingResize, record: CompletionRecord | None) -> Instructions:
    """Take in that the world has ended; nothing where that was not for the resize."""
    if resize.committed:
        return []
    if record is None and not resize.reason:
        return []  # it died
    if record is not None:
        if record.state != "CANCELLED":
            return []
        resize.at_step = record.step
    resize.committed = True
    return [SaveResize(resize.note()), KillJob()]


def relaunched(job: JobRuntime, resize: PendingResize, facts: Facts) -> Instructions:
    """The job computes again: the resize is done."""
    stall_s = facts.now_s - resize.begun_s
    sizes = len(facts.slots), len(resize.slots)
    report = ResizeReport(resize.at_step, *sizes, "relaunch", stall_s, stall_s, 0.0, 0, 0.0)
    job.add_resize(ResizeRow.of(facts.at_s, report, resize.number))
    job.resize = None
    return [SavePast(), SaveResize(None), Resized(facts.at_s, job.id, job.rest(facts.now_s))]
