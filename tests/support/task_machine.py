"""A scheduler of tasks that is driven at random, and what must hold after every event."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from rms.kernels.model import (
    OTHERS,
    Affinity,
    Choice,
    Governor,
    GovernorSet,
    KernelSpec,
    OwnerGone,
    Resource,
    TaskDecision,
    TaskDevice,
    TaskEvent,
    TaskFinished,
    TaskGoOn,
    TaskId,
    TaskPhase,
    TaskRegistered,
    TaskResized,
    TaskRun,
    TaskSpec,
    TaskState,
    TaskStop,
    TaskYielded,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.scheduler import ShortTerm, Strategy, TaskScheduler

CORE, CORES, GPU = Resource.CORE, Resource.CORES, Resource.GPU
DEVICES = (
    TaskDevice("gpu", GPU, (2,)),
    TaskDevice("cores", CORES, (0, 1)),
    TaskDevice("core0", CORE, (0,)),
    TaskDevice("core1", CORE, (1,)),
)
APART = (
    TaskDevice("gpu", GPU, (0,)),
    TaskDevice("cores", CORES, (1,)),
    TaskDevice("core", CORE, (2,)),
)


def kernels(*resources: Resource) -> tuple[KernelSpec, ...]:
    """Return kernels for these resources, the first the best."""
    levels = (Affinity.HIGH, Affinity.MED, Affinity.LOW)
    return tuple(KernelSpec(kind, level) for kind, level in zip(resources, levels, strict=False))


ALL = kernels(GPU, CORES, CORE)


class Machine:
    """A scheduler that is driven at random, and what must hold after every event."""

    def __init__(self, strategy: Strategy, devices: tuple[TaskDevice, ...] = DEVICES) -> None:
        self.said: list[str] = []
        self.scheduler = TaskScheduler(devices, strategy, self.said.append)
        self.state, self.now_s, self.registered, self.over = self.scheduler.state, 0.0, 0, 0
        self.asked: set[int] = set()
        self.told: dict[TaskId, str] = {}

    def feed(self, event: TaskEvent) -> list[TaskDecision]:
        before = set(self.state.tasks)
        decisions = self.scheduler.handle(event)
        came = {event.task} if isinstance(event, TaskRegistered) else set()
        self.registered += len(came)
        self.over += len((before | came) - set(self.state.tasks))
        for decision in decisions:
            if isinstance(decision, TaskStop):
                self.asked.add(decision.task)
            elif isinstance(decision, TaskGoOn):
                self.told[decision.task] = decision.device
            elif isinstance(decision, TaskRun):
                assert self.state.running[decision.task].device.name == decision.device  # type: ignore[union-attr]
            else:
                assert decision.task not in self.state.tasks
        running = self.state.running
        self.asked &= set(running)
        self.told = {
            task: device
            for task, device in self.told.items()
            if task in running and running[task].coming is not None
        }
        self.check()
        return decisions

    def add(self, spec: TaskSpec) -> list[TaskDecision]:
        return self.feed(TaskRegistered(self.now_s, TaskId(self.registered), spec))

    def check(self) -> None:
        state = self.state
        held = [
            (unit, task.id)
            for task in state.running.values()
            for unit in {u for each in (task.device, task.coming) if each for u in each.units}
        ]
        others = [unit for unit, task in state.holder.items() if task == OTHERS]
        assert len(held) + len(others) == len(state.holder)
        assert all(state.holder[unit] == task for unit, task in held)
        queued = [task.id for queue in state.queues.values() for task in queue]
        waiting = [task.id for task in state.waiting]
        blocked = [t.id for t in state.tasks.values() if t.phase is TaskPhase.BLOCKED]
        assert sorted([*state.running, *queued, *waiting, *blocked]) == sorted(state.tasks)
        assert all(len(state.queues.get(kind, ())) <= most for kind, most in state.capacity.items())
        assert [task.order for task in state.waiting] == sorted(t.order for t in state.waiting)
        assert self.registered == self.over + len(state.tasks)

    def step(self, random: Random) -> None:
        """Let something happen."""
        state, running = self.state, list(self.state.running)
        self.now_s += random.choice((0.0, 0.5, 5.0))
        kind = random.randrange(12)
        if kind < 5:
            some = random.sample((CORE, CORES, GPU), random.randint(1, 3))
            after = tuple(TaskId(each) for each in range(self.registered) if random.random() < 0.1)
            spec = TaskSpec(
                random.randrange(3),
                kernels(*some),
                random.randrange(2),
                after,
                random.random() < 0.5,
                malleable=random.random() < 0.5,
            )
            self.add(spec)
        elif kind < 8 and running:
            self.feed(TaskFinished(self.now_s, random.choice(running), random.random() < 0.2))
        elif kind == 8 and self.asked:
            self.feed(TaskYielded(self.now_s, TaskId(random.choice(sorted(self.asked)))))
        elif kind == 8 and self.told:
            task_id = random.choice(sorted(self.told))
            self.feed(TaskResized(self.now_s, task_id, self.told[task_id]))
        elif kind == 9:
            self.feed(OwnerGone(self.now_s, random.randrange(3)))
        elif kind == 10:
            unit = random.randrange(3)
            if unit not in state.holder:
                self.feed(UnitsTaken(self.now_s, (unit,)))
            elif state.holder[unit] == OTHERS:
                self.feed(UnitsFreed(self.now_s, (unit,)))
        elif kind == 11:
            self.feed(GovernorSet(self.now_s, random.choice(list(Governor))))

    def restart(self) -> None:
        """Let the daemon be killed: a new one knows nothing until processes say what there is.

        Nodes that tasks held are kept for them, as it has them in its journal.
        """
        old = self.state
        self.scheduler = TaskScheduler(list(old.devices.values()), ShortTerm(), self.said.append)
        self.state, self.asked, self.told = self.scheduler.state, set(), {}
        self.scheduler.apply(UnitsTaken(self.now_s, tuple(old.holder)))
        for task_id, task in sorted(old.tasks.items()):
            spec, device = task.spec, "" if task.device is None else task.device.name
            after = tuple(each for each in spec.after if each in old.tasks)
            spec = replace(spec, after=after)
            self.scheduler.apply(TaskRegistered(self.now_s, task_id, spec, device))
        self.feed(Woken(self.now_s))
        assert {i: t.device for i, t in old.running.items()}.items() <= {
            i: t.device for i, t in self.state.running.items()
        }.items()

    def finish(self) -> None:
        """Let all that can run come to its end."""
        others = tuple(unit for unit, task in self.state.holder.items() if task == OTHERS)
        self.feed(UnitsFreed(self.now_s, others))
        self.feed(GovernorSet(self.now_s, Governor.HIGH))
        for _ in range(10_000):
            if not self.state.tasks:
                return
            for task_id in list(self.state.running):
                self.feed(TaskFinished(self.now_s, task_id))
            if self.scheduler.wake_s is not None:
                self.now_s = self.scheduler.wake_s
                self.feed(Woken(self.now_s))
        raise AssertionError(f"expected all tasks to end, got {list(self.state.tasks)}")


class Wrong:
    """A strategy that goes wrong."""

    name, capacity = "wrong", dict[Resource, int]()

    def __init__(self, *choices: object) -> None:
        self.choices = choices

    def __call__(self, state: TaskState) -> Iterator[Choice]:
        for choice in self.choices:
            if isinstance(choice, Exception):
                raise choice
            yield choice  # type: ignore[misc]
