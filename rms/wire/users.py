"""Messages between users' commands and the daemon: one Struct for each message.

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
    Resize,
    Script,
    Seconds,
    Selection,
    Text,
    Words,
)

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")
"""States of jobs that will not change any more."""

ALIVE = "PENDING,CONFIGURING,RUNNING"

SHORT_STATES = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "CD": "COMPLETED",
    "F": "FAILED",
    "CA": "CANCELLED",
    "TO": "TIMEOUT",
    "OOM": "OUT_OF_MEMORY",
}
"""As squeue writes them."""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why a request was refused, in one sentence."""

    error: str


class Nothing(msgspec.Struct, frozen=True):
    """The answer where there is nothing to say but that it was done."""


# --- requests about jobs --------------------------------------------------------------------------


class SubmitOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """What the command line sets; it wins over the script. None where it does not say."""

    array: Selection | None = None
    nodes: tuple[Nodes, Nodes] | None = None
    preferred: Count | None = None
    ntasks: Count | None = None
    requeue: bool | None = None
    priority: Priority | None = None
    mode: Name | None = None
    time_s: Seconds | None = None
    job_name: Name | None = None
    output: Text | None = None
    cooldown_s: Seconds | None = None
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
    dependency: Text | None = None
    memory_mib: Amount | None = None
    signal: Name | None = None
    account: Name | None = None
    nodelist: Text | None = None
    exclude: Text | None = None


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``rms submit`` sends: the script as it is now, and where and how to run it.

    ``command`` are the words of its one launcher line and ``program`` the hash of its file, by
    which a measured profile is found; ``profile`` is the text of the profile's file where one is
    named: the daemon opens no file for others.
    """

    text: Script
    name: Name
    cwd: Text
    env: Environment
    options: SubmitOptions
    command: list[str] = []
    program: Name = ""
    profile: Script = ""


class JobIds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs that were made, or that a command has changed; sentences on what has no effect."""

    ids: list[str]
    warnings: list[str] = []


class JobSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs of which all this is true; several ids, states, names have commas between.

    Attributes:
        id: as ``7,8_3,9_[1-3]``.
        state: by Slurm's names, long or short, or ``ALL``.
        user: whose they are; all are those of the daemon's owner.
    """

    id: Selection | None = None
    state: Name | None = None
    name: Text | None = None
    user: Name | None = None


WAIT_PATH = "/wait"


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether jobs are over, held for a while until they are.

    Attributes:
        lines: they are over only once the last lines of their outputs are written.
        hold_s: how long the question may be held.
    """

    id: Selection
    lines: bool = False
    hold_s: Seconds = 0.0


class WaitAnswer(msgspec.Struct, frozen=True):
    """How many of the jobs are not over yet, at most."""

    left: int


class ResizeCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rms resize``: to so many nodes, or over to those named (``on``, comma-separated).

    None gives the choice of its size back to the policy.
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
    """A resize that is over: when it ended, and what :class:`rms.wire.messages.Resize` tells.

    Attributes:
        number: among those decided for the job, 0 where that is not known.
        energy_j: what the job had while it did not step, on the nodes of both worlds.
        saved_j: what the rest of the job costs less at its new size, by the model; None where
            its run time there is not known.
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

    @classmethod
    def of(cls, at_s: float, resize: Resize, number: int) -> ResizeRow:
        """Return the row of a resize that ended at this time."""
        return msgspec.structs.replace(cls(at_s, *msgspec.structs.astuple(resize)), number=number)


class NodesHeld(msgspec.Struct, frozen=True):
    """Nodes that a job held in Slurm from a time on."""

    at_s: float
    nodes: list[str]


class SlurmRow(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm knows of a job of the engine ``slurm``; of others, nothing is set.

    ``waits`` is Slurm's reason, ``consumed_energy_j`` its own count, once it is known: nobody has
    verified it, ``consumed_energy_ratio`` is it over ours.
    """

    slurm_job: int | UnsetType | None = UNSET
    waits: str | UnsetType = UNSET
    held: list[NodesHeld] | UnsetType = UNSET
    consumed_energy_j: float | UnsetType = UNSET
    consumed_energy_ratio: float | UnsetType = UNSET


class EnergyPart(msgspec.Struct, frozen=True):
    """Energy from one source.

    Attributes:
        source: ``model``, or which meter.
        uncertainty_j: half-width of the measured energy, about 95 %; for a part of a shared
            device the largest possible error of the split is added. 0 for the model.
        estimate: some of it is a part of a device that several nodes share, divided over them.
    """

    source: str
    joules: float
    uncertainty_j: float = 0.0
    estimate: bool = False


class EnergyRow(msgspec.Struct, frozen=True):
    """Energy of a device of a node while it was in one pair of hands; all rows make the cluster's.

    Attributes:
        owner: a job's id, ``task:PROGRAM[PID]``, ``idle``, ``off`` or ``boot``.
        world: number of the launch among the job's, None where there was none.
        resize: number of the job's resize that this was in, 0 for none.
        device: such as ``package-0`` or ``gpu-0``; of the model it is ``node``.
        joules: of the model, what no measurement stands for.
        uncertainty_j, estimate: as in :class:`EnergyPart`.
        replaced_j: of the model, what a measurement stands for.
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
    """Steps that a job was seen to make on so many nodes, and the seconds they took."""

    nodes: int
    steps: int
    seconds: float


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as queue, show, acct, top and reports have it.

    Attributes:
        size: nodes it holds, or held last; ``nodes`` are their names while it runs. Where jobs
            share nodes both are of slots (``n1/0``).
        reason: why it waits, or what was said of it last.
        step, steps: how far its program is.
        restartable: whether it resumes from a checkpoint when its script runs again; None until
            its program reports that.
        energy_source: ``model``, or which meters.
        energy: by source; it adds up to ``energy_j``.
        answer: what the application states of its result.
        resizing: state of the resize in flight, or "".
        resize_to: target size of a requested or running resize, in the unit of ``size``.
        output: file of its standard output.
        summary: the last line of its output, once it is over; "" while that is still to be
            written, None where there is none to come.
        seen: how fast it was seen to step at each size.
        profile: the measured profile that it is planned by, and since when there is one; or "".
        frequency: the lowest of its nodes, over the highest one; None where none is set.
        exit_code: of its script, 128 and the signal's number where one has ended it; None while it
            is not over, or never ran.
        account: whose usage its nodes count as.
        user: name of its owner.
        limit_s: time limit, or None.
        nodelist, exclude: names of the only nodes it may have, and of those that it may not.
        priority: ``--priority``; for a waiting job under order ``multifactor`` the sum.
        expected_start_s: expected start of a waiting job, or None.
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

    @property
    def nodes_words(self) -> str:
        """Number of nodes, with the target of a resize; the range of sizes before the start."""
        if self.size:
            return str(self.size) + ("" if self.resize_to is None else f"->{self.resize_to}")
        low, high = self.nodes_min, self.nodes_max
        return str(high) if low == high else f"{low}-{high}"


def restart_words(restartable: bool | None, step: int, steps: int) -> str:
    """Return a clause on the progress that a job keeps or loses when its script runs again."""
    if restartable:
        return "it resumes from its newest checkpoint, or from step 0 without one"
    if restartable is None:
        return "its script starts again from the beginning"
    lost = f"; {step:,} of {steps:,} steps are lost" if step else ""
    return f"it has no checkpoint folder to restart from and starts again from step 0{lost}"


class HistoryEntry(msgspec.Struct, frozen=True):
    """A decision about a job, for ``rms explain``: what (``kind``), its typed reason (``code``)
    and that in words, and of a start or resize how many slots on which nodes.
    """

    at_s: float
    kind: str
    code: str
    reason: str
    size: int = 0
    nodes: list[str] = []


# --- nodes, policy, energy ------------------------------------------------------------------------


class NodePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes a command is about, in Slurm's bracket form: ``n[1-3]``."""

    node: Selection


class NodeNames(msgspec.Struct, frozen=True):
    """Nodes that a command has changed."""

    nodes: list[str]


class PolicyName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The policy that decides, or is to: a name, or the text of a policy file; "" for as before.

    Attributes:
        strategy: what decides on tasks: a name, or a file's.
        governor: how much of the machine they may use: ``high`` or ``low``; to set it also
            ``price``, ``co2`` (perhaps with ``:LIMIT``) or ``cap``.
        governor_rule: which of these sets it, "" where none does.
        text: of the strategy's file, for the daemon opens none for others.
    """

    name: Script = ""
    strategy: Text = ""
    governor: Name = ""
    text: Script = ""
    governor_rule: Name = ""


class PowerCap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the cluster is to draw at most, None for any power."""

    cap_w: Amount | None


class NodeRow(msgspec.Struct, frozen=True):
    """A node: its slots, its state by sinfo's words, the job there, who measures its power.

    Attributes:
        job: who holds it; several where jobs share nodes, with commas between.
        allocated: how many of its slots are held.
        kinds: of its processors by name, how many slots there are and how many are held; empty
            where all are alike.
        frequency: at which it runs, over the highest one; None where none is set.
        reason: why its state may be out of date, "" if it is current.
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
    """A task with kernels: its process, how far it is, and the device or queue that it is in.

    ``STOPPING`` is one that runs and was told to stop at its next yield point.
    """

    pid: int
    name: str
    state: str
    device: str
    queue: str


class PowerCapRow(msgspec.Struct, frozen=True):
    """The power cap beside what the cluster is expected to draw, and what its meters say.

    Attributes:
        idle_w: of ``expected_w``, what all nodes draw when idle.
        measured_w: as last read, of nodes without a meter by the model; None where none has one.
    """

    cap_w: float | None
    expected_w: float
    idle_w: float
    measured_w: float | None


class Books(msgspec.Struct, frozen=True):
    """Energy of the cluster from the first event up to ``at_s``, by the words of the contract.

    ``tasks_j`` is that of tasks with kernels, which hold nodes beside jobs.
    ``sources`` are those of ``cluster_j``; of books that are closed they are not told.
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


class NodeSpan(msgspec.Struct):
    """A job held a node from ``start_s`` to ``end_s``, None while it does.

    Of a node that is off or boots, ``job`` is ``off`` or ``boot``.
    """

    node: str
    job: str
    start_s: float
    end_s: float | None


class BooksAnswer(msgspec.Struct, frozen=True):
    """Energy so far, who held which node when, and the cluster's power after each event.

    ``closed`` are the books as they stood when the last job had ended, ``power_spans`` says when
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
    """Jobs and all energy at one time: ``rms acct``.

    ``rows`` are of the jobs and, where all jobs are asked for, of the other owners too.
    """

    jobs: list[JobRow]
    energy: Books
    rows: list[EnergyRow]


class Snapshot(msgspec.Struct, frozen=True):
    """All that a daemon tells of its present and past: ``rms top``, ``rms report``.

    ``rows`` and ``decisions``, by job, are there for reports.
    """

    jobs: list[JobRow]
    nodes: list[NodeRow]
    books: BooksAnswer
    rows: list[EnergyRow] = []
    decisions: dict[str, list[HistoryEntry]] = {}
