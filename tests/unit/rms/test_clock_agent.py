"""What sets the frequencies of a pilot's nodes, and asks the daemon what to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cpufreq import CPUFREQ_VARIABLE, limits, restored_here, tree

from rms.power import agent, frequency
from rms.power.agent import ClockAgent
from rms.power.frequency import Clocks
from rms.power.meter import MeterError
from rms.wire.http import UnreachableError
from rms.wire.messages import ClockOrders, ClockReport

FOUND = (800, 2000)


class Daemon:
    """Answers what it is told to, one after the other; then the agent is over."""

    def __init__(self, folder: Path, *answers: ClockOrders | Exception) -> None:
        self.folder, self.answers = folder, list(answers)
        self.over, self.said = threading.Event(), list[str]()
        self.seen: list[tuple[int, int]] = []

    def poll(self, report: ClockReport) -> ClockOrders:
        self.seen += limits(self.folder)[:1]
        self.said.append(report.reason)
        answer = self.answers.pop(0)
        if not self.answers:
            self.over.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(agent, "CLOCKS_EVERY_S", 0.0)
    monkeypatch.setattr(frequency, "restored", restored_here)
    return tree(tmp_path / "cpufreq", {0: (0,), 1: (1,), 2: (2,)})


def run(folder: Path, *answers: ClockOrders | Exception) -> Daemon:
    """Follow a daemon on cores 0 and 1 of three; core 2 is somebody else's."""
    daemon = Daemon(folder, *answers)
    clocks = Clocks({CPUFREQ_VARIABLE: str(folder)})
    ClockAgent("n1", daemon.poll, clocks, frozenset({0, 1}), daemon.over).run()
    assert limits(folder) == [FOUND] * 3
    return daemon


@pytest.mark.promise("frequency-live")
def test_a_nodes_cores_are_at_the_highest_that_its_users_ask_for(folder: Path) -> None:
    low = ClockOrders({"core:0": 0.5, "core:1": 0.75, "core:2": None}, 2000.0)
    idle = ClockOrders({"core:0": None, "core:1": None, "core:2": None}, 2000.0)
    found = run(folder, low, low, idle, low, idle)
    assert found.seen == [FOUND, (1500, 1500), (1500, 1500), FOUND, (1500, 1500)]
    assert not any(found.said)


def test_shares_are_of_what_the_cluster_file_says(folder: Path) -> None:
    assert run(folder, ClockOrders({"core:0": 0.5}, 1600.0), ClockOrders()).seen[1] == (800, 800)


def test_they_are_put_back_while_the_daemon_is_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, away = ClockOrders({"core:0": 0.5}), UnreachableError("away")
    assert run(folder, low, away, low).seen == [FOUND, (1000, 1000), (1000, 1000)]
    monkeypatch.setattr(agent, "AWAY_S", -1.0)
    assert run(folder, low, away, low, low).seen[2:] == [FOUND, (1000, 1000)]
    monkeypatch.setattr(agent, "PATIENCE_S", -1.0)
    with pytest.raises(MeterError, match="away"):
        run(folder, low, away, low)
    assert limits(folder) == [FOUND] * 3


def test_what_cannot_be_set_is_told(folder: Path) -> None:
    low = ClockOrders({"core:0": 0.5})
    daemon = Daemon(folder, low, ClockOrders())
    clocks = Clocks({CPUFREQ_VARIABLE: str(folder / "none")})
    ClockAgent("n1", daemon.poll, clocks, frozenset({0}), daemon.over).run()
    assert daemon.said[0] == "" and "the kernel shows none here" in daemon.said[1]
