"""A checkpoint written before large integers and edges had other forms was read with wrong data."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on
from sentences import one_sentence

import dmr
from dmr.checkpoint.format import FORMAT


@pytest.mark.parametrize("version", [0, FORMAT + 1])
def test_it_is_refused_in_one_sentence(tmp_path: Path, version: int) -> None:
    def go(*, restart: bool) -> None:
        plan = dmr.Plan(checkpoint=dmr.Schedule(tmp_path, 2), restart=restart)
        field = dmr.adapt(np.zeros((6, 6)), (4, 4), halo=1)
        runtime = runtime_on(MPI.COMM_SELF)
        with dmr.malleable(runtime, {"u": field}, plan, state={"n": 2**64}) as run:
            for _ in run.loop(3):
                pass

    go(restart=False)
    (path,) = tmp_path.glob("*.h5")
    with h5py.File(path, "r+") as file:
        assert file.attrs["format"] == FORMAT
        file.attrs["format"] = version
    message = f"{path}: expected checkpoint format {FORMAT}, got {version}"
    with one_sentence(dmr.UsageError, message):
        go(restart=True)
