"""The scheduler of tasks: event in, decisions out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from rms.core.tasks import rules
from rms.core.tasks.model import (
    Choice,
    Dequeue,
    Device,
    Drop,
    Enqueue,
    Finished,
    GoOn,
    GovernorSet,
    Interrupt,
    OwnerGone,
    Phase,
    Registered,
    Remember,
    Resize,
    Resized,
    Run,
    Start,
    Stop,
    TaskDecision,
    TaskEvent,
    TaskId,
    UnitsFreed,
    UnitsTaken,
    Wake,
    Yielded,
)
from rms.core.tasks.state import OTHERS, Task, TaskState
from rms.wire.tasks import Resource


class TaskError(RuntimeError):
    """An event that cannot have happened."""


class Strategy(Protocol):
    """Who runs where: called after every event, with the state, which it leaves as it is.

    What it chooses is taken once it has returned, in order.

    Attributes:
        name: for people.
        capacity: how many tasks the queue of a resource takes, of those that are limited.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def capacity(self) -> Mapping[Resource, int]: ...  # noqa: D102
    def __call__(self, state: TaskState) -> Iterable[Choice]: ...  # noqa: D102


class TaskScheduler:
    """Holds the state and asks the strategy after every event.

    A strategy that raises, or chooses what cannot be, is replaced by the one before it, and that by
    the first: what it chose up to there stands. Errors of the first are raised.

    Args:
        devices: what there is to run on.
        strategy: who runs where, and what decides where all others have gone wrong.
        say: told when a strategy was replaced, and why.

    Attributes:
        state: see there.
        wake_s: when the strategy wants to be asked again (by a ``Woken``), None for not.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        strategy: Strategy,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.state = TaskState({device.name: device for device in devices})
        self.wake_s: float | None = None
        self._first, self._before = strategy, strategy
        self._say = say
        self._use(strategy)

    @property
    def strategy(self) -> Strategy:
        """What decides."""
        return self._strategy

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """What decides, and what decides if that goes wrong."""
        return self._strategy, self._before, self._first

    def swap(self, strategy: Strategy) -> None:
        """Let another strategy decide from the next event on; the queues stay as they are.

        But tasks for which a queue has become too short wait again.
        """
        self._before = self._strategy
        self._use(strategy)

    def handle(self, event: TaskEvent) -> list[TaskDecision]:
        """Take in what happened; return what to do, which is taken to be done.

        Raises:
            TaskError: it cannot have happened.
            ChoiceError: a shipped strategy chose what cannot be.
        """
        return [*self.apply(event), *self.decide()]

    def apply(self, event: TaskEvent) -> list[TaskDecision]:
        """Take in what happened, and ask nobody yet; return what follows whoever decides."""
        state = self.state
        state.now_s = max(state.now_s, event.at_s)
        decisions: list[TaskDecision] = []
        if isinstance(event, Registered):
            self._register(event, decisions)
        elif isinstance(event, Yielded):
            task = self._running(event.task)
            state.give_back(task)
            state.wait(task)
        elif isinstance(event, Resized):
            task = self._running(event.task)
            if task.coming is None or task.coming.name != event.device:
                raise TaskError(f"expected a task told to go on on {event.device}, got {task.id}")
            state.resized(task)
        elif isinstance(event, Finished):
            if event.task not in state.tasks:
                raise TaskError(f"expected a task there is, got {event.task}")
            task = state.tasks[event.task]
            self._end(task, Phase.FAILED if event.failed else Phase.DONE, decisions)
        elif isinstance(event, OwnerGone):
            for task in [each for each in state.tasks.values() if each.spec.owner == event.owner]:
                if task.id in state.tasks:
                    self._end(task, Phase.GONE, decisions)
        elif isinstance(event, UnitsTaken):
            if any(unit in state.holder for unit in event.units):
                raise TaskError(f"expected units that nobody holds to be taken, got {event.units}")
            state.holder.update(dict.fromkeys(event.units, OTHERS))
        elif isinstance(event, UnitsFreed):
            if any(state.holder.get(unit) != OTHERS for unit in event.units):
                raise TaskError(f"expected units that others hold to be freed, got {event.units}")
            for unit in event.units:
                del state.holder[unit]
        elif isinstance(event, GovernorSet):
            state.governor = event.governor
        return decisions

    def decide(self) -> list[TaskDecision]:
        """Ask the strategy; return what to do, which is taken to be done."""
        decisions: list[TaskDecision] = []
        self._decide(decisions)
        return decisions

    # --- what events do ----------------------------------------------------------------------

    def _register(self, event: Registered, decisions: list[TaskDecision]) -> None:
        state, spec = self.state, event.spec
        if event.task in state.tasks:
            raise TaskError(f"expected a new task, got {event.task}")
        task = state.tasks[event.task] = Task(event.task, spec, registered_s=state.now_s)
        if event.device:
            device = state.devices.get(event.device)
            if device is None or not state.of_no_task(device):
                del state.tasks[event.task]
                raise TaskError(f"expected a device of no task for {task.id}, got {event.device}")
            state.count(task, 1)
            state.hold(task, device)
            return
        state.count(task, 1)
        reason = ""
        if any(before in state.failed for before in spec.after):
            reason = "a task that it comes after has failed"
        elif not any(resource in state.by_resource for resource in task.preference):
            kinds = ", ".join(state.by_resource)
            reason = f"expected a kernel for {kinds}, got {', '.join(task.preference) or 'none'}"
        if reason:
            task.phase = Phase.FAILED
            self._end(task, Phase.FAILED, decisions)
            decisions.append(Drop(task.id, reason))
            return
        open_ones = [before for before in set(spec.after) if before in state.tasks]
        if open_ones:
            task.phase, task.left = Phase.BLOCKED, len(open_ones)
            for before in open_ones:
                state.after.setdefault(before, []).append(task)
        else:
            state.wait(task)

    def _end(self, task: Task, phase: Phase, decisions: list[TaskDecision]) -> None:
        """Forget a task, and let those that come after it wait, or drop them if it failed."""
        state = self.state
        if task.device is not None:
            state.give_back(task)
        elif task.phase in (Phase.WAITING, Phase.QUEUED):
            state.leave(task)
        task.phase = phase
        del state.tasks[task.id]
        state.count(task, -1)
        if phase is not Phase.DONE:
            state.failed.add(task.id)
        for other in state.after.pop(task.id, ()):
            if other.phase is not Phase.BLOCKED:  # it is gone
                continue
            if phase is Phase.DONE:
                other.left -= 1
                if not other.left:
                    state.wait(other)
            else:
                self._end(other, Phase.FAILED, decisions)
                decisions.append(Drop(other.id, "a task that it comes after has failed"))

    def _running(self, task_id: TaskId) -> Task:
        task = self.state.running.get(task_id)
        if task is None:
            raise TaskError(f"expected a running task, got {task_id}")
        return task

    # --- what a strategy chooses -------------------------------------------------------------

    def _use(self, strategy: Strategy) -> None:
        state = self.state
        self._strategy, self.wake_s = strategy, None
        state.capacity = dict(strategy.capacity)
        for resource, most in state.capacity.items():
            queue = state.queues.get(resource, [])
            queue[most:], too_many = [], queue[most:]
            for task in too_many:
                task.queue = None
                state.wait(task)

    def _decide(self, decisions: list[TaskDecision]) -> None:
        """Ask the strategy, then let queued tasks start."""
        state = self.state
        self.wake_s = None
        try:
            for choice in list(self._strategy(state)):
                rules.check(state, choice)
                self._take(choice, decisions)
        except Exception as error:
            if self._strategy is self._first:
                raise
            before = self._first if self._strategy is self._before else self._before
            self._before = before
            self._say(f"strategy {self._strategy.name}: {error!r}; {before.name} decides again")
            self._use(before)
            self._decide(decisions)
            return
        self._work_off(decisions)

    def _take(self, choice: Choice, decisions: list[TaskDecision]) -> None:
        state = self.state
        if isinstance(choice, Start):
            task = state.tasks[choice.task]
            state.leave(task)
            self._run(task, state.devices[choice.device], decisions)
        elif isinstance(choice, Enqueue):
            task = state.tasks[choice.task]
            state.leave(task)
            task.phase, task.queue = Phase.QUEUED, choice.resource
            state.queues[choice.resource].append(task)
        elif isinstance(choice, Dequeue):
            task = state.tasks[choice.task]
            state.leave(task)
            state.wait(task)
        elif isinstance(choice, Interrupt):
            task = state.tasks[choice.task]
            if not task.asked:
                task.asked = True
                decisions.append(Stop(task.id))
        elif isinstance(choice, Resize):
            device = state.devices[choice.device]
            state.resize(state.tasks[choice.task], device)
            decisions.append(GoOn(choice.task, device.name))
        elif isinstance(choice, Remember):
            state.memory[choice.key] = float(choice.value)
        elif isinstance(choice, Wake):
            self.wake_s = choice.at_s if self.wake_s is None else min(self.wake_s, choice.at_s)

    def _run(self, task: Task, device: Device, decisions: list[TaskDecision]) -> None:
        self.state.hold(task, device)
        decisions.append(Run(task.id, device.name, device.resource))

    def _work_off(self, decisions: list[TaskDecision]) -> None:
        """Start the first tasks of the queues on free devices, those that waited longest first.

        A task whose device is made of units that younger tasks would take in turns has them kept
        for it, as long as tasks hold the others: those end. (Jobs may hold theirs for days.)
        """
        state = self.state
        room, over = state.room(), set[Resource]()
        while True:
            heads = [q[0] for kind, q in state.queues.items() if q and kind not in over]
            if not heads:
                return
            task = min(heads, key=lambda each: each.order)
            assert task.queue is not None
            device = room.free(task.queue)
            if device is not None:
                room.take(device)
                state.leave(task)
                self._run(task, device, decisions)
                continue
            over.add(task.queue)
            for kept in state.by_resource[task.queue]:
                if all(state.holder.get(unit) != OTHERS for unit in kept.units):
                    room.take(kept)
                    break
