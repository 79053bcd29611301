"""Meters on one machine: a real daemon and its agent, fed by stand-ins for the hardware."""

from __future__ import annotations

from pathlib import Path

from daemon import closing
from metered import MeteredRms
from powercap import last_known


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
