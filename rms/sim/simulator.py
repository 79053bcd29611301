"""The engine on a virtual clock: a heap of events instead of processes.

Submissions, ends, resize points and the like happen at their times; of one instant in the order of
their ranks (:class:`rms.core.model.events.BaseEvent`). The same engine decides as in a daemon.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from math import floor, inf
from operator import attrgetter
from typing import ClassVar, Literal

import msgspec

from rms.core.books.ledger import Ledger
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    Freed,
    HourlyPrices,
    NodeBooted,
    NodeDown,
    NodesLost,
    NodeUp,
    PowerOn,
    PricesSet,
    Requeued,
    Resize,
    ResizeBegun,
    Resized,
    ResizePoint,
    Start,
    Started,
    Submitted,
    Ticked,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site
from rms.core.policies import Policy
from rms.core.rules import transition
from rms.core.rules.powercap import expected_w
from rms.core.scheduler.engine import Engine
from rms.sim.contended import Beside

Passes = Literal["per-event", "per-timestamp", "ends-first"]
"""The passes of the policy, and the order of events within an instant.

``per-event``: after every event, submissions before the other events of their time. ``ends-first``:
after every event, submissions after the others. ``per-timestamp``: after all events of an instant.
"""


class PowerPhase(msgspec.Struct, frozen=True):
    """A job draws this share of its power from now on."""

    at_s: float
    job: JobId
    share: float

    rank: ClassVar[int] = 5
    needs_jobs: ClassVar[bool] = False


@dataclass(frozen=True)
class Recovery:
    """What a job has left after a node of it has failed, and where it goes on.

    Without one it starts again from its beginning.

    Attributes:
        every_s: time from its start, or from a resize, to a copy of its state, and between two.
        cost_s: time for which it stands still for a copy.
        back_s: time for which it stands still before it goes on from a copy.
        narrower: it goes on at once on the nodes that are left, if it may have a size that fits;
            else it waits in the queue again.
    """

    every_s: float
    cost_s: float = 0.0
    back_s: float = 0.0
    narrower: bool = False

    def slowed(self, spec: JobSpec) -> JobSpec:
        """Return a job whose run times have the time of its copies."""
        longer = 1.0 + self.cost_s / self.every_s
        run_s = None if spec.run_s is None else spec.run_s * longer
        speedup = None if spec.speedup is None else spec.speedup.scaled(longer)
        return msgspec.structs.replace(spec, run_s=run_s, speedup=speedup)


STUCK_S = 366 * 86400.0
"""Without a running job, or one to come, for so long, the waiting jobs wait for ever."""


class Simulation:
    """Runs jobs with run times to their ends.

    Args:
        specs: the jobs; all must have a run time or a speedup.
        power: one model per node; their number is the cluster's size. Or a site.
        failures: failures and returns of nodes, rising in time (:mod:`rms.sim.run`).
        prices: of electricity, for policies that wait for cheap hours.
        recovery: of jobs on a node that goes down; None: they start again from their beginning.
        record: events and decisions are kept.
        progress: called with the number of jobs that are over whenever one ends.
        observer: called after every event.

    On nodes that share bandwidth, jobs end when their processes do, whose rates change with their
    neighbours (:class:`rms.sim.contended.Contention`). A job that is resized stands still meanwhile
    and goes on with the rest of all its processes. No node fails there.

    Attributes:
        contention: the rates of processes that share bandwidth, else None.
        drawn: with prices, the power of the cluster, as ``(from, until, watts)``.
        failed, narrowed: jobs that failures of nodes sent back to the queue, and jobs that went on
            with fewer nodes.
        recomputed_node_s, recovery_node_s: node seconds of work that failures have undone, and of
            jobs that stood still before they went on.
    """

    def __init__(
        self,
        specs: Iterable[JobSpec],
        power: Sequence[NodePower] | Site,
        policy: Policy,
        *,
        passes: Passes = "per-event",
        failures: Iterable[NodeDown | NodeUp] = (),
        recovery: Recovery | None = None,
        prices: HourlyPrices | None = None,
        record: bool = True,
        progress: Callable[[int], None] | None = None,
        observer: Callable[[Simulation], None] | None = None,
    ) -> None:
        site = power if isinstance(power, Site) else Site(len(power), tuple(power))
        self.engine = Engine(site, policy)
        self.ledger = Ledger(site.models, site.host, site.levels)
        self.decisions: list[tuple[float, Decision]] = []
        self.events: list[Event] = []
        self.decided = self.resized = 0
        self.peak_w = 0.0  # the highest expected power under a power cap
        self._state = self.engine.state
        self._beside = Beside(self._state) if site.contended else None
        self.contention = None if self._beside is None else self._beside.contention
        self._record, self._progress, self._observer = record, progress, observer
        self._together = passes == "per-timestamp"
        self._submissions_last = passes == "ends-first"
        self._heap: list[tuple[float, int, int, Event | PowerPhase, int]] = []
        self._number = 0
        # Events of a job in the heap are valid if they have its newest version.
        self._versions: dict[JobId, int] = {}
        self._points: dict[JobId, float] = {}  # next resize points
        # Only resize points happen that the policy waits for, or that a resize waits for if the
        # policy does not decide at them.
        self._at_points = ResizePoint in policy.triggers
        self._lazy = policy.twin is not None or not self._at_points
        arrivals = sorted(specs, key=attrgetter("submit_s"))
        self._submissions = submissions(arrivals)
        if self._beside is not None and (self._together or failures):
            raise ValueError("expected nodes that stay up and a pass for each event")
        self._next_submission: Submitted | None = None
        self._due_points: dict[JobId, float] = {}  # resize points that will happen
        self._every_s = policy.passes.every_s
        self._looks: set[float] = set()  # ticks beside the regular ones
        self._computed_s = 0.0  # the last time with a running job, or with one to come
        self.failed = self.narrowed = 0
        self.recomputed_node_s = self.recovery_node_s = 0.0
        self._failing, self._recovery = False, recovery
        # By job: time, share done and size wherever its rate has changed since its last start.
        self._lives: dict[JobId, list[tuple[float, float, int]]] = {}
        # By job: what it loses once it computes again; None before the start from which it does.
        self._losing: dict[JobId, WorkLost | None] = {}
        self.drawn: list[tuple[float, float, float]] = []
        self._priced = prices is not None
        if prices is not None:
            self.engine.apply(PricesSet(self._state.now_s, prices))
        for failure in failures:
            if policy.placement.counted:
                raise ValueError("expected a policy that places jobs, for nodes that fail")
            self._failing = True
            self._push(failure)

    def run(self) -> None:
        """Run until no event is left."""
        engine, ledger, state = self.engine, self.ledger, self._state
        capped = state.power_cap_w is not None
        looks = engine.policy.looks or engine.twin is not None
        beside = self._beside
        self._next_submission = next(self._submissions, None)
        if self._next_submission is not None and self._every_s is not None:
            self._push(Ticked(self._next_submission.at_s))
        while (event := self._pop()) is not None:
            if ledger.at_s is None or event.at_s > ledger.at_s:
                since_s = ledger.at_s
                ledger.advance(state, event.at_s)
                if self._priced and since_s is not None:
                    self._draw(since_s, event.at_s)
            if isinstance(event, PowerPhase):
                self._phase(event)
                continue
            if beside is not None and type(event) is ResizePoint:
                done, _ = beside.progress(state.running[event.job], event.at_s)
                event = ResizePoint(event.at_s, event.job, done)
            if self._record:
                self.events.append(event)
            if self._together:
                self._instant(event)
            else:
                decisions = engine.handle(event)
                if decisions or type(event) is not Submitted:  # else no event follows
                    self._follow(event, decisions)
            if state.held:
                self._free(state.now_s)
            if state.awaited:
                self._await(state.now_s)
            if state.reclocked:
                self._reschedule(state.now_s)
            if state.running or self._next_submission is not None:
                self._computed_s = state.now_s
            if (
                looks
                and not (type(event) is NodeBooted and event.more)
                and not self._stuck
                and (look_s := engine.look_s) < inf
                and look_s not in self._looks
            ):
                self._looks.add(look_s)
                self._push(Ticked(look_s))
            if capped:
                self.peak_w = max(self.peak_w, expected_w(state))
            if self._observer is not None:
                self._observer(self)
        ledger.advance(state, state.now_s)

    def _draw(self, since_s: float, until_s: float) -> None:
        """Enter the power between two events."""
        watts = self.ledger.power_w
        if self.drawn and self.drawn[-1][1:] == (since_s, watts):
            since_s = self.drawn.pop()[0]
        self.drawn.append((since_s, until_s, watts))

    def _pop(self) -> Event | PowerPhase | None:
        """Return the next event; submissions go before the others of their time, or after them."""
        heap, submission, last = self._heap, self._next_submission, self._submissions_last
        while True:
            if self._beside is not None and (over := self._first_end(self._beside)) is not None:
                return over
            if submission is not None and (
                not heap
                or submission.at_s < heap[0][0]
                or (submission.at_s == heap[0][0] and not last)
            ):
                self._next_submission = next(self._submissions, None)
                return submission
            if not heap:
                return None
            _, _, _, event, version = heapq.heappop(heap)
            if event.needs_jobs and submission is None and self._over:
                continue
            if not version or not self._is_stale(event, version):
                return event

    def _first_end(self, beside: Beside) -> Ended | None:
        """Return the next end where processes share bandwidth, if it is the next event."""
        submission, heap = self._next_submission, self._heap
        submits_s = inf if submission is None else submission.at_s
        while True:
            now, moved = beside.moved()
            for job in moved:
                self._new_version(job)
                self._next_point(job, now, self._points.get(job.spec.id, inf))
            others_s = heap[0][0] if heap else inf
            included = self._submissions_last or others_s < submits_s
            over = beside.contention.run(min(submits_s, others_s), included=included)
            if over is not None:
                return Ended(over[0], JobId(over[1]), "COMPLETED")
            if not beside.contention.moved:
                return None

    def _new_version(self, job: Job) -> int:
        """Invalidate the events of a job in the heap."""
        version = self._versions[job.spec.id] = self._versions.get(job.spec.id, 0) + 1
        return version

    def _is_stale(self, event: Event | PowerPhase, version: int) -> bool:
        """Return whether a job's rate has changed since its event was entered in the heap."""
        if type(event) is WorkLost:  # a resize does not matter to it, another failure does
            return self._losing.get(event.job) is not event
        return self._versions.get(event.job) != version  # type: ignore[union-attr]

    @property
    def _over(self) -> bool:
        state = self._state
        return not (state.running or state.pending or transition.next_s(state) < inf)

    @property
    def _goes_on(self) -> bool:
        """Whether events are left: else the waiting jobs wait for ever."""
        state = self._state
        if self._stuck:
            return False
        if state.running or state.booting or self._heap:
            return True
        return self._next_submission is not None

    @property
    def _stuck(self) -> bool:
        """Whether no job has run for a year, and none is to come: no window lets one start."""
        return self._state.now_s > self._computed_s + STUCK_S

    def _more(self, now: float) -> bool:
        """Return whether further events come at this time."""
        heap = self._heap
        while heap and heap[0][4] and self._is_stale(*heap[0][3:]):
            heapq.heappop(heap)
        submission = self._next_submission
        submits = submission is not None and submission.at_s == now
        return submits or bool(heap and heap[0][0] == now)

    def _instant(self, event: Event) -> None:
        """Apply all events of one time, then decide once."""
        events = [event]
        self._apply(event)
        while self._more(event.at_s):
            more = self._pop()
            assert more is not None
            if isinstance(more, PowerPhase):
                self._phase(more)
                continue
            self._apply(more)
            events.append(more)
            if self._record:
                self.events.append(more)
        decisions = self.engine.decide(events)
        for earlier in events[:-1]:
            self._follow(earlier, [])
        self._follow(events[-1], decisions)

    def _apply(self, event: Event) -> None:
        """Apply an event of an instant; a job that ends has no resize point in it."""
        self.engine.apply(event)
        if type(event) is Ended:
            self._versions.pop(event.job, None)
            self._losing.pop(event.job, None)

    def _handle(self, event: Event) -> None:
        """Let the engine decide on an event that follows from another one at once."""
        if self._record:
            self.events.append(event)
        self._follow(event, self.engine.handle(event))

    def _follow(self, event: Event, decisions: list[Decision]) -> None:
        """Enter the events that follow from an event and from the decisions on it."""
        kind, running = type(event), self._state.running
        if kind is Resized or kind is NodesLost:
            self._schedule_end(running[event.job], event.at_s)  # type: ignore[union-attr]
        elif kind is NodeDown:
            self._fail(event)  # type: ignore[arg-type]
        elif kind is WorkLost:
            self._losing.pop(event.job, None)  # type: ignore[union-attr]
            self.ledger.lose(event)  # type: ignore[arg-type]
        elif kind is Ticked:
            if event.at_s in self._looks:
                self._looks.discard(event.at_s)
            elif self._every_s is not None and self._goes_on:
                self._push(Ticked(event.at_s + self._every_s))
        elif kind is Ended:
            if self._versions:
                self._versions.pop(event.job, None)  # type: ignore[union-attr]
                self._lives.pop(event.job, None)  # type: ignore[union-attr]
                self._losing.pop(event.job, None)  # type: ignore[union-attr]
            if self._progress is not None:
                self._progress(len(self._state.ended))
        for decision in decisions:
            self.decided += 1
            if self._record:
                self.decisions.append((event.at_s, decision))
            if type(decision) is Start:
                started = Started(event.at_s, decision.job)
                if self._record:
                    self.events.append(started)
                self.engine.apply(started)
                self._schedule_end(running[decision.job], event.at_s)
                job = running[decision.job]
                if decision.job in self._losing and self._recovery is not None:
                    again_s = event.at_s + self._recovery.back_s
                    self._lose(WorkLost(again_s, decision.job, event.at_s, event.at_s, 0))
                if self._lazy and self._state.pending and job.spec.mode is Mode.MALLEABLE:
                    # It may give nodes to a waiting job, which no policy has considered yet.
                    self._state.awaited[decision.job] = job
            elif type(decision) is Resize:
                self.resized += 1
                if not self._at_points:
                    self._state.awaited[decision.job] = running[decision.job]
            elif type(decision) is PowerOn:
                state = self._state
                boots = [node for node in decision.nodes if node == state.together(node)[0]]
                # At the end of a window no job waits for one of the nodes: one pass is enough.
                one_pass = not self.engine.policy.node_power.powers_off_idle
                for node, after in zip_longest(boots, boots[1:]):
                    at_s = state.booting[node]
                    more = one_pass and after is not None and state.booting[after] == at_s
                    self._push(NodeBooted(at_s, node, more))
        if kind is ResizePoint:
            self._due_points.pop(event.job, None)  # type: ignore[union-attr]
            self._resize_or_go_on(running[event.job], event.at_s)  # type: ignore[union-attr]

    def _free(self, now: float) -> None:
        """Release held jobs whose time has come; enter a tick for the next one."""
        if due := transition.due(self._state, now):
            self._handle(Freed(now, due))
        next_s = transition.next_s(self._state)
        if next_s < inf and next_s not in self._looks:
            self._looks.add(next_s)
            self._push(Ticked(next_s))

    def _fail(self, event: NodeDown) -> None:
        """Let the jobs on a node that went down go on without it, or wait again."""
        now, lost, recovery = event.at_s, set(self._state.together(event.node)), self._recovery
        for job in list(self._state.running.values()):
            if lost.isdisjoint(job.held):
                continue
            done, since_s = self._undo(job, now)
            self._new_version(job)
            kept = self._kept(job, lost)
            waits = self._losing.pop(job.spec.id, None)
            since_s = since_s if waits is None else min(since_s, waits.since_s)
            back_s = 0.0
            if recovery is not None and done > 0.0:
                back_s, size = recovery.back_s, len(kept) or job.spec.preferred
                done = max(0.0, done - back_s / (job.time_s(size) or inf))
                self.recovery_node_s += back_s * size
            if kept:
                self.narrowed += 1
                self._handle(NodesLost(now, job.spec.id, kept, done))
                self._lose(WorkLost(now + back_s, job.spec.id, since_s, now, 0))
            else:
                self.failed += 1
                self._handle(WorkLost(now, job.spec.id, since_s, now, 0))
                if back_s:
                    self._losing[job.spec.id] = None
                self._handle(Requeued(now, job.spec.id, done=done))

    def _lose(self, event: WorkLost) -> None:
        """Let a job compute again at a time, unless another node of it fails before."""
        self._losing[event.job] = event
        self._push(event, -1)

    def _kept(self, job: Job, lost: set[Node]) -> tuple[Node, ...]:
        """Return the nodes with which a job goes on, () if it cannot."""
        left = tuple(node for node in job.nodes if node not in lost)
        if self._recovery is None or not self._recovery.narrower or not job.spec.mode.resizable:
            return ()
        if len(left) == len(job.nodes):  # those it would have got are gone
            return ()
        size = max((size for size in job.spec.sizes() if size <= len(left)), default=0)
        return left[:size]

    def _undo(self, job: Job, now: float) -> tuple[float, float]:
        """Return the share that the newest copy of a job has, and its time.

        The node seconds of the work since then are counted.
        """
        life = self._lives.pop(job.spec.id, [])
        begun_s = life[0][0] if life else now
        copied_s = begun_s
        if self._recovery is not None:
            every_s = self._recovery.every_s
            copied_s += every_s * floor((now - begun_s) / every_s)
        done = life[0][1] if life else 0.0
        ends = [*[at_s for at_s, _, _ in life[1:]], now]
        shares = [*[share for _, share, _ in life[1:]], 1.0 - job.remaining_share(now)]
        for (at_s, share, size), end_s, after in zip(life, ends, shares, strict=True):
            if end_s <= copied_s:
                done = after
                continue
            if at_s < copied_s:
                done = share + (after - share) * (copied_s - at_s) / (end_s - at_s)
            self.recomputed_node_s += size * (end_s - max(at_s, copied_s))
        return (0.0 if self._recovery is None else done), copied_s

    def _schedule_end(self, job: Job, now: float, *, again: bool = False) -> None:
        """Enter a job's end and its next resize point, at its present rate."""
        spec = job.spec
        if self._beside is not None:
            self._beside.start(job, now)
            self._new_version(job)
            self._next_point(job, now)
            return
        if not job.done and spec.run_s is not None and job.stretch == 1.0:
            left = spec.run_s if spec.speedup is None else spec.speedup.time(job.size)
        else:
            left_s = job.remaining_s(job.size, now)
            if left_s is None:
                raise ValueError(f"expected a run time of job {spec.id} to simulate, got none")
            left = left_s
        if self._failing:
            self._lives.setdefault(spec.id, []).append((now, job.done, job.size))
        version, has_points = 0, spec.resize_points_known
        if has_points or self._failing or self._state.clocked:
            version = self._new_version(job)
        self._number += 1
        ended = Ended(now + left, spec.id, "COMPLETED")
        heapq.heappush(self._heap, (now + left, 1, self._number, ended, version))
        if has_points:
            self._next_point(job, now, self._points.get(spec.id, inf) if again else inf)
        if spec.profile and not job.done and not again:
            self._phases(job, now, left)

    def _reschedule(self, now: float) -> None:
        """Enter ends and resize points anew, at the present frequencies of jobs."""
        reclocked = self._state.reclocked
        for job_id, job in reclocked.items():
            if not job.resize_begun and job_id in self._versions:  # else after the resize
                self._schedule_end(job, now, again=True)
        reclocked.clear()

    def _phase(self, phase: PowerPhase) -> None:
        """Set the share of its power that a job draws, without a decision."""
        job = self._state.running.get(phase.job)
        if job is not None:
            self.ledger.scale(job, phase.share)

    def _phases(self, job: Job, now: float, run_s: float) -> None:
        at_s = now
        for number, (span, share) in enumerate(job.spec.profile):
            if number == 0:
                self.ledger.scale(job, share)
            else:
                self._push(PowerPhase(at_s, job.spec.id, share))
            at_s += span * run_s

    def _next_point(self, job: Job, now: float, point_s: float = inf) -> None:
        """Enter the next resize point of a job, at ``point_s`` if that is finite."""
        spec = job.spec
        if not spec.mode.resizable:
            return
        if spec.resize_every_s is not None:
            self._points[spec.id] = point_s if point_s < inf else now + spec.resize_every_s
        if self._lazy:
            self._due_points.pop(spec.id, None)
            return
        at_s = self._point_after(job, now)
        if at_s < inf:
            self._push(ResizePoint(at_s, spec.id), self._versions[spec.id])

    def _await(self, now: float) -> None:
        """Enter the next resize points of the jobs that the policy waits for."""
        for job_id, job in self._state.awaited.items():
            if job_id in self._due_points or job.resize_begun or job.end_s is not None:
                continue
            at_s = self._point_after(job, now)
            if at_s < inf:
                self._due_points[job_id] = at_s
                self._push(ResizePoint(at_s, job_id), self._versions[job_id])
        self._state.awaited.clear()

    def _point_after(self, job: Job, now: float) -> float:
        """Return the time of the next resize point of a job."""
        spec, at_s = job.spec, inf
        if spec.resize_every_s is not None:
            at_s = self._points[spec.id]
            if at_s <= now:
                at_s += spec.resize_every_s * (floor((now - at_s) / spec.resize_every_s) + 1)
                self._points[spec.id] = at_s
        if spec.resize_parts is not None:
            done, rate = 1.0 - job.remaining_share(now), job.rate
            if self._beside is not None:
                done, rate = self._beside.progress(job, now)
            part = floor(done * spec.resize_parts + 1e-6) + 1
            if part < spec.resize_parts and rate:
                at_s = min(at_s, now + (part / spec.resize_parts - done) / rate)
        return at_s

    def _resize_or_go_on(self, job: Job, now: float) -> None:
        if job.requested_size is None:
            self._next_point(job, now)
            return
        self._new_version(job)
        if self._beside is not None:
            self._beside.contention.stop(job.spec.id, now)
        self._handle(ResizeBegun(now, job.spec.id))
        over = Resized(now + job.spec.resize_price_s, job.spec.id)
        self._push(over, self._versions[job.spec.id])  # dropped if a node of it fails before

    def _push(self, event: Event | PowerPhase, version: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._heap, (event.at_s, event.rank, self._number, event, version))


def submissions(specs: Sequence[JobSpec]) -> Iterator[Submitted]:
    """Yield submissions: the jobs of one array at one time together, other jobs alone."""

    def alone(spec: JobSpec) -> tuple[str | None, float, str]:
        return spec.array, spec.submit_s, spec.id if spec.array is None else ""

    for _, group in groupby(specs, alone):
        together = tuple(group)
        yield Submitted(together[0].submit_s, together)
