"""Faults of other tools' energy accounting, by name: this one must not have them.

Those that are quoted are issues of Kepler, Batsim and Autosubmit, LUMI's user guide, and lines of
Slurm's changelogs since 23.02.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from powercap import RANGE_UJ, zone
from routed import Routed, routed

from rms.core.books.spans import IDLE, MODEL
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId, NodePower
from rms.core.policies import adjusted, named
from rms.daemon.ask import views
from rms.formats.energy import OwnerEnergy, as_json, check_energies, owner_energies
from rms.launch.slurm.commands import CommandResult, Slurm, SlurmError
from rms.power.rapl import Rapl
from rms.wire.messages import Activity, DeviceEnergy, Metered
from rms.wire.users import EnergyPart

POLICY = adjusted(named("easy"), placement={"part": "first-fit-shared"}).text
SLOTS = 4


def shared(slots: int, power: NodePower, hosts: int = 1) -> Cluster:
    """Return hosts that jobs share slot by slot."""
    names = tuple(f"n{number}" for number in range(1, hosts + 1))
    of_host = tuple(f"cpu:{slot}" for slot in range(slots))
    return Cluster(names, (of_host,) * hosts, (power,) * hosts, (10.0,) * hosts).split()


NODE = shared(SLOTS, NodePower(idle_w=20.0, static_w=60.0))


def report(
    server: Routed,
    number: int,
    joules: float,
    agent: str = "a",
    host: str = "n1",
    cpu_s: Mapping[str, float] | None = None,
) -> None:
    """Let an agent report, perhaps with the processor time of jobs and ("") of the whole host."""
    devices = [DeviceEnergy("package-0", "rapl", joules)] if number else []
    activity = [Activity(owner, seconds) for owner, seconds in (cpu_s or {}).items()]
    metered = Metered(host, agent, number, server.clock[0], "boot", devices, "", activity)
    server.daemon.meters.take_report(metered)


def measure(server: Routed, watts: float, seconds: float = 10.0) -> None:
    """Let an agent report for some time, from which on the node draws this power."""
    report(server, 0, 0.0)
    report(server, 1, 0.0)
    server.clock[0] += seconds
    report(server, 2, watts * seconds)


def owners(server: Routed) -> dict[str, OwnerEnergy]:
    """Return the energy by owner, and check that the sums are the cluster's."""
    answer = views.acct(server.daemon.context)
    found = owner_energies(answer.rows)
    check_energies(answer, found, whole=True)
    return found


# --- Kepler -------------------------------------------------------------------------------------


@pytest.mark.promise("energy-faults")
def test_kepler_2465_idle_energy_goes_to_zero_at_full_load(tmp_path: Path) -> None:
    """There idle was what the share of busy processors left of the node: nothing at full load."""
    idle_j = []
    for jobs in range(SLOTS + 1):
        with routed(tmp_path / f"{jobs}", NODE, POLICY) as server:
            for _ in range(jobs):
                server.submit()
            if not jobs:  # the books begin with the first event
                server.submit(hold=True)
            measure(server, 20.0 + 10.0 * jobs)
            idle_j.append(owners(server)[IDLE].joules)
    assert idle_j == pytest.approx([20.0 * 10.0] * (SLOTS + 1))


@pytest.mark.promise("energy-faults")
def test_kepler_2465_idle_energy_by_activity_goes_to_zero_at_full_load(tmp_path: Path) -> None:
    """A node of 20 W and 10 W for each busy slot, with a load that changes, then full for 10 s."""
    with routed(tmp_path, NODE, POLICY) as server:
        jobs = [server.submit() for _ in range(SLOTS)]
        cpu_s, joules = dict.fromkeys(["", *jobs], 0.0), 0.0
        report(server, 0, 0.0, cpu_s=cpu_s)
        report(server, 1, 0.0, cpu_s=cpu_s)
        before = owners(server)
        loads = [number % (SLOTS + 1) for number in range(60)] + [SLOTS] * 10
        for number, busy in enumerate(loads, 2):
            if number == 62:
                before = owners(server)
            for job in ["", *jobs[:busy]]:
                cpu_s[job] += 1.0 if job else float(busy)
            server.clock[0] += 1.0
            joules += 20.0 + 10.0 * busy
            report(server, number, joules, cpu_s=cpu_s)
        found = owners(server)
        assert "rapl by cpu time" in found[jobs[0]].by_source
        idle_j = found[IDLE].joules - before[IDLE].joules
        assert idle_j == pytest.approx(10 * 20.0, rel=0.1)
        for job in jobs:
            assert found[job].joules - before[job].joules == pytest.approx(100.0, rel=0.1)


@pytest.mark.promise("energy-faults")
def test_kepler_1811_idle_energy_stays_at_the_highest_load(tmp_path: Path) -> None:
    """There idle power was the highest power so far, and jobs had nothing after a peak."""
    with routed(tmp_path, NODE, POLICY) as server:
        server.submit(nodes=[SLOTS, SLOTS])
        measure(server, 60.0)
        server.daemon.scripts.end(server.daemon.jobs[JobId("1")], 0)
        second = server.submit()
        peak_j = owners(server)[IDLE].joules
        server.clock[0] += 10.0
        report(server, 3, 600.0 + 300.0)
        found = owners(server)
        assert found[IDLE].joules - peak_j == pytest.approx(200.0)
        assert found[second].joules == pytest.approx(100.0)


PARTS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0.0, 2000.0), st.floats(0.1, 20.0)),
    min_size=1,
    max_size=6,
)


@pytest.mark.promise("energy-faults")
@settings(deadline=None)
@given(PARTS, st.lists(st.sampled_from([0.0, 0.01, 1.0, 50.0]), max_size=4))
def test_kepler_1836_a_part_draws_more_than_its_node(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, float, float]],
    loads: list[float],
) -> None:
    """There a virtual machine had more than the node; whatever is reported, no owner has."""
    with routed(tmp_path_factory.mktemp("node"), NODE, POLICY) as server:
        report(server, 0, 0.0)
        report(server, 1, 0.0)
        cpu_s = {server.submit(): 0.0, "": 0.0}
        whole_j, before = 0.0, dict[str, float]()
        for number, (jobs, watts, seconds) in enumerate(parts, 2):
            cpu_s |= {server.submit(): 0.0 for _ in range(jobs)}
            server.clock[0] += seconds
            whole_j += watts * seconds
            for at, owner in enumerate(cpu_s if loads else ()):
                cpu_s[owner] += loads[at % len(loads)] * seconds
            report(server, number, whole_j, cpu_s=cpu_s if loads else None)
            now = {name: own.joules for name, own in owners(server).items()}
            drawn = [joules - before.get(name, 0.0) for name, joules in now.items()]
            assert all(-1e-6 <= joules <= watts * seconds + 1e-6 for joules in drawn)
            assert sum(drawn) == pytest.approx(watts * seconds, rel=1e-9, abs=1e-6)
            before = now


# --- whole nodes for each job on them: LUMI (Slurm), Batsim, Autosubmit -------------------------


@pytest.mark.promise("energy-faults")
def test_lumi_whole_nodes_are_charged_to_each_job_on_shared_nodes(tmp_path: Path) -> None:
    with routed(tmp_path, NODE, POLICY) as server:
        jobs = [server.submit() for _ in range(SLOTS)]
        measure(server, 60.0)
        found = owners(server)
        assert sum(own.joules for own in found.values()) == pytest.approx(600.0)
        assert [found[job].joules for job in jobs] == pytest.approx([100.0] * SLOTS)
        assert all(found[job].estimate for job in jobs)  # and says that it is a split


@pytest.mark.promise("energy-faults")
def test_lumi_a_job_that_sleeps_has_the_energy_of_a_busy_one_beside_it(tmp_path: Path) -> None:
    """A busy loop adds 20 W, a sleeper nothing: each is within the uncertainty of its energy."""
    with routed(tmp_path, NODE, POLICY) as server:
        busy, sleeps = server.submit(), server.submit()
        for second in range(11):
            cpu_s = {busy: float(second), sleeps: 0.0, "": float(second)}
            report(server, second + 1, 40.0 * second, cpu_s=cpu_s)
            server.clock[0] += 1.0
        server.clock[0] -= 1.0
        found = owners(server)
        for job, true_j in ((busy, 200.0), (sleeps, 0.0)):
            own = found[job]
            assert abs(own.joules - true_j) <= own.uncertainty_j + 1e-6
        assert found[sleeps].joules < 0.1 * found[busy].joules


@pytest.mark.promise("energy-faults")
def test_batsim_65_jobs_that_share_a_host_have_all_of_its_energy_each(tmp_path: Path) -> None:
    """Its example: three jobs of 4 tasks for 3520 s on 12 cores of 100 to 217 W: 763840 J, once."""
    with routed(tmp_path, shared(12, NodePower(idle_w=100.0, static_w=217.0)), POLICY) as server:
        jobs = [server.submit(nodes=[4, 4]) for _ in range(3)]
        server.clock[0] += 3520.0
        found = owners(server)
        assert sum(own.joules for own in found.values()) == pytest.approx(763_840.0)
        assert [found[job].joules for job in jobs] == pytest.approx([117.0 / 3 * 3520.0] * 3)


@pytest.mark.promise("energy-faults")
@pytest.mark.parametrize("measured", [False, True])
def test_autosubmit_1455_energy_grows_with_the_nodes_that_processors_are_on(
    tmp_path: Path, measured: bool
) -> None:
    """Two slots on one host, and one on each of two, beside others: the same energy."""
    hosts = shared(2, NodePower(idle_w=20.0, static_w=60.0), hosts=3)
    with routed(tmp_path, hosts, POLICY) as server:
        server.submit(nodes=[1, 1])  # n1
        spread = server.submit(nodes=[2, 2])  # n1, n2
        server.submit(nodes=[1, 1])  # n2
        together = server.submit(nodes=[2, 2])  # n3
        nodes = {row["id"]: row["nodes"] for row in server.ask("GET", "/jobs")[1]}
        assert (nodes[spread], nodes[together]) == (["n1/1", "n2/0"], ["n3/0", "n3/1"])
        if measured:
            for host in ("n1", "n2", "n3"):
                report(server, 0, 0.0, host=host)
                report(server, 1, 0.0, host=host)
        server.clock[0] += 10.0
        if measured:
            for host in ("n1", "n2", "n3"):
                report(server, 2, 600.0, host=host)
        found = owners(server)
        assert found[spread].joules == pytest.approx(found[together].joules)
        assert found[spread].joules == pytest.approx(400.0)


# --- Slurm: restarts, underflows, units, unset values -------------------------------------------


@pytest.mark.promise("energy-faults")
def test_slurm_24_11_0_a_restart_of_the_agent_makes_bad_numbers(tmp_path: Path) -> None:
    """The next agent counts on from what was reported; one that counts from 0 adds nothing."""
    with routed(tmp_path, NODE, POLICY) as server:
        job = server.submit(nodes=[SLOTS, SLOTS])
        measure(server, 60.0)
        server.clock[0] += 10.0
        report(server, 0, 0.0, "b")
        report(server, 1, 1200.0, "b")  # the counter went on meanwhile
        assert sum(own.joules for own in owners(server).values()) == pytest.approx(1200.0)
        server.clock[0] += 10.0
        report(server, 0, 0.0, "c")
        report(server, 1, 7.0, "c")  # it does not know what was counted before: by the model
        found = owners(server)
        assert sum(own.joules for own in found.values()) == pytest.approx(1800.0)
        assert found[job].by_source[MODEL] == pytest.approx(400.0)


@pytest.mark.promise("energy-faults")
@pytest.mark.parametrize("joules", [599.0, 0.0])
def test_slurm_24_11_4_a_count_that_falls_underflows(tmp_path: Path, joules: float) -> None:
    """There the difference had no sign: 2^64 less a few joules."""
    with routed(tmp_path, NODE, POLICY) as server:
        server.submit()
        measure(server, 60.0)
        server.clock[0] += 1.0
        report(server, 3, joules)
        found = owners(server)
        assert all(own.joules >= 0.0 for own in found.values())
        assert sum(own.joules for own in found.values()) == pytest.approx(600.0 + 30.0)


@pytest.mark.promise("energy-faults")
def test_slurm_25_05_0_memory_is_counted_in_a_wrong_unit(tmp_path: Path) -> None:
    """The kernel has applied the unit of each domain: all are microjoules. A wrap is no energy."""
    zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "dram", 0)
    rapl = Rapl(tmp_path)
    rapl.read(0.0)
    zone(tmp_path, "intel-rapl:0", "package-0", 2_000_000)  # wrapped
    zone(tmp_path, "intel-rapl:0:0", "dram", 3_000_000)
    found = {device.device: device.joules for device in rapl.read(1.0)}
    assert found == pytest.approx({"package-0": 3.0, "dram-0": 3.0}, abs=1e-5)


@pytest.mark.promise("energy-faults")
def test_slurm_24_05_4_of_several_sensors_one_is_counted(tmp_path: Path) -> None:
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}", 0)
    rapl = Rapl(tmp_path)
    rapl.read(0.0)
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}", (package + 1) * 10_000_000)
    devices = rapl.read(1.0)
    with routed(tmp_path / "state", NODE, POLICY) as server:
        server.submit()
        take = server.daemon.meters.take_report
        take(Metered("n1", "a", 0, server.clock[0], "boot", []))
        zero = [DeviceEnergy(one.device, one.source, 0.0) for one in devices]
        take(Metered("n1", "a", 1, server.clock[0], "boot", zero))
        server.clock[0] += 1.0
        take(Metered("n1", "a", 2, server.clock[0], "boot", devices))
        assert sum(own.joules for own in owners(server).values()) == pytest.approx(30.0)


@pytest.mark.promise("energy-faults")
def test_slurm_24_05_2_without_a_sensor_the_energy_is_zero(server: Routed) -> None:
    """Here it is the model's, and says so, with an uncertainty that is unknown."""
    server.submit()
    server.clock[0] += 10.0
    (row,) = as_json(views.jobs(server.daemon.context))
    assert (row["energy_j"], row["energy_source"], row["uncertainty_j"]) == (50.0, MODEL, None)


@pytest.mark.promise("energy-faults")
def test_slurm_23_02_1_an_unset_energy_is_a_number() -> None:
    """There -1, 4294967294 or 2^64 - 2 stood for none; here it is null, or there is no such key."""
    assert json.dumps(as_json(EnergyPart(MODEL, 1.0))) == (
        '{"source": "model", "joules": 1.0, "uncertainty_j": null, "estimate": false}'
    )

    def site(out: str) -> Slurm:
        return Slurm({}, "me", lambda command, env, deadline_s: CommandResult(0, out, ""))

    assert site("120\n18446744073709551614\n30\n").consumed_j(7) == 150.0
    assert site("\n").consumed_j(7) == 0.0
    for unset in (2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 40):
        with pytest.raises(SlurmError, match="expected the energy of job 7 in Slurm, got"):
            site(f"{unset}\n").consumed_j(7)
