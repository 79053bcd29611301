"""A job that prefers more nodes than there are had a size in its twin that it may not have."""

from __future__ import annotations

from driven import MOLDABLE, Driven
from specs import job_spec

from rms.core.model.jobs import Speedup

SIZES = (1, 2, 4, 8)


def test_it_has_the_largest_of_its_sizes_that_there_is() -> None:
    driven = Driven(6)
    speedup = Speedup(nodes=SIZES, time_s=(800.0, 400.0, 200.0, 100.0))
    assert driven.submit(job_spec(1, (1, 8, 8), MOLDABLE, speedup=speedup)) == [("1", 4)]
    twin = driven.engine.twin
    assert twin is not None
    (job,) = twin.state.running.values()
    assert (job.size, job.spec.preferred) == (4, 4)
