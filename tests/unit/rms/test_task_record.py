"""Strategies tried on recorded tasks: the one that decided then must do what it did."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import called
from task_machine import CORE, CORES, DEVICES, GPU

from rms.cli.main import main
from rms.daemon.store.journal import Journal
from rms.kernels.model import (
    Affinity,
    Governor,
    GovernorSet,
    KernelSpec,
    OwnerGone,
    TaskDecision,
    TaskEvent,
    TaskFinished,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
    TaskYielded,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.record import (
    RecordEntry,
    TaskRan,
    TaskRecording,
    UnitPower,
    as_it_was,
    past_tasks,
    tried,
)
from rms.kernels.scheduler import STRATEGIES, Strategy, TaskScheduler

KERNELS = (KernelSpec(GPU), KernelSpec(CORES, Affinity.MED), KernelSpec(CORE, Affinity.LOW))
SECONDS = {GPU: 1.0, CORES: 2.5, CORE: 4.0}
POWER = {0: UnitPower(2.0, 8.0), 1: UnitPower(2.0, 8.0), 2: UnitPower(10.0, 100.0)}


def begin(daemon: float = 0.0, strategy: str = "short-term") -> TaskRecording:
    return TaskRecording(daemon, daemon, DEVICES, POWER, strategy, Governor.HIGH)


def happened(strategy: Strategy, arrivals: Sequence[float]) -> list[RecordEntry]:
    """Let tasks run as :data:`SECONDS` says; return what a daemon records of it."""
    scheduler, entries, order = TaskScheduler(DEVICES, strategy), list[RecordEntry](), 0
    entries.append(begin())
    heap: list[tuple[float, int, TaskEvent]] = []

    def act(decisions: list[TaskDecision]) -> None:
        nonlocal order
        for decision in decisions:
            if isinstance(decision, TaskRun):
                now_s = scheduler.state.now_s
                entries.append(TaskRan(now_s, decision.task, decision.device))
                end_s = now_s + SECONDS[decision.resource]
                order += 1
                heapq.heappush(heap, (end_s, order, TaskFinished(end_s, decision.task)))

    for number, at_s in enumerate(sorted(arrivals)):
        order += 1
        spec = TaskSpec(number, KERNELS, name="alike")  # each of a process of its own
        heapq.heappush(heap, (at_s, order, TaskRegistered(at_s, TaskId(number), spec)))
    scheduler.handle(GovernorSet(0.0, Governor.HIGH))  # from when on credits come back
    while heap or scheduler.state.tasks:
        wake_s = scheduler.wake_s
        if heap and (wake_s is None or heap[0][0] <= wake_s):
            event = heapq.heappop(heap)[2]
            entries.append(event)
        else:
            assert wake_s is not None
            event = Woken(wake_s)
        act(scheduler.handle(event))
    return entries


@pytest.mark.promise("strategies-tried")
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=15),
    st.sampled_from(sorted(STRATEGIES)),
    st.sampled_from(sorted(STRATEGIES)),
)
@settings(max_examples=40)
def test_what_is_said_of_a_strategy_is_what_it_would_have_done(
    arrivals: list[int], then: str, other: str
) -> None:
    arrivals_s = [0.25 * at for at in arrivals]  # sums of these are exact
    record = past_tasks(happened(STRATEGIES[then], arrivals_s))
    assert len(record.tasks) == len(arrivals) and not record.left_out
    was, again = as_it_was(record), tried(record, STRATEGIES[then])
    assert again.runs == was.runs and not again.unfinished
    for name in ("makespan_s", "median_run_s", "mean_wait_s", "energy_j"):
        assert getattr(again, name) == pytest.approx(getattr(was, name), abs=1e-6)
    ran = {kind for task in record.tasks for kind, _, _ in task.runs}
    if ran == set(SECONDS):  # then all run times are known
        really = as_it_was(past_tasks(happened(STRATEGIES[other], arrivals_s)))
        found = tried(record, STRATEGIES[other])
        assert found.makespan_s == pytest.approx(really.makespan_s, abs=1e-6)
        assert found.runs == really.runs and "affinity" not in found.times


def test_times_energy_and_what_is_left_out() -> None:
    spec = TaskSpec(7, KERNELS)
    entries = [
        TaskFinished(0.0, TaskId(3)),  # of what was forgotten
        begin(),
        TaskRegistered(1.0, TaskId(1), spec),
        TaskRan(1.0, TaskId(1), "core0"),
        TaskYielded(2.0, TaskId(1)),
        TaskRan(3.0, TaskId(1), "gpu"),
        TaskFinished(5.0, TaskId(1)),
        TaskRegistered(6.0, TaskId(2), spec),  # as it had nothing else to do
        TaskRan(6.5, TaskId(2), "gpu"),
        TaskFinished(10.5, TaskId(2)),
        TaskRegistered(11.0, TaskId(3), TaskSpec(8, KERNELS, after=(TaskId(2), TaskId(9)))),
        OwnerGone(12.0, 8),
        TaskRegistered(12.0, TaskId(4), spec),
        TaskRan(12.0, TaskId(4), "gpu"),
        begin(20.0),  # another daemon, to which nobody says hello again
        TaskRegistered(21.0, TaskId(1), spec, device="gpu"),
        TaskFinished(22.0, TaskId(1)),
    ]
    record = past_tasks(entries)
    assert [task.run_s for task in record.tasks] == [3.0, 4.0, 1.0]
    assert record.left_out == 2 and record.strategies == ["short-term"]
    assert record.tasks[1].follows == record.tasks[0].number
    assert record.tasks[1].pause_s == 1.0
    was = as_it_was(record)
    assert was.busy_s == {CORE: 1.0, GPU: 7.0} and was.makespan_s == 21.0
    assert was.energy_j == pytest.approx(14.0 * 21.0 + 8.0 * 1.0 + 100.0 * 7.0)
    assert len(past_tasks(entries, since_s=20.0).tasks) == 1
    assert past_tasks(entries, since_s=5.5).tasks[0].follows is None
    # Of the first task a part ran on a core, which nobody else did: by affinity four times as slow
    # as on the GPU, so that the whole takes 2 s + 1 s / 4 there.
    found = tried(record, STRATEGIES["short-term"])
    assert found.runs == {GPU: 3}
    assert found.makespan_s == pytest.approx(21.0)
    assert found.busy_s[GPU] == pytest.approx(2.25 + 4.0 + 1.0)


def test_jobs_have_their_nodes_as_soon_as_a_task_gives_them_back() -> None:
    only = TaskSpec(1, (KernelSpec(CORE),), name="n")
    entries: list[RecordEntry] = [begin()]
    for number, device in enumerate(("core0", "core1")):
        entries += [TaskRegistered(0.0, TaskId(number), only), TaskRan(0.0, TaskId(number), device)]
    entries += [
        TaskFinished(1.0, TaskId(0)),
        UnitsTaken(1.0, (0,)),
        TaskFinished(3.0, TaskId(1)),
        TaskRegistered(
            3.0, TaskId(2), TaskSpec(2, (KernelSpec(CORES), KernelSpec(CORE)), name="n")
        ),
        UnitsFreed(5.0, (0,)),
        TaskRan(5.0, TaskId(2), "cores"),
        TaskFinished(6.0, TaskId(2)),
    ]
    record = past_tasks(entries)
    found = tried(record, STRATEGIES["short-term"])
    assert not found.unfinished
    assert found.runs == {CORE: 2 + 1} or found.runs == {CORE: 2, CORES: 1}
    never = past_tasks(
        [*entries[:-3], TaskRan(3.0, TaskId(2), "core1"), TaskFinished(6.0, TaskId(2))]
    )
    assert not tried(never, STRATEGIES["banking"]).unfinished  # jobs go with the record


WAITS = """
def schedule(state):
    return []
"""
WRONG = """
def schedule(state):
    raise KeyError("queue")
"""


def test_the_command_says_what_happened_and_what_would_have(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        journal.record(happened(STRATEGIES["short-term"], [0.0] * 6))
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "wrong.py").write_text(WRONG)
    start = ["simulate", "--journal", str(tmp_path / "journal.sqlite"), "--strategy"]
    found = called(main, *[*start, "long-term", str(tmp_path / "waits.py"), "--json", "-"])
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["record"]["tasks"] == 6
    rows = {Path(row["strategy"]).name: row for row in result["rows"]}
    assert list(rows) == ["as it happened", "short-term", "long-term", "waits.py"]
    assert rows["short-term"]["makespan_s"] == rows["as it happened"]["makespan_s"] == 5.0
    assert rows["waits.py"]["unfinished"] == 6
    shown = called(main, *[*start, "banking", "--governor", "low", "--hours", "2"])
    assert "6 tasks of 6 processes, 0 left out" in shown.stdout and "ON_GPU" in shown.stdout
    for words, said, status in (
        ([*start, str(tmp_path / "wrong.py")], "it raised KeyError('queue')", 1),
        ([*start, "shortest"], "expected a strategy of short-term, ", 2),
        ([*start, "banking", "--hours", "0"], "expected a number above 0, got '0'", 2),
        ([*start, "banking", "--trace", "a.swf"], "expected --strategy or --trace, got both", 2),
        ([*start[:1], "--journal", "j"], "expected --strategy with --journal", 2),
        ([*start[:2], "none", "--strategy", "banking"], "expected a journal, got none", 2),
    ):
        refused = called(main, *words)
        assert refused.returncode == status and said in refused.stderr, refused.stderr
        assert len(refused.stderr.splitlines()) == 1
