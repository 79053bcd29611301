"""What the daemon answers with: rows of jobs, nodes and energy, as ``--json`` prints them.

They are imported from :mod:`rms.wire.users`, which has the questions.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rms.wire.messages import Resize


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


class Accounts(msgspec.Struct, frozen=True):
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
