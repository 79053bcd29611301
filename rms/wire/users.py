"""Messages between users' commands and the daemon, one Struct for a message.

``--json`` of a command prints these Structs under these names (see the command-line contract).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rms.wire.messages import (
    Amount,
    Count,
    Environment,
    Name,
    Nodes,
    Priority,
    ResizeReport,
    Script,
    Seconds,
    Selection,
    Strict,
    Text,
    Words,
)

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")
"""States of jobs that have ended."""

ALIVE = "PENDING,CONFIGURING,RUNNING,SUSPENDED"

SHORT_STATES = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CD": "COMPLETED",
    "F": "FAILED",
    "CA": "CANCELLED",
    "TO": "TIMEOUT",
    "OOM": "OUT_OF_MEMORY",
}
"""As squeue writes them."""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Reason of a refusal, in one sentence."""

    error: str


class Nothing(msgspec.Struct, frozen=True):
    """Empty answer."""


# --- requests about jobs --------------------------------------------------------------------------


class Options(Strict, frozen=True, omit_defaults=True):
    """Options of a job in a script or on a command line; None for those that are not there.

    Attributes:
        time_s: 0 for no limit.
        arguments: of the script itself.
        no_kill: whether it goes on when a rank or node dies.
        survive: the same; seconds between two copies, or "auto".
        memory_mib: of a node; 0 for all of it.
        ntasks: ranks, one on every slot of the job's nodes.
        resize_by: how it is notified of a new size: "messages", "signal" or "command:COMMAND".
    """

    array: Selection | None = None
    nodes: tuple[Nodes, Nodes] | None = None
    preferred: Count | None = None
    ntasks: Count | None = None
    ntasks_per_node: Count | None = None
    requeue: bool | None = None
    no_kill: bool | None = None
    survive: Name | None = None
    priority: Priority | None = None
    mode: Name | None = None
    time_s: Seconds | None = None
    job_name: Name | None = None
    output: Text | None = None
    cooldown_s: Seconds | None = None
    resize_by: Text | None = None
    profile: Text | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    memory_bandwidth_gb_s: Amount | None = None
    error: Text | None = None
    chdir: Text | None = None
    export: Text | None = None
    arguments: Words | None = None
    idempotency_key: Name | None = None
    hold: bool | None = None
    wait_for_nodes: bool | None = None
    begin: Name | None = None
    deadline: Name | None = None
    cheap_within_s: Amount | None = None
    dependency: Text | None = None
    memory_mib: Amount | None = None
    signal: Name | None = None
    account: Name | None = None
    nodelist: Text | None = None
    exclude: Text | None = None

    def over(self, other: Options) -> Options:
        """Return both sets of options; those of this one win."""
        stated = {name: getattr(self, name) for name in self.__struct_fields__}
        own = {name: value for name, value in stated.items() if value is not None}
        return msgspec.structs.replace(other, **own)

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and the most nodes, where nodes are cores."""
        return self.nodes or (self.ntasks or 1, self.ntasks or 1)


class Submission(Strict, frozen=True):
    """A job script with folder, environment and options: ``rms submit``.

    ``command`` are the words of its only launcher line and ``program`` the hash of its file, which
    identify a measured profile. ``profile`` is the text of the profile that an option names: the
    daemon opens no files of users.
    """

    text: Script
    name: Name
    cwd: Text
    env: Environment
    options: Options
    command: list[str] = msgspec.field(default_factory=list)
    program: Name = ""
    profile: Script = ""


class JobIds(msgspec.Struct, frozen=True, omit_defaults=True):
    """New jobs, or jobs that a command has changed; warnings about options without effect."""

    ids: list[str]
    warnings: list[str] = []


class JobSelection(Strict, frozen=True, omit_defaults=True):
    """Jobs that match all filters; a filter is a comma-separated list.

    Attributes:
        id: such as ``7,8_3,9_[1-3]``.
        state: Slurm's names, long or short, or ``ALL``.
        user: owners; all jobs belong to the daemon's owner.
    """

    id: Selection | None = None
    state: Name | None = None
    name: Text | None = None
    user: Name | None = None


WAIT_PATH = "/wait"


class WaitQuery(Strict, frozen=True):
    """Request that the daemon holds until jobs have ended, or for ``hold_s``.

    If ``lines``, a job counts as unfinished until the last line of its output is written.
    """

    id: Selection
    lines: bool = False
    hold_s: Seconds = 0.0


class WaitAnswer(msgspec.Struct, frozen=True):
    """Number of unfinished jobs, at most."""

    left: int


class ResizeCommand(Strict, frozen=True):
    """``rms resize``: to a number of nodes, or to the named ones (``on``, comma-separated).

    Without a number the policy chooses the size again.
    """

    id: Name
    nodes: Count | None
    strategy: Name | None = None
    on: Selection | None = None


class ResizeAnswer(msgspec.Struct, frozen=True):
    """Decision on a resize request, and its reason.

    ``Resize``: it begins; ``Waits``: it begins at the first resize point; ``ByPolicy``: the policy
    chooses the size; ``Later``: refused now; ``Never``: the job cannot have that size.
    """

    decision: str
    reason: str


# --- rows of jobs ---------------------------------------------------------------------------------


class ResizeRow(msgspec.Struct, frozen=True):
    """A completed resize: its end, and the fields of :class:`rms.wire.messages.ResizeReport`.

    Attributes:
        number: of the decision among the job's resizes, 0 if unknown.
        energy_j: energy of the job while it did not step, on the nodes of both worlds.
        energy_source, uncertainty_j: of ``energy_j``, as in :class:`JobRow`.
        saved_j: energy that the rest of the job saves at its new size, by the model; None if the
            run time at that size is unknown.
    """

    at_s: float
    step: int
    from_ranks: int = msgspec.field(name="from")
    to_ranks: int = msgspec.field(name="to")
    strategy: str
    boot_s: float
    stall_s: float
    move_s: float
    bytes: int
    gb_per_s: float
    number: int = 0
    energy_j: float | None = None
    saved_j: float | None = None
    energy_source: str = ""
    uncertainty_j: float | None = None

    @classmethod
    def of(cls, at_s: float, resize: ResizeReport, number: int) -> ResizeRow:
        """Return the row of a resize that ended at this time."""
        return msgspec.structs.replace(cls(at_s, *msgspec.structs.astuple(resize)), number=number)


class NodesHeld(msgspec.Struct, frozen=True):
    """Nodes that a job holds in Slurm from a time on."""

    at_s: float
    nodes: list[str]


class SlurmRow(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm's facts about a job of the engine ``slurm``; unset for other engines.

    ``waits`` is Slurm's reason. ``consumed_energy_j`` is Slurm's own count, which is not verified;
    ``consumed_energy_ratio`` is its ratio to ours.
    """

    slurm_job: int | UnsetType | None = UNSET
    waits: str | UnsetType = UNSET
    held: list[NodesHeld] | UnsetType = UNSET
    consumed_energy_j: float | UnsetType = UNSET
    consumed_energy_ratio: float | UnsetType = UNSET


class EnergyPart(msgspec.Struct, frozen=True):
    """Energy from one source.

    Attributes:
        source: ``model``, or the name of a meter.
        uncertainty_j: half-width of the measured energy, about 95 %; for a part of a shared
            device that of the split is added. 0 for the model: it is unknown, null in ``--json``.
        estimate: a part is a share of a device that several nodes use.
    """

    source: str
    joules: float
    uncertainty_j: float = 0.0
    estimate: bool = False


class LostWork(msgspec.Struct, frozen=True):
    """What failures of ranks or nodes have cost jobs that went on: a part of their energy.

    Attributes:
        times: number of failures.
        steps: number of steps that were computed again.
        seconds: time from the steps that jobs went on from until they computed again.
        recomputed_j: energy until the failures were noticed: of the steps that were lost.
        recovery_j: energy from then until jobs computed again.
    """

    times: int = 0
    steps: int = 0
    seconds: float = 0.0
    recomputed_j: float = 0.0
    recovery_j: float = 0.0

    @property
    def energy_j(self) -> float:
        """The lost energy."""
        return self.recomputed_j + self.recovery_j

    def __add__(self, other: LostWork) -> LostWork:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return LostWork(*[ours + theirs for ours, theirs in pairs])


class EnergyRow(msgspec.Struct, frozen=True):
    """Energy of a device of a node while it had one owner; all rows add up to the cluster's.

    Attributes:
        owner: a job's id, ``task:PROGRAM[PID]``, ``idle``, ``off`` or ``boot``.
        world: number of the job's launch, or None.
        resize: number of the job's resize during that time, 0 for none.
        device: such as ``package-0`` or ``gpu-0``; ``node`` for the model.
        joules: for the model, the energy that no measurement replaces.
        uncertainty_j, estimate: as in :class:`EnergyPart`.
        replaced_j: for the model, the energy that a measurement replaces.
    """

    owner: str
    world: int | None
    resize: int
    node: str
    device: str
    source: str
    begin_s: float
    end_s: float
    joules: float
    uncertainty_j: float
    estimate: bool
    replaced_j: float


class SeenSteps(msgspec.Struct, frozen=True):
    """Steps that a job made on a number of nodes, and their duration."""

    nodes: int
    steps: int
    seconds: float


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job, for queue, show, acct, top and reports.

    Attributes:
        size: number of nodes that it holds, or held last; ``nodes`` are their names while it
            runs. On shared nodes both are slots (``n1/0``).
        reason: reason that it is pending, or of the last decision.
        restartable: whether it resumes from a checkpoint when its script runs again; None until
            its program reports that.
        energy_source: ``model``, or the names of meters.
        energy: by source; the sum is ``energy_j``.
        uncertainty_j: of ``energy_j``; None, unknown, if a part of it is by the model.
        lost: the part of it that failures have cost; None if it has survived none.
        resizing: state of the resize in flight, or "".
        resize_to: target size of a requested or running resize, in the unit of ``size``.
        summary: the last line of the output of an ended job; "" until it is written, None if there
            will be none.
        seen: measured speed by size.
        profile: the measured profile for planning, and its date; or "".
        frequency: lowest frequency of its nodes, relative to the highest possible; None if not set.
        exit_code: of its script, 128 plus the number of the signal that ended it; None before the
            end, or if it never started.
        nodelist, exclude: names of the only permitted nodes, and of the excluded ones.
        priority: ``--priority``; for a pending job in the order ``multifactor`` the sum.
    """

    id: str
    name: str
    state: str
    mode: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    nodes: list[str]
    size: int
    nodes_min: int
    nodes_max: int
    reason: str
    step: int
    steps: int
    energy_j: float
    energy_source: str
    energy: list[EnergyPart] = []
    uncertainty_j: float | None = None
    answer: str
    resizes: list[ResizeRow]
    resizing: str
    resize_to: int | None = None
    output: str
    slurm: SlurmRow
    summary: str | None = None
    seen: list[SeenSteps] = []
    profile: str = ""
    frequency: float | None = None
    exit_code: int | None = None
    account: str = ""
    user: str = ""
    limit_s: float | None = None
    priority: float | None = None
    expected_start_s: float | None = None
    nodelist: list[str] = []
    exclude: list[str] = []
    restartable: bool | None = None
    lost: LostWork | None = None

    @property
    def nodes_words(self) -> str:
        """Number of nodes, with the target of a resize; the range of sizes before the start."""
        if self.size:
            return str(self.size) + ("" if self.resize_to is None else f"->{self.resize_to}")
        low, high = self.nodes_min, self.nodes_max
        return str(high) if low == high else f"{low}-{high}"

    @property
    def range_words(self) -> str:
        """Range of its number of nodes: ``3``, or ``2 to 4``."""
        low, high = self.nodes_min, self.nodes_max
        return str(low) if low == high else f"{low} to {high}"


def steps_words(steps: int) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def restart_words(restartable: bool | None, step: int, steps: int) -> str:
    """Return a clause on the progress that a job keeps or loses when its script runs again."""
    if restartable:
        return "it resumes from its newest checkpoint, or from step 0 without one"
    if restartable is None:
        return "its script starts again from the beginning"
    lost = f"; {step:,} of {steps:,} steps are lost" if step else ""
    return f"it has no checkpoint folder to restart from and starts again from step 0{lost}"


class HistoryEntry(msgspec.Struct, frozen=True):
    """A decision about a job, for ``rms explain``: its kind, the code and the words of its reason;
    for a start or resize also the number of slots and the nodes.
    """

    at_s: float
    kind: str
    code: str
    reason: str
    size: int = 0
    nodes: list[str] = []


# --- nodes, policy, energy ------------------------------------------------------------------------


class NodePattern(Strict, frozen=True):
    """Nodes of a command, in Slurm's bracket form: ``n[1-3]``."""

    node: Selection


class NodeNames(msgspec.Struct, frozen=True):
    """Nodes that a command has changed."""

    nodes: list[str]


class PolicyName(Strict, frozen=True, omit_defaults=True):
    """The present policy, or a new one: a name, or the text of a policy file; "" for no change.

    Attributes:
        strategy: strategy of tasks: a name, or the path of a file.
        governor: share of the machine for tasks: ``high`` or ``low``; a request may also have the
            rules ``price``, ``co2`` (perhaps with ``:LIMIT``) or ``cap``.
        governor_rule: the rule that sets the governor, or "".
        text: text of the strategy's file; the daemon opens no files of users.
    """

    name: Script = ""
    strategy: Text = ""
    governor: Name = ""
    text: Script = ""
    governor_rule: Name = ""


class PowerCap(Strict, frozen=True):
    """Power cap of the cluster, or None."""

    cap_w: Amount | None


class NodeRow(msgspec.Struct, frozen=True):
    """A node: its slots, its state in the words of sinfo, its jobs, the source of its power.

    Attributes:
        job: job on the node; on a shared node several, separated by commas.
        allocated: number of allocated slots.
        kinds: number of slots and of allocated ones by kind of processor; empty if all are alike.
        frequency: relative to the highest possible; None if not set.
        reason: reason that the state may be out of date, "" if it is current.
    """

    name: str
    slots: list[str]
    state: str
    job: str | None
    power_source: str
    allocated: int = 0
    frequency: float | None = None
    reason: str = ""
    kinds: dict[str, tuple[int, int]] = {}


class TaskRow(msgspec.Struct, frozen=True):
    """A task with kernels: its process, its state, and its device or queue.

    A task that stops at its next yield point is ``STOPPING``.
    """

    pid: int
    name: str
    state: str
    device: str
    queue: str


class PowerCapRow(msgspec.Struct, frozen=True):
    """The power cap with the expected and the measured power of the cluster.

    Attributes:
        idle_w: part of ``expected_w``: the power of all nodes when idle.
        measured_w: last readings, with the model for nodes without a meter; None without meters.
    """

    cap_w: float | None
    expected_w: float
    idle_w: float
    measured_w: float | None


class Books(msgspec.Struct, frozen=True):
    """Energy of the cluster from the first event up to ``at_s``, by owner.

    ``tasks_j`` is the energy of tasks with kernels, which hold nodes beside jobs.
    ``sources`` are those of ``cluster_j``; closed books have none.
    ``lost`` is the part of ``busy_j`` that failures of ranks or nodes have cost.
    """

    at_s: float | None
    busy_j: float
    idle_j: float
    off_j: float
    boot_j: float
    cluster_j: float
    busy_node_s: float
    power_source: str
    sources: list[EnergyPart] = []
    tasks_j: float = 0.0
    lost: LostWork = LostWork()


class NodeSpan(msgspec.Struct):
    """The time in which a job held a node, from ``start_s`` to ``end_s``; None for the present.

    ``job`` is ``off`` or ``boot`` for a node that is off or boots.
    """

    node: str
    job: str
    start_s: float
    end_s: float | None


class BooksAnswer(msgspec.Struct, frozen=True):
    """Energy so far, the spans in which jobs held nodes, and the power after the events.

    ``closed`` are the books at the end of the last job; ``power_spans`` are the spans in which
    nodes were off or booted.
    """

    energy: Books
    spans: list[NodeSpan]
    nodes: list[str]
    now_s: float
    policy: str
    power_w: list[tuple[float, float]]
    closed: Books | None
    power_spans: list[NodeSpan] = []


class AcctAnswer(msgspec.Struct, frozen=True):
    """Jobs and energy at one time: ``rms acct``.

    ``rows`` belong to the jobs and, in a query for all jobs, to the other owners too.
    """

    jobs: list[JobRow]
    energy: Books
    rows: list[EnergyRow]


class Snapshot(msgspec.Struct, frozen=True):
    """Present and past of a daemon: ``rms top``, ``rms report``.

    ``rows`` and ``decisions`` (by job) are for reports only.
    """

    jobs: list[JobRow]
    nodes: list[NodeRow]
    books: BooksAnswer
    rows: list[EnergyRow] = []
    decisions: dict[str, list[HistoryEntry]] = {}


# --- what malleability has brought ----------------------------------------------------------------


class Schedule(msgspec.Struct, frozen=True):
    """Figures of one schedule of the same jobs, from the first submission to the last end.

    Attributes:
        mean_wait_s: from submission to start, mean of all jobs.
        energy_j: energy of the cluster by the model; None for the real run, which has meters and
            other jobs too.
        busy_j: the part of it of the jobs.
    """

    makespan_s: float
    mean_wait_s: float
    resizes: int
    energy_j: float | None = None
    busy_j: float | None = None


class JobGain(msgspec.Struct, frozen=True):
    """A job: node seconds that it lent, and its waits in three schedules.

    ``wait_s`` is that of the real run; ``with_s`` and ``without_s`` are those of the replays.
    """

    id: str
    mode: str
    lent_node_s: float
    resizes: int
    wait_s: float
    with_s: float
    without_s: float


class Gain(msgspec.Struct, frozen=True):
    """What resizes have brought, by :func:`rms.sim.gain.gain`, which defines the figures.

    Attributes:
        seq: number of the newest entry of the journal in it.
        from_s, until_s: first submission and newest event.
        jobs, left_out: numbers of replayed jobs and of jobs that cannot be replayed.
        lent_node_s: node seconds that jobs gave up by resizes and other jobs used.
        real, with_resizes, without: the real run, and the replays with and without resizes.
        mean_saved_s: mean wait without resizes less mean wait with them, both replayed.
        later, earlier: numbers of jobs that start later, or earlier, by over a second without
            resizes.
        start_error_s: mean distance of the starts in the replay with resizes from the real ones.
        makespan_error: makespan of that replay over the real one, less 1.
        rows: of the replayed jobs, in the order of submission.
    """

    seq: int
    from_s: float
    until_s: float
    policy: str
    nodes: int
    jobs: int
    left_out: int
    lent_node_s: float
    real: Schedule
    with_resizes: Schedule
    without: Schedule
    mean_saved_s: float
    later: int
    earlier: int
    start_error_s: float
    makespan_error: float
    rows: list[JobGain] = []


# --- what cheap hours have saved -----------------------------------------------------------------


class PricedSchedule(msgspec.Struct, frozen=True):
    """Figures of one schedule of the same jobs at the true prices.

    Attributes:
        busy_j: energy of the jobs.
        mean_turnaround_s: from submission to end, mean of all jobs.
        missed: number of jobs that ended after their deadlines.
        cluster_j, price, co2_g: of all nodes, by the model; None for the real run.
    """

    busy_j: float
    mean_turnaround_s: float
    missed: int
    resizes: int
    cluster_j: float | None = None
    price: float | None = None
    co2_g: float | None = None


class HoursGain(msgspec.Struct, frozen=True):
    """What waiting for cheap hours has saved, by :func:`rms.sim.gain.hours_gain`.

    Attributes:
        seq: number of the newest entry of the journal in it.
        from_s, until_s: first submission and newest event.
        jobs, patient, left_out: numbers of replayed jobs, of those of them with a deadline, and of
            jobs that cannot be replayed.
        currency: of the price; None where the prices have emissions only.
        rated: the prices have emissions.
        real, priced, flat: the real run, and the replays with the true prices and with flat ones.
    """

    seq: int
    from_s: float
    until_s: float
    policy: str
    nodes: int
    jobs: int
    patient: int
    left_out: int
    currency: str | None
    rated: bool
    real: PricedSchedule
    priced: PricedSchedule
    flat: PricedSchedule
