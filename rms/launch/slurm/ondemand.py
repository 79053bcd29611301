"""The decisions of a pilot on demand: allocations to submit, change, withdraw and let go. Pure.

As HyperQueue's automatic allocation, but an allocation asks for a range of nodes, changes with the
queue while it waits, and returns single nodes while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rms.core.rules.checks import LEAST_S
from rms.launch.base import WaitingJob


@dataclass(frozen=True)
class PilotLimits:
    """The user's limits.

    Attributes:
        on_demand: whether more nodes than ``keep`` are requested while jobs wait.
        keep: nodes that are always held.
        most: maximum number of nodes that are held or requested at once.
        margin_s: time between the end of its jobs and its own.
        idle_s: time for which an unused node is kept.
        backlog: maximum number of allocations that wait in Slurm's queue.
        partition: partition of the nodes; "" for Slurm's default.
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
        """The longest time of a job on an allocation that has just begun."""
        return self.time_s - self.margin_s


@dataclass(frozen=True)
class Pending:
    """An allocation in Slurm's queue; the requested nodes, 0 if unknown."""

    number: int
    least: int = 0
    most: int = 0


@dataclass(frozen=True)
class Running:
    """An allocation that has its nodes, the batch script's first.

    Attributes:
        until_s: the time at which its jobs have to end.
        idle_since_s: the begins of the idle times of its idle nodes, without leaving ones.
        leaving: its nodes that are being returned.
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
    """Submit an allocation of ``least`` to ``most`` nodes."""

    least: int
    most: int


@dataclass(frozen=True)
class Alter:
    """Change the numbers of nodes of a pending allocation."""

    number: int
    least: int
    most: int


@dataclass(frozen=True)
class Withdraw:
    """Withdraw a pending allocation."""

    number: int


@dataclass(frozen=True)
class GiveBack:
    """Return nodes of a running allocation, or the ``whole`` allocation."""

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
    """Return the actions that are due.

    Args:
        narrows: whether single nodes can be returned.
    """
    served = [job for job in waiting if serves(limits, job)]
    wanted = sum(job.wants for job in served) if limits.on_demand else 0
    shortest_s = max(LEAST_S, min((job.needs_s for job in served), default=0.0))
    idle: dict[str, Running] = {}
    short: set[str] = set()
    for allocation in running:
        for host in allocation.idle_since_s:
            idle[host] = allocation
            if host in allocation.useless or allocation.until_s - now_s < shortest_s:
                short.add(host)
    held = sum(len(own.hosts) for own in running)
    lasting = sum(len(own.hosts) - len(own.leaving) for own in running) - len(short)
    spare = len(idle) - len(short)
    missing = max(wanted - spare, limits.keep - lasting)
    missing = min(missing, limits.most - held)
    actions = _ask(limits, served if limits.on_demand else [], missing, spare, pending)
    surplus = min(max(0, spare - wanted), max(0, lasting - limits.keep))
    old = {
        host
        for host, own in idle.items()
        if host not in short and now_s - own.idle_since_s[host] >= limits.idle_s
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
    """Return the actions after which the pending allocations request the missing nodes.

    The first requests at least the nodes that the oldest job lacks that it can serve.
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
    in_turn = sorted(pending, key=lambda waiting: waiting.number)
    actions: list[Action] = [
        Alter(waiting.number, *piece)
        for waiting, piece in zip(in_turn, pieces, strict=False)
        if (waiting.least, waiting.most) != piece
    ]
    actions += [Withdraw(waiting.number) for waiting in in_turn[len(pieces) :]]
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
    """Return the nodes that go: those held too ``short`` for a job, and the surplus of ``old``.

    Whole allocations come first, in the order of their ends. An allocation keeps its first node,
    where its script runs, as long as it has another.
    """
    actions: list[Action] = []

    def first(allocation: Running) -> tuple[bool, float, int]:
        whole = all(host in short or host in old for host in allocation.hosts)
        return not whole, allocation.until_s, allocation.number

    for allocation in sorted(running, key=first):
        hosts = allocation.hosts
        going = [host for host in hosts if host in short]
        going += [host for host in reversed(hosts) if host in old][:surplus]
        whole = len(going) == len(hosts)
        if not whole:
            going = [host for host in going if host != hosts[0]] if narrows else []
        surplus -= sum(host in old for host in going)
        if going:
            in_order = tuple(sorted(going, key=hosts.index))
            actions.append(GiveBack(allocation.number, in_order, whole))
    return actions
