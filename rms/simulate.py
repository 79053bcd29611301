"""``rms simulate``: a workload on the virtual clock, and its figures."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from rms.events import Later
from rms.ledger import NodePower
from rms.model import Job, JobSpec
from rms.policies import Policy
from rms.simulator import Simulation, resize_count

BALANCE = 1e-9
"""The books may differ by this much of themselves, summed in two ways."""


class BalanceError(RuntimeError):
    """The energy books do not balance: a defect of the program."""


def simulate(
    specs: Sequence[JobSpec], power: Sequence[NodePower], policy: Policy
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the JSON of ``rms simulate`` and its rows per job (CLI.md)."""
    begun = time.perf_counter()
    simulation = Simulation(specs, power, policy)
    simulation.run()
    wall_s = time.perf_counter() - begun
    ledger = simulation.ledger
    gap = abs(ledger.owned_j - ledger.cluster_j)
    if gap > BALANCE * max(1.0, ledger.cluster_j):
        raise BalanceError(f"expected energies to balance, got a difference of {gap:g} J")
    jobs = list(simulation.engine.state.ended.values())
    run = [job for job in jobs if job.start_s is not None]
    slowdowns = sorted(bounded_slowdown(job) for job in run)
    first = min((spec.submit_s for spec in specs), default=0.0)
    makespan = max((job.end_s or 0.0 for job in run), default=first) - first
    decided = [d for d in simulation.decisions if not isinstance(d[1], Later)]
    result = {
        "policy": policy.name,
        "jobs": len(jobs),
        "makespan_s": makespan,
        "mean_wait_s": mean((j.start_s or 0.0) - j.spec.submit_s for j in run) if run else 0.0,
        "mean_bounded_slowdown": mean(slowdowns) if run else 0.0,
        "p95_bounded_slowdown": slowdowns[int(0.95 * (len(run) - 1))] if run else 0.0,
        "utilization": ledger.busy_node_s / (len(power) * makespan) if makespan else 0.0,
        "energy_j": {
            "busy": sum(ledger.busy_j.values()),
            "idle": ledger.idle_j,
            "off": ledger.off_j,
            "boot": ledger.boot_j,
            "cluster": ledger.cluster_j,
        },
        "power_source": "model",
        "resizes": resize_count(simulation.decisions),
        "decisions": len(decided),
        "wall_s": wall_s,
        "jobs_per_s": len(jobs) / wall_s if wall_s else 0.0,
        "peak_rss_mib": _peak_rss_mib(),
    }
    rows = [
        {
            "job": job.spec.id,
            "submit_s": job.spec.submit_s,
            "start_s": job.start_s,
            "end_s": job.end_s,
            "nodes": len(job.nodes),
            "energy_j": ledger.busy_j.get(job.spec.id, 0.0),
        }
        for job in jobs
    ]
    return result, rows


def bounded_slowdown(job: Job) -> float:
    """Return max(1, (wait + run) / max(run, 10 s))."""
    start, end = job.start_s or 0.0, job.end_s or 0.0
    return max(1.0, (end - job.spec.submit_s) / max(end - start, 10.0))


def _peak_rss_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20
