"""Hosts whose slots several jobs have: they go off, boot and fail as a whole; their books."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.core.books.ledger import Ledger
from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import (
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodeUp,
    PowerOff,
    PowerOn,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Node, NodePower, Site
from rms.core.policies import Policy, adjusted, named
from rms.core.rules.checks import RuleError, check
from rms.core.rules.powercap import added_w, expected_w, within_limit
from rms.core.rules.transition import boots, power_off
from rms.core.scheduler.engine import Engine
from rms.sim.simulator import Simulation

POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=20.0, boot_j=3000.0)
PAIRS = Site(4, (POWER,) * 2, host=(0, 0, 1, 1))
LEVELS = ((0.9, 0.7), (2.0, 0.8), (4.0, 1.0))
MIXED = SharedNode(64.0, (Processors(1), Processors(3, 3.0, 64.0 / 9.0)))
PLAIN = SharedNode(64.0, (Processors(4),))
SHARED = Site(8, (POWER,) * 2, shared=(MIXED, PLAIN), levels=LEVELS)


def off_when_idle(name: str = "easy", part: str = "first-fit", **parameters: float) -> Policy:
    return adjusted(
        named(name),
        node_power={"part": "off-when-idle"},
        placement={"part": part, **parameters},
    )


def fixed(number: int, at_s: float, size: int, run_s: float, gb_s: float = 0.0) -> JobSpec:
    times = {"limit_s": run_s, "run_s": run_s}
    return job_spec(number, size, at_s=at_s, bandwidth_gb_s=gb_s, **times)


def test_a_site_says_once_whose_slots_there_are() -> None:
    assert SHARED.host == (0,) * 4 + (1,) * 4 and SHARED.hosts == PAIRS.hosts == 2
    assert Site(3).hosts == 3
    with pytest.raises(ValueError, match="the hosts of the slots to be the nodes"):
        Site(8, shared=(MIXED, PLAIN), host=(0,) * 8)
    with pytest.raises(ValueError, match="expected 4 entries of host, got 2"):
        Site(4, host=(0, 1))


def test_joules_of_a_host_off_and_on_by_hand() -> None:
    """One slot of four works for 100 s; after 200 s a job needs all of them for 10 s."""
    specs = [fixed(1, 0.0, 1, 100.0), fixed(2, 200.0, 4, 10.0)]
    found = Simulation(specs, PAIRS, off_when_idle())
    found.run()
    found.ledger.check()
    switches = [
        (at_s, type(each).__name__, each.nodes)
        for at_s, each in found.decisions
        if isinstance(each, PowerOff | PowerOn)
    ]
    assert switches == [
        (0.0, "PowerOff", (2, 3)),
        (100.0, "PowerOff", (0, 1)),
        (200.0, "PowerOn", (0, 1, 2, 3)),
        (230.0, "PowerOff", (0, 1, 2, 3)),
    ]
    ledger = found.ledger
    assert ledger.off_j == pytest.approx(10.0 * (200.0 + 100.0))
    assert ledger.boot_j == pytest.approx(2 * 3000.0)
    assert ledger.idle_j == pytest.approx(100.0 * 100.0 + 2 * 100.0 * 10.0)
    # A slot adds half of what a busy host draws above idle.
    assert sum(ledger.busy_j.values()) == pytest.approx(50.0 * 100.0 + 4 * 50.0 * 10.0)


def test_a_slot_at_a_lower_frequency_draws_less() -> None:
    """2 GHz at 0.8 V are 0.32 of the power at 4 GHz and 1 V; four slots share 100 W."""
    engine = Engine(SHARED, named("easy"))
    ledger = Ledger(SHARED.power, SHARED.host, SHARED.levels)
    (start,) = engine.handle(Submitted(0.0, (fixed(1, 0.0, 2, 10.0),)))
    engine.state.running[JobId("1")].frequencies = (0.5, 1.0)
    engine.handle(Started(0.0, JobId("1")))
    ledger.advance(engine.state, 0.0)
    ledger.follow(engine.state)
    assert start.nodes == (0, 1)  # type: ignore[union-attr]
    assert ledger.node_w(Node(0)) == pytest.approx(100.0 + 25.0 * 0.32 + 25.0)


def test_a_host_goes_down_comes_back_and_fails_as_a_whole() -> None:
    engine = Engine(SHARED, named("easy"))
    state, pools = engine.state, engine.state.pools
    assert pools is not None
    engine.handle(NodeDown(1.0, Node(2)))
    assert state.down == {0, 1, 2, 3} and state.free_count == 4 and state.pool_free == [0, 0, 4]
    engine.handle(NodeUp(2.0, Node(0)))
    assert not state.down and state.free_count == 8 and state.pool_free == pools.number
    for half in (PowerOff((Node(0), Node(1)), ""), PowerOn((Node(4),), "")):
        with pytest.raises(RuleError, match="expected whole hosts"):
            check(state, half)
    power_off(state, tuple(map(Node, range(4, 8))))
    for node in range(4, 8):
        boots(state, Node(node))
    assert expected_w(state) == 100.0 + 150.0
    engine.handle(NodePowerFailed(3.0, Node(5)))
    assert state.down == {4, 5, 6, 7} and not state.booting and state.free_count == 4
    engine.handle(NodeUp(4.0, Node(4)))
    assert state.free_count == 8 and state.pool_free == pools.number
    power_off(state, tuple(map(Node, range(4))))
    for node in range(4):
        boots(state, Node(node))
    engine.handle(NodeBooted(30.0, Node(0)))
    assert not state.booting and state.free_count == 8 and state.pool_free == pools.number


def test_a_cap_counts_what_a_slot_adds() -> None:
    assert added_w([POWER], fixed(1, 0.0, 2, 1.0), 2, slots=2) == 100.0
    assert added_w([POWER], fixed(1, 0.0, 2, 1.0), 2) == 200.0
    with pytest.raises(ValueError, match="at least 100 W"):
        within_limit(fixed(1, 0.0, 2, 1.0), [POWER], 99.0, slots=2)
    assert within_limit(fixed(1, 0.0, 2, 1.0), [POWER], 100.0, slots=2).preferred == 2


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    return [
        fixed(
            number,
            float(draw(st.integers(0, 400))),
            draw(st.integers(1, 8)),
            draw(st.sampled_from([3.0, 40.0, 150.0])),
            draw(st.sampled_from([0.0, 4.0, 32.0])),
        )
        for number in range(1, draw(st.integers(1, 12)) + 1)
    ]


@pytest.mark.promise("node-power")
@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from(["first-fit", "first-fit-shared", "less-consume"]), st.booleans())
def test_no_slot_is_given_while_its_host_is_off_and_the_books_balance(
    specs: list[JobSpec], part: str, aware: bool
) -> None:
    """Whatever the bandwidths and frequencies of neighbours: every job runs and gets its time."""
    policy = off_when_idle("easy", part, **({} if part == "first-fit" else {"power_aware": aware}))

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        pools = state.pools
        assert pools is not None
        asleep = state.off | state.booting.keys()
        for each in state.running.values():
            assert asleep.isdisjoint(each.held)
        assert all(asleep.issuperset(state.together(node)) for node in asleep)
        free = [0] * len(pools.number)
        for node, vacant in enumerate(state.vacant):
            free[pools.of_slot[node]] += vacant
        assert state.pool_free == free

    simulation = Simulation(specs, SHARED, policy, observer=look)
    simulation.run()
    ended, ledger = simulation.engine.state.ended, simulation.ledger
    for spec in specs:
        over = ended[spec.id]
        assert over.end_s is not None and over.start_s is not None and spec.run_s is not None
        assert over.end_s - over.start_s >= spec.run_s * (1.0 - 1e-9)
    ledger.check()
    assert ledger.busy_node_s == pytest.approx(
        sum((j.end_s or 0.0) - (j.start_s or 0.0) for j in ended.values() for _ in j.nodes)
    )
