"""What scripts/gpu measures beside each other, on a stand-in for NVML and a fake nvidia-smi."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from device_runs import stand_in_nvml
from processes import ROOT

SMI = """#!/bin/sh
while true; do
    date '+%Y/%m/%d %H:%M:%S.%3N, 0, 150.00'
    sleep 0.05
done
"""


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    pynvml = stand_in_nvml(monkeypatch)
    import gpu_power

    begun_s = time.time()
    pynvml.gpus.append(
        pynvml.Gpu(watts=lambda _: 200.0, joules=lambda at_s: 200.0 * (at_s - begun_s))
    )
    return gpu_power


def measured(power: ModuleType, seconds: float) -> tuple[dict[str, Any], float]:
    """Return the energies of a time, for 1e9 updates, and the time."""
    with power.Meters() as meters:
        time.sleep(0.2)
        begun_s = time.time()
        time.sleep(seconds)
        end_s = time.time()
        time.sleep(0.2)
    return meters.per_update(begun_s, end_s, 10**9), end_s - begun_s


def test_all_meters_side_by_side(power: ModuleType) -> None:
    rows, seconds = measured(power, 1.0)
    watts = {"nvml-counter": 200, "nvml-power": 200, "nvml-power (instant)": 200, "nvidia-smi": 150}
    assert {name: row["mean_w"] for name, row in rows.items()} == pytest.approx(watts, rel=0.05)
    for name, row in rows.items():
        assert row["energy_j"] == pytest.approx(watts[name] * seconds, rel=0.05)
        assert row["j_per_1e9_updates"] == pytest.approx(row["energy_j"])
        assert row["readings"] >= 2
    assert rows["nvml-counter"]["short"]  # behind by up to 0.1 s of 1 s


def test_a_gpu_without_a_counter(power: ModuleType) -> None:
    import pynvml

    pynvml.gpus[0].refuses["nvmlDeviceGetTotalEnergyConsumption"] = 3
    rows, _ = measured(power, 0.1)
    assert rows["nvml-counter"] == {"error": "no energy counter on this GPU"}


def test_without_nvml_nvidia_smi_goes_on(
    power: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    rows, _ = measured(power, 0.3)
    assert "expected the package nvidia-ml-py" in rows["nvml-power"]["error"]
    assert rows["nvidia-smi"]["mean_w"] == 150.0


def test_a_window_too_short_for_a_sensor_is_marked(power: ModuleType) -> None:
    """A reading that comes after the kernel has ended: in between there was idle power only."""
    readings = [(n * 0.1, 400.0 if n >= 62 else 60.0) for n in range(100)]
    found = power.under(readings, 5.0, 6.0, 1.0)
    assert found["energy_j"] == pytest.approx(60.0) and found["short"]
    assert found["energy_j"] + found["uncertainty_j"] > 400.0
    steady = [(n * 0.1, 400.0) for n in range(1000)]
    assert not power.under(steady, 5.0, 65.0, 1.0)["short"]


RAMP = [(10.0, 100.0), (12.0, 300.0), (16.0, 140.0)]


@pytest.mark.parametrize(
    ("start_s", "end_s", "joules"),
    [
        (10.0, 16.0, 400.0 + 880.0),  # both trapezoids, whole
        (11.0, 14.0, 250.0 + 520.0),  # 200..300 W in 1 s, 300..220 W in 2 s
        (13.0, 14.0, 240.0),  # within one trapezoid: 260..220 W
        (8.0, 11.0, 200.0 + 150.0),  # held before the first reading
        (15.0, 19.0, 160.0 + 420.0),  # held after the last
        (0.0, 2.0, 200.0),  # all before
        (20.0, 22.0, 280.0),  # all after
        (12.0, 12.0, 0.0),
        (14.0, 11.0, 0.0),  # reversed: a clock that stepped back books nothing
        (20.0, 8.0, 0.0),
    ],
)
def test_energy_by_hand(power: ModuleType, start_s: float, end_s: float, joules: float) -> None:
    assert power.energy_under(RAMP, start_s, end_s) == pytest.approx(joules, rel=1e-14)
    assert power.energy_under(RAMP[::-1], start_s, end_s) == pytest.approx(joules, rel=1e-14)
    split_s = (start_s + end_s) / 2
    if start_s < end_s:
        halves = [
            power.energy_under(RAMP, *span) for span in ((start_s, split_s), (split_s, end_s))
        ]
        assert sum(halves) == pytest.approx(joules, rel=1e-12)


def test_a_step_at_one_time(power: ModuleType) -> None:
    assert power.energy_under([(0.0, 10.0), (1.0, 10.0), (1.0, 30.0)], 0.0, 2.0) == 40.0
