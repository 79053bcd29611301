"""Memory bandwidth that the processes on a node share (Guim et al., section III).

A node has processors of one or more kinds and a bandwidth; a kind may be behind a socket with less
(a GPU). The processors of one kind in one node are a *pool*. The demand of a process follows its
speed: on a processor that is three times slower it demands a third, at half the frequency half.
Where the demand on a socket or a node exceeds its bandwidth, all processes that share it slow down
alike. The demand of a socket on its node is what the socket lets through (the paper's virtual
process).

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
"""A demand of up to this multiple of a capacity is met."""


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
            capacity, as section III-A has it in words. Else it is its length times the demand
            above capacity: no byte is then moved twice, and processes take 10/4 of their time in
            the example of section III-C.
    """

    bandwidth_gb_s: float
    processors: tuple[Processors, ...]
    whole_demand: bool = False

    @property
    def contended(self) -> bool:
        """Whether a stated bandwidth or speed can make a process slower."""
        limits = [self.bandwidth_gb_s, *(kind.socket_gb_s for kind in self.processors)]
        return min(limits) < inf or any(kind.factor != 1.0 for kind in self.processors)


def shared_nodes(
    slots: Sequence[int],
    bandwidth_gb_s: Sequence[float],
    kinds: Sequence[tuple[Processors, ...]] = (),
) -> tuple[SharedNode, ...]:
    """Return nodes whose processes share bandwidth.

    Args:
        slots: numbers of processors.
        bandwidth_gb_s: empty where none is stated, so that no process waits for memory.
        kinds: kinds of processors, in the order of a node's slots; empty where all are alike.
    """
    bandwidths = bandwidth_gb_s or (inf,) * len(slots)
    kinds = kinds or tuple((Processors(number),) for number in slots)
    return tuple(SharedNode(gb_s, own) for gb_s, own in zip(bandwidths, kinds, strict=True))


class Pools:
    """The pools of a cluster, numbered in the order of its nodes, and their slots.

    Attributes:
        node, factor, socket_gb_s, number, slots: by pool.
        least_gb_s: the least bandwidth between processors and memory, by pool.
        members: pools by node.
        of_slot: pools by slot.
        by_speed: the pools, the fastest first.
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
        self.members: list[list[int]] = [[] for _ in nodes]
        for pool, at in enumerate(self.node):
            self.members[at].append(pool)
        self._limits = [
            (node.bandwidth_gb_s, [kind.socket_gb_s for kind in node.processors], node.whole_demand)
            for node in nodes
        ]

    def slowdowns_among(self, node: int, demand_gb_s: Sequence[float]) -> Sequence[float]:
        """Return the slowdowns by pool of a node for a demand by pool of the cluster."""
        bandwidth_gb_s, sockets_gb_s, whole_demand = self._limits[node]
        at, number = self.members[node][0], len(sockets_gb_s)
        if number == 1:
            demand = demand_gb_s[at]
            if demand <= sockets_gb_s[0]:
                if demand <= bandwidth_gb_s * ROUNDING:
                    return _FAST
                return (demand / bandwidth_gb_s + whole_demand,)
        elif number == 2:  # the same as for any number, written out for the most frequent case
            one, other = demand_gb_s[at], demand_gb_s[at + 1]
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
        return self.slowdowns(node, demand_gb_s[at : at + number])

    def slowdowns(self, node: int, demands_gb_s: Sequence[float]) -> list[float]:
        """Return the slowdowns by pool of a node for a demand by pool of the node."""
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
        return [slowdown * shared for slowdown in slow]


_FAST = (1.0,)


def parts(
    pools: Pools, slots: Sequence[int], frequencies: Sequence[float]
) -> dict[tuple[int, float], int]:
    """Return the number of processes of a job by pool and frequency (by slot, empty for 1)."""
    at = map(pools.of_slot.__getitem__, slots)
    if not frequencies:
        return {(pool, 1.0): number for pool, number in Counter(at).items()}
    return Counter(zip(at, frequencies, strict=True))
