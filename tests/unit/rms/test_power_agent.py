"""A node's agent: what it reports, when, and how it goes on from an earlier one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.launch.local import AgentProcess, agent_command
from rms.power.agent import Agent
from rms.power.choice import MeterChoice
from rms.power.meter import Ladder, MeterError, NodeMeter
from rms.wire.http import UnreachableError
from rms.wire.messages import DeviceEnergy, MeterAnswer, Metered

DEADLINE_S = 60.0


class Played:
    """A meter that says what it is told to: joules of ``gpu-0``, None for nothing, or an error."""

    sources = ("nvml-counter",)
    every_s = 0.01

    def __init__(self, *steps: float | str | None, device: str = "gpu-0") -> None:
        self.steps, self.device = list(steps), device
        self.trouble, self.closed = "", 0
        self.resumed: tuple[object, ...] = ()

    def read(self, now_s: float) -> list[DeviceEnergy]:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, str):
            raise MeterError(step)
        return [] if step is None else [DeviceEnergy(self.device, self.sources[0], step)]

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        self.resumed = known, gap_s, same_boot

    def close(self) -> None:
        self.closed += 1


class Told:
    """Stands in for the daemon: keeps what it is told, and ends the agent after so many reports."""

    def __init__(self, most: int, answer: MeterAnswer | None = None) -> None:
        self.reports: list[Metered] = []
        self.over = threading.Event()
        self.most, self.answer = most, answer or MeterAnswer()
        self.fails: list[Exception] = []

    def send(self, report: Metered, timeout_s: float) -> MeterAnswer:
        if self.fails:
            raise self.fails.pop(0)
        self.reports.append(report)
        if len(self.reports) > self.most:
            self.over.set()
        return self.answer

    def run(self, *meters: Sequence[Played], every_s: float = 0.0) -> list[Metered]:
        node = NodeMeter([Ladder(ladder) for ladder in meters])
        watch = threading.Timer(DEADLINE_S, self.over.set)
        watch.start()
        try:
            Agent("n1", node, self.send, every_s, self.over, boot="this").run()
        finally:
            watch.cancel()
        return self.reports


def test_first_word_then_cumulative_reports_in_order() -> None:
    first, *reports = Told(3).run([Played(0.0, 1.0, 2.0, 3.0)])
    assert (first.number, first.devices, first.node, first.boot) == (0, [], "n1", "this")
    assert [report.number for report in reports] == sorted({r.number for r in reports})
    joules = [device.joules for report in reports for device in report.devices]
    assert joules == sorted(joules) and joules[0] == 0.0
    assert {report.agent for report in reports} == {first.agent}


def test_it_goes_on_from_what_the_daemon_knows() -> None:
    known = [DeviceEnergy("gpu-0", "nvml-counter", 5.0)]
    meter = Played(5.0)
    Told(1, MeterAnswer(known, "this", 0.0)).run([meter])
    devices, gap_s, same_boot = meter.resumed
    assert devices == known and same_boot is True and isinstance(gap_s, float) and gap_s > 0
    Told(1, MeterAnswer(known, "another", 0.0)).run([meter])
    assert meter.resumed[2] is False


def test_reading_goes_on_while_the_daemon_is_away() -> None:
    told = Told(2)
    told.fails = []
    meter = Played(*map(float, range(50)))

    def away(report: Metered, timeout_s: float) -> MeterAnswer:
        if report.number == 1:
            while len(meter.steps) > 30:  # it reads meanwhile
                pass
            told.fails = [UnreachableError("away")]
        return Told.send(told, report, timeout_s)

    told.send = away  # type: ignore[method-assign]
    _, *reports = told.run([meter], every_s=0.005)
    assert reports[0].devices[0].joules >= 10.0  # as one with what was not delivered


def test_an_agent_of_another_daemon_ends_itself() -> None:
    told = Told(5)

    def refuse(report: Metered, timeout_s: float) -> MeterAnswer:
        raise MeterError("the daemon answered 403: expected the token of this daemon's meters")

    told.send = refuse  # type: ignore[method-assign]
    with pytest.raises(MeterError, match="403"):
        told.run([Played(0.0)])


def test_a_node_without_meters_says_so_once() -> None:
    told = Told(5)
    _, said = told.run([Played("no package")], [Played("no device")])
    assert (said.devices, said.reason) == ([], "no package; no device")
    assert not told.over.is_set()  # it ended by itself


def test_a_meter_that_comes_late_is_waited_for() -> None:
    _, *reports = Told(4).run([Played(None, None, 0.0, 1.0)])
    joules = [d.joules for r in reports for d in r.devices]
    assert reports[0].devices == [] and joules and set(joules) <= {0.0, 1.0}


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.1, 99.0)), max_size=30))
def test_whoever_reads_it_a_device_has_each_joule_once_and_each_second(
    steps: list[tuple[bool, bool, float]],
) -> None:
    """A device of 1 W, and two meters that fail now and then: what is not seen is unseen."""
    now_s, up = 0.0, [True, True]

    class Watching(Played):
        """Counts from when it was first read."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number, self.begun_s = number, -1.0

        def read(self, at_s: float) -> list[DeviceEnergy]:
            if not up[self.number]:
                raise MeterError("down")
            self.begun_s = at_s if self.begun_s < 0 else self.begun_s
            return [DeviceEnergy("gpu-0", "nvml-counter", at_s - self.begun_s)]

    node = NodeMeter([Ladder([Watching(0), Watching(1)])])
    (last,) = node.read(0.0)
    for first, second, span_s in steps:
        now_s, up[:] = now_s + span_s, [first, second]
        try:
            (found,) = node.read(now_s)
        except MeterError:
            continue
        assert found.joules >= last.joules and found.unseen_s >= last.unseen_s - 1e-9
        assert found.joules + found.unseen_s == pytest.approx(now_s, abs=1e-6)
        last = found


def test_each_device_is_read_by_the_first_that_knows_it() -> None:
    command, gpu, package = Played(1.0), Played(2.0), Played(3.0, device="package-0")
    found = NodeMeter([Ladder([command]), Ladder([gpu]), Ladder([package])]).read(0.0)
    assert [(d.device, d.joules) for d in found] == [("gpu-0", 1.0), ("package-0", 3.0)]


@pytest.mark.parametrize("text", ["auto", "none", "rapl", "rapl,nvidia-smi"])
def test_a_choice_is_handed_to_the_agents(text: str) -> None:
    choice = MeterChoice.parse(text, "cat readings")
    assert choice.arguments == ["--meters", text, "--meter-command", "cat readings"]
    assert not choice.none and MeterChoice.parse("none").none


def test_a_meter_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match=r"expected meters auto, none, or names of .* got 'watts'"):
        MeterChoice.parse("rapl,watts")
    with pytest.raises(MeterError, match=r"expected a recording in .* got No such file"):
        MeterChoice.parse(f"replay:{tmp_path}/none.csv")


def test_no_agent_where_there_is_nothing_to_read(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "RMS_POWERCAP": str(tmp_path)}
    assert not MeterChoice.parse("auto").worth_starting(env)
    assert MeterChoice.parse("rapl").worth_starting(env)
    (tmp_path / "intel-rapl:0").mkdir()
    assert MeterChoice.parse("auto").worth_starting(env)
    assert not MeterChoice.parse("none").worth_starting(env)


def test_an_agent_that_dies_is_started_again_and_one_that_is_done_is_not() -> None:
    codes, processes, cleaned = ["kill -9 $$", "exit 1", "exit 0"], [], []

    def launch(command: Sequence[str]) -> subprocess.Popen[bytes]:
        assert command[1:] == ["-P", "-m", "rms.power.agent", "--node", ""]
        processes.append(subprocess.Popen(["/bin/sh", "-c", codes[len(processes)]]))
        return processes[-1]

    command = agent_command(["--node", ""])
    agent = AgentProcess(launch, lambda: command, lambda: cleaned.append(len(processes)))
    agent.wait_s = 0.0
    agent.start()
    for number in (1, 2, 3, 3):
        assert len(processes) == number
        processes[-1].wait()
        agent.poll()  # sees its end
        agent.poll()  # starts it again
    assert cleaned == [0, 1, 2]  # what an earlier one has left, before the next is started
    agent.close()


LISTS_MODULES = "import sys; print('\\n'.join(sys.modules))"


def modules_after(code: str) -> set[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("RMS_")}
    command = [sys.executable, "-c", f"{code}\n{LISTS_MODULES}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    return set(done.stdout.split())


def test_a_compute_node_imports_the_messages_and_msgspec_only() -> None:
    """The agent is started, up to where it finds no daemon to tell."""
    started = "import rms.power.agent as agent; assert agent.main([]) == 1"
    found = modules_after(started) - modules_after("")
    own = {name for name in found if name.partition(".")[0] in ("rms", "dmr", "mpdata")}
    allowed = ("rms.power", "rms.wire")
    assert {name for name in own if not name.startswith(allowed)} <= {"rms", "rms._version"}
    others = {name.partition(".")[0] for name in found - own}
    foreign = others - set(sys.stdlib_module_names)
    assert foreign <= {"msgspec", "typing_extensions"}  # the second by msgspec, where it is there
    assert not others & {"asyncio", "sqlite3"}
