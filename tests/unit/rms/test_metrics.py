"""``/metrics``: Prometheus' text format 0.0.4, its figures, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from routed import METRICS_TOKEN, USERS_TOKEN, Routed, routed

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId, NodePower
from rms.core.policies import adjusted, named
from rms.daemon.store import context
from rms.wire.messages import DeviceEnergy, Metered

DASHBOARD = Path(__file__).parents[3] / "jobs" / "grafana.json"
SHARED = Cluster(
    ("n1",), (("cpu:0", "cpu:1"),), (NodePower(idle_w=20.0, static_w=40.0),), (10.0,)
).split()
POLICY = adjusted(named("easy"), placement={"part": "first-fit-shared"}).text


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return each sample by name and label values, as Prometheus' own parser reads them."""
    found: dict[tuple[str, str], float] = {}
    assert text.endswith("\n")
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert sample.name.startswith(family.name)
            names = context.JOB_LABELS if "job_id" in sample.labels else sample.labels
            key = sample.name, ",".join(sample.labels[name] for name in names)
            assert key not in found
            found[key] = sample.value
    return found


def scraped(server: Routed) -> dict[tuple[str, str], float]:
    return parsed(server.request("GET", "/metrics")[1].decode())


@pytest.mark.promise("metrics")
def test_queue_waits_energy_and_ends(server: Routed) -> None:
    runs = server.submit(nodes=[2, 2])
    for _ in range(2):
        server.submit(nodes=[2, 2])
    server.submit(hold=True)
    server.clock[0] += 5.0
    server.daemon.scripts.end(server.daemon.jobs[JobId(runs)], 0)
    server.ask("POST", "/cancel", {"id": "3"})
    status, body = server.request("GET", "/metrics")
    assert status == 200
    assert server.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(body.decode())
    jobs = {state: found["rms_jobs", state] for state in ("PENDING", "HELD", "RUNNING")}
    assert jobs == {"PENDING": 0, "HELD": 1, "RUNNING": 1}
    assert found["rms_jobs_ended_total", "CANCELLED"] == found["rms_nodes_free", ""] + 1 == 1
    assert found["rms_jobs_ended_total", "COMPLETED"] == 1
    assert found["rms_wait_seconds_bucket", "1.0"] == 1
    assert found["rms_wait_seconds_count", ""] == 2 == found["rms_wait_seconds_bucket", "10.0"]
    assert found["rms_wait_seconds_sum", ""] == 5.0
    energy_j = server.ask("GET", "/books")[1]["energy"]["cluster_j"]
    assert found["rms_energy_joules", "model"] == energy_j > 0
    assert found["rms_power_watts", "model"] == 10.0  # two nodes of 5 W
    own, prometheus = f"Bearer {USERS_TOKEN}", f"Bearer {METRICS_TOKEN}"
    assert server.request("GET", "/metrics", shown=own, over_tcp=True)[0] == 401
    assert server.request("GET", "/metrics", shown=prometheus, over_tcp=True)[0] == 200
    assert server.request("GET", "/jobs", shown=prometheus, over_tcp=True)[0] == 401
    server.where = "10.0.0.1", 80
    assert server.request("GET", "/metrics", shown=prometheus)[0] == 401
    shown = {name for panel in json.loads(DASHBOARD.read_text())["panels"] for name in names(panel)}
    assert shown <= {name for name, _ in found}


def names(panel: dict[str, Any]) -> set[str]:
    """Return the metrics that a panel shows."""
    return {name for each in panel["targets"] for name in re.findall(r"rms_[a-z_]+", each["expr"])}


# --- energy of jobs ------------------------------------------------------------------------------


def report(server: Routed, number: int, joules: float, at_s: float) -> None:
    server.clock[0] = at_s
    devices = [DeviceEnergy("package-0", "rapl", joules, 0.0, joules / 100.0)] if number else []
    server.daemon.meters.take_report(Metered("n1", "a", number, at_s, "boot", devices))


def counters(found: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {key: value for key, value in found.items() if key[0].endswith("_joules_total")}


@pytest.mark.promise("metrics")
def test_energy_of_jobs_by_source_never_falls_and_leaves_after_a_time(tmp_path: Path) -> None:
    with routed(tmp_path, SHARED, POLICY) as server:
        begun_s = server.clock[0]
        odd = 'a "b"\\c'
        one, two = server.submit(job_name=odd, account="physics"), server.submit()
        user = server.daemon.jobs[JobId(one)].submission.user
        last: dict[tuple[str, str], float] = {}
        report(server, 0, 0.0, begun_s)
        report(server, 1, 0.0, begun_s)
        for second in range(1, 8):
            report(server, second + 1, 50.0 * second, begun_s + second)
            for ahead_s in (0.0, 0.5):  # the model's energy of half a second will be replaced
                server.clock[0] = begun_s + second + ahead_s
                found = scraped(server)
                now = counters(found)
                assert now.keys() >= last.keys()
                assert all(now[key] >= value for key, value in last.items())
                last = now
        rapl_j = found["rms_job_energy_joules_total", f"{one},{odd},{user},physics,rapl"]
        model_j = found["rms_job_energy_joules_total", f"{one},{odd},{user},physics,model"]
        (row,) = [row for row in server.ask("GET", "/jobs")[1] if row["id"] == one]
        measured = {part["source"]: part for part in row["energy"]}["rapl"]
        assert rapl_j == pytest.approx(measured["joules"]) and rapl_j > 0.0 == model_j
        errors = {key[1]: value for key, value in found.items() if "uncertainty" in key[0]}
        own = f"{one},{odd},{user},physics,rapl"
        assert errors[own] == pytest.approx(measured["uncertainty_j"]) and errors[own] > 0.0
        assert not any(key.endswith("model") for key in errors)  # unknown, not 0
        owners = {key[1]: value for key, value in found.items() if "node_energy" in key[0]}
        assert owners.keys() == {"jobs", "tasks", "idle", "off", "boot"}
        assert sum(owners.values()) == pytest.approx(350.0)
        jobs_j = sum(value for key, value in found.items() if "job_energy_joules" in key[0])
        assert jobs_j == pytest.approx(owners["jobs"])

        server.daemon.scripts.end(server.daemon.jobs[JobId(one)], 0)
        report(server, 9, 400.0, begun_s + 8.0)
        assert any(key[1].startswith(f"{one},") for key in scraped(server))
        server.clock[0] += context.JOBS_KEPT_S
        left = {key[1].split(",")[0] for key in scraped(server) if "job_energy" in key[0]}
        assert left == {two}


def test_without_a_meter_the_models_energy_counts_at_once(server: Routed) -> None:
    job = server.submit()
    server.submit(hold=True)
    server.clock[0] += 10.0
    found = {key: value for key, value in scraped(server).items() if "job_energy" in key[0]}
    ((name, labels),) = found
    assert name == "rms_job_energy_joules_total"
    assert (labels.split(",")[0], labels.split(",")[-1]) == (job, "model")
    assert found[name, labels] == 50.0


def test_a_meter_that_was_silent_lets_no_counter_fall(tmp_path: Path) -> None:
    with routed(tmp_path, SHARED, POLICY) as server:
        begun_s = server.clock[0]
        server.submit()
        report(server, 0, 0.0, begun_s)
        report(server, 1, 0.0, begun_s)
        report(server, 2, 50.0, begun_s + 1.0)
        server.clock[0] = begun_s + 60.0
        silent = counters(scraped(server))
        assert sum(silent.values()) > 2 * 1000.0
        report(server, 3, 3000.0, begun_s + 60.0)
        after = counters(scraped(server))
        assert all(after[key] >= value for key, value in silent.items())


def test_the_number_of_jobs_with_metrics_is_bounded(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "MOST_JOBS", 3)
    for number in range(1, 6):
        job = server.submit()
        server.clock[0] += 1.0
        if number < 5:
            server.daemon.scripts.end(server.daemon.jobs[JobId(job)], 0)
    jobs = {key[1].split(",")[0] for key in scraped(server) if "job_energy" in key[0]}
    assert jobs == {"5", "4", "3"}
