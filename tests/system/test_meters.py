"""Meters on one machine: a real daemon and its agent, fed by stand-ins for the hardware."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from daemon import LocalRms, closing
from powercap import RANGE_UJ, Counters, agents, last_known
from processes import RMS

NVIDIA_SMI = """#!/bin/sh
while true; do
    date '+%Y/%m/%d %H:%M:%S.%3N, 0, 75.00'
    sleep 0.2
done
"""
CLUSTER = """name = "cores and a device"
[[nodes]]
name = "n[1-2]"
cores = 1
power = { idle_w = 3.0, static_w = 5.0, dynamic_w = 7.0 }
[[nodes]]
name = "g1"
gpus = 1
power = { idle_w = 10.0, static_w = 20.0, dynamic_w = 30.0 }
"""


class MeteredRms(LocalRms):
    """Serves two cores and a device of 75 W on a machine whose packages are in ``powercap``."""

    def prepare(self) -> None:
        self.cluster = self.folder / "cluster.toml"
        self.powercap = self.folder / "powercap"
        self.counters = Counters(self.powercap, 40.0, 25.0, begun_uj=RANGE_UJ - 50_000_000)
        self.cluster.write_text(CLUSTER)
        program = self.folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(NVIDIA_SMI)
        program.chmod(0o755)

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "RMS_POWERCAP": str(self.powercap)}

    def serve_command(self) -> list[str]:
        where = ["--state", str(self.state), "--cluster", str(self.cluster)]
        return [*RMS, "serve", *where, *self._options]

    def agent(self) -> int:
        """Return the agent, once there is one."""
        return int(self.until(lambda: agents(self._mark).get(""), "an agent"))

    def sources(self) -> list[str]:
        return [row["power_source"] for row in self.get("/nodes")]


@pytest.mark.promise("meters")
def test_what_meters_count_is_what_is_known_though_agent_and_daemon_are_killed() -> None:
    """The packages' counters wrap around on the way; the device's power is integrated."""
    begun_s = time.time()
    with closing(MeteredRms(3)) as rms:
        rms.until(lambda: rms.sources() == ["rapl", "rapl", "nvidia-smi"], "readings of all nodes")
        read_s = time.time()
        with rms.counters:  # they stood still until their first reading was known
            job = rms.submit("sleep 3", "--nodes", "2")
            killed = rms.agent()
            os.kill(killed, signal.SIGKILL)
            rms.until(lambda: rms.agent() != killed, "another agent")
            rms.end(signal.SIGKILL)
            rms.start()
            assert rms.over(job) == ["COMPLETED"]
        ended_s, known = time.time(), last_known(rms, rms.agent())
        energy = rms.get("/books")["energy"]
    for n, counted_uj in enumerate(rms.counters.counted_uj):
        package = known[f"package-{n}"]
        assert package.joules == pytest.approx(counted_uj * 1e-6, rel=1e-9)
        assert package.unseen_s == 0.0 and package.source == "rapl"
        assert counted_uj > 60_000_000  # more than was left until it wrapped around
    gpu = known["gpu-0"]
    assert gpu.unseen_s > 0.0  # from the kill to the next reading
    measured_s = gpu.joules / 75.0
    assert ended_s - read_s < measured_s + gpu.unseen_s < time.time() - begun_s
    parts = sum(energy[f"{part}_j"] for part in ("busy", "idle", "off", "boot"))
    assert parts == pytest.approx(energy["cluster_j"], rel=1e-9)


def test_the_users_command_and_a_recording_are_meters_too(tmp_path: Path) -> None:
    recording = tmp_path / "recording.csv"
    recording.write_text("at_s,device,joules\n0,package-0,0\n1000,package-0,30000\n")
    meters = ["--meters", f"replay:{recording}", "--meter-command", "echo gpu-0 7 J; exec sleep 60"]
    with closing(MeteredRms(3, *meters)) as rms:
        rms.until(lambda: rms.sources()[0] == "replay", "readings of the recording")
        known = last_known(rms, rms.agent())
    assert set(known) == {"package-0", "gpu-0"}
    assert known["gpu-0"].source == "command" and known["gpu-0"].joules == 0.0
    assert known["package-0"].joules > 0.0
