"""Policy ``backfill-share``: its parts one by one."""

from __future__ import annotations

from math import inf, sqrt

import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, MOLDABLE, Driven, job

from rms.core.engine import Engine
from rms.core.events import (
    Decision,
    Ended,
    ResizeBegun,
    ResizePoint,
    ResizeRolledBack,
    Submitted,
    Ticked,
)
from rms.core.model import JobId, JobSpec, Mode, Site
from rms.core.policies import adjusted, named
from rms.core.policies.backfill_share import BackfillShare
from rms.core.policies.order import SmallestFirst
from rms.core.policies.policy import PolicyError
from rms.sim.simulator import Simulation


def order(driven: Driven, made: SmallestFirst | None = None) -> list[str]:
    return [str(j.spec.id) for j in (made or SmallestFirst())(driven.engine.state)]


# --- order -----------------------------------------------------------------------------------


def full(*waiting: JobSpec) -> Driven:
    """Eight nodes held by one job, others waiting in the order given."""
    driven = Driven(8)
    driven.submit(job(1, (8,), run_s=1e9))
    for spec in waiting:
        assert driven.submit(spec) == []
    return driven


def test_small_jobs_come_first_but_for_the_oldest_that_is_not_flexible() -> None:
    wide, tiny, long_ = job(2, (8,)), job(3, (1,), run_s=50), job(4, (1,), run_s=900)
    assert order(full(wide, long_, tiny)) == ["2", "3", "4"]
    flexible = job(2, (4, 8, 8), FLEXIBLE)
    assert order(full(flexible, long_, tiny)) == ["3", "4", "2"]


def test_small_is_least_nodes_times_the_root_of_the_time_asked_for() -> None:
    jobs = [job(2, (8,)), job(3, (2,), run_s=100), job(4, (1,), run_s=399), job(5, (1,), run_s=401)]
    assert order(full(*jobs)) == ["2", "4", "3", "5"]
    assert 1 * sqrt(399) < 2 * sqrt(100) < 1 * sqrt(401)


def test_who_has_waited_long_is_overtaken_no_more() -> None:
    made = SmallestFirst(stretch=2.0, least_s=100.0, resizable=0.0)
    wide = job(2, (4, 8, 8), FLEXIBLE, run_s=300.0)
    short = job(3, (3, 6, 8), FLEXIBLE, run_s=10.0, at_s=1.0)
    tiny = job(4, (1, 1, 2), FLEXIBLE, run_s=1000.0, at_s=2.0)
    driven = full(wide, short, tiny)
    assert [made.due_s(s) for s in driven.engine.state.pending.values()] == [600.0, 201.0, 2002.0]
    driven.happen(Ticked(200.0))
    assert order(driven, made) == ["3", "4", "2"]  # by size
    driven.happen(Ticked(601.0))
    assert order(driven, made) == ["3", "2", "4"]  # the first due first
    assert [n for _, n, _ in driven.engine.state.queue_by(made.due_s)] == [3, 2, 4]


def test_rigid_jobs_alone_come_in_the_order_of_submission() -> None:
    wide, tiny, long_ = job(2, (8,)), job(3, (1,), run_s=50), job(4, (1,), run_s=900)
    driven = full(wide, long_, tiny)
    assert order(driven, SmallestFirst()) == ["2", "4", "3"]
    driven = Driven(8)
    driven.submit(job(1, (8, 8, 8), MALLEABLE, run_s=1e9))
    for spec in (wide, long_, tiny):
        driven.submit(spec)
    assert order(driven, SmallestFirst()) == ["2", "3", "4"]


def test_no_more_jobs_are_looked_at_than_depth() -> None:
    driven = full(*(job(n, (1,)) for n in range(2, 9)))
    assert order(driven, SmallestFirst(depth=3, resizable=0.0)) == ["2", "3", "4"]


def test_tasks_that_their_arrays_limit_holds_back_hide_no_other_job() -> None:
    policy = adjusted(named("backfill-share"), order={"depth": 3})
    engine = Engine(4, policy)
    tasks = tuple(job(n, (1,), array="a", array_limit=1) for n in range(1, 20))
    assert [d.job for d in engine.handle(Submitted(0.0, tasks))] == ["1"]
    other = job(30, (2,), run_s=1e6)
    assert [d.job for d in engine.handle(Submitted(0.0, (other,)))] == ["30"]
    # The oldest that may run, not the oldest task, is the one that none may delay.
    engine.handle(Submitted(0.0, (job(31, (4,)), job(32, (1,)))))
    assert str(next(iter(policy.order(engine.state))).spec.id) == "31"


def test_jobs_without_a_time_limit_come_last_in_the_order_they_came() -> None:
    unknown = [
        JobSpec(JobId(str(n)), 0.0, size, size, size, FIXED) for n, size in ((2, 3), (3, 5), (4, 1))
    ]
    assert order(full(job(9, (8,)), *unknown, job(5, (6,)))) == ["9", "5", "2", "3", "4"]


# --- EASY over least sizes -------------------------------------------------------------------


def found(driven: Driven) -> tuple[list[str], str | None, float, int]:
    state, policy = driven.engine.state, driven.engine.policy
    room = policy.placement(state)
    assert isinstance(policy.sizing, BackfillShare)
    each = policy.sizing.backfilled(state, policy.order(state), room)
    first = None if each.first is None else str(each.first.spec.id)
    return [str(j.spec.id) for j in each.jobs], first, each.reserve(state, room), each.free


def test_a_short_job_overtakes_and_a_long_one_does_not() -> None:
    driven = Driven(4)
    assert driven.submit(job(1, (3,), run_s=100)) == [("1", 3)]
    assert driven.submit(job(2, (4,))) == []
    assert driven.submit(job(3, (1,), run_s=101)) == []
    assert driven.submit(job(4, (1,), run_s=100)) == [("4", 1)]
    assert found(driven) == ([], "2", 100.0, 0)
    assert driven.why(2) == "Resources: waits for 4 nodes, 0 can be had, reserved in 100 s"
    assert (
        driven.why(3) == "Resources: waits for 1 node, 0 can be had; 2 is first, reserved in 100 s"
    )
    driven.happen(Ended(50.0, JobId("4"), "COMPLETED"))
    assert driven.why(3) == "Priority: 1 node can be had, but it would delay 2, reserved in 50 s"


def test_once_the_oldest_starts_the_next_oldest_goes_before_smaller_ones() -> None:
    driven = full(job(2, (4,)), job(3, (4,), run_s=9e4), job(4, (1,)))
    assert driven.happen(Ended(1.0, JobId("1"), "COMPLETED")) == [("2", 4), ("3", 4)]


def test_a_job_that_is_refused_holds_up_no_other_of_its_pass() -> None:
    driven = Driven(8)
    specs = job(1, (9,), array="a"), job(2, (4,), array="a"), job(3, (9,), array="a")
    driven.submit(job(9, (2,)))
    assert driven.submit(*specs) == [("2", 4)]
    assert set(driven.engine.state.ended) == {"1", "3"}


def test_who_leaves_the_reservation_enough_nodes_may_take_any_time() -> None:
    driven = Driven(6)
    driven.submit(job(1, (3,), run_s=100))
    driven.submit(job(2, (5,)))  # one node more than it needs is free at 100 s
    assert driven.submit(job(3, (1,), run_s=1e6), job(4, (1,), run_s=1e6)) == [("3", 1)]


def test_a_malleable_job_overtakes_only_if_it_ends_in_time_at_its_least_size_too() -> None:
    driven = Driven(3)
    driven.submit(job(1, (1,), run_s=5.0))
    driven.submit(job(2, (3,)))  # reserved at 5 s
    # Once it lends a node to another it may need twice as long.
    assert driven.submit(job(3, (1, 2, 2), MALLEABLE, run_s=2.6)) == []
    assert driven.submit(job(4, (1, 2, 2), MALLEABLE, run_s=2.5)) == [("4", 2)]
    assert found(driven)[1:3] == ("2", 5.0)


def test_nodes_lent_count_as_free_and_their_holder_as_slower() -> None:
    driven = Driven(8)
    assert driven.submit(job(1, (2, 8, 8), FLEXIBLE, run_s=100)) == [("1", 8)]
    assert driven.submit(job(2, (8,))) == []
    assert found(driven) == ([], "2", 400.0, 6)  # on 2 nodes it needs four times as long
    assert driven.submit(job(3, (2,), run_s=401)) == []
    assert driven.submit(job(4, (2,), run_s=360)) == []  # may start, but on nodes that are lent
    assert found(driven) == (["4"], "2", 400.0, 4)
    assert driven.why(4) == "Resources: waits for running jobs to give 2 nodes"
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 6), ("4", 2)]


def test_a_resize_under_way_moves_no_reservation() -> None:
    driven = Driven(8, prompt=False)
    driven.submit(job(1, (2, 8, 8), FLEXIBLE, run_s=100))
    driven.submit(job(2, (8,)))
    driven.submit(job(3, (2,), run_s=300))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 6)]
    before = found(driven)[2]
    driven.happen(ResizeBegun(10.0, JobId("1")))
    assert found(driven)[:2] == (["3"], "2")
    assert found(driven)[2] == pytest.approx(before) == pytest.approx(370.0)


def test_sizes_that_were_refused_lend_nothing() -> None:
    driven = Driven(4, prompt=False)
    driven.submit(job(1, (2, 4, 4), FLEXIBLE))
    driven.submit(job(2, (2,)))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 2)]
    driven.happen(ResizeBegun(10.0, JobId("1")))
    assert driven.happen(ResizeRolledBack(11.0, JobId("1"))) == []
    assert found(driven)[:2] == ([], "2")  # 3 are left to it: one node can be had
    assert driven.submit(job(3, (1,), run_s=5.0)) == []
    assert driven.happen(ResizePoint(20.0, JobId("1"))) == [("1", 3)]


def test_jobs_of_no_length_or_without_limit_have_reservations_too() -> None:
    driven = Driven(4)
    driven.submit(JobSpec(JobId("1"), 0.0, 1, 4, 4, FLEXIBLE, run_s=0.0, resize_every_s=10.0))
    driven.submit(job(2, (4,)))
    assert found(driven)[2] == 0.0
    driven = Driven(4)
    driven.submit(JobSpec(JobId("1"), 0.0, 2, 2, 2, FIXED))
    driven.submit(JobSpec(JobId("2"), 0.0, 4, 4, 4, FIXED))
    assert found(driven)[1:3] == ("2", inf)
    # None is sure to end before another: who would hold nodes of the first's does not start.
    assert driven.submit(JobSpec(JobId("3"), 0.0, 1, 1, 1, FIXED)) == []
    assert driven.why(2) == "Resources: waits for 4 nodes, 2 can be had"
    assert driven.why(3) == "Priority: 1 node can be had, but it would delay 2"


# --- room for waiting jobs, idle nodes -------------------------------------------------------


def test_of_those_at_a_resize_point_who_loses_least_gives() -> None:
    driven = Driven(12)
    specs = [job(n, (1, 4, 4), FLEXIBLE, run_s=s, every_s=None) for n, s in ((1, 90), (2, 30))]
    driven.submit(*specs, job(3, (1, 4, 4), FLEXIBLE, run_s=5, every_s=None))
    for number in (1, 2, 3):
        driven.happen(ResizePoint(0.0, JobId(str(number))))
    assert [j.size for j in driven.engine.state.running.values()] == [4, 4, 4]
    # Three nodes less cost the second 3 x 30 s, the first 3 x 90 s; the third 3 x 5 s.
    assert driven.submit(job(4, (5,))) == [("3", 1), ("2", 2), ("4", 5)]


def test_nobody_gives_who_is_not_at_a_resize_point_or_is_as_good_as_over() -> None:
    driven = Driven(8)
    driven.submit(job(1, (1, 4, 4), FLEXIBLE, run_s=1000), job(2, (1, 4, 4), FLEXIBLE, run_s=1000))
    assert driven.submit(job(3, (2,))) == []
    assert driven.happen(ResizePoint(10.0, JobId("2"))) == [("2", 2), ("3", 2)]
    driven = Driven(4)
    driven.submit(job(1, (1, 4, 4), FLEXIBLE, run_s=12, price_s=3.0))
    driven.submit(job(2, (1,)))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == []


def test_one_gives_no_more_than_is_needed_and_the_others_nothing() -> None:
    driven = Driven(8)
    driven.submit(*(job(n, (1, 4, 4), FLEXIBLE, run_s=1000) for n in (1, 2)))
    driven.submit(job(3, (1,)))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 3), ("3", 1)]
    assert driven.happen(ResizePoint(10.0, JobId("2"))) == []


def test_no_more_jobs_are_resized_at_once_than_allowed() -> None:
    driven = Driven(12, prompt=False)
    driven.engine.state.max_concurrent_resizes = 1
    driven.submit(*(job(n, (1, 4, 4), FLEXIBLE, run_s=100, every_s=None) for n in (1, 2, 3)))
    for number in (1, 2, 3):
        driven.happen(ResizePoint(0.0, JobId(str(number))))
    assert len(driven.submit(job(4, (8,)))) == 1
    assert driven.happen(Ticked(1.0)) == []


def test_idle_nodes_go_to_whoever_has_longest_to_go_at_its_resize_point() -> None:
    driven = Driven(8)
    driven.submit(job(1, (2, 2, 4), MALLEABLE, run_s=100), job(2, (2, 2, 4), MALLEABLE, run_s=300))
    driven.submit(job(3, (4,), run_s=10.0))
    assert driven.happen(Ended(10.0, JobId("3"), "COMPLETED")) == []
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 4)]  # the other has two left
    assert driven.happen(ResizePoint(20.0, JobId("2"))) == [("2", 4)]


def test_a_resize_that_saves_less_than_it_costs_is_not_made() -> None:
    for price_s, expected in ((29.0, [("1", 3)]), (31.0, [])):
        driven = Driven(4)
        driven.submit(job(1, (2, 2, 3), MALLEABLE, run_s=100, price_s=price_s))
        driven.submit(job(2, (2,), run_s=10.0))
        driven.happen(Ended(10.0, JobId("2"), "COMPLETED"))
        assert driven.happen(ResizePoint(10.0, JobId("1"))) == expected  # saves 30 s


def test_a_flexible_job_starts_on_idle_nodes_and_gives_them_back() -> None:
    driven = Driven(8)
    assert driven.submit(job(1, (2, 4, 6), FLEXIBLE)) == [("1", 6)]
    driven.submit(job(2, (6,)))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 2), ("2", 6)]


def test_a_moldable_job_has_what_it_prefers_or_fits_and_delays_no_reservation() -> None:
    driven = Driven(8)
    assert driven.submit(job(1, (2, 4, 8), MOLDABLE, run_s=100)) == [("1", 4)]
    assert driven.submit(job(2, (6,))) == []
    # Two nodes are left beside those reserved at 100 s.
    assert driven.submit(job(3, (1, 3, 8), MOLDABLE, run_s=200)) == []
    assert driven.submit(job(4, (1, 3, 8), MOLDABLE, run_s=50)) == [("4", 3)]
    assert driven.submit(job(5, (1, 3, 8), MOLDABLE, run_s=200)) == [("3", 1)]  # what fits now


def test_where_points_are_unknown_nothing_reserved_for_a_rigid_job_is_lent_at_the_start() -> None:
    def started(waits: JobSpec, every_s: float | None) -> int:
        driven = Driven(8)
        driven.submit(job(1, (4,), run_s=100))
        driven.submit(waits)
        spec = job(3, (1, 2, 4), FLEXIBLE, run_s=30, every_s=every_s)
        return dict(driven.submit(spec))["3"]

    assert started(job(2, (8,)), None) == 1
    assert started(job(2, (8,)), 10.0) == 4
    assert started(job(2, (8, 8, 8), FLEXIBLE, run_s=1e6), None) == 4


@pytest.mark.promise("default-policy")
def test_a_job_that_was_resized_often_is_widened_no_more() -> None:
    """Short jobs come and go beside a long one, whether or not that is an array's task."""
    for array in (None, "a"):
        driven = Driven(4)
        driven.submit(job(1, (2, 4, 4), FLEXIBLE, run_s=1e6, array=array))
        for turn in range(40):
            at_s = 20.0 * turn
            driven.submit(job(turn + 2, (2,), run_s=10.0, at_s=at_s))
            driven.happen(ResizePoint(at_s + 1, JobId("1")))
            assert JobId(str(turn + 2)) in driven.engine.state.running
            driven.happen(Ended(at_s + 11, JobId(str(turn + 2)), "COMPLETED"))
            driven.happen(ResizePoint(at_s + 12, JobId("1")))
        assert driven.engine.state.running[JobId("1")].resize_count == 25  # the last gave


def test_who_may_be_widened_is_not_hidden_by_those_that_may_not() -> None:
    policy = adjusted(named("backfill-share"), sizing={"resizes": 1, "look": 2})
    driven = Driven(10)
    driven.engine.policy = policy
    driven.submit(*(job(n, (1, 2, 3), MALLEABLE, run_s=1e4 + n) for n in (1, 2, 3)))
    driven.submit(job(4, (4,), run_s=5.0))
    for each in driven.engine.state.running.values():
        each.resize_count = 1 if each.spec.id != "1" else 0
    driven.happen(Ended(5.0, JobId("4"), "COMPLETED"))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 3)]


# --- arrays, TOML, jobs as a daemon has them -------------------------------------------------


@pytest.mark.parametrize("price_s", [0.0, 2.0])
@pytest.mark.parametrize(("low", "nodes"), [(1, 6), (2, 8), (2, 7)])
def test_on_an_array_alone_it_decides_as_array_share(price_s: float, low: int, nodes: int) -> None:
    def decided(policy: str) -> list[tuple[float, Decision]]:
        specs = [
            job(n, (low, 4, 4), FLEXIBLE, run_s=50.0 + n, price_s=price_s, array="a")
            for n in range(9)
        ]
        simulation = Simulation(specs, Site(nodes), named(policy))
        simulation.run()
        return simulation.decisions

    share, ours = decided("array-share"), decided("backfill-share")
    # Beyond it, nodes are lent of which too few are left for the next task.
    same = next((n for n, (a, b) in enumerate(zip(share, ours, strict=False)) if a != b), None)
    assert share == ours if low == 1 or nodes % low == 0 else same is not None
    assert ours[-1][0] <= share[-1][0]


@pytest.mark.parametrize(
    ("kind", "part", "message"),
    [
        ("sizing", {"resizes": -1}, "expected resizes of at least 0, got -1"),
        ("sizing", {"resizes": 1.5}, "Expected `int`, got `float`"),
        ("sizing", {"energy": 2.0}, "expected energy of 0 to 1"),
        ("sizing", {"widest": 3}, "unknown field `widest`"),
        ("order", {"stretch": 0.0}, "expected stretch, least_s and depth above 0"),
        ("order", {"stretch": float("nan")}, "expected stretch, least_s and depth above 0"),
        ("order", {"least_s": -1.0}, "expected stretch, least_s and depth above 0"),
        ("order", {"depth": 0}, "expected stretch, least_s and depth above 0"),
        ("admission", {"estimates": "exact"}, "Invalid enum value 'exact'"),
    ],
)
def test_values_that_cannot_be_are_refused(kind: str, part: dict[str, float], message: str) -> None:
    with pytest.raises(PolicyError, match=message) as error:
        adjusted(named("backfill-share"), **{kind: part})
    assert "\n" not in str(error.value)


def test_nothing_known_of_a_job_but_its_sizes() -> None:
    def unknown(number: int, low: int, high: int, mode: Mode = FLEXIBLE) -> JobSpec:
        return JobSpec(JobId(str(number)), 0.0, low, high, high, mode, resize_price_s=5.0)

    driven = Driven(8)
    assert driven.submit(unknown(1, 2, 8)) == [("1", 8)]
    assert driven.submit(unknown(2, 4, 4, FIXED)) == []
    assert driven.why(2) == "Resources: waits for 4 nodes, 0 can be had"
    assert driven.happen(ResizePoint(3.0, JobId("1"))) == [("1", 4), ("2", 4)]
    assert driven.submit(unknown(3, 2, 6)) == [("1", 2), ("3", 2)]
    assert driven.submit(unknown(4, 8, 8, FIXED)) == []
    assert driven.happen(Ended(9.0, JobId("2"), "COMPLETED")) == [("1", 6)]
    # What was asked for and taken back is asked for again; what was refused is not.
    driven.prompt = False
    driven.happen(Ended(9.5, JobId("4"), "CANCELLED"))
    assert driven.submit(unknown(5, 2, 2, FIXED)) == [("1", 4)]
    driven.happen(ResizeRolledBack(10.0, JobId("1"), later=True))
    assert driven.happen(ResizePoint(11.0, JobId("1"))) == []
    assert driven.engine.state.running[JobId("1")].requested_size == 4
    assert driven.happen(ResizeRolledBack(12.0, JobId("1"))) == [("1", 3)]
