"""Changes of the state by events and decisions. Deterministic, no I/O, no clock.

An event is checked, then applied. A daemon calls :func:`check` alone before an event goes into the
journal, so that no restart meets an event that cannot have happened. :func:`take` applies a
decision, which :mod:`rms.core.rules.checks` has checked.

The sections follow a job: submission, holds, start, steps, resizes, end. Then come nodes (down,
off, lent to tasks, held for a time), the power cap, other clusters, and the rates of jobs that
follow frequencies and neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from rms.core.model.contention import parts
from rms.core.model.events import (
    NO_RESIZE,
    Decision,
    Ended,
    Event,
    Freed,
    FrequenciesSettable,
    HeldByUser,
    JobEvent,
    Later,
    Never,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodesLost,
    NodeUp,
    PowerCapSet,
    PowerMeasured,
    PowerOff,
    PricesSet,
    Reason,
    Reopened,
    Requeued,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizeEvent,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Stepped,
    Submitted,
    Suspended,
    TasksHold,
    Ticked,
    Withdrawn,
    WorkLost,
)
from rms.core.model.jobs import Dependency, Job, JobId, JobState, Node, Site
from rms.core.model.speedup import longer
from rms.core.rules.powercap import share_above
from rms.core.state import Idle, State, as_job, owners_changed

NARROW_S = 60.0
"""Time before a job that was shrunk for a power cap is widened again."""


class TransitionError(RuntimeError):
    """An event that cannot have happened in this state."""


def check(state: State, event: Event) -> None:
    """Raise :class:`TransitionError` if an event cannot have happened in a state."""
    if not event.at_s >= state.now_s:
        raise TransitionError(f"expected time to go on from {state.now_s}, got {event.at_s}")
    check_event, _ = _EVENTS[type(event)]
    if check_event is not None:
        check_event(state, event)


def apply(state: State, event: Event) -> None:
    """Check an event and change the state by it."""
    check(state, event)
    if state.usage is not None:
        state.usage.advance(state.running.values(), event.at_s)
    state.now_s = event.at_s
    _, change = _EVENTS[type(event)]
    change(state, event)
    if state.estimated:
        state.renew_overdue()
    if event.needs_pass:
        state.needs_pass = True


def _check_running(state: State, event: JobEvent) -> None:
    if event.job not in state.running:
        raise TransitionError(f"expected a running job, got {event.job} in {event}")


def _check_waiting(state: State, event: HeldByUser | Withdrawn) -> None:
    for job_id in event.jobs:
        if all(job_id not in jobs for jobs in (state.pending, state.too_wide, state.held)):
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _check_nodes(number: int, nodes: Iterable[int]) -> None:
    for node in nodes:
        if not 0 <= node < number:
            raise TransitionError(f"expected one of {number} nodes, got {node}")


# --- submitted: into the queue, or held ----------------------------------------------------------


def _check_submitted(state: State, event: Submitted) -> None:
    for spec in event.specs:
        if state.job(spec.id) is not None:
            raise TransitionError(f"expected a new job, got {spec.id} again")
    if len(event.specs) > 1:
        job_id, times = Counter(spec.id for spec in event.specs).most_common(1)[0]
        if times > 1:
            raise TransitionError(f"expected a new job, got {job_id} again")


def _submitted(state: State, event: Submitted) -> None:
    for spec in event.specs:
        job = Job(spec)
        state.enqueue(job)
        if state.usage is not None:
            state.usage.add_accounts((job,))
        if spec.array is not None:
            total, over, failed = state.outcomes.get(spec.array, (0, 0, 0))
            state.outcomes[spec.array] = total + 1, over, failed
        if spec.nodelist or spec.exclude:
            state.listed.add(spec.id)
        if spec.hold or spec.begin_s is not None or spec.after:
            job.held_by_user = spec.hold
            if waits_for(state, job, state.now_s) is not None:
                state.new_jobs.pop()
                state.held[spec.id] = state.dequeue(spec.id)
        if spec.wait_for_nodes and job.least > state.nodes and spec.id in state.pending:
            state.new_jobs.pop()
            state.too_wide[spec.id] = state.dequeue(spec.id)


# --- held: by a user, until a time, for other jobs -----------------------------------------------
#
# As in Slurm (``scontrol hold`` and ``release``, ``sbatch --hold``, ``--begin``, ``--dependency``).
# A held job is in ``state.held``, where no policy sees it. Once it may start it takes its place in
# the queue by the order of submission, and the policy sees it as a submitted job. A driver enters
# :class:`Freed` for the jobs of :func:`due`, after the time of :func:`next_s`.


def waits_for(state: State, job: Job, at_s: float) -> Later | None:
    """Return the obstacle to a start at ``at_s`` other than nodes, or None."""
    job_id, begin_s = job.spec.id, job.spec.begin_s
    if job.held_by_user:
        return Later(job_id, "JobHeldUser", Reason.HELD_BY_USER)
    if begin_s is not None and begin_s > at_s:
        after_s = begin_s - job.spec.submit_s
        return Later(job_id, f"BeginTime: {after_s:.0f} s after it was submitted", Reason.BEGIN)
    return _unmet(state, job)


def due(state: State, at_s: float) -> tuple[JobId, ...]:
    """Return the held jobs that may start at ``at_s``."""
    held = state.held.items()
    return tuple(job_id for job_id, job in held if waits_for(state, job, at_s) is None)


def next_s(state: State) -> float:
    """Return the time at which a held job may start by the time alone, inf for never."""
    times = (job.spec.begin_s for job in state.held.values() if not job.held_by_user)
    return min((begin_s for begin_s in times if begin_s is not None), default=inf)


def _held_by_user(state: State, event: HeldByUser) -> None:
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
    _release_held(state, [job for job in held if waits_for(state, job, event.at_s) is None])


def _check_freed(state: State, event: Freed) -> None:
    for job_id in event.jobs:
        if job_id not in state.held:
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _freed(state: State, event: Freed) -> None:
    _release_held(state, [state.held[job_id] for job_id in event.jobs])


def _release_held(state: State, jobs: Iterable[Job]) -> None:
    """Put held jobs in their places in the queue, except those too wide for the cluster."""
    for job in jobs:
        del state.held[job.spec.id]
        if job.least > state.nodes:
            state.too_wide[job.spec.id] = job
        else:
            state.enqueue(job, sort=False)
    state.pending = dict(sorted(state.pending.items(), key=lambda item: item[1].number))


def _withdrawn(state: State, event: Withdrawn) -> None:
    for job_id in event.jobs:
        _over(state, _waiting(state, job_id), JobState.CANCELLED)


def for_policy(state: State, events: Sequence[Event]) -> Sequence[Event]:
    """Return events for a policy, to which a job is submitted when it enters the queue."""
    if not (state.held or state.too_wide) and not any(event.enqueues for event in events):
        return events
    return [_for_policy(state, event) for event in events]


def _for_policy(state: State, event: Event) -> Event:
    if isinstance(event, Submitted):
        specs = tuple(spec for spec in event.specs if spec.id in state.pending)
        return replace(event, specs=specs)
    if isinstance(event, HeldByUser | Freed):
        here = (state.pending.get(job_id) for job_id in event.jobs)
        return Submitted(event.at_s, tuple(job.spec for job in here if job is not None))
    return event


# A job's dependencies are conditions on the ends of other jobs, of which all or any have to hold. A
# condition is open, holds, or has become impossible: a job that can never start for that waits with
# the reason ``DependencyNeverSatisfied``, as in Slurm without ``kill_invalid_depend``.

OK, ANY, NOT_OK, CORRESPONDING = "afterok", "afterany", "afternotok", "aftercorr"
KINDS = (OK, ANY, NOT_OK, CORRESPONDING)


def _unmet(state: State, job: Job) -> Later | None:
    """Return the dependencies that keep a job from starting, or None."""
    conditions = job.spec.after
    if not conditions:
        return None
    hold = [_holds(state, job, condition) for condition in conditions]
    if (any if job.spec.after_any else all)(met is True for met in hold):
        return None
    hopeless = (all if job.spec.after_any else any)(met is False for met in hold)
    pairs = zip(conditions, hold, strict=True)
    left = [f"{condition.kind}:{condition.job}" for condition, met in pairs if not met]
    words = ("?" if job.spec.after_any else ",").join(left)
    if hopeless:
        return Later(job.spec.id, f"DependencyNeverSatisfied: {words}", Reason.NEVER_SATISFIED)
    return Later(job.spec.id, f"Dependency: {words}", Reason.DEPENDENCY)


def _holds(state: State, job: Job, condition: Dependency) -> bool | None:
    """Return whether a condition holds: None while it is open, False for never."""
    kind, other = condition.kind, condition.job
    if kind == CORRESPONDING:
        _, _, index = job.spec.id.partition("_")
        task = JobId(f"{other}_{index}")
        kind = OK
        if index and state.job(task) is not None:
            other = task
    total, over, failed = _outcome(state, other)
    if kind == ANY:
        return True if over == total else None
    if kind == OK:
        return False if failed or not total else (True if over == total else None)
    if over < total:
        return None
    return failed > 0


def _outcome(state: State, job_id: str) -> tuple[int, int, int]:
    """Return the numbers of jobs with an id: all, over, and failed."""
    job = state.job(JobId(job_id))
    if job is None:
        return state.outcomes.get(job_id, (0, 0, 0))
    over = job.end_s is not None
    return 1, int(over), int(over and job.state is not JobState.COMPLETED)


def is_met(kind: str, states: Sequence[JobState]) -> bool:
    """Return whether a condition holds on jobs that have ended in these states."""
    failed = any(state is not JobState.COMPLETED for state in states)
    return True if kind == ANY else failed if kind == NOT_OK else not failed


def unknown(state: State, ids: Iterable[str]) -> str:
    """Return the first id that is that of no job and no array, or ""."""
    return next((i for i in ids if state.job(JobId(i)) is None and i not in state.outcomes), "")


# --- started, and stepping -----------------------------------------------------------------------


def _start(state: State, decision: Start) -> None:
    """Take a start: the job holds its nodes from now on."""
    job = state.dequeue(decision.job)
    size = decision.count or len(decision.nodes)
    job.state, job.nodes, job.size = JobState.CONFIGURING, decision.nodes, size
    if decision.frequencies and state.settable_frequencies:
        job.requested_frequencies = decision.frequencies
    # Where nodes are clocked, its frequencies and its run time follow from its neighbours.
    if (job.requested_frequencies or decision.slowdown != 1.0) and not state.clocked:
        job.slowdown, job.frequencies = decision.slowdown, job.requested_frequencies
    job.since_s = state.now_s
    state.running[decision.job] = job
    state.count(job, 1)
    state.free_count -= size
    if decision.nodes:
        state.take(decision.nodes)
        if state.pools is not None:
            enter_bandwidth(state, job, 1)
    state.index_running(job)
    if state.clocked or state.beside:
        _set_neighbours(state)


def _started(state: State, event: Started) -> None:
    job = state.running[event.job]
    now = event.at_s
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


def _resize_point(state: State, event: ResizePoint) -> None:
    job = state.running[event.job]
    state.reached_resize_point.append(job)
    if not job.at_resize_point or event.done is not None:
        state.unindex_running(job)
        if event.done is not None:
            job.done, job.since_s = event.done, event.at_s
        job.at_resize_point, job.rests, state.needs_pass = True, False, True
        state.index_running(job)


def _check_stepped(state: State, event: Stepped) -> None:
    _check_running(state, event)
    if min(event.steps, event.total) < 1 or not event.span_s > 0.0:
        raise TransitionError(f"expected steps that took time, got {event}")


def _stepped(state: State, event: Stepped) -> None:
    job = state.running[event.job]
    if job.resize_begun or job.state is JobState.SUSPENDED:
        return  # it stands still now
    state.unindex_running(job)
    job.stepped(event.steps, event.span_s, event.step, event.total, event.at_s)
    state.index_running(job)


# --- suspended -----------------------------------------------------------------------------------


def _check_suspended(state: State, event: Suspended) -> None:
    _check_running(state, event)
    job = state.running[event.job]
    expected = JobState.RUNNING if event.suspended else JobState.SUSPENDED
    if job.state is not expected or job.requested_size is not None:
        raise TransitionError(f"expected a job that is {expected} at one size, got {event}")


def _suspended(state: State, event: Suspended) -> None:
    job = state.running[event.job]
    state.unindex_running(job)
    job.progress_to(event.at_s)
    if event.suspended:
        job.state, job.suspended_at_s, job.rate = JobState.SUSPENDED, event.at_s, 0.0
    else:
        job.suspended_s += event.at_s - (job.suspended_at_s or 0.0)
        job.state, job.suspended_at_s = JobState.RUNNING, None
        job.set_rate()
    state.index_running(job)
    state.changed[event.job] = job


# --- resized -------------------------------------------------------------------------------------


def _check_resize_asked(state: State, event: ResizeAsked) -> None:
    _check_running(state, event)
    _check_nodes(state.nodes, event.nodes)


def _resize_asked(state: State, event: ResizeAsked) -> None:
    job = state.running[event.job]
    if event.auto:
        state.wanted.pop(event.job, None)
        state.unindex_running(job)
        job.kept, state.needs_pass = False, True
        state.index_running(job)
    elif event.holds:
        state.wanted[event.job] = event


def _resize(state: State, decision: Resize) -> None:
    """Take a resize: the job holds its new nodes too from now on."""
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


def _check_resizing(state: State, event: ResizeEvent) -> None:
    _check_running(state, event)
    if state.running[event.job].requested_size is None:
        raise TransitionError(f"expected a requested resize of {event.job}")


def _resize_begun(state: State, event: ResizeBegun) -> None:
    job = state.running[event.job]
    job.progress_to(event.at_s)
    job.resize_begun, job.rate = True, 0.0
    state.changed[event.job] = job


def _resized(state: State, event: Resized) -> None:
    job = state.running[event.job]
    loss = job.loss
    state.releasing -= loss
    state.free_count += loss
    if job.requested_nodes is not None:
        kept = set(job.requested_nodes)
        state.give_back([node for node in job.nodes if node not in kept])
        if state.pools is not None:
            enter_bandwidth(state, job, -1)
        job.nodes = job.requested_nodes
        if job.requested_frequencies:
            job.requested_frequencies = (max(job.requested_frequencies),) * len(job.nodes)
        job.frequencies = () if state.clocked else job.requested_frequencies
        if state.pools is not None:
            enter_bandwidth(state, job, 1)
    assert job.requested_size is not None
    job.resize_count += 1
    if job.requested_size > job.size:
        job.widened_s = event.at_s
    state.unindex_running(job)
    job.size = job.requested_size
    _go_on(state, job, rests=event.rests)
    if state.clocked or state.beside:
        _set_neighbours(state)


def _rolled_back(state: State, event: ResizeRolledBack) -> None:
    job = state.running[event.job]
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
    _go_on(state, job, rests=event.rests)


def _go_on(state: State, job: Job, *, rests: bool) -> None:
    """Let a job run at its size, no resize in flight."""
    job.progress_to(state.now_s)
    job.at_resize_point &= not rests
    job.rests = rests
    job.forget_resize()
    job.set_rate()
    state.index_running(job)
    state.changed[job.spec.id] = job


# --- on fewer nodes ------------------------------------------------------------------------------


def _check_nodes_lost(state: State, event: NodesLost) -> None:
    _check_running(state, event)
    job, kept = state.running[event.job], set(event.nodes)
    if job.state is not JobState.RUNNING or not job.spec.mode.resizable:
        raise TransitionError(f"expected a job that runs and can be resized, got {event}")
    size = len(event.nodes)
    if not kept < set(job.nodes) or size != len(kept) or size not in job.spec.sizes():
        raise TransitionError(f"expected fewer of the nodes {job.nodes}, got {event}")


def _nodes_lost(state: State, event: NodesLost) -> None:
    job = state.running[event.job]
    state.unindex_running(job)
    job.progress_to(event.at_s)
    if job.requested_size is not None:
        state.free_count += job.gain
        state.releasing -= job.loss
    kept, held = set(event.nodes), job.held
    if state.pools is not None:
        enter_bandwidth(state, job, -1)
    state.give_back([node for node in held if node not in kept])
    state.free_count += job.size - len(kept)
    job.nodes, job.size = event.nodes, len(event.nodes)
    if job.requested_frequencies:
        job.requested_frequencies = (max(job.requested_frequencies),) * job.size
    job.frequencies = () if state.clocked else job.requested_frequencies
    if state.pools is not None:
        enter_bandwidth(state, job, 1)
    if event.done is not None:
        job.done = event.done
    job.resize_count += 1
    job.kept = False
    _go_on(state, job, rests=not job.spec.resize_points_known)
    if state.clocked or state.beside:
        _set_neighbours(state)


def _check_work_lost(state: State, event: WorkLost) -> None:
    _check_running(state, event)
    if not (event.since_s <= event.until_s <= event.at_s and event.steps >= 0):
        raise TransitionError(f"expected rising times and at least 0 steps, got {event}")


# --- ended, or in the queue again ----------------------------------------------------------------

_STATES = {str(state): state for state in JobState}


def _check_ended(state: State, event: Ended) -> None:
    if event.job in state.running or event.job in state.pending:
        return
    if event.job not in state.too_wide and event.job not in state.held:
        raise TransitionError(f"expected a job that is not over, got {event.job} in {event}")


def _ended(state: State, event: Ended) -> None:
    job = state.running.get(event.job)
    if job is None:
        job = _waiting(state, event.job)
    else:
        _release(state, job)
        if job.rate:
            job.progress_to(event.at_s)
            job.rate = 0.0
        if job.requested_size is not None:
            job.forget_resize()
    _over(state, job, _STATES[event.state])


def _requeued(state: State, event: Requeued) -> None:
    _requeue(state, state.running[event.job], event.done)


def _requeue(state: State, job: Job, done: float = 0.0) -> None:
    """Let a running job wait again; it starts from its beginning, or from a share that is done."""
    _release(state, job)
    job.size, job.nodes = 0, ()  # other references to it see that it holds nothing
    job.forget_resize()
    again = Job(job.spec, job.number, job.least, longest_s=job.longest_s)
    again.measured_steps, again.speedup, again.done = job.measured_steps, job.speedup, done
    state.enqueue(again)


def _waiting(state: State, job_id: JobId) -> Job:
    """Remove a job from the waiting ones."""
    job = state.too_wide.pop(job_id, None) or state.held.pop(job_id, None)
    return job or state.dequeue(job_id)


def _release(state: State, job: Job) -> None:
    """Remove a job from the running ones and release its nodes."""
    del state.running[job.spec.id]
    state.awaited.pop(job.spec.id, None)
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
    if state.clocked or state.beside:
        _set_neighbours(state)


def _over(state: State, job: Job, job_state: JobState) -> None:
    job.state, job.end_s, job.expected_end_s = job_state, state.now_s, inf
    state.ended[job.spec.id] = job
    if state.listed:
        state.listed.discard(job.spec.id)
    array = job.spec.array
    if array is not None:
        total, over, failed = state.outcomes.get(array, (0, 0, 0))
        failed += job_state is not JobState.COMPLETED
        state.outcomes[array] = total, over + 1, failed


# --- nodes: down and up, off and booting, of tasks, held for a time ------------------------------


def _check_down(state: State, event: NodeDown) -> None:
    _check_nodes(state.nodes, (event.node,))
    if event.node in state.down:
        raise TransitionError(f"expected a node that is up, got {event.node}")


def _down(state: State, event: NodeDown) -> None:
    for node in state.together(event.node):
        state.down.add(node)
        if state.vacant[node]:
            state.take((node,))
            state.free_count -= 1


def _check_up(state: State, event: NodeUp) -> None:
    if event.node not in state.down:
        raise TransitionError(f"expected a node that is down, got {event.node}")


def _up(state: State, event: NodeUp) -> None:
    slots = set(state.together(event.node))
    state.down -= slots
    slots -= state.off | state.booting.keys() | state.lent.keys()
    slots = slots.difference(*(job.held for job in state.running.values()))
    state.free_count += len(slots)
    state.give_back(tuple(slots))


def power_off(state: State, nodes: tuple[Node, ...]) -> None:
    """Mark free nodes as off."""
    state.take(nodes)
    state.free_count -= len(nodes)
    state.off.update(nodes)
    state.switched.update(nodes)
    if state.idle is not None:
        for _ in dict.fromkeys(map(state.together, nodes)):
            state.idle.switch(state.now_s, on=False)


def boots(state: State, node: Node) -> None:
    """Mark a node that is off as booting from now on."""
    state.off.remove(node)
    state.booting[node] = state.now_s + state.model(node).boot_s
    state.switched.add(node)
    if state.idle is not None and node == state.together(node)[0]:
        state.idle.switch(state.now_s, on=True)


def _check_booted(state: State, event: NodeBooted) -> None:
    if event.node not in state.booting:
        raise TransitionError(f"expected a node that is booting, got {event.node}")


def _booted(state: State, event: NodeBooted) -> None:
    slots = state.together(event.node)
    for node in slots:
        del state.booting[node]
    state.switched.update(slots)
    state.free_count += len(slots)
    state.give_back(slots)


def _check_power_failed(state: State, event: NodePowerFailed) -> None:
    if event.node not in state.off and event.node not in state.booting:
        raise TransitionError(f"expected a node that is off or booting, got {event.node}")


def _power_failed(state: State, event: NodePowerFailed) -> None:
    slots = state.together(event.node)
    for node in slots:
        state.booting.pop(node, None)
    state.off.difference_update(slots)
    state.down.update(slots)
    state.switched.update(slots)


def _check_tasks_hold(state: State, event: TasksHold) -> None:
    vacant, lent, nodes = state.vacant, state.lent, event.nodes
    placed = not state.counted and len(event.owners) in (0, len(nodes))
    if not placed or not all(n in lent or (0 <= n < len(vacant) and vacant[n]) for n in nodes):
        raise TransitionError(f"expected free nodes for tasks, got {event.nodes}")


def _tasks_hold(state: State, event: TasksHold) -> None:
    before, owners = state.lent, event.owners or ("",) * len(event.nodes)
    state.lent = held = dict(zip(event.nodes, owners, strict=True))
    more, less = sorted(held.keys() - before.keys()), sorted(before.keys() - held.keys())
    state.free_count += len(less) - len(more)
    state.take(tuple(more))
    state.give_back(tuple(less))
    for owner in owners_changed(before, held):
        state.changed[owner] = as_job(state, owner)


def _check_leased(state: State, event: NodesLeased) -> None:
    there = all(0 <= node < state.nodes for node in event.nodes)
    if len(event.nodes) != len(event.until_s) or not there:
        raise TransitionError(
            f"expected nodes of this cluster with a time for every node, got {event}"
        )


def _leased(state: State, event: NodesLeased) -> None:
    state.lease = event


# --- the power cap -------------------------------------------------------------------------------


def _cap_set(state: State, event: PowerCapSet) -> None:
    state.power_cap_w = event.watts
    if event.watts is None:
        state.measured_w, state.idle_above_w = None, 0.0
    for job in state.running.values():
        job.no_wider_before_s = -inf
        if event.watts is None:
            job.above_w = 0.0


def _priced(state: State, event: PricesSet) -> None:
    state.prices = event.prices


def _measured(state: State, event: PowerMeasured) -> None:
    state.measured_w = event.watts
    share_above(state, event.watts)


# --- another cluster -----------------------------------------------------------------------------


def _check_reopened(state: State, event: Reopened) -> None:
    if state.counted:
        raise TransitionError("expected a cluster whose jobs are placed, got one that is counted")
    _check_nodes(len(event.nodes), event.down)


def _reopened(state: State, event: Reopened) -> None:
    for job in list(state.running.values()):
        if job.spec.id in event.failed:
            _release(state, job)
            job.size, job.nodes = 0, ()
            job.forget_resize()
            _over(state, job, JobState.FAILED)
        else:
            _requeue(state, job)
    names, shared = event.nodes, event.shared
    site = Site(len(names), event.power, shared=shared, levels=event.levels, names=names)
    _use_cluster(state, site, set(event.down))


def _use_cluster(state: State, site: Site, lost: set[Node]) -> None:
    """Take another cluster, all of it free; nothing runs on the one before any more."""
    state.site, state.down, state.releasing, state.lease = site, lost, 0, None
    state.off.clear()
    state.booting.clear()
    state.switched.clear()
    state.lent.clear()
    if state.idle is not None:
        state.idle = Idle()
        state.idle.begin(site.nodes, state.now_s)
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


# --- rates by frequency, and by neighbours -------------------------------------------------------
#
# A node, or a host whose slots several jobs have, runs at the highest frequency that one of its
# jobs requests (Chauhan et al., figure 10), so a job's rate and power change with its neighbours. A
# job waits for its slowest process: it runs as at the lowest of its hosts' frequencies.
#
# Processors that share bandwidth have a frequency per process instead. There the start of a fixed
# job states its expected slowdown. The rate of a job that may be resized follows its neighbours,
# whenever one of them comes, goes or is resized: the rest of its run time decides whether a resize
# pays. It waits for its slowest process, by the bandwidths that policies count with
# (:mod:`rms.core.model.contention`).


def _set_neighbours(state: State) -> None:
    """Set frequencies or rates anew after a job on the same nodes came, went or was resized."""
    if state.clocked:
        set_clocks(state)
    else:
        _set_rates(state)


def _settable(state: State, event: FrequenciesSettable) -> None:
    state.settable_frequencies = event.settable
    if event.settable:
        return
    for job in state.running.values():
        if job.requested_frequencies:
            enter_bandwidth(state, job, -1)
            job.requested_frequencies = ()
            job.frequencies = job.frequencies if state.clocked else ()
            enter_bandwidth(state, job, 1)
            state.changed[job.spec.id] = job
    if state.clocked:
        set_clocks(state)


def set_clocks(state: State) -> None:
    """Set hosts to the highest frequency requested there, and jobs to the frequencies of hosts."""
    host, highest = state.site.host or range(state.nodes), dict[int, float]()
    for job in state.running.values():
        for node, share in zip(
            job.nodes, job.requested_frequencies or (1.0,) * len(job.nodes), strict=True
        ):
            highest[host[node]] = max(share, highest.get(host[node], 0.0))
    levels = state.site.levels
    for job in state.running.values():
        shares = tuple([highest[host[node]] for node in job.nodes])
        if min(shares, default=1.0) == 1.0:
            shares = ()
        if shares == job.frequencies:
            continue
        stretch = longer(levels, job.spec.operating_points, min(shares, default=1.0))
        _set_stretch(state, job, stretch)
        job.frequencies = shares
        state.index_running(job)
        state.changed[job.spec.id] = state.reclocked[job.spec.id] = job


def enter_bandwidth(state: State, job: Job, sign: int) -> None:
    """Add the bandwidth that a job demands on its nodes (1), or subtract it (-1)."""
    pools = state.pools
    if pools is None:
        return
    own_gb_s = job.spec.planned_gb_s
    for (pool, frequency), number in parts(pools, job.nodes, job.frequencies).items():
        demand = state.pool_gb_s[pool] + sign * number * own_gb_s * frequency / pools.factor[pool]
        none = state.pool_free[pool] == pools.number[pool]
        state.pool_gb_s[pool] = 0.0 if none else max(0.0, demand)
    if state.contended and job.spec.mode.resizable:
        if sign > 0:
            state.beside[job.spec.id], job.slowdown = job, 1.0
        else:
            state.beside.pop(job.spec.id, None)


def _set_rates(state: State) -> None:
    """Set the rates of jobs that may be resized by the demand on their nodes now."""
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
                slowdowns = pools.slowdowns(node, [state.pool_gb_s[at] for at in members])
                slow[node] = dict(zip(members, slowdowns, strict=True))
            stretch = max(stretch, slow[node][pool] * pools.factor[pool] / frequency)
        if stretch != job.stretch:
            _set_stretch(state, job, stretch)
            state.index_running(job)


def _set_stretch(state: State, job: Job, stretch: float) -> None:
    """Set the stretch of a job; the caller enters it into the indices again."""
    state.unindex_running(job)
    job.progress_to(state.now_s)
    job.rate *= job.stretch / stretch
    job.stretch = stretch


# --- checks and changes by type of event ---------------------------------------------------------


def _nothing(state: State, event: Event) -> None:
    """Change nothing but the time."""


_EVENTS: dict[type, tuple[Callable[[State, Any], None] | None, Callable[[State, Any], None]]] = {
    Submitted: (_check_submitted, _submitted),
    HeldByUser: (_check_waiting, _held_by_user),
    Freed: (_check_freed, _freed),
    Withdrawn: (_check_waiting, _withdrawn),
    Started: (_check_running, _started),
    ResizePoint: (_check_running, _resize_point),
    Stepped: (_check_stepped, _stepped),
    ResizeAsked: (_check_resize_asked, _resize_asked),
    ResizeBegun: (_check_resizing, _resize_begun),
    Resized: (_check_resizing, _resized),
    ResizeRolledBack: (_check_resizing, _rolled_back),
    Requeued: (_check_running, _requeued),
    NodesLost: (_check_nodes_lost, _nodes_lost),
    WorkLost: (_check_work_lost, _nothing),
    Suspended: (_check_suspended, _suspended),
    Ended: (_check_ended, _ended),
    Ticked: (None, _nothing),
    NodeDown: (_check_down, _down),
    NodeUp: (_check_up, _up),
    NodeBooted: (_check_booted, _booted),
    NodePowerFailed: (_check_power_failed, _power_failed),
    TasksHold: (_check_tasks_hold, _tasks_hold),
    NodesLeased: (_check_leased, _leased),
    PowerCapSet: (None, _cap_set),
    PricesSet: (None, _priced),
    PowerMeasured: (None, _measured),
    FrequenciesSettable: (None, _settable),
    Reopened: (_check_reopened, _reopened),
}
"""The check of an event, if there is one, and its change of the state."""


def take(state: State, decision: Decision) -> None:
    """Change the state by a decision: from planned to requested."""
    if isinstance(decision, Start):
        _start(state, decision)
    elif isinstance(decision, Resize):
        _resize(state, decision)
    elif isinstance(decision, Later):
        if decision.code in NO_RESIZE:
            state.wanted.pop(decision.job, None)
    elif isinstance(decision, Never):
        _over(state, state.dequeue(decision.job), JobState.CANCELLED)
    elif isinstance(decision, PowerOff):
        power_off(state, decision.nodes)
    else:
        for node in decision.nodes:
            boots(state, node)
