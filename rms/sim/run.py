"""A workload or a trace on the virtual clock: its figures, rows per job, charts and failures."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rms.core.books.books import asleep
from rms.core.books.spans import Spans
from rms.core.model.events import HourlyPrices, NodeDown, NodeUp
from rms.core.model.jobs import Job, JobId, JobSpec, Node, NodePower, Site
from rms.core.policies import Policy, PolicyError, adjusted
from rms.core.policies.node_power import Window, Windows, keeps_by_need, most_boot_s
from rms.formats.config import FileError
from rms.sim.simulator import Passes, Recovery, Simulation
from rms.wire.files import csv_text, write_output

COLUMNS = ("job", "submit_s", "start_s", "end_s", "nodes", "energy_j")


def simulate(
    specs: Sequence[JobSpec], power: Sequence[NodePower] | Site, policy: Policy
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the JSON of ``rms simulate`` and its rows per job (CLI.md)."""
    simulation, wall_s = simulated(specs, power, policy)
    return figures(simulation, specs, policy, wall_s), rows(simulation, specs)


WINDOW_DELAY_S = 120.0
"""A window is missed if a node is on so long after its begin that is to be off."""


class MissedWindows:
    """Windows that do not get their nodes, as an observer of a simulation.

    Attributes:
        windows: number of windows that are over.
        missed: whether only jobs for which there is no better plan keep nodes of a missed window,
            by its begin.
    """

    def __init__(self, part: Windows) -> None:
        self.windows, self.missed = 0, dict[float, bool]()
        self._part = part
        self._window: Window | None = None
        self._since_s, self._inside, self._lacks, self._needed = 0.0, False, False, False

    @property
    def unavoidable(self) -> int:
        """The number of windows that any plan by time limits misses."""
        return sum(self.missed.values())

    @property
    def figures(self) -> dict[str, int]:
        """The figures for ``rms simulate``, with a window that is under way at the end."""
        return {
            "windows": self.windows + self._inside,
            "windows_missed": len(self.missed),
            "windows_unavoidable": self.unavoidable,
        }

    def observe(self, simulation: Simulation) -> None:
        """Enter the time since the last event."""
        state, part = simulation.engine.state, self._part
        window = self._window or part.window(state.now_s)
        last_s = min(state.now_s, window.end_s - most_boot_s(state))
        if self._lacks and last_s > max(self._since_s, window.begin_s + WINDOW_DELAY_S) + 1e-6:
            self.missed[window.begin_s] = self._needed and self.missed.get(window.begin_s, True)
        while state.now_s >= window.end_s:
            self.windows, window = self.windows + 1, part.window(window.end_s)
        self._window, self._since_s = window, state.now_s
        self._inside = window.begin_s <= state.now_s
        self._lacks = self._inside and len(state.off) < part.nodes(state.nodes)
        self._needed = self._lacks and any(
            keeps_by_need(part, job, state) for job in state.running.values()
        )


def simulated(
    specs: Sequence[JobSpec],
    power: Sequence[NodePower] | Site,
    policy: Policy,
    *,
    passes: Passes = "per-event",
    progress: Callable[[int], None] | None = None,
    failures: Sequence[NodeDown | NodeUp] = (),
    recovery: Recovery | None = None,
    prices: HourlyPrices | None = None,
    observer: Callable[[Simulation], None] | None = None,
) -> tuple[Simulation, float]:
    """Run a simulation to its end; return it and the seconds it took."""
    begun = time.perf_counter()
    # Millions of small objects live to the end: a search for cycles among them costs time.
    collects = gc.isenabled()
    gc.disable()
    try:
        simulation = Simulation(
            specs,
            power,
            policy,
            passes=passes,
            record=False,
            progress=progress,
            failures=failures,
            recovery=recovery,
            prices=prices,
            observer=observer,
        )
        simulation.run()
    finally:
        if collects:
            gc.enable()
    wall_s = time.perf_counter() - begun
    for job_id in simulation.engine.state.pending:
        waits = simulation.engine.explain(job_id)
        reason = "" if waits is None else waits.reason
        raise FileError(f"expected every job to start, got job {job_id} waiting for ever: {reason}")
    simulation.ledger.check()
    return simulation, wall_s


def figures(
    simulation: Simulation, specs: Sequence[JobSpec], policy: Policy, wall_s: float
) -> dict[str, Any]:
    """Return the figures of a simulation that is over."""
    ledger, nodes = simulation.ledger, simulation.engine.state.nodes
    jobs = list(simulation.engine.state.ended.values())
    run = [job for job in jobs if job.start_s is not None]
    slowdowns = sorted(bounded_slowdown(job) for job in run)
    first = min((spec.submit_s for spec in specs), default=0.0)
    makespan = max((job.end_s or 0.0 for job in run), default=first) - first
    cap_w = simulation.engine.state.power_cap_w
    power = {} if cap_w is None else {"power_cap_w": cap_w, "peak_power_w": simulation.peak_w}
    result = {
        "policy": policy.name,
        "jobs": len(jobs),
        "refused": len(jobs) - len(run),
        "makespan_s": makespan,
        "mean_wait_s": fmean((j.start_s or 0.0) - j.spec.submit_s for j in run) if run else 0.0,
        "mean_bounded_slowdown": fmean(slowdowns) if run else 0.0,
        "p95_bounded_slowdown": slowdowns[int(0.95 * (len(run) - 1))] if run else 0.0,
        "utilization": ledger.busy_node_s / (nodes * makespan) if makespan else 0.0,
        "energy_j": {
            "busy": sum(ledger.busy_j.values()),
            "idle": ledger.idle_j,
            "off": ledger.off_j,
            "boot": ledger.boot_j,
            "cluster": ledger.cluster_j,
        },
        "power_source": "model",
        "resizes": simulation.resized,
        "restarts": simulation.failed,
        "decisions": simulation.decided,
        "wall_s": wall_s,
        "jobs_per_s": len(jobs) / wall_s if wall_s else 0.0,
        "peak_rss_mib": peak_rss_mib(),
    }
    return result | power


def rows(simulation: Simulation, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
    """Return one row per job, in the order of the workload; ``nodes`` is its last size."""
    busy_j, ended = simulation.ledger.busy_j, simulation.engine.state.ended
    return [
        {
            "job": spec.id,
            "submit_s": spec.submit_s,
            "start_s": ended[spec.id].start_s,
            "end_s": ended[spec.id].end_s,
            "nodes": ended[spec.id].size,
            "energy_j": busy_j.get(spec.id, 0.0),
        }
        for spec in specs
        if spec.id in ended
    ]


def bounded_slowdown(job: Job) -> float:
    """Return max(1, (wait + run) / max(run, 10 s))."""
    start, end = job.start_s or 0.0, job.end_s or 0.0
    return max(1.0, (end - job.spec.submit_s) / max(end - start, 10.0))


def peak_rss_mib() -> float:
    """Return the peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20


def chosen(
    policy: Policy,
    *,
    counted: bool,
    order: str | None = None,
    estimates: str | None = None,
    passes: Passes = "per-event",
    ahead: bool = True,
) -> Policy:
    """Return a policy with the options of ``rms simulate``.

    Args:
        counted: processors are all alike, so nodes are counted and not placed (unless nodes have
            power caps or are powered off). With one pass per event a start may then come before an
            end of the same instant that frees its nodes.
        ahead: whether it may: not where jobs are resized, whose ends are not their limits'.

    Raises:
        PolicyError: it has no such choice.
    """
    changes: dict[str, dict[str, Any]] = {}
    if order is not None:
        changes["admission"] = {"tail": "shortest" if order == "sjbf" else "queue"}
    if estimates is not None:
        changes.setdefault("admission", {})["estimates"] = estimates
    if counted and policy.always_on and not policy.placement.caps_nodes:
        ahead = ahead and passes == "per-event" and policy.admission.estimates is not None
        changes["placement"] = {"part": "count", "ahead": ahead}
    try:
        return adjusted(policy, **changes) if changes else policy
    except PolicyError as error:
        raise PolicyError(
            f"policy {policy.name} has no choice of order or estimates: {error}"
        ) from None


def write_rows(
    path: Path, rows: Sequence[dict[str, Any]], names: Mapping[JobId, str] | None = None
) -> None:
    """Write the rows per job as CSV, with the names of jobs in a last column if any has one."""
    heads = [*COLUMNS, "name"] if names else COLUMNS
    named = [row | {"name": (names or {}).get(row["job"], "")} for row in rows]
    write_output(path, csv_text([heads, *([row[head] for head in heads] for row in named)]))


# --- a simulation with the data of a chart -------------------------------------------------------


@dataclass
class Recording:
    """The sums of a finished simulation, and the timeline of its nodes (named by number)."""

    timeline: Spans
    time_s: float = 0.0
    busy_j: float = 0.0
    idle_j: float = 0.0
    cluster_j: float = 0.0
    owned_j: float = 0.0
    busy_node_s: float = 0.0
    resizes: int = 0

    def observe(self, simulation: Simulation) -> None:
        """Record the state after an event."""
        state, timeline = simulation.engine.state, self.timeline
        simulation.ledger.follow(state)
        timeline.power(state.now_s, simulation.ledger.power_w)
        holdings: dict[JobId, tuple[tuple[str, ...], None]]
        holdings = dict.fromkeys(timeline.held, ((), None))
        for job_id, job in state.running.items():
            holdings[job_id] = tuple(timeline.names[node] for node in job.busy_nodes), None
        timeline.follow(state.now_s, holdings, lambda _: 0.0)
        timeline.sleep(state.now_s, asleep(state))


def record(specs: Sequence[JobSpec], site: Site, policy: Policy) -> Recording:
    """Run jobs to their ends and return a recording."""
    recording = Recording(Spans([str(n + 1) for n in range(site.nodes)]))
    recording.timeline.open(0.0, dict.fromkeys(recording.timeline.names, 0.0))
    simulation = Simulation(specs, site, policy, record=False, observer=recording.observe)
    simulation.run()
    ledger = simulation.ledger
    ledger.check()
    first = min(spec.submit_s for spec in specs)
    recording.time_s = (
        max(job.end_s or 0.0 for job in simulation.engine.state.ended.values()) - first
    )
    recording.busy_j, recording.idle_j = sum(ledger.busy_j.values()), ledger.idle_j
    recording.cluster_j, recording.owned_j = ledger.cluster_j, ledger.owned_j
    recording.busy_node_s, recording.resizes = ledger.busy_node_s, simulation.resized
    return recording


# --- nodes that fail -----------------------------------------------------------------------------


def failing(
    nodes: int, *, mtbf_s: float, repair_s: float, horizon_s: float, seed: int
) -> list[NodeDown | NodeUp]:
    """Return failures of nodes after exponentially distributed times.

    Args:
        mtbf_s: mean time between failures of one node.
        repair_s: time for which it stays down.
        horizon_s: no failure begins after it.
    """
    draw = Random(seed)
    events: list[NodeDown | NodeUp] = []
    for node in range(nodes):
        at_s = draw.expovariate(1.0 / mtbf_s)
        while at_s < horizon_s:
            events += [NodeDown(at_s, Node(node)), NodeUp(at_s + repair_s, Node(node))]
            at_s += repair_s + draw.expovariate(1.0 / mtbf_s)
    return sorted(events, key=attrgetter("at_s"))
