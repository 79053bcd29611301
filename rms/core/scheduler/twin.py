"""The twin of a stream: the same jobs under EASY, rigid at their preferred sizes.

The twin runs the jobs that would run if no job were resizable. From the time at which the twin
starts a job, that job is *due* (``state.due``): a policy that starts due jobs before all others
lets none wait for long beyond its start under EASY.

A job of the twin ends after its run time at the preferred size: the stated one, else the measured
one once the job is over. A job that starts later than its twin is over later, too, so the end of
the twin may lie in the past by then: the schedule of EASY since then is computed again. While every
job is fixed and the twin runs the same jobs as the cluster, it follows no events, and ``state.due``
is None: then EASY itself decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from rms.core.model.events import Ended, Event, Never, Reopened, Start, Started, Submitted
from rms.core.model.jobs import Job, JobId, JobSpec, JobState, Mode, Site
from rms.core.policies import Policy
from rms.core.rules import transition
from rms.core.state import State, Usage

_MOST_PAST = 256
"""With more ended jobs than this, those without effect on the schedule are dropped."""

_MOST_OVER = 1000
"""At most this many jobs that are over wait in the twin: a much slower EASY skips them."""


@dataclass(slots=True)
class Twin:
    """EASY over the same jobs, all rigid.

    Attributes:
        policy: EASY, in the order of the policy that follows it; nodes are counted.
        state: its nodes and jobs, whose ids are those of the jobs themselves.
        ends: a heap of expected ends, as (time, number, id).
        flexible: ids of the jobs, not over, that are not fixed.
        follows: whether it follows events: its jobs differ from the running ones.
        nodes: its number of nodes.
        late: starts of jobs in the twin that came before those of the jobs; without an end yet.
        past: jobs that are over in the twin, as long as a new end may come before theirs.
        entered: times at which its jobs entered the queue.
    """

    policy: Policy
    state: State
    ends: list[tuple[float, int, JobId]] = field(default_factory=list)
    flexible: set[JobId] = field(default_factory=set)
    follows: bool = False
    nodes: int = 0
    late: dict[JobId, float] = field(default_factory=dict)
    past: dict[JobId, Job] = field(default_factory=dict)
    entered: dict[JobId, float] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State, policy: Policy) -> Twin:
        """Return the twin of a state, with the same running jobs."""
        twin = cls(policy, State(Site(state.nodes), counted=True))
        jobs = (*state.pending.values(), *state.running.values())
        twin.flexible = {job.spec.id for job in jobs if job.spec.mode is not Mode.FIXED}
        if twin.flexible:
            twin._begin(state)
        return twin

    def knows(self, job_id: JobId) -> bool:
        """Return whether its schedule may still go by the run of a job that is over."""
        own = self.state
        return job_id in own.pending or job_id in own.running or job_id in self.past

    @property
    def next_s(self) -> float:
        """The time of the next end after which a waiting job may start, or inf."""
        return self.ends[0][0] if self.follows and self.ends and self.state.pending else inf

    def follow(self, state: State, event: Event) -> None:
        """Follow an event; enter the due jobs in ``state``."""
        if not self.follows:
            if isinstance(event, Submitted) and self._enter_flexible(event):
                self._begin(state)
            return
        # Submissions come before the ends of their instant.
        self._advance(state, event.at_s, before=isinstance(event, Submitted | Started))
        if isinstance(event, Submitted):
            self._enter_flexible(event)
            self._submit(state, [s for s in event.specs if s.id in state.pending], event.at_s)
        elif isinstance(event, Ended):
            self._over(state, event.job)
        elif isinstance(event, Started):
            (state.due or {}).pop(event.job, None)
        elif isinstance(event, Reopened):
            self._begin(state)
        elif event.renews_queue:
            self._renew(state)
        if event.changes_nodes:
            self._count_nodes(state)
        if not self.flexible and not state.due and self._runs_what_runs(state):
            self.follows, state.due = False, None

    def _enter_flexible(self, event: Submitted) -> bool:
        """Enter the new jobs that are not fixed; return whether there are any."""
        new = {spec.id for spec in event.specs if spec.mode is not Mode.FIXED}
        self.flexible |= new
        return bool(new)

    def _begin(self, state: State) -> None:
        """Follow events from here on, with the same running and waiting jobs."""
        self.follows = True
        self._clear(state, state.now_s)
        for job in state.running.values():
            self._run(state, job.spec, state.now_s if job.start_s is None else job.start_s)
        self._submit(state, [job.spec for job in state.pending.values()], state.now_s)

    def _clear(self, state: State, now_s: float) -> None:
        own = self.state = State(Site(state.nodes), counted=True)
        if state.usage is not None:
            own.usage = Usage(state.usage.half_life_s, now_s, state.usage.now())
        own.now_s, self.nodes = now_s, state.nodes
        state.due = {}
        self.ends, self.past, self.entered, self.late = [], {}, {}, {}
        self._count_nodes(state)

    def _count_nodes(self, state: State) -> None:
        """Set the number of nodes that jobs can have, including nodes that are off."""
        there = state.nodes - len(state.down) - len(state.lent)
        self.state.free_count += there - self.nodes
        self.nodes = there

    def _runs_what_runs(self, state: State) -> bool:
        own = self.state.running
        if self.state.pending.keys() != state.pending.keys():
            return False
        return own.keys() == state.running.keys() and all(
            own[job_id].start_s == job.start_s for job_id, job in state.running.items()
        )

    def _run(self, state: State, spec: JobSpec, begun_s: float) -> None:
        """Run a job that has begun before."""
        own, rigid = self.state, _rigid(spec, state.nodes)
        transition.apply(own, Submitted(own.now_s, (rigid,)))
        transition.take(own, Start(spec.id, (), "", count=rigid.preferred))
        job = own.running[spec.id]
        own.unindex_running(job)
        job.state, job.start_s, job.since_s = JobState.RUNNING, begun_s, begun_s
        job.set_rate()
        own.index_running(job)
        own.new_jobs.clear()
        self.entered.setdefault(spec.id, begun_s)
        self._enter(state, spec.id, begun_s)

    def _submit(self, state: State, specs: Iterable[JobSpec], at_s: float) -> None:
        event = Submitted(at_s, tuple(_rigid(spec, state.nodes) for spec in specs))
        if not event.specs:
            return
        for spec in event.specs:
            self.entered[spec.id] = at_s
            self.past.pop(spec.id, None)  # it is requeued
        transition.apply(self.state, event)
        self._pass(state, event)

    def _renew(self, state: State) -> None:
        """Follow jobs that have entered or left the queue without a submission or start."""
        own, due = self.state, state.due
        assert due is not None
        for job_id in list(own.pending):
            over = state.ended.get(job_id)
            if over is None and (job_id in state.pending or job_id in state.running):
                continue
            if over is None or over.start_s is None:
                own.dequeue(job_id)
        for job_id in [due_id for due_id in due if due_id not in state.pending]:
            self._over(state, job_id)
        present = own.pending.keys() | own.running.keys()
        for job_id in own.running.keys() & state.pending.keys():  # its start has failed
            due.setdefault(job_id, own.running[job_id].start_s or 0.0)
        new = [job.spec for job in state.pending.values() if job.spec.id not in present]
        self._submit(state, new, state.now_s)

    def _over(self, state: State, job_id: JobId) -> None:
        """Follow the end of a job, or a due job that waits no more."""
        self.flexible.discard(job_id)
        (state.due or {}).pop(job_id, None)
        begun_s = self.late.pop(job_id, None)
        twin, job = self.state.running.get(job_id), state.ended.get(job_id)
        if twin is not None:
            end_s = self.state.now_s  # unless the job has run
            if job is not None and job.start_s is not None:
                end_s = (twin.start_s or 0.0) + _run_s(job)
            if begun_s is not None and end_s < self.state.now_s:
                self._work_out_again(state, job_id, end_s)
            else:
                heappush(self.ends, (max(end_s, self.state.now_s), twin.number, job_id))
            self._advance(state, state.now_s)
        elif job_id in self.state.pending and (job is None or job.start_s is None):
            self.state.dequeue(job_id)
        if len(self.state.pending) > len(state.pending) + len(state.running) + _MOST_OVER:
            for other in [queued for queued in self.state.pending if queued in state.ended]:
                self.state.dequeue(other)

    def _work_out_again(self, state: State, job_id: JobId, at_s: float) -> None:
        """End a job in the past, and compute the schedule of EASY since then.

        As if nodes that failed or came back since had done so before.
        """
        old, entered, past, late = self.state, self.entered, self.past, self.late
        begun = [*old.running.values(), *past.values()]
        self._clear(state, at_s)
        waits = [*old.pending.values()]

        def number(job: Job) -> int:  # of the job itself: that of its twin varies
            original = state.job(job.spec.id)
            return job.number if original is None else original.number

        for job in sorted(begun, key=number):
            start_s, end_s = job.start_s or 0.0, inf if job.end_s is None else job.end_s
            if job.spec.id == job_id:
                job.end_s, end_s = at_s, at_s
            if start_s > at_s:
                waits.append(job)
                continue
            self.entered[job.spec.id] = entered[job.spec.id]
            if end_s > at_s:
                self._run(state, job.spec, start_s)
            else:
                self.past[job.spec.id] = job
        self.late.update((i, s) for i, s in late.items() if i in self.state.running)
        waits.sort(key=lambda job: (entered[job.spec.id], number(job)))
        before = [job.spec for job in waits if entered[job.spec.id] <= at_s]
        self._submit(state, before, at_s)
        self.entered.update((spec.id, entered[spec.id]) for spec in before)
        for job in waits[len(before) :]:
            self._advance(state, entered[job.spec.id], before=True)
            self._submit(state, [job.spec], entered[job.spec.id])

    def _advance(self, state: State, until_s: float, *, before: bool = False) -> None:
        """Process the expected ends until a time, or before it."""
        own, ends = self.state, self.ends
        while ends and (ends[0][0] < until_s or (ends[0][0] == until_s and not before)):
            at_s, _, job_id = heappop(ends)
            if job_id not in own.running:
                continue
            event = Ended(max(at_s, own.now_s), job_id, "COMPLETED")
            transition.apply(own, event)
            if self.late:
                self.past[job_id] = own.ended[job_id]
            own.ended.clear()
            own.outcomes.clear()
            self._pass(state, event)
        if len(self.past) > _MOST_PAST:
            self._forget()

    def _forget(self) -> None:
        """Forget ends before which no new end can come, and jobs that are over."""
        since_s = min(self.late.values(), default=inf)
        self.past = {i: job for i, job in self.past.items() if (job.end_s or 0.0) > since_s}
        left = self.past.keys() | self.state.pending.keys() | self.state.running.keys()
        self.entered = {job_id: at_s for job_id, at_s in self.entered.items() if job_id in left}

    def _pass(self, state: State, event: Event) -> None:
        """Let EASY decide; enter the due jobs."""
        own = self.state
        for decision in self.policy.decide(own, (event,)):
            if isinstance(decision, Never):
                own.dequeue(decision.job)
            elif isinstance(decision, Start):
                transition.take(own, decision)
                transition.apply(own, Started(own.now_s, decision.job))
                self._enter(state, decision.job, own.now_s)
        own.needs_pass = False
        own.new_jobs.clear()
        own.changed.clear()

    def _enter(self, state: State, job_id: JobId, begun_s: float) -> None:
        """Enter the start of a job in the twin, and its expected end there."""
        job, due = state.pending.get(job_id), state.due
        assert due is not None
        if job is not None:
            due[job_id] = begun_s
            state.needs_pass = True
        else:
            job = state.running.get(job_id) or state.ended.get(job_id)
        run_s = 0.0 if job is None else _run_s(job)
        if run_s < inf:
            end_s = max(begun_s + run_s, self.state.now_s)
            heappush(self.ends, (end_s, self.state.running[job_id].number, job_id))
        elif job is not None and (job.start_s is None or job.start_s > begun_s):
            self.late[job_id] = begun_s


def _rigid(spec: JobSpec, nodes: int) -> JobSpec:
    """Return a job as its twin: fixed at the preferred size, with the expected run time."""
    plain = not (spec.array or spec.hold or spec.begin_s or spec.after or spec.nodelist)
    if spec.mode is Mode.FIXED and spec.speedup is None and plain and not spec.exclude:
        return spec
    size = spec.preferred
    if spec.mode.any_start and size > nodes:
        size = next((n for n in reversed(spec.sizes()) if n <= nodes), size)
    return JobSpec(
        *(spec.id, spec.submit_s, size, size, size, Mode.FIXED),
        limit_s=None if spec.is_assumed else spec.expected_s(size),
        assumed_s=spec.assumed_s,
        array=spec.array if spec.array_limit else None,
        array_limit=spec.array_limit,
        account=spec.account,
        priority=spec.priority,
    )


def _run_s(job: Job) -> float:
    """Return the run time of a job at its preferred size, inf without an estimate."""
    size, whole_s = job.spec.preferred, inf
    if job.speedup is not None:
        whole_s = job.speedup.time(size)
    if job.end_s is None:
        return whole_s
    span_s = job.end_s - (job.end_s if job.start_s is None else job.start_s)
    if whole_s == inf or (job.size == size and not job.resize_count):
        return span_s
    return whole_s if job.state is JobState.COMPLETED else min(whole_s, span_s)
