"""Engine slurm-pilot under LessConsume: jobs share the nodes of the allocation."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import ROOT, program
from slurm_bed import Slurm
from slurm_daemon import bare, piloted

PACED = f"{' '.join(program('paced'))} {ROOT / 'mpdata' / '__main__.py'}"
SMALL = "--case random --grid 24 20 8 --backend numpy --every 2 --steps 300"
WAITS = "while ! test -e go; do sleep 0.1; done"

pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.mark.promise("slurm-pilot", "shared-nodes")
def test_jobs_share_the_nodes_of_an_allocation(slurm: Slurm, tmp_path: Path) -> None:
    bits = bare(tmp_path, *SMALL.split())
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        'name = "bed"\n[[nodes]]\nname = "n[1-4]"\nslots = 2\nmemory_bandwidth_gb_s = 10.0\n'
        "power = { idle_w = 10.0, static_w = 30.0 }\n"
    )
    policy = str(ROOT / "jobs" / "less-consume.toml")
    more = ("--ntasks-per-node", "2", "--cluster", str(cluster), "--policy", policy)
    with piloted(slurm, 2, *more) as pilot:
        greedy = pilot.submit(WAITS, "--memory-bandwidth", "9")
        pilot.until(lambda: pilot.row(greedy)["state"] == "RUNNING", "a job that runs")
        run = f"PACE_S=0.1 srun {PACED} run {SMALL}"
        options = ("--nodes", "1-3", "--preferred", "2", "--mode", "malleable")
        job = pilot.submit(run, *options, "--memory-bandwidth", "2")
        pilot.running(job)
        first, second = slurm.hosts(pilot.allocation)
        assert pilot.row(greedy)["nodes"] == [f"{first}/0"]
        assert pilot.row(job)["nodes"] == [f"{second}/0", f"{second}/1"]
        states = {node["name"]: node["state"] for node in pilot.ask("nodes")}
        assert states == {first: "mixed", second: "allocated"}
        pilot.resized(job, 3)
        assert pilot.row(job)["nodes"] == [f"{first}/1", f"{second}/0", f"{second}/1"]
        pilot.hurry()
        assert pilot.over(greedy, job) == ["COMPLETED"] * 2
        assert pilot.row(job)["answer"] == bits
        pilot.books_balance()
