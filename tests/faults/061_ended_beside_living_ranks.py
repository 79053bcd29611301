"""The daemon ended jobs whose ranks lived, 10 s after some of their launches had left in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from killed import COMMAND, Bench
from killed import bench as open_bench

from rms.core.model.jobs import JobId, Mode
from rms.daemon.ask import views
from rms.daemon.jobs.machine import MOVE_S
from rms.daemon.jobs.worlds import LAST_REPORT_S
from rms.launch.base import LaunchCommand
from rms.wire.messages import LAUNCHES_VARIABLE, PER_NODE, Begun, Done, Poll, Ready, ResizeReport

ONE = JobId("1")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_bench(tmp_path) as opened:
        yield opened


def begun(bench: Bench, strategy: str, to: int, *launches: int) -> None:
    """Begin a resize of job 1, which has one node, or a launch on each of two nodes."""
    env = {LAUNCHES_VARIABLE: PER_NODE} if len(launches) > 1 else {}
    bench.submit("1", (1, 2, len(launches)), Mode.MALLEABLE)
    command = LaunchCommand(COMMAND.command, "/", env, "/dev/null", "/dev/null")
    bench.daemon.worlds.launch(bench.daemon.jobs[ONE], command, "key")
    ranks = tuple((launch, 1) for launch in launches)
    bench.daemon.worlds.poll(bench.daemon.jobs[ONE], Poll(1, 100, 0, strategy, ranks))
    if to:
        bench.daemon.resize(ONE, to)
        for launch in () if to < len(launches) else (1,):
            bench.daemon.worlds.report(bench.daemon.jobs[ONE], Ready(1, launch, "address", "port"))
        bench.daemon.worlds.report(bench.daemon.jobs[ONE], Begun(1))


def ended(bench: Bench, later_s: float) -> bool:
    """Return whether job 1 counts as ended after a while, in which the daemon looks at it."""
    for _ in range(10):
        bench.now_s += later_s / 10
        bench.daemon.tick()
    return bench.daemon.jobs[ONE].steps[0].exit_code is not None


def test_new_ranks_may_be_silent_while_they_live(bench: Bench) -> None:
    begun(bench, "warm", 2, 0)
    bench.machine.end("1", 0)  # the old ranks leave
    assert not ended(bench, 4 * LAST_REPORT_S)
    assert bench.machine.of("1", 1)
    bench.daemon.worlds.report(
        bench.daemon.jobs[ONE], Done(1, ResizeReport(5, 1, 2, "warm", 1.0, 0.5, 0.1, 8, 1.0), (1,))
    )
    assert not ended(bench, 4 * LAST_REPORT_S)
    assert [row.size for row in views.jobs(bench.daemon.context)] == [2]
    bench.machine.end("1", 1, 1)
    assert ended(bench, 1.0)


def test_new_ranks_that_die_without_a_report_end_the_job(bench: Bench) -> None:
    begun(bench, "warm", 2, 0)
    bench.machine.end("1", 0)
    bench.machine.end("1", 1, 137)
    assert ended(bench, 1.0)


def test_ranks_that_are_silent_for_longer_than_a_move_may_take_are_ended(bench: Bench) -> None:
    begun(bench, "warm", 2, 0)
    job = bench.daemon.jobs[ONE]
    job.submission = msgspec.structs.replace(job.submission, requeue=False)
    bench.machine.end("1", 0)
    assert ended(bench, MOVE_S + 4 * LAST_REPORT_S)
    assert ONE in bench.daemon.context.state.ended
    assert not bench.machine.of("1", 1)


def test_new_ranks_that_wait_for_old_ones_that_have_died_are_ended(bench: Bench) -> None:
    begun(bench, "warm", 2, 0)
    bench.machine.end("1", 0, 137)
    assert not ended(bench, LAST_REPORT_S - 1.0)  # they may have taken over and report it yet
    assert ended(bench, 4.0)


def test_ranks_that_stay_may_be_silent_when_others_have_left(bench: Bench) -> None:
    begun(bench, "merge", 1, 0, 1)
    bench.machine.end("1", 1)
    assert not ended(bench, 4 * LAST_REPORT_S)
    assert bench.machine.of("1", 0)


def test_launches_of_a_job_may_end_one_after_another(bench: Bench) -> None:
    begun(bench, "merge", 0, 0, 1)
    bench.machine.end("1", 1)
    assert not ended(bench, 4 * LAST_REPORT_S)
    assert bench.machine.of("1", 0)
    bench.machine.end("1", 0)
    assert ended(bench, 1.0)


def test_the_rest_of_a_job_is_ended_when_a_launch_has_died(bench: Bench) -> None:
    begun(bench, "merge", 0, 0, 1)
    bench.machine.end("1", 1, 137)
    assert not ended(bench, LAST_REPORT_S - 1.0)
    assert ended(bench, LAST_REPORT_S)
    assert not bench.machine.of("1", 0) and not bench.machine.of("1", 1)
