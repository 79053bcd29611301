"""The cluster's power cap: never passed by expected power, under any policy, whatever happens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec import structs
from specs import job_spec
from test_engine_properties import Cluster

from rms.core.books.ledger import Ledger
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    Later,
    NodeBooted,
    NodeUp,
    PowerCapSet,
    PowerMeasured,
    Reason,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    Start,
    Started,
    Submitted,
    TasksHold,
    Ticked,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import POLICIES, Policy, adjusted, named
from rms.core.policies.compose import UserPart
from rms.core.policies.placement import Plan, Room
from rms.core.rules.checks import RuleError, check
from rms.core.rules.powercap import (
    ROUNDING,
    added_w,
    expected_w,
    never_fits,
    under_cap,
    within_limit,
)
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.sim.run import chosen, simulate
from rms.sim.simulator import Simulation

NODES = 6
IDLE_W = 10.0
POWER = tuple(NodePower(IDLE_W, 30.0, 20.0 + 5.0 * (n % 2)) for n in range(NODES))
FIXED, MOLDABLE, MALLEABLE, FLEXIBLE = Mode
SHARING = ("array-share", "backfill-share", "easy-share")
PER_NODE_CAP = ("p-fifo", "p-bff")


def job(
    number: int, nodes: tuple[int, ...], mode: Mode = FIXED, at_s: float = 0.0, **more: Any
) -> JobSpec:
    """A job of one size, or of (min, preferred, max); it runs 100 s unless it says otherwise."""
    sizes = nodes if len(nodes) == 3 else nodes[0]
    return job_spec(number, sizes, mode, at_s, **{"limit_s": 100.0, "run_s": 100.0} | more)


class Driven:
    """An engine under a cap whose starts begin at once; resizes take as long as the test says."""

    def __init__(self, cap_w: float | None, policy: str | Policy = "easy", nodes: int = 4) -> None:
        """Nodes of 10 W idle and 60 W busy: each one that is held adds 50 W."""
        site = Site(nodes, (NodePower(10.0, 60.0),) * nodes, power_cap_w=cap_w)
        self.engine = Engine(site, named(policy) if isinstance(policy, str) else policy)
        self.state = self.engine.state

    def happen(self, event: Event) -> list[Decision]:
        decided = self.engine.handle(event)
        for decision in decided:
            if isinstance(decision, Start):
                decided = decided + self.happen(Started(event.at_s, decision.job))
        return decided

    def submit(self, *specs: JobSpec) -> list[tuple[str, int]]:
        found: list[Decision] = []
        for spec in specs:
            found += self.happen(Submitted(max(spec.submit_s, self.state.now_s), (spec,)))
        return [(str(each.job), each.size) for each in found if isinstance(each, Start)]

    def resized(self, at_s: float, number: int) -> list[Decision]:
        self.happen(ResizeBegun(at_s, JobId(str(number))))
        return self.happen(Resized(at_s, JobId(str(number))))

    def end(self, at_s: float, number: int) -> list[tuple[str, int]]:
        found = self.happen(Ended(at_s, JobId(str(number)), "COMPLETED"))
        return [(str(each.job), each.size) for each in found if isinstance(each, Start)]

    def why(self, number: int) -> str:
        later = self.engine.explain(JobId(str(number)))
        assert later is not None
        return later.reason


def resizes(decided: list[Decision]) -> list[tuple[str, int, Reason]]:
    return [(str(each.job), each.size, each.code) for each in decided if isinstance(each, Resize)]


# --- what is expected ----------------------------------------------------------------------------


def test_expected_power_is_as_stated_else_measured_else_the_models() -> None:
    models = (NodePower(10.0, 60.0, 40.0),)
    profile = Speedup((1, 2), (100.0, 60.0), (80.0, 70.0))
    assert added_w(models, job(1, (2,)), 2) == 2 * (60.0 + 40.0 - 10.0)
    assert added_w(models, job(1, (1, 2, 2), speedup=profile), 2) == 2 * (70.0 - 10.0)
    assert added_w(models, job(1, (1, 2, 2), speedup=profile, power_w=33.0), 2) == 33.0
    law = Speedup(law=(100.0, 0.0))
    assert added_w((*models, NodePower(5.0, 60.0, 40.0)), job(1, (2,), speedup=law), 2) == 2 * 95.0
    assert added_w((NodePower(50.0),), job(1, (2,)), 2) == 0.0  # never below idle


def test_both_worlds_count_that_overlap_though_no_size_is_as_wide() -> None:
    """A job with a table of sizes 1 and 2 goes over from two nodes to two others."""
    table = Speedup((1, 2), (10.0, 6.0), (70.0, 65.0))
    driven = Driven(None, "fifo", nodes=6)
    driven.submit(job(1, (1, 2, 2), MALLEABLE, speedup=table))
    ledger = Ledger((NodePower(10.0, 60.0),) * 6)
    ledger.advance(driven.state, 0.0)
    driven.happen(ResizePoint(0.0, JobId("1")))
    driven.happen(ResizeAsked(0.0, JobId("1"), 2, (Node(3), Node(4))))
    driven.happen(ResizeBegun(0.0, JobId("1")))
    ledger.follow(driven.state)
    assert ledger.power_w == expected_w(driven.state) == 2 * 10.0 + 4 * 65.0


def test_a_limit_of_its_own_takes_sizes_from_a_job() -> None:
    models = (NodePower(10.0, 60.0),)
    cut = within_limit(job(1, (1, 4, 6), FLEXIBLE), models, 160.0)
    assert (cut.nodes_min, cut.preferred, cut.nodes_max) == (1, 3, 3)
    assert within_limit(job(1, (1, 2, 3), MALLEABLE), models, 160.0) == job(1, (1, 2, 3), MALLEABLE)
    with pytest.raises(ValueError, match=r"at least 150 W, what .* on 3 nodes, got 120 W"):
        within_limit(job(1, (1, 3, 6)), models, 120.0)  # a fixed one has one size
    with pytest.raises(ValueError, match=r"at least 50 W, what .* on 1 node, got 12.5 W"):
        within_limit(job(1, (1, 3, 6), MOLDABLE), models, 12.5)
    with pytest.raises(ValueError, match="at least 200 W"):
        within_limit(job(1, (1, 3, 6), FLEXIBLE, power_w=200.0), models, 199.0)


def test_what_passes_the_cap_is_refused_whoever_decides_it() -> None:
    driven = Driven(150.0)  # 40 W idle, 110 W to give: two nodes
    spec = job(1, (3,))
    driven.state.enqueue(Job(spec))
    with pytest.raises(RuleError, match="at most 150 W, got 190 W"):
        check(driven.state, Start(spec.id, (Node(0), Node(1), Node(2)), ""))
    small = job(2, (1, 1, 3), MALLEABLE, resize_every_s=10.0)
    driven = Driven(150.0, "fifo")
    driven.submit(small)
    check(driven.state, Resize(small.id, (Node(0), Node(1)), ""))
    with pytest.raises(RuleError, match="at most 150 W, got 190 W"):
        check(driven.state, Resize(small.id, (Node(0), Node(1), Node(2)), ""))
    # Another node: both worlds count while they overlap.
    check(driven.state, Resize(small.id, (Node(3),), ""))
    driven.happen(PowerCapSet(0.0, 120.0))
    with pytest.raises(RuleError, match="at most 120 W, got 140 W"):
        check(driven.state, Resize(small.id, (Node(3),), ""))


# --- starts --------------------------------------------------------------------------------------


@pytest.mark.promise("power-cap")
@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"array-share-paper"}))
def test_who_lacks_power_waits_with_that_reason_and_starts_when_another_ends(policy: str) -> None:
    driven = Driven(150.0, policy)
    assert driven.submit(job(1, (1,)), job(2, (2,))) == [("1", 1)]
    assert driven.why(2) == "PowerCap: needs 100 W on 2 nodes, 60 W are left of 150 W"
    later = driven.engine.explain(JobId("2"))
    assert later is not None and later.code is Reason.POWER
    assert driven.end(10.0, 1) == [("2", 2)]


def test_who_never_fits_waits_and_holds_up_nobody() -> None:
    for policy in sorted(set(POLICIES) - {"array-share-paper"}):
        driven = Driven(150.0, policy)
        assert driven.submit(job(1, (3,)), job(2, (2,))) == [("2", 2)], policy
        never = "it never fits under the cap of 150 W: 150 W on 3 nodes beside 40 W of idle nodes"
        assert driven.why(1) == f"PowerCap: {never}"
        assert driven.happen(PowerCapSet(5.0, None)) == []  # two nodes are free
        assert driven.end(9.0, 2) == [("1", 3)]


def test_the_cap_holds_on_parts_of_ones_own() -> None:
    """An admission as in docs/rms/own-part.md, which knows of nodes only."""

    def all_that_fit(state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        starts = []
        for waiting in queue:
            size = plan.start(waiting, room.free)
            if room.fits(waiting, size):
                starts.append(Start(waiting.spec.id, room.place(waiting, size), "fits"))
        return starts

    driven = Driven(150.0, replace(named("fifo"), admission=UserPart(all_that_fit, ())))
    assert driven.submit(job(1, (1,)), job(2, (2,)), job(3, (1, 2, 2), FLEXIBLE)) == [
        ("1", 1),
        ("3", 1),
    ]
    assert driven.why(2) == "PowerCap: needs 100 W on 2 nodes, 10 W are left of 150 W"


def test_a_job_that_may_starts_as_wide_as_its_power_allows() -> None:
    for policy in ("fifo", "easy", "conservative", "p-bff", *SHARING):
        for mode in (MOLDABLE, FLEXIBLE):
            driven = Driven(150.0, policy)
            assert driven.submit(job(1, (1, 4, 4), mode)) == [("1", 2)], (policy, mode)


def test_an_overtaking_job_takes_no_power_that_the_reservation_needs() -> None:
    for policy in ("easy", "easy-share", "conservative", "backfill-share"):
        driven = Driven(160.0, policy, nodes=8)  # 80 W idle, 80 W to give
        assert driven.submit(job(1, (1,), power_w=50.0)) == [("1", 1)]
        # 60 W are reserved for job 2 when job 1 ends, at 100 s; then 20 W are left.
        assert driven.submit(job(2, (1,), power_w=60.0, limit_s=1000.0)) == []
        assert driven.submit(job(3, (1,), power_w=30.0, limit_s=150.0)) == []
        assert driven.submit(job(4, (1,), power_w=30.0, limit_s=90.0)) == [("4", 1)]
        assert driven.end(10.0, 4) == []
        assert driven.submit(job(5, (1,), power_w=20.0, limit_s=900.0)) == [("5", 1)]
        assert driven.end(20.0, 1) == [("2", 1)]


def test_a_reservation_of_all_power_holds_to_the_last_bit() -> None:
    """The first job needs what it takes all others to end for, and their sum is off by rounding."""
    watts = (58.85, 38.1, 43.5, 41.6)
    for policy in ("easy", "easy-share", "conservative", "backfill-share"):
        for order in permutations(watts):
            driven = Driven(80.0 + sum(watts), policy, nodes=8)
            for number, own_w in enumerate(order, 1):
                driven.submit(job(number, (1,), power_w=own_w))
            assert driven.submit(job(8, (1,), power_w=sum(watts), limit_s=1e3)) == []
            driven.end(1.0, 1)
            assert driven.submit(job(9, (1,), power_w=1.0, limit_s=1e3)) == [], policy
            for number in (2, 3):
                assert driven.end(2.0, number) == []
            assert driven.end(3.0, 4) == [("8", 1)]


# --- resizes -------------------------------------------------------------------------------------


def test_a_widening_that_would_pass_the_cap_is_not_made() -> None:
    for policy in SHARING:
        wide = job(1, (1, 1, 4), MALLEABLE, speedup=Speedup(law=(500.0, 0.0)), run_s=None)
        free = Driven(None, policy)
        free.submit(wide)
        assert resizes(free.happen(ResizePoint(1.0, wide.id))) == [("1", 4, Reason.IDLE_NODES)]
        driven = Driven(150.0, policy)
        driven.submit(wide)
        assert resizes(driven.happen(ResizePoint(1.0, wide.id))) == [("1", 2, Reason.IDLE_NODES)]
        driven.resized(2.0, 1)
        (asked,) = driven.happen(ResizeAsked(3.0, wide.id, 3))
        assert isinstance(asked, Later)
        assert asked.reason == "PowerCap: takes 50 W more, 10 W are left"


def test_a_wide_job_makes_room_for_one_that_lacks_power_only() -> None:
    for policy in SHARING:
        wide = job(1, (1, 1, 4), MALLEABLE, speedup=Speedup(law=(500.0, 0.0)), run_s=None)
        driven = Driven(190.0, policy)  # 150 W to give
        driven.submit(wide)
        driven.happen(ResizePoint(1.0, wide.id))
        driven.resized(2.0, 1)
        assert driven.state.running[wide.id].size == 3
        decided = driven.happen(Submitted(3.0, (job(2, (1,)),)))
        decided += driven.happen(ResizePoint(3.0, wide.id))
        assert resizes(decided) == [("1", 2, Reason.MAKES_ROOM)]
        assert [str(d.job) for d in driven.resized(4.0, 1)] == ["2"]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"array-share-paper"}))
def test_a_lower_cap_narrows_who_can_yield_and_only_as_far_as_that_takes(policy: str) -> None:
    driven = Driven(None, policy, nodes=8)
    driven.submit(job(1, (1, 4, 4), MALLEABLE), job(2, (3,)))
    driven.happen(ResizePoint(1.0, JobId("1")))
    decided = driven.happen(PowerCapSet(2.0, 350.0))  # 80 + 350 W are expected
    assert resizes(decided) == [("1", 2, Reason.POWER)]
    (yields,) = decided
    assert yields.reason == "PowerCap: yields, 430 W are expected; the cap is 350 W"
    assert driven.happen(PowerCapSet(3.0, 345.0)) == []  # nothing more until that is done
    decided = driven.resized(4.0, 1)
    assert resizes(decided) == []
    driven.happen(ResizePoint(5.0, JobId("1")))
    assert resizes(driven.happen(PowerCapSet(6.0, 320.0))) == [("1", 1, Reason.POWER)]


def test_what_meters_say_above_the_cap_narrows_and_lets_nobody_start() -> None:
    driven = Driven(300.0, "backfill-share")
    wide = job(1, (1, 4, 4), FLEXIBLE, speedup=Speedup(law=(5000.0, 0.0)), run_s=None)
    assert driven.submit(wide) == [("1", 4)]
    driven.happen(ResizePoint(1.0, wide.id))
    assert driven.happen(PowerMeasured(2.0, 290.0)) == []  # 240 W were expected
    decided = driven.happen(PowerMeasured(3.0, 340.0))  # 25 W a node more than expected
    assert resizes(decided) == [("1", 3, Reason.POWER)]
    assert "340 W are drawn, by the meters; the cap is 300 W" in decided[0].reason
    driven.resized(4.0, 1)
    driven.happen(PowerMeasured(5.0, 265.0))
    driven.submit(job(2, (1,), at_s=6.0))
    assert driven.why(2).startswith("PowerCap: needs 50 W on 1 node, 35 W are left of 300 W")
    # Not widened again for a while, then only if what it really draws fits.
    assert resizes(driven.happen(ResizePoint(7.0, wide.id))) == []


def test_idle_nodes_that_draw_more_than_expected_leave_less_of_the_cap() -> None:
    driven = Driven(300.0, "easy")
    assert driven.happen(PowerMeasured(1.0, 130.0)) == []  # 40 W were expected
    wide, narrow = job(1, (4,), at_s=2.0), job(2, (3,), at_s=3.0)
    assert driven.submit(wide) == []
    never = "PowerCap: it never fits under the cap of 300 W: 200 W on 4 nodes beside 130 W of idle"
    assert driven.why(1).startswith(never)
    assert driven.submit(narrow) == [("2", 3)]
    # The same nodes are busy: what is measured above that, the job draws.
    driven.happen(PowerMeasured(4.0, 295.0))
    assert driven.engine.state.running[narrow.id].above_w == pytest.approx(5.0)
    driven.happen(PowerMeasured(5.0, 200.0))
    assert driven.engine.state.idle_above_w == pytest.approx(10.0)
    driven.happen(Ended(6.0, narrow.id, "COMPLETED"))
    assert list(driven.engine.state.running) == ["1"]


def test_idle_nodes_that_draw_more_than_expected_leave_less_beside_a_job_too() -> None:
    driven = Driven(300.0, "easy")
    driven.happen(PowerMeasured(1.0, 130.0))  # 40 W were expected
    assert driven.submit(job(1, (3,), at_s=2.0)) == [("1", 3)]
    assert driven.submit(job(2, (1,), at_s=3.0)) == []
    assert driven.why(2).startswith("PowerCap: needs 50 W on 1 node, 20 W are left of 300 W")


def test_what_takes_all_that_is_left_has_nothing_to_yield() -> None:
    """Sums of the same powers in another order may be above the cap by rounding."""
    narrowed = []
    for watts in permutations((58.85, 38.1, 43.5, 41.6)):
        driven = Driven(80.0 + 100.0 + sum(watts), "fifo", nodes=8)
        driven.submit(job(0, (1, 2, 2), MALLEABLE))
        driven.happen(ResizePoint(0.0, JobId("0")))
        for number, own_w in enumerate(reversed(watts), 1):
            assert driven.submit(job(number, (1,), power_w=own_w)) == [(str(number), 1)]
        narrowed += driven.happen(PowerMeasured(1.0, 0.0))
    assert narrowed == []


def test_a_job_of_a_constant_power_is_not_narrowed_for_nothing() -> None:
    driven = Driven(None, "easy")
    driven.submit(job(1, (1, 4, 4), MALLEABLE, power_w=200.0))
    driven.happen(ResizePoint(1.0, JobId("1")))
    assert driven.happen(PowerCapSet(2.0, 100.0)) == []


def test_a_profile_counts_with_its_peak_under_the_cap() -> None:
    """Nodes of 10 W idle; a mean of 60 W, 50 of them above idle, and a peak of 80 W above idle."""
    driven = Driven(200.0, "fifo")
    given = {"peak_w_per_node": (80.0, 70.0)}
    speedup = Speedup((1, 2), (100.0, 60.0), (60.0, 60.0), **given)
    assert driven.submit(job(1, (1,), speedup=speedup)) == [("1", 1)]
    assert expected_w(driven.state) == 4 * 10.0 + 80.0
    assert driven.submit(job(2, (1,), speedup=speedup)) == [("2", 1)]
    assert driven.submit(job(3, (1,), power_w=1.0)) == []
    assert driven.why(3) == "PowerCap: needs 1 W on 1 node, 0 W are left of 200 W"


# --- the policies with a cap of each node --------------------------------------------------------


def test_caps_of_nodes_and_of_the_cluster_hold_together() -> None:
    policy = adjusted(named("p-bff"), placement={"cap_w": 60.0, "per": "node"})
    driven = Driven(150.0, policy)
    assert driven.submit(job(1, (1,), power_w=51.0), job(2, (1,), power_w=50.0)) == [("2", 1)]
    assert driven.submit(job(3, (1,), power_w=50.0), job(4, (1,), power_w=50.0)) == [("3", 1)]
    assert "needs 50 W on 1 node, 10 W are left" in driven.why(4)


# --- simulated -----------------------------------------------------------------------------------


@st.composite
def rigid(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(draw(st.integers(2, 20))):
        run_s = float(draw(st.integers(1, 60)))
        watts = float(draw(st.integers(0, 100)))
        at_s = float(draw(st.integers(0, 60)))
        size = draw(st.integers(1, 8))
        more: dict[str, Any] = {"limit_s": run_s, "run_s": run_s, "power_w": watts}
        found.append(job(number, (size,), at_s=at_s, **more))
    return found


@pytest.mark.parametrize("policy", ["easy", "conservative", "backfill-share", "easy-share"])
@settings(max_examples=40, deadline=None)
@given(rigid(), st.booleans())
def test_no_first_job_is_delayed_for_its_power(
    policy: str, specs: list[JobSpec], counted: bool
) -> None:
    """The oldest job starts when, by those that run, nodes and power are free for it."""
    cap_w, chosen_policy = 120.0, named(policy)
    if counted and policy in ("easy", "conservative"):
        chosen_policy = chosen(chosen_policy, counted=True, ahead=False)
    promised: dict[JobId, float] = {}

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        assert expected_w(state) <= cap_w + 1e-9
        if not state.pending:
            return
        oldest = next(iter(state.pending.values()))
        free, left_w, at_s = state.free_count, cap_w - expected_w(state), state.now_s
        for end_s, _, other in state.ends:
            if free >= oldest.least and left_w >= (oldest.spec.power_w or 0.0):
                break
            free, left_w, at_s = free + other.size, left_w + (other.spec.power_w or 0.0), end_s
        before = promised.setdefault(oldest.spec.id, at_s)
        assert at_s <= before + 1e-9
        promised[oldest.spec.id] = min(at_s, before)

    site = Site(10, power_cap_w=cap_w)
    simulation = Simulation(specs, site, chosen_policy, record=False, observer=look)
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)
    for job_id, at_s in promised.items():
        start_s = simulation.engine.state.ended[job_id].start_s
        assert start_s is not None and start_s <= at_s + 1e-9


def test_a_cap_that_never_binds_changes_nothing() -> None:
    specs = [
        job(n, (1, 2, 4), Mode(mode), at_s=3.0 * n, resize_every_s=7.0, limit_s=300.0)
        for n, mode in enumerate(list(Mode) * 6)
    ]
    for policy in POLICIES:
        power = (NodePower(10.0, 60.0),) * 8
        free = simulate(specs, Site(8, power), adjusted(named(policy), sizing=UNROTATED[policy]))
        capped = simulate(
            specs,
            Site(8, power, power_cap_w=1e6),
            adjusted(named(policy), sizing=UNROTATED[policy]),
        )
        assert free[1] == capped[1], policy


UNROTATED: dict[str, dict[str, Any]] = {
    name: {"rotate": False} if name in ("array-share", "backfill-share") else {}
    for name in POLICIES
}
"""Jobs do not take turns under a cap."""


# --- whatever happens ----------------------------------------------------------------------------


@st.composite
def specs_of(draw: st.DrawFn, number: int, at_s: float) -> JobSpec:
    low, preferred, high = sorted(draw(st.tuples(*[st.integers(1, NODES)] * 3)))
    sizes = tuple(range(low, high + 1))
    watts = draw(st.sampled_from([(), (70.0,) * len(sizes)]))
    speedups = (
        None,
        Speedup(law=(draw(st.floats(1, 99)), 1.0)),
        Speedup(sizes, tuple(90.0 / n for n in sizes), watts),
    )
    spec = job_spec(
        number,
        (low, preferred, high),
        draw(st.sampled_from(Mode)),
        at_s,
        speedup=draw(st.sampled_from(speedups)),
        limit_s=draw(st.sampled_from([None, 10.0, 50.0])),
        resize_every_s=draw(st.sampled_from([None, 3.0])),
        power_w=draw(st.sampled_from([None, 0.0, 35.0, 120.0])),
    )
    limit_w = draw(st.sampled_from([None, 60.0, 150.0]))
    try:
        return spec if limit_w is None else within_limit(spec, POWER, limit_w)
    except ValueError:
        return spec


OFF_WHEN_IDLE = [
    adjusted(POLICIES[name], node_power={"part": "off-when-idle", "ahead": ahead}).key
    for name, ahead in (("easy", True), ("array-share", False), ("backfill-share", True))
]
POWERED = tuple(
    structs.replace(model, off_w=1.0, boot_s=2.0, boot_j=2.0 * (IDLE_W + 0.9 * (n % 2)))
    for n, model in enumerate(POWER)
)
"""Every second one takes 0.9 W more than its idle power while it boots."""


class Capped(Cluster):
    """Any events in any order, caps and readings among them, under a policy that is swapped."""

    # Of the rules of any cluster those are left out that know nothing of a cap.
    hold = free = cancel = cancel_some = step = lease = reopen = grow_and_roll_back = None

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(POWERED)

    def fresh(self) -> Engine:
        return Engine(Site(NODES, POWERED, power_cap_w=200.0), named("easy"))

    @property
    def state(self) -> State:
        return self.engine.state

    def happen(self, event: Event) -> None:
        before_w = expected_w(self.state)
        super().happen(event)
        self.ledger.follow(self.state)
        cap_w = self.state.power_cap_w
        if cap_w is not None:  # passed only where it was lowered below what ran
            assert expected_w(self.state) <= max(cap_w, before_w) * (1.0 + ROUNDING)

    @rule(data=st.data(), count=st.integers(1, 3))
    def submit(self, data: st.DataObject, count: int) -> None:
        at_s = self.now(data)
        self.number += count
        numbers = range(self.number - count, self.number)
        self.happen(Submitted(at_s, tuple(data.draw(specs_of(n, at_s)) for n in numbers)))

    @precondition(lambda self: self.running(resizing=False))
    @rule(data=st.data(), size=st.integers(1, NODES), shift=st.booleans())
    def ask(self, data: st.DataObject, size: int, shift: bool) -> None:
        nodes = tuple(sorted(self.state.free)[:size]) if shift else ()
        nodes = nodes if len(nodes) == size else ()
        job = self.one(data, self.running(resizing=False))
        self.happen(ResizeAsked(self.now(data), job.spec.id, size, nodes))

    @rule(data=st.data(), cap_w=st.sampled_from([None, 61.0, 100.0, 150.0, 222.0, 400.0]))
    def cap(self, data: st.DataObject, cap_w: float | None) -> None:
        self.happen(PowerCapSet(self.now(data), cap_w))

    @precondition(lambda self: self.state.power_cap_w is not None)
    @rule(data=st.data(), watts=st.floats(0.0, 600.0))
    def measure(self, data: st.DataObject, watts: float) -> None:
        self.happen(PowerMeasured(self.now(data), watts))

    @rule(data=st.data())
    def hold_for_tasks(self, data: st.DataObject) -> None:
        able = sorted(under_cap(self.state, self.state.lent.keys() | self.state.free))
        held = sorted(data.draw(st.sets(st.sampled_from(able)))) if able else []
        owners = [data.draw(st.sampled_from(["", "task:a[1]", "task:b[2]"])) for _ in held]
        self.happen(TasksHold(self.now(data), tuple(map(Node, held)), tuple(owners)))

    @rule(name=st.sampled_from([*sorted(POLICIES), *OFF_WHEN_IDLE]))
    def swap(self, name: str) -> None:
        super().swap(name)

    @invariant()
    def the_books_model_draws_no_more_than_is_expected(self) -> None:
        assert self.ledger.power_w <= expected_w(self.state) * (1.0 + ROUNDING) or not self.number

    def teardown(self) -> None:
        """Once nothing more comes, whoever fits alone runs; a replay decides the same."""
        state, at_s = self.state, self.state.now_s
        if self.engine.policy.name in PER_NODE_CAP:
            self.swap("fifo")
        self.happen(TasksHold(at_s, ()))
        for node in list(state.down):
            self.happen(NodeUp(at_s, node))
        for _ in range(4 * len(state.pending) + 2 * NODES + 4):
            for job_id in list(state.running):
                self.happen(Ended(at_s, job_id, "COMPLETED"))
            at_s += 10.0
            for node in list(state.booting):
                self.happen(NodeBooted(at_s, node))
            self.happen(Ticked(at_s))
        assert all(never_fits(state, job) for job in state.pending.values())
        assert not state.running
        super().teardown()


del Cluster
TestCapped = Capped.TestCase
TestCapped.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
