"""Tasks with kernels on the devices of one machine, on a virtual clock (Süß et al.)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rms.kernels.model import (
    Device,
    Finished,
    Governor,
    GovernorSet,
    Registered,
    Run,
    TaskEvent,
    TaskId,
    TaskSpec,
    Woken,
)
from rms.kernels.scheduler import Strategy, TaskScheduler
from rms.kernels.wire import Affinity, KernelSpec, Resource

DEVICES = (
    Device("gpu", Resource.GPU, (0,)),
    Device("cores", Resource.CORES, (1,)),
    Device("core", Resource.CORE, (2,)),
)
AFFINITIES = (Affinity.HIGH, Affinity.MED, Affinity.LOW)
NAMES = tuple(device.name for device in DEVICES)


@dataclass(frozen=True)
class Outcome:
    """Result of one simulation; times in s.

    Attributes:
        makespan_s: from the registration of all tasks to the end of the last one.
        median_s: median run time of a kernel.
        tasks: number of tasks that each device ran.
        last: device of the task that ended last.
        spans: how long which devices were in use together, one after the other.
    """

    makespan_s: float
    median_s: float
    tasks: Mapping[str, int]
    last: str
    spans: Sequence[tuple[float, tuple[str, ...]]]

    @property
    def together(self) -> int:
        """Largest number of devices in use at once."""
        return max(len(devices) for _, devices in self.spans)


def simulate(
    strategy: Strategy,
    governor: Governor,
    allowed: Sequence[Collection[str]],
    times: Mapping[str, float],
    machine: Mapping[str, Any],
    *,
    known: bool = False,
) -> Outcome:
    """Run tasks, all registered at time 0, to their end.

    Kernels on the CPU share its cores: where they keep more of them busy than there are, they run
    slower, in equal proportion. A kernel on the GPU is not slowed down.

    Args:
        allowed: of each task, the devices that it has kernels for (of :data:`NAMES`).
        times: run time on each device, alone, in s.
        machine: ``cores``, their number, and ``host``, how many of them a kernel of each device
            keeps busy.
        known: the scheduler knows the run times.
    """
    scheduler, now_s = TaskScheduler(DEVICES, strategy), 0.0
    left, begun, runs, count = (
        dict[int, float](),
        dict[int, float](),
        list[float](),
        dict[str, int](),
    )
    running: dict[int, str] = {}
    spans: list[tuple[float, tuple[str, ...]]] = []
    last = ""

    def feed(event: TaskEvent) -> None:
        for decision in scheduler.handle(event):
            if isinstance(decision, Run):
                device = decision.device
                left[decision.task], begun[decision.task] = times[device], now_s
                running[decision.task] = device
                count[device] = count.get(device, 0) + 1

    kernels = {
        device.name: KernelSpec(device.resource, affinity, times[device.name] if known else 0.0)
        for device, affinity in zip(DEVICES, AFFINITIES, strict=True)
    }
    specs = {
        names: TaskSpec(0, tuple(kernels[name] for name in NAMES if name in names))
        for names in map(frozenset, allowed)
    }
    for number, names in enumerate(allowed):
        scheduler.apply(Registered(0.0, TaskId(number), specs[frozenset(names)]))
    feed(GovernorSet(0.0, governor))
    while scheduler.state.tasks:
        busy = sum(machine["host"][device] for device in running.values())
        share = min(1.0, machine["cores"] / busy) if busy else 1.0
        rates = {task: 1.0 if device == "gpu" else share for task, device in running.items()}
        ends = {task: now_s + left[task] / rates[task] for task in running}
        first = min(ends, key=ends.__getitem__, default=None)
        wake_s = scheduler.wake_s
        then_s = ends[first] if first is not None else wake_s
        if then_s is None or (wake_s is not None and wake_s < then_s):
            assert wake_s is not None, "tasks wait, and no event is to come"
            first, then_s = None, wake_s
        spans.append((then_s - now_s, tuple(running.values())))
        for task in running:
            left[task] -= rates[task] * (then_s - now_s)
        now_s = then_s
        if first is None:
            feed(Woken(now_s))
        else:
            last = running.pop(first)
            runs.append(now_s - begun[first])
            feed(Finished(now_s, TaskId(first)))
    return Outcome(now_s, median(runs), count, last, spans)
