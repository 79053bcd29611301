"""Requests that come and go do not have jobs resized all the time.

Users of adaptive deployments report it: dask/distributed 1604 and dask/dask-kubernetes 674 (workers
start and end every few seconds as the load moves around a threshold).
"""

from __future__ import annotations

import pytest

from rms.core.model.events import (
    Later,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Site, Speedup
from rms.core.policies import DEFAULT, named, placing
from rms.core.scheduler.engine import Engine
from rms.sim.simulator import Simulation

JOB = JobId("1")


@pytest.mark.promise("no-thrashing")
def test_requests_that_alternate_every_second_are_met_once_in_a_cooldown() -> None:
    cooldown_s, seconds = 60.0, 600
    engine, resizes, rests_until = Engine(2, placing("fifo")), 0, 0.0
    spec = JobSpec(JOB, 0.0, 1, 2, preferred=1, mode=Mode.MALLEABLE)
    for event in (Submitted(0.0, (spec,)), Started(0.0, JOB), ResizePoint(0.0, JOB)):
        engine.handle(event)
    for second in range(1, seconds + 1):
        if rests_until == second:
            engine.handle(ResizePoint(second, JOB))
        (said,) = engine.handle(ResizeAsked(second, JOB, 1 + second % 2))
        if isinstance(said, Later):
            continue
        assert isinstance(said, Resize)
        resizes += 1
        engine.handle(ResizeBegun(second + 0.2, JOB))
        engine.handle(Resized(second + 0.4, JOB, rests=True))
        rests_until = second + cooldown_s
    assert 5 <= resizes <= seconds / cooldown_s + 1


@pytest.mark.parametrize(
    ("policy", "run_s"),
    [*((DEFAULT, run_s) for run_s in (0.5, 1.0, 1.9)), ("easy-share", 1.0), ("array-share", 1.0)],
)
@pytest.mark.promise("no-thrashing")
def test_short_jobs_in_quick_succession_do_not_have_a_wide_one_resized_for_each(
    policy: str, run_s: float
) -> None:
    every_s, count = 2.0, 300
    law = Speedup(law=(2000.0, 0.0))
    wide = JobSpec(JOB, 0.0, 1, 2, 2, Mode.MALLEABLE, law, resize_every_s=1.0)
    shorts = [
        JobSpec(JobId(str(n + 2)), every_s * n, 1, 1, 1, Mode.FIXED, run_s=run_s, limit_s=4.0)
        for n in range(count)
    ]
    simulation = Simulation([wide, *shorts], Site(2), named(policy), record=False)
    simulation.run()
    assert 2 <= simulation.engine.state.ended[JOB].resize_count <= count / 10
