"""Where frequencies cannot be set, policies count with the highest: decided by an event."""

from __future__ import annotations

import pytest
from specs import job_spec

from rms.core.model.events import FrequenciesSettable, Start, Started, Submitted
from rms.core.model.jobs import JobId, JobSpec, NodePower, Site
from rms.core.model.speedup import OperatingPoint
from rms.core.policies import named
from rms.core.scheduler.engine import Engine

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
