"""What jobs ask for on nodes whose processes share bandwidth, and how that sets their rates.

Of a fixed job its start says how much longer than stated it is expected to run. The rate of a job
that may be resized follows its neighbours instead, whenever one of them comes, goes or is resized:
what is left of it decides whether a resize pays. It waits for its slowest process, as
:mod:`rms.core.contention` has that, by the bandwidths that policies count with.
"""

from __future__ import annotations

from rms.core.contention import parts
from rms.core.model import Job
from rms.core.state import State


def enter_bandwidth(state: State, job: Job, sign: int) -> None:
    """Enter the bandwidth that a job asks for on its nodes (1), or no longer does (-1)."""
    pools = state.pools
    if pools is None:
        return
    each_gb_s = job.spec.planned_gb_s
    for (pool, frequency), number in parts(pools, job.nodes, job.frequencies).items():
        asked = state.pool_gb_s[pool] + sign * number * each_gb_s * frequency / pools.factor[pool]
        none = state.pool_free[pool] == pools.number[pool]
        state.pool_gb_s[pool] = 0.0 if none else max(0.0, asked)
    if state.contended and job.spec.mode.resizable:
        if sign > 0:
            state.beside[job.spec.id], job.slowdown = job, 1.0
        else:
            state.beside.pop(job.spec.id, None)


def set_rates(state: State) -> None:
    """Set the rates of jobs that may be resized by what is asked for on their nodes now."""
    pools = state.pools
    if pools is None:
        return
    slow: dict[int, dict[int, float]] = {}
    for job in state.beside.values():
        stretch = 0.0
        for pool, frequency in parts(pools, job.nodes, job.frequencies):
            node = pools.node[pool]
            if node not in slow:
                members = pools.members[node]
                found = pools.slowdowns(node, [state.pool_gb_s[at] for at in members])
                slow[node] = dict(zip(members, found, strict=True))
            stretch = max(stretch, slow[node][pool] * pools.factor[pool] / frequency)
        if stretch == job.stretch:
            continue
        state.unindex_running(job)
        job.progress_to(state.now_s)
        job.rate *= job.stretch / stretch
        job.stretch = stretch
        state.index_running(job)
