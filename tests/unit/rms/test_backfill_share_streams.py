"""Policy ``backfill-share`` on simulated streams of jobs: what it promises to each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import pytest
from driven import (
    FIXED,
    FLEXIBLE,
    MALLEABLE,
    MOLDABLE,
    Kind,
    job,
    rigid,
    starts,
    streams,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rms.core.model.events import NodeDown, NodeUp
from rms.core.model.jobs import JobId, JobSpec, JobState, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.backfill_share import REST_S, BackfillShare
from rms.core.policies.order import SmallestFirst
from rms.core.state import State
from rms.sim.run import chosen, failing
from rms.sim.simulator import Simulation

NODES = 8
DEFAULT = named("backfill-share")
SIZING = BackfillShare()
ARRAYS = ((None, None), (None, None), ("a", 2), ("b", None))


@dataclass
class First:
    """The first due job that waits, as long as it stays the first.

    Attributes:
        reserved_s: its reservation when it became the first: now, if it waits for lent nodes only.
        latest_s: the latest reservation worked out since.
        before: how many resizes there had been when it became the first.
        resizes: how many there have been since.
    """

    reserved_s: float
    latest_s: float
    before: int = 0
    resizes: int = 0


class EveryPoint(Simulation):
    """A simulation in which all resize points happen, whether or not the policy waits there."""

    def run(self) -> None:
        """Run until nothing is left to happen."""
        self._lazy = False
        super().run()

    def _await(self, now: float) -> None:
        self._state.awaited.clear()


@dataclass
class Watched:
    """A simulation, looked at after every event.

    Attributes:
        resizing: the most jobs that were being resized at once.
        sizes: of each job, the sizes it has had, and since when.
        firsts: of due jobs that waited before all others, to their starts.
        alone_s: since when the last job runs alone, and nobody waits.
    """

    specs: list[JobSpec]
    policy: Policy = DEFAULT
    at_once: int = 0
    mtbf_s: float | None = None
    lazy: bool = True
    nodes: int = NODES
    resizing: int = 0
    sizes: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    firsts: dict[str, First] = field(default_factory=dict)
    alone_s: float = inf

    def __post_init__(self) -> None:
        failures = []
        if self.mtbf_s is not None:
            failures = failing(
                self.nodes, mtbf_s=self.mtbf_s, repair_s=50.0, horizon_s=300.0, seed=1
            )
        self.simulation = (Simulation if self.lazy else EveryPoint)(
            self.specs,
            Site(self.nodes, (NodePower(1.0, 2.0, 3.0),) * self.nodes),
            self.policy,
            record=False,
            observer=self.look,
            failures=failures,
        )
        self.state = self.simulation.engine.state
        self.state.max_concurrent_resizes = self.at_once
        self.simulation.run()

    def look(self, simulation: Simulation) -> None:
        state = simulation.engine.state
        resizing = sum(j.requested_size is not None for j in state.running.values())
        self.resizing = max(self.resizing, resizing)
        for each in state.running.values():
            had = self.sizes.setdefault(str(each.spec.id), [])
            if not had or had[-1][0] != each.size:
                had.append((each.size, state.now_s))
        alone = len(state.running) == 1 and not state.pending
        self.alone_s = min(self.alone_s, state.now_s) if alone else inf
        self._look_at_first(state)

    def _look_at_first(self, state: State) -> None:
        waiting = [state.pending[i] for i in state.due or {} if i in state.pending]
        first = next(iter(state.by_priority(waiting)), None)
        name = "" if first is None else str(first.spec.id)
        for other in [
            each for each in self.firsts if each != name and JobId(each) in state.pending
        ]:
            del self.firsts[other]
        if first is None or state.one_array:
            return
        room = self.policy.placement(state)
        found = SIZING.backfilled(state, self.policy.order(state), room)
        if not found.jobs and found.first is None:
            found.first = first
        at_s = found.reserve(state, room) if found.first is first else state.now_s
        resized = self.simulation.resized
        known = self.firsts.setdefault(name, First(at_s, at_s, resized))
        known.latest_s = max(known.latest_s, at_s)
        known.resizes = resized - known.before

    def start_s(self, name: str) -> float:
        start_s = self.state.ended[JobId(name)].start_s
        assert start_s is not None
        return start_s


def interval_s(specs: list[JobSpec]) -> float:
    """Return how long it may take until every job has come to a resize point."""
    return max((s.resize_every_s or 0.0 for s in specs if s.mode.resizable), default=0.0)


def prices_s(specs: list[JobSpec]) -> float:
    """Return what the dearest resize of a stream costs."""
    return max((s.resize_price_s for s in specs if s.mode.resizable), default=0.0)


# --- rigid jobs ------------------------------------------------------------------------------

RIGID = Kind(
    modes=(FIXED,),
    longer=(None, 0.1, 1.0, 1.5, 4.0),
    arrays=ARRAYS,
    priorities=(0, 0, 0, 5),
    most=40,
)
IN_TIME = Kind(
    modes=(FIXED,),
    longer=(None, 1.0, 1.5, 4.0),
    arrays=ARRAYS,
    priorities=(0, 0, 0, 5),
    most=40,
)
"""Jobs that end within their requests."""


def begun(
    specs: list[JobSpec], name: str, *, counted: bool, ahead: bool, tail: str = "queue"
) -> dict[str, float | None]:
    policy = adjusted(named(name), admission={"tail": tail})
    policy = chosen(policy, counted=counted, ahead=ahead)
    simulation = Simulation(specs, Site(NODES), policy, record=False)
    simulation.run()
    return starts(simulation)


@settings(max_examples=60)
@given(streams(RIGID), st.booleans(), st.sampled_from(["queue", "shortest"]))
@pytest.mark.promise("default-policy")
def test_rigid_jobs_start_just_when_easy_starts_them(
    specs: list[JobSpec], counted: bool, tail: str
) -> None:
    """Some jobs outrun their requests; many come at one instant. Nodes are placed, or counted."""
    ours = begun(specs, "backfill-share", counted=counted, ahead=False, tail=tail)
    assert ours == begun(specs, "easy", counted=counted, ahead=False, tail=tail)


@settings(max_examples=60)
@given(streams(IN_TIME))
@pytest.mark.promise("default-policy")
def test_rigid_jobs_start_as_by_easy_that_goes_by_expected_ends(specs: list[JobSpec]) -> None:
    """As ``rms simulate`` does: a start may come before the end that makes it possible."""
    ours = begun(specs, "backfill-share", counted=True, ahead=True)
    assert ours == begun(specs, "easy", counted=True, ahead=True)


@settings(max_examples=60)
@given(streams(Kind(most=8)), streams(RIGID))
@pytest.mark.promise("default-policy")
def test_once_all_that_is_not_fixed_is_over_easy_decides(
    first: list[JobSpec], then: list[JobSpec]
) -> None:
    later = [replace(s, id=JobId(f"then{s.id}"), submit_s=s.submit_s + 1e5) for s in then]
    simulation = Simulation([*first, *later], Site(NODES), DEFAULT, record=False)
    simulation.run()
    assert simulation.engine.state.due is None
    easy = begun(later, "easy", counted=False, ahead=False)
    assert {name: at_s for name, at_s in starts(simulation).items() if "then" in name} == easy


# --- the promise -----------------------------------------------------------------------------


@settings(max_examples=60)
@given(streams(Kind()))
@pytest.mark.promise("default-policy")
def test_the_first_due_job_starts_by_its_reservation_once_all_came_to_a_point(
    specs: list[JobSpec],
) -> None:
    """Requested times are upper bounds, resizes cost nothing: lent nodes come at the next point."""
    watched, more_s = Watched(specs), interval_s(specs)
    for name, first in watched.firsts.items():
        assert first.latest_s <= first.reserved_s + more_s + 1e-6
        assert watched.start_s(name) <= first.reserved_s + more_s + 1e-6


@settings(max_examples=60)
@given(streams(Kind(prices=(0.0, 4.0))))
@pytest.mark.promise("default-policy")
def test_each_resize_delays_the_first_due_job_by_its_price_at_most(specs: list[JobSpec]) -> None:
    """Whoever is resized stands still meanwhile, and the first waits for some of them to end."""
    watched, more_s, price_s = Watched(specs), interval_s(specs), prices_s(specs)
    for name, first in watched.firsts.items():
        most_s = first.reserved_s + more_s + (1 + first.resizes) * price_s
        assert watched.start_s(name) <= most_s + 1e-6


@settings(max_examples=60)
@given(streams(Kind(modes=(FLEXIBLE,), low=1, longer=(None, 1.0, 1.5))))
@pytest.mark.promise("default-policy")
def test_flexible_jobs_of_one_node_start_once_as_many_as_there_are_nodes_have_ended(
    specs: list[JobSpec],
) -> None:
    """Each starts an interval and the longest run on one node after EASY would, at most."""
    watched = Watched(specs)
    simulation = Simulation([rigid(s) for s in specs], Site(NODES), named("easy"))
    simulation.run()
    longest_s = max(s.expected_s(1) for s in specs)
    for name, easy_s in starts(simulation).items():
        assert easy_s is not None
        assert watched.start_s(name) <= easy_s + longest_s + interval_s(specs) + 1e-6


@settings(max_examples=60)
@given(streams(Kind(modes=(FIXED, MOLDABLE, FLEXIBLE))))
@pytest.mark.promise("default-policy")
def test_due_jobs_that_cannot_run_side_by_side_start_in_the_order_of_submission(
    specs: list[JobSpec],
) -> None:
    """Each takes all nodes: EASY starts them in that order, and so does the twin."""
    whole = [replace(s, nodes_min=NODES, nodes_max=NODES, preferred=NODES) for s in specs]
    watched = Watched(whole)
    begun_s = [watched.start_s(str(s.id)) for s in whole]
    assert watched.state.due in ({}, None)
    assert begun_s == sorted(begun_s)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("small_mode", [FLEXIBLE, FIXED])
@pytest.mark.promise("default-policy")
def test_a_stream_of_small_jobs_without_end_starves_no_wide_one(
    mode: Mode, small_mode: Mode
) -> None:
    """32 nodes, 1-node jobs of 300 s at nine tenths of what can be done, one of all nodes."""
    nodes, span_s = 32, 300.0
    sizes = (1, 1, 4) if small_mode is FLEXIBLE else (1,)
    small = [
        job(n, sizes, small_mode, run_s=span_s, at_s=n * span_s / nodes / 0.9, every_s=60.0)
        for n in range(600)
    ]
    wide = job(2000, (nodes,), mode, run_s=600.0, at_s=1000.0)
    specs = [*small, wide]
    simulation = Simulation([rigid(s) for s in specs], Site(nodes), named("easy"))
    simulation.run()
    easy_s = simulation.engine.state.ended[JobId("2000")].start_s
    assert easy_s is not None
    watched = Watched(specs, nodes=nodes)
    assert watched.start_s("2000") <= easy_s + span_s + 60.0


@settings(max_examples=40)
@given(
    streams(Kind(prices=(0.0, 4.0), points=(1.0, 7.0, None), arrays=ARRAYS)),
    st.sampled_from([None, 500.0]),
    st.booleans(),
)
@pytest.mark.promise("default-policy")
def test_every_job_ends(specs: list[JobSpec], mtbf_s: float | None, lazy: bool) -> None:
    """Whether or not all resize points happen. That no node is taken twice, the rules check."""
    watched = Watched(specs, mtbf_s=mtbf_s, lazy=lazy)
    assert {j.state for j in watched.state.ended.values()} == {JobState.COMPLETED}
    assert len(watched.state.ended) == len(specs)
    assert watched.state.free_count == NODES - len(watched.state.down)


def test_a_node_that_fails_while_its_job_is_resized_ends_that_resize() -> None:
    specs = [job(1, (2, 2, 4), MALLEABLE, run_s=50.0, price_s=4.0), job(2, (2,), run_s=3.0)]
    simulation = Simulation(
        specs, Site(4), DEFAULT, failures=[NodeDown(11.0, Node(0)), NodeUp(12.0, Node(0))]
    )
    simulation.run()
    over = simulation.engine.state.ended[JobId("1")]
    assert over.start_s == 11.0 and over.state is JobState.COMPLETED


@pytest.mark.promise("default-policy")
def test_a_job_that_has_just_started_gives_nodes_at_its_next_resize_point() -> None:
    """Nothing else happens in between that the policy could look at."""
    specs = [
        replace(job(0, (8,)), speedup=None, run_s=10.0),
        replace(job(1, (2, 8, 8), MALLEABLE, at_s=1.0), speedup=None, run_s=1000.0),
        replace(job(2, (2,), at_s=2.0), speedup=None, run_s=10.0),
    ]
    for lazy in (False, True):
        watched = Watched(specs, lazy=lazy)
        assert (watched.start_s("1"), watched.start_s("2")) == (10.0, 20.0)


@pytest.mark.promise("default-policy")
def test_a_task_of_an_array_gives_nodes_at_its_next_resize_point() -> None:
    """Among tasks of one array a resize is decided on when another comes, between two points."""
    one = replace(job(1, (2, 2, 7), FLEXIBLE, array="a"), speedup=None, run_s=84.5)
    specs = [one, job(2, (6,), run_s=4.5, at_s=32.0, array="a")]
    for lazy in (False, True):
        assert Watched(specs, lazy=lazy).start_s("2") == 40.0


# --- resizes ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(streams(Kind(prices=(0.0, 4.0))), st.integers(1, 3))
def test_no_more_than_allowed_are_resized_at_once(specs: list[JobSpec], at_once: int) -> None:
    assert Watched(specs, at_once=at_once).resizing <= at_once


@settings(max_examples=60)
@given(streams(Kind(prices=(0.0, 4.0), arrays=((None, None), ("a", None)))))
@pytest.mark.promise("default-policy")
def test_no_job_is_widened_too_far_or_too_soon(specs: list[JobSpec]) -> None:
    """Beyond its preferred size, n t(n) is at most 1.1 p t(p); it rests for ten times a price."""
    watched = Watched(specs)
    alone = all(spec.array is not None for spec in specs)
    for spec in specs:
        had = watched.sizes[str(spec.id)]
        speedup, size = spec.speedup, spec.preferred
        if speedup is not None and spec.array is None:
            most = max(n for n, _ in had)
            allowed = 1.1 * size * speedup.time(size) * (1.0 + 1e-9)
            assert most <= size or most * speedup.time(most) <= allowed
        widened = [at_s for (a, _), (b, at_s) in pairwise(had) if b > a]
        if spec.array is None and not alone:
            rest_s = SIZING.rest * spec.resize_price_s
            for before_s, after_s in pairwise(widened):
                assert after_s - before_s >= rest_s - 1e-6


@settings(max_examples=60)
@given(streams(Kind(modes=(MALLEABLE, FLEXIBLE, FIXED), laws=(True,), longer=(None, 1.0))))
@pytest.mark.promise("default-policy")
def test_who_is_left_alone_is_as_wide_as_it_may_be(specs: list[JobSpec]) -> None:
    """Within the rest after a resize and an interval; the more so where it was resized often."""
    long = [replace(s, speedup=Speedup(law=(2000.0, 3.0)), limit_s=None) for s in specs]
    watched = Watched(long)
    last = max(watched.state.ended.values(), key=lambda each: each.end_s or 0.0)
    spec, rest_s = last.spec, REST_S + interval_s(specs)
    if spec.mode is FIXED or (last.end_s or 0.0) - watched.alone_s <= rest_s:
        return
    assert last.size == min(NODES, SIZING.widest(watched.state, last))


# --- what the state keeps --------------------------------------------------------------------


def recounted(state: State) -> tuple[dict[str, int], int]:
    """Return what accounts hold at least sizes, and how many nodes are above these, by hand."""
    held: dict[str, int] = {}
    above = 0
    for each in state.running.values():
        more = 0
        if each.resizable_now:
            sizes = [n for n in each.spec.sizes() if n not in each.refused_sizes]
            more = each.size - min([n for n in sizes if n <= each.size], default=each.size)
        above += more
        held[each.spec.account] = held.get(each.spec.account, 0) + each.size - more
    return held, above


@settings(max_examples=60)
@given(
    streams(Kind(prices=(0.0, 4.0), arrays=ARRAYS, accounts=("", "many", "many", "few"))),
    st.sampled_from([None, 500.0]),
)
def test_what_is_kept_of_running_jobs_is_what_a_recount_shows(
    specs: list[JobSpec], mtbf_s: float | None
) -> None:
    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        held, above = recounted(state)
        assert {name: nodes for name, nodes in state.held_by.items() if nodes} == held
        assert state.callable == above
        if state.due is None:
            return
        running = {each.number: each for each in state.running.values()}
        least, loss, gain = (state.running_by(name) for name in ("least end", "loss", "gain"))
        assert {number for _, number, _ in least} == running.keys()
        for ranking in (least, loss, gain):
            assert [entry[:2] for entry in ranking] == sorted(entry[:2] for entry in ranking)
            assert all(running[number] is each for _, number, each in ranking)
        assert {n for _, n, _ in loss} <= {n for n, each in running.items() if each.callable}
        cheap = {n for n, e in running.items() if e.callable and not e.spec.resize_price_s}
        assert cheap <= {n for _, n, _ in loss}
        assert {n for _, n, _ in gain} <= {n for n, e in running.items() if e.resizable_now}

    failures = []
    if mtbf_s is not None:
        failures = failing(NODES, mtbf_s=mtbf_s, repair_s=50.0, horizon_s=300.0, seed=1)
    simulation = Simulation(
        specs, Site(NODES), DEFAULT, record=False, observer=look, failures=failures
    )
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)


@pytest.mark.promise("default-policy")
def test_who_floods_the_queue_holds_up_no_other_account() -> None:
    """300 jobs of one account come at once; those of others wait for a resize point at most."""
    flood = [
        replace(job(n, (1, 2, 4), FLEXIBLE, run_s=200.0, every_s=10.0), account="many")
        for n in range(300)
    ]
    few = [
        replace(job(n, (1, 2, 4), FLEXIBLE, run_s=300.0, at_s=50.0 * (n - 999)), account=f"u{n}")
        for n in range(1000, 1010)
    ]
    watched = Watched([*flood, *few], nodes=32)
    waits = sorted(watched.start_s(str(s.id)) - s.submit_s for s in few)
    many = sorted(watched.start_s(str(s.id)) - s.submit_s for s in flood)
    assert waits[-1] < many[len(many) // 2]


# --- energy, parts ---------------------------------------------------------------------------


def test_a_weight_of_energy_spends_fewer_joules_and_more_time_on_a_stream() -> None:
    specs = [
        replace(
            job(n, (1, 2, NODES), FLEXIBLE, run_s=60.0 + 7 * (n % 5), at_s=25.0 * n),
            speedup=Speedup(law=(60.0, 30.0)),
        )
        for n in range(30)
    ]
    power = (NodePower(20.0, 100.0, 100.0),) * NODES

    def run(energy: float) -> tuple[float, float]:
        policy = adjusted(DEFAULT, sizing={"energy": energy, "node_hours": 10.0})
        simulation = Simulation(specs, Site(NODES, power), policy)
        simulation.run()
        over = simulation.engine.state.ended.values()
        turnaround = sum((each.end_s or 0.0) - each.spec.submit_s for each in over)
        return turnaround, simulation.ledger.cluster_j

    (fast_s, fast_j), (slow_s, slow_j) = run(0.0), run(1.0)
    assert fast_s < slow_s and fast_j > slow_j


def test_the_shipped_parts_are_those_tested() -> None:
    assert DEFAULT.order == SmallestFirst() and DEFAULT.sizing == SIZING
