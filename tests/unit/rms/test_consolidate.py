"""Jobs moved together so that hosts go off: figures 8 to 12 of Chauhan et al., and its costs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from specs import job_spec

from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Decision, PowerOff, PowerOn, Reason, Resize, Start, Started
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.model.speedup import OperatingPoint
from rms.core.policies import Policy, PolicyError, adjusted, named
from rms.core.policies.node_power import Consolidate, Host, feasible, migrations
from rms.core.rules.transition import apply, power_off, take
from rms.core.state import State
from rms.sim.simulator import Simulation

POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=20.0, boot_j=3000.0)
LEVELS = ((1.0, 0.5), (2.0, 1.0))
MEMORY = (OperatingPoint(1.0, 1.25, 0.4), OperatingPoint(2.0, 1.0, 1.0))


def site(hosts: int = 2, slots: int = 4) -> Site:
    nodes = (SharedNode(inf, (Processors(slots),)),) * hosts
    return Site(hosts * slots, (POWER,) * hosts, shared=nodes, levels=LEVELS)


def policy(**placement: object) -> Policy:
    return adjusted(
        named("easy"),
        placement={"part": "consolidate", **placement},
        node_power={"part": "off-when-idle"},
    )


def job(
    number: int, size: int, run_s: float = 1000.0, at_s: float = 0.0, price_s: float = 1.0
) -> JobSpec:
    """A malleable job of one size: one that may only be moved."""
    law = Speedup(law=(run_s * size, 0.0))
    resizes = {"resize_every_s": 5.0, "resize_price_s": price_s}
    return job_spec(number, size, Mode.MALLEABLE, at_s, speedup=law, limit_s=run_s, **resizes)


def placed(where: Site, *jobs: tuple[JobSpec, tuple[int, ...]]) -> State:
    """Return a state in which jobs run on these slots."""
    state = State(where)
    for spec, nodes in jobs:
        state.enqueue(Job(spec))
        take(state, Start(spec.id, tuple(map(Node, nodes)), ""))
        apply(state, Started(state.now_s, spec.id))
    return state


def moved(
    state: State, part: Consolidate | None = None, decided: tuple[Decision, ...] = ()
) -> dict[str, tuple[int, ...]]:
    found = (part or Consolidate()).migrations(state, state.free, decided, None)
    assert all(each.code is Reason.CONSOLIDATES for each in found)
    return {each.job: each.nodes for each in found}


# --- the worked examples ---------------------------------------------------------------------


def test_figure_8() -> None:
    """Four cores of node 1 are taken; of a job of four processes two are there, two on node 2."""
    state = placed(site(2, 8), (job(1, 4), (0, 1, 2, 3)), (job(2, 4), (4, 5, 8, 9)))
    assert moved(state) == {"2": (4, 5, 6, 7)}


def host(at: int, free: int, used: int, clock: float = 1.0, *, movable: bool = True) -> Host:
    return Host(at, [Node(10 * at + n) for n in range(free)], used, clock, movable=movable)


def pairs(*hosts: Host) -> list[tuple[int, int]]:
    found = []
    for source, destination in migrations(hosts):
        found.append((source.at, destination.at))
        destination.free = destination.free[source.used :]
        destination.used += source.used
        source.used = 0
    return found


def test_figure_9() -> None:
    """The emptiest of those with free cores goes first; who is full, or fits nowhere, leaves."""
    assert pairs(host(0, 0, 6), host(1, 2, 4), host(2, 4, 2), host(3, 5, 1)) == [(3, 1)]
    assert pairs(host(0, 3, 3), host(1, 4, 2), host(2, 5, 1)) == [(2, 0), (1, 0)]
    assert pairs(host(0, 1, 5), host(1, 2, 4)) == []
    assert pairs(host(0, 2, 4), host(1, 5, 1, movable=False)) == [(0, 1)]
    assert pairs(host(0, 2, 4, movable=False), host(1, 5, 1, movable=False)) == []


def test_figure_10() -> None:
    """The best match of operating points; else the other way round; else nowhere."""
    bottom = host(9, 4, 2, 0.6)
    near, far, full = host(1, 2, 4, 0.7), host(2, 3, 3, 1.0), host(3, 1, 5, 0.6)
    for others, takes in (([far, near, full], near), ([full, far], far)):
        pair = feasible(bottom, others)
        assert pair is not None and (pair[0], pair[1]) == (bottom, takes)
    above, below = host(4, 2, 4, 0.7), host(5, 2, 4, 0.5)
    assert feasible(host(9, 4, 2, 0.6), [below, above]) == (host(9, 4, 2, 0.6), above)
    assert feasible(host(9, 4, 2, 0.6, movable=False), [full]) is None
    gives = host(6, 1, 4, 0.9)
    assert feasible(host(9, 4, 2, 0.6, movable=False), [full, gives]) == (
        gives,
        host(9, 4, 2, 0.6, movable=False),
    )


def test_figures_11_and_12() -> None:
    """Job 2 ends at 50 s: job 3 moves to the first host, the second goes off until job 4 comes.

    As job 3 comes after jobs 1 and 2, the second host has already been off for no time.
    """
    specs = [job(1, 3), job(2, 1, 50.0), job(3, 1), job(4, 4, 50.0, 400.0)]
    found = Simulation(specs, site(), policy())
    found.run()
    found.ledger.check()
    second = (4, 5, 6, 7)
    assert [
        (at_s, type(each).__name__, each.nodes)
        for at_s, each in found.decisions
        if isinstance(each, PowerOff | PowerOn | Resize)
    ][2:6] == [
        (50.0, "Resize", (3,)),
        (51.0, "PowerOff", second),
        (400.0, "PowerOn", second),
        (470.0, "PowerOff", second),
    ]
    ended = found.engine.state.ended
    assert ended[JobId("4")].start_s == 420.0
    over = ended[JobId("3")]
    assert over.end_s == pytest.approx(1021.0) and over.resize_count == 1
    assert found.ledger.off_j == pytest.approx(10.0 * (400.0 - 51.0 + 1021.0 - 470.0))
    assert found.ledger.boot_j == pytest.approx(2 * 3000.0)


# --- what it needs and costs -----------------------------------------------------------------


def test_a_migration_has_to_pay() -> None:
    """A boot takes 3,000 J, which 90 W less take 34 s to make good."""
    for run_s, price_s, pays in ((30.0, 0.0, False), (60.0, 0.0, True), (60.0, 30.0, False)):
        spec = job(2, 1, run_s, price_s=price_s)
        other = job(1, 2, 500.0, price_s=price_s)
        state = placed(site(), (other, (0, 1)), (spec, (4,)))
        assert bool(moved(state)) is pays


@pytest.mark.parametrize(("run_s", "pays"), [(10.0, False), (10.125, True)])
def test_a_migration_that_only_makes_good_its_costs_is_not_made(run_s: float, pays: bool) -> None:
    """Of 10 s the host is off for 8, which saves 512 J; 2 s on two slots of 128 W cost as much."""
    power = NodePower(128.0, 512.0, 0.0, off_w=64.0, boot_s=2.0, boot_j=0.0)
    where = structs.replace(site(), power=(power,) * 2)
    short = structs.replace(job(2, 1, run_s, price_s=2.0), power_w=128.0)
    jobs = (job(1, 2, 500.0, price_s=2.0), (0, 1)), (short, (4,))
    assert bool(moved(placed(where, *jobs))) is pays


def test_bounds() -> None:
    state = placed(site(), (job(1, 2), (0, 1)), (job(2, 1), (4,)))
    assert moved(state) == {"2": (2,)}
    assert moved(state, Consolidate(moves=0)) == {}
    state.running[JobId("2")].at_resize_point = False  # it rests after a resize
    assert moved(state) == {"1": (5, 6)}
    state.running[JobId("1")].resize_count = 10
    assert moved(state) == {}


def test_nobody_is_moved_to_a_host_that_is_being_emptied_or_off() -> None:
    jobs = ((job(1, 3), (0, 1, 2)), (job(2, 1), (4,)), (job(3, 1), (8,)))
    state = placed(site(3), *jobs)
    take(state, Resize(JobId("2"), (Node(3),), ""))
    assert moved(state) == {}
    state = placed(site(3), *jobs[:2])
    power_off(state, tuple(map(Node, range(8, 12))))
    assert moved(state) == {"2": (3,)}


def test_a_migration_asks_for_the_same_frequency_and_raises_its_new_host() -> None:
    """Job 1 runs at 1 GHz until job 3, which wants 2 GHz, comes to its host."""
    specs = [structs.replace(job(1, 3), operating_points=MEMORY), job(2, 1, 50.0), job(3, 1)]
    specs[1] = structs.replace(specs[1], operating_points=MEMORY)
    made = adjusted(policy(), frequency={"part": "optimal-operating-point"})
    found = Simulation(specs, site(), made)
    found.run()
    found.ledger.check()
    assert [each.job for _, each in found.decisions if isinstance(each, Resize)] == ["3"]
    # Job 2 takes 62.5 s; job 3, which waits 20 s for a boot, is moved at 65 s, for 1 s.
    over = found.engine.state.ended
    assert over[JobId("3")].end_s == pytest.approx(1021.0)
    assert over[JobId("1")].end_s == pytest.approx(66.0 + 1000.0 - 66.0 / 1.25)


def test_a_host_runs_at_the_highest_frequency_of_its_jobs() -> None:
    """Job 4 is moved to the host whose clock it has already, though another has fewer free."""
    where = site(3, 4)
    jobs = (job(1, 1), (0,)), (job(2, 1), (1,)), (job(3, 3), (4, 5, 6)), (job(4, 1), (8,))
    state = placed(where, *jobs)
    for number, share in ((1, 1.0), (2, 0.5), (3, 0.9)):
        one = state.running[JobId(str(number))]
        one.requested_frequencies = (share,) * one.size
    assert moved(state) == {"4": (2,)}


def test_a_malleable_job_is_narrowed_where_that_frees_a_host() -> None:
    """No slot is free on the first host; job 2 does without its one on the second."""
    spec = structs.replace(job(2, 2), nodes_min=1, speedup=Speedup(law=(100.0, 900.0)))
    state = placed(site(), (job(1, 3), (0, 1, 2)), (spec, (3, 4)))
    assert moved(state) == {}
    assert moved(state, Consolidate(narrow=True)) == {"2": (3,)}
    slow = structs.replace(spec, speedup=Speedup(law=(2000.0, 0.0)))  # it would take twice as long
    state = placed(site(), (job(1, 3), (0, 1, 2)), (slow, (3, 4)))
    assert moved(state, Consolidate(narrow=True)) == {}


@pytest.mark.parametrize(("longer_s", "pays"), [(200.0, True), (220.0, False)])
def test_what_narrowing_costs_is_the_sum_over_the_jobs_of_a_host(
    longer_s: float, pays: bool
) -> None:
    """Two jobs with 1000 s to go have a host each and half of the third, which could be off.

    That saves 90 W for 999 s less 3,000 J of a boot: 86,910 J. Each job costs 100 W for longer_s,
    and as much for its host that idles for longer_s and 1 s of a resize: for 200 s both cost
    80,200 J, for 220 s 88,200 J.
    """
    law = Speedup(law=(6 * longer_s, 1000.0 - 2 * longer_s))  # 1000 s on three slots
    specs = [
        structs.replace(job(n, 3), nodes_min=2, speedup=law, power_w=100.0, limit_s=None)
        for n in (1, 2)
    ]
    state = placed(site(3, 2), (specs[0], (0, 1, 4)), (specs[1], (2, 3, 5)))
    assert moved(state, Consolidate(narrow=True)) == ({"1": (0, 1), "2": (2, 3)} if pays else {})


def test_it_needs_nodes_that_go_off() -> None:
    with pytest.raises(PolicyError, match="frees hosts to go off, got always-on"):
        adjusted(named("easy"), placement={"part": "consolidate"})
    with pytest.raises(PolicyError, match="moves of at least 0, got -1"):
        policy(moves=-1)


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(1, draw(st.integers(2, 12)) + 1):
        size, run_s = draw(st.integers(1, 6)), draw(st.sampled_from([20.0, 90.0, 300.0]))
        spec = job(number, size, run_s, float(draw(st.integers(0, 300))))
        low = draw(st.integers(1, size))
        points = draw(st.sampled_from([(), MEMORY]))
        found.append(structs.replace(spec, nodes_min=low, operating_points=points))
    return found


@pytest.mark.promise("consolidate")
@settings(max_examples=40, deadline=None)
@given(streams(), st.booleans(), st.booleans(), st.sampled_from([None, 550.0]))
def test_every_job_runs_no_slot_is_given_twice_and_the_books_balance(
    specs: list[JobSpec], narrow: bool, clocked: bool, cap_w: float | None
) -> None:
    """The engine refuses what breaks a rule; work done is the integral of the rate."""
    made = policy(narrow=narrow, moves=3)
    if clocked:
        made = adjusted(made, frequency={"part": "optimal-operating-point"})
    where = structs.replace(site(3), power_cap_w=cap_w)
    simulation = Simulation(specs, where, made, record=False)
    simulation.run()
    state, ledger = simulation.engine.state, simulation.ledger
    assert len(state.ended) == len(specs) and not state.pending
    ledger.check()
    assert all(each.resize_count <= 3 for each in state.ended.values())
    assert all(each.done == pytest.approx(1.0) for each in state.ended.values())
    assert ledger.cluster_j == pytest.approx(ledger.owned_j, rel=1e-9)
