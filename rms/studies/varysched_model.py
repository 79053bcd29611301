"""Tasks with kernels on the devices of one machine, on a virtual clock (Süß et al.)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rms.core.tasks import Affinity, Device, Governor, KernelSpec, Resource, TaskId, TaskSpec
from rms.core.tasks.model import Finished, GovernorSet, Registered, Run, TaskEvent, Woken
from rms.core.tasks.scheduler import Strategy, TaskScheduler

DEVICES = (
    Device("gpu", Resource.GPU, (0,)),
    Device("cores", Resource.CORES, (1,)),
    Device("core", Resource.CORE, (2,)),
)
AFFINITIES = (Affinity.HIGH, Affinity.MED, Affinity.LOW)


@dataclass(frozen=True)
class Outcome:
    """What came of one run: times in seconds, and how many tasks each device had.

    Attributes:
        spans: how long which devices were in use together, one after the other.
    """

    makespan_s: float
    median_s: float
    tasks: Mapping[str, int]
    spans: Sequence[tuple[float, tuple[str, ...]]]


def simulate(
    strategy: Strategy,
    governor: Governor,
    instances: int,
    times: Mapping[str, float],
    machine: Mapping[str, Any],
    *,
    known: bool = False,
) -> Outcome:
    """Run so many tasks, all registered at once, to their end.

    Args:
        times: seconds on each device, alone.
        machine: ``cores`` there are, and how many of them a kernel keeps busy (``host``).
        known: the scheduler knows the times.
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

    def feed(event: TaskEvent) -> None:
        for decision in scheduler.handle(event):
            if isinstance(decision, Run):
                device = decision.device
                left[decision.task], begun[decision.task] = times[device], now_s
                running[decision.task] = device
                count[device] = count.get(device, 0) + 1

    kernels = tuple(
        KernelSpec(device.resource, affinity, times[device.name] if known else 0.0)
        for device, affinity in zip(DEVICES, AFFINITIES, strict=True)
    )
    feed(GovernorSet(0.0, governor))
    for number in range(instances):
        feed(Registered(0.0, TaskId(number), TaskSpec(0, kernels)))
    while scheduler.state.tasks:
        asked = sum(machine["host"][device] for device in running.values())
        share = min(1.0, machine["cores"] / asked) if asked else 1.0
        rates = {task: 1.0 if device == "gpu" else share for task, device in running.items()}
        ends = {task: now_s + left[task] / rates[task] for task in running}
        first = min(ends, key=ends.__getitem__, default=None)
        wake_s = scheduler.wake_s
        then_s = ends[first] if first is not None else wake_s
        if then_s is None or (wake_s is not None and wake_s < then_s):
            assert wake_s is not None, "tasks wait, and nothing is to come"
            first, then_s = None, wake_s
        spans.append((then_s - now_s, tuple(running.values())))
        for task in running:
            left[task] -= rates[task] * (then_s - now_s)
        now_s = then_s
        if first is None:
            feed(Woken(now_s))
        else:
            del running[first]
            runs.append(now_s - begun[first])
            feed(Finished(now_s, TaskId(first)))
    return Outcome(now_s, median(runs), count, spans)
