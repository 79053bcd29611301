"""Tasks: no device twice, none lost, whatever happens and however strategies are swapped."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_machine import ALL, APART, CORE, CORES, DEVICES, GPU, Machine, Wrong, kernels

from rms.kernels.model import (
    Affinity,
    Governor,
    GovernorSet,
    KernelSpec,
    OwnerGone,
    Remember,
    Resource,
    TaskDecision,
    TaskDrop,
    TaskFinished,
    TaskGoOn,
    TaskId,
    TaskInterrupt,
    TaskRegistered,
    TaskResize,
    TaskResized,
    TaskRun,
    TaskSpec,
    TaskStart,
    TaskStop,
    TaskYielded,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.scheduler import (
    STRATEGIES,
    Banking,
    Constraint,
    LongTerm,
    ShortTerm,
    TaskScheduler,
)


@pytest.mark.promise("tasks")
@given(st.integers(0, 2**32), st.sampled_from(sorted(STRATEGIES)))
@settings(max_examples=15)
def test_nothing_is_lost_over_a_hundred_swaps(seed: int, first: str) -> None:
    random = Random(seed)
    machine = Machine(STRATEGIES[first])
    for _ in range(100):
        for _ in range(random.randrange(4)):
            machine.step(random)
        machine.scheduler.swap(STRATEGIES[random.choice(sorted(STRATEGIES))])
        machine.feed(Woken(machine.now_s))
    machine.finish()
    assert not machine.said and machine.over == machine.registered


def runs(decisions: list[TaskDecision]) -> dict[int, str]:
    return {each.task: each.device for each in decisions if isinstance(each, TaskRun)}


def test_short_term_gives_a_free_device_to_who_prefers_it_most() -> None:
    machine = Machine(ShortTerm(), APART)
    assert runs(machine.add(TaskSpec(0, ALL))) == {0: "gpu"}
    assert runs(machine.add(TaskSpec(0, ALL))) == {1: "cores"}
    assert runs(machine.add(TaskSpec(0, ALL))) == {2: "core"}
    assert runs(machine.add(TaskSpec(0, ALL))) == {}
    assert runs(machine.add(TaskSpec(0, kernels(CORE, GPU)))) == {}
    assert runs(machine.feed(TaskFinished(1.0, TaskId(2)))) == {4: "core"}  # its first choice
    assert runs(machine.feed(TaskFinished(2.0, TaskId(1)))) == {3: "cores"}  # its second


def test_long_term_balances_queues_by_the_performance_factor() -> None:
    machine = Machine(LongTerm(), APART)
    spec = TaskSpec(
        0, (KernelSpec(GPU, expected_s=1.0), KernelSpec(CORES, Affinity.MED, expected_s=4.0))
    )
    for _ in range(11):
        machine.add(spec)
    assert (machine.state.length(GPU), machine.state.length(CORES)) == (9, 2)  # 1:4
    machine.feed(GovernorSet(0.0, Governor.LOW))
    assert (machine.state.length(GPU), machine.state.length(CORES)) == (1, 10)


def test_banking_spends_its_credits_and_gets_them_back() -> None:
    machine = Machine(Banking(most=16.0), APART)
    for _ in range(6):
        machine.add(TaskSpec(0, ALL))
    assert sorted(machine.state.running) == [0, 1, 2]
    assert machine.state.memory["banking.credits"] == 0.0
    assert not runs(machine.feed(TaskFinished(4.9, TaskId(0)))) and machine.scheduler.wake_s == 5.0
    assert runs(machine.feed(Woken(5.0))) == {3: "gpu"}  # 15 back, 10 spent
    assert runs(machine.feed(TaskFinished(5.0, TaskId(1)))) == {4: "cores"}
    machine.feed(GovernorSet(5.0, Governor.LOW))
    assert not runs(machine.feed(TaskFinished(9.0, TaskId(3))))
    assert runs(machine.feed(Woken(10.0))) == {5: "gpu"}


@pytest.mark.parametrize(
    ("strategy", "low"),
    [(Constraint(gpu_when_low=True), {"gpu"}), (STRATEGIES["constraint"], {"cores", "core"})],
    ids=["section 4", "section 5, the default"],
)
def test_constraint_keeps_what_runs_within_the_limit(strategy: Constraint, low: set[str]) -> None:
    for governor, expected in ((Governor.HIGH, {"gpu", "cores", "core"}), (Governor.LOW, low)):
        machine = Machine(strategy, APART)
        machine.feed(GovernorSet(0.0, governor))
        for _ in range(5):
            machine.add(TaskSpec(0, ALL))
        assert {task.device.name for task in machine.state.running.values() if task.device} == (
            expected
        )


def test_under_constraint_a_task_for_the_gpu_alone_waits_for_governor_high() -> None:
    machine = Machine(STRATEGIES["constraint"], APART)
    machine.feed(GovernorSet(0.0, Governor.LOW))
    assert runs(machine.add(TaskSpec(0, kernels(GPU)))) == {}
    assert runs(machine.add(TaskSpec(0, kernels(CORE)))) == {1: "core"}  # it overtakes
    assert runs(machine.feed(GovernorSet(1.0, Governor.HIGH))) == {0: "gpu"}


def test_a_task_moves_to_a_better_device_that_falls_free() -> None:
    machine = Machine(ShortTerm())
    machine.feed(UnitsTaken(0.0, (0, 2)))  # by jobs
    spec = TaskSpec(0, ALL, interruptible=True)
    assert runs(machine.add(spec)) == {0: "core1"}
    assert machine.feed(UnitsFreed(1.0, (0,))) == [TaskStop(TaskId(0))]
    assert runs(machine.feed(TaskYielded(2.0, TaskId(0)))) == {0: "cores"}
    assert machine.feed(UnitsFreed(3.0, (2,))) == [TaskStop(TaskId(0))]
    assert runs(machine.feed(TaskYielded(4.0, TaskId(0)))) == {0: "gpu"}


def test_a_malleable_task_narrows_to_one_core_while_others_wait_and_goes_wide_again() -> None:
    machine = Machine(ShortTerm())
    wide = TaskSpec(0, kernels(CORES), interruptible=True, malleable=True)
    assert runs(machine.add(wide)) == {0: "cores"}
    for device, words in (("gpu", "a device of cores"), ("cores", "more cores than cores or some")):
        with pytest.raises(ValueError, match=words):
            machine.scheduler.carry_out(TaskResize(TaskId(0), device), [])
    assert machine.add(TaskSpec(0, kernels(CORE))) == [TaskGoOn(TaskId(0), "core0")]
    assert machine.add(TaskSpec(0, kernels(CORE))) == []  # one core is coming, no more are
    with pytest.raises(ValueError, match="a task without a pending decision"):
        machine.scheduler.carry_out(TaskResize(TaskId(0), "core1"), [])
    with pytest.raises(ValueError, match="expected a task that resizes to core1"):
        machine.scheduler.handle(TaskResized(1.0, TaskId(0), "core1"))
    assert runs(machine.feed(TaskResized(1.0, TaskId(0), "core0"))) == {1: "core1"}
    with pytest.raises(ValueError, match="expected free cores for task 0 to grow"):
        machine.scheduler.carry_out(TaskResize(TaskId(0), "cores"), [])
    assert runs(machine.feed(TaskFinished(2.0, TaskId(1)))) == {2: "core1"}
    assert machine.feed(TaskFinished(3.0, TaskId(2))) == [TaskGoOn(TaskId(0), "cores")]
    assert machine.add(TaskSpec(0, kernels(CORE))) == []  # until it says that it is wide
    assert machine.feed(TaskResized(4.0, TaskId(0), "cores")) == [TaskGoOn(TaskId(0), "core0")]
    assert runs(machine.feed(OwnerGone(5.0, 0))) == {} and not machine.state.holder


def test_who_comes_after_waits_and_goes_with_what_failed() -> None:
    machine = Machine(ShortTerm())
    machine.add(TaskSpec(0, kernels(GPU)))
    machine.add(TaskSpec(0, ALL, after=(TaskId(0),)))
    machine.add(TaskSpec(0, ALL, after=(TaskId(1),)))
    assert list(machine.state.running) == [0]
    assert runs(machine.feed(TaskFinished(1.0, TaskId(0)))) == {1: "gpu"}
    reason = "a task that it comes after has failed"
    assert machine.feed(TaskFinished(2.0, TaskId(1), failed=True)) == [TaskDrop(TaskId(2), reason)]
    assert machine.add(TaskSpec(0, ALL, after=(TaskId(2),))) == [TaskDrop(TaskId(3), reason)]
    never = TaskSpec(0, (KernelSpec(GPU, Affinity.NEVER), KernelSpec(Resource.NODE)))
    assert isinstance(machine.add(never)[0], TaskDrop)


def test_all_cores_are_kept_for_the_task_that_waits_for_them() -> None:
    machine = Machine(LongTerm())
    for spec in (kernels(CORE), kernels(CORES), kernels(CORE), kernels(CORE)):
        machine.add(TaskSpec(0, spec))
    assert runs(machine.feed(TaskFinished(1.0, TaskId(0)))) == {1: "cores"}
    assert runs(machine.feed(TaskFinished(2.0, TaskId(1)))) == {2: "core0", 3: "core1"}


@pytest.mark.promise("tasks")
@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ((TaskStart(TaskId(1), "gpu"),), "expected a free device for task 1, got gpu"),
        ((TaskStart(TaskId(4), "core0"),), "expected a free device for task 4, got core0"),
        ((TaskStart(TaskId(7), "gpu"),), "expected an existing task, got 7"),
        ((TaskStart(TaskId(1), "tpu"),), "expected a device of gpu, cores, core0, core1"),
        ((TaskInterrupt(TaskId(0)),), "expected a running task with yield points"),
        ((TaskResize(TaskId(0), "core0"),), "expected a malleable task on cores to resize, got 0"),
        ((17,), "expected a choice (TaskStart, TaskEnqueue, ...), got 17"),
        ((Remember("credits", float("nan")),), "expected a finite number to remember, got nan"),
        ((KeyError("queue"),), "KeyError('queue')"),
    ],
)
def test_a_strategy_that_goes_wrong_is_replaced_by_the_one_before(
    choices: tuple[object, ...], words: str
) -> None:
    machine = Machine(ShortTerm())
    for _ in range(3):
        machine.add(TaskSpec(0, kernels(GPU)))
    machine.add(TaskSpec(0, ALL))  # on all cores
    machine.add(TaskSpec(0, kernels(CORE)))
    machine.scheduler.swap(Wrong(*choices))
    machine.feed(Woken(1.0))
    assert machine.scheduler.strategy.name == "short-term"
    assert len(machine.said) == 1 and words in machine.said[0]
    machine.finish()


def test_strategies_that_all_go_wrong_leave_the_decision_to_the_first() -> None:
    machine = Machine(ShortTerm())
    one, other = Wrong(), Wrong()  # which choose nothing as yet
    for strategy in (one, other):
        machine.scheduler.swap(strategy)
    one.choices = other.choices = (17,)
    assert runs(machine.add(TaskSpec(0, kernels(GPU)))) == {0: "gpu"}
    assert machine.scheduler.strategy.name == "short-term" and len(machine.said) == 2


def test_what_cannot_have_happened_is_refused() -> None:
    machine = Machine(ShortTerm())
    machine.add(TaskSpec(0, kernels(GPU)))
    for event in (
        TaskFinished(1.0, TaskId(5)),
        UnitsTaken(1.0, (2,)),
        UnitsFreed(1.0, (2,)),
        TaskRegistered(1.0, TaskId(9), TaskSpec(0, ALL), device="gpu"),
    ):
        with pytest.raises(ValueError, match="expected"):
            machine.scheduler.handle(event)
    machine.check()
    with pytest.raises(ValueError, match="expected a choice"):
        TaskScheduler(DEVICES, Wrong(17)).handle(Woken(0.0))
