"""Memory bandwidth that the processes on a node share (Guim et al., section III).

A node has processors of one or more kinds and a bandwidth; a kind may be behind a socket with less
(a GPU). The processors of one kind in one node are a *pool*. What a process asks for follows its
speed: on a processor that is three times slower, or at half the frequency, it asks for a third, or
half. Where more is asked of a socket or a node than it has, all who share it slow down alike; what
a socket lets through is what its node sees of it (the paper's virtual process).

F. Guim, I. Rodero, J. Corbalan, M. Parashar: "Enabling GPU and Many-Core Systems in Heterogeneous
HPC Environments using Memory Considerations".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from typing import NamedTuple

import msgspec

ROUNDING = 1.0 + 1e-12
"""A demand may be above a capacity by so much and still be met."""


class Processors(msgspec.Struct, frozen=True):
    """The processors of one kind in a node.

    Attributes:
        number: how many there are.
        factor: run time on one of them over that on the fastest kind (``CPUFactor``).
        socket_gb_s: bandwidth between them and the node's memory, of all together.
    """

    number: int
    factor: float = 1.0
    socket_gb_s: float = inf


class SharedNode(msgspec.Struct, frozen=True):
    """A node whose processes share its memory bandwidth.

    Attributes:
        whole_demand: the time added to an overloaded window is its length times demand over
            capacity, as section III-A has it in words. Else times what is asked above capacity:
            then each byte is moved once, and processes take 10/4 of their time in the example of
            section III-C.
    """

    bandwidth_gb_s: float
    processors: tuple[Processors, ...]
    whole_demand: bool = False

    @property
    def contended(self) -> bool:
        """Whether anything of what is stated can make a process slower."""
        limits = [self.bandwidth_gb_s, *(kind.socket_gb_s for kind in self.processors)]
        return min(limits) < inf or any(kind.factor != 1.0 for kind in self.processors)


def shared_nodes(slots: Sequence[int], bandwidth_gb_s: Sequence[float]) -> tuple[SharedNode, ...]:
    """Return nodes of processors that are all alike.

    Args:
        slots: how many processors each has.
        bandwidth_gb_s: of each; empty where none is known, so that nobody waits for memory.
    """
    known = bandwidth_gb_s or (inf,) * len(slots)
    return tuple(
        SharedNode(gb_s, (Processors(number),)) for gb_s, number in zip(known, slots, strict=True)
    )


class Pools:
    """The pools of a cluster, numbered in the order of its nodes, and their slots.

    Attributes:
        node: the node of each pool.
        members: the pools of each node.
        factor, socket_gb_s, number: of each pool.
        least_gb_s: the least bandwidth between each pool's processors and memory.
        slots: its slots.
        of_slot: the pool of each slot.
        by_speed: the pools, the fastest first.
        of_factor: the pools of each factor, rising.
    """

    def __init__(self, nodes: Sequence[SharedNode]) -> None:
        self.nodes = nodes
        kinds = [(at, kind) for at, node in enumerate(nodes) for kind in node.processors]
        self.node = [at for at, _ in kinds]
        self.factor = [kind.factor for _, kind in kinds]
        self.socket_gb_s = [kind.socket_gb_s for _, kind in kinds]
        self.number = [kind.number for _, kind in kinds]
        self.least_gb_s = [min(kind.socket_gb_s, nodes[at].bandwidth_gb_s) for at, kind in kinds]
        ends = list(accumulate(self.number))
        self.slots = [
            range(end - number, end) for end, number in zip(ends, self.number, strict=True)
        ]
        self.of_slot = [pool for pool, number in enumerate(self.number) for _ in range(number)]
        self.by_speed = sorted(range(len(kinds)), key=self.factor.__getitem__)
        self.of_factor: dict[float, list[int]] = {}
        for pool in self.by_speed:
            self.of_factor.setdefault(self.factor[pool], []).append(pool)
        self.members: list[list[int]] = [[] for _ in nodes]
        for pool, at in enumerate(self.node):
            self.members[at].append(pool)
        self._limits = [
            (node.bandwidth_gb_s, [kind.socket_gb_s for kind in node.processors], node.whole_demand)
            for node in nodes
        ]

    def slowdowns_among(self, node: int, asked_gb_s: Sequence[float]) -> Sequence[float]:
        """Return how much slower the processes of each pool of a node are than if each was alone.

        Args:
            asked_gb_s: what is asked for in each pool of the cluster.
        """
        bandwidth_gb_s, sockets_gb_s, whole_demand = self._limits[node]
        at, number = self.members[node][0], len(sockets_gb_s)
        if number == 1:
            demand = asked_gb_s[at]
            if demand <= sockets_gb_s[0]:
                if demand <= bandwidth_gb_s * ROUNDING:
                    return _FAST
                return (demand / bandwidth_gb_s + whole_demand,)
        elif number == 2:  # the same as for any number, written out: this is asked for most
            one, other = asked_gb_s[at], asked_gb_s[at + 1]
            one_gb_s, other_gb_s = sockets_gb_s
            slow = other_slow = 1.0
            if one > one_gb_s:
                if one > one_gb_s * ROUNDING:
                    slow = one / one_gb_s + whole_demand
                one = one_gb_s
            if other > other_gb_s:
                if other > other_gb_s * ROUNDING:
                    other_slow = other / other_gb_s + whole_demand
                other = other_gb_s
            through = one + other
            if through <= bandwidth_gb_s * ROUNDING:
                return slow, other_slow
            shared = through / bandwidth_gb_s + whole_demand
            return slow * shared, other_slow * shared
        return self.slowdowns(node, asked_gb_s[at : at + number])

    def slowdowns(self, node: int, demands_gb_s: Sequence[float]) -> list[float]:
        """Return the same, given what is asked for in each of the node's pools."""
        bandwidth_gb_s, sockets_gb_s, whole_demand = self._limits[node]
        through, found = 0.0, []
        for demand, capacity in zip(demands_gb_s, sockets_gb_s, strict=True):
            if demand <= capacity:
                found.append(1.0)
                through += demand
            else:
                over = demand > capacity * ROUNDING
                found.append(demand / capacity + whole_demand if over else 1.0)
                through += capacity
        if through <= bandwidth_gb_s * ROUNDING:
            return found
        shared = through / bandwidth_gb_s + whole_demand
        return [each * shared for each in found]


_FAST = (1.0,)


class Part(NamedTuple):
    """Processes of one job in one pool, all alike.

    Attributes:
        work_s: how long each takes alone on the fastest kind of processor at full frequency.
        demand_gb_s: what each asks for there.
        frequency: over the highest one.
        power: of each while it computes, in any unit.
    """

    pool: int
    processes: int
    work_s: float
    demand_gb_s: float
    frequency: float = 1.0
    power: float = 1.0


@dataclass(slots=True, eq=False)
class _Group:
    """A part that runs: it is over when its pool's clock is at ``end``."""

    job: str
    part: Part
    demand_gb_s: float
    begun_s: float
    end: float


@dataclass(slots=True)
class _Job:
    """The parts of a job that run, and how many processes it has, those that are over included."""

    groups: list[_Group] = field(default_factory=list)
    processes: int = 0


@dataclass(slots=True)
class _Pool:
    """The clock of a pool goes by ``rate`` seconds a second: slower while bandwidth is short."""

    clock: float = 0.0
    rate: float = 1.0
    since_s: float = 0.0
    version: int = 0
    groups: list[tuple[float, int, _Group]] = field(default_factory=list)


class Contention:
    """Who runs how fast on shared nodes, and when each job is over.

    Between two changes on a node all processes of a pool run at one rate, so a pool has a clock of
    its own on which ends do not move: a change costs its node's pools, however many processes and
    jobs there are. A process asks for nothing after its own end; its processor is held until the
    last process of its job has ended. A job that is resized is stopped (:meth:`stop`) and started
    again: what is left of all its processes is then shared out evenly.

    Attributes:
        energy: power times time of all processes that are over.
        processor_s: time of them, idle waits for the job's last process left out.
        followed: jobs of which ``moved`` tells.
        moved: those of them whose rate may have changed since the driver last looked.
        now_s: when anything last changed.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._state = [_Pool() for _ in pools.node]
        self._asked_gb_s = [0.0] * len(pools.node)
        self._jobs: dict[str, _Job] = {}
        self._next: list[tuple[float, int, int, int]] = []
        self._number = 0
        self.energy = self.processor_s = 0.0
        self.followed: set[str] = set()
        self.moved: set[str] = set()
        self.now_s = 0.0

    def start(self, job: str, parts: Iterable[Part], now_s: float) -> None:
        """Let a job begin."""
        nodes, own = {}, self._jobs.setdefault(job, _Job())
        factor, node = self._pools.factor, self._pools.node
        for part in parts:
            at, pool = part.pool, self._state[part.pool]
            self._advance(pool, now_s)
            speed = part.frequency / factor[at]
            demand = part.processes * part.demand_gb_s * speed
            group = _Group(job, part, demand, now_s, pool.clock + part.work_s / speed)
            self._number += 1
            heappush(pool.groups, (group.end, self._number, group))
            self._asked_gb_s[at] += demand
            pool.version += 1
            own.groups.append(group)
            own.processes += part.processes
            nodes[node[at]] = True
        for each in nodes:
            self._share(each, now_s)

    def runs(self, job: str) -> bool:
        """Return whether any of a job's processes do."""
        return job in self._jobs

    def left_s(self, job: str, now_s: float) -> float:
        """Return what is left of a job: the mean of its processes' work, as ``work_s`` has it."""
        own, left = self._jobs[job], 0.0
        for group in own.groups:
            pool = self._state[group.part.pool]
            clock = pool.clock + pool.rate * (now_s - pool.since_s)
            speed = group.part.frequency / self._pools.factor[group.part.pool]
            left += group.part.processes * max(0.0, group.end - clock) * speed
        return left / own.processes

    def rate(self, job: str) -> float:
        """Return how much of :meth:`left_s` is done in a second, at present."""
        own, done = self._jobs[job], 0.0
        for group in own.groups:
            speed = group.part.frequency / self._pools.factor[group.part.pool]
            done += group.part.processes * speed * self._state[group.part.pool].rate
        return done / own.processes

    def stop(self, job: str, now_s: float) -> None:
        """Let a job's processes stand still: they ask for nothing and do nothing."""
        nodes = {}
        for group in self._jobs.pop(job).groups:
            at, pool = group.part.pool, self._state[group.part.pool]
            self._advance(pool, now_s)
            pool.groups = [entry for entry in pool.groups if entry[2] is not group]
            heapify(pool.groups)
            self._leave(at, group)
            pool.version += 1
            self._book(group, now_s)
            nodes[self._pools.node[at]] = True
        for node in nodes:
            self._share(node, now_s)

    def counts(
        self, slots: Sequence[int], frequencies: Sequence[float]
    ) -> dict[tuple[int, float], int]:
        """Return how many processes a job has by pool and frequency (:func:`parts`)."""
        return parts(self._pools, slots, frequencies)

    @property
    def next_s(self) -> float:
        """When the next processes are over, if nothing else happens before; inf if none run."""
        ahead = self._next
        while ahead and ahead[0][3] != self._state[ahead[0][2]].version:
            heappop(ahead)
        return ahead[0][0] if ahead else inf

    def run(self, until_s: float, *, included: bool = False) -> tuple[float, str] | None:
        """Let processes end before a time, or at it too; stop at the first job that is over.

        And, with None, once there is something in :attr:`moved`.
        """
        while (at_s := self.next_s) < until_s or (included and at_s == until_s < inf):
            job = self.finish()
            if job is not None:
                return at_s, job
            if self.moved:
                break
        return None

    def finish(self) -> str | None:
        """Let the next processes end, at :attr:`next_s`; return their job if that is over too."""
        now_s = self.next_s
        _, _, at, _ = heappop(self._next)
        pool = self._state[at]
        end, _, group = heappop(pool.groups)
        self._advance(pool, now_s)
        pool.clock = end  # what it is but for rounding
        self._leave(at, group)
        pool.version += 1
        self._book(group, now_s)
        own = self._jobs[group.job].groups
        own.remove(group)
        self._share(self._pools.node[at], now_s)
        if own:
            if group.job in self.followed:
                self.moved.add(group.job)
            return None
        del self._jobs[group.job]
        self.followed.discard(group.job)
        return group.job

    def _leave(self, at: int, group: _Group) -> None:
        left_gb_s = self._asked_gb_s[at] - group.demand_gb_s
        self._asked_gb_s[at] = left_gb_s if self._state[at].groups else 0.0

    def _book(self, group: _Group, now_s: float) -> None:
        taken_s = group.part.processes * (now_s - group.begun_s)
        self.processor_s += taken_s
        self.energy += taken_s * group.part.power

    def _share(self, node: int, now_s: float) -> None:
        """Set the rates of a node's pools by what is asked of it now."""
        members, state = self._pools.members[node], self._state
        self.now_s = now_s
        found = self._pools.slowdowns_among(node, self._asked_gb_s)
        for at, slowdown in zip(members, found, strict=True):
            pool, rate = state[at], 1.0 / slowdown
            if rate != pool.rate:
                pool.clock += pool.rate * (now_s - pool.since_s)
                pool.since_s, pool.rate = now_s, rate
                pool.version += 1
                if self.followed:
                    self.moved.update({each.job for *_, each in pool.groups} & self.followed)
            elif pool.since_s != now_s:
                continue  # neither its rate nor its processes have changed
            if pool.groups:
                self._number += 1
                left = pool.groups[0][0] - pool.clock
                ends_s = now_s + left / rate if left > 0.0 else now_s
                heappush(self._next, (ends_s, self._number, at, pool.version))

    @staticmethod
    def _advance(pool: _Pool, now_s: float) -> None:
        pool.clock += pool.rate * (now_s - pool.since_s)
        pool.since_s = now_s


def parts(
    pools: Pools, slots: Sequence[int], frequencies: Sequence[float]
) -> dict[tuple[int, float], int]:
    """Return how many processes a job has by pool and frequency.

    Args:
        slots: those of the job.
        frequencies: over the highest one, of the process on each slot; empty for the highest.
    """
    at = map(pools.of_slot.__getitem__, slots)
    return Counter(zip(at, frequencies or (1.0,) * len(slots), strict=True))


def processes(
    counts: Mapping[tuple[int, float], int],
    work_s: float,
    demand_gb_s: float,
    levels: Sequence[tuple[float, float]],
) -> list[Part]:
    """Return the processes of a job, whose power is that of V^2 f.

    Args:
        counts: how many there are by pool and frequency.
        work_s, demand_gb_s: of each, as :class:`Part` has them.
        levels: frequencies and voltages, rising; empty where frequencies are not set.
    """
    power = {share: dynamic_power(levels, share) for share in {share for _, share in counts}}
    return [
        Part(pool, number, work_s, demand_gb_s, share, power[share])
        for (pool, share), number in counts.items()
    ]


def dynamic_power(levels: Sequence[tuple[float, float]], share: float) -> float:
    """Return V^2 f of a processor over that at its highest level: energy is c V^2 f t.

    Args:
        levels: frequencies and voltages, rising; empty where frequencies are not set.
        share: its frequency over the highest one, which is that of a level.
    """
    if not levels:
        return share
    highest, most_v = levels[-1]
    ghz, volt = min(levels, key=lambda level: abs(level[0] - share * highest))
    return (volt / most_v) ** 2 * ghz / highest
