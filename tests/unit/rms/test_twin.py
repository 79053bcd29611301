"""The twin of a stream: EASY over the same jobs, each rigid at its preferred size.

Times are such that no end falls on another or on a submission, where an order of the two would have
to be agreed on.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, MOLDABLE, Driven, Kind, job, rigid, starts, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rms.core.model.events import Ended, Ticked
from rms.core.model.jobs import JobId, JobSpec, Site, Speedup
from rms.core.policies import adjusted, named
from rms.core.scheduler.twin import Twin
from rms.sim.run import chosen
from rms.sim.simulator import Simulation

NODES = 8
LONGER = (None, 0.125, 1.0, 1.5, 4.0)
"""How many times its run time a job requests: those of less than 1 run on for longer."""

ARRAYS = ((None, None), (None, None), ("a", 2), ("b", None))

TAILS = st.sampled_from(["queue", "shortest"])
"""Orders of backfilling."""

KIND = Kind(
    longer=LONGER,
    laws=(True,),
    prices=(0.0, 4.0),
    points=(1.0, 7.0, None),
    arrays=ARRAYS,
    priorities=(0, 0, 0, 5),
)


def apart(specs: list[JobSpec]) -> list[JobSpec]:
    """Let no two jobs take equally long."""
    made = []
    for number, spec in enumerate(specs):
        assert spec.speedup is not None and spec.speedup.law is not None
        work_s, serial_s = spec.speedup.law
        law = work_s + Random(number).random(), serial_s
        made.append(replace(spec, speedup=Speedup(law=law)))
    return made


def easy_starts(
    specs: list[JobSpec], nodes: int = NODES, tail: str = "queue"
) -> dict[str, float | None]:
    easy = adjusted(named("easy"), admission={"tail": tail})
    policy = chosen(easy, counted=True, ahead=False)
    simulation = Simulation([rigid(spec) for spec in specs], Site(nodes), policy)
    simulation.run()
    return starts(simulation)


def twin_starts(
    specs: list[JobSpec], nodes: int = NODES, tail: str = "queue"
) -> dict[str, float | None]:
    """Return when the twin starts each job, as last worked out; it follows to the end."""
    begun: dict[str, float | None] = {}
    enter = Twin._enter

    def entered(twin: Twin, state: Any, job_id: JobId, begun_s: float) -> None:
        begun[str(job_id)] = begun_s
        enter(twin, state, job_id, begun_s)

    on = patch.object(Twin, "_runs_what_runs", lambda *_: False)
    with on, patch.object(Twin, "_enter", entered):
        policy = adjusted(named("backfill-share"), admission={"tail": tail})
        simulation = Simulation(specs, Site(nodes), policy)
        simulation.run()
        state, twin = simulation.engine.state, simulation.engine.twin
        assert twin is not None and len(state.ended) == len(specs)
        twin._advance(state, inf)
    return starts(simulation) | begun


def unknown(specs: list[JobSpec]) -> list[JobSpec]:
    """Let only their ends show how long fixed jobs run."""
    return [
        replace(s, run_s=s.time_s(s.preferred), speedup=None) if s.mode is FIXED else s
        for s in specs
    ]


@settings(max_examples=100)
@given(streams(KIND).map(apart), TAILS)
@pytest.mark.promise("default-policy")
def test_where_run_times_are_known_the_twin_starts_all_jobs_as_easy_does(
    specs: list[JobSpec], tail: str
) -> None:
    assert twin_starts(specs, tail=tail) == pytest.approx(easy_starts(specs, tail=tail))


@settings(max_examples=100)
@given(streams(KIND).map(apart).map(unknown), TAILS)
@pytest.mark.promise("default-policy")
def test_once_all_is_over_the_twin_has_started_all_jobs_as_easy_does(
    specs: list[JobSpec], tail: str
) -> None:
    """What started late shows its run time when it is over; what EASY did since is worked out."""
    assert twin_starts(specs, tail=tail) == pytest.approx(easy_starts(specs, tail=tail))


def test_what_was_worked_out_is_worked_out_again_when_an_earlier_end_shows() -> None:
    """The second that ends unseen begins in the twin at 15 s, but the first is over there at 13 s.

    So it begins at 13 s and is over at 14 s; then the last one, for which it leaves too few nodes.
    """
    driven = Driven(4)
    driven.submit(*(job(n, (n, n, n), FLEXIBLE, run_s=10.0) for n in (1, 3)))
    first, second = (
        replace(job(n, (size,), limit_s=10.0), speedup=None) for n, size in ((4, 3), (6, 1))
    )
    driven.submit(first, job(5, (1, 1, 1), FLEXIBLE, run_s=5.0))
    driven.submit(second, job(7, (3, 3, 3), FLEXIBLE, run_s=1000.0))
    driven.happen(Ticked(10.0), Ticked(15.0))
    assert driven.engine.state.due == {"4": 10.0, "5": 10.0, "6": 15.0}
    assert ends(driven, 1, 20.0) == ["5"]
    assert driven.submit(job(8, (4, 4, 4), FLEXIBLE, at_s=22.0)) == []  # the twin goes on to here
    assert ends(driven, 5, 25.0) == ["6"]
    assert ends(driven, 6, 26.0) == []
    assert ends(driven, 3, 30.0) == ["4"]
    assert ends(driven, 4, 33.0) == ["7"]
    assert driven.engine.twin is not None
    assert driven.engine.twin.state.running[JobId("7")].start_s == 14.0


def ends(driven: Driven, number: int, at_s: float) -> list[str]:
    """Return who starts when a job ends."""
    return [name for name, _ in driven.happen(Ended(at_s, JobId(str(number)), "COMPLETED"))]


def test_what_ran_before_the_twin_began_ends_there_at_its_own_time() -> None:
    """A trace's job without a request is expected to end when it does, from its start on."""
    specs = [
        replace(job(0, (1,), at_s=4.0), speedup=None, run_s=168.0),
        job(3, (1, 8, 8), MALLEABLE, run_s=0.5, at_s=38.0),
        job(4, (1, 4, 4), MOLDABLE, run_s=32.0, at_s=70.0, limit_s=128.0),
    ]
    assert twin_starts(specs) == pytest.approx(easy_starts(specs))


def test_submissions_of_an_instant_come_before_its_ends() -> None:
    """The first is over when the others come; a start of one of these changes nothing of that."""
    specs = [
        job(0, (1, 2, 8), MALLEABLE, run_s=32.0, at_s=4.0, every_s=None),
        job(1, (1, 8, 8), MOLDABLE, run_s=2.0, at_s=36.0, limit_s=0.25),
        replace(job(2, (2, 2, 8), MALLEABLE, run_s=256.0, at_s=36.0, every_s=None), priority=5),
    ]
    assert twin_starts(specs) == easy_starts(specs)


def test_in_the_twin_as_under_easy_only_new_jobs_may_start_at_a_submission() -> None:
    """Jobs 1 and 2 run on after their requests of 10 s and 20 s, on two nodes and on one.

    Job 3 waits for the first end, and job 4 on the free node would delay it. At 30 s, with both
    ends overdue, they would free a node more than job 3 needs. But job 5 that comes then is no
    occasion to look at jobs that have waited: job 3 starts at 1000 s, and job 4 after it.
    """
    sizes = ((1, 2, 1000.0, 10.0), (2, 1, 1100.0, 20.0), (3, 3, 50.0, None), (4, 1, 100.0, None))
    specs = [job(n, (k, k, k), FLEXIBLE, run_s=s, limit_s=most_s) for n, k, s, most_s in sizes]
    specs.append(job(5, (4, 4, 4), FLEXIBLE, at_s=30.0))
    found = twin_starts(specs, nodes=4)
    assert found == {"1": 0.0, "2": 0.0, "3": 1000.0, "4": 1050.0, "5": 1150.0}
    assert found == easy_starts(specs, nodes=4)


def test_a_twin_in_which_a_job_waits_that_is_over_goes_on() -> None:
    """A moldable job takes what is free and is over before EASY would start it."""
    driven = Driven(8)
    driven.submit(job(0, (3,), run_s=67.0))
    driven.submit(job(1, (4, 6, 8), MOLDABLE, run_s=3.0, at_s=1.0))
    driven.happen(Ended(10.0, JobId("1"), "COMPLETED"))
    twin = driven.engine.twin
    assert twin is not None and list(twin.state.pending) == ["1"] and twin.follows


def test_a_stream_of_fixed_jobs_has_no_twin() -> None:
    driven = Driven(8)
    driven.submit(job(1, (8,)), job(2, (4,)))
    assert driven.engine.state.due is None
    assert driven.engine.twin is not None and not driven.engine.twin.follows
    driven.submit(job(3, (1, 2, 2), FLEXIBLE))
    assert driven.engine.state.due == {} and driven.engine.twin.follows


def test_a_job_is_due_from_the_time_on_at_which_easy_would_start_it() -> None:
    driven = Driven(4)
    driven.submit(job(1, (2, 2, 4), MALLEABLE, run_s=100.0), job(2, (1, 4, 4), FLEXIBLE, run_s=50))
    driven.submit(job(3, (4,), at_s=1.0))
    assert driven.engine.state.due == {}
    assert driven.engine.look_s == 100.0  # then the second starts in the twin
    driven.happen(Ticked(100.0), Ticked(150.0))
    assert driven.engine.state.due == {"3": 150.0}
