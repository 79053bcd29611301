"""What no strategy may break: checked on every choice, before it is taken."""

from __future__ import annotations

from math import isfinite

from rms.core.tasks.model import (
    Choice,
    Dequeue,
    Enqueue,
    Interrupt,
    Phase,
    Remember,
    Resize,
    Start,
    TaskId,
    Wake,
)
from rms.core.tasks.state import Task, TaskState
from rms.wire.tasks import Resource


class ChoiceError(RuntimeError):
    """A strategy chose what cannot be."""


def check(state: TaskState, choice: Choice) -> None:
    """Refuse a choice that gives a device twice, or a task what it has no kernel for.

    Raises:
        ChoiceError: the choice cannot be.
    """
    if isinstance(choice, Start):
        task, device = _task(state, choice.task), state.devices.get(choice.device)
        if device is None:
            known = ", ".join(state.devices)
            raise ChoiceError(f"expected a device of {known}, got {choice.device!r}")
        if task.phase not in (Phase.WAITING, Phase.QUEUED):
            raise ChoiceError(f"expected a waiting task to start, got {task.id}, {task.phase}")
        if device.resource not in task.kernels:
            raise ChoiceError(f"expected a kernel for {device.resource} in task {task.id}")
        if not state.free(device):
            raise ChoiceError(f"expected a free device for task {task.id}, got {device.name}")
    elif isinstance(choice, Enqueue):
        _check_enqueue(state, choice)
    elif isinstance(choice, Dequeue):
        task = _task(state, choice.task)
        if task.phase is not Phase.QUEUED:
            raise ChoiceError(f"expected a queued task, got {task.id}, {task.phase}")
    elif isinstance(choice, Interrupt):
        task = _task(state, choice.task)
        if task.phase is not Phase.RUNNING or not task.spec.interruptible:
            raise ChoiceError(
                f"expected a running task with yield points to interrupt, got {task.id}"
            )
    elif isinstance(choice, Resize):
        _check_resize(state, choice)
    elif isinstance(choice, Wake):
        if not choice.at_s > state.now_s:
            raise ChoiceError(
                f"expected a time after {state.now_s} s to wake at, got {choice.at_s}"
            )
    elif isinstance(choice, Remember):
        if not isfinite(choice.value):
            raise ChoiceError(f"expected a finite number to remember, got {choice.value}")
    else:
        raise ChoiceError(f"expected a choice (Start, Enqueue, ...), got {choice!r}")


def _check_enqueue(state: TaskState, choice: Enqueue) -> None:
    task = _task(state, choice.task)
    if task.phase is not Phase.WAITING:
        raise ChoiceError(f"expected a waiting task to queue, got {task.id}, {task.phase}")
    queue = state.queues.get(choice.resource)
    if queue is None or choice.resource not in task.kernels:
        raise ChoiceError(f"expected a device and a kernel for {choice.resource}, task {task.id}")
    most = state.capacity.get(choice.resource)
    if most is not None and len(queue) >= most:
        raise ChoiceError(f"expected at most {most} tasks queued for {choice.resource}, got more")


def _check_resize(state: TaskState, choice: Resize) -> None:
    task, device = _task(state, choice.task), state.devices.get(choice.device)
    if task.device is None or not task.spec.malleable or task.kernel is not Resource.CORES:
        raise ChoiceError(f"expected a malleable task on cores to resize, got {task.id}")
    if task.coming is not None or task.asked:
        raise ChoiceError(f"expected a task that was told nothing yet to resize, got {task.id}")
    if device is None or device.resource not in (Resource.CORE, Resource.CORES):
        raise ChoiceError(f"expected a device of cores for task {task.id}, got {choice.device!r}")
    now, then = set(task.device.units), set(device.units)
    if now == then or not (now < then or then < now):
        raise ChoiceError(
            f"expected more cores than {task.device.name} or some of them, got {device.name}"
        )
    if any(unit in state.holder for unit in then - now):
        raise ChoiceError(f"expected free cores for task {task.id} to grow, got {device.name}")


def _task(state: TaskState, task_id: TaskId) -> Task:
    task = state.tasks.get(task_id)
    if task is None:
        raise ChoiceError(f"expected a task there is, got {task_id}")
    return task
