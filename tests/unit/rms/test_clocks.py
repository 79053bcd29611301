"""Frequencies of hosts: what jobs ask for, how fast neighbours make them, what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from specs import job_spec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Start
from rms.core.model.jobs import Job, JobId, JobSpec, Node, NodePower, Site
from rms.core.model.speedup import OperatingPoint, at_frequency
from rms.core.policies import Policy, PolicyError, adjusted, named
from rms.core.policies.node_power import OptimalOperatingPoint
from rms.core.rules.checks import RuleError, check
from rms.core.state import State
from rms.daemon.heart import check_placement
from rms.formats.config import FileError, read_cluster, read_workload
from rms.formats.profiles import Machine, Point, Profile, Program, write
from rms.sim.simulator import Simulation

LEVELS = ((1.0, 0.5), (2.0, 1.0))
POWER = NodePower(100.0, 200.0)
HOST = Site(2, (POWER,), host=(0, 0), levels=LEVELS)
"""Two slots; a busy one adds 50 W at 2 GHz."""
MEMORY = (OperatingPoint(1.0, 1.25, 0.4), OperatingPoint(2.0, 1.0, 1.0))
ARITHMETIC = (OperatingPoint(1.0, 2.0, 0.4), OperatingPoint(2.0, 1.0, 1.0))


def policy(slowdown: float = 10.0, **parts: dict[str, object]) -> Policy:
    frequency = {"part": "optimal-operating-point", "slowdown": slowdown}
    return adjusted(named("easy"), frequency=frequency, **parts)


def job(
    number: int, points: tuple[OperatingPoint, ...], run_s: float = 100.0, at_s: float = 0.0
) -> JobSpec:
    times = {"limit_s": 2 * run_s, "run_s": run_s}
    return job_spec(number, at_s=at_s, operating_points=points, **times)


def run(where: Site, made: Policy, *specs: JobSpec) -> Simulation:
    simulation = Simulation(specs, where, made)
    simulation.run()
    simulation.ledger.check()
    return simulation


def test_a_row_between_two_that_were_measured() -> None:
    assert at_frequency(MEMORY, 1.5) == (1.5, 1.125, 0.7)
    assert at_frequency(MEMORY, 0.5) == MEMORY[0] and at_frequency(MEMORY, 3.0) == MEMORY[1]


@pytest.mark.parametrize(
    ("points", "idle_w", "slowdown", "share"),
    [
        (MEMORY, 100.0, 2.0, 0.5),  # 1.25 (50 + 20) < 50 + 50 J/s
        (ARITHMETIC, 100.0, 2.0, 1.0),  # 2 (50 + 20) > 50 + 50: its time is dear
        (ARITHMETIC, 0.0, 2.0, 0.5),  # 2 x 40 < 100, were the host's idle power nothing
        (ARITHMETIC, 0.0, 1.9, 1.0),
        ((), 0.0, 2.0, 1.0),
    ],
)
def test_least_energy_within_the_slowdown(
    points: tuple[OperatingPoint, ...], idle_w: float, slowdown: float, share: float
) -> None:
    site = structs.replace(HOST, power=(NodePower(idle_w, 200.0),))
    part = OptimalOperatingPoint(slowdown)
    spec = job(1, points)
    assert part.asks(State(site), Job(spec)) == share


def test_a_host_runs_at_the_highest_frequency_that_a_job_asks_for() -> None:
    """Job 1 asks for 1 GHz, where it takes 125 s; for 20 s job 2 beside it wants 2 GHz.

    25 s of 125 and 20 of 100 are 0.4 of job 1; the rest takes 75 s.
    """
    found = run(HOST, policy(), job(1, MEMORY), job(2, (), 20.0, 25.0))
    ended = found.engine.state.ended
    assert ended[JobId("2")].end_s == 45.0 and ended[JobId("1")].end_s == pytest.approx(120.0)
    busy_j = found.ledger.busy_j
    assert busy_j[JobId("1")] == pytest.approx(50.0 * (0.4 * 100.0 + 20.0))
    assert busy_j[JobId("2")] == pytest.approx(50.0 * 20.0)
    assert found.ledger.idle_j == pytest.approx(100.0 * 120.0)


def test_whole_nodes_have_a_frequency_each() -> None:
    """What a job adds to 100 W falls to 0.4 of it; of unlike nodes too."""
    for power in ((POWER,) * 2, (POWER, NodePower(100.0, 200.0, off_w=1.0))):
        found = run(Site(2, power, levels=LEVELS), policy(), job(1, MEMORY), job(2, ARITHMETIC))
        ended = found.engine.state.ended
        assert [ended[JobId(n)].end_s for n in ("1", "2")] == [125.0, 100.0]
        assert found.ledger.busy_j[JobId("1")] == pytest.approx(140.0 * 125.0)
        assert found.ledger.busy_j[JobId("2")] == pytest.approx(200.0 * 100.0)


def test_a_reservation_knows_that_a_job_runs_longer() -> None:
    """Job 3 requests 90 s, which would just do until job 1 ends, but at 1 GHz takes longer."""
    specs = [
        job(1, (), 50.0),
        structs.replace(job(2, (), 10.0), nodes_max=2, nodes_min=2, preferred=2),
        job(3, MEMORY, 45.0),
    ]
    found = run(HOST, policy(), *specs)
    assert found.engine.state.ended[JobId("3")].start_s == 60.0


def test_a_frequency_that_nodes_do_not_state_is_refused() -> None:
    state = State(HOST)
    state.enqueue(Job(job(1, MEMORY)))
    check(state, Start(JobId("1"), (Node(0),), "", frequencies=(0.5,)))
    for shares in ((0.6,), (0.5, 1.0)):
        with pytest.raises(RuleError, match="expected a frequency per node of 1"):
            check(state, Start(JobId("1"), (Node(0),), "", frequencies=shares))


def test_where_it_cannot_be() -> None:
    with pytest.raises(PolicyError, match="expected nodes that state frequencies"):
        Simulation([], Site(2), policy())
    with pytest.raises(PolicyError, match="expected frequencies of nodes for a policy that sets"):
        check_placement(policy(), Cluster.recorded(("n1",)))
    check_placement(policy(), Cluster.recorded(("n1",), levels=((1.0, 1.0),)))


def test_power_aware_is_a_part_of_its_own_too() -> None:
    shared = {"part": "first-fit-shared"}
    as_part = adjusted(named("easy"), frequency={"part": "power-aware"}, placement=shared)
    assert as_part.clocked and as_part.placement.shared


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    found = []
    for number in range(1, draw(st.integers(2, 10)) + 1):
        size = draw(st.integers(1, 4))
        at_s, run_s = float(draw(st.integers(0, 200))), draw(st.sampled_from([5.0, 40.0, 90.0]))
        points = draw(st.sampled_from([(), MEMORY, ARITHMETIC]))
        spec = job(number, points, run_s, at_s)
        found.append(structs.replace(spec, nodes_min=size, nodes_max=size, preferred=size))
    return found


@pytest.mark.promise("frequencies")
@settings(max_examples=30, deadline=None)
@given(streams(), st.sampled_from([1.0, 1.3, 9.0]), st.booleans())
def test_work_done_is_the_integral_of_the_rate_whatever_the_neighbours(
    specs: list[JobSpec], slowdown: float, goes_off: bool
) -> None:
    """Each job's work, integrated from the frequencies that its hosts have between events."""
    site = Site(
        4,
        (NodePower(10.0, 200.0, off_w=1.0, boot_s=5.0, boot_j=60.0),) * 2,
        host=(0, 0, 1, 1),
        levels=LEVELS,
    )
    part = {"part": "off-when-idle" if goes_off else "always-on"}
    work: dict[JobId, float] = {}
    before: dict[JobId, tuple[float, float]] = {}

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        for job_id, (since_s, rate) in before.items():
            work[job_id] = work.get(job_id, 0.0) + rate * (state.now_s - since_s)
        before.clear()
        asked = [0.0] * 2
        for each in state.running.values():
            for node, share in zip(
                each.nodes, each.requested_frequencies or (1.0,) * each.size, strict=True
            ):
                asked[site.host[node]] = max(asked[site.host[node]], share)
        for each in state.running.values():
            slowest = min(asked[site.host[node]] for node in each.nodes)
            spec = each.spec
            time = (
                at_frequency(spec.operating_points, 2.0 * slowest).time
                if (spec.operating_points)
                else 1.0
            )
            assert spec.run_s is not None
            before[spec.id] = state.now_s, 1.0 / (spec.run_s * time)

    made = policy(slowdown, node_power=part)
    simulation = Simulation(specs, site, made, observer=look)
    simulation.run()
    simulation.ledger.check()
    assert work == {spec.id: pytest.approx(1.0) for spec in specs}


def test_files_state_frequencies(tmp_path: Path) -> None:
    cluster, jobs = tmp_path / "c.toml", tmp_path / "w.toml"
    cluster.write_text('name = "c"\n[[nodes]]\nname = "n[1-2]"\nfrequencies = [1.0, 2.0]\n')
    assert read_cluster(cluster).levels == ((1.0, 0.5), (2.0, 1.0))
    table = "frequency = { ghz = [1.0, 2.0], time_s = [125, 100], power_w = [20, 50] }"
    jobs.write_text(
        f"[[jobs]]\nnodes = [1, 1]\nspeedup = {{ nodes = [1], time_s = [100], {table} }}\n"
    )
    assert read_workload(jobs)[0].operating_points == MEMORY
    for words, bad in (
        ("as many times and powers as ghz", table.replace("[20, 50]", "[20]")),
        ("rising ghz, times and powers above 0", table.replace("[1.0, 2.0]", "[2.0, 1.0]")),
    ):
        jobs.write_text(
            f"[[jobs]]\nnodes = [1, 1]\nspeedup = {{ nodes = [1], time_s = [100], {bad} }}\n"
        )
        with pytest.raises(FileError, match=words):
            read_workload(jobs)
    cluster.write_text(cluster.read_text().replace("[1.0, 2.0]", "[2.0, 1.0]"))
    with pytest.raises(FileError, match="expected rising frequencies above 0"):
        read_cluster(cluster)


def test_a_measured_profile_states_them_too(tmp_path: Path) -> None:
    points = tuple(
        Point(1, "separate", (time_s,), (time_s * watts,), "rapl", idle_w=100.0, mhz=mhz)
        for time_s, watts, mhz in (
            (100.0, 150.0, None),
            (125.0, 120.0, 1000.0),
            (100.0, 150.0, 2e3),
        )
    )
    profile = Profile("p", Program(("p",), ""), Machine("cpu", 1), points)
    write(tmp_path / "p.json", profile)
    jobs = tmp_path / "w.toml"
    jobs.write_text('[[jobs]]\nnodes = [1, 1]\nspeedup = { profile = "p.json" }\n')
    assert read_workload(jobs)[0].operating_points == MEMORY
