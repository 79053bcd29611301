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
from collections.abc import Sequence
from itertools import accumulate
from math import inf

import msgspec

ROUNDING = 1.0 + 1e-12
"""A demand may be above a capacity by so much and still be met."""


class Processors(msgspec.Struct, frozen=True):
    """The processors of one kind in a node.

    Attributes:
        number: how many there are.
        factor: run time on one of them over that on the fastest kind (``CPUFactor``).
        socket_gb_s: bandwidth between them and the node's memory, of all together.
        name: of the kind, as a cluster file states it; "" for none.
    """

    number: int
    factor: float = 1.0
    socket_gb_s: float = inf
    name: str = ""


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


def shared_nodes(
    slots: Sequence[int],
    bandwidth_gb_s: Sequence[float],
    kinds: Sequence[tuple[Processors, ...]] = (),
) -> tuple[SharedNode, ...]:
    """Return nodes whose processes share bandwidth.

    Args:
        slots: how many processors each has.
        bandwidth_gb_s: of each; empty where none is known, so that nobody waits for memory.
        kinds: of the processors of each, in the order of its slots; empty where all are alike.
    """
    known = bandwidth_gb_s or (inf,) * len(slots)
    of_each = kinds or tuple((Processors(number),) for number in slots)
    return tuple(SharedNode(gb_s, own) for gb_s, own in zip(known, of_each, strict=True))


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
        through, slow = 0.0, []
        for demand, capacity in zip(demands_gb_s, sockets_gb_s, strict=True):
            if demand <= capacity:
                slow.append(1.0)
                through += demand
            else:
                over = demand > capacity * ROUNDING
                slow.append(demand / capacity + whole_demand if over else 1.0)
                through += capacity
        if through <= bandwidth_gb_s * ROUNDING:
            return slow
        shared = through / bandwidth_gb_s + whole_demand
        return [each * shared for each in slow]


_FAST = (1.0,)


def parts(
    pools: Pools, slots: Sequence[int], frequencies: Sequence[float]
) -> dict[tuple[int, float], int]:
    """Return how many processes a job has by pool and frequency.

    Args:
        slots: those of the job.
        frequencies: over the highest one, of the process on each slot; empty for the highest.
    """
    at = map(pools.of_slot.__getitem__, slots)
    if not frequencies:
        return {(pool, 1.0): number for pool, number in Counter(at).items()}
    return Counter(zip(at, frequencies, strict=True))
