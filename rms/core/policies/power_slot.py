"""Placement ``power-slot``: nodes under a power cap (Chiesi et al., section 3).

A node counts with its idle power and the power of each job on it, all the time (equation 1): what
is stated for the job, else the peak of its profile, else what the node's model says of a busy slot.
Tasks with kernels count as the latter. A job may start where that stays at or below the cap; of
such nodes the one with the smallest power slot left takes it, so that the largest stays free for a
more demanding job (figure 2). Equations 3 and 4 are printed with their inequalities reversed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import ClassVar, Literal

import msgspec

from rms.core.model.jobs import Job, JobSpec, Node, NodePower, Site
from rms.core.policies.placement import Placement, Room
from rms.core.state import TASK, State


class PowerRoom(Room):
    """Free slots during one pass, and the power of each node or rack by equation 1."""

    __slots__ = (
        "_cap_w",
        "_domain",
        "_free",
        "_host",
        "_order",
        "_refused_w",
        "_shares",
        "_watts",
        "free",
        "passed",
    )

    free: int
    passed: int

    def __init__(self, state: State, cap_w: float, per: str) -> None:
        site = state.site
        self._host, self._domain = _hosts(site), _domains(site, per)
        self._cap_w, self.free, self.passed = cap_w, state.free_count, 0
        self._watts, self._shares = _idle_w(site, self._domain), _Shares(site)
        for job in state.running.values():
            shares = self._shares.of(job.spec, len(job.held))
            for node in job.held:
                host = self._host[node]
                self._watts[self._domain[host]] += shares[self._shares.kind[host]]
        if state.lent:
            shares = self._shares.of(TASK, 1)
            for node, owner in state.lent.items():
                host = self._host[node]
                self._watts[self._domain[host]] += bool(owner) * shares[self._shares.kind[host]]
        self._free: list[list[Node]] = [[] for _ in self._domain]
        for node in state.free_nodes():
            self._free[self._host[node]].append(node)
        # Of hosts with the same power slot the last one takes a job: those that are off come first.
        asleep = {self._host[node] for node in state.asleep}
        self._order = sorted(range(len(self._free)), key=lambda host: host not in asleep)
        self._refused_w = inf

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start now: slots are free where its power fits."""
        shares = self._shares.of(job.spec, size)
        if size > self.free or min(shares) >= self._refused_w:
            return False
        if size == 1:
            found = self._select(shares) is not None
        else:
            before = list(self._watts), [list(nodes) for nodes in self._free], self.free
            found = len(self._take(shares, size)) == size
            self._watts, self._free, self.free = before
        if not found and size == 1:
            self._refused_w = max(shares)  # nor does any job with more on every node
        return found

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take slots for a job that fits."""
        return tuple(self._take(self._shares.of(job.spec, size), size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the slots of a job at its new size, its first ones its own still.

        Where the cap leaves too few, those it has.
        """
        have = job.nodes
        if size <= len(have):
            return have[:size]
        shares, more = self._shares.of(job.spec, size), size - len(have)
        before = list(self._watts), [list(nodes) for nodes in self._free], self.free
        found = self._take(shares, more)
        if len(found) < more:
            self._watts, self._free, self.free = before
            return have
        return (*have, *found)

    def _take(self, shares: Sequence[float], size: int) -> list[Node]:
        nodes: list[Node] = []
        while len(nodes) < size and (host := self._select(shares)) is not None:
            nodes.append(self._free[host].pop(0))
            self._watts[self._domain[host]] += shares[self._shares.kind[host]]
            self.free -= 1
        return nodes

    def _select(self, shares: Sequence[float]) -> int | None:
        """Return the node with the smallest power slot that is not negative (figure 2)."""
        selected, least, kind = None, self._cap_w, self._shares.kind
        for host in self._order:
            nodes = self._free[host]
            slot = self._cap_w - self._watts[self._domain[host]] - shares[kind[host]]
            if nodes and 0.0 <= slot <= least:
                selected, least = host, slot
        return selected


class PowerSlot(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node with the smallest power slot left.

    Attributes:
        cap_w: power that no node (or rack) may pass.
        per: whether the cap is that of each ``node`` or of each ``rack``.
        shared: a daemon gives slots one by one, so that jobs share nodes, as the paper has it;
            else, and on a cluster whose nodes are given whole, each node has one job.
    """

    cap_w: float
    per: Literal["node", "rack"] = "node"
    shared: bool = False

    pooled: ClassVar[bool] = False
    caps_nodes: ClassVar[bool] = True

    def refusal(self, site: Site, spec: JobSpec) -> str | None:
        """Return why a job can never start: its power passes the cap where nothing else runs."""
        size = spec.sizes()[-1] if spec.mode.any_start else spec.preferred
        domain, shares = _domains(site, self.per), _Shares(site)
        idle_w, own_w = _idle_w(site, domain), shares.of(spec, size)
        least_w, adds_w = min(
            (idle_w[at] + own_w[shares.kind[host]], own_w[shares.kind[host]])
            for host, at in enumerate(domain)
        )
        if least_w <= self.cap_w:
            return None
        added = f"adds {adds_w:g} W to an idle {self.per}: {least_w:g} W"
        return f"{added}, the cap is {self.cap_w:g} W"

    def __call__(self, state: State) -> PowerRoom:
        """Open the room of a pass."""
        return PowerRoom(state, self.cap_w, self.per)


class _Shares:
    """What jobs add to each of their slots by equation 1, on hosts of each kind.

    That is the power stated for a job, shared out; else the peak of its measured profile, or what
    a busy slot of the host draws above idle by the power model (:meth:`NodePower.slot_peak_w`).

    Attributes:
        kind: number of the kind of each host: hosts of one kind have the same power model and as
            many slots.
    """

    def __init__(self, site: Site) -> None:
        slots, kinds = Counter(_hosts(site)), dict[tuple[NodePower, int], int]()
        self.kind = [
            kinds.setdefault((model, max(1, slots[host])), len(kinds))
            for host, model in enumerate(site.models)
        ]
        self._kinds = list(kinds)

    def of(self, spec: JobSpec, size: int) -> list[float]:
        """Return what a job on ``size`` slots adds to each of them, by kind of host, in W."""
        if spec.power_w is not None:
            return [spec.power_w / max(1, size)] * len(self._kinds)
        return [model.slot_peak_w(spec, max(1, size), slots) for model, slots in self._kinds]


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
