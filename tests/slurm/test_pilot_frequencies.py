"""Engine slurm-pilot: frequencies that a policy decides, set by a process on each node."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cpufreq import CPUFREQ_VARIABLE, found_again, limits, profile_of, tree
from slurm_bed import Slurm
from slurm_daemon import piloted

FOUND = (800, 2000)
WAITS = "while ! test -e go; do sleep 0.1; done"
POLICY = 'admission = { part = "easy" }\nfrequency = { part = "optimal-operating-point" }\n'

pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.mark.promise("slurm-frequencies")
def test_a_node_follows_its_jobs_and_is_left_as_found(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node: those of the test bed are one machine, whose frequencies one process has."""
    folder = tree(tmp_path / "cpufreq", {n: (n,) for n in sorted(os.sched_getaffinity(0))})
    monkeypatch.setitem(slurm.environment, CPUFREQ_VARIABLE, str(folder))
    cluster, policy = tmp_path / "cluster.toml", tmp_path / "clocked.toml"
    cluster.write_text(
        'name = "bed"\n[[nodes]]\nname = "n[1-4]"\nfrequencies = [0.8, 1.0, 1.5, 2.0]\n'
        "power = { idle_w = 10.0, static_w = 30.0 }\n"
    )
    policy.write_text(POLICY)
    known = profile_of(tmp_path / "p.json", best=1000)

    def set_to(mhz: tuple[int, int]) -> bool:
        return set(limits(folder)) == {mhz}

    with piloted(slurm, 1, "--cluster", str(cluster), "--policy", str(policy)) as pilot:
        job = pilot.submit(WAITS, "--profile", str(known))
        pilot.until(lambda: set_to((1000, 1000)), "cores at 1 GHz")
        assert pilot.row(job)["frequency"] == 0.5
        pilot.end(signal.SIGKILL)
        found_again(folder)
        pilot.start()
        pilot.until(lambda: set_to((1000, 1000)), "cores at 1 GHz again")
        pilot.hurry()
        assert pilot.over(job) == ["COMPLETED"]
        pilot.until(lambda: set_to(FOUND), "cores as they were found")
