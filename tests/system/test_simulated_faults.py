"""Worlds on a virtual clock (``scripts/simulate-faults``): whatever fails, what must hold does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT

SEEDS = ROOT / "tests" / "support" / "virtual" / "seeds.py"


def simulate(tmp_path: Path, *options: str) -> dict[str, object]:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, str(SEEDS), "--json", str(out), *options],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(out.read_text())
    return found


@pytest.mark.promise("seeds")
def test_the_fixed_seeds(tmp_path: Path) -> None:
    found = simulate(tmp_path, "--first", "0", "--seeds", "8", "--hours", "1", "--processes", "1")
    assert found["seeds"] == 8 and found["failed"] == []
    counted = found["counted"]
    assert isinstance(counted, dict)
    assert counted["kill"] and counted["process"] and counted["network"] and counted["resizes"]


@pytest.mark.promise("seeds")
@pytest.mark.promise("survives")
def test_the_fixed_seeds_of_jobs_with_copies(tmp_path: Path) -> None:
    options = "--first", "0", "--seeds", "6", "--hours", "0.5", "--processes", "1"
    found = simulate(tmp_path, "--survivors", *options)
    assert found["seeds"] == 6 and found["failed"] == []
    counted = found["counted"]
    assert isinstance(counted, dict)
    assert counted["kill"] and counted["host"]
    assert counted["rank killed"] and counted["keeper killed"] and counted["script killed"]


@pytest.mark.wide
def test_random_seeds_of_jobs_with_copies(tmp_path: Path) -> None:
    options = "--seeds", "100000", "--hours", "1", "--seconds", "180"
    assert simulate(tmp_path, "--survivors", *options)["failed"] == []


@pytest.mark.wide
def test_random_seeds(tmp_path: Path) -> None:
    found = simulate(tmp_path, "--seeds", "100000", "--hours", "4", "--seconds", "180")
    assert found["failed"] == []
