"""What users' commands and the daemon say to each other: one Struct for each message.

What a command prints with ``--json`` is these, by these names (see the command-line contract).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rms.wire.messages import Resize

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
"""States of jobs that will not change any more."""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why a request was refused, in one sentence."""

    error: str


class Nothing(msgspec.Struct, frozen=True):
    """The answer where there is nothing to say but that it was done."""


# --- jobs ----------------------------------------------------------------------------------------


class SubmitOptions(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """What the command line sets; it wins over the script. None where it does not say."""

    array: str | None = None
    nodes: tuple[int, int] | None = None
    preferred: int | None = None
    mode: str | None = None
    time_s: float | None = None
    job_name: str | None = None
    output: str | None = None
    cooldown_s: float | None = None


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``rms submit`` sends: the script as it is now, and where and how to run it."""

    text: str
    name: str
    cwd: str
    env: dict[str, str]
    options: SubmitOptions


class JobIds(msgspec.Struct, frozen=True):
    """Jobs that were made, or that a command has changed."""

    ids: list[str]


class IdPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs a command is about: ``7``, ``7_3`` or ``7_[1-3]``."""

    id: str


class ResizeCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rms resize``: to so many nodes, or over to those named (``on``, comma-separated)."""

    id: str
    nodes: int
    strategy: str | None = None
    on: str | None = None


class ResizeAnswer(msgspec.Struct, frozen=True):
    """What was decided (``Resize`` if it was taken on) and why."""

    decision: str
    reason: str


class ResizeRow(msgspec.Struct, frozen=True):
    """A resize that is over: when it ended, and what :class:`rms.wire.messages.Resize` tells."""

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

    @classmethod
    def of(cls, at_s: float, resize: Resize) -> ResizeRow:
        """Return the row of a resize that ended at this time."""
        return cls(at_s, *msgspec.structs.astuple(resize))


class NodesHeld(msgspec.Struct, frozen=True):
    """Nodes that a job held in Slurm from a time on."""

    at_s: float
    nodes: list[str]


class SlurmRow(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm knows of a job of the engine ``slurm``; of others, nothing is set.

    ``waits`` is Slurm's reason, ``consumed_energy_j`` its own count, once it is known.
    """

    slurm_job: int | UnsetType | None = UNSET
    waits: str | UnsetType = UNSET
    held: list[NodesHeld] | UnsetType = UNSET
    consumed_energy_j: float | UnsetType = UNSET


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as queue, show, acct, top and reports have it.

    Attributes:
        size: nodes it holds, or held last; ``nodes`` are their names while it runs.
        reason: why it waits, or what was said of it last.
        step, steps: how far its program is.
        energy_source: ``model``, or which meters.
        answer: what the application states of its result.
        resizing: state of the resize in flight, or "".
        output: file of its standard output.
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
    answer: str
    resizes: list[ResizeRow]
    resizing: str
    output: str
    slurm: SlurmRow


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


# --- nodes, policy, energy -----------------------------------------------------------------------


class NodeRow(msgspec.Struct, frozen=True):
    """A node: its slots, its state by sinfo's words, the job there, who measures its power."""

    name: str
    slots: list[str]
    state: str
    job: str | None
    power_source: str


class NodePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes a command is about, in Slurm's bracket form: ``n[1-3]``."""

    node: str


class NodeNames(msgspec.Struct, frozen=True):
    """Nodes that a command has changed."""

    nodes: list[str]


class PolicyName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy that decides, or is to: a name, or the text of a policy file."""

    name: str


class Books(msgspec.Struct, frozen=True):
    """Energy of the cluster from the first event up to ``at_s``, by the words of the contract."""

    at_s: float | None
    busy_j: float
    idle_j: float
    off_j: float
    boot_j: float
    cluster_j: float
    busy_node_s: float
    power_source: str


class NodeSpan(msgspec.Struct):
    """A job held a node from ``start_s`` to ``end_s``, None while it does."""

    node: str
    job: str
    start_s: float
    end_s: float | None


class BooksAnswer(msgspec.Struct, frozen=True):
    """Energy so far, who held which node when, and the cluster's power after each event.

    ``closed`` are the books as they stood when the last job had ended.
    """

    energy: Books
    spans: list[NodeSpan]
    nodes: list[str]
    now_s: float
    policy: str
    power_w: list[tuple[float, float]]
    closed: Books | None


class Snapshot(msgspec.Struct, frozen=True):
    """All that a daemon tells of its present and past: ``rms top``, ``rms report``."""

    jobs: list[JobRow]
    nodes: list[NodeRow]
    books: BooksAnswer
