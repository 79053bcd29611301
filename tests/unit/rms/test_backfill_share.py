"""Policy ``backfill-share``: its parts one by one."""

from __future__ import annotations

from math import inf, sqrt

import msgspec
import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, MOLDABLE, Driven, job

from rms.core.model.events import (
    Decision,
    Ended,
    ResizeBegun,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Submitted,
    Ticked,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Site, Speedup
from rms.core.policies import adjusted, named
from rms.core.policies.backfill_share import GAIN, BackfillShare
from rms.core.policies.order import SmallestFirst
from rms.core.policies.policy import PolicyError
from rms.core.policies.share import RESTS_S
from rms.core.scheduler.engine import Engine
from rms.sim.simulator import Simulation


def order(driven: Driven, made: SmallestFirst | None = None) -> list[str]:
    return [str(j.spec.id) for j in (made or SmallestFirst())(driven.engine.state)]


def sized(**parameters: float) -> str:
    """Return the default policy with other parameters of its sizing."""
    return adjusted(named("backfill-share"), sizing=parameters).text


def ends(driven: Driven, number: int, at_s: float) -> list[tuple[str, int]]:
    return driven.happen(Ended(at_s, JobId(str(number)), "COMPLETED"))


def point(driven: Driven, number: int, at_s: float) -> list[tuple[str, int]]:
    return driven.happen(ResizePoint(at_s, JobId(str(number))))


# --- order -----------------------------------------------------------------------------------


def full(*waiting: JobSpec, mode: Mode = FLEXIBLE) -> Driven:
    """Eight nodes held by one job, which has no other size; others wait in the order handed in."""
    driven = Driven(8)
    driven.submit(job(1, (8, 8, 8), mode, run_s=1e9))
    for spec in waiting:
        assert driven.submit(spec) == []
    return driven


def test_small_jobs_come_first() -> None:
    wide, tiny, long_ = job(2, (8,)), job(3, (1,), run_s=50), job(4, (1,), run_s=900)
    assert order(full(wide, long_, tiny)) == ["3", "4", "2"]
    flexible = job(2, (4, 8, 8), FLEXIBLE)
    assert order(full(flexible, long_, tiny)) == ["3", "4", "2"]


def test_small_is_least_nodes_times_the_root_of_the_time_requested() -> None:
    jobs = [job(2, (8,)), job(3, (2,), run_s=100), job(4, (1,), run_s=399), job(5, (1,), run_s=401)]
    assert order(full(*jobs)) == ["4", "3", "5", "2"]
    assert 1 * sqrt(399) < 2 * sqrt(100) < 1 * sqrt(401)


@pytest.mark.promise("default-policy")
def test_who_is_due_starts_before_who_is_smaller() -> None:
    """In the twin the first is over at 50 s, too, and its nodes go to the oldest."""
    driven = Driven(4)
    early = msgspec.structs.replace(job(1, (4,), limit_s=100.0), speedup=None, run_s=50.0)
    driven.submit(early)
    wide, tiny = job(2, (4, 4, 4), FLEXIBLE, run_s=50), job(3, (1, 1, 1), FLEXIBLE, run_s=10)
    assert driven.submit(wide) == driven.submit(tiny) == []
    assert driven.engine.state.due == {} and order(driven) == ["3", "2"]
    assert ends(driven, 1, 50.0) == [("2", 4)]
    assert driven.engine.state.due == {} and order(driven) == ["3"]
    assert ends(driven, 2, 100.0) == [("3", 1)]


@pytest.mark.promise("default-policy")
def test_a_due_task_starts_before_smaller_ones_of_its_array() -> None:
    """One of the array runs at once: the other that is due is not to wait behind the smaller."""
    driven = Driven(5)
    driven.submit(job(9, (1, 1, 1), FLEXIBLE, run_s=1e6))
    one = job(1, (4,), limit_s=100.0, array="a", array_limit=1)
    driven.submit(msgspec.structs.replace(one, speedup=None, run_s=50.0))
    wide = job(2, (4, 4, 4), FLEXIBLE, run_s=50, array="a", array_limit=1)
    tiny = job(3, (1, 1, 1), FLEXIBLE, run_s=10, array="a", array_limit=1)
    assert driven.submit(wide) == driven.submit(tiny) == []
    assert ends(driven, 1, 50.0) == [("2", 4)]


def test_a_due_job_that_cannot_start_says_for_how_long() -> None:
    driven = Driven(4)
    driven.submit(job(1, (1, 2, 4), FLEXIBLE, run_s=100))
    assert driven.submit(job(2, (2,), run_s=50)) == []  # the twin has two nodes left
    driven.happen(Ticked(4.0))
    assert driven.why(2) == "Resources: waits for running jobs to give 2 nodes; due for 4 s"
    assert point(driven, 1, 10.0) == [("1", 2), ("2", 2)]


@pytest.mark.promise("default-policy")
def test_the_first_due_job_that_cannot_start_is_delayed_by_nobody() -> None:
    """In the twin job 1 is over at 100 s and job 2 at 150 s; here job 1 may run until 1000 s.

    Then job 2 has all nodes: others may have the free one until then, but no longer.
    """
    driven = Driven(4)
    driven.submit(job(1, (3,), run_s=100, limit_s=1000.0))
    assert driven.submit(job(2, (4, 4, 4), FLEXIBLE, run_s=50)) == []
    assert driven.submit(job(3, (4, 4, 4), FLEXIBLE, run_s=50)) == []
    driven.happen(Ticked(100.0), Ticked(150.0))
    assert driven.engine.state.due == {"2": 100.0, "3": 150.0}
    assert driven.submit(job(4, (1,), run_s=860.0)) == []
    assert driven.why(4) == ("Priority: 1 node can be had, but it would delay 2, reserved in 850 s")
    assert driven.submit(job(5, (1,), run_s=840.0)) == [("5", 1)]


def test_jobs_of_accounts_that_hold_less_than_an_equal_share_come_first() -> None:
    def of(account: str, spec: JobSpec) -> JobSpec:
        return msgspec.structs.replace(spec, account=account)

    driven = Driven(8)
    driven.submit(*(of("many", job(n, (1, 4, 4), FLEXIBLE, run_s=1e6)) for n in (1, 2)))
    for number in (3, 4):
        driven.submit(of("many", job(number, (3,), run_s=50)))
    for number in (5, 6):
        driven.submit(of("few", job(number, (5,), run_s=100)))
    state = driven.engine.state
    assert state.held_by == {"many": 2} and order(driven) == ["3", "4", "5", "6"]
    driven = full(of("few", job(2, (5,))), job(3, (1,)), of("few", job(4, (3,))))
    assert order(driven) == ["4", "2", "3"]  # the account without a name holds all


def test_jobs_of_one_account_only_come_by_size() -> None:
    assert order(full(job(2, (5,)), job(3, (1,)))) == ["3", "2"]


@pytest.mark.promise("default-policy")
def test_rigid_jobs_alone_start_in_the_order_of_submission() -> None:
    wide, tiny, long_ = job(2, (8,)), job(3, (1,), run_s=50), job(4, (1,), run_s=900)
    driven = full(wide, long_, tiny, mode=FIXED)
    assert driven.engine.state.due is None
    assert ends(driven, 1, 1.0) == [("2", 8)]
    assert ends(driven, 2, 101.0) == [("4", 1), ("3", 1)]


def test_no_more_jobs_are_looked_at_than_depth() -> None:
    driven = full(*(job(n, (1,)) for n in range(2, 9)))
    assert order(driven, SmallestFirst(depth=3)) == ["2", "3", "4"]


def test_tasks_that_their_arrays_limit_holds_back_hide_no_other_job() -> None:
    policy = adjusted(named("backfill-share"), order={"depth": 3})
    engine = Engine(4, policy)
    tasks = tuple(job(n, (1,), array="a", array_limit=1) for n in range(1, 20))
    (one,) = engine.handle(Submitted(0.0, tasks))
    assert isinstance(one, Start) and one.job == "1"
    (other,) = engine.handle(Submitted(0.0, (job(30, (2,), run_s=1e6),)))
    assert isinstance(other, Start) and other.job == "30"
    # The oldest that may run, not the oldest task, is the one that none may delay.
    engine.handle(Submitted(0.0, (job(31, (4,)), job(32, (1,)))))
    assert str(next(iter(policy.order(engine.state))).spec.id) == "31"


def test_jobs_without_a_time_limit_come_last_in_the_order_they_came() -> None:
    unknown = [
        JobSpec(JobId(str(n)), 0.0, size, size, size, FIXED) for n, size in ((2, 3), (3, 5), (4, 1))
    ]
    assert order(full(job(9, (8,)), *unknown, job(5, (6,)))) == ["5", "9", "2", "3", "4"]


# --- EASY over least sizes -------------------------------------------------------------------


def found(driven: Driven) -> tuple[list[str], str | None, float, int]:
    """Return who could start, who has a reservation and when, and how many nodes can be had."""
    state, policy = driven.engine.state, driven.engine.policy
    assert isinstance(policy.sizing, BackfillShare)
    each = policy.sizing.backfilled(state, policy.order(state), policy.placement(state))
    view = policy.view(state)
    reserved = None if view is None else policy.reservation(view)
    first, at_s = (None, inf) if reserved is None else (str(reserved[0]), reserved[1])
    return [str(j.spec.id) for j in each.jobs], first, at_s, each.free


def test_a_short_job_overtakes_and_a_long_one_does_not() -> None:
    driven = Driven(4)
    assert driven.submit(job(1, (3,), run_s=100)) == [("1", 3)]
    assert driven.submit(job(2, (4,))) == []
    assert driven.submit(job(3, (1,), run_s=101)) == []
    assert driven.submit(job(4, (1,), run_s=100)) == [("4", 1)]
    assert driven.why(2) == "Resources: waits for 4 nodes, 0 are free, reserved for it in 100 s"
    assert driven.why(3) == "Resources: waits for 1 node, 0 are free"
    driven.happen(Ended(50.0, JobId("4"), "COMPLETED"))
    text = "Priority: 1 node is free, but it would delay 2, reserved for it in 50 s"
    assert driven.why(3) == text


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


def test_rigid_jobs_without_a_time_limit_backfill_as_under_easy() -> None:
    """The first has no reservation, so nobody can delay it."""
    driven = Driven(4)
    driven.submit(JobSpec(JobId("1"), 0.0, 2, 2, 2, FIXED))
    driven.submit(JobSpec(JobId("2"), 0.0, 4, 4, 4, FIXED))
    assert driven.engine.state.due is None
    assert driven.submit(JobSpec(JobId("3"), 0.0, 1, 1, 1, FIXED)) == [("3", 1)]
    assert driven.why(2) == "Resources: waits for 4 nodes, 1 is free"


# --- room for waiting jobs, idle nodes -------------------------------------------------------


def test_of_those_at_a_resize_point_who_loses_least_gives() -> None:
    """A node less delays all by the same share, and counts least where most is left to do."""
    driven = Driven(12)
    specs = [job(n, (1, 4, 4), FLEXIBLE, run_s=s, every_s=None) for n, s in ((1, 90), (2, 30))]
    driven.submit(*specs, job(3, (1, 4, 4), FLEXIBLE, run_s=5, every_s=None))
    for number in (1, 2, 3):
        point(driven, number, 0.0)
    assert [j.size for j in driven.engine.state.running.values()] == [4, 4, 4]
    assert driven.submit(job(4, (5, 5, 5), FLEXIBLE)) == [("1", 1), ("2", 2), ("4", 5)]


def test_for_a_job_that_is_not_due_who_loses_least_is_waited_for() -> None:
    driven = Driven(8)
    driven.submit(job(1, (1, 4, 4), FLEXIBLE, run_s=2000), job(2, (1, 4, 4), FLEXIBLE, run_s=1000))
    assert driven.submit(job(3, (2, 2, 2), FLEXIBLE)) == []
    assert driven.engine.state.due == {}
    assert point(driven, 2, 10.0) == []
    assert point(driven, 1, 20.0) == [("1", 2), ("3", 2)]


def test_hardly_any_room_is_made_for_fixed_jobs_before_they_are_due() -> None:
    driven = Driven(8)
    driven.submit(job(1, (4, 8, 8), FLEXIBLE, run_s=100))
    assert driven.submit(job(2, (4,), run_s=1e6), job(3, (1,), run_s=1e6)) == []
    assert driven.engine.state.due == {}
    assert point(driven, 1, 10.0) == []


def test_room_is_made_for_the_only_job_that_waits() -> None:
    """An urgent job beside one that has the machine waits for a resize, not for an end."""
    driven = Driven(8)
    driven.submit(job(1, (4, 8, 8), FLEXIBLE, run_s=100))
    assert driven.submit(job(2, (4,), run_s=100)) == []
    assert driven.engine.state.due == {}
    assert point(driven, 1, 10.0) == [("1", 4), ("2", 4)]


def test_for_a_due_job_whoever_comes_to_a_resize_point_gives() -> None:
    driven = Driven(8)
    driven.submit(job(1, (1, 2, 4), FLEXIBLE, run_s=2000), job(2, (1, 2, 4), FLEXIBLE, run_s=1000))
    assert [j.size for j in driven.engine.state.running.values()] == [4, 4]
    assert driven.submit(job(3, (2,))) == []
    assert driven.engine.state.due == {"3": 0.0}
    assert point(driven, 2, 10.0) == [("2", 2), ("3", 2)]


def test_room_is_made_after_the_end_of_a_job_that_was_giving_some() -> None:
    driven = Driven(8, prompt=False)
    for number, at_s in ((1, 0.0), (3, 20.0)):
        driven.submit(job(number, (4, 8, 8), FLEXIBLE, at_s=at_s))
        assert driven.submit(job(number + 1, (4,), at_s=at_s)) == []
        assert point(driven, number, at_s + 1.0) == [(str(number), 4)]
        assert ends(driven, number, at_s + 2.0) == [(str(number + 1), 4)]
        ends(driven, number + 1, at_s + 3.0)


def test_nobody_gives_who_is_as_good_as_over() -> None:
    driven = Driven(4)
    driven.submit(job(1, (1, 4, 4), FLEXIBLE, run_s=2.5, price_s=3.0))
    driven.submit(job(2, (1,)))
    assert point(driven, 1, 1.0) == []


def test_one_gives_no_more_than_is_needed_and_the_others_nothing() -> None:
    driven = Driven(8)
    driven.submit(*(job(n, (1, 4, 4), FLEXIBLE, run_s=1000) for n in (1, 2)))
    driven.submit(job(3, (1,)))
    assert point(driven, 1, 10.0) == [("1", 3), ("3", 1)]
    assert point(driven, 2, 10.0) == []


def test_idle_nodes_go_first_to_whom_they_bring_most() -> None:
    """Both need two thirds of the time on a node more: that counts more for the shorter one."""
    driven = Driven(8)
    driven.submit(job(1, (2, 2, 4), MALLEABLE, run_s=300), job(2, (2, 2, 4), MALLEABLE, run_s=100))
    driven.submit(job(3, (1,), run_s=10.0), job(4, (3,), run_s=1e4))
    assert ends(driven, 3, 10.0) == []
    assert point(driven, 1, 10.0) == []  # the node waits for the other
    assert point(driven, 2, 20.0) == [("2", 3)]


def test_nodes_that_suffice_for_all_go_to_whoever_comes_first() -> None:
    driven = Driven(8)
    driven.submit(job(1, (2, 2, 4), MALLEABLE, run_s=300), job(2, (2, 2, 4), MALLEABLE, run_s=100))
    driven.submit(job(3, (4,), run_s=10.0))
    assert ends(driven, 3, 10.0) == []
    assert point(driven, 1, 10.0) == [("1", 4)]
    assert point(driven, 2, 20.0) == [("2", 4)]


@pytest.mark.parametrize("price_s", [18.0, 19.0])
@pytest.mark.promise("default-policy")
def test_a_resize_that_brings_less_than_it_costs_is_not_made(price_s: float) -> None:
    """It ends in 60 s instead of 90 s: worth (90 / 60)^a - 1, the price a price / 90, twice."""
    driven = Driven(4)
    driven.submit(job(1, (2, 2, 3), MALLEABLE, run_s=100, price_s=price_s))
    driven.submit(job(2, (2,), run_s=10.0))
    ends(driven, 2, 10.0)
    pays = GAIN * 0.1 * price_s / 90.0 < (90.0 / 60.0) ** 0.1 - 1.0
    assert pays is (price_s == 18.0)
    assert point(driven, 1, 10.0) == ([("1", 3)] if pays else [])


def test_a_job_that_requested_more_is_widened_by_the_run_time_that_it_has_left() -> None:
    """As above 60 s instead of 90 s, which pays for 18 s but not for 19 s; 1000 s were requested.

    By these it would be 600 s instead of 900 s, and pay for either price.
    """
    for price_s, changes in ((18.0, [("1", 3)]), (19.0, [])):
        driven = Driven(4)
        driven.submit(job(1, (2, 2, 3), MALLEABLE, run_s=100, price_s=price_s, limit_s=1000.0))
        driven.submit(job(2, (2,), run_s=10.0))
        ends(driven, 2, 10.0)
        assert point(driven, 1, 10.0) == changes


def test_a_resize_that_takes_longer_than_it_saves_is_not_made() -> None:
    """It ends in 9 s instead of 90 s: by its worth alone that pays even for a price of 90 s."""
    assert GAIN * 0.1 * 90.0 / 90.0 < (90.0 / 9.0) ** 0.1 - 1.0
    for price_s, changes in ((80.0, [("1", 10)]), (82.0, [])):
        driven = Driven(10)
        driven.submit(job(1, (1, 1, 10), MALLEABLE, run_s=100, price_s=price_s))
        driven.submit(job(2, (9,), run_s=10.0))
        ends(driven, 2, 10.0)
        assert point(driven, 1, 10.0) == changes


@pytest.mark.promise("default-policy")
def test_no_job_is_widened_beyond_the_node_hours_it_may_take() -> None:
    """With 50 s serial on 4 nodes, 4 (50 + 50) node seconds, 5 take 450 and 6 500."""
    for more, size in ((0.1, 4), (0.13, 5), (0.26, 6), (10.0, 8)):
        driven = Driven(8, sized(node_hours=more))
        law = Speedup(law=(200.0, 50.0))
        spec = msgspec.structs.replace(job(1, (1, 4, 8), FLEXIBLE), speedup=law)
        assert driven.submit(spec) == [("1", size)]
        driven = Driven(8, sized(node_hours=more))
        table = Speedup((1, 2, 4, 5, 6, 8), tuple(law.time(n) for n in (1, 2, 4, 5, 6, 8)))
        assert driven.submit(msgspec.structs.replace(spec, speedup=table)) == [("1", size)]


def widened_again(run_s: float, price_s: float, rest_s: float) -> list[list[tuple[str, int]]]:
    """Return what happens to a job shortly before and after it has rested since it was widened."""
    driven = Driven(4)
    driven.submit(job(1, (2, 2, 4), FLEXIBLE, run_s=run_s, price_s=price_s), job(2, (2,), run_s=5))
    assert ends(driven, 2, 5.0) == []
    assert point(driven, 1, 10.0) == [("1", 4)]
    assert driven.submit(job(3, (2, 2, 2), FLEXIBLE, run_s=5.0, at_s=11.0)) == []
    assert point(driven, 1, 12.0) == [("1", 2), ("3", 2)]  # it gives all the same
    assert ends(driven, 3, 15.0) == []
    return [point(driven, 1, 10.0 + rest_s + more_s) for more_s in (-0.1, 0.1)]


@pytest.mark.promise("default-policy")
def test_a_job_is_not_widened_again_for_ten_times_its_price() -> None:
    assert widened_again(1e5, 3.0, 30.0) == [[], [("1", 4)]]


@pytest.mark.promise("default-policy")
def test_where_resizes_have_no_price_a_job_is_not_widened_again_for_a_share_of_its_time() -> None:
    """60 s, or 5 % of what is left then on two nodes: (398 s - 8 s - 18.6 s) / 20 from 10 s on."""
    assert widened_again(400.0, 0.0, 18.48) == [[], [("1", 4)]]
    assert widened_again(1e5, 0.0, 60.0) == [[], [("1", 4)]]


def test_a_flexible_job_starts_on_idle_nodes_and_gives_them_back() -> None:
    driven = Driven(8)
    assert driven.submit(job(1, (2, 4, 6), FLEXIBLE)) == [("1", 6)]
    driven.submit(job(2, (6, 6, 6), FLEXIBLE))
    assert driven.happen(ResizePoint(10.0, JobId("1"))) == [("1", 2), ("2", 6)]


def test_a_moldable_job_has_what_it_prefers_or_fits_and_delays_no_reservation() -> None:
    driven = Driven(8)
    assert driven.submit(job(1, (2, 4, 8), MOLDABLE, run_s=100)) == [("1", 4)]
    assert driven.submit(job(2, (6,))) == []
    # Two nodes are left beside those reserved at 100 s.
    assert driven.submit(job(3, (1, 3, 8), MOLDABLE, run_s=200)) == []
    # The next is over before, on as many; then one node is left, which the other may have.
    assert driven.submit(job(4, (1, 3, 8), MOLDABLE, run_s=50)) == [("4", 3), ("3", 1)]


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


@pytest.mark.parametrize("array", [None, "a"])
@pytest.mark.promise("default-policy")
def test_a_job_that_was_resized_often_is_widened_where_nobody_waits(array: str | None) -> None:
    """Short jobs come and go beside a long one, whether or not that is an array's task."""
    driven = Driven(4)
    driven.submit(job(1, (2, 4, 4), FLEXIBLE, run_s=1e6, array=array))
    for turn in range(40):
        at_s = 100.0 * turn
        driven.submit(job(turn + 2, (2,), run_s=10.0, at_s=at_s))
        point(driven, 1, at_s + 1)
        assert JobId(str(turn + 2)) in driven.engine.state.running
        ends(driven, turn + 2, at_s + 11)
        point(driven, 1, at_s + 61)
        # Of an array's task, whose resizes have no price, once in 300 s after the first of them.
        assert array or driven.engine.state.running[JobId("1")].size == 4
    at_s = 100.0 * 40 + RESTS_S
    driven.submit(job(99, (2,), run_s=10.0, at_s=at_s))
    ends(driven, 99, at_s + 11)
    point(driven, 1, at_s + 61)
    assert driven.engine.state.running[JobId("1")].size == 4
    assert driven.engine.state.running[JobId("1")].resize_count > 30


def test_who_may_be_widened_is_not_hidden_by_those_that_may_not() -> None:
    """The two that bring more rest for a while, and have no other size."""
    driven = Driven(10, sized(look=1))
    driven.submit(job(1, (2, 2, 3), MALLEABLE, run_s=1e4))
    driven.submit(job(2, (2, 2, 2), MALLEABLE, run_s=10.0), job(3, (2, 2, 2), MALLEABLE, run_s=10))
    driven.submit(job(4, (4,), run_s=5.0))
    ends(driven, 4, 5.0)
    assert point(driven, 1, 10.0) == [("1", 3)]


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
        ("sizing", {"resizes": 1}, "expected parameters of energy, .*, got 'resizes'"),
        ("sizing", {"look": 1.5}, "Expected `int`, got `float`"),
        ("sizing", {"look": 0}, "expected energy of 0 to 1 and look of at least 1"),
        ("sizing", {"energy": 2.0}, "expected energy of 0 to 1"),
        ("sizing", {"node_hours": -0.1}, "expected node_hours and rest of at least 0"),
        ("sizing", {"node_hours": float("nan")}, "expected node_hours and rest of at least 0"),
        ("sizing", {"rest": -1.0}, "expected node_hours and rest of at least 0"),
        ("sizing", {"horizon_s": 0.0}, "horizon_s above 0"),
        ("sizing", {"short": 0.0}, "expected short above 0 and at most 1, got 0.0"),
        ("sizing", {"short": 1.5}, "expected short above 0 and at most 1, got 1.5"),
        ("sizing", {"widest": 3}, "expected parameters of energy, .*, got 'widest'"),
        ("order", {"stretch": 1.0}, "expected parameters of depth, .*got 'stretch'"),
        ("order", {"depth": 0}, "expected depth above 0"),
        ("admission", {"estimates": "exact"}, "expected estimates of requested, got 'exact'"),
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
    assert driven.submit(unknown(2, 4, 4)) == []
    assert driven.why(2) == "Resources: waits for 4 nodes, 0 can be had"
    assert driven.happen(ResizePoint(3.0, JobId("1"))) == [("1", 4), ("2", 4)]
    assert driven.submit(unknown(3, 2, 6)) == [("1", 2), ("3", 2)]
    assert driven.submit(unknown(4, 8, 8, FIXED)) == []
    assert ends(driven, 2, 70.0) == [("1", 6)]
    # What was asked for and taken back is asked for again; what was refused is not.
    driven.prompt = False
    driven.happen(Ended(70.5, JobId("4"), "CANCELLED"))
    assert driven.submit(unknown(5, 2, 2)) == [("1", 4)]
    driven.happen(ResizeRolledBack(71.0, JobId("1"), later=True))
    assert driven.happen(ResizePoint(72.0, JobId("1"))) == []
    assert driven.engine.state.running[JobId("1")].requested_size == 4
    assert driven.happen(ResizeRolledBack(73.0, JobId("1"))) == [("1", 3)]
