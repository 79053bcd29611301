"""Jobs of all modes where processes share bandwidth: work done is the integral of the rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Ended, Started, Stepped, Submitted
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import adjusted, named
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.sim.simulator import Simulation

PLAIN = SharedNode(64.0, (Processors(4),))
MIXED = SharedNode(64.0, (Processors(2), Processors(4, 3.0, 8.0)))


def site(*nodes: SharedNode) -> Site:
    slots = sum(kind.number for node in nodes for kind in node.processors)
    return Site(slots, (NodePower(1.0, 2.0, 3.0),) * len(nodes), shared=nodes)


def job(number: int, sizes: tuple[int, int, int], gb_s: float, **given: Any) -> JobSpec:
    """Return a job that takes 120 s on one processor, half as long on two, ..."""
    more = {"mode": Mode.FLEXIBLE, "resize_every_s": 5.0, "resize_price_s": 1.0, "limit_s": 500.0}
    law = Speedup(law=(120.0, 0.0))
    return job_spec(number, sizes, speedup=law, bandwidth_gb_s=gb_s, **more | given)


class Reckoned:
    """Every process on its own, its rate worked out at every change from who runs then."""

    def __init__(self, simulation_site: Site) -> None:
        self.site, self.now = simulation_site, 0.0
        self.left: dict[JobId, dict[int, float]] = {}  # by slot, in time alone
        self.seen: dict[JobId, tuple[tuple[int, ...], bool]] = {}
        self.asked: dict[JobId, float] = {}
        self.rest: dict[JobId, float] = {}

    def __call__(self, simulation: Simulation) -> None:
        """Integrate up to the present and take in who runs where now."""
        state = simulation.engine.state
        assert state.pools is not None
        self.pools = state.pools
        self._until(state.now_s)
        slow = self._slow(state)
        for running in state.beside.values():
            slowest = max(slow[state.pools.of_slot[node]] for node in running.nodes)
            assert running.stretch == pytest.approx(slowest)
            whole = running.time_s(running.size) or 0.0
            assert running.rate in (0.0, pytest.approx(1.0 / (whole * slowest)))
        for job_id in [each for each in self.left if each not in state.running]:
            over = self.left.pop(job_id)
            del self.seen[job_id]
            assert max(over.values()) == pytest.approx(0.0, abs=1e-6)
        for job_id, running in state.running.items():
            now = running.nodes, running.resize_begun
            if self.seen.get(job_id) == now:
                continue
            if job_id in self.left and running.resize_begun:
                own, whole = self.left.pop(job_id), running.spec.time_s(len(running.nodes))
                self.rest[job_id] = sum(own.values()) / len(own) / (whole or 1.0)
                assert running.done == pytest.approx(1.0 - self.rest[job_id])
            elif not running.resize_begun:
                left = self.rest.pop(job_id, 1.0) * (running.spec.time_s(running.size) or 0.0)
                self.left[job_id] = dict.fromkeys(running.nodes, left)
                self.asked[job_id] = running.spec.bandwidth_gb_s or 0.0
            self.seen[job_id] = now

    def _slow(self, state: State) -> list[float]:
        """Return how slow each pool is beside all who hold slots there."""
        pools, demands = self.pools, [0.0] * len(self.pools.factor)
        for running in state.running.values():
            for node in running.nodes:
                pool = pools.of_slot[node]
                demands[pool] += running.spec.planned_gb_s / pools.factor[pool]
        found = list(pools.factor)
        for at, members in enumerate(pools.members):
            slow = pools.slowdowns(at, [demands[pool] for pool in members])
            for pool, each in zip(members, slow, strict=True):
                found[pool] *= each
        return found

    def _until(self, until_s: float) -> None:
        pools = self.pools
        while self.now < until_s:
            demands, rates = [0.0] * len(pools.factor), [0.0] * len(pools.factor)
            for job_id, own in self.left.items():
                for slot, left in own.items():
                    if left > 0.0:
                        pool = pools.of_slot[slot]
                        demands[pool] += self.asked[job_id] / pools.factor[pool]
            for node, members in enumerate(pools.members):
                slow = pools.slowdowns(node, [demands[pool] for pool in members])
                for pool, each in zip(members, slow, strict=True):
                    rates[pool] = 1.0 / each / pools.factor[pool]
            ends = [
                left / rates[pools.of_slot[slot]]
                for own in self.left.values()
                for slot, left in own.items()
                if left > 0.0
            ]
            span = min([until_s - self.now, *ends])
            for own in self.left.values():
                for slot, left in own.items():
                    rest = left - span * rates[pools.of_slot[slot]]
                    own[slot] = rest if rest > 1e-9 else 0.0
            self.now = until_s if self.now + span >= until_s - 1e-9 else self.now + span


def run(where: Site, policy: str, part: dict[str, Any], specs: list[JobSpec]) -> Simulation:
    reckoned = Reckoned(where)
    made = adjusted(named(policy), placement=part)
    simulation = Simulation(specs, where, made, observer=reckoned)
    simulation.run()
    state = simulation.engine.state
    assert len(state.ended) == len(specs) and not reckoned.left and not state.beside
    assert state.pools is not None and state.pool_free == state.pools.number
    assert not any(state.pool_gb_s)
    simulation.ledger.check()
    return simulation


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(1, draw(st.integers(1, 7)) + 1):
        sizes = sorted(draw(st.lists(st.integers(1, 6), min_size=3, max_size=3)))
        low, preferred, high = sizes
        every_s, parts = draw(st.sampled_from([(5.0, None), (None, 7), (4.0, 10), (None, None)]))
        found.append(
            job(
                number,
                (low, preferred, high),
                draw(st.sampled_from([0.0, 8.0, 32.0, 64.0])),
                mode=draw(st.sampled_from(Mode)),
                at_s=float(draw(st.integers(0, 60))),
                resize_every_s=every_s,
                resize_parts=parts,
                resize_price_s=draw(st.sampled_from([0.0, 1.0])),
                limit_s=draw(st.sampled_from([None, 200.0])),
            )
        )
    return found


@pytest.mark.promise("shared-nodes")
@settings(max_examples=25, deadline=None)
@given(
    streams(),
    st.sampled_from(["easy", "array-share", "backfill-share", "easy-share", "conservative"]),
    st.sampled_from([{"part": "first-fit-shared"}, {"part": "less-consume", "forecast": True}]),
    st.booleans(),
)
def test_work_is_the_integral_of_the_rate_whatever_the_neighbours(
    specs: list[JobSpec], policy: str, part: dict[str, Any], mixed: bool
) -> None:
    run(site(MIXED if mixed else PLAIN, PLAIN), policy, part, specs)


def test_steps_that_neighbours_slow_tell_nothing_of_a_size() -> None:
    """A daemon sees steps of 2 s beside a neighbour: those are steps of 1 s of a job alone."""
    made = adjusted(named("easy"), placement={"part": "first-fit-shared"})
    engine = Engine(site(PLAIN), made)
    specs = (
        job(1, (2, 2, 4), 32.0, mode=Mode.MALLEABLE),
        job(2, (2, 2, 2), 32.0, mode=Mode.FIXED),
    )
    engine.handle(Submitted(0.0, specs))
    for spec in specs:
        engine.handle(Started(0.0, spec.id))
    engine.handle(Stepped(20.0, JobId("1"), 10, 60, 10, 20.0))
    found = engine.state.running[JobId("1")]
    assert found.measured_steps == {2: (10, 10.0)} and found.rate == pytest.approx(1 / 120)
    engine.handle(Ended(30.0, JobId("2"), "COMPLETED"))
    assert found.rate == pytest.approx(1 / 60) and found.done == pytest.approx(0.25)


def test_the_state_knows_how_neighbours_slow_a_job_that_may_be_resized() -> None:
    specs = [
        job(1, (2, 2, 4), 32.0, mode=Mode.MALLEABLE, resize_every_s=None),
        job(2, (2, 2, 2), 32.0, mode=Mode.FIXED, at_s=30.0),
    ]
    rates: list[tuple[float, float, float]] = []

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        for each in state.running.values():
            if each.spec.id == "1":
                rates.append((state.now_s, each.rate, each.expected_end_s))

    made = adjusted(named("easy"), placement={"part": "first-fit-shared"})
    simulation = Simulation(specs, site(PLAIN), made, observer=look)
    simulation.run()
    assert [rate for _, rate, _ in rates] == pytest.approx([1 / 60, 1 / 120])
    assert rates[1][2] == pytest.approx(30.0 + 2 * 0.5 * 500.0)
    assert simulation.engine.state.ended[JobId("1")].end_s == pytest.approx(90.0)
