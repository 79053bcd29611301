"""Nodes that fail in a simulation, and come back."""

from __future__ import annotations

from operator import attrgetter
from random import Random

from rms.core.model.events import NodeDown, NodeUp
from rms.core.model.jobs import Node


def failing(
    nodes: int, *, mtbf_s: float, repair_s: float, horizon_s: float, seed: int
) -> list[NodeDown | NodeUp]:
    """Return failures of nodes: each fails after exponentially distributed times.

    Args:
        mtbf_s: mean time between failures of one node.
        repair_s: how long it stays down.
        horizon_s: no failure begins after it.
    """
    draw = Random(seed)
    found: list[NodeDown | NodeUp] = []
    for node in range(nodes):
        at_s = draw.expovariate(1.0 / mtbf_s)
        while at_s < horizon_s:
            found += [NodeDown(at_s, Node(node)), NodeUp(at_s + repair_s, Node(node))]
            at_s += repair_s + draw.expovariate(1.0 / mtbf_s)
    return sorted(found, key=attrgetter("at_s"))
