"""Expected starts went by time limits alone, though running jobs report their steps."""

from __future__ import annotations

import msgspec
import pytest
from driven import Driven, job

from rms.core.model.events import Stepped, Ticked
from rms.core.model.jobs import JobId, JobSpec

ONE, TWO = JobId("1"), JobId("2")


def plain(number: int, limit_s: float | None, at_s: float = 0.0) -> JobSpec:
    spec = job(number, (2,), at_s=at_s, limit_s=limit_s, every_s=None)
    return msgspec.structs.replace(spec, speedup=None, assumed_s=3600.0)


def waiting(limit_s: float | None) -> Driven:
    """A job at step 1584 of 1600, and one that waits for its nodes."""
    driven = Driven(2)
    driven.submit(plain(1, limit_s), plain(2, 60.0))
    driven.happen(Stepped(396.0, ONE, 1584, 1600, 800, 200.0))  # 4 steps a second
    return driven


@pytest.mark.parametrize("limit_s", [None, 1500.0])
def test_a_waiting_job_is_expected_to_start_after_the_last_step(limit_s: float | None) -> None:
    driven = waiting(limit_s)
    assert driven.engine.expected_starts(1) == {TWO: pytest.approx(400.0)}
    later = driven.engine.explain(TWO)
    assert later is not None and "reserved for it in 4 s" in later.reason


def test_no_end_is_expected_after_the_time_limit() -> None:
    assert waiting(398.0).engine.expected_starts(1) == {TWO: 398.0}


def test_an_expected_end_that_has_passed_moves_on() -> None:
    driven = waiting(None)
    ends = []
    for at_s in (400.0, 402.0, 420.0):
        driven.happen(Ticked(at_s))
        ends.append(driven.engine.state.running[ONE].expected_end_s)
    assert ends == pytest.approx([405.0, 405.0, 435.0])
    assert driven.engine.look_s == pytest.approx(435.0)
    driven.happen(Ticked(434.0))
    assert driven.engine.look_s == pytest.approx(439.0)  # seldom, however many jobs are late
