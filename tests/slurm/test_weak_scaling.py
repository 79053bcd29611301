"""As many cells on each node, more and more nodes: the answer is that of one rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from slurm_bed import NODES, Slurm
from slurm_daemon import MPIEXEC, bare

STEPS = 20


@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
@pytest.mark.promise("slurm-weak")
def test_a_grid_that_grows_with_the_nodes_has_the_bits_of_one_rank(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = slurm.allocate(f"--nodes={NODES}")
    hosts, place = slurm.hosts(job), slurm.folder / "tmp"
    for nodes in (1, 2, NODES):
        grid = (24, 20 * nodes, 8)
        case = ["--case", "random", "--seed", "7", "--grid", *map(str, grid), "--steps", str(STEPS)]
        slurm(
            *[MPIEXEC, "-launcher", "slurm", "-hosts", ",".join(hosts[:nodes]), "-ppn", "1"],
            *["-n", str(nodes), sys.executable, "-m", "mpdata", "run", *case],
            *["--json", f"weak-{nodes}.json"],
            SLURM_JOB_ID=job,
            SLURM_OVERLAP="1",
        )
        found = json.loads((place / f"weak-{nodes}.json").read_text())
        assert found["ranks"] == nodes and found["steps"] == STEPS
        assert found["grid"] == list(grid)
        assert found["sha256"] == bare(tmp_path, *case)
        assert found["mass_final"] == pytest.approx(found["mass_initial"], rel=1e-12)
