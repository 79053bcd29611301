"""Meters on nodes of a real Slurm: a step of agents, of which one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from daemon import closing
from powercap import Counters, agents, last_known
from slurm_bed import Slurm
from slurm_daemon import Pilot, SlurmRms


def sources(rms: Pilot | SlurmRms) -> list[str]:
    return [row["power_source"] for row in rms.get("/nodes")]


@pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)
def test_a_killed_agent_of_a_pilot_is_started_again_on_its_node(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Metered(Pilot):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "RMS_POWERCAP": str(tmp_path)}

    counters = Counters(tmp_path, 40.0)
    with closing(Metered(slurm, 2)) as pilot:
        pilot.until(lambda: sources(pilot) == ["rapl", "rapl"], "readings of both nodes")
        with counters:  # it stood still until its first reading was known
            before = agents(pilot.mark)
            assert len(before) == 2
            killed, other = sorted(before)
            os.kill(before[killed], signal.SIGKILL)
            pilot.until(lambda: len(agents(pilot.mark)) == 1, "its end")
            pilot.until(lambda: len(agents(pilot.mark)) == 2, "another agent")
            after = agents(pilot.mark)
            assert after[other] == before[other] and after[killed] != before[killed]
        for pid in after.values():
            package = last_known(pilot, pid)["package-0"]
            assert package.joules == pytest.approx(counters.joules, rel=1e-9)
            assert package.unseen_s == 0.0
        assert not [line for line in pilot.said().splitlines() if "by the model" in line]


@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
def test_nodes_of_a_job_are_read_while_it_holds_them(slurm: Slurm, tmp_path: Path) -> None:
    class Metered(SlurmRms):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "RMS_POWERCAP": str(tmp_path)}

    with Counters(tmp_path, 40.0), closing(Metered(slurm)) as rms:
        job = rms.submit("sleep 1000", "--nodes", "2", "--mode", "fixed")
        rms.until(lambda: rms.row(job)["state"] == "RUNNING", "a running job")
        rms.until(lambda: sources(rms).count("rapl") == 2, "readings of its nodes")
        rms.ask("cancel", job)
        rms.over(job)
        row = rms.until(lambda: (found := rms.row(job))["summary"] and found, "its last line")
        assert row["summary"].startswith(f"job {job} CANCELLED: ") and " rapl" in row["summary"]
        assert Path(row["output"]).read_text().endswith(f"rms: {row['summary']}\n")
        rms.nothing_left()
