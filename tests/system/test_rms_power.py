"""Measured power: stand-ins for nvidia-smi and for NVML, and what the daemon books."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from device_runs import environment
from processes import DEADLINE_S, started

from rms.client.connection import ServerError, ask

STAND_IN = f"""#!{sys.executable}
# Prints what a sensor read every 0.2 s, however late this process is let run.
import time
at_s = time.time()
while True:
    while at_s <= time.time():
        stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(at_s))
        print(f"{{stamp}}.{{int(at_s % 1 * 1000):03d}}, 0, 75.00", flush=True)
        at_s += 0.2
    time.sleep(0.2)
"""
CLUSTER = """name = "one device"
[[nodes]]
name = "g1"
gpus = 1
power = { idle_w = 10.0, static_w = 20.0, dynamic_w = 30.0 }
"""


@pytest.mark.promise("books")
@pytest.mark.parametrize("source", ["nvidia-smi", "nvml-counter"])
def test_a_device_is_billed_by_what_is_read(tmp_path: Path, source: str) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    env, meters = with_gpu(tmp_path, source)
    with tempfile.TemporaryDirectory(prefix="rms-") as state:
        server = f"unix:{state}/socket"
        env["RMS_SERVER"] = server
        command = [sys.executable, "-m", "rms"]
        serve = [*command, "serve", "--state", state, "--cluster", str(tmp_path / "c.toml")]
        begun_s = time.time()
        with started([*serve, *meters], env=env, cwd=tmp_path):
            wait_for(server, source)
            submit = [
                *command,
                "submit",
                "--wait",
                "--",
                "sh",
                "-c",
                "echo $CUDA_VISIBLE_DEVICES; sleep 2",
            ]
            with started(submit, env=env, cwd=tmp_path) as job:
                assert job.wait(DEADLINE_S) == 0
            row, books = settled(server)
    most_j = 75.0 * (time.time() - begun_s)
    assert (tmp_path / "rms-1.out").read_text().startswith("0\nrms: job 1 COMPLETED: ")
    assert row["energy_source"] == books["power_source"] == source
    # What is read of a time that is in part the job's is split by what the model says of it.
    assert row["energy_j"] <= books["cluster_j"] <= most_j
    parts = sum(books[f"{part}_j"] for part in ("busy", "idle", "off", "boot"))
    assert parts == pytest.approx(books["cluster_j"], rel=1e-9)
    assert json.dumps(books)


def settled(server: str) -> tuple[Any, Any]:
    """Return job 1 and the books once all of it is billed at what was read, 75 W."""
    until = time.monotonic() + DEADLINE_S
    while True:
        (row,) = ask(Any, server, "GET", "/jobs")
        least_j = 75.0 * (row["end_s"] - row["start_s"])
        if row["energy_j"] >= 0.97 * least_j:
            return row, ask(Any, server, "GET", "/books")["energy"]
        assert time.monotonic() < until, (row["energy_j"], least_j)
        time.sleep(0.1)


def with_gpu(folder: Path, source: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment of a machine with a GPU of 75 W, and how the daemon is to read it."""
    if source == "nvidia-smi":
        smi = folder / "nvidia-smi"
        smi.write_text(STAND_IN)
        smi.chmod(0o755)
        return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}, []
    (folder / "gpus.json").write_text('[{"idle_w": 75.0, "busy_w": 75.0}]')
    return os.environ | environment(1, STAND_IN_NVML=str(folder)), ["--meters", "nvml"]


def wait_for(server: str, source: str = "model") -> None:
    """Wait until the daemon answers, and the power of its nodes is from a source."""
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            nodes = ask(Any, server, "GET", "/nodes")
        except ServerError:
            nodes = []
        if nodes and all(source in node["power_source"] for node in nodes):
            return
        assert time.monotonic() < until, nodes
        time.sleep(0.05)


def test_a_scripts_power_counts_under_a_cap(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER.replace('"g1"\ngpus = 1', '"n[1-2]"'))
    (tmp_path / "capped.toml").write_text(
        'placement = { part = "rms.studies.chiesi:PowerSlot", cap_w = 320.0, per = "rack" }\n'
    )
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#RMS --power=200\nsleep 60\n")
    (tmp_path / "over.sh").write_text("#!/bin/sh\n#RMS --power=400\nsleep 60\n")
    with tempfile.TemporaryDirectory(prefix="rms-") as state:
        server = f"unix:{state}/socket"
        env = {**os.environ, "RMS_SERVER": server}
        command = [sys.executable, "-m", "rms"]
        serve = [*command, "serve", "--state", state, "--cluster", "c.toml", "--grace", "1"]
        with started([*serve, "--policy", "capped.toml"], env=env, cwd=tmp_path):
            wait_for(server)
            for script, status in (("job.sh", 0), ("job.sh", 0), ("over.sh", 2)):
                submit = [*command, "submit", script]
                options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
                done = subprocess.run(submit, env=env, cwd=tmp_path, **options)
                assert done.returncode == status, done.stderr
            assert "the cap is 320 W" in done.stderr
            rows = ask(Any, server, "GET", "/jobs")
            ask(Any, server, "POST", "/shutdown", {})
    first, second = rows
    assert first["state"] in ("CONFIGURING", "RUNNING") and second["state"] == "PENDING"
    assert second["reason"].startswith("PowerCap")
