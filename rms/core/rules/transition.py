"""Jobs that wait for the ends of others, as with Slurm's ``--dependency``: pure, by outcomes known.

What is asked is a list of conditions, all of which are to hold, or any of them. A condition may be
open, hold, or have become impossible for good: a job that can never start for that waits on and
says so (``DependencyNeverSatisfied``), as under Slurm without ``kill_invalid_depend``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from rms.core.model.contention import dynamic_power, parts
from rms.core.model.events import (
    NO_RESIZE,
    Decision,
    Ended,
    Event,
    Freed,
    FrequenciesSettable,
    HeldByUser,
    Later,
    Never,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
    PowerCapSet,
    PowerMeasured,
    PowerOff,
    PowerOn,
    Reason,
    Reopened,
    Requeued,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Stepped,
    Submitted,
    TasksHold,
    Ticked,
    Withdrawn,
)
from rms.core.model.jobs import Dependency, Job, JobId, JobState, Node, NodePower, Site
from rms.core.model.speedup import OperatingPoint, at_frequency
from rms.core.rules.powercap import cap_set, measured
from rms.core.state import Idle, State, can_hold, hold

OK, ANY, NOT_OK, CORRESPONDING = "afterok", "afterany", "afternotok", "aftercorr"
KINDS = (OK, ANY, NOT_OK, CORRESPONDING)


def unmet(state: State, job: Job) -> Later | None:
    """Return why a job's dependencies keep it from starting, None where they do not."""
    asked = job.spec.after
    if not asked:
        return None
    found = [_holds(state, job, each) for each in asked]
    if (any if job.spec.after_any else all)(each is True for each in found):
        return None
    hopeless = (all if job.spec.after_any else any)(each is False for each in found)
    left = [f"{each.kind}:{each.job}" for each, met in zip(asked, found, strict=True) if not met]
    words = ("?" if job.spec.after_any else ",").join(left)
    if hopeless:
        return Later(job.spec.id, f"DependencyNeverSatisfied: {words}", Reason.NEVER_SATISFIED)
    return Later(job.spec.id, f"Dependency: {words}", Reason.DEPENDENCY)


def _holds(state: State, job: Job, asked: Dependency) -> bool | None:
    """Return whether a condition holds: None while that is open, False for never."""
    kind, wanted = asked.kind, asked.job
    if kind == CORRESPONDING:
        _, _, index = job.spec.id.partition("_")
        other = JobId(f"{wanted}_{index}")
        kind = OK
        if index and state.job(other) is not None:
            wanted = other
    total, over, failed = _outcome(state, wanted)
    if kind == ANY:
        return True if over == total else None
    if kind == OK:
        return False if failed or not total else (True if over == total else None)
    if over < total:
        return None
    return failed > 0


def _outcome(state: State, wanted: str) -> tuple[int, int, int]:
    """Return how many jobs there are by an id, are over, and are so without success."""
    one = state.job(JobId(wanted))
    if one is None:
        return state.outcomes.get(wanted, (0, 0, 0))
    over = one.end_s is not None
    return 1, int(over), int(over and one.state is not JobState.COMPLETED)


def enter(state: State, job: Job) -> None:
    """Count a job of an array that has come."""
    array = job.spec.array
    if array is not None:
        total, over, failed = state.outcomes.get(array, (0, 0, 0))
        state.outcomes[array] = total + 1, over, failed


def end(state: State, job: Job) -> None:
    """Put a job among those that are over."""
    state.ended[job.spec.id] = job
    if state.listed:
        state.listed.discard(job.spec.id)
    array = job.spec.array
    if array is not None:
        total, over, failed = state.outcomes.get(array, (0, 0, 0))
        failed += job.state is not JobState.COMPLETED
        state.outcomes[array] = total, over + 1, failed


def is_met(kind: str, states: Sequence[JobState]) -> bool:
    """Return whether a condition on jobs holds that have ended in these states."""
    failed = any(state is not JobState.COMPLETED for state in states)
    return True if kind == ANY else failed if kind == NOT_OK else not failed


def unknown(state: State, ids: Iterable[str]) -> str:
    """Return the first of these that is the id of no job and no array, "" where there is none."""
    return next((i for i in ids if state.job(JobId(i)) is None and i not in state.outcomes), "")


# FUSED rms.core.rules.transition: What jobs ask for on nodes whose processes share bandwidth, and how that sets their rates.
#
# Of a fixed job its start says how much longer than stated it is expected to run. The rate of a job
# that may be resized follows its neighbours instead, whenever one of them comes, goes or is resized:
# what is left of it decides whether a resize pays. It waits for its slowest process, as
# :mod:`rms.core.model.contention` has that, by the bandwidths that policies count with.


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


# FUSED rms.core.rules.transition: Frequencies of nodes: how long jobs run at a lower one, what they draw there, who sets them.
#
# A node, or a host whose slots several jobs have, runs at the highest frequency that one of its jobs
# asks for (Chauhan et al., figure 10), so a job's rate and power change with its neighbours. A job
# waits for its slowest process: it runs as at the lowest of its hosts' frequencies. Processors that
# share bandwidth (:mod:`rms.core.model.contention`) have a frequency for each process instead.

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


# FUSED rms.core.rules.transition: How the state follows what happens to nodes: down and up, off and booting, lent to tasks,
# held for a time.


class TransitionError(RuntimeError):
    """An event that cannot have happened in this state."""


def down(state: State, event: NodeDown) -> None:
    """Take a node from those that jobs are given."""
    state.now_s = event.at_s
    if event.node in state.down:
        raise TransitionError(f"expected a node that is up, got {event.node}")
    for node in state.together(event.node):
        state.down.add(node)
        if state.vacant[node]:
            state.take((node,))
            state.free_count -= 1


def up(state: State, event: NodeUp) -> None:
    """Give a node to jobs again."""
    state.now_s = event.at_s
    if event.node not in state.down:
        raise TransitionError(f"expected a node that is down, got {event.node}")
    slots = set(state.together(event.node))
    state.down -= slots
    slots -= state.off | state.booting.keys() | state.lent.keys()
    slots = slots.difference(*(job.held for job in state.running.values()))
    state.free_count += len(slots)
    state.give_back(tuple(slots))


def booted(state: State, event: NodeBooted) -> None:
    """Give a node to jobs that was off."""
    state.now_s = event.at_s
    if event.node not in state.booting:
        raise TransitionError(f"expected a node that is booting, got {event.node}")
    slots = state.together(event.node)
    for node in slots:
        del state.booting[node]
    state.switched.update(slots)
    state.free_count += len(slots)
    state.give_back(slots)


def power_failed(state: State, event: NodePowerFailed) -> None:
    """Take a node for down that was to be powered off or on."""
    state.now_s, node = event.at_s, event.node
    if node not in state.off and node not in state.booting:
        raise TransitionError(f"expected a node that is off or booting, got {node}")
    slots = state.together(node)
    for each in slots:
        state.booting.pop(each, None)
    state.off.difference_update(slots)
    state.down.update(slots)
    state.switched.update(slots)


def tasks_hold(state: State, event: TasksHold) -> None:
    """Let tasks have these nodes and no others."""
    state.now_s = event.at_s
    if not can_hold(state, event):
        raise TransitionError(f"expected free nodes for tasks, got {event.nodes}")
    hold(state, event)


def boots(state: State, node: Node) -> None:
    """Mark a node that is off as booting from now on."""
    state.off.remove(node)
    state.booting[node] = state.now_s + state.model(node).boot_s
    state.switched.add(node)
    if state.idle is not None and node == state.together(node)[0]:
        state.idle.switch(state.now_s, on=True)


def power_off(state: State, nodes: tuple[Node, ...]) -> None:
    """Mark free nodes as off."""
    state.take(nodes)
    state.free_count -= len(nodes)
    state.off.update(nodes)
    state.switched.update(nodes)
    if state.idle is not None:
        for _ in dict.fromkeys(map(state.together, nodes)):
            state.idle.switch(state.now_s, on=False)


def leased(state: State, event: NodesLeased) -> None:
    """Take in until when which nodes are held."""
    if len(event.nodes) != len(event.until_s) or not all(0 <= n < state.nodes for n in event.nodes):
        raise TransitionError(f"expected nodes of this cluster, each with a time, got {event}")
    state.now_s, state.lease = event.at_s, event


def use_cluster(state: State, site: Site, lost: set[Node]) -> None:
    """Take another cluster, all of it free; nothing runs on the one before any more."""
    state.site, state.down, state.releasing, state.lease = site, lost, 0, None
    state.off.clear()
    state.booting.clear()
    state.switched.clear()
    state.lent.clear()
    state.idle = None if state.idle is None else Idle()
    state.measured_w, state.idle_above_w = None, 0.0
    state.use_site()
    state.vacant = bytearray(b"\x01" * site.nodes)
    state.free_count = site.nodes - len(lost)
    state.take(tuple(lost))
    waiting = [*state.pending.values(), *state.too_wide.values()]
    state.too_wide.clear()
    for job in waiting:
        if job.least <= site.nodes and job.spec.id not in state.pending:
            state.enqueue(job)
        elif job.least > site.nodes:
            state.too_wide[job.spec.id] = job
            if job.spec.id in state.pending:
                state.dequeue(job.spec.id)


# FUSED rms.core.rules.transition: Jobs that may not start yet, whatever is free: a user holds them, or it is before their time.
#
# As Slurm has it (``scontrol hold`` and ``release``, ``sbatch --hold`` and ``--begin``). Such a job
# is in ``state.held``, where no policy sees it. Once it may start it has its place in the queue by
# the order of submission, and the policy is told of it as of a job that is handed in.
#
# That its time has come is an event (:class:`rms.core.model.events.Freed`) that a driver enters for the
# jobs that :func:`due` names: after the time that :func:`next_s` names.

EVENTS = frozenset((HeldByUser, Freed))
"""Events by which jobs come to be held, and into the queue, beside their submission."""


def waits_for(state: State, job: Job, at_s: float) -> Later | None:
    """Return what a job waits for beside nodes, None if it may start at ``at_s``."""
    job_id, begin_s = job.spec.id, job.spec.begin_s
    if job.held_by_user:
        return Later(job_id, "JobHeldUser", Reason.HELD_BY_USER)
    if begin_s is not None and begin_s > at_s:
        after_s = begin_s - job.spec.submit_s
        return Later(job_id, f"BeginTime: {after_s:.0f} s after it was submitted", Reason.BEGIN)
    return unmet(state, job)


def due(state: State, at_s: float) -> tuple[JobId, ...]:
    """Return the held jobs that may start at ``at_s``."""
    held = state.held.items()
    return tuple(job_id for job_id, job in held if waits_for(state, job, at_s) is None)


def next_s(state: State) -> float:
    """Return when a held job may start by the time alone, inf for never."""
    times = (job.spec.begin_s for job in state.held.values() if not job.held_by_user)
    return min((begin_s for begin_s in times if begin_s is not None), default=inf)


def submitted(state: State, job: Job) -> None:
    """Hold the newest job in the queue, if it may not start yet."""
    job.held_by_user = job.spec.hold
    if waits_for(state, job, state.now_s) is not None:
        state.new_jobs.pop()
        state.held[job.spec.id] = state.dequeue(job.spec.id)


def held_by_user(state: State, event: HeldByUser) -> None:
    """Hold jobs, or let go those that a user held: who waits for nothing else is in the queue."""
    known = (state.pending, state.too_wide, state.held)
    _expect_all(event, lambda job_id: any(job_id in group for group in known))
    state.now_s = event.at_s
    for job_id in event.jobs if event.held else ():
        if job_id in state.pending:
            job = state.dequeue(job_id)
            state.held[job_id] = job
            if job in state.new_jobs:
                state.new_jobs.remove(job)
        elif job_id in state.too_wide:
            state.held[job_id] = state.too_wide.pop(job_id)
    held = [state.held[job_id] for job_id in event.jobs if job_id in state.held]
    for job in held:
        job.held_by_user = event.held
    _enqueue(state, [job for job in held if waits_for(state, job, event.at_s) is None])


def freed(state: State, event: Freed) -> None:
    """Let jobs start whose time has come."""
    _expect_all(event, lambda job_id: job_id in state.held)
    state.now_s = event.at_s
    _enqueue(state, [state.held[job_id] for job_id in event.jobs])


def withdrawn(state: State, event: Withdrawn) -> None:
    """End jobs that wait, held or not."""
    known = (state.pending, state.too_wide, state.held)
    _expect_all(event, lambda job_id: any(job_id in group for group in known))
    state.now_s = event.at_s
    for job_id in event.jobs:
        job = state.too_wide.pop(job_id, None) or state.held.pop(job_id, None)
        job = job or state.dequeue(job_id)
        job.state, job.end_s, job.expected_end_s = JobState.CANCELLED, event.at_s, inf
        end(state, job)


def as_seen(state: State, events: Sequence[Event]) -> Sequence[Event]:
    """Return events as a policy is told of them: jobs are handed in when they come to the queue."""
    if not (state.held or state.too_wide) and not any(type(event) in EVENTS for event in events):
        return events
    return [_seen(state, event) for event in events]


def _seen(state: State, event: Event) -> Event:
    if isinstance(event, Submitted):
        specs = tuple(spec for spec in event.specs if spec.id in state.pending)
        return replace(event, specs=specs)
    if isinstance(event, HeldByUser | Freed):
        here = (state.pending.get(job_id) for job_id in event.jobs)
        return Submitted(event.at_s, tuple(job.spec for job in here if job is not None))
    return event


def _expect_all(event: HeldByUser | Freed | Withdrawn, known: Callable[[JobId], bool]) -> None:
    for job_id in event.jobs:
        if not known(job_id):
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _enqueue(state: State, jobs: Iterable[Job]) -> None:
    """Put held jobs in their places in the queue, but those too wide for the cluster."""
    for job in jobs:
        del state.held[job.spec.id]
        if job.least > state.nodes:
            state.too_wide[job.spec.id] = job
        else:
            state.enqueue(job, sort=False)
    state.pending = dict(sorted(state.pending.items(), key=lambda item: item[1].number))


# FUSED rms.core.rules.transition: Whether an event can have happened: asked before it is written down, and changes nothing.
#
# What cannot be applied to the state never enters a journal, where each restart would meet it again.
# :mod:`rms.core.rules.transition` refuses the same events; it is not asked there again, since a simulation
# makes none that cannot be.


def check(state: State, event: Event) -> None:
    """Refuse an event that cannot have happened in a state.

    Raises:
        TransitionError: it cannot.
    """
    if not event.at_s >= state.now_s:
        raise TransitionError(f"expected time to go on from {state.now_s}, got {event.at_s}")
    found = _CHECK.get(type(event))
    if found is not None:
        found(state, event)


def _check_submitted(state: State, event: Submitted) -> None:
    new = set[JobId]()
    for spec in event.specs:
        if spec.id in new or state.job(spec.id) is not None:
            raise TransitionError(f"expected a new job, got {spec.id} again")
        new.add(spec.id)


def _check_running(state: State, event: Any) -> Job:
    job = state.running.get(event.job)
    if job is None:
        raise TransitionError(f"expected a running job, got {event.job} in {event}")
    return job


def _check_resizing(state: State, event: Any) -> None:
    if _check_running(state, event).requested_size is None:
        raise TransitionError(f"expected a requested resize of {event.job}")


def _check_stepped(state: State, event: Stepped) -> None:
    _check_running(state, event)
    if min(event.steps, event.total) < 1 or not event.span_s > 0.0:
        raise TransitionError(f"expected steps that took time, got {event}")


def _check_asked(state: State, event: ResizeAsked) -> None:
    _check_running(state, event)
    _nodes(state.nodes, event.nodes)


def _check_ended(state: State, event: Ended) -> None:
    job = state.job(event.job)
    if job is None or job.end_s is not None:
        raise TransitionError(f"expected a job that is not over, got {event.job} in {event}")


def _held(state: State, event: HeldByUser) -> None:
    for job_id in event.jobs:
        if all(job_id not in group for group in (state.pending, state.too_wide, state.held)):
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _freed(state: State, event: Freed) -> None:
    for job_id in event.jobs:
        if job_id not in state.held:
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _down(state: State, event: NodeDown) -> None:
    _nodes(state.nodes, (event.node,))
    if event.node in state.down:
        raise TransitionError(f"expected a node that is up, got {event.node}")


def _up(state: State, event: NodeUp) -> None:
    if event.node not in state.down:
        raise TransitionError(f"expected a node that is down, got {event.node}")


def _booted(state: State, event: NodeBooted) -> None:
    if event.node not in state.booting:
        raise TransitionError(f"expected a node that is booting, got {event.node}")


def _power_failed(state: State, event: NodePowerFailed) -> None:
    if event.node not in state.off and event.node not in state.booting:
        raise TransitionError(f"expected a node that is off or booting, got {event.node}")


def _tasks_hold(state: State, event: TasksHold) -> None:
    if not can_hold(state, event):
        raise TransitionError(f"expected free nodes for tasks, got {event.nodes}")


def _leased(state: State, event: NodesLeased) -> None:
    _nodes(state.nodes, event.nodes)
    if len(event.nodes) != len(event.until_s):
        raise TransitionError(f"expected a time for each node, got {event}")


def _check_reopened(state: State, event: Reopened) -> None:
    if state.counted:
        raise TransitionError("expected a cluster whose jobs are placed, got one that is counted")
    _nodes(len(event.nodes), event.down)


def _nodes(number: int, nodes: Iterable[int]) -> None:
    for node in nodes:
        if not 0 <= node < number:
            raise TransitionError(f"expected one of {number} nodes, got {node}")


_CHECK: dict[type, Callable[[State, Any], object]] = {
    Submitted: _check_submitted,
    **dict.fromkeys((Started, ResizePoint, Requeued), _check_running),
    **dict.fromkeys((ResizeBegun, Resized, ResizeRolledBack), _check_resizing),
    Stepped: _check_stepped,
    ResizeAsked: _check_asked,
    Ended: _check_ended,
    HeldByUser: _held,
    Freed: _freed,
    NodeDown: _down,
    NodeUp: _up,
    NodeBooted: _booted,
    NodePowerFailed: _power_failed,
    TasksHold: _tasks_hold,
    NodesLeased: _leased,
    Reopened: _check_reopened,
}


# FUSED rms.core.rules.transition: How the state follows events and decisions. Deterministic, no I/O, no clock.

NARROW_S = 60.0
"""How long a job that was shrunk for a power cap is not widened again."""

_OVER = {str(state): state for state in JobState}


def apply(state: State, event: Event) -> None:
    """Change the state by what happened."""
    if event.at_s < state.now_s:
        raise TransitionError(f"expected time to go on from {state.now_s}, got {event.at_s}")
    if state.usage is not None:
        state.usage.advance(state.running.values(), event.at_s)
    _APPLY[type(event)](state, event)
    if state.estimated:
        state.renew_overdue()
    if type(event) not in _QUIET:
        state.needs_pass = True


def _submitted(state: State, event: Submitted) -> None:
    for spec in event.specs:
        job_id = spec.id
        duplicate = job_id in state.pending or job_id in state.running or job_id in state.ended
        if duplicate or job_id in state.held or job_id in state.too_wide:
            raise TransitionError(f"expected a new job, got {job_id} again")
    state.now_s = event.at_s
    for spec in event.specs:
        job = Job(spec)
        state.enqueue(job)
        if state.usage is not None:
            state.usage.know((job,))
        if spec.array is not None:
            enter(state, job)
        if spec.nodelist or spec.exclude:
            state.listed.add(spec.id)
        if spec.hold or spec.begin_s is not None or spec.after:
            submitted(state, job)
        if spec.wait_for_nodes and job.least > state.nodes and spec.id in state.pending:
            state.new_jobs.pop()
            state.too_wide[spec.id] = state.dequeue(spec.id)


def _started(state: State, event: Started) -> None:
    job = _running(state, event)
    state.now_s = now = event.at_s
    reindex = now != job.since_s  # else it was started in the instant in which that was decided
    if reindex:
        state.needs_pass = True
        state.unindex_running(job)
    job.state, job.start_s, job.since_s = JobState.RUNNING, now, now
    job.set_rate()
    if job.spec.resize_points_known:
        job.at_resize_point = state.needs_pass = True
        if not reindex:
            state.unindex_running(job)
            reindex = True
    if reindex:
        state.index_running(job)
    state.changed[event.job] = job


def _point(state: State, event: ResizePoint) -> None:
    job = _running(state, event)
    state.now_s = event.at_s
    state.reached_resize_point.append(job)
    if not job.at_resize_point or event.done is not None:
        state.unindex_running(job)
        if event.done is not None:
            job.done, job.since_s = event.done, event.at_s
        job.at_resize_point, job.rests, state.needs_pass = True, False, True
        state.index_running(job)


def _stepped(state: State, event: Stepped) -> None:
    job = _running(state, event)
    if min(event.steps, event.total) < 1 or event.span_s <= 0.0:
        raise TransitionError(f"expected steps that took time, got {event}")
    state.now_s = event.at_s
    if job.resize_begun:
        return  # it stands still now
    state.unindex_running(job)
    job.stepped(event.steps, event.span_s, event.step, event.total, event.at_s)
    state.index_running(job)


def _asked(state: State, event: ResizeAsked) -> None:
    job = _running(state, event)
    state.now_s = event.at_s
    if event.auto:
        state.wanted.pop(event.job, None)
        state.unindex_running(job)
        job.kept, state.needs_pass = False, True
        state.index_running(job)
    elif event.holds:
        state.wanted[event.job] = event


def _begun(state: State, event: ResizeBegun) -> None:
    job = _resizing(state, event)
    state.now_s = event.at_s
    job.progress_to(event.at_s)
    job.resize_begun, job.rate = True, 0.0
    state.changed[event.job] = job


def _resized(state: State, event: Resized) -> None:
    job = _resizing(state, event)
    state.now_s = event.at_s
    loss = job.loss
    state.releasing -= loss
    state.free_count += loss
    if job.requested_nodes is not None:
        kept = set(job.requested_nodes)
        state.give_back([node for node in job.nodes if node not in kept])
        if state.pools is not None:
            enter_bandwidth(state, job, -1)
        job.nodes = job.requested_nodes
        if job.asked:
            job.asked = (max(job.asked),) * len(job.nodes)
        job.frequencies = () if state.clocked else job.asked
        if state.pools is not None:
            enter_bandwidth(state, job, 1)
    assert job.requested_size is not None
    job.resize_count += 1
    if job.requested_size > job.size:
        job.widened_s = event.at_s
    state.unindex_running(job)
    job.size = job.requested_size
    _resume(state, job, rests=event.rests)
    if state.clocked:
        set_clocks(state)
    elif state.beside:
        set_rates(state)


def _rolled_back(state: State, event: ResizeRolledBack) -> None:
    job = _resizing(state, event)
    state.now_s = event.at_s
    state.releasing -= job.loss
    state.free_count += job.gain
    if job.requested_nodes is not None:
        kept = set(job.nodes)
        state.give_back([node for node in job.requested_nodes if node not in kept])
    assert job.requested_size is not None
    job.kept = False
    if not event.later:
        job.refused_sizes |= {job.requested_size}
    state.unindex_running(job)
    _resume(state, job, rests=event.rests)


def _resume(state: State, job: Job, *, rests: bool) -> None:
    """Let a job run at its size, no resize in flight."""
    job.progress_to(state.now_s)
    job.at_resize_point &= not rests
    job.rests = rests
    job.requested_nodes, job.requested_size, job.resize_begun = None, None, False
    job.set_rate()
    state.index_running(job)
    state.changed[job.spec.id] = job


def _requeued(state: State, event: Requeued) -> None:
    job = _running(state, event)
    state.now_s = event.at_s
    _release(state, job)
    job.size, job.nodes = 0, ()  # who still looks at it sees that it holds nothing
    state.enqueue(_again(job))


def _again(job: Job) -> Job:
    """Return a job that starts from its beginning again, as it waits."""
    return Job(
        job.spec,
        job.number,
        job.least,
        seen=job.seen,
        speedup=job.speedup,
        longest_s=job.longest_s,
    )


def _ended(state: State, event: Ended) -> None:
    job = state.running.get(event.job)
    if job is None:
        job = state.too_wide.pop(event.job, None) or state.held.pop(event.job, None)
        if job is None and event.job not in state.pending:
            raise TransitionError(f"expected a job that is not over, got {event.job} in {event}")
        job = job or state.dequeue(event.job)
        state.now_s = event.at_s
    else:
        state.now_s = event.at_s
        _release(state, job)
        if job.rate:
            job.progress_to(event.at_s)
            job.rate = 0.0
        if job.requested_size is not None:
            job.requested_nodes, job.requested_size, job.resize_begun = None, None, False
    job.state, job.end_s, job.expected_end_s = _OVER[event.state], event.at_s, inf
    end(state, job)


def _release(state: State, job: Job) -> None:
    """Take a job from among the running ones, with all it holds."""
    del state.running[job.spec.id]
    state.wanted.pop(job.spec.id, None)
    state.unindex_running(job)
    state.count(job, -1)
    state.free_count += job.size
    if job.requested_size is not None:
        state.free_count += job.gain
        state.releasing -= job.loss
    if job.nodes:
        state.give_back(job.held)
        if state.pools is not None:
            enter_bandwidth(state, job, -1)
    state.changed[job.spec.id] = job
    if state.clocked:
        state.reclocked.pop(job.spec.id, None)
        set_clocks(state)
    elif state.beside:
        set_rates(state)


def _ticked(state: State, event: Ticked) -> None:
    state.now_s = event.at_s


def _reopened(state: State, event: Reopened) -> None:
    if state.counted:
        raise TransitionError("expected a cluster whose jobs are placed, got one that is counted")
    state.now_s = event.at_s
    for job in list(state.running.values()):
        _release(state, job)
        job.size, job.nodes = 0, ()
        job.requested_nodes, job.requested_size, job.resize_begun = None, None, False
        if job.spec.id in event.failed:
            job.state, job.end_s = JobState.FAILED, event.at_s
            end(state, job)
        else:
            state.enqueue(_again(job))
    names, shared = event.nodes, event.shared
    site = Site(len(names), event.power, shared=shared, levels=event.levels, names=names)
    use_cluster(state, site, set(event.down))


def _settable(state: State, event: FrequenciesSettable) -> None:
    state.now_s, state.settable_frequencies = event.at_s, event.settable
    if not event.settable:
        ask_for_highest(state)


_APPLY: dict[type, Callable[[State, Any], None]] = {
    Submitted: _submitted,
    Started: _started,
    ResizePoint: _point,
    Stepped: _stepped,
    ResizeAsked: _asked,
    ResizeBegun: _begun,
    Resized: _resized,
    ResizeRolledBack: _rolled_back,
    Requeued: _requeued,
    HeldByUser: held_by_user,
    Freed: freed,
    Withdrawn: withdrawn,
    Ended: _ended,
    Ticked: _ticked,
    NodeDown: down,
    NodeUp: up,
    NodeBooted: booted,
    NodePowerFailed: power_failed,
    Reopened: _reopened,
    PowerCapSet: cap_set,
    PowerMeasured: measured,
    FrequenciesSettable: _settable,
    TasksHold: tasks_hold,
    NodesLeased: leased,
}


_QUIET = frozenset((Submitted, Started, Ticked, ResizePoint, ResizeAsked))
"""What lets no waiting job start that could not before, but for those submitted."""


def take(state: State, decision: Decision) -> None:
    """Change the state by a decision: from planned to requested."""
    if isinstance(decision, Start):
        job = state.dequeue(decision.job)
        size = decision.count or len(decision.nodes)
        job.state, job.nodes, job.size = JobState.CONFIGURING, decision.nodes, size
        if decision.frequencies and state.settable_frequencies:
            job.asked = decision.frequencies
        # Where nodes are clocked, what its frequencies are follows, and how much longer it runs.
        if (job.asked or decision.slowdown != 1.0) and not state.clocked:
            job.slowdown, job.frequencies = decision.slowdown, job.asked
        job.since_s = state.now_s
        state.running[decision.job] = job
        state.count(job, 1)
        state.free_count -= size
        if decision.nodes:
            state.take(decision.nodes)
            if state.pools is not None:
                enter_bandwidth(state, job, 1)
        state.index_running(job)
        if state.clocked:
            set_clocks(state)
        elif state.beside:
            set_rates(state)
    elif isinstance(decision, Resize):
        job = state.running[decision.job]
        state.unindex_running(job)
        job.requested_size = decision.size
        wanted = state.wanted.pop(decision.job, None)
        job.kept = wanted is not None or (job.kept and decision.size == job.size)
        if decision.code is Reason.POWER:
            job.no_wider_before_s = state.now_s + NARROW_S
        if decision.nodes:
            job.requested_nodes = decision.nodes
            own = set(job.nodes)
            state.take([node for node in decision.nodes if node not in own])
        state.free_count -= job.gain
        state.releasing += job.loss
        state.index_running(job)
    elif isinstance(decision, Later) and decision.code in NO_RESIZE:
        state.wanted.pop(decision.job, None)
    elif isinstance(decision, Never):
        job = state.dequeue(decision.job)
        job.state, job.end_s = JobState.CANCELLED, state.now_s
        end(state, job)
    elif isinstance(decision, PowerOff):
        power_off(state, decision.nodes)
    elif isinstance(decision, PowerOn):
        for node in decision.nodes:
            boots(state, node)


def _running(state: State, event: Any) -> Job:
    job = state.running.get(event.job)
    if job is None:
        raise TransitionError(f"expected a running job, got {event.job} in {event}")
    return job


def _resizing(state: State, event: Any) -> Job:
    job = _running(state, event)
    if job.requested_size is None:
        raise TransitionError(f"expected a requested resize of {event.job}")
    return job
