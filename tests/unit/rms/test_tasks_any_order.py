"""Faults of tasks in any order: processes and daemons that die, strategies that go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from task_machine import CORE, CORES, GPU, Machine, kernels

from rms.kernels.model import (
    OTHERS,
    Choice,
    Governor,
    GovernorSet,
    OwnerGone,
    Resource,
    TaskFinished,
    TaskId,
    TaskSpec,
    TaskStart,
    TaskState,
    TaskYielded,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.scheduler import STRATEGIES, ShortTerm

OWNERS = st.integers(0, 2)
SPECS = st.builds(
    TaskSpec,
    OWNERS,
    st.lists(st.sampled_from((CORE, CORES, GPU)), min_size=1, unique=True).map(
        lambda kinds: kernels(*kinds)
    ),
    st.integers(0, 1),
    interruptible=st.booleans(),
)


class Faulty:
    """A strategy that decides well, and then chooses what cannot be, or raises."""

    capacity: ClassVar[dict[Resource, int]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, state: TaskState) -> Iterable[Choice]:
        yield from ShortTerm()(state)
        if self.name == "raises":
            raise KeyError("queue")
        if self.name == "nonsense":
            yield 17  # type: ignore[misc]
        for task in state.tasks.values():
            for device in state.devices.values():
                if not state.free(device):
                    yield TaskStart(task.id, device.name)


class Faults(RuleBasedStateMachine):
    """What can happen to tasks; :class:`Machine` checks after each event that nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(ShortTerm())

    def one(self, tasks: Iterable[int], which: int) -> TaskId:
        """Return one of some tasks."""
        found = sorted(tasks)
        return TaskId(found[which % len(found)])

    @property
    def state(self) -> TaskState:
        """The state of the scheduler."""
        return self.machine.state

    @rule(spec=SPECS, before=st.sets(st.integers(0, 20), max_size=2))
    def registered(self, spec: TaskSpec, before: set[int]) -> None:
        after = tuple(TaskId(each) for each in sorted(before) if each < self.machine.registered)
        given = spec.owner, spec.kernels, spec.priority, after, spec.interruptible
        self.machine.add(TaskSpec(*given))

    @precondition(lambda self: self.state.running)
    @rule(which=st.integers(0, 9), failed=st.booleans())
    def ends(self, which: int, failed: bool) -> None:
        task = self.one(self.state.running, which)
        self.machine.feed(TaskFinished(self.machine.now_s, task, failed))

    @precondition(lambda self: self.state.tasks.keys() - self.state.running.keys())
    @rule(which=st.integers(0, 9))
    def withdrawn(self, which: int) -> None:
        task = self.one(self.state.tasks.keys() - self.state.running.keys(), which)
        self.machine.feed(TaskFinished(self.machine.now_s, task, failed=True))

    @precondition(lambda self: self.machine.asked)
    @rule(which=st.integers(0, 9))
    def yielded(self, which: int) -> None:
        self.machine.feed(TaskYielded(self.machine.now_s, self.one(self.machine.asked, which)))

    @rule(owner=OWNERS)
    def process_killed(self, owner: int) -> None:
        self.machine.feed(OwnerGone(self.machine.now_s, owner))

    @rule()
    def daemon_killed(self) -> None:
        self.machine.restart()

    @rule(unit=st.integers(0, 2))
    def jobs(self, unit: int) -> None:
        holder = self.state.holder.get(unit)
        if holder is None:
            self.machine.feed(UnitsTaken(self.machine.now_s, (unit,)))
        elif holder == OTHERS:
            self.machine.feed(UnitsFreed(self.machine.now_s, (unit,)))

    @rule(name=st.sampled_from([*sorted(STRATEGIES), "raises", "nonsense", "takes what is taken"]))
    def swapped(self, name: str) -> None:
        self.machine.scheduler.swap(STRATEGIES.get(name) or Faulty(name))
        self.machine.feed(Woken(self.machine.now_s))

    @rule(governor=st.sampled_from(Governor), seconds=st.sampled_from((0.0, 0.5, 5.0)))
    def time_passes(self, governor: Governor, seconds: float) -> None:
        self.machine.now_s += seconds
        self.machine.feed(GovernorSet(self.machine.now_s, governor))

    def teardown(self) -> None:
        self.machine.finish()
        assert self.machine.over == self.machine.registered


TestFaults = pytest.mark.promise("tasks")(Faults.TestCase)
Faults.TestCase.settings = settings(max_examples=25, stateful_step_count=40)
