"""Meters on one machine: a real daemon and its agent, fed by stand-ins for the hardware."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from daemon import closing
from metered import MeteredRms
from powercap import last_known


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
            rms.until(lambda: rms.sources() == ["rapl", "rapl", "nvidia-smi"], "readings again")
            again_s = time.time()  # the last reading may be of any time after this
            assert rms.over(job) == ["COMPLETED"]
            # Readings say whole seconds: the last one is of after that once two more have passed.
            rms.until(lambda: time.time() > again_s + 2.0, "a later reading")
        known = last_known(rms, rms.agent())
        energy = rms.get("/books")["energy"]
    for n, counted_uj in enumerate(rms.counters.counted_uj):
        package = known[f"package-{n}"]
        assert package.joules == pytest.approx(counted_uj * 1e-6, rel=1e-9)
        assert package.unseen_s == 0.0 and package.source == "rapl"
        assert counted_uj > 60_000_000  # more than was left until it wrapped around
    gpu = known["gpu-0"]
    assert gpu.unseen_s > 0.0  # from the kill to the next reading
    measured_s = gpu.joules / 75.0
    assert again_s - read_s < measured_s + gpu.unseen_s < time.time() - begun_s
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
