"""Admission of jobs by a strategy of tasks (:mod:`rms.kernels.scheduler`).

    admission = { part = "rms.kernels.admission:ByStrategy", name = "short-term" }

For the strategy a job is a collection with a kernel "n nodes" per size at which it may start, the
fastest preferred, and any n free nodes are a device for it. So the strategies of Süß et al.
(sections 4.1 and 4.2) choose the jobs that start, and their sizes; ``sizing`` resizes running jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Literal, cast

import msgspec

from rms.core.model.events import Later, Reason, Start, node_words
from rms.core.model.jobs import Job
from rms.core.policies.admission import Admission, View, start
from rms.core.policies.placement import Plan, Room
from rms.core.state import State
from rms.kernels.model import (
    KernelSpec,
    Resource,
    TaskDevice,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
    UnitsTaken,
)
from rms.kernels.scheduler import STRATEGIES, TaskScheduler

MOST_JOBS = 100  # number of waiting jobs, from the first, that the strategy considers
MISSING = -1  # a unit that is never free, of devices for which there are too few nodes


class ByStrategy(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let a strategy of tasks choose the jobs that start, and their sizes.

    The strategies are those that keep nothing from call to call, as policies have no memory.

    Attributes:
        name: the strategy.
    """

    name: Literal["short-term", "long-term"] = "short-term"

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts, left = list[Start](), list(islice(queue, MOST_JOBS))
        running = [job.size for job in state.running.values()]
        while left and room.free > 0:
            chosen = self._chosen(left, running, room.free)
            begun = set[int]()
            for number, size in chosen.items():
                if room.fits(left[number], size):
                    words = f"{self.name}: {size} nodes"
                    starts.append(start(left[number], size, room, words, Reason.FITS))
                    begun.add(number)
                    running.append(size)
            if not begun:
                break
            left = [job for number, job in enumerate(left) if number not in begun]
        return starts

    def explain(self, job: Job, view: View) -> Later:
        """Return the reason why a job waits."""
        text = f"Priority: {self.name} lets it wait, {node_words(view.room.free, verb=True)} free"
        return Later(job.spec.id, text, Reason.PRIORITY)

    def _chosen(self, jobs: Sequence[Job], running: Sequence[int], free: int) -> Mapping[int, int]:
        """Return the sizes of the jobs that start on this number of free nodes."""
        kernels = [_kernels(job) for job in jobs]
        sizes = {size for times in kernels for size in times}
        devices, of_size = list[TaskDevice](), dict[str, int]()
        for size in sorted(sizes, reverse=True):
            several = min(free // size, len(jobs))
            blocks = [tuple(range(n * size, (n + 1) * size)) for n in range(several)]
            for n, units in enumerate(blocks or [(MISSING,)]):
                of_size[f"{size}.{n}"] = size
                devices.append(TaskDevice(f"{size}.{n}", _kind(size), units))
        for n, size in enumerate(running):
            devices.append(TaskDevice(f"running.{n}", _kind(size), (free + n,)))
        scheduler = TaskScheduler(devices, STRATEGIES[self.name])
        scheduler.apply(UnitsTaken(0.0, (MISSING,)))
        for n, size in enumerate(running):
            spec = TaskSpec(0, (KernelSpec(_kind(size)),))
            scheduler.apply(TaskRegistered(0.0, TaskId(len(jobs) + n), spec, f"running.{n}"))
        for number, times in enumerate(kernels):
            specs = (KernelSpec(_kind(size), expected_s=time) for size, time in times.items())
            of_job = TaskSpec(0, tuple(specs), jobs[number].spec.priority)
            scheduler.apply(TaskRegistered(0.0, TaskId(number), of_job))
        decisions = scheduler.decide()
        return {run.task: of_size[run.device] for run in decisions if isinstance(run, TaskRun)}


def _kernels(job: Job) -> dict[int, float]:
    """Return the sizes at which a job may start, the preferred first, with its run times or 0.

    Of many sizes these are the preferred, the largest, and those that double from the least.
    """
    spec = job.spec
    sizes = [spec.preferred]
    if spec.mode.any_start:
        every = spec.sizes()
        doubled = {every[0] << n for n in range(every[-1].bit_length())}
        sizes += [n for n in reversed(every) if n in doubled or n == every[-1]]
    if spec.speedup is None:
        return dict.fromkeys(sizes, 0.0)
    return {size: job.time_s(size) or 0.0 for size in sizes}


@cache
def _kind(size: int) -> Resource:
    """Return the resource "n nodes", which tasks do not have; strategies treat all alike."""
    return cast("Resource", f"{size} nodes")
