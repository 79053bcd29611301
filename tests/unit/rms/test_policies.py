"""Policies on the simulator: what each mode gets, what no policy may break, books that balance."""

from __future__ import annotations

from operator import is_
from pathlib import Path

import pytest
from driven import Driven
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.core.model.events import Ended, Resize, Start, Submitted, Ticked
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import POLICIES, PolicyError, adjusted, named
from rms.core.rules.checks import RuleError, check, check_instant
from rms.core.scheduler.engine import Engine
from rms.formats.config import read_cluster, read_workload
from rms.sim.run import simulate
from rms.sim.simulator import Simulation

JOBS = Path(__file__).parents[3] / "jobs"
BY_STRATEGY = "rms.kernels.admission:ByStrategy"


def spec(
    number: int,
    low: int,
    high: int,
    mode: Mode,
    *,
    array: str | None = "a",
    law: tuple[float, float] = (100.0, 5.0),
    submit_s: float = 0.0,
) -> JobSpec:
    more = {"array": array, "resize_every_s": 5.0, "resize_price_s": 1.0}
    return job_spec(number, (low, high, high), mode, submit_s, speedup=Speedup(law=law), **more)


def starts(nodes: int, specs: list[JobSpec], policy: str) -> dict[str, int]:
    engine = Engine(nodes, named(policy))
    decisions = engine.handle(Submitted(0.0, tuple(specs)))
    return {d.job: len(d.nodes) for d in decisions if isinstance(d, Start)}


def test_jobs_that_had_the_same_nodes_share_the_numbers_in_memory() -> None:
    # A million jobs of 100 nodes each would take 2.7 GiB more if each had objects of its own.
    specs = [
        JobSpec(JobId(str(n)), 10.0 * n, 600, 600, 600, Mode.FIXED, run_s=5.0) for n in range(2)
    ]
    simulation = Simulation(specs, (NodePower(),) * 600, named("easy"))
    simulation.run()
    first, second = simulation.engine.state.ended.values()
    assert first.nodes == second.nodes == tuple(range(600))
    assert all(map(is_, first.nodes, second.nodes))


@pytest.mark.parametrize(("energy", "size"), [(0.0, 8), (0.5, 5), (0.9, 3)])
def test_a_job_grows_while_the_weighted_sum_of_time_and_energy_falls(
    energy: float, size: int
) -> None:
    """100 / n + 10 s on n of 8 nodes, of 100 W busy and 10 W idle: 3 nodes need least energy."""
    site = Site(8, (NodePower(10.0, 100.0, 0.0),))
    engine = Engine(site, adjusted(named("array-share"), sizing={"energy": energy}))
    one = spec(1, 1, 8, Mode.FLEXIBLE, law=(100.0, 10.0))
    (start,) = engine.handle(Submitted(0.0, (one,)))
    assert isinstance(start, Start) and len(start.nodes) == size


def test_under_easy_a_job_without_a_time_limit_delays_nobody_who_waits() -> None:
    engine = Engine(4, named("easy"))
    first, head = (job_spec(n, size, limit_s=100.0) for n, size in ((1, 3), (2, 4)))
    endless, short = JobSpec(JobId("3"), 0.0, 1, 1, 1, Mode.FIXED), job_spec(4, 1, limit_s=100.0)
    decisions = engine.handle(Submitted(0.0, (first, head, endless, short)))
    assert [each.job for each in decisions if isinstance(each, Start)] == ["1", "4"]


@pytest.mark.parametrize(
    ("size", "needed", "sizes"),
    [(8, 7, [4, 2, 1]), (6, 3, [3]), (6, 5, []), (7, 3, [])],
)
def test_by_doubling_a_job_gives_half_of_its_nodes_at_a_time(
    size: int, needed: int, sizes: list[int]
) -> None:
    """Where halves do not make room for the other, or the size is odd, it gives none."""
    policy = adjusted(named("array-share"), sizing={"sizes": "doubling", "rotate": False})
    driven = Driven(size, policy)
    assert driven.submit(spec(1, 1, size, Mode.MALLEABLE)) == [("1", size)]
    starts = [("2", needed)] if sizes else []
    other = spec(2, needed, needed, Mode.FIXED)
    assert driven.submit(other) == [*(("1", each) for each in sizes), *starts]


def test_three_jobs_on_six_nodes_run_side_by_side() -> None:
    # Iserte & Rojek, figures 4 and 5: one after the other on 4 nodes, or all three on 2.
    flexible = [spec(n, 1, 4, Mode.FLEXIBLE) for n in (1, 2, 3)]
    assert starts(6, flexible, "array-share") == {"1": 2, "2": 2, "3": 2}
    fixed = [spec(n, 1, 4, Mode.FIXED) for n in (1, 2, 3)]
    assert starts(6, fixed, "array-share") == {"1": 4}


def test_a_strategy_of_tasks_sees_jobs_as_collections_of_kernels_for_so_many_nodes() -> None:
    def by(name: str) -> str:
        return adjusted(named("fifo"), admission={"part": BY_STRATEGY, "name": name}).key

    moldable = [spec(n, 1, 4, Mode.MOLDABLE) for n in (1, 2, 3)]
    # Wherever nodes are free; long-term: its best size if waiting for that is worth it.
    assert starts(8, moldable, by("short-term")) == {"1": 4, "2": 4}
    assert starts(8, moldable, by("long-term")) == {"1": 4, "2": 2}
    fixed = [spec(1, 1, 4, Mode.FIXED), spec(2, 1, 4, Mode.FIXED), spec(3, 1, 2, Mode.FIXED)]
    assert starts(6, fixed, by("short-term")) == {"1": 4, "3": 2}
    with pytest.raises(PolicyError, match="of long-term, short-term, got 'banking'"):
        by("banking")


def test_a_node_too_few_for_the_next_task_is_lent() -> None:
    tasks = [spec(n, 2, 3, Mode.FLEXIBLE) for n in (1, 2)]
    assert starts(3, tasks, "backfill-share") == {"1": 3}
    assert starts(3, tasks, "array-share") == {"1": 2}


@pytest.mark.parametrize(("mode", "start"), [("fixed", 4), ("malleable", 4), ("moldable", 2)])
def test_a_mode_decides_the_starting_size(mode: str, start: int) -> None:
    jobs = [spec(n, 1, 4, Mode(mode)) for n in (1, 2, 3)]
    assert starts(6, jobs, "array-share")["1"] == start


@pytest.mark.parametrize(
    ("cluster", "fixed_s", "flexible_s"), [("k80", 3897.0, 1260.0), ("m2090", 7164.0, 1200.0)]
)
def test_the_nine_jobs_of_the_paper(cluster: str, fixed_s: float, flexible_s: float) -> None:
    power = read_cluster(JOBS / f"{cluster}.toml").power

    def makespan(policy: str, mode: Mode) -> float:
        specs = read_workload(JOBS / f"nine-{cluster}.toml", mode)
        result, rows = simulate(specs, power, named(policy))
        energy = result["energy_j"]
        parts = energy["busy"] + energy["idle"] + energy["off"] + energy["boot"]
        assert abs(parts - energy["cluster"]) <= 1e-9 * energy["cluster"]
        assert abs(sum(row["energy_j"] for row in rows) - energy["busy"]) <= 1e-9 * energy["busy"]
        assert result["jobs"] == 9
        return float(result["makespan_s"])

    for mode in Mode:
        for policy in POLICIES:
            makespan(policy, mode)
    assert makespan("fifo", Mode.FIXED) == fixed_s
    assert makespan("array-share", Mode.FLEXIBLE) <= flexible_s


def test_a_running_job_is_narrowed_for_those_that_come_and_widened_when_alone() -> None:
    wide = spec(1, 1, 2, Mode.FLEXIBLE, array=None, law=(100.0, 0.0))
    late = spec(2, 1, 2, Mode.FLEXIBLE, array=None, law=(20.0, 0.0), submit_s=7.0)
    simulation = Simulation([wide, late], [NodePower()] * 2, named("array-share"))
    simulation.run()
    resizes = [d for _, d in simulation.decisions if isinstance(d, Resize)]
    assert [(d.job, d.size) for d in resizes] == [("1", 1), ("1", 2)]
    assert simulation.engine.state.ended[JobId("1")].resize_count == 2
    assert [d.reason for d in resizes] == ["makes room for waiting jobs", "takes idle nodes"]


def test_a_waiting_job_is_told_why() -> None:
    engine = Engine(4, named("fifo"))
    jobs = tuple(spec(n, 3, 3, Mode.FIXED) for n in (1, 2, 3))
    decided = engine.handle(Submitted(0.0, jobs))
    assert [type(d) for d in decided] == [Start]  # why the others wait is not decided but asked
    waits = [engine.explain(JobId(n)) for n in "123"]
    assert [None if w is None else w.reason for w in waits] == [
        None,
        "Resources: waits for 3 nodes, 1 is free",
        "Priority: 2 is first",
    ]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, list[JobSpec]]:
    nodes = draw(st.integers(1, 12))
    specs = []
    for number in range(draw(st.integers(1, 12))):
        low = draw(st.integers(1, nodes))
        high = draw(st.integers(low, nodes))
        specs.append(
            job_spec(
                number,
                (low, draw(st.integers(low, high)), high),
                draw(st.sampled_from(Mode)),
                float(draw(st.integers(0, 40))),
                speedup=Speedup(law=(draw(st.floats(1, 200)), draw(st.floats(0, 20)))),
                resize_every_s=draw(st.sampled_from([None, 3.0, 7.5])),
                resize_price_s=draw(st.sampled_from([0.0, 2.0])),
                array=draw(st.sampled_from([None, "a", "b"])),
            )
        )
    return nodes, specs


@settings(max_examples=150)
@given(workloads(), st.sampled_from(sorted(POLICIES)))
def test_every_policy_ends_every_job_within_the_rules(
    workload: tuple[int, list[JobSpec]], policy: str
) -> None:
    nodes, specs = workload
    power = [NodePower(10.0 + n, 50.0, 100.0 + n) for n in range(nodes)]
    simulation = Simulation(specs, power, named(policy))
    simulation.run()  # the rules are checked at every decision
    state, ledger = simulation.engine.state, simulation.ledger
    assert len(state.ended) == len(specs) and state.free == list(range(nodes))
    assert abs(ledger.owned_j - ledger.cluster_j) <= 1e-9 * max(1.0, ledger.cluster_j)
    for job in state.ended.values():
        assert job.done == pytest.approx(1.0, abs=1e-9)
        if not job.spec.mode.resizable:
            assert job.resize_count == 0


@given(
    st.integers(1, 64),
    st.floats(0.0, 1e3),
    st.floats(1.0, 1e6),
    st.floats(1.0, 500.0),
    st.floats(1.0, 500.0),
)
def test_a_narrower_job_never_costs_more_energy(
    n: int, tc: float, t1: float, static_w: float, dynamic_w: float
) -> None:
    # Iserte & Rojek, equations 4 to 6: E(n + 1) >= E(n) whenever P_S >= 0 and Eff falls with n.
    job = Job(spec(1, 1, 128, Mode.FLEXIBLE, law=(t1, tc)))
    model = NodePower(0.0, static_w, dynamic_w)

    def energy(size: int) -> float:
        assert job.spec.speedup is not None
        return size * model.busy_w(job.spec, size) * job.spec.speedup.time(size)

    assert energy(n + 1) >= energy(n) * (1 - 1e-12)


@pytest.mark.parametrize("nodes", [(-1,), (4,), (1, 9), (0, 1), (3, 3)])
def test_nodes_that_are_held_or_that_do_not_exist_are_given_to_nobody(
    nodes: tuple[int, ...],
) -> None:
    engine = Engine(4, named("easy"))
    engine.handle(Submitted(0.0, (spec(1, 1, 1, Mode.FIXED),)))  # has node 0
    engine.apply(Submitted(0.0, (spec(2, len(nodes), len(nodes), Mode.FIXED),)))
    with pytest.raises(RuleError, match=r"expected (free nodes for 2|every node once)"):
        check(engine.state, Start(JobId("2"), tuple(map(Node, nodes)), ""))
    check(engine.state, Start(JobId("2"), tuple(map(Node, (3, 1)[: len(nodes)])), ""))


def test_a_start_ahead_of_the_end_that_frees_its_nodes_needs_that_end_in_its_instant() -> None:
    """At 10 s, when job 1 is to end, job 2 gets both nodes: held twice until the end comes."""
    policy = adjusted(named("easy"), placement={"part": "count", "ahead": True})
    first, second = (job_spec(n, 2, limit_s=10.0) for n in (1, 2))
    engine = Engine(2, policy)
    engine.handle(Submitted(0.0, (first,)))
    (start,) = engine.handle(Submitted(10.0, (second,)))
    assert isinstance(start, Start) and (start.job, start.size) == ("2", 2)
    engine.handle(Ticked(10.0))  # the instant is not over
    with pytest.raises(RuleError, match=r"at the end of 10\.0 s, got 2 given twice"):
        engine.handle(Ticked(11.0))
    engine.handle(Ended(10.0, JobId("1"), "COMPLETED"))
    assert engine.state.free_count == 0
    check_instant(engine.state)  # all nodes are held, each once
    engine.handle(Ticked(11.0))
