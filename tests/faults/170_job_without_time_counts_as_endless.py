"""A job without ``--time`` counted as endless: jobs behind it had no expected start."""

from __future__ import annotations

from math import inf

import msgspec
from driven import Driven, job

from rms.core.model.events import Ticked
from rms.core.model.jobs import Job, JobId, JobSpec
from rms.daemon.jobs.watch import due_s
from rms.daemon.store.record import JobRuntime

ASSUMED_S = 3600.0


def unlimited(number: int, nodes: int, at_s: float = 0.0) -> JobSpec:
    spec = job(number, (nodes,), at_s=at_s, every_s=None)
    return msgspec.structs.replace(spec, speedup=None, assumed_s=ASSUMED_S)


def test_a_job_behind_it_is_expected_to_start_after_the_assumed_time() -> None:
    driven = Driven(2)
    assert driven.submit(unlimited(1, 2)) == [("1", 2)]
    assert driven.submit(unlimited(2, 2, at_s=10.0), unlimited(3, 1, at_s=10.0)) == []
    starts = driven.engine.expected_starts(10)
    assert sorted(starts.items()) == [("2", 3600.0), ("3", 7200.0)]
    later = driven.engine.explain(JobId("2"))
    assert later is not None and "reserved for it in 3590 s" in later.reason


def test_a_short_job_with_a_limit_starts_beside_one_without() -> None:
    driven = Driven(2, "easy")
    assert driven.submit(unlimited(1, 1), unlimited(2, 2)) == [("1", 1)]
    assert driven.submit(unlimited(3, 1, at_s=5.0)) == []  # it would end after the reservation
    short = msgspec.structs.replace(job(4, (1,), at_s=5.0, limit_s=1.0), speedup=None)
    assert driven.submit(short) == [("4", 1)]


def test_past_its_assumed_time_it_is_expected_to_run_as_long_again() -> None:
    driven = Driven(2, "easy")
    driven.submit(unlimited(1, 2), unlimited(2, 2))
    running, engine = driven.engine.state.running[JobId("1")], driven.engine
    for at_s, end_s in ((0.0, 3600.0), (3600.0, 7200.0), (7200.0, 14400.0), (50_000.0, 57_600.0)):
        driven.happen(Ticked(at_s))
        assert running.expected_end_s == engine.look_s == end_s
        assert engine.expected_starts(1) == {"2": end_s}
    assert [entry[0] for entry in engine.state.ends] == [57_600.0]


def test_no_job_is_ended_for_an_assumed_time() -> None:
    running = Job(unlimited(1, 1), start_s=0.0)
    assert due_s(JobRuntime(JobId("1")), running) == inf


def test_time_limits_and_run_times_take_precedence() -> None:
    spec = msgspec.structs.replace(job(1, (1,), run_s=50.0), assumed_s=ASSUMED_S)
    assert spec.expected_s(1) == 50.0
    limited = msgspec.structs.replace(unlimited(1, 1), limit_s=20.0)
    assert limited.expected_s(1) == limited.expected_s(1, exact=True) == 20.0
    assert unlimited(1, 1).expected_s(1, exact=True) == ASSUMED_S
