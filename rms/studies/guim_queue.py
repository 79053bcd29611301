"""EASY backfilling over queues of hundreds of thousands of jobs on nodes that share bandwidth.

Most of the logs of Guim et al. wait at once on their clusters. Jobs that ask for the same number of
processors and the same bandwidth would start in the same place, so a pass looks at each such class
once, and in it only at jobs whose requested times are short enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from sys import float_info
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rms.core.model.events import Reason, Start
from rms.core.model.jobs import Job
from rms.core.policies.admission import Admission, reservation, start
from rms.core.policies.placement import Plan, Room
from rms.core.policies.shared import Alike, SharedRoom
from rms.core.state import State


class JobClass:
    """Waiting jobs that ask for the same, in order of submission, and a tree of their spans.

    Attributes:
        size, gb_s: what each asks for: processors, and bandwidth, where that matters.
        numbers, jobs: theirs, also of those that have started.
        tree: the least span below each node of a binary tree, the root at 1, a leaf for each job;
            inf for who has started.
        at: where it is among all classes.
        head: the number of the first that waits; inf if none does.
    """

    def __init__(self, size: int, gb_s: float) -> None:
        self.size, self.gb_s = size, gb_s
        self.numbers: list[int] = []
        self.jobs: list[Job] = []
        self.tree = [inf] * 16
        self.at = 0
        self.head = inf

    def add(self, job: Job, span_s: float) -> None:
        """Enter a job behind all others."""
        if 2 * len(self.jobs) == len(self.tree):
            half = len(self.jobs)
            leaves = self.tree[half:] + [inf] * half
            self.tree = [inf] * (2 * half) + leaves
            for at in range(2 * half - 1, 0, -1):
                self.tree[at] = min(self.tree[2 * at], self.tree[2 * at + 1])
        self._set(len(self.jobs), span_s)
        self.head = min(self.head, job.number)
        self.numbers.append(job.number)
        self.jobs.append(job)

    def remove(self, job: Job) -> None:
        """Forget a job."""
        self._set(bisect_left(self.numbers, job.number), inf)
        if job.number == self.head:
            index = self.first(job.number, 1.0, 0.0, float_info.max)
            self.head = inf if index is None else self.numbers[index]

    def _set(self, index: int, span_s: float) -> None:
        tree, at = self.tree, len(self.tree) // 2 + index
        tree[at] = span_s
        while at > 1:
            at >>= 1
            least = min(tree[2 * at], tree[2 * at + 1])
            if tree[at] == least:
                break
            tree[at] = least

    def first(self, number: int, slowdown: float, begin_s: float, end_s: float) -> int | None:
        """Return the index of the first job from a number on that would end by a time."""
        tree, leaves = self.tree, len(self.tree) // 2
        if begin_s + tree[1] * slowdown > end_s:
            return None  # the most frequent case
        index = bisect_left(self.numbers, number)
        at = leaves + index
        if index == leaves:
            return None
        while begin_s + tree[at] * slowdown > end_s:
            while at & 1:  # a right child: what is right of it is right of its parent
                at >>= 1
            if not at:
                return None
            at += 1
        while at < leaves:
            at <<= 1
            if begin_s + tree[at] * slowdown > end_s:
                at += 1
        return at - leaves


class _Reserved(NamedTuple):
    """What a pass must leave to the first waiting job.

    Attributes:
        now_s: the time of the pass.
        shadow_s: when the first job is to start.
        extra: how many processors will be free beside it then.
    """

    now_s: float
    shadow_s: float
    extra: int


class LongQueueEasy(Admission):
    """EASY as :class:`rms.core.policies.admission.Easy` decides it, in the order of submission.

    It keeps the queue from pass to pass, so each is made for one simulation, of fixed jobs.

    Args:
        alike: what jobs have in common that would start in the same place (see
            :mod:`rms.core.policies.shared`).
    """

    estimates: ClassVar[Literal["requested"]] = "requested"

    def __init__(self, alike: Callable[[Job, int], Alike]) -> None:
        self._alike = alike
        self._jobs: list[Job] = []
        self._gone = bytearray()
        self._first = 0
        self._classes: dict[Alike, JobClass] = {}
        self._by_size: list[JobClass] = []
        self._sizes = self._each_gb_s = self._shortest_s = self._heads = np.zeros(0)

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        assert isinstance(room, SharedRoom)
        for job in state.new_jobs:
            self._add(job, state.nodes)
        starts: list[Start] = []
        head = self._head()
        news = [] if state.needs_pass or head is None else state.new_jobs
        if news and head is not None and head.number < news[0].number:
            if min([job.least for job in news]) > room.free:
                return starts
        else:
            news = []
            while head is not None and room.fits(head, head.spec.preferred):
                self._start(head, room, starts, "fits", Reason.FITS)
                head = self._head()
        if head is None or room.free <= 0:
            return starts
        shadow_s, extra = reservation(state, room, starts, head.spec.preferred)
        number = news[0].number if news else head.number + 1
        reserved = _Reserved(state.now_s, min(shadow_s, float_info.max), extra)
        self._backfill(room, starts, reserved, number)
        return starts

    def _add(self, job: Job, processors: int) -> None:
        """Enter a new job; one too wide for the cluster is refused and waits for nothing."""
        size = job.spec.preferred
        self._jobs.append(job)
        self._gone.append(size > processors)
        if size > processors:
            return
        key = self._alike(job, size)
        if key not in self._classes:
            self._classes[key] = JobClass(size, job.spec.planned_gb_s)
            insort(self._by_size, self._classes[key], key=attrgetter("size"))
            self._sizes = np.array([each.size for each in self._by_size], float)
            self._each_gb_s = np.array([each.gb_s for each in self._by_size])
            self._shortest_s = np.array([each.tree[1] for each in self._by_size])
            self._heads = np.array([each.head for each in self._by_size])
            for at, each in enumerate(self._by_size):
                each.at = at
        each = self._classes[key]
        each.add(job, job.spec.expected_s(size))
        self._shortest_s[each.at], self._heads[each.at] = each.tree[1], each.head

    def _head(self) -> Job | None:
        """Return the first job that waits."""
        self._first = self._gone.find(0, self._first)
        if self._first < 0:
            self._first = len(self._gone)
            return None
        return self._jobs[self._first]

    def _start(
        self, job: Job, room: SharedRoom, starts: list[Start], why: str, code: Reason
    ) -> None:
        size = job.spec.preferred
        starts.append(start(job, size, room, why, code))
        self._gone[job.number - 1] = 1
        each = self._classes[self._alike(job, size)]
        each.remove(job)
        self._shortest_s[each.at], self._heads[each.at] = each.tree[1], each.head

    def _backfill(
        self, room: SharedRoom, starts: list[Start], reserved: _Reserved, number: int
    ) -> None:
        """Start jobs from a number on that do not delay the first one, in order."""
        while room.free > 0 and (job := self._next(room, reserved, number)) is not None:
            size = job.spec.preferred
            span_s = job.spec.expected_s(size) * room.offer(job, size).slowdown
            if reserved.now_s + span_s > reserved.shadow_s:
                reserved = reserved._replace(extra=reserved.extra - size)
            self._start(job, room, starts, "backfills", Reason.BACKFILLS)
            number = job.number + 1

    def _next(self, room: SharedRoom, reserved: _Reserved, number: int) -> Job | None:
        """Return the first job from a number on that may start now.

        In the heap stands the next job of each class that may, by the fastest processors that are
        free; classes enter it once those before them have been looked at. One that may not, where
        it would really be placed, gives way to the next of its class that may.
        """
        heap = _Heap(reserved, room.tiers)
        classes = iter(self._candidates(room, reserved, heap, number))
        coming = next(classes, None)
        while True:
            while coming is not None and coming.head <= heap.number:
                heap.push(coming, number)
                coming = next(classes, None)
            top = heap.pop()
            if top is None:
                return None
            each, index = top
            job, size = each.jobs[index], each.size
            if not room.fits(job, size):
                continue
            if size <= reserved.extra:
                return job
            slowdown = room.offer(job, size).slowdown
            span_s = each.tree[len(each.tree) // 2 + index]
            if reserved.now_s + span_s * slowdown <= reserved.shadow_s:
                return job
            heap.push(each, job.number + 1, slowdown)

    def _candidates(
        self, room: SharedRoom, reserved: _Reserved, heap: _Heap, number: int
    ) -> list[JobClass]:
        """Return the classes that have a job short enough and find room, by their first jobs."""
        if number > len(self._jobs):
            return []
        if number == len(self._jobs):  # the one that has just been submitted: the most frequent
            job = self._jobs[-1]
            size = job.spec.preferred
            if size > room.free or self._gone[-1]:
                return []
            each = self._classes[self._alike(job, size)]
            return [each] if size <= reserved.extra or _may_hold(each, room, reserved) else []
        wide = int(self._sizes.searchsorted(room.free, "right"))
        found = (self._shortest_s[:wide] < heap.longest_s(self._sizes[:wide])).nonzero()[0]
        few = int(self._sizes[found].searchsorted(reserved.extra, "right"))
        if room.how.least_bandwidth and few < len(found):
            rest, gap_s = found[few:], reserved.shadow_s - reserved.now_s
            with np.errstate(over="ignore"):  # nothing may be known of when the first can start
                most = gap_s / np.maximum(self._shortest_s[rest], 1e-9) * (1.0 + 1e-9)
                held = _room_for(room, self._each_gb_s[rest], most)
            found = np.concatenate((found[:few], rest[held >= self._sizes[rest]]))
        in_order = found[self._heads[found].argsort()]
        return [self._by_size[at] for at in in_order.tolist()]


def _may_hold(each: JobClass, room: SharedRoom, reserved: _Reserved) -> bool:
    """Return whether a job of a class may find room where it ends in time."""
    most = (reserved.shadow_s - reserved.now_s) / max(each.tree[1], 1e-9)
    return room.may_hold(each.size, each.gb_s, most * (1.0 + 1e-9))


def _room_for(
    room: SharedRoom, each_gb_s: NDArray[np.float64], slowdowns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how many processes may find room, as :meth:`SharedRoom.may_hold` counts them."""
    _, number, factor, least_gb_s, gb_s = np.array(room.open_pools(), float).T[:, :, None]
    over = slowdowns / factor
    left_gb_s = np.minimum(over, room.how.threshold) * least_gb_s
    left_gb_s -= gb_s
    left_gb_s *= factor
    left_gb_s /= np.maximum(each_gb_s, 1e-300)
    fitting = np.minimum(np.floor(left_gb_s * (1.0 + 1e-9) + 1e-9), number)
    fitting[(fitting < 0.0) | (over < 1.0)] = 0.0
    found: NDArray[np.float64] = fitting.sum(axis=0)
    return found


class _Heap:
    """The next job of each class that may start, the first submitted first.

    Args:
        tiers: the free processors by speed.

    Attributes:
        extra: how many more processors may be taken for any time.
    """

    def __init__(self, reserved: _Reserved, tiers: list[tuple[int, float]]) -> None:
        self._now_s, self._shadow_s, self.extra = reserved
        self._tiers = tiers
        self._heap: list[tuple[int, int, JobClass]] = []

    def longest_s(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a bound of the requested times of jobs of these (rising) sizes that may start."""
        gap_s = (self._shadow_s - self._now_s) * (1.0 + 1e-9) + 1e-9
        found = np.full(len(sizes), gap_s / self._tiers[-1][1])
        for number, factor in reversed(self._tiers):
            found[: np.searchsorted(sizes, number, "right")] = gap_s / factor
        found[: np.searchsorted(sizes, self.extra, "right")] = inf
        return found

    def push(self, each: JobClass, number: int, slowdown: float | None = None) -> None:
        """Enter the first job of a class from a number on that may start.

        Args:
            slowdown: how slow it would be, None for as fast as at best.
        """
        if each.size <= self.extra:
            index = each.first(number, 1.0, 0.0, float_info.max)
        else:
            slowdown = slowdown or self._fastest(each.size)
            index = each.first(number, slowdown, self._now_s, self._shadow_s)
        if index is not None:
            heappush(self._heap, (each.numbers[index], index, each))

    @property
    def number(self) -> float:
        """The number of the first; inf if there is none."""
        return self._heap[0][0] if self._heap else inf

    def pop(self) -> tuple[JobClass, int] | None:
        """Return the first and its index in its class."""
        if not self._heap:
            return None
        _, index, each = heappop(self._heap)
        return each, index

    def _fastest(self, size: int) -> float:
        """Return the factor of the slowest of that many of the fastest processors."""
        for number, factor in self._tiers:
            if size <= number:
                return factor
        return self._tiers[-1][1]
