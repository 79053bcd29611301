"""EASY on the virtual clock against the published schedule of KTH-SP2, job by job.

Published: Gaussier, Glesser, Reis, Trystram, "Improving backfilling by using machine learning to
predict running times", SC'15: the schedule and the mean bounded slowdowns of four variants.
"""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from traces import trace

PUBLISHED = {
    ("fcfs", "requested"): "92.5765",
    ("sjbf", "requested"): "69.4054",
    ("fcfs", "exact"): "71.7224",
    ("sjbf", "exact"): "49.8477",
}
"""Mean bounded slowdown."""
MEAN_WAIT_S = "6836.87"
PER_TIMESTAMP = "92.6877"
"""The same with one look per instant, worked out by another program."""


def simulated(folder: Path, *options: str) -> tuple[dict[str, Any], Path]:
    rows, figures = folder / "jobs.csv", folder / "out.json"
    path = trace("KTH-SP2.recon-input.swf.gz")
    command = [sys.executable, "-m", "rms", "simulate", "--trace", str(path), "--policy", "easy"]
    command += ["--processors", "100", "--per-job", str(rows), "--json", str(figures), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return json.loads(figures.read_text()), rows


@pytest.mark.parametrize(("order", "estimates"), PUBLISHED)
@pytest.mark.promise("easy")
def test_the_four_published_means(tmp_path: Path, order: str, estimates: str) -> None:
    options = ("--order", order, "--estimates", estimates, "--passes", "per-event")
    found, _ = simulated(tmp_path, *options)
    assert found["jobs"] == 28481
    assert f"{found['mean_bounded_slowdown']:.4f}" == PUBLISHED[order, estimates]


@pytest.mark.promise("easy")
def test_every_wait_is_the_published_one(tmp_path: Path) -> None:
    found, rows = simulated(tmp_path, "--passes", "per-event")
    published = {}
    with gzip.open(trace("KTH-SP2.easy-result.swf.gz"), "rt") as file:
        for line in file:
            if not line.startswith(";"):
                fields = line.split()
                published[fields[0]] = float(fields[2])
    with rows.open() as file:
        waits = {r["job"]: float(r["start_s"]) - float(r["submit_s"]) for r in csv.DictReader(file)}
    assert len(waits) == len(published) == 28481
    assert {job for job in waits if waits[job] != published[job]} == set()
    assert f"{found['mean_wait_s']:.2f}" == MEAN_WAIT_S


def test_the_same_jobs_as_sacct_prints_them(tmp_path: Path) -> None:
    """The published schedule also comes out of accounting: a start of its own for each job."""
    lines = ["JobID|Submit|Start|ElapsedRaw|Timelimit|AllocNodes|State"]
    with gzip.open(trace("KTH-SP2.recon-input.swf.gz"), "rt") as file:
        for line in file:
            if not line.startswith(";"):
                job, submit, _, run, _, _, _, size, limit = line.split()[:9]
                at = 10**9 + int(submit)
                minutes, seconds = divmod(int(limit), 60)
                lines.append(f"{job}|{at}|{at}|{run}|{minutes}:{seconds:02d}|{size}|COMPLETED")
    log = tmp_path / "jobs.txt"
    log.write_text("\n".join([*lines, ""]))
    command = [sys.executable, "-m", "rms", "simulate", "--sacct", str(log), "--policy", "easy"]
    command += ["--processors", "100", "--json", "-"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=600)
    found = json.loads(done.stdout)
    assert found["jobs"] == 28481
    assert f"{found['mean_bounded_slowdown']:.4f}" == PUBLISHED["fcfs", "requested"]
    assert f"{found['mean_wait_s']:.2f}" == MEAN_WAIT_S


def test_one_look_per_instant(tmp_path: Path) -> None:
    found, _ = simulated(tmp_path, "--passes", "per-timestamp")
    assert f"{found['mean_bounded_slowdown']:.4f}" == PER_TIMESTAMP
