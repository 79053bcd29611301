"""The engine on a virtual clock: a heap of events instead of processes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import count, groupby

from rms.engine import Engine
from rms.events import (
    Decision,
    Ended,
    Event,
    Resize,
    ResizeBegun,
    Resized,
    ResizePoint,
    Start,
    Started,
    Submitted,
)
from rms.ledger import Ledger, NodePower
from rms.model import Job, JobId, JobSpec
from rms.policies import Policy


class Simulation:
    """Runs jobs of known run time to their ends.

    Args:
        specs: the jobs; all must have a speedup.
        power: one model per node; their number is the cluster's size.
        policy: the policy.
    """

    def __init__(
        self, specs: Iterable[JobSpec], power: Sequence[NodePower], policy: Policy
    ) -> None:
        self.engine = Engine(len(power), policy)
        self.ledger = Ledger(power)
        self.decisions: list[tuple[float, Decision]] = []
        self.events: list[Event] = []
        self._heap: list[tuple[float, int, Event, int]] = []
        self._number = count()
        self._plans: dict[JobId, int] = {}
        ordered = sorted(specs, key=lambda spec: spec.submit_s)
        for _, group in groupby(enumerate(ordered), key=_handed_in_together):
            together = tuple(spec for _, spec in group)
            self._push(Submitted(together[0].submit_s, together))

    def run(self) -> None:
        """Run until nothing is left to happen."""
        while self._heap:
            _, _, event, plan = heapq.heappop(self._heap)
            if not self._outdated(event, plan):
                self._handle(event)

    def _handle(self, event: Event) -> None:
        self.ledger.advance(self.engine.state, event.at_s)
        self.events.append(event)
        decisions = self.engine.handle(event)
        self.decisions += [(event.at_s, decision) for decision in decisions]
        if isinstance(event, Started | Resized):
            self._foresee(self.engine.state.running[event.job], event.at_s)
        elif isinstance(event, Ended):
            self._plans[event.job] += 1
        for decision in decisions:
            if isinstance(decision, Start):
                self._push(Started(event.at_s, decision.job))
        if isinstance(event, ResizePoint):
            self._resize_or_go_on(self.engine.state.running[event.job], event.at_s)

    def _foresee(self, job: Job, now: float) -> None:
        """Enter a job's end and its next resize point, at its present rate."""
        self._plans[job.spec.id] = self._plans.get(job.spec.id, 0) + 1
        left = job.remaining_s(len(job.nodes), now)
        if left is None:
            raise ValueError(f"expected a run time of job {job.spec.id} to simulate, got none")
        self._push(Ended(now + left, job.spec.id, "COMPLETED"), planned=True)
        self._next_point(job, now)

    def _next_point(self, job: Job, now: float) -> None:
        if job.spec.mode.resizable and job.spec.resize_every_s is not None:
            self._push(ResizePoint(now + job.spec.resize_every_s, job.spec.id), planned=True)

    def _resize_or_go_on(self, job: Job, now: float) -> None:
        if job.requested is None:
            self._next_point(job, now)
            return
        self._plans[job.spec.id] += 1
        self._push(ResizeBegun(now, job.spec.id))
        self._push(Resized(now + job.spec.resize_price_s, job.spec.id))

    def _push(self, event: Event, *, planned: bool = False) -> None:
        plan = 0 if isinstance(event, Submitted) or not planned else self._plans[event.job]
        heapq.heappush(self._heap, (event.at_s, next(self._number), event, plan))

    def _outdated(self, event: Event, plan: int) -> bool:
        """Return whether the job's rate has changed since an event was foreseen."""
        return plan > 0 and not isinstance(event, Submitted) and self._plans[event.job] != plan


def _handed_in_together(numbered: tuple[int, JobSpec]) -> tuple[float, str | int]:
    """Return a key equal for the jobs of one array handed in at one time, else one's own."""
    number, spec = numbered
    return spec.submit_s, number if spec.array is None else spec.array


def resize_count(decisions: Iterable[tuple[float, Decision]]) -> int:
    """Return how many resizes were decided."""
    return sum(isinstance(decision, Resize) for _, decision in decisions)
