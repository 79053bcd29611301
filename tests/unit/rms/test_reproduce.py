"""The core paper's tables: the model of its system, and what array-share makes of its jobs."""

from __future__ import annotations

import msgspec
import pytest

from rms.core.model import Mode
from rms.core.policies import adjusted, named
from rms.sim.recording import Recording, record
from rms.studies.chiesi import DATA, run, site, workload
from rms.studies.iserte_rojek import iserte_rojek, jobs
from rms.studies.varysched import varysched


@pytest.fixture(scope="module")
def data() -> dict[str, dict[str, float]]:
    return msgspec.toml.decode((DATA / "iserte_rojek.toml").read_bytes())


def shared(data: object, cluster: str, price_s: float, energy: float = 0.0) -> Recording:
    specs, where = jobs(data, cluster, Mode.FLEXIBLE, 10.0, price_s)  # type: ignore[arg-type]
    return record(specs, where, adjusted(named("array-share"), sizing={"energy": energy}))


@pytest.mark.promise("reproduce")
def test_the_model_of_the_papers_system_to_a_second() -> None:
    result, lines, good = iserte_rojek(None)
    assert good and len(result["rows"]) == 8
    for row in result["rows"]:
        assert abs(row["values"]["time_s"]["ours"] - row["model_time_s"]) <= 1.0
    assert any("contradict" in line for line in lines)
    assert {tuple(entry["time_s"]) for entry in result["sensitivity"]} == {
        ("30", "45", "60", "75", "90", "105", "120")
    }


@pytest.mark.promise("reproduce")
def test_nine_jobs_on_36_nodes_are_optimal(data: object) -> None:
    for price_s in (0.0, 10.0):
        run = shared(data, "m2090", price_s)
        assert (run.time_s, run.resizes) == (1192.0, 0)
        assert run.cluster_j / 1e3 == pytest.approx(6076.3, abs=0.1)


def test_nine_jobs_on_20_nodes_take_turns_at_being_wide(data: object) -> None:
    priced, free = shared(data, "k80", 10.0), shared(data, "k80", 0.0)
    assert priced.time_s <= 1225.0 and priced.cluster_j <= 3120e3 and priced.resizes > 10
    assert free.time_s <= 1190.0 and free.resizes > priced.resizes


def test_the_weight_on_energy_keeps_jobs_narrow(data: object) -> None:
    run = shared(data, "k80", 10.0, energy=1.0)
    assert run.cluster_j <= 2640e3 and run.resizes == 0


def test_no_mode_is_worse_off_than_in_the_paper(data: dict[str, dict[str, float]]) -> None:
    for cluster in ("m2090", "k80"):
        for mode in Mode:
            specs, where = jobs(data, cluster, mode, 10.0, 10.0)
            run = record(specs, where, named("array-share"))
            paper_s = data["model"]["time_s"][cluster][mode]  # type: ignore[index]
            assert run.time_s <= paper_s
            assert run.owned_j == pytest.approx(run.cluster_j, rel=1e-9)


def test_a_power_cap_holds_on_a_short_workload() -> None:
    data = msgspec.toml.decode((DATA / "chiesi.toml").read_bytes()) | {"jobs": 120}
    specs, where = workload(data, 1), site(data)
    assert specs == workload(data, 1) != workload(data, 2)
    unaware = run(specs, where, "p-fifo", None)
    for policy in ("p-fifo", "p-bff"):
        aware = run(specs, where, policy, 850.0)
        assert aware.peak_w <= aware.scheduled_w <= 850.0 < unaware.peak_w
        assert aware.time_s > unaware.time_s
        assert run(specs, where, policy, 1120.0).time_s == unaware.time_s


@pytest.mark.promise("reproduce")
def test_what_suess_et_al_say_of_their_strategies() -> None:
    result, lines, good = varysched(None)
    assert good and len(result["statements"]) == 13
    assert any("constraint takes longer than banking" in line and "2.73" in line for line in lines)
    # (strategies, and variants) x governors x applications, every task run once in each
    energy = {row["mode"]: row["values"] for row in result["rows"] if row["case"] == "table 1"}
    assert len(result["rows"]) == 6 * 2 * 2 + len(energy)
    for name, values in energy.items():  # the powers follow from three columns, and fit a fourth
        bound = 1.0 if name != "VarySched" else 25.0
        assert abs(values["system_j"]["deviation_pct"]) < bound
