"""Policy ``backfill-share`` on simulated streams of jobs: what it promises to each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import msgspec
import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, MOLDABLE, Driven, job
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import all_wide_but

from rms.core.events import Ended, NodeDown, NodeUp
from rms.core.model import Job, JobId, JobSpec, JobState, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.backfill_share import BackfillShare, backfilled
from rms.core.policies.order import SmallestFirst
from rms.core.policies.share import SharePlan
from rms.core.state import State
from rms.sim.failures import failing
from rms.sim.simulator import Hooks, Simulation

NODES = 8
DEFAULT = named("backfill-share")


@dataclass(frozen=True)
class Kind:
    """What the jobs of a stream may be.

    Attributes:
        prices, points: of their resizes, in s.
        arrays: names and limits of their arrays.
    """

    modes: tuple[Mode, ...] = tuple(Mode)
    prices: tuple[float, ...] = (0.0,)
    points: tuple[float | None, ...] = (1.0, 7.0)
    arrays: tuple[tuple[str | None, int | None], ...] = ((None, None),)
    most: int = 25


@st.composite
def streams(draw: st.DrawFn, kind: Kind) -> list[JobSpec]:
    """Jobs whose limits, where they have one, are no shorter than they run."""
    specs, at_s = [], 0.0
    for number in range(draw(st.integers(2, kind.most))):
        at_s += draw(st.sampled_from([0.0, 0.0, 1.0, 5.0, 30.0]))
        low, preferred, high = sorted(draw(st.tuples(*[st.integers(1, NODES)] * 3)))
        mode = draw(st.sampled_from(kind.modes))
        work_s = float(draw(st.integers(1, 200)))
        speedup = Speedup(law=(work_s, draw(st.sampled_from([0.0, 3.0]))))
        law = draw(st.booleans())
        run_s = speedup.time(preferred)
        longer = draw(st.sampled_from([None, 1.0, 1.5, 4.0]))
        array, limit = draw(st.sampled_from(kind.arrays))
        spec = job(
            number,
            (low, preferred, high),
            mode,
            at_s=at_s,
            limit_s=None if longer is None else longer * run_s,
            every_s=draw(st.sampled_from(kind.points)),
            price_s=draw(st.sampled_from(kind.prices)),
            array=array,
            array_limit=limit,
        )
        known = {"speedup": speedup} if law else {"speedup": None, "run_s": run_s}
        specs.append(msgspec.structs.replace(spec, **known))
    return specs


@dataclass
class Watched:
    """A simulation, looked at after every event.

    Attributes:
        promised: of jobs that were the oldest waiting and are not flexible, the earliest
            reservation worked out for them: now, if they wait for lent nodes only.
        resizing: the most jobs that were being resized at once.
        ahead: of each job, how many others waited that come before it when it was due first.
    """

    specs: list[JobSpec]
    policy: Policy = DEFAULT
    at_once: int = 0
    mtbf_s: float | None = None
    promised: dict[str, float] = field(default_factory=dict)
    resizing: int = 0
    ahead: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mtbf_s = self.mtbf_s
        failures = (
            []
            if mtbf_s is None
            else failing(NODES, mtbf_s=mtbf_s, repair_s=50.0, horizon_s=300.0, seed=1)
        )
        self.simulation = Simulation(
            self.specs,
            Site(NODES, (NodePower(1.0, 2.0, 3.0),) * NODES),
            self.policy,
            hooks=Hooks(record=False, observer=self.look),
            failures=failures,
        )
        self.state = self.simulation.engine.state
        self.state.max_concurrent_resizes = self.at_once
        self.simulation.run()

    def look(self, simulation: Simulation) -> None:
        state = simulation.engine.state
        resizing = sum(j.requested_size is not None for j in state.running.values())
        self.resizing = max(self.resizing, resizing)
        if not state.pending:
            return
        order = self.policy.order
        assert isinstance(order, SmallestFirst)
        oldest = next(iter(state.pending.values()))
        if oldest.spec.mode is not FLEXIBLE and not state.one_array:
            room = self.policy.placement(state)
            found = backfilled(state, order(state), room)
            at_s = found.reserve(state, room) if found.first is oldest else state.now_s
            name = str(oldest.spec.id)
            self.promised[name] = min(at_s, self.promised.get(name, inf))
        due = {str(j.spec.id): (order.due_s(j), j.number) for j in state.pending.values()}
        for name, (due_s, number) in due.items():
            if due_s <= state.now_s and name not in self.ahead:
                self.ahead[name] = sum(d <= due_s or n < number for d, n in due.values())

    def start_s(self, name: str) -> float:
        start_s = self.state.ended[JobId(name)].start_s
        assert start_s is not None
        return start_s


def interval_s(specs: list[JobSpec]) -> float:
    """Return how long it may take until every job has come to a resize point."""
    return max((s.resize_every_s or 0.0 for s in specs if s.mode.resizable), default=0.0)


ARRAYS = ((None, None), ("a", 2), ("b", None))


@settings(max_examples=40)
@given(
    streams(Kind(prices=(0.0, 4.0), points=(1.0, 7.0, None), arrays=ARRAYS)),
    st.sampled_from([0, 2, 24]),
    st.sampled_from([None, 500.0]),
)
@pytest.mark.promise("default-policy")
def test_every_job_ends_and_is_resized_no_more_than_so_often(
    specs: list[JobSpec], resizes: int, mtbf_s: float | None
) -> None:
    """That no node is given twice, the rules check at every decision."""
    policy = adjusted(DEFAULT, sizing={"resizes": resizes})
    watched = Watched(specs, policy, mtbf_s=mtbf_s)
    assert {j.state for j in watched.state.ended.values()} == {JobState.COMPLETED}
    assert len(watched.state.ended) == len(specs)
    assert watched.state.free_count == NODES - len(watched.state.down)
    for each in watched.state.ended.values():
        # Those beyond are shrinks: each to a smaller size.
        assert each.resize_count <= resizes + len(each.spec.sizes()) - 1


def test_a_node_that_fails_while_its_job_is_resized_ends_that_resize() -> None:
    specs = [job(1, (2, 2, 4), MALLEABLE, run_s=50.0, price_s=4.0), job(2, (2,), run_s=3.0)]
    simulation = Simulation(
        specs, Site(4), DEFAULT, failures=[NodeDown(11.0, Node(0)), NodeUp(12.0, Node(0))]
    )
    simulation.run()
    over = simulation.engine.state.ended[JobId("1")]
    assert over.start_s == 11.0 and over.state is JobState.COMPLETED


@settings(max_examples=25)
@given(streams(Kind(prices=(0.0, 4.0))), st.integers(1, 3))
def test_no_more_than_allowed_are_resized_at_once(specs: list[JobSpec], at_once: int) -> None:
    assert Watched(specs, at_once=at_once).resizing <= at_once


@settings(max_examples=50)
@given(streams(Kind(modes=(FIXED, MOLDABLE))))
@pytest.mark.promise("default-policy")
def test_without_resizes_no_reservation_of_the_oldest_slips(specs: list[JobSpec]) -> None:
    watched = Watched(specs)
    for name, at_s in watched.promised.items():
        assert watched.start_s(name) <= at_s + 1e-6


@settings(max_examples=60)
@given(streams(Kind()))
@pytest.mark.promise("default-policy")
def test_the_oldest_starts_by_its_reservation_once_all_came_to_a_point(
    specs: list[JobSpec],
) -> None:
    """Requested times are upper bounds, resizes cost nothing: lent nodes come at the next point."""
    watched, more_s = Watched(specs), interval_s(specs)
    for name, at_s in watched.promised.items():
        assert watched.start_s(name) <= at_s + more_s + 1e-6


@settings(max_examples=50)
@given(streams(Kind(most=40)), st.sampled_from([0.5, 2.0]))
@pytest.mark.promise("default-policy")
def test_who_is_due_waits_for_those_due_before_it_only(
    specs: list[JobSpec], stretch: float
) -> None:
    """Each of those before it waits, once it is first, until all that run have ended at most."""
    policy = adjusted(DEFAULT, order={"stretch": stretch, "least_s": 5.0})
    watched = Watched(specs, policy)
    longest_s = max(s.expected_s(s.sizes()[0]) for s in specs) + interval_s(specs)
    order = policy.order
    assert isinstance(order, SmallestFirst)
    for name, ahead in watched.ahead.items():
        due_s = order.due_s(watched.state.ended[JobId(name)])
        # Seen as due at the first event after that, which is no later than the next end.
        assert watched.start_s(name) <= due_s + longest_s * (ahead + 1) + 1e-6


@pytest.mark.parametrize("mode", all_wide_but(Mode, Mode.FIXED, Mode.FLEXIBLE))
@pytest.mark.promise("default-policy")
def test_a_stream_of_small_jobs_without_end_starves_no_wide_one(mode: Mode) -> None:
    """One-node jobs come faster than eight nodes can do them, of all modes and for long."""
    policy = adjusted(DEFAULT, order={"stretch": 3.0, "least_s": 100.0})
    small = [
        job(n, (1, 1, 3), Mode(list(Mode)[n % 4]), run_s=25.0, at_s=2.0 * n, every_s=5.0)
        for n in range(1500)
    ]
    wide = job(2000, (NODES,), mode, run_s=40.0, at_s=41.0)
    watched = Watched([*small, wide], policy)
    start_s = watched.start_s("2000")
    if mode is FLEXIBLE:
        # Overtaken for three times 100 s, and then by those that were due before it.
        assert 341.0 <= start_s <= 341.0 + 200.0
    else:
        assert start_s <= 41.0 + 100.0


def test_jobs_without_limits_starve_no_wide_one() -> None:
    def unknown(number: int, size: int) -> JobSpec:
        return JobSpec(JobId(str(number)), 0.0, size, size, size, FIXED)

    driven = Driven(4)
    assert driven.submit(*(unknown(n, 1) for n in range(1, 4))) == [("1", 1), ("2", 1), ("3", 1)]
    assert driven.submit(unknown(10, 3)) == []
    assert driven.submit(unknown(11, 1)) == []  # it may last longer than those that run
    assert driven.happen(Ended(1.0, JobId("1"), "COMPLETED")) == []
    assert driven.submit(unknown(12, 1)) == []
    assert driven.happen(Ended(2.0, JobId("2"), "COMPLETED")) == [("10", 3)]


def test_a_weight_of_energy_spends_fewer_joules_and_more_time_on_a_stream() -> None:
    specs = [
        job(n, (1, 2, NODES), FLEXIBLE, run_s=60.0 + 7 * (n % 5), at_s=25.0 * n) for n in range(30)
    ]
    laws = [
        JobSpec(**{**_fields(s), "speedup": Speedup(law=(60.0, 30.0)), "array": None})
        for s in specs
    ]
    power = (NodePower(20.0, 100.0, 100.0),) * NODES

    def run(energy: float) -> tuple[float, float]:
        simulation = Simulation(
            laws, Site(NODES, power), adjusted(DEFAULT, sizing={"energy": energy})
        )
        simulation.run()
        over = simulation.engine.state.ended.values()
        turnaround = sum((j.end_s or 0.0) - j.spec.submit_s for j in over)
        return turnaround, simulation.ledger.cluster_j

    (fast_s, fast_j), (slow_s, slow_j) = run(0.0), run(1.0)
    assert fast_s < slow_s and fast_j > slow_j


def _fields(spec: JobSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_the_shipped_parts_are_those_tested() -> None:
    assert DEFAULT.order == SmallestFirst() and DEFAULT.sizing == BackfillShare()
    assert MALLEABLE in Kind().modes


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.floats(10.0, 1e4),  # run time on one node
            st.floats(0.0, 0.3),  # share of it that more nodes do not shorten
            st.sampled_from([0.0, 5.0, 60.0]),  # price of a resize
            st.integers(1, 12),  # its size now
            st.booleans(),  # whether it may be changed
            st.booleans(),  # whether anything is known of its run time
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 40),
)
def test_jobs_that_cannot_be_changed_need_not_be_dealt_nodes_to_the_end(
    drawn: list[tuple[float, float, float, int, bool, bool]], spare: int
) -> None:
    sizing, state, matter = BackfillShare(), State(Site(200)), set()
    for number, (t1_s, serial, price_s, size, matters, known) in enumerate(drawn, 1):
        law = Speedup(law=(t1_s, serial * t1_s)) if known else None
        spec = JobSpec(
            JobId(str(number)), 0.0, 1, 16, size, FLEXIBLE, law, None, 60.0, price_s, run_s=9.0
        )
        one = Job(spec, number, 1, JobState.RUNNING, size=size, start_s=0.0, at_resize_point=True)
        one.set_rate()
        state.index_running(one)
        state.running[spec.id] = one
        if matters:
            matter.add(number)
    running, whole, part = sizing.expandable(state, 48), SharePlan(), SharePlan()
    sizing._expand(state, whole, ([], running), spare, None)
    if matter:
        sizing._expand(state, part, ([], running), spare, None, matter=matter)
    wanted = [change for change in whole.changes if change[0].number in matter]
    assert [change for change in part.changes if change[0].number in matter] == wanted
