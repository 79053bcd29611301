"""What users' commands and the daemon say to each other: one Struct for each message.

What a command prints with ``--json`` is these, by these names (see the command-line contract).
"""

from __future__ import annotations

import msgspec

from rms.wire.messages import (
    Amount,
    Count,
    Environment,
    Name,
    Nodes,
    Priority,
    Script,
    Seconds,
    Selection,
    Text,
    Words,
)
from rms.wire.rows import Accounts as Accounts
from rms.wire.rows import Books as Books
from rms.wire.rows import BooksAnswer as BooksAnswer
from rms.wire.rows import EnergyPart as EnergyPart
from rms.wire.rows import EnergyRow as EnergyRow
from rms.wire.rows import HistoryEntry as HistoryEntry
from rms.wire.rows import JobRow as JobRow
from rms.wire.rows import NodeRow as NodeRow
from rms.wire.rows import NodesHeld as NodesHeld
from rms.wire.rows import NodeSpan as NodeSpan
from rms.wire.rows import PowerCapRow as PowerCapRow
from rms.wire.rows import ResizeRow as ResizeRow
from rms.wire.rows import SeenSteps as SeenSteps
from rms.wire.rows import SlurmRow as SlurmRow
from rms.wire.rows import Snapshot as Snapshot
from rms.wire.rows import TaskRow as TaskRow

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


# --- jobs ----------------------------------------------------------------------------------------


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of a job, as a script or a command line states them; None where it does not.

    Attributes:
        time_s: 0 for no limit.
        arguments: of the script itself.
        memory_mib: on each node; 0 for all of a node.
        ntasks: ranks, one on each slot of the job's nodes.
    """

    array: Selection | None = None
    nodes: tuple[Nodes, Nodes] | None = None
    preferred: Count | None = None
    ntasks: Count | None = None
    ntasks_per_node: Count | None = None
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

    def over(self, other: Options) -> Options:
        """Return both sets of options; those of this one win."""
        stated = {name: getattr(self, name) for name in self.__struct_fields__}
        own = {name: value for name, value in stated.items() if value is not None}
        return msgspec.structs.replace(other, **own)

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and the most nodes, where nodes are cores."""
        return self.nodes or (self.ntasks or 1, self.ntasks or 1)


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
    options: Options
    command: list[str] = []
    program: Name = ""
    profile: Script = ""


class JobIds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs that were made, or that a command has changed; sentences on what has no effect."""

    ids: list[str]
    warnings: list[str] = []


class IdPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs a command is about: ``7``, ``7_3`` or ``7_[1-3]``."""

    id: Selection


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


# --- nodes, policy, energy -----------------------------------------------------------------------


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
