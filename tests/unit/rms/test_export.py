"""``rms acct --export`` and ``--idle share``, and what ``--json`` says of each energy."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed import Routed
from terminals import Terminal, terminals

from rms.core.books.spans import IDLE, MODEL, OFF
from rms.core.model.cluster import Cluster
from rms.core.model.events import WorkLost
from rms.core.model.jobs import JobId, NodePower
from rms.core.policies import adjusted, named
from rms.daemon.ask import views
from rms.formats.energy import as_json, check_energies, owner_energies, share_idle, with_idle_shared
from rms.formats.export import (
    CEEMS_HEADS,
    EAR_HEADS,
    SACCT_HEADS,
    ceems_csv,
    consumed_energy,
    ear_csv,
)
from rms.formats.joblog import read_log
from rms.wire.messages import DeviceEnergy, Metered
from rms.wire.users import AcctAnswer, Books, EnergyPart, EnergyRow

SHARED = Cluster(
    ("n1",), (("cpu:0", "cpu:1", "cpu:2"),), (NodePower(idle_w=20.0, static_w=40.0),), (10.0,)
).split()
POLICY = adjusted(named("easy"), placement={"part": "first-fit-shared"}).text
NAME = 'a, "b"; c'


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    with terminals(tmp_path, monkeypatch, capsys) as found:
        yield found


def measure(server: Routed, node: str, *devices: DeviceEnergy, seconds: float = 10.0) -> None:
    """Let an agent report the energies of devices over some seconds."""
    meters = server.daemon.meters
    meters.take_report(Metered(node, "a", 0, server.clock[0], "boot", []))
    none = [DeviceEnergy(one.device, one.source, 0.0) for one in devices]
    meters.take_report(Metered(node, "a", 1, server.clock[0], "boot", none))
    server.clock[0] += seconds
    meters.take_report(Metered(node, "a", 2, server.clock[0], "boot", list(devices)))


def table(text: str) -> list[dict[str, str]]:
    assert text.endswith("\r\n")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


# --- EAR and CEEMS ------------------------------------------------------------------------------


def measured_job(terminal: Terminal) -> None:
    """Run a job for 20 s of which the first 10 are measured: 600 J, 50 J and 400 J."""
    terminal.run("submit", "--job-name", NAME, "--account", "physics", "good.sh")
    devices = [
        DeviceEnergy("package-0", "rapl", 600.0),
        DeviceEnergy("dram-0", "rapl-dram", 50.0),
        DeviceEnergy("gpu-0", "nvml-counter", 400.0),
    ]
    measure(terminal.server, "n1", *devices)
    terminal.server.clock[0] += 10.0
    terminal.server.daemon.scripts.end(terminal.server.daemon.jobs[JobId("1")], 0)


@pytest.mark.promise("energy-export")
def test_power_of_a_job_by_host_in_the_columns_of_ear(terminal: Terminal) -> None:
    measured_job(terminal)
    terminal.run("submit", "--nodes", "2", "good.sh")  # runs, without a measurement yet
    terminal.run("submit", "good.sh")  # waits
    assert terminal.run("acct", "--export", "ear") == 0
    first, *others = table(terminal.out)
    assert list(first) == [*EAR_HEADS.split(), "GPU0_POWER_W"]
    assert (first["JOBID"], first["JOBNAME"], first["ACCOUNTID"]) == ("1", NAME, "physics")
    assert (first["NODENAME"], first["TIME_SEC"]) == ("n1", "20.000")
    assert first["DC_NODE_POWER_W"] == ""  # no meter of the whole node
    assert float(first["PCK_POWER_W"]) == pytest.approx(60.0)
    assert float(first["DRAM_POWER_W"]) == pytest.approx(5.0)
    assert float(first["GPU0_POWER_W"]) == pytest.approx(40.0)
    at = time.localtime(1000.0)
    assert first["JOB_START_DATE"] == time.strftime("%Y-%m-%d %H:%M:%S", at)
    assert (first["JOB_START_TIME"], first["JOB_END_TIME"]) == ("1000", "1020")
    assert [(row["JOBID"], row["NODENAME"], row["JOB_END_TIME"]) for row in others] == [
        ("2", "n1", ""),
        ("2", "n2", ""),
    ]
    assert {row[name] for row in others for name in row if name.endswith("_W")} == {""}


@pytest.mark.promise("energy-export")
def test_energy_of_a_job_in_the_columns_of_ceems(terminal: Terminal, tmp_path: Path) -> None:
    measured_job(terminal)
    terminal.run("submit", "--nodes", "2", "good.sh")
    assert terminal.run("acct", "--export", "ceems") == 0
    first, other = table(terminal.out)
    assert list(first) == CEEMS_HEADS.split()
    assert (first["uuid"], first["name"], first["project"]) == ("1", NAME, "physics")
    assert (first["state"], first["elapsed"]) == ("COMPLETED", "00:00:20")
    assert first["started_at_ts"] == "1000000" and first["total_walltime_seconds"] == "20"
    assert float(first["total_cpu_energy_usage_kwh"]) == pytest.approx(650.0 / 3.6e6, rel=1e-4)
    assert float(first["total_gpu_energy_usage_kwh"]) == pytest.approx(400.0 / 3.6e6, rel=1e-4)
    assert other["total_cpu_energy_usage_kwh"] == other["total_gpu_energy_usage_kwh"] == ""
    assert other["ended_at"] == other["ended_at_ts"] == ""
    (tmp_path / "p.toml").write_text("co2_g_per_kwh = 3600\n")
    assert terminal.run("acct", "--export", "ceems", "--cost", "--prices", "p.toml") == 0, (
        terminal.err
    )
    first, other = table(terminal.out)
    assert float(first["total_cpu_emissions_gms"]) == pytest.approx(0.65)
    assert float(first["total_gpu_emissions_gms"]) == pytest.approx(0.4)
    assert other["total_cpu_emissions_gms"] == ""


def test_a_name_that_a_spreadsheet_would_compute_is_text(terminal: Terminal) -> None:
    terminal.run("submit", "--job-name", "=1+1", "good.sh")
    terminal.run("acct", "--export", "ceems")
    assert table(terminal.out)[0]["name"] == "'=1+1"


# --- sacct --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0"),
        (-0.3, "0"),
        (0.4, "0"),
        (540.2, "540"),
        (999.4, "999"),
        (999.6, "1K"),
        (12_340.0, "12.34K"),
        (999_999.0, "1000.00K"),  # as sacct rounds
        (4_190_000_000.0, "4.19G"),
        (2.0**63, "9223.37P"),
    ],
)
def test_energy_as_sacct_prints_it(joules: float, text: str) -> None:
    assert consumed_energy(joules) == text


@pytest.mark.promise("energy-export")
def test_lines_of_sacct_with_energy_can_be_simulated(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("submit", "--job-name", "a|b", "--time", "90", "good.sh")
    terminal.server.clock[0] += 2468.0
    terminal.server.daemon.scripts.end(terminal.server.daemon.jobs[JobId("1")], 0)
    terminal.run("submit", "--hold", "good.sh")
    assert terminal.run("acct", "--export", "sacct") == 0
    heads, ended, held = terminal.out.splitlines()
    assert heads == SACCT_HEADS.replace(" ", "|")
    cells = dict(zip(heads.split("|"), ended.split("|", heads.count("|")), strict=True))
    assert (cells["ConsumedEnergy"], cells["ConsumedEnergyRaw"]) == ("12.34K", "12340")
    assert (cells["JobName"], cells["TimelimitRaw"], cells["ElapsedRaw"]) == ("a|b", "90", "2468")
    assert "|Unknown|Unknown|0|UNLIMITED|0|PENDING|0|0|" in held
    (tmp_path / "jobs.txt").write_text(terminal.out)
    log = read_log([tmp_path / "jobs.txt"])
    assert [(job.id, job.run_s, job.size, job.name) for job in log.jobs] == [
        ("1", 2468.0, 1, "a|b")
    ]


# --- options ------------------------------------------------------------------------------------


def test_options_that_do_not_go_together(terminal: Terminal) -> None:
    for more in (["--energy"], ["--json", "-"]):
        said = terminal.refused(2, "acct", "--export", "ear", *more)
        assert "expected --export without --energy and --json" in said
    said = terminal.refused(2, "acct", "--export", "sacct", "--cost")
    assert "expected --cost with --export ceems, got --export sacct" in said
    for more in (["--idle", "share"], ["--export", "ear"]):
        assert "expected --gain alone" in terminal.refused(2, "acct", "--gain", *more)
    assert "expected ear, ceems, sacct, got 'csv'" in terminal.refused(2, "acct", "--export", "csv")


# --- --idle share -------------------------------------------------------------------------------


def row(
    owner: str, node: str, begin_s: float, end_s: float, joules: float, source: str = MODEL
) -> EnergyRow:
    device, error_j = ("node", 0.0) if source == MODEL else ("package-0", joules / 10.0)
    times = begin_s, end_s
    return EnergyRow(owner, None, 0, node, device, source, *times, joules, error_j, False, 0.0)


def test_idle_energy_is_shared_by_slots_and_time() -> None:
    """100 J in 10 s: nobody for 2 s, a job on one slot for 4 s, beside one on three for 4 s."""
    rows = [
        row(IDLE, "n1", 0.0, 10.0, 100.0, "rapl"),
        row(IDLE, "n2", 0.0, 10.0, 7.0),
        row("1", "n1/0", 2.0, 10.0, 5.0),
        *(row("2", f"n1/{slot}", 6.0, 12.0, 5.0) for slot in (1, 2, 3)),
    ]
    shared = [one for one in share_idle(rows) if one.source == "rapl"]
    assert [(one.owner, one.node, one.begin_s, one.end_s) for one in shared] == [
        ("1", "n1", 2.0, 10.0),
        ("2", "n1", 6.0, 10.0),
        (IDLE, "n1", 0.0, 10.0),
    ]
    assert [one.joules for one in shared] == pytest.approx([40.0 + 10.0, 30.0, 20.0])
    assert [one.uncertainty_j for one in shared] == pytest.approx([5.0, 3.0, 2.0])
    assert owner_energies(share_idle(rows))[IDLE].joules == pytest.approx(27.0)


SLOTS = 4


@st.composite
def hosts(draw: st.DrawFn) -> list[EnergyRow]:
    """Return rows of two hosts: idle ones that follow each other, and owners of their slots."""
    found = []
    times = st.lists(st.floats(0.0, 100.0), min_size=2, max_size=5).map(sorted)
    energies = st.floats(0.0, 1e6)
    for host in ("n1", "n2"):
        for begin_s, end_s in pairwise(draw(times)):
            owner = draw(st.sampled_from([IDLE, IDLE, OFF]))
            found.append(row(owner, host, begin_s, end_s, draw(energies)))
            found.append(row(owner, host, begin_s, end_s, draw(energies), "rapl"))
        for slot in range(SLOTS):
            for begin_s, end_s in pairwise(draw(times)):
                owner = draw(st.sampled_from(["1", "2", "3", "task:a[1]", ""]))
                if owner:
                    found.append(row(owner, f"{host}/{slot}", begin_s, end_s, draw(energies)))
    return found


@pytest.mark.promise("energy-export")
@given(hosts())
def test_sums_do_not_change_and_each_moment_is_divided(rows: list[EnergyRow]) -> None:
    shared, whole_j = share_idle(rows), sum(one.joules for one in rows)
    assert sum(one.joules for one in shared) == pytest.approx(whole_j, rel=1e-9, abs=1e-9)
    for device in ("node", "package-0"):
        for node in {one.node for one in rows}:
            own = [
                [r.joules for r in some if (r.node, r.device) == (node, device)]
                for some in (rows, shared)
            ]
            assert sum(own[1]) == pytest.approx(sum(own[0]), rel=1e-9, abs=1e-9)
    expected = dict.fromkeys({one.owner for one in rows}, 0.0)
    for one in rows:
        own_j = one.joules
        if one.owner == IDLE and one.end_s > one.begin_s:
            for at_s, next_s in pairwise(
                sorted(
                    {
                        one.begin_s,
                        one.end_s,
                        *(
                            at
                            for r in rows
                            for at in (r.begin_s, r.end_s)
                            if one.begin_s < at < one.end_s
                        ),
                    }
                )
            ):
                there = [
                    r.owner
                    for r in rows
                    if r.node.startswith(f"{one.node}/") and r.begin_s <= at_s and r.end_s >= next_s
                ]
                part_j = one.joules * (next_s - at_s) / (one.end_s - one.begin_s)
                for owner in there:
                    expected[owner] += part_j / len(there)
                own_j -= part_j if there else 0.0
        expected[one.owner] += own_j
    found = {owner: own.joules for owner, own in owner_energies(shared).items()}
    for owner, joules in expected.items():
        assert found.get(owner, 0.0) == pytest.approx(joules, rel=1e-9, abs=1e-6)


@pytest.fixture
def sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    with terminals(tmp_path, monkeypatch, capsys, SHARED, POLICY) as found:
        yield found


@pytest.mark.promise("energy-export")
def test_jobs_have_the_idle_energy_of_their_host_on_demand(sharing: Terminal) -> None:
    """A job for 10 s, another beside it for the last 5 s; nobody for 10 s more."""
    server = sharing.server
    sharing.run("submit", "good.sh")
    measure(server, "n1", DeviceEnergy("package-0", "rapl", 300.0), seconds=5.0)
    sharing.run("submit", "good.sh")
    server.clock[0] += 5.0
    more = [DeviceEnergy("package-0", "rapl", 700.0)]
    server.daemon.meters.take_report(Metered("n1", "a", 3, server.clock[0], "boot", more))
    for job in ("1", "2"):
        server.daemon.scripts.end(server.daemon.jobs[JobId(job)], 0)
    server.clock[0] += 10.0
    sums = {}
    for idle in ("own", "share"):
        assert sharing.run("acct", "--energy", "--idle", idle, "--json", "-") == 0
        found = json.loads(sharing.out)
        assert found["idle"] == idle and {job["idle"] for job in found["jobs"]} == {idle}
        sums[idle] = {job["id"]: job["energy_j"] for job in found["jobs"]}
        sums[idle] |= {name: part["energy_j"] for name, part in found["sums"].items()}
        for job in found["jobs"]:
            assert sum(part["joules"] for part in job["energy"]) == pytest.approx(job["energy_j"])
            assert sum(one["joules"] for one in job["rows"]) == pytest.approx(job["energy_j"])
    assert sums["own"]["cluster"] == pytest.approx(sums["share"]["cluster"], rel=1e-9)
    assert sums["share"][IDLE] == pytest.approx(10.0 * 20.0)
    moved_j = sums["own"][IDLE] - sums["share"][IDLE]
    assert moved_j == pytest.approx(sums["share"]["jobs"] - sums["own"]["jobs"])
    first_j, second_j = (sums["share"][job] - sums["own"][job] for job in ("1", "2"))
    assert first_j - second_j == pytest.approx(moved_j / 2.0) and moved_j > 0.0
    assert sharing.run("acct", "2", "--idle", "share", "--json", "-") == 0
    (job,) = json.loads(sharing.out)
    assert job["energy_j"] == pytest.approx(sums["share"]["2"])
    answer = with_idle_shared(views.acct(server.daemon.context))
    check_energies(answer, owner_energies(answer.rows), whole=True)
    assert sharing.run("acct", "--idle", "share", "--export", "ear") == 0
    (one, _) = table(sharing.out)
    assert (one["NODENAME"], one["TIME_SEC"]) == ("n1", "10.000")  # its slot and the host: one row


def test_nodes_of_one_job_have_no_idle_energy_to_share(server: Routed) -> None:
    server.submit()
    server.clock[0] += 10.0
    answer = views.acct(server.daemon.context)
    shared = with_idle_shared(answer)
    assert shared.rows == answer.rows and shared.energy == answer.energy
    assert [job.energy_j for job in shared.jobs] == [50.0]


# --- source and uncertainty of each energy in --json --------------------------------------------


def energies(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object that has joules of a job, with its path."""
    if isinstance(value, list):
        for item in value:
            yield from energies(item, path)
    elif isinstance(value, dict):
        if {"energy_j", "joules"} & value.keys():
            yield path, value
        for key, item in value.items():
            yield from energies(item, f"{path}.{key}")


@pytest.mark.promise("energy-export")
def test_each_energy_has_its_source_and_uncertainty(terminal: Terminal) -> None:
    measured_job(terminal)
    terminal.run("submit", "good.sh")
    for words in (["acct"], ["acct", "--energy"], ["show", "1,2"], ["queue", "-t", "all"]):
        assert terminal.run(*words, "--json", "-") == 0
        found = list(energies(json.loads(terminal.out)))
        assert found
        for path, value in found:
            if path.endswith(".by_source_j"):
                continue
            source = value.get("source", value.get("energy_source"))
            assert source, (words, path, value)
            measured = MODEL not in source
            assert (value["uncertainty_j"] is not None) == measured, (words, path, value)
    assert terminal.run("report", "page", "--json", "-") == 0
    jobs = json.loads(terminal.out)["jobs"]
    assert [part["uncertainty_j"] for part in jobs[0]["energy"]] == [0.0, 0.0, 0.0, None]
    assert jobs[0]["uncertainty_j"] is None


def test_only_the_models_uncertainty_is_unknown() -> None:
    parts = [EnergyPart("rapl", 5.0, 0.25), EnergyPart(MODEL, 1.0)]
    assert as_json(parts) == [
        {"source": "rapl", "joules": 5.0, "uncertainty_j": 0.25, "estimate": False},
        {"source": MODEL, "joules": 1.0, "uncertainty_j": None, "estimate": False},
    ]


def test_lost_work_has_the_source_of_its_job(terminal: Terminal) -> None:
    server = terminal.server
    terminal.run("submit", "good.sh")
    server.clock[0] += 10.0
    server.daemon.handle(WorkLost(server.clock[0], JobId("1"), 1002.0, 1004.0, 1))
    assert terminal.run("show", "1", "--json", "-") == 0
    lost = json.loads(terminal.out)[0]["lost"]
    assert (lost["energy_source"], lost["uncertainty_j"]) == (MODEL, None)
    assert lost["recomputed_j"] + lost["recovery_j"] > 0.0


def test_show_says_that_an_uncertainty_is_unknown(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    terminal.run("show", "1")
    assert "0.0 J (model), uncertainty unknown" in terminal.out


def test_exports_of_no_jobs_are_their_heads() -> None:
    energy = Books(None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, MODEL)
    answer = AcctAnswer([], energy, [])
    assert ear_csv(answer) == EAR_HEADS.replace(" ", ",") + "\r\n"
    assert ceems_csv(answer) == CEEMS_HEADS.replace(" ", ",") + "\r\n"
