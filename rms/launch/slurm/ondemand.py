"""Which allocations a pilot submits, changes, withdraws and lets go, by what waits. Pure.

As HyperQueue's automatic allocation, a pilot keeps a backlog of so many allocations in Slurm's
queue while there is work for more nodes; unlike there they are as wide as the queue asks for (from
what the first job lacks to what all lack, of which Slurm gives what it has), change with it while
they wait, and give back single nodes once they run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rms.core.rules.checks import LEAST_S
from rms.launch.base import WaitingJob


@dataclass(frozen=True)
class PilotLimits:
    """What a user allows.

    Attributes:
        on_demand: whether there are to be more nodes than ``keep`` while jobs wait.
        keep: nodes that are held whatever waits.
        most: nodes that are held or asked for at once at most.
        time_s: of an allocation.
        margin_s: how long before its end its jobs are told to end.
        idle_s: how long a node that nobody needs is kept.
        backlog: allocations that wait in Slurm's queue at once at most.
        partition: whose nodes; "" for Slurm's default.
        options: more of sbatch's.
    """

    on_demand: bool = True
    keep: int = 0
    most: int = 1
    time_s: float = 3600.0
    margin_s: float = 40.0
    idle_s: float = 60.0
    backlog: int = 1
    partition: str = ""
    options: tuple[str, ...] = ()

    @property
    def longest_s(self) -> float:
        """How long a job may run on an allocation that has just begun."""
        return self.time_s - self.margin_s


@dataclass(frozen=True)
class Pending:
    """An allocation in Slurm's queue; the nodes asked for, 0 where that is not known."""

    number: int
    least: int = 0
    most: int = 0


@dataclass(frozen=True)
class Running:
    """An allocation that has its nodes, the batch script's first.

    Attributes:
        until_s: when its jobs are told to end.
        idle_since_s: of the nodes on which nothing runs and that are not being given back.
        leaving: its nodes that are being given back.
        useless: its nodes that no job can have.
    """

    number: int
    hosts: tuple[str, ...]
    until_s: float = inf
    idle_since_s: Mapping[str, float] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    useless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Submit:
    """Ask Slurm for an allocation of ``least`` to ``most`` nodes."""

    least: int
    most: int


@dataclass(frozen=True)
class Alter:
    """Ask for other numbers of nodes for an allocation that waits."""

    number: int
    least: int
    most: int


@dataclass(frozen=True)
class Withdraw:
    """Take an allocation that waits out of Slurm's queue."""

    number: int


@dataclass(frozen=True)
class GiveBack:
    """Give nodes of a running allocation back, or the ``whole`` of it."""

    number: int
    hosts: tuple[str, ...]
    whole: bool = False


Action = Submit | Alter | Withdraw | GiveBack


def decide(
    now_s: float,
    limits: PilotLimits,
    waiting: Sequence[WaitingJob],
    running: Sequence[Running],
    pending: Sequence[Pending],
    *,
    narrows: bool = True,
) -> list[Action]:
    """Return what is to change.

    Args:
        narrows: whether single nodes can be given back.
    """
    served = [job for job in waiting if serves(limits, job)]
    wanted = sum(job.wants for job in served) if limits.on_demand else 0
    shortest_s = max(LEAST_S, min((job.needs_s for job in served), default=0.0))
    idle: dict[str, Running] = {}
    short: set[str] = set()
    for each in running:
        for host in each.idle_since_s:
            idle[host] = each
            if host in each.useless or each.until_s - now_s < shortest_s:
                short.add(host)
    held = sum(len(each.hosts) for each in running)
    lasting = sum(len(each.hosts) - len(each.leaving) for each in running) - len(short)
    spare = len(idle) - len(short)
    missing = max(wanted - spare, limits.keep - lasting)
    missing = min(missing, limits.most - held)
    actions = _ask(limits, served if limits.on_demand else [], missing, spare, pending)
    surplus = min(max(0, spare - wanted), max(0, lasting - limits.keep))
    old = {
        host
        for host, each in idle.items()
        if host not in short and now_s - each.idle_since_s[host] >= limits.idle_s
    }
    return actions + _give_back(running, short, old, surplus, narrows=narrows)


def serves(limits: PilotLimits, job: WaitingJob) -> bool:
    """Return whether an allocation could ever serve a job."""
    return job.least <= limits.most and job.needs_s <= limits.longest_s


def _ask(
    limits: PilotLimits,
    served: Sequence[WaitingJob],
    missing: int,
    spare: int,
    pending: Sequence[Pending],
) -> list[Action]:
    """Return what brings the queue of allocations to ask for the nodes that are missing.

    The first asks for no less than the oldest job lacks that it can serve, so that it is of use.
    """
    lacks = [max(1, job.least - spare) for job in served]
    keeps = limits.keep > 0
    least = next((n for n in lacks if n <= missing), 1 if keeps and missing > 0 else 0)
    pieces: list[tuple[int, int]] = []
    if least:
        first = max(least, -(-missing // limits.backlog))
        pieces = [(least, first)]
        while (left := missing - sum(most for _, most in pieces)) > 0:
            pieces.append((1, max(1, -(-left // (limits.backlog - len(pieces))))))
    in_turn = sorted(pending, key=lambda each: each.number)
    actions: list[Action] = [
        Alter(each.number, *piece)
        for each, piece in zip(in_turn, pieces, strict=False)
        if (each.least, each.most) != piece
    ]
    actions += [Withdraw(each.number) for each in in_turn[len(pieces) :]]
    actions += [Submit(*piece) for piece in pieces[len(in_turn) :]]
    return actions


def _give_back(
    running: Sequence[Running],
    short: Collection[str],
    old: Collection[str],
    surplus: int,
    *,
    narrows: bool,
) -> list[Action]:
    """Return which nodes go: those held too ``short`` to be of use, and of ``old`` the surplus.

    Whole allocations come first, of these what ends first. An allocation keeps its first node,
    where its script runs, as long as it has another.
    """
    found: list[Action] = []

    def first(each: Running) -> tuple[bool, float, int]:
        whole = all(host in short or host in old for host in each.hosts)
        return not whole, each.until_s, each.number

    for each in sorted(running, key=first):
        going = [host for host in each.hosts if host in short]
        going += [host for host in reversed(each.hosts) if host in old][:surplus]
        whole = len(going) == len(each.hosts)
        if not whole:
            going = [host for host in going if host != each.hosts[0]] if narrows else []
        surplus -= sum(host in old for host in going)
        if going:
            hosts = tuple(sorted(going, key=each.hosts.index))
            found.append(GiveBack(each.number, hosts, whole))
    return found
