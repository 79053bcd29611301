"""How the state follows events and decisions. Deterministic, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from rms.core.clocks import ask_for_highest, set_clocks
from rms.core.dependencies import end, enter
from rms.core.events import (
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
from rms.core.holds import freed, held_by_user, submitted, withdrawn
from rms.core.model import Job, JobState, Site
from rms.core.neighbours import enter_bandwidth, set_rates
from rms.core.node_events import TransitionError as TransitionError
from rms.core.node_events import (
    booted,
    boots,
    down,
    leased,
    power_failed,
    power_off,
    tasks_hold,
    up,
    use_cluster,
)
from rms.core.powercap import cap_set, measured
from rms.core.state import State

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
