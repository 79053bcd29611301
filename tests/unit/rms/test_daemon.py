"""The daemon in process, with a launcher that starts nothing: what it does and what it forgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from idle import Bench, nodes
from submissions import hand_in

from rms.core.model.events import Ended, Later, Reason, Resize
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.daemon.ask import views
from rms.daemon.restart.recover import replay
from rms.daemon.store.journal import Journal
from rms.launch.base import LaunchCommand
from rms.wire.messages import Begun, DeviceEnergy, Done, Metered, Poll, ResizeReport

ONE, WALL = JobId("1"), JobId("2")
COMMAND = LaunchCommand(["a.out"], "/", {}, "/dev/null", "/dev/null")


class Four(Bench):
    """A daemon of four nodes."""

    def run(self, name: JobId, low: int, high: int, preferred: int, mode: Mode) -> None:
        """Submit a job that starts at once."""
        spec = JobSpec(name, self.now_s, low, high, preferred, mode)
        hand_in(self.daemon, [spec])

    def poll(self, step: int, known: int = 0) -> None:
        self.daemon.worlds.poll(self.daemon.jobs[ONE], Poll(step, 100, known, "spawn", ((0, 1),)))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Four]:
    with Journal.open(tmp_path / "journal") as journal:
        yield Four(journal, tmp_path, nodes(4, NodePower(5.0, 10.0)), "array-share")


def test_the_strategy_of_a_refused_resize_is_forgotten(bench: Four) -> None:
    bench.run(WALL, 3, 3, 3, Mode.FIXED)
    bench.run(ONE, 1, 2, 1, Mode.FLEXIBLE)
    daemon = bench.daemon
    daemon.worlds.launch(daemon.jobs[ONE], COMMAND, "key")
    bench.poll(1)
    decision = daemon.resize(ONE, 7, "warm")
    assert isinstance(decision, Later) and decision.code is Reason.IMPOSSIBLE
    (found,) = daemon.handle(Ended(bench.now_s, WALL, "COMPLETED"))
    assert isinstance(found, Resize) and found.job == ONE
    resize = daemon.jobs[ONE].resize
    assert resize is not None
    assert (resize.strategy, resize.state, len(bench.launcher.booted)) == ("spawn", "requested", 1)


def test_a_users_strategy_counts_for_the_resize_it_was_given_for(bench: Four) -> None:
    bench.daemon.set_policy("fifo")
    bench.run(ONE, 1, 4, 2, Mode.MALLEABLE)
    daemon = bench.daemon
    daemon.worlds.launch(daemon.jobs[ONE], COMMAND, "key")
    bench.poll(1)
    assert isinstance(daemon.resize(ONE, 1, "warm"), Resize)
    assert [launch.resize for launch in bench.launcher.booted] == [0, 1]
    resize = daemon.jobs[ONE].resize
    assert resize is not None and (resize.strategy, resize.state) == ("warm", "booting")


def test_a_resize_that_the_job_does_itself_from_request_to_row(bench: Four) -> None:
    bench.run(WALL, 3, 3, 3, Mode.FIXED)
    bench.run(ONE, 1, 2, 1, Mode.FLEXIBLE)
    daemon = bench.daemon
    daemon.worlds.launch(daemon.jobs[ONE], COMMAND, "key")
    bench.poll(1)
    daemon.handle(Ended(bench.now_s, WALL, "COMPLETED"))
    request = daemon.jobs[ONE].request_after(0)
    assert request is not None and (request.number, request.strategy) == (1, "spawn")
    assert daemon.jobs[ONE].request_after(1) is None
    assert views.jobs(daemon.context)[0].resizing == ""
    bench.now_s += 1.0
    daemon.worlds.report(daemon.jobs[ONE], Begun(1))
    bench.now_s += 1.0
    daemon.worlds.report(
        daemon.jobs[ONE], Done(1, ResizeReport(5, 1, 2, "spawn", 0.1, 0.1, 0.1, 8, 1.0))
    )
    (row, _) = views.jobs(daemon.context)
    assert [(each.at_s, each.from_ranks, each.to_ranks) for each in row.resizes] == [(1002.0, 1, 2)]
    assert (row.size, row.resizing, daemon.jobs[ONE].resize) == (2, "", None)


def test_a_restarted_daemon_says_of_a_job_what_the_one_before_said(bench: Four) -> None:
    bench.run(WALL, 3, 3, 3, Mode.FIXED)
    bench.run(ONE, 1, 2, 1, Mode.FLEXIBLE)
    bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
    bench.poll(1)
    bench.daemon.resize(ONE, 7)
    bench.now_s += 10.0
    before = bench.daemon.scheduler
    rows, history = views.jobs(bench.daemon.context), views.history(bench.daemon.context, ONE)
    context = bench.resumed().context  # its processes are gone, which is entered after that
    assert context.scheduler.history[ONE][: len(history)] == history
    assert [row.submit_s for row in views.jobs(context)] == [row.submit_s for row in rows]
    known = len(before.timeline.power_w)
    assert context.scheduler.timeline.power_w[:known] == before.timeline.power_w


def test_readings_are_on_the_power_curve_until_the_meter_falls_silent(bench: Four) -> None:
    daemon = bench.daemon
    bench.run(ONE, 1, 1, 1, Mode.FIXED)
    for number, joules in enumerate((0.0, 500.0, 1_100.0), 1):
        device = DeviceEnergy("package-0", "rapl", joules)
        daemon.meters.take_report(Metered("n1", "agent", number, bench.now_s, "boot", [device]))
        bench.now_s += 10.0 if number < 3 else 0.0
    bench.now_s += 100.0
    daemon.tick()
    curve = daemon.scheduler.timeline.power_w
    assert [watts for _, watts in curve if curve] == [25.0, 65.0, 75.0, 25.0]
    assert [at_s for at_s, _ in curve] == [1000.0, 1010.0, 1020.0, 1120.0]
    assert any("no report of the meters of n1" in words for words in bench.said)


def test_steps_are_counted_and_told(bench: Four) -> None:
    bench.run(ONE, 1, 1, 1, Mode.FIXED)
    bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
    for _ in range(12):
        bench.now_s += 1.0
        bench.poll(int(bench.now_s - 1000.0) * 2)
    (row,) = views.jobs(bench.daemon.context)
    (seen,) = row.seen
    assert (seen.nodes, seen.steps, seen.seconds) == (1, 12, 6.0)
    assert not replay(bench.journal.read()).differing
