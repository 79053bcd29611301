"""Measured power: stand-ins for nvidia-smi and for NVML, and what the daemon books."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from daemon import LocalRms, closing
from device_runs import environment

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
GPU = """[[nodes]]
name = "g1"
gpus = 1
power = { idle_w = 10.0, static_w = 20.0, dynamic_w = 30.0 }
"""


class OneGpu(LocalRms):
    """A node with a GPU of 75 W, which a stand-in for nvidia-smi or for NVML reads."""

    nodes_text = GPU

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(1, *([] if source == "nvidia-smi" else ["--meters", "nvml"]))

    def environment(self) -> dict[str, str]:
        if self.source == "nvidia-smi":
            smi = self.folder / "nvidia-smi"
            smi.write_text(STAND_IN)
            smi.chmod(0o755)
            return super().environment() | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        (self.folder / "gpus.json").write_text('[{"idle_w": 75.0, "busy_w": 75.0}]')
        return super().environment() | environment(1, STAND_IN_NVML=str(self.folder))


@pytest.mark.promise("books")
@pytest.mark.parametrize("source", ["nvidia-smi", "nvml-counter"])
def test_a_device_is_billed_by_what_is_read(source: str) -> None:
    begun_s = time.time()
    with closing(OneGpu(source)) as rms:
        rms.until(lambda: rms.get("/nodes")[0]["power_source"] == source, "a reading")
        body = "echo $CUDA_VISIBLE_DEVICES; sleep 2"
        job = rms.rms("submit", "--", "sh", "-c", body).stdout.strip()
        assert rms.over(job) == ["COMPLETED"]

        def billed() -> bool:  # at what was read, 75 W; the model's until the last reading is in
            row = rms.row(job)
            read = row["energy_source"] == rms.books()["energy"]["power_source"] == source
            return bool(read and row["energy_j"] >= 0.97 * 75.0 * (row["end_s"] - row["start_s"]))

        rms.until(billed, "bill of all of the job")
        row, books, output = rms.row(job), rms.books()["energy"], rms.output(job)
    assert output == "0\n"
    # What is read of a time that is in part the job's is split by what the model says of it.
    assert row["energy_j"] <= books["cluster_j"] <= 75.0 * (time.time() - begun_s)
    parts = sum(books[f"{part}_j"] for part in ("busy", "idle", "off", "boot"))
    assert parts == pytest.approx(books["cluster_j"], rel=1e-9)
    assert json.dumps(books)


class TwoNodes(LocalRms):
    nodes_text = GPU.replace('"g1"\ngpus = 1', '"n[1-{}]"')


def test_a_scripts_power_counts_under_a_cap(tmp_path: Path) -> None:
    (tmp_path / "capped.toml").write_text(
        'placement = { part = "rms.studies.chiesi:PowerSlot", cap_w = 320.0, per = "rack" }\n'
    )
    with closing(TwoNodes(2, "--policy", str(tmp_path / "capped.toml"), "--grace", "1")) as rms:
        first, second = (rms.submit("#RMS --power=200\nsleep 60") for _ in range(2))
        (tmp_path / "over.sh").write_text("#!/bin/sh\n#RMS --power=400\nsleep 60\n")
        done = rms.rms("submit", str(tmp_path / "over.sh"))
        assert done.returncode == 2 and "the cap is 320 W" in done.stderr
        assert rms.row(first)["state"] in ("CONFIGURING", "RUNNING")
        assert rms.row(second)["state"] == "PENDING"
        assert rms.row(second)["reason"].startswith("PowerCap")
