"""Frequencies of nodes: how long jobs run at a lower one, what they draw there, who sets them.

A node, or a host whose slots several jobs have, runs at the highest frequency that one of its jobs
asks for (Chauhan et al., figure 10), so a job's rate and power change with its neighbours. A job
waits for its slowest process: it runs as at the lowest of its hosts' frequencies. Processors that
share bandwidth (:mod:`rms.core.contention`) have a frequency for each process instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rms.core.contention import dynamic_power
from rms.core.model import Job, Node, NodePower
from rms.core.neighbours import enter_bandwidth
from rms.core.speedup import OperatingPoint, at_frequency
from rms.core.state import State

Levels = Sequence[tuple[float, float]]
"""Frequencies (GHz) and voltages (V), rising."""


def longer(levels: Levels, points: Sequence[OperatingPoint], share: float) -> float:
    """Return run time at a frequency over that at the highest level; 1 where nothing is known.

    Args:
        share: the frequency over the highest one.
    """
    if not points or not levels or share == 1.0:
        return 1.0
    highest = levels[-1][0]
    return at_frequency(points, share * highest).time / at_frequency(points, highest).time


def drawn(levels: Levels, points: Sequence[OperatingPoint], share: float) -> float:
    """Return power above idle at a frequency over that at the highest; V^2 f if not measured."""
    if share == 1.0:
        return 1.0
    if not points or not levels:
        return dynamic_power(levels, share)
    highest = levels[-1][0]
    return at_frequency(points, share * highest).power / at_frequency(points, highest).power


def set_clocks(state: State) -> None:
    """Set every host to the highest frequency asked for there, and jobs to their hosts'."""
    host, highest = state.site.host or range(state.nodes), dict[int, float]()
    for job in state.running.values():
        for node, share in zip(job.nodes, job.asked or (1.0,) * len(job.nodes), strict=True):
            highest[host[node]] = max(share, highest.get(host[node], 0.0))
    levels = state.site.levels
    for job in state.running.values():
        shares = tuple([highest[host[node]] for node in job.nodes])
        if min(shares, default=1.0) == 1.0:
            shares = ()
        if shares == job.frequencies:
            continue
        stretch = longer(levels, job.spec.operating_points, min(shares, default=1.0))
        state.unindex_running(job)
        job.progress_to(state.now_s)
        job.rate *= job.stretch / stretch
        job.frequencies, job.stretch = shares, stretch
        state.index_running(job)
        state.changed[job.spec.id] = state.reclocked[job.spec.id] = job


def ask_for_highest(state: State) -> None:
    """Let all running jobs be at the highest frequency: no other can be set."""
    for job in state.running.values():
        if job.asked:
            enter_bandwidth(state, job, -1)
            job.asked = ()
            job.frequencies = job.frequencies if state.clocked else ()
            enter_bandwidth(state, job, 1)
            state.changed[job.spec.id] = job
    if state.clocked:
        set_clocks(state)


# --- what a job draws ------------------------------------------------------------------------


def node_powers(
    power: Sequence[NodePower], levels: Levels, job: Job, nodes: Sequence[Node]
) -> list[float]:
    """Return the power of each of a job's nodes, which no other job has."""
    spec, size, clocks = job.spec, len(nodes), _clocks(job)
    found = []
    for node in nodes:
        model = power[node]
        watts, share = model.busy_w(spec, size), clocks.get(node, 1.0)
        if share != 1.0:
            watts = model.idle_w + (watts - model.idle_w) * drawn(
                levels, spec.operating_points, share
            )
        found.append(watts)
    return found


def host_powers(
    power: Sequence[NodePower], levels: Levels, job: Job, hosts: Mapping[Node, tuple[int, int]]
) -> dict[int, float]:
    """Return what a job adds to the idle power of each of its hosts.

    Args:
        hosts: of each of its slots, the host and how many slots that has.
    """
    spec, size, clocks = job.spec, len(hosts), _clocks(job)
    found: dict[int, float] = {}
    parts = Counter([(*where, clocks.get(node, 1.0)) for node, where in hosts.items()])
    for (host, slots, share), number in parts.items():
        own_w = power[host].slot_w(spec, size, slots)
        if share != 1.0:
            own_w *= drawn(levels, spec.operating_points, share)
        found[host] = found.get(host, 0.0) + number * own_w
    return found


def _clocks(job: Job) -> dict[Node, float]:
    """Return the frequencies of a job's nodes that are not the highest one."""
    return dict(zip(job.nodes, job.frequencies, strict=True)) if job.frequencies else {}
