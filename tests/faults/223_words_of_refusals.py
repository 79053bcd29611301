"""Refused resizes were ``not resized: never: ...`` and ``later``; ``1 nodes``, ``1 are free``."""

from __future__ import annotations

import time

import pytest
from terminals import Terminal

from rms.core.model.events import ResizeAsked, ResizePoint, Started, Submitted
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.core.policies import POLICIES
from rms.core.scheduler.engine import Engine

A = JobId("1")


@pytest.mark.parametrize(
    ("size", "nodes", "busy", "reason"),
    [
        (1, 4, 1, "it has 1 node already"),
        (3, 4, 2, "wants 2 nodes more, 1 is free"),
        (2, 2, 1, "wants 1 node more, 0 are free"),
        (3, 2, 1, "expected a size of 1 to 2 nodes, got 3"),
        (5, 4, 1, "expected a size of 1 to 3 nodes, got 5"),
    ],
)
def test_reasons_of_a_resize_that_is_refused(size: int, nodes: int, busy: int, reason: str) -> None:
    engine = Engine(nodes, POLICIES["fifo"])
    spec = JobSpec(A, 0.0, 1, 3, 1, Mode.MALLEABLE)
    other = JobSpec(JobId("2"), 0.0, busy, busy, busy, Mode.FIXED)
    for event in (Submitted(0.0, (spec, other)), Started(0.0, A), ResizePoint(1.0, A)):
        engine.handle(event)
    (refused,) = engine.handle(ResizeAsked(2.0, A, size))
    assert getattr(refused, "reason", "") == reason


def test_one_that_cannot_be(terminal: Terminal) -> None:
    terminal.run("submit", "-N", "1-2", "--mode", "malleable", "good.sh")
    expected = "not resized: expected a size of 1 to 2 nodes, got 5"
    assert terminal.refused(2, "resize", "1", "5") == f"rms: error: {expected}"
    _, *_, last = terminal.lines("explain", "1")
    assert last[2:6] == ["refused", "expected", "a", "size"]


def test_the_reason_why_a_job_waits(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    terminal.run("submit", "-N", "2", "good.sh")
    assert "waits for 2 nodes" in " ".join(terminal.lines("queue")[2])
    terminal.run("submit", "-N", "2", "--wait-for-nodes", "good.sh")
    assert len(terminal.lines("queue")) == 4
    assert " 1 nodes" not in terminal.out and "1 are" not in terminal.out


def test_begin_is_a_time_of_day(terminal: Terminal) -> None:
    terminal.run("submit", "--begin", "2099-11-23T20:40:01", "good.sh")
    begin_s = time.mktime(time.strptime("2099-11-23T20:40:01", "%Y-%m-%dT%H:%M:%S"))
    daemon = terminal.server.daemon
    (job,) = daemon.context.state.held.values()
    assert job.spec.begin_s == begin_s - daemon.context.skew_s
    for command in ("queue", "show", "explain"):
        terminal.run(command, "1")
        assert "BeginTime: not before 2099-11-23T20:40:01" in terminal.out, command
