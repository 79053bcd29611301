"""scripts/gpu as a whole, on stand-ins for CuPy and NVML and a fake nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_on_host import compiler
from device_runs import environment
from processes import DEADLINE_S, ROOT

SMI = """#!/bin/sh
while true; do
    date '+%Y/%m/%d %H:%M:%S.%3N, 0, 150.00'
    sleep 0.1
done
"""
METERS = {"nvml", "nvidia-smi"}


@pytest.mark.wide
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_energy_by_both_meters_in_one_call(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    env = os.environ | environment(1) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / "scripts" / "gpu"), "--out", str(tmp_path)]
    command += ["--grid", "16", "12", "4", "--steps", "400"]
    command += ["--skip", "copies", "tests", "sanitizer", "tune", "ladder", "resizes", "verify"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "gpu-stand-in-gpu.json").read_text())
    assert set(found["job"]["power"]) == METERS
    for row in found["job"]["power"].values():
        assert row["energy_j"] > 0 and row["j_per_1e9_updates"] > 0 and row["uncertainty_j"] > 0
    table = (tmp_path / "gpu-stand-in-gpu.md").read_text()
    assert "j_per_1e9_updates" in table
