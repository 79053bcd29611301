"""Jobs on nodes that share bandwidth: where placements put them, how fast, at which frequency."""

from __future__ import annotations

from typing import Any

import pytest
from specs import job_spec

from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Submitted
from rms.core.model.jobs import JobId, JobSpec, Site
from rms.core.policies import Policy, PolicyError, adjusted, named
from rms.core.scheduler.engine import Engine
from rms.sim.simulator import Simulation

LEVELS = ((0.9, 0.7), (1.45, 0.75), (2.0, 0.8), (2.8, 0.875), (4.0, 1.0))
PLAIN = SharedNode(64.0, (Processors(4),))
MIXED = SharedNode(64.0, (Processors(2), Processors(8, 3.0, 64.0 / 9.0)))


def site(*nodes: SharedNode) -> Site:
    slots = sum(kind.number for node in nodes for kind in node.processors)
    return Site(slots, shared=nodes, levels=LEVELS)


def easy(part: str, **parameters: Any) -> Policy:
    return adjusted(named("easy"), placement={"part": part, **parameters})


def job(number: int, size: int, gb_s: float, run_s: float = 100.0, at_s: float = 0.0) -> JobSpec:
    times = {"limit_s": run_s, "run_s": run_s}
    return job_spec(number, size, at_s=at_s, bandwidth_gb_s=gb_s, **times)


def run(where: Site, policy: Policy, *specs: JobSpec) -> Simulation:
    simulation = Simulation(specs, where, policy)
    simulation.run()
    assert simulation.engine.state.pool_free == simulation.engine.state.pools.number  # type: ignore[union-attr]
    assert not any(simulation.engine.state.pool_gb_s)
    return simulation


def test_less_consume_spreads_what_first_fit_packs() -> None:
    where, jobs = site(PLAIN, PLAIN), [job(1, 2, 64.0), job(2, 2, 2.0)]
    packed = run(where, easy("first-fit-shared"), *jobs).engine.state.ended
    assert (packed[JobId("1")].nodes, packed[JobId("2")].nodes) == ((0, 1), (2, 3))
    # 132 GB/s are asked of 64; once job 2 has gone, 128 are.
    assert packed[JobId("2")].end_s == pytest.approx(100.0 * 132 / 64)
    spread = run(where, easy("less-consume"), *jobs).engine.state.ended
    assert spread[JobId("1")].nodes == (0, 4) and spread[JobId("1")].slowdown == 1.0
    assert (spread[JobId("1")].end_s or 0.0) < (packed[JobId("1")].end_s or 0.0)


def test_processes_that_need_bandwidth_keep_off_the_gpu() -> None:
    where = site(MIXED, PLAIN)
    greedy = run(where, easy("less-consume"), job(1, 4, 32.0)).engine.state.ended[JobId("1")]
    assert all(slot < 2 or slot >= 10 for slot in greedy.nodes)
    modest = run(where, easy("less-consume"), job(1, 4, 1.0)).engine.state.ended[JobId("1")]
    assert modest.nodes == (0, 1, 2, 3) and modest.end_s == 300.0  # nobody waits for memory


def test_who_waits_for_a_gpu_runs_slower() -> None:
    """Two plain processes beside two that take three times as long: 4/3 GHz do, so 1.45."""
    plain = run(site(MIXED), easy("first-fit-shared"), job(1, 4, 1.0))
    aware = run(site(MIXED), easy("first-fit-shared", power_aware=True), job(1, 4, 1.0))
    found = aware.engine.state.ended[JobId("1")]
    assert found.frequencies == (0.3625, 0.3625, 1.0, 1.0)
    assert found.end_s == plain.engine.state.ended[JobId("1")].end_s == 300.0
    assert plain.contention is not None and aware.contention is not None
    assert plain.contention.energy == pytest.approx(2 * 100.0 + 2 * 300.0)
    slowed = 2 * (100.0 / 0.3625) * 0.75**2 * 0.3625
    assert aware.contention.energy == pytest.approx(slowed + 2 * 300.0)


def test_what_bandwidth_keeps_waiting_runs_slower_too() -> None:
    """One of three is alone on its node and would end in half the time of the others."""
    where = site(SharedNode(64.0, (Processors(2),)), SharedNode(64.0, (Processors(1),)))
    policy = easy("first-fit-shared", power_aware=True)
    found = run(where, policy, job(1, 3, 64.0)).engine.state.ended[JobId("1")]
    assert found.frequencies == (1.0, 1.0, 0.5) and found.end_s == 200.0


def test_threshold_lets_a_job_wait_unless_the_cluster_is_empty() -> None:
    policy = easy("less-consume", threshold=1.5)
    ended = run(site(PLAIN), policy, job(1, 1, 64.0), job(2, 1, 64.0), job(3, 4, 64.0)).engine.state
    starts = [ended.ended[JobId(str(number))].start_s for number in (1, 2, 3)]
    assert starts == [0.0, 100.0, 200.0]


def test_who_waits_for_bandwidth_is_told_so() -> None:
    engine = Engine(site(PLAIN), easy("less-consume", threshold=1.5))
    engine.handle(Submitted(0.0, (job(1, 1, 64.0), job(2, 3, 64.0))))
    later = engine.explain(JobId("2"))
    assert later is not None
    assert later.reason == "Resources: 3 nodes are free, but too little memory bandwidth there"


@pytest.mark.parametrize(("forecast", "node", "slowdown"), [(False, 0, 2.0), (True, 1, 1.045)])
def test_forecast_is_where_neighbours_end_soon(forecast: bool, node: int, slowdown: float) -> None:
    """Both nodes are full now; on the second one for 9 s more, at half the rate for the third."""
    jobs = [job(1, 1, 64.0, 1000.0), job(2, 1, 64.0, 10.0), job(3, 1, 64.0, 100.0, 1.0)]
    policy = easy("less-consume", forecast=forecast)
    found = run(site(PLAIN, PLAIN), policy, *jobs).engine.state.ended[JobId("3")]
    assert found.nodes[0] // 4 == node and found.slowdown == pytest.approx(slowdown)


def test_expected_ends_follow_the_processors() -> None:
    """A job that would end on a GPU only after the reservation is not backfilled."""
    where = site(MIXED)
    jobs = [job(1, 2, 1.0, 100.0), job(2, 10, 1.0, 10.0, 1.0), job(3, 2, 1.0, 50.0, 2.0)]
    ended = run(where, easy("first-fit-shared"), *jobs).engine.state.ended
    assert ended[JobId("2")].start_s == 100.0
    assert ended[JobId("3")].start_s == 130.0


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="expected nodes that stay up and a pass for each event"):
        Simulation([], site(PLAIN), easy("less-consume"), passes="per-timestamp")
    with pytest.raises(PolicyError, match="expected nodes that share bandwidth"):
        Simulation([job(1, 1, 1.0)], Site(4), easy("less-consume"))
