"""A job with dates or text ended at its first checkpoint; one with raw bytes was never resized."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import MPIEXEC, Run

PROGRAM = """
from pathlib import Path
import numpy as np
from mpi4py import MPI
import dmr

comm = MPI.COMM_WORLD
begin, end = dmr.split_range(12, comm.size, comm.rank)
dates = np.arange(begin, end).astype("M8[s]")
names = np.array([f"n{n}" for n in range(begin, end)], "U5")
weights = np.full(64, comm.rank + 1, "u1").view("g")
weights[...] = np.arange(weights.size)
fields = {
    "dates": dmr.adapt(dates, (12,)),
    "names": dmr.adapt(names, (12,)),
    "weights": dmr.adapt(weights, weights.shape, split=(), constant=True),
    "raw": dmr.FieldSpec(
        (12,), "V16", lambda box: np.arange(2 * box.start[0], 2 * box.stop[0]).view("V16"), halo=1
    ),
}
plan = dmr.Plan(checkpoint=dmr.Schedule(Path("saved"), 2), restart=True)
with dmr.malleable(comm, fields, plan) as run:
    for step in run.loop(8):
        run.fields["dates"].interior[...] += np.timedelta64(1, "m")
        run.fields["raw"].exchange("periodic")
    values = {name: run.fields[name].gather() for name in ("dates", "names", "raw")}
    if run.comm.rank == 0:
        assert (values["dates"] == np.arange(480, 492).astype("M8[s]")).all()
        assert values["names"].tolist() == [f"n{n}" for n in range(12)]
        assert (values["raw"].view("i8") == np.arange(24)).all()
        print([r.to_ranks for r in run.resizes], "right")
"""


def test_dates_text_and_raw_bytes_are_resized_saved_and_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for ranks, script, resized in (("2", "5:3,7:1", "[3, 1]"), ("3", "", "[3]")):
        command = (MPIEXEC, "-n", ranks, sys.executable, "program.py")
        done = run(*command, env={"DMR_RESIZE_AT": script})
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{resized} right" in done.stdout, done.stdout
        assert "not written" not in done.stdout and "rolled back" not in done.stdout
    assert "restarted from saved/checkpoint-0000000006.h5 at step 6" in done.stdout
