"""A simulation with everything a chart needs: power over time, who held which node when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rms.core.model import JobSpec, Site
from rms.core.policies import Policy
from rms.core.state import State
from rms.sim.simulator import Simulation


@dataclass
class Recording:
    """A simulation that is over.

    Attributes:
        power_w: ``(time, power of the cluster from then on)``.
        spans: ``(node, job, from, to)``.
        sizes: of each job ``(time, nodes from then on)``.
    """

    nodes: int
    time_s: float = 0.0
    busy_j: float = 0.0
    idle_j: float = 0.0
    cluster_j: float = 0.0
    owned_j: float = 0.0
    busy_node_s: float = 0.0
    resizes: int = 0
    power_w: list[tuple[float, float]] = field(default_factory=list)
    spans: list[tuple[int, str, float, float]] = field(default_factory=list)
    _open: dict[int, tuple[str, float]] = field(default_factory=dict)

    def look(self, simulation: Simulation) -> None:
        """Take down how things are after an event."""
        state = simulation.engine.state
        now, watts = state.now_s, simulation.ledger.power_w(state)
        if self.power_w and self.power_w[-1][0] == now:
            self.power_w[-1] = now, watts
        else:
            self.power_w.append((now, watts))
        self._hold(state, now)

    def _hold(self, state: State, now: float) -> None:
        holders: dict[int, str] = {
            node: job.spec.id
            for job in state.running.values()
            for node in (job.held if job.resize_begun else job.nodes)
        }
        for node, (job_id, since) in list(self._open.items()):
            if holders.get(node) != job_id:
                if now > since:
                    self.spans.append((node, job_id, since, now))
                del self._open[node]
        for node, holder in holders.items():
            self._open.setdefault(node, (holder, now))


def record(specs: Sequence[JobSpec], site: Site, policy: Policy) -> Recording:
    """Run jobs to their ends and take down what happens."""
    found = Recording(site.nodes)
    simulation = Simulation(specs, site, policy, record=False, observer=found.look)
    simulation.run()
    ledger = simulation.ledger
    first = min(spec.submit_s for spec in specs)
    found.time_s = max(job.end_s or 0.0 for job in simulation.engine.state.ended.values()) - first
    found.busy_j, found.idle_j = sum(ledger.busy_j.values()), ledger.idle_j
    found.cluster_j, found.owned_j = ledger.cluster_j, ledger.owned_j
    found.busy_node_s, found.resizes = ledger.busy_node_s, simulation.resized
    return found
