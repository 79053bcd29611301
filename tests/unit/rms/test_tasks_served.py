"""Tasks in a daemon that lends nodes: what it is asked for, what processes are sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
from said import Said
from task_machine import ALL, CORE, CORES, DEVICES, GPU, kernels

from rms.kernels.connection import DaemonMessage, DeviceLost, Frames, Hello, ProcessMessage, frame
from rms.kernels.model import (
    Governor,
    TaskDrop,
    TaskFinished,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
    TaskYielded,
)
from rms.kernels.record import RecordEntry, TaskRan, TaskRecording, UnitPower
from rms.kernels.scheduler import STRATEGIES, Strategy
from rms.kernels.served import ADOPT_S, LINGER_S, GovernorRule, NodeLender, TaskLink, Tasks


class Nodes(NodeLender):
    """Three nodes that are lent to tasks; what jobs do is set by the test."""

    devices = DEVICES
    prices = None

    def __init__(self, lent: Mapping[int, str] | None = None) -> None:
        self.at_s, self.waits, self.now = 0.0, False, lambda: self.at_s
        self.units: Mapping[int, str] = lent or {}
        self.of_jobs = set[int]()
        self.lends: list[dict[int, str]] = []
        self.entries: list[RecordEntry] = []
        self.log = Said()
        self.record = self.entries.extend
        self.recorded = lambda: self.entries
        self.strategy: tuple[Strategy, str] | None = None
        self.power = {0: UnitPower(1.0, 2.0)}
        self.launcher: Any = SimpleNamespace()

    def lent(self) -> Mapping[int, str]:
        return self.units

    def lend(self, units: Mapping[int, str]) -> None:
        assert not self.of_jobs & units.keys()
        self.units = dict(units)
        self.lends.append(dict(units))

    def free(self, units: Iterable[int]) -> set[int]:
        return set(units) - self.of_jobs

    def under_cap(self, units: Iterable[int]) -> set[int]:
        return set(units)

    def jobs_wait(self) -> bool:
        return self.waits

    def slots_of(self, units: Iterable[int]) -> tuple[str, ...]:
        return tuple(f"cpu:{unit}" for unit in units)

    def power_cap_w(self) -> float | None:
        return None

    def keep(self, strategy: Strategy, governor: str) -> None:
        self.strategy = strategy, governor

    def kept(self) -> tuple[Callable[[], Strategy], str] | None:
        if self.strategy is None:
            return None
        strategy, governor = self.strategy
        return (lambda: strategy), governor


class Shipped:
    """Strategies that come with the program."""

    def load(self, name: str, text: str) -> Strategy:
        return STRATEGIES[name]

    def used(self, strategy: Strategy) -> None: ...

    def end_unused(self, strategies: Collection[Strategy]) -> None: ...


class Process:
    """A process that is connected; it is its own transport."""

    def __init__(self, tasks: Tasks, pid: int) -> None:
        self.link, self.frames, self.cut_off = TaskLink(tasks), Frames(), False
        self.messages: list[DaemonMessage] = []
        transport: Any = self
        self.link.connection_made(transport)
        self.send(Hello(pid, program="mine.py"))

    def send(self, *messages: ProcessMessage) -> None:
        self.link.data_received(b"".join(map(frame, messages)))

    def write(self, data: bytes) -> None:
        decode = msgspec.msgpack.Decoder(DaemonMessage).decode
        self.messages += [decode(body) for body in self.frames.feed(data)]

    def abort(self) -> None:
        self.cut_off = True

    def register(self, number: int, spec: TaskSpec, device: str = "") -> None:
        self.send(TaskRegistered(0.0, TaskId(number), spec, device))

    def taken(self) -> list[DaemonMessage]:
        """Return the messages since the last call."""
        messages, self.messages = self.messages, []
        return messages


def served(lent: Mapping[int, str] | None = None) -> tuple[Nodes, Tasks]:
    nodes = Nodes(lent)
    return nodes, Tasks(nodes, Shipped())


MINE, OTHER = "task:mine.py[7]", "task:mine.py[8]"


def test_a_burst_of_tasks_lends_a_node_once_and_takes_it_back() -> None:
    nodes, tasks = served()
    process = Process(tasks, 7)
    for number in (1, 2, 3):
        process.register(number, TaskSpec(0, kernels(CORE)))
        assert process.taken() == [TaskRun(TaskId(number), "core0", CORE, ("cpu:0",))]
        process.send(TaskFinished(0.0, TaskId(number)))
        assert nodes.lends == [{0: MINE}]
    tasks.tick()
    assert nodes.units == {0: ""}  # it draws the power of an idle node
    nodes.at_s = LINGER_S
    tasks.tick()
    assert nodes.lends == [{0: MINE}, {0: ""}, {}]
    process.register(4, TaskSpec(0, kernels(CORES)))
    assert process.taken() == [TaskRun(TaskId(4), "cores", CORES, ("cpu:0", "cpu:1"))]
    tasks.tick()
    process.link.connection_lost(None)
    tasks.tick()
    assert not tasks.rows() and nodes.units == {0: "", 1: ""}


def test_messages_have_the_numbers_of_their_process_and_the_record_those_of_the_daemon() -> None:
    nodes, tasks = served()
    first, second = Process(tasks, 7), Process(tasks, 8)
    spec = TaskSpec(99, ALL, interruptible=True, name="step")
    for process in (first, second):
        process.register(5, spec)
    assert first.taken() == [TaskRun(TaskId(5), "gpu", GPU, ("cpu:2",))]
    assert second.taken() == [TaskRun(TaskId(5), "cores", CORES, ("cpu:0", "cpu:1"))]
    assert nodes.units == {0: OTHER, 1: OTHER, 2: MINE}
    assert [(row.pid, row.state, row.device) for row in tasks.rows()] == [
        (7, "RUNNING", "gpu"),
        (8, "RUNNING", "cores"),
    ]
    nodes.at_s = 3.0
    first.send(TaskFinished(1e9, TaskId(5), failed=True))  # the time is the daemon's
    first.register(6, TaskSpec(0, ALL, after=(TaskId(5), TaskId(1))))
    assert [type(message) for message in first.taken()] == [TaskRun]
    first.register(7, TaskSpec(0, ()))
    assert [type(message) for message in first.taken()] == [TaskDrop]
    second.send(TaskYielded(0.0, TaskId(77)), TaskYielded(0.0, TaskId(5)))  # 77 was dropped
    tasks.close()
    assert isinstance(nodes.entries[0], TaskRecording) and nodes.entries[0].power == nodes.power
    registered = [entry for entry in nodes.entries if isinstance(entry, TaskRegistered)]
    assert [(each.task, each.spec.owner) for each in registered] == [(1, 1), (2, 2), (3, 1), (4, 1)]
    ran = [entry.task for entry in nodes.entries if isinstance(entry, TaskRan)]
    assert ran == [1, 2, 3, 2] and TaskFinished(3.0, TaskId(1), True) in nodes.entries


def test_a_job_that_waits_for_nodes_of_tasks_goes_first() -> None:
    nodes, tasks = served()
    process = Process(tasks, 7)
    process.register(1, TaskSpec(0, kernels(CORE)))
    process.register(2, TaskSpec(0, kernels(CORE)))
    nodes.waits = True
    tasks.jobs_changed()
    process.register(3, TaskSpec(0, kernels(GPU)))
    process.send(TaskFinished(0.0, TaskId(1)))
    assert len(process.taken()) == 2 and nodes.units == {1: MINE}  # at once, and no device for 3
    nodes.waits, nodes.of_jobs = False, {0}
    tasks.jobs_changed()
    tasks.tick()
    assert process.taken() == [TaskRun(TaskId(3), "gpu", GPU, ("cpu:2",))]
    process.register(4, TaskSpec(0, kernels(CORE)))
    assert not process.taken()
    nodes.of_jobs = set()
    tasks.jobs_changed()
    tasks.tick()
    assert process.taken() == [TaskRun(TaskId(4), "core0", CORE, ("cpu:0",))]


def test_nodes_of_the_previous_daemon_are_kept_for_tasks_that_run_there() -> None:
    nodes, tasks = served({0: MINE, 1: OTHER})
    process = Process(tasks, 7)
    process.register(1, TaskSpec(0, kernels(CORES, CORE), interruptible=True), "core0")
    process.register(2, TaskSpec(0, kernels(GPU)), "gpu")  # whose node was not kept
    process.register(3, TaskSpec(0, kernels(CORE)))
    assert process.taken() == [DeviceLost(TaskId(2))] and nodes.units == {0: MINE, 1: OTHER}
    nodes.at_s = ADOPT_S + 1.0
    tasks.tick()
    assert process.taken() == [TaskRun(TaskId(3), "core1", CORE, ("cpu:1",))]
    assert nodes.units == {0: MINE, 1: MINE}


def test_a_process_that_reports_nonsense_is_cut_off() -> None:
    nodes, tasks = served()
    for data in (
        b"\xff" * 8,
        frame(TaskRegistered(0.0, TaskId(1), TaskSpec(0, ALL))) * 2,
        b"\0\0\0\1\xc0",
    ):
        process = Process(tasks, 7)
        process.link.data_received(data)
        assert process.cut_off and "a process was cut off" in nodes.log[-1]
        process.link.connection_lost(None)
    assert not tasks.rows()


def test_strategy_and_governor_are_kept_for_the_next_daemon() -> None:
    nodes, tasks = served()
    tasks.restore()
    tasks.use(STRATEGIES["banking"], GovernorRule("low"))
    nodes.units = {}
    later = Tasks(nodes, Shipped())
    later.restore()
    assert later.scheduler.strategy is STRATEGIES["banking"]
    assert later.scheduler.state.governor is Governor.LOW and str(later.rule) == "low"
