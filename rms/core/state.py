"""The state of the engine, and the indices that make a look at it cheap.

A policy reads it and changes nothing; only :mod:`rms.core.transition` calls what changes it. Beside
the jobs it keeps what would otherwise be recomputed after every event: how many nodes are free,
when running jobs are expected to end, who could be widened or narrowed, the queue by estimate.
Each index is a sorted list, kept by bisection, so an event costs the logarithm of the jobs there
are (and a short copy in memory), not their number nor that of the nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from rms.core.model import Job, JobId, Node, Site

End = tuple[float, int, Job]
"""When a job is expected to end, its number (no two are alike), the job."""


@dataclass(slots=True)
class State:
    """Everything a policy may look at.

    Attributes:
        site: the cluster.
        counted: nodes are counted, not placed: jobs have sizes and no nodes.
        exact: expected ends follow what is known of a job's run time, not its limit.
        free_count: nodes nobody holds. Below 0 only while an instant lasts in which starts go by
            expected ends (see :mod:`rms.core.rules`).
        coming: nodes that shrinks under way are about to free.
        vacant: of each node, whether nobody holds it and it is up; empty where counted.
        down: nodes that have failed or are drained.
        beyond: jobs that wait for a wider cluster than the one that there is now.
        ends: running jobs by expected end.
        by_estimate: waiting jobs by expected run time, once somebody has asked.
        wide: running jobs that may be narrowed now, by expected end.
        narrow: running jobs that may be widened now, by the time until which the next size saves
            more than the resize costs: what no longer pays is at the front and need not be seen.
        changed: jobs whose nodes or power changed since the books were last written.
        stirred: something other than submissions has happened since the policy last looked; else
            who waited then waits now for the same reasons, and only ``fresh`` jobs are news.
        fresh: jobs submitted since the policy last looked.
        asking: jobs that have come to a resize point since then.
        limited: waiting jobs of arrays that may run only so many at once.
        at_once: how many jobs should be resized at once at most, 0 for any number: a wish to those
            who have resizes as a choice; nothing is refused for it.
    """

    site: Site
    counted: bool = False
    exact: bool = field(default=False, compare=False)
    now_s: float = 0.0
    pending: dict[JobId, Job] = field(default_factory=dict)
    running: dict[JobId, Job] = field(default_factory=dict)
    ended: dict[JobId, Job] = field(default_factory=dict)
    free_count: int = 0
    coming: int = 0
    vacant: bytearray = field(default_factory=bytearray)
    down: set[Node] = field(default_factory=set)
    beyond: dict[JobId, Job] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    wide: list[End] = field(default_factory=list)
    narrow: list[End] = field(default_factory=list)
    changed: dict[JobId, Job] = field(default_factory=dict, compare=False)
    stirred: bool = field(default=True, compare=False)
    fresh: list[Job] = field(default_factory=list, compare=False)
    asking: list[Job] = field(default_factory=list, compare=False)
    limited: int = 0
    submitted: int = 0
    at_once: int = field(default=0, compare=False)
    _by_estimate: list[End] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.free_count = self.site.nodes
        if not self.counted:
            self.vacant = bytearray(b"\x01" * self.site.nodes)

    @property
    def nodes(self) -> int:
        """How many nodes the cluster has."""
        return self.site.nodes

    @property
    def resizes_left(self) -> int:
        """How many more jobs should be resized now."""
        if not self.at_once:
            return len(self.running)
        return max(0, self.at_once - sum(j.wanted is not None for j in self.running.values()))

    @property
    def free(self) -> list[Node]:
        """The free nodes, rising."""
        return list(self.free_nodes())

    def free_nodes(self) -> Iterator[Node]:
        """Yield the free nodes, rising: the first cost no more than the nodes before them."""
        find, at = self.vacant.find, -1
        while (at := find(1, at + 1)) >= 0:
            yield Node(at)

    def job(self, job_id: JobId) -> Job | None:
        """Return a job, whatever its state."""
        waiting = self.pending.get(job_id) or self.beyond.get(job_id)
        return self.running.get(job_id) or waiting or self.ended.get(job_id)

    @property
    def by_estimate(self) -> list[End]:
        """Waiting jobs by expected run time; of equal ones the first submitted first."""
        if self._by_estimate is None:
            self._by_estimate = sorted(
                ((self.estimate(job), job.number, job) for job in self.pending.values()),
                key=lambda entry: entry[:2],
            )
        return self._by_estimate

    def estimate(self, job: Job) -> float:
        """Return the expected run time of a waiting job at its preferred size."""
        return job.spec.expected_s(job.spec.preferred, exact=self.exact)

    # --- what the transition does ------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Put a job at the end of the queue, or back in its place if it waited before."""
        if job.number == 0:
            self.submitted += 1
            job.number = self.submitted
            spec = job.spec
            job.least = spec.smallest_start if spec.mode.any_start else spec.preferred
            self.pending[spec.id] = job
            self.fresh.append(job)
        else:
            self.pending[job.spec.id] = job
            self.pending = dict(sorted(self.pending.items(), key=lambda item: item[1].number))
        if job.spec.array_limit is not None:
            self.limited += 1
        if self._by_estimate is not None:
            insort(self._by_estimate, (self.estimate(job), job.number, job))

    def dequeue(self, job_id: JobId) -> Job:
        """Take a job out of the queue."""
        job = self.pending.pop(job_id)
        if job.spec.array_limit is not None:
            self.limited -= 1
        if self._by_estimate is not None:
            _remove(self._by_estimate, self.estimate(job), job)
        return job

    def take(self, nodes: tuple[Node, ...]) -> None:
        """Mark nodes as held."""
        vacant = self.vacant
        for node in nodes:
            vacant[node] = 0

    def give_back(self, nodes: tuple[Node, ...]) -> None:
        """Mark nodes as free, but those that are down."""
        vacant = self.vacant
        for node in nodes:
            vacant[node] = 1
        if self.down:
            for node in self.down.intersection(nodes):
                vacant[node] = 0
                self.free_count -= 1

    def reopen(self, site: Site, down: Iterable[Node]) -> None:
        """Take another cluster, all of it free; nothing may run on the one before any more."""
        self.site, self.down, self.coming = site, set(down), 0
        self.vacant = bytearray(b"\x01" * site.nodes)
        for node in self.down:
            self.vacant[node] = 0
        self.free_count = site.nodes - len(self.down)
        waiting = [*self.pending.values(), *self.beyond.values()]
        self.beyond.clear()
        for job in waiting:
            if job.least <= site.nodes and job.spec.id not in self.pending:
                self.enqueue(job)
            elif job.least > site.nodes:
                self.beyond[job.spec.id] = job
                if job.spec.id in self.pending:
                    self.dequeue(job.spec.id)

    def foresee(self, job: Job) -> None:
        """Enter when a job that was given nodes is expected to end."""
        spec = job.spec
        if spec.limit_s is not None and not self.exact:
            if spec.speedup is None or not job.resizes:
                since = self.now_s if job.start_s is None else job.start_s
                end = since + spec.expected_s(job.size)
            else:
                end = self.now_s + job.left(self.now_s) * spec.expected_s(job.size)
        else:
            left = job.remaining_s(job.size, self.now_s)
            end = inf if left is None else self.now_s + left
        job.foreseen_s = end
        insort(self.ends, (end, job.number, job))
        if job.resizable_now:
            sizes = spec.sizes()
            if job.size > sizes[0]:
                insort(self.wide, (end, job.number, job))
            if job.size < sizes[-1]:
                job.pays_until_s = self._pays_until(job)
                insort(self.narrow, (job.pays_until_s, job.number, job))

    def _pays_until(self, job: Job) -> float:
        """Return until when widening a job by a size saves more than it costs.

        With t(n) the run time on n nodes and m the next size, it saves 1 - t(m) / t(n) of what is
        left, which is what the time to the end must exceed the price by.
        """
        speedup, wider = job.spec.speedup, job.wider(job.size)
        if wider is None:
            return -inf
        if speedup is None:
            return inf
        saves = 1.0 - speedup.time(wider) / speedup.time(job.size)
        if saves <= 0.0:
            return -inf
        left_s = job.left(self.now_s) * speedup.time(job.size)
        return self.now_s + left_s - job.spec.resize_price_s / saves

    def forget(self, job: Job) -> None:
        """Take a job out of the indices of running jobs."""
        _remove(self.ends, job.foreseen_s, job)
        if self.wide:
            _remove(self.wide, job.foreseen_s, job)
        if self.narrow:
            _remove(self.narrow, job.pays_until_s, job)

    def reckon(self, *, exact: bool) -> None:
        """Let expected ends follow what is known of run times, or limits."""
        self.stirred = True
        if exact == self.exact:
            return
        self.exact, self._by_estimate = exact, None
        self.ends.clear()
        self.wide.clear()
        self.narrow.clear()
        for job in self.running.values():
            self.foresee(job)


def _remove(index: list[End], key: float, job: Job) -> None:
    """Take a job out of an index, if it is in it."""
    at = bisect_left(index, (key, job.number))
    if at < len(index) and index[at][2] is job:
        del index[at]
