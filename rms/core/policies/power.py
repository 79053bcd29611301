"""Placement ``power-slot``: nodes under a power cap (Chiesi et al., section 3).

A node counts with its idle power and the power of each job on it, all the time and as stated
(equation 1). A job may start where that stays at or below the cap; of such nodes the one
with the smallest power slot left takes it, so that the largest stays free for a more demanding
job (figure 2). Equations 3 and 4 are printed with their inequalities reversed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import msgspec

from rms.core.model import Job, JobSpec, Node, Site
from rms.core.state import State


class PowerRoom:
    """Free slots during one pass, and the power of each node or rack by equation 1."""

    __slots__ = (
        "_cap_w",
        "_domain",
        "_free",
        "_host",
        "_order",
        "_refused_w",
        "_watts",
        "free",
        "passed",
    )

    def __init__(self, state: State, cap_w: float, per: str) -> None:
        site = state.site
        self._host, self._domain = _hosts(site), _domains(site, per)
        self._cap_w, self.free, self.passed = cap_w, state.free_count, 0
        self._watts = _idle_w(site, self._domain)
        for job in state.running.values():
            for node in job.held:
                self._watts[self._domain[self._host[node]]] += _share_w(job, len(job.held))
        self._free: list[list[Node]] = [[] for _ in self._domain]
        for node in state.free_nodes():
            self._free[self._host[node]].append(node)
        # Of hosts with the same power slot the last one takes a job: those that are off come first.
        asleep = {self._host[node] for node in state.asleep}
        self._order = sorted(range(len(self._free)), key=lambda host: host not in asleep)
        self._refused_w = inf

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start now: slots are free where its power fits."""
        watts = _share_w(job, size)
        if size > self.free or watts >= self._refused_w:
            return False
        if size == 1:
            found = self._select(watts) is not None
        else:
            before = list(self._watts), [list(nodes) for nodes in self._free], self.free
            found = len(self._take(watts, size)) == size
            self._watts, self._free, self.free = before
        if not found and size == 1:
            self._refused_w = watts  # nor does any job with more
        return found

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take slots for a job that fits."""
        return tuple(self._take(_share_w(job, size), size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the slots of a job at its new size, its first ones its own still.

        Where the cap leaves too few, those it has.
        """
        have = job.nodes
        if size <= len(have):
            return have[:size]
        watts, more = _share_w(job, size), size - len(have)
        before = list(self._watts), [list(nodes) for nodes in self._free], self.free
        found = self._take(watts, more)
        if len(found) < more:
            self._watts, self._free, self.free = before
            return have
        return (*have, *found)

    def _take(self, watts: float, size: int) -> list[Node]:
        nodes: list[Node] = []
        while len(nodes) < size and (host := self._select(watts)) is not None:
            nodes.append(self._free[host].pop(0))
            self._watts[self._domain[host]] += watts
            self.free -= 1
        return nodes

    def _select(self, watts: float) -> int | None:
        """Return the node with the smallest power slot that is not negative (figure 2)."""
        selected, least = None, self._cap_w
        for host in self._order:
            nodes = self._free[host]
            slot = self._cap_w - self._watts[self._domain[host]] - watts
            if nodes and 0.0 <= slot <= least:
                selected, least = host, slot
        return selected


class PowerSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node with the smallest power slot left.

    Attributes:
        cap_w: power that no node (or rack) may pass.
        per: whether the cap is that of each ``node`` or of each ``rack``.
        shared: a daemon gives slots one by one, so that jobs share nodes, as the paper has it;
            else whole nodes, each with one job under the cap.
    """

    cap_w: float
    per: Literal["node", "rack"] = "node"
    shared: bool = False

    def refusal(self, site: Site, spec: JobSpec) -> str | None:
        """Return why a job can never start: its power passes the cap where nothing else runs."""
        size = spec.sizes()[-1] if spec.mode.any_start else spec.preferred
        own_w = (spec.power_w or 0.0) / size
        least_w = min(_idle_w(site, _domains(site, self.per))) + own_w
        if least_w <= self.cap_w:
            return None
        return f"adds {own_w:g} W to an idle {self.per}: {least_w:g} W, the cap is {self.cap_w:g} W"

    def __call__(self, state: State) -> PowerRoom:
        """Open the room of a pass."""
        return PowerRoom(state, self.cap_w, self.per)


def _share_w(job: Job, size: int) -> float:
    """Return what a job adds to each of its slots by equation 1."""
    return (job.spec.power_w or 0.0) / max(1, size)


def _hosts(site: Site) -> Sequence[int]:
    """Return the host of each slot."""
    return site.host or range(site.nodes)


def _domains(site: Site, per: str) -> Sequence[int]:
    """Return the power domain of each host: its own, or its rack's."""
    hosts = max(_hosts(site)) + 1
    return (site.rack or (0,) * hosts) if per == "rack" else range(hosts)


def _idle_w(site: Site, domain: Sequence[int]) -> list[float]:
    """Return the idle power of each domain."""
    watts = [0.0] * (max(domain) + 1)
    for host, at in enumerate(domain):
        watts[at] += site.power[host].idle_w if site.power else 0.0
    return watts
