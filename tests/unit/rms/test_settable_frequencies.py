"""Where frequencies cannot be set, policies count with the highest: decided by an event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from idle import Bench, Idle
from specs import job_spec
from submissions import hand_in

from rms.core.model.cluster import Cluster
from rms.core.model.events import FrequenciesSettable, Start, Started, Submitted
from rms.core.model.jobs import JobId, JobSpec, NodePower, Site
from rms.core.model.speedup import OperatingPoint
from rms.core.policies import named
from rms.core.scheduler.engine import Engine
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.launch.base import NodeClocks
from rms.power.frequency import Shares
from rms.wire.messages import ClockReport

POLICY = '{"name": "p", "frequency": {"part": "optimal-operating-point"}}'
LEVELS = ((1.0, 0.8), (2.0, 1.2))
POINTS = (OperatingPoint(1.0, 1.1, 0.3), OperatingPoint(2.0, 1.0, 1.0))
"""Half the frequency costs it 10 % of time: its optimum."""


def engine() -> Engine:
    power = (NodePower(10.0, 50.0, 0.0),) * 2
    return Engine(Site(2, power, levels=LEVELS), named(POLICY))


def spec(number: int, at_s: float) -> JobSpec:
    return job_spec(number, at_s=at_s, run_s=100.0, operating_points=POINTS)


def started(engine: Engine, number: int, at_s: float) -> Start:
    (start,) = engine.handle(Submitted(at_s, (spec(number, at_s),)))
    assert isinstance(start, Start)
    engine.handle(Started(at_s, start.job))
    return start


def test_who_runs_and_who_starts_is_at_the_highest_frequency() -> None:
    here = engine()
    assert started(here, 1, 0.0).frequencies == (0.5,)
    running = here.state.running[JobId("1")]
    assert running.expected_end_s == pytest.approx(110.0)
    here.handle(FrequenciesSettable(55.0, False, "this user may not write"))
    assert running.frequencies == () and running.expected_end_s == pytest.approx(105.0)
    assert started(here, 2, 60.0).frequencies == ()
    assert here.state.running[JobId("2")].expected_end_s == pytest.approx(160.0)


def test_from_when_they_can_be_set_jobs_start_with_them() -> None:
    here = engine()
    here.handle(FrequenciesSettable(0.0, False, "why"))
    assert started(here, 1, 0.0).frequencies == ()
    here.handle(FrequenciesSettable(10.0, True))
    assert started(here, 2, 20.0).frequencies == (0.5,)
    assert here.state.running[JobId("1")].frequencies == ()


# --- what a daemon sets --------------------------------------------------------------------------


class Noted(NodeClocks):
    """Clocks that can be set: they note what to, and the frequency of a share of 1."""

    def __init__(self) -> None:
        self.last: tuple[Shares, float | None] = {}, None

    def set(self, shares: Shares, highest_mhz: float | None) -> None:
        self.last = shares, highest_mhz


class Tuned(Bench):
    """A daemon of two nodes of one core each, whose policy sets frequencies."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self.clocks, power = Noted(), (NodePower(10.0, 50.0, 0.0),) * 2
        slots = (("cpu:0",), ("cpu:1",))
        super().__init__(
            journal, folder, Cluster(("n1", "n2"), slots, power, levels=LEVELS), POLICY
        )

    def resumed(self, **settings: Any) -> Daemon:
        self.launcher = Idle(self.folder, "instance", "unix:none")
        self.launcher.clocks = self.clocks
        made = Settings(policy=self.policy, now=lambda: self.now_s)
        return resume(self.cluster, self.journal, self.launcher, made)


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[Tuned]:
    """A daemon with a job at half the frequency on its first node, which is set."""
    with Journal.open(tmp_path / "journal") as journal:
        bench = Tuned(journal, tmp_path)
        hand_in(bench.daemon, [spec(1, 1000.0)])
        bench.daemon.tick()
        yield bench


def test_a_node_is_set_to_the_frequency_of_its_job_and_others_are_left(tuned: Tuned) -> None:
    """A share of 1 is the highest of the two frequencies, 2 GHz."""
    assert tuned.clocks.last == ({"cpu:0": 0.5, "cpu:1": None}, 2000.0)


def test_where_one_node_cannot_be_set_all_are_put_back(tuned: Tuned) -> None:
    """Jobs are planned at the highest frequency from then on, so no node may be slower."""
    tuned.daemon.frequencies.report(ClockReport("n2", "no such file"))
    assert tuned.clocks.last == ({}, None)
    assert "frequencies are not set here: n2: no such file" in tuned.said
    tuned.daemon.tick()
    assert tuned.clocks.last == ({}, None)
