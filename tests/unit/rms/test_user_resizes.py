"""Resizes that users ask for: they wait for a resize point, and hold until a waiting job needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from driven import MALLEABLE, Driven, job

from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    Later,
    Reason,
    Requeued,
    Resize,
    ResizeAsked,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.core.policies import POLICIES
from rms.core.scheduler.engine import Engine

A, B = JobId("1"), JobId("2")


def spec(job: JobId, high: int, low: int = 1, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(job, submit_s, low, high, high, Mode.FLEXIBLE)


def begun(policy: str, *, point: bool = True) -> Engine:
    """Return an engine of four nodes, all of them a job's that was submitted alone."""
    engine = Engine(4, POLICIES[policy])
    engine.handle(Submitted(0.0, (spec(A, 4),)))
    engine.handle(Started(0.0, A))
    if point:
        engine.handle(ResizePoint(1.0, A))
    return engine


def asked(at_s: float, size: int) -> ResizeAsked:
    return ResizeAsked(at_s, A, size, holds=True)


def sizes(decisions: Sequence[Decision]) -> list[tuple[JobId, int]]:
    return [(each.job, each.size) for each in decisions if isinstance(each, Resize)]


@pytest.mark.promise("user-resizes")
@pytest.mark.parametrize("policy", ["backfill-share", "array-share"])
def test_a_users_resize_holds_until_a_waiting_job_needs_otherwise(policy: str) -> None:
    engine = begun(policy)
    assert sizes(engine.handle(asked(2.0, 2))) == [(A, 2)]
    assert sizes(engine.handle(Resized(3.0, A))) == []
    assert sizes(engine.handle(ResizePoint(4.0, A))) == []
    engine.handle(Submitted(5.0, (spec(B, 3, 3),)))
    assert sizes(engine.handle(ResizePoint(6.0, A))) in ([], [(A, 1)])
    assert engine.state.running[A].requested_size == 1
    engine.handle(Resized(7.0, A))
    assert B in engine.state.running
    assert sizes(engine.handle(Ended(8.0, B, "CANCELLED"))) == [(A, 4)]


@pytest.mark.promise("user-resizes")
@pytest.mark.parametrize("policy", ["backfill-share", "array-share"])
def test_the_choice_is_given_back_to_the_policy(policy: str) -> None:
    engine, again = begun(policy), begun(policy)
    auto = ResizeAsked(4.0, A, 0, holds=True, auto=True)
    for event in (asked(2.0, 2), Resized(3.0, A)):
        again.follow(event, engine.handle(event))
    said, *decided = engine.handle(auto)
    assert said.code is Reason.BY_POLICY and sizes(decided) == [(A, 4)]  # type: ignore[union-attr]
    again.follow(auto, [said, *decided])
    assert again.state == engine.state and not engine.state.running[A].kept


@pytest.mark.parametrize("others", [0, 1])
def test_nodes_that_a_widening_takes_are_reserved_at_the_end_of_its_job(others: int) -> None:
    """Two further nodes stay free then if another job ends as well: a long job may have those."""
    driven = Driven(4 + others, "easy", prompt=False)
    driven.submit(*(job(number, (1,)) for number in range(others)), job(7, (1, 1, 3), MALLEABLE))
    driven.happen(ResizePoint(1.0, JobId("7")), ResizeAsked(1.0, JobId("7"), 2 + (not others)))
    assert driven.engine.state.free_count == 1 + others
    assert driven.submit(job(8, (4 - others,), at_s=2.0)) == []
    long = job(9, (1 + others,), at_s=3.0, run_s=1000.0)
    assert driven.submit(long) == [("9", 2)] * others


def test_what_waits_for_a_resize_point_is_taken_back() -> None:
    engine = begun("fifo", point=False)
    engine.handle(asked(2.0, 3))
    engine.handle(ResizeAsked(3.0, A, 0, holds=True, auto=True))
    assert not engine.state.wanted
    assert sizes(engine.handle(ResizePoint(4.0, A))) == []


def test_a_second_resize_during_one_is_refused_and_does_not_wait() -> None:
    engine = begun("backfill-share")
    assert sizes(engine.handle(asked(2.0, 2))) == [(A, 2)]
    (refused,) = engine.handle(asked(2.5, 3))
    assert isinstance(refused, Later) and refused.code is not Reason.RESIZE_POINT
    assert "is being resized" in refused.reason and not engine.state.wanted


def test_a_resize_that_was_rolled_back_holds_nothing() -> None:
    engine = begun("backfill-share")
    engine.handle(asked(2.0, 2))
    engine.handle(Resized(3.0, A))
    assert sizes(engine.handle(asked(4.0, 3))) == [(A, 3)]
    found = engine.handle(ResizeRolledBack(5.0, A, "lost", later=True))
    assert sizes(found) == [(A, 4)]


@pytest.mark.promise("user-resizes")
@pytest.mark.parametrize("policy", ["backfill-share", "fifo"])
def test_a_resize_waits_for_the_first_resize_point(policy: str) -> None:
    engine = begun(policy, point=False)
    (said,) = engine.handle(asked(2.0, 3))
    assert said.code is Reason.RESIZE_POINT and engine.state.wanted
    engine.handle(asked(3.0, 2))  # another word goes over the first
    again = begun(policy, point=False)
    again.follow(asked(3.0, 2), [said])
    decided = engine.handle(ResizePoint(4.0, A))
    assert sizes(decided) == [(A, 2)] and not engine.state.wanted
    again.follow(ResizePoint(4.0, A), decided)
    assert again.state.running[A].kept and not again.state.wanted
    assert sizes(engine.handle(Resized(5.0, A))) == []
    assert sizes(again.handle(Resized(5.0, A))) == []


def test_what_cannot_be_at_the_resize_point_is_refused_then() -> None:
    engine = Engine(4, POLICIES["fifo"])
    engine.handle(Submitted(0.0, (JobSpec(A, 0.0, 1, 4, 2, Mode.MALLEABLE), spec(B, 1))))
    engine.handle(Started(0.0, A))
    engine.handle(asked(1.0, 4))
    (refused,) = engine.handle(ResizePoint(2.0, A))
    assert refused.code is Reason.REFUSED and "wants 2 nodes more, 1 is free" in refused.reason  # type: ignore[union-attr]
    assert not engine.state.wanted and not engine.state.running[A].kept


@pytest.mark.parametrize("end", [Requeued(3.0, A), Ended(3.0, A, "CANCELLED")])
def test_who_is_gone_waits_for_nothing(end: Event) -> None:
    engine = begun("fifo", point=False)
    engine.handle(asked(2.0, 3))
    engine.handle(end)
    assert not engine.state.wanted
