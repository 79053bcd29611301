"""Nodes that are off or booting: whom they are given to, what they cost, when they come back."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from driven import FLEXIBLE, MOLDABLE, Driven, job
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.cli.main import main
from rms.core.model.events import (
    Decision,
    Ended,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodeUp,
    PowerCapSet,
    PowerOff,
    PowerOn,
    Start,
    Started,
    Submitted,
    Ticked,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Site
from rms.core.policies import POLICIES, Policy, adjusted, named
from rms.core.rules.checks import RuleError, check
from rms.core.rules.powercap import expected_w
from rms.core.rules.transition import TransitionError, power_off
from rms.core.scheduler.engine import Engine
from rms.core.state import Idle
from rms.formats.config import FileError, read_cluster
from rms.sim.run import chosen
from rms.sim.simulator import Simulation

POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=20.0, boot_j=3000.0)
"""Idle 100 W, busy 200 W, off 10 W; a boot takes 20 s at 150 W. Being off pays after 31 s."""


def off_when_idle(name: str = "easy", **parameters: float) -> Policy:
    return adjusted(POLICIES[name], node_power={"part": "off-when-idle", **parameters})


def simulated(specs: list[JobSpec], nodes: int, policy: Policy) -> Simulation:
    site = Site(nodes, (POWER,) * nodes)
    simulation = Simulation(specs, site, policy, passes="per-timestamp")
    simulation.run()
    simulation.ledger.check()
    assert not simulation.engine.state.pending
    return simulation


def switches(simulation: Simulation) -> list[tuple[float, str, tuple[int, ...]]]:
    return [
        (at_s, type(each).__name__, each.nodes)
        for at_s, each in simulation.decisions
        if isinstance(each, PowerOff | PowerOn)
    ]


def fixed(number: int, at_s: float, size: int, run_s: float, limit_s: float | None) -> JobSpec:
    return job_spec(number, size, at_s=at_s, limit_s=limit_s, run_s=run_s)


@pytest.mark.parametrize(
    ("gap_s", "pays"),
    [(20.0, False), (31.0, False), (31.2, True), (inf, True), (-1.0, False)],
)
def test_being_off_pays_where_the_gap_is_long_enough(gap_s: float, pays: bool) -> None:
    """100 gap > 10 (gap - 20) + 3000, so 90 gap > 2800 (Chauhan et al., figure 11)."""
    assert POWER.off_pays(gap_s) == pays


def test_a_gap_shorter_than_a_boot_never_pays() -> None:
    assert not NodePower(100.0, boot_s=60.0, boot_j=0.0).off_pays(60.0)
    assert not NodePower(off_w=0.0).off_pays(inf)  # nothing is known: nothing is saved


def test_joules_of_off_and_boot_by_hand() -> None:
    """One node of two works for 100 s; after 200 s a job needs both for 10 s."""
    specs = [fixed(1, 0.0, 1, 100.0, 100.0), fixed(2, 200.0, 2, 10.0, 10.0)]
    found = simulated(specs, 2, off_when_idle())
    assert switches(found) == [
        (0.0, "PowerOff", (1,)),
        (100.0, "PowerOff", (0,)),
        (200.0, "PowerOn", (0, 1)),
        (230.0, "PowerOff", (0, 1)),
    ]
    ledger = found.ledger
    assert ledger.off_j == pytest.approx(10.0 * (200.0 + 100.0))
    assert ledger.boot_j == pytest.approx(2 * 3000.0)
    assert ledger.idle_j == 0.0
    assert sum(ledger.busy_j.values()) == pytest.approx(200.0 * 100.0 + 2 * 200.0 * 10.0)
    assert found.engine.state.now_s == 230.0


def test_without_time_to_boot_its_energy_is_booked_at_once() -> None:
    power = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_j=500.0)
    simulation = Simulation([fixed(1, 50.0, 1, 10.0, 10.0)], Site(1, (power,)), off_when_idle())
    state = simulation.engine.state
    simulation.ledger.advance(state, 0.0)
    state.now_s = 0.0
    power_off(state, (Node(0),))
    simulation.run()
    simulation.ledger.check()
    ledger = simulation.ledger
    assert [ledger.off_j, ledger.boot_j] == pytest.approx([500.0, 500.0])


def test_a_node_stays_on_for_who_waits_soon() -> None:
    """The second job needs both nodes: in 25 s that is not worth a boot, in 100 s it is."""
    for run_s, kept in ((25.0, True), (100.0, False)):
        specs = [fixed(1, 0.0, 1, run_s, run_s), fixed(2, 0.0, 2, 10.0, 10.0)]
        found = simulated(specs, 2, off_when_idle())
        assert [at_s for at_s, kind, _ in switches(found) if kind == "PowerOn"] == (
            [] if kept else [run_s]
        )
        start_s = found.engine.state.ended[JobId("2")].start_s
        assert start_s == (run_s if kept else run_s + 20.0)


def test_some_may_be_kept_on() -> None:
    found = simulated([fixed(1, 0.0, 1, 100.0, 100.0)], 4, off_when_idle(keep=2))
    assert switches(found)[0] == (0.0, "PowerOff", (3,))


def test_a_node_goes_off_once_it_has_been_idle_for_long_enough() -> None:
    specs = [fixed(1, 0.0, 1, 100.0, 100.0), fixed(2, 125.0, 2, 5.0, 5.0), fixed(3, 200.0, 1, 1, 1)]
    found = simulated(specs, 2, off_when_idle(delay_s=30.0))
    assert switches(found) == [
        (30.0, "PowerOff", (1,)),
        (125.0, "PowerOn", (1,)),
        (180.0, "PowerOff", (0, 1)),
        (200.0, "PowerOn", (0,)),
    ]
    assert found.ledger.idle_j == pytest.approx(100.0 * (30.0 + 25.0 + 20.0 + 2 * 30.0))


def test_nodes_are_booted_ahead_of_the_end_that_who_waits_needs() -> None:
    """Node 1 is off while the first job has 100 s to go; both are needed then."""
    specs = [fixed(1, 0.0, 1, 100.0, 100.0), fixed(2, 1.0, 2, 10.0, 10.0)]
    for ahead, on_s, start_s in ((False, 100.0, 120.0), (True, 80.0, 100.0)):
        found = simulated(specs, 2, off_when_idle(ahead=ahead))
        assert [s for s in switches(found) if s[1] == "PowerOn"] == [(on_s, "PowerOn", (1,))]
        assert found.engine.state.ended[JobId("2")].start_s == start_s
    reasons = {each.reason for _, each in found.decisions if isinstance(each, PowerOn)}
    assert reasons == {"wanted soon"}


def test_no_more_than_so_many_are_switched_in_a_minute() -> None:
    specs = [fixed(1, 0.0, 1, 200.0, 200.0), fixed(2, 150.0, 4, 5.0, 5.0)]
    found = simulated(specs, 5, off_when_idle(at_most=2))
    assert switches(found)[:4] == [
        (0.0, "PowerOff", (1, 2)),
        (60.0, "PowerOff", (3, 4)),
        (150.0, "PowerOn", (1, 2)),
        (210.0, "PowerOn", (3,)),
    ]
    assert found.engine.state.ended[JobId("2")].start_s == 230.0


def test_the_next_switch_is_a_minute_after_the_earlier_one_of_off_and_on() -> None:
    idle = Idle()
    idle.switch(0.0, on=True)
    assert idle.next_s(1, 5.0) == 60.0
    idle.switch(10.0, on=False)
    assert idle.next_s(1, 20.0) == 60.0
    assert idle.next_s(1, 65.0) == 70.0
    assert idle.next_s(2, 20.0) == inf


def test_nodes_that_are_on_are_taken_first() -> None:
    specs = [
        fixed(1, 0.0, 1, 10.0, 10.0),
        fixed(2, 0.0, 1, 99.0, 99.0),
        fixed(3, 20.0, 1, 5.0, 5.0),
    ]
    found = simulated(specs, 3, off_when_idle(keep=1))
    starts = {each.job: each.nodes for _, each in found.decisions if isinstance(each, Start)}
    assert starts[JobId("3")] == (0,) and not [s for s in switches(found) if s[1] == "PowerOn"]


def test_a_moldable_job_has_the_size_it_has_where_nodes_are_always_on() -> None:
    spec = job(1, (1, 4, 4), MOLDABLE, at_s=50.0)
    found = simulated([fixed(9, 0.0, 1, 10.0, 10.0), spec], 4, off_when_idle())
    assert found.engine.state.ended[spec.id].size == 4
    assert found.engine.state.ended[spec.id].start_s == 70.0


def test_idle_nodes_wait_for_who_may_be_widened() -> None:
    """Four nodes for two flexible jobs: the first to end leaves its nodes to the other."""
    specs = [job(n, (1, 2, 4), FLEXIBLE, run_s=100.0 * n, every_s=5.0) for n in (1, 2)]
    found = simulated(specs, 4, off_when_idle("array-share"))
    always = simulated(specs, 4, POLICIES["array-share"])
    ended, before = found.engine.state.ended, always.engine.state.ended
    assert [ended[spec.id].end_s for spec in specs] == [before[spec.id].end_s for spec in specs]
    assert ended[JobId("2")].size > 2
    assert [kind for _, kind, _ in switches(found)] == ["PowerOff"]


class ByHand(Driven):
    """Of nodes that can be powered off."""

    def __init__(self, nodes: int, policy: Policy, cap_w: float | None = None) -> None:
        super().__init__(nodes)
        self.engine = Engine(Site(nodes, (POWER,) * nodes, power_cap_w=cap_w), policy)

    def decided(self, event: object) -> list[Decision]:
        found = self.engine.handle(event)  # type: ignore[arg-type]
        for each in found:
            if isinstance(each, Start):
                self.engine.handle(Started(self.engine.state.now_s, each.job))
        return found


def test_who_waits_for_a_boot_is_told_and_nobody_overtakes() -> None:
    rms = ByHand(2, off_when_idle())
    first = fixed(1, 0.0, 1, 5.0, 5.0)
    rms.decided(Submitted(0.0, (first,)))
    rms.decided(Ended(5.0, first.id, "COMPLETED"))
    assert rms.engine.state.off == {0, 1} and rms.engine.state.free_count == 0
    assert rms.decided(Submitted(6.0, (fixed(2, 6.0, 2, 9.0, 9.0),))) == [
        PowerOn((Node(0), Node(1)), "wanted by jobs")
    ]
    assert rms.why(2) == "Resources: waits for 2 of 2 nodes to boot"
    assert rms.decided(NodeBooted(20.0, Node(0))) == []
    assert rms.decided(Submitted(21.0, (fixed(3, 21.0, 1, 1.0, 1.0),))) == []
    assert rms.why(2) == "Resources: waits for 1 of 2 nodes to boot"
    (start,) = rms.decided(NodeBooted(30.0, Node(1)))
    assert isinstance(start, Start) and start.job == "2"


def test_a_node_that_does_not_come_back_is_down_and_another_is_powered_on() -> None:
    rms = ByHand(3, off_when_idle())
    rms.decided(Submitted(0.0, (fixed(1, 0.0, 1, 5.0, 5.0),)))
    rms.decided(Ended(5.0, JobId("1"), "COMPLETED"))
    rms.decided(Submitted(6.0, (fixed(2, 6.0, 1, 9.0, 9.0),)))
    state = rms.engine.state
    assert list(state.booting) == [0]
    assert rms.decided(NodePowerFailed(60.0, Node(0), "late")) == [
        PowerOn((Node(1),), "wanted by jobs")
    ]
    assert state.down == {0} and state.free_count == 0
    (start,) = rms.decided(NodeBooted(80.0, Node(1)))
    assert isinstance(start, Start) and start.nodes == (1,)
    rms.decided(NodeUp(81.0, Node(0)))  # mended by the operator: idle, and off again
    assert state.off == {0, 2}


def test_a_node_that_is_down_is_not_powered_on_and_comes_up_only_when_booted() -> None:
    rms = ByHand(1, off_when_idle())
    rms.decided(Submitted(0.0, (fixed(1, 0.0, 1, 5.0, 5.0),)))
    rms.decided(Ended(5.0, JobId("1"), "COMPLETED"))
    rms.decided(NodeDown(6.0, Node(0)))
    assert rms.decided(Submitted(7.0, (fixed(2, 7.0, 1, 5.0, 5.0),))) == []
    assert rms.decided(NodeUp(8.0, Node(0))) == [PowerOn((Node(0),), "wanted by jobs")]
    rms.decided(NodeDown(9.0, Node(0)))
    assert rms.decided(NodeBooted(10.0, Node(0))) == []
    (start,) = rms.decided(NodeUp(11.0, Node(0)))
    assert isinstance(start, Start)


def test_always_on_powers_on_what_was_left_off() -> None:
    rms = ByHand(2, off_when_idle())
    rms.decided(Submitted(0.0, (fixed(1, 0.0, 1, 5.0, 5.0),)))
    rms.engine.policy = named("easy")
    assert rms.decided(Ended(5.0, JobId("1"), "COMPLETED")) == [
        PowerOn((Node(1),), "nodes stay on")
    ]


def test_boots_keep_to_the_power_cap() -> None:
    """Under 260 W two nodes cannot boot at once: each takes 50 W above its idle power."""
    rms = ByHand(2, off_when_idle(), cap_w=260.0)
    state = rms.engine.state
    rms.decided(Submitted(0.0, (fixed(9, 0.0, 2, 5.0, 5.0),)))
    assert state.off == {0, 1} and "it never fits" in rms.why(9)
    rms.decided(Ended(1.0, JobId("9"), "CANCELLED"))
    low = NodePower(100.0, 110.0, 0.0, 10.0, 20.0, 3000.0)
    rms.engine.state.power_models = (low,)
    rms.decided(Submitted(2.0, (fixed(2, 2.0, 2, 5.0, 5.0),)))
    assert list(state.booting) == [0] and expected_w(state) == 250.0
    assert rms.decided(Ticked(12.0)) == []  # the other one would boot beside it
    rms.decided(NodeBooted(22.0, Node(0)))
    assert list(state.booting) == [1]
    assert rms.decided(NodeBooted(42.0, Node(1)))
    assert rms.decided(PowerCapSet(43.0, None)) == []


def test_what_no_policy_may_do_with_nodes_power_is_refused() -> None:
    rms = ByHand(2, off_when_idle())
    engine, state = rms.engine, rms.engine.state

    power_off(state, (Node(1),))
    for decision, words in (
        (PowerOff((Node(1),), ""), "expected idle nodes to power off"),
        (PowerOff((Node(0), Node(0)), ""), "expected every node once"),
        (PowerOn((Node(0),), ""), "expected nodes that are off"),
    ):
        with pytest.raises(RuleError, match=words):
            check(state, decision)
    with pytest.raises(TransitionError, match="expected a node that is booting"):
        engine.handle(NodeBooted(1.0, Node(0)))
    with pytest.raises(TransitionError, match="expected a node that is off or booting"):
        engine.handle(NodePowerFailed(1.0, Node(0)))


def test_nodes_that_are_counted_are_not_powered_off() -> None:
    assert not chosen(off_when_idle(), counted=True).placement.counted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--power-off", "true"], "got only --power-off"),
        (["--power-on", "true"], "got only --power-on"),
        (["--power-off", "true", "--power-on", "no-such-program x"], "'no-such-program x'"),
        (
            ["--engine", "slurm-pilot", "--power-off", "true", "--power-on", "true"],
            "with --engine local or slurm, got --engine slurm-pilot",
        ),
        (["--engine", "slurm", "--policy", "{off}"], "expected --power-off and --power-on"),
    ],
)
def test_commands_that_cannot_be_are_refused_in_a_sentence(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = tmp_path / "off.toml"
    off.write_text('node_power = { part = "off-when-idle" }\n')
    given = [option.format(off=off) for option in options]
    assert main(["serve", "--state", str(tmp_path / "state"), *given]) == 2
    said = capsys.readouterr().err
    assert words in said and "expected" in said and said.count("\n") == 1


@pytest.mark.parametrize("key", ["off_w", "boot_s", "boot_j"])
def test_power_of_a_cluster_file(tmp_path: Path, key: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'name = "c"\n[[nodes]]\nname = "n1"\npower = {{ {key} = 7.0 }}\n')
    (model,) = read_cluster(path).power
    assert getattr(model, key) == 7.0
    path.write_text(path.read_text().replace("7.0", "-7.0"))
    with pytest.raises(FileError, match=f"expected {key} of at least 0, got -7"):
        read_cluster(path)


def test_a_policy_that_decides_at_ticks_does_so_again_when_nodes_have_booted() -> None:
    """Nothing runs when it switches nodes on: the ticks go on until they are there."""
    specs = [job(1, (2,), run_s=3.0, at_s=15.0), job(2, (3,), run_s=3.0, at_s=267.0)]
    policy = off_when_idle("array-share-paper", keep=0)
    simulation = Simulation(specs, Site(4, (POWER,) * 4), policy)
    simulation.run()
    assert simulation.engine.state.ended[JobId("2")].start_s == 295.0


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(1, draw(st.integers(1, 15)) + 1):
        low = draw(st.integers(1, 4))
        high = draw(st.integers(low, 4))
        preferred = draw(st.integers(low, high))
        run_s = draw(st.sampled_from([3.0, 20.0, 90.0]))
        spec = job(
            number,
            (low, preferred, high),
            draw(st.sampled_from(Mode)),
            run_s=run_s,
            at_s=float(draw(st.integers(0, 300))),
            limit_s=draw(st.sampled_from([None, run_s, 2 * run_s])),
            every_s=draw(st.sampled_from([None, 4.0])),
            price_s=draw(st.sampled_from([0.0, 1.0])),
        )
        found.append(spec)
    return found


PLACING = sorted(name for name in POLICIES if not name.startswith("p-"))


@pytest.mark.promise("node-power")
@settings(max_examples=60, deadline=None)
@given(
    streams(),
    st.sampled_from(PLACING),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([(0.0, False, 0), (0.0, True, 0), (15.0, True, 0), (40.0, False, 1)]),
)
def test_every_job_runs_no_node_is_given_while_off_and_the_books_balance(
    specs: list[JobSpec], name: str, keep: int, fails: bool, when: tuple[float, bool, int]
) -> None:
    asleep: list[set[Node]] = []
    delay_s, ahead, at_most = when

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        held = {node for each in state.running.values() for node in each.held}
        assert not held & (state.off | state.booting.keys())
        asleep.append(set(state.off))

    failures: list[NodeDown | NodeUp] = (
        [NodeDown(30.0, Node(1)), NodeUp(60.0, Node(1))] if fails else []
    )
    simulation = Simulation(
        specs,
        Site(4, (POWER,) * 4),
        off_when_idle(name, keep=keep, delay_s=delay_s, ahead=ahead, at_most=at_most),
        observer=look,
        failures=failures,
    )
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)
    simulation.ledger.check()
    assert (simulation.ledger.off_j > 0.0) <= any(asleep)
    for kind in ("PowerOff", "PowerOn") if at_most else ():
        times = [at_s for at_s, word, nodes in switches(simulation) if word == kind for _ in nodes]
        assert all(after - at_s >= 60.0 for at_s, after in pairwise(times))
