"""What comes first within an instant, which decides the size of moldable jobs."""

from __future__ import annotations

import pytest

from rms.core.model.jobs import JobId, JobSpec, Mode, Site, Speedup
from rms.core.policies import named
from rms.sim.simulator import Passes, Simulation


def rigid(name: str, nodes: int) -> JobSpec:
    return JobSpec(JobId(name), 0.0, nodes, nodes, nodes, Mode.FIXED, run_s=10.0)


@pytest.mark.parametrize(
    ("passes", "comes_as_one_ends", "waits_for_two_ends"),
    [("per-event", 1, 3), ("ends-first", 3, 3), ("per-timestamp", 3, 5)],
)
def test_a_moldable_job_takes_what_is_free_when_it_is_looked_at(
    passes: Passes, comes_as_one_ends: int, waits_for_two_ends: int
) -> None:
    def size(least: int, submit_s: float, *others: JobSpec) -> int:
        law = Speedup(law=(20.0, 0.0))
        own = JobSpec(JobId("9"), submit_s, least, 5, 5, Mode.MOLDABLE, law)
        jobs = [*others, own]
        simulation = Simulation(jobs, Site(5), named("fifo"), passes=passes, record=False)
        simulation.run()
        return simulation.engine.state.ended[own.id].size

    longer = JobSpec(JobId("2"), 0.0, 2, 2, 2, Mode.FIXED, run_s=30.0)
    assert size(1, 10.0, rigid("1", 2), longer) == comes_as_one_ends
    assert size(2, 5.0, rigid("1", 2), rigid("2", 2)) == waits_for_two_ends


def test_a_job_that_ends_at_a_resize_point_has_one_event_in_that_instant() -> None:
    own = JobSpec(
        JobId("1"), 0.0, 1, 2, 2, Mode.FLEXIBLE, Speedup(law=(40.0, 0.0)), resize_every_s=10.0
    )
    simulation = Simulation([own], Site(2), named("easy-share"), passes="per-timestamp")
    simulation.run()
    assert simulation.engine.state.ended[own.id].end_s == 20.0
