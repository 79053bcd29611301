"""Under bare mpirun a shrink by merge that would cut a launch in two was always rolled back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, Run

from dmr.resize.strategy import can_merge

PROGRAM = """
import numpy as np
from mpi4py import MPI
import dmr

spec = dmr.FieldSpec((12,), "f8", lambda box: np.arange(*box.start, *box.stop))
runtime = dmr.Runtime.here(MPI.COMM_WORLD)
plan = dmr.Plan(strategy="merge")
with dmr.malleable(runtime, {"x": spec}, plan, build=lambda run: None) as run:
    for _ in run.loop(12):
        run.fields["x"].interior[...] += 1.0
    whole = run.fields["x"].gather()
    if run.comm.rank == 0:
        assert (whole == np.arange(12, 24)).all()
        print([(r.from_ranks, r.to_ranks, r.strategy) for r in run.resizes])
"""


def test_it_goes_by_spawn(run: Run, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = (MPIEXEC, "-n", "2", sys.executable, "program.py")
    done = run(*command, env={"DMR_RESIZE_AT": "2:1,5:2,8:1", "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[(2, 1, 'spawn'), (1, 2, 'merge'), (2, 1, 'merge')]" in done.stdout, done.stdout
    assert "rolled back" not in done.stdout


@pytest.mark.parametrize(
    ("ranks", "can"), [(1, False), (2, True), (3, False), (5, True), (6, True), (9, True)]
)
def test_a_world_grows_to_any_size_and_shrinks_by_whole_launches(ranks: int, can: bool) -> None:
    assert can_merge(ranks, [(0, 2), (4, 3)]) == can
