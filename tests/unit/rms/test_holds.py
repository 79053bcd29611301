"""Jobs that may not start yet: held by a user, or before their time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rms.core.model.events import Ended, Freed, HeldByUser, Reopened, Start, Submitted
from rms.core.model.jobs import Dependency, JobId, JobSpec, Mode, NodePower
from rms.core.policies import POLICIES
from rms.core.rules.transition import TransitionError, due
from rms.core.scheduler.engine import Engine
from rms.formats.values import ScriptError, parse_begin, parse_dependency
from rms.sim.simulator import Simulation

A, B, C = JobId("1"), JobId("2"), JobId("3")
NOON_S = datetime(2026, 11, 22, 12).timestamp()  # local time


def spec(job: JobId, nodes: int = 1, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(job, submit_s, nodes, nodes, nodes, Mode.FIXED, run_s=10.0)


def started(decisions: Sequence[object]) -> list[JobId]:
    return [each.job for each in decisions if isinstance(each, Start)]


def why(engine: Engine, job: JobId) -> str:
    later = engine.explain(job)
    return "" if later is None else later.reason


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative", "backfill-share"])
def test_a_held_job_lets_others_by_and_has_its_place_again(policy: str) -> None:
    engine = Engine(2, POLICIES[policy])
    assert started(engine.handle(Submitted(0.0, (spec(JobId("0"), 2),)))) == ["0"]
    engine.handle(Submitted(0.0, (spec(A, 2),)))
    engine.handle(Submitted(0.0, (spec(B, 2),)))
    assert engine.handle(HeldByUser(1.0, (A,), True)) == []
    assert why(engine, A) == "JobHeldUser" and engine.state.job(A) is engine.state.held[A]
    assert started(engine.handle(Ended(2.0, JobId("0"), "COMPLETED"))) == [B]
    engine.handle(Submitted(3.0, (spec(C, 2),)))
    assert engine.handle(HeldByUser(4.0, (A,), False)) == []
    assert list(engine.state.pending) == [A, C]
    assert started(engine.handle(Ended(5.0, B, "COMPLETED"))) == [A]


@pytest.mark.parametrize("policy", ["fifo", "easy", "backfill-share"])
def test_holding_the_first_job_lets_the_next_start_at_once(policy: str) -> None:
    engine = Engine(2, POLICIES[policy])
    engine.handle(Submitted(0.0, (spec(JobId("0")),)))
    engine.handle(Submitted(0.0, (spec(A, 2),)))
    assert started(engine.handle(Submitted(0.0, (replace(spec(B), run_s=None),)))) == []
    assert started(engine.handle(HeldByUser(1.0, (A,), True))) == [B]
    assert started(engine.handle(Ended(2.0, B, "COMPLETED"))) == []
    engine.handle(Ended(2.0, JobId("0"), "COMPLETED"))
    assert started(engine.handle(HeldByUser(3.0, (A,), False))) == [A]


def test_a_job_submitted_as_held_waits_for_its_user_and_its_time() -> None:
    engine = Engine(1, POLICIES["easy"])
    held = replace(spec(A), hold=True, begin_s=50.0)
    assert started(engine.handle(Submitted(0.0, (held, spec(B))))) == [B]
    assert engine.handle(HeldByUser(1.0, (A,), False)) == []
    assert why(engine, A) == "BeginTime: 50 s after it was submitted"
    engine.handle(Ended(2.0, B, "COMPLETED"))
    assert started(engine.handle(Freed(50.0, (A,)))) == [A]
    with pytest.raises(TransitionError, match="expected a job that waits, got 1"):
        engine.handle(HeldByUser(51.0, (A,), True))


def test_a_held_job_is_cancelled_and_waits_for_a_cluster_that_is_wide_enough() -> None:
    engine = Engine(2, POLICIES["easy"])
    engine.handle(Submitted(0.0, tuple(replace(spec(job, 2), hold=True) for job in (A, B))))
    engine.handle(Ended(1.0, A, "CANCELLED"))
    assert list(engine.state.held) == [B] and A in engine.state.ended
    engine.handle(Reopened(2.0, "x", ("n1",)))
    assert engine.handle(HeldByUser(3.0, (B,), False)) == []
    assert why(engine, B).startswith("TooWide: needs 2 nodes, the cluster has 1 node")
    assert started(engine.handle(Reopened(4.0, "y", ("n1", "n2")))) == [B]


@pytest.mark.parametrize("passes", ["per-event", "per-timestamp", "ends-first"])
def test_a_simulated_job_begins_no_earlier_than_it_may(passes: str) -> None:
    specs = [replace(spec(A), begin_s=30.0), replace(spec(B), begin_s=5.0), spec(C)]
    simulation = Simulation(specs, (NodePower(),), POLICIES["easy"], passes=passes)  # type: ignore[arg-type]
    simulation.run()
    ended = simulation.engine.state.ended
    assert {job: ended[job].start_s for job in ended} == {C: 0.0, B: 10.0, A: 30.0}
    again = Engine(1, POLICIES["easy"])
    if passes != "per-timestamp":
        assert [d for event in simulation.events for d in again.handle(event)] == [
            decision for _, decision in simulation.decisions
        ]


# --- dependencies --------------------------------------------------------------------------------

OK, ANY, NOT_OK = "afterok", "afterany", "afternotok"


def after(job: JobId, *asked: tuple[str, str], any_of: bool = False) -> JobSpec:
    return replace(spec(job), after=tuple(Dependency(*each) for each in asked), after_any=any_of)


@pytest.mark.parametrize(
    ("asked", "any_of", "ends", "starts", "reason"),
    [
        (((OK, "1"),), False, ["COMPLETED"], True, ""),
        (((OK, "1"),), False, ["TIMEOUT"], False, "DependencyNeverSatisfied: afterok:1"),
        (((ANY, "1"),), False, ["CANCELLED"], True, ""),
        (((NOT_OK, "1"),), False, ["FAILED"], True, ""),
        (((NOT_OK, "1"),), False, ["COMPLETED"], False, "DependencyNeverSatisfied: afternotok:1"),
        (((OK, "1"), (OK, "2")), False, ["COMPLETED"], False, "Dependency: afterok:2"),
        (((OK, "1"), (OK, "2")), True, ["COMPLETED"], True, ""),
        (((OK, "1"), (OK, "2")), True, ["FAILED"], False, "Dependency: afterok:1?afterok:2"),
        (((OK, "1"), (ANY, "2")), False, ["COMPLETED", "FAILED"], True, ""),
        (((OK, "7"),), False, [], False, "DependencyNeverSatisfied: afterok:7"),
    ],
)
def test_a_job_waits_for_the_ends_of_others(
    asked: tuple[tuple[str, str], ...], any_of: bool, ends: list[str], starts: bool, reason: str
) -> None:
    engine = Engine(3, POLICIES["easy"])
    engine.handle(Submitted(0.0, (spec(A),)))
    engine.handle(Submitted(0.0, (spec(B),)))
    assert engine.handle(Submitted(0.0, (after(C, *asked, any_of=any_of),))) == []
    for job, state in zip((A, B), ends, strict=False):
        engine.handle(Ended(1.0, job, state))  # type: ignore[arg-type]
    assert due(engine.state, 1.0) == ((C,) if starts else ())
    if starts:
        assert started(engine.handle(Freed(1.0, (C,)))) == [C]
    else:
        assert why(engine, C) == reason


@pytest.mark.parametrize(
    ("kind", "failed", "expected"),
    [
        ("afterok", "", ["9_0", "9_1"]),
        ("afterok", "8_1", []),
        ("afterany", "8_1", ["9_0", "9_1"]),
        ("afternotok", "8_1", ["9_0", "9_1"]),
        ("afternotok", "", []),
        ("aftercorr", "8_1", ["9_0"]),
    ],
)
def test_an_array_is_over_with_its_last_task(kind: str, failed: str, expected: list[str]) -> None:
    engine = Engine(4, POLICIES["easy"])
    first = [replace(spec(JobId(f"8_{n}")), array="8") for n in range(2)]
    then = [replace(after(JobId(f"9_{n}"), (kind, "8")), array="9") for n in range(2)]
    assert len(engine.handle(Submitted(0.0, tuple(first)))) == 2
    engine.handle(Submitted(0.0, tuple(then)))
    engine.handle(Ended(1.0, JobId("8_0"), "COMPLETED"))
    assert due(engine.state, 1.0) == (("9_0",) if kind == "aftercorr" else ())
    engine.handle(Ended(2.0, JobId("8_1"), "FAILED" if failed else "COMPLETED"))
    assert list(due(engine.state, 2.0)) == expected


def test_simulated_jobs_wait_for_one_another() -> None:
    specs = [spec(A), after(B, (OK, "1")), replace(after(C, (ANY, "2")), begin_s=50.0)]
    simulation = Simulation(specs, (NodePower(),) * 3, POLICIES["backfill-share"])
    simulation.run()
    starts = {job.spec.id: job.start_s for job in simulation.engine.state.ended.values()}
    assert starts == {A: 0.0, B: 10.0, C: 50.0}


@given(st.text(alphabet="afteroknycrs:0123_,?ingle", max_size=40))
def test_any_text_is_dependencies_or_refused(text: str) -> None:
    try:
        found = parse_dependency(text)
        assert found.after or found.singleton
    except ScriptError as error:
        assert repr(text) in str(error)


# --- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "later_s"),
    [
        *(("now", 0), ("now+90", 90), ("now+2minutes", 120), ("now+1hour", 3600)),
        *(("now+1day", 86_400), ("now+2weeks", 2 * 604_800), ("tomorrow", 86_400)),
        *(("16:00", 4 * 3600), ("16:00:30", 4 * 3600 + 30), ("teatime", 4 * 3600)),
        *(("11:00", 23 * 3600), ("midnight", 12 * 3600), ("noon", 86_400)),
        *(("2026-11-22T13:30", 5400), ("2026-11-23", 12 * 3600), ("2026-11-22T11:59:59", -1)),
    ],
)
def test_times_in_slurms_forms(text: str, later_s: int) -> None:
    assert parse_begin(text, NOON_S) - NOON_S == pytest.approx(later_s)


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "7", "now+", "now+1year", "2026-13-01", "2026-01-01T", "now-1"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ScriptError, match="expected a time like now\\+1hour"):
        parse_begin(text, NOON_S)


@given(st.text(alphabet="0123456789-:T+nowhurs ", max_size=24))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        parse_begin(text, NOON_S)
    except ScriptError as error:
        assert repr(text) in str(error)
