"""``/metrics``: Prometheus' text format 0.0.4, its figures, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from routed import METRICS_TOKEN, USERS_TOKEN, Routed

from rms.core.model.jobs import JobId

SAMPLE = re.compile(r'([a-z_]+)(?:{([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"})? (\S+)')
DASHBOARD = Path(__file__).parents[3] / "jobs" / "grafana.json"


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return each sample by name and label value; a family's lines follow its TYPE."""
    found: dict[tuple[str, str], float] = {}
    family, kind = "", ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram")
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert sample[1] in [family + part for part in parts]
            key = sample[1], sample[3] or ""
            assert key not in found
            found[key] = float(sample[4])
    return found


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
