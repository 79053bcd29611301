"""The energy books. Every joule has an owner, and the sums are kept twice.

Once by owner: each running job, idle nodes, nodes that are off or booting. Once node by node,
knowing nothing of jobs. The two must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rms.model import Job, JobId, Node, State


@dataclass(frozen=True)
class NodePower:
    """Power model of a node: idle, and static + dynamic x efficiency while a job runs.

    Iserte & Rojek, equations 1 and 2: P(n) = (P_S + P_Dn) n with P_Dn proportional to Eff(n).
    """

    idle_w: float = 0.0
    static_w: float = 0.0
    dynamic_w: float = 0.0

    def busy_w(self, job: Job, nodes: int) -> float:
        """Return the power of each of a job's nodes; its own profile goes before the model."""
        speedup = job.spec.speedup
        if speedup is None:
            return self.static_w + self.dynamic_w
        stated = speedup.power(nodes)
        if stated is not None:
            return stated
        return self.static_w + self.dynamic_w * speedup.efficiency(nodes)


@dataclass
class Ledger:
    """Integrates power over time; call :meth:`advance` before the state changes.

    Attributes:
        busy_j: energy of each job, from its start to its end, resizes included.
        idle_j: energy of nodes that no job holds, or that wait for a resize to begin.
        busy_node_s: node-seconds held by running jobs.
        measured_w: newest reading of nodes whose power is measured; it goes before any model.
    """

    power: Sequence[NodePower]
    busy_j: dict[JobId, float] = field(default_factory=dict)
    idle_j: float = 0.0
    off_j: float = 0.0
    boot_j: float = 0.0
    busy_node_s: float = 0.0
    at_s: float | None = None
    measured_w: dict[Node, float] = field(default_factory=dict)
    _node_j: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._node_j = [0.0] * len(self.power)

    def advance(self, state: State, now_s: float) -> None:
        """Book the time since the last call under the state as it was until now."""
        if self.at_s is not None and now_s <= self.at_s:
            return  # also where the clock went back: no second is booked twice
        span = 0.0 if self.at_s is None else now_s - self.at_s
        self.at_s = now_s
        if span == 0:
            return
        held: set[Node] = set()
        watts = self._watts(state)
        for job_id, job in state.running.items():
            nodes = drawing(job)
            held.update(nodes)
            self.busy_node_s += span * len(nodes)
            power = sum(watts[node] for node in nodes)
            self.busy_j[job_id] = self.busy_j.get(job_id, 0.0) + span * power
        self.idle_j += span * sum(w for node, w in watts.items() if node not in held)
        for node, w in watts.items():
            self._node_j[node] += span * w

    @property
    def cluster_j(self) -> float:
        """The cluster's energy, summed over nodes."""
        return sum(self._node_j)

    @property
    def owned_j(self) -> float:
        """The same, summed over owners."""
        return sum(self.busy_j.values()) + self.idle_j + self.off_j + self.boot_j

    def power_w(self, state: State) -> float:
        """Return what the cluster draws now."""
        return sum(self._watts(state).values())

    def _watts(self, state: State) -> Mapping[Node, float]:
        watts = {Node(n): self.power[n].idle_w for n in range(len(self.power))}
        for job in state.running.values():
            nodes = drawing(job)
            for node in nodes:
                watts[node] = self.power[node].busy_w(job, len(nodes))
        return watts | self.measured_w


def drawing(job: Job) -> tuple[Node, ...]:
    """Return the nodes a job keeps busy: while it is being resized, both worlds'."""
    return job.held if job.moving else job.nodes
