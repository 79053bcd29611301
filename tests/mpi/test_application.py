"""What an application states of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr

Together = Callable[..., None]
pytestmark = pytest.mark.mpi


class Still(dmr.Application):
    def fields(self) -> Mapping[str, dmr.FieldSpec]:
        return {"u": dmr.FieldSpec((12,), "f8", lambda box: np.zeros(box.shape))}

    def steps(self, run: dmr.Run) -> int:
        return 3

    def step(self, run: dmr.Run) -> None:
        pass


class Replaced(Still):
    supports_merge = False


def test_ranks_that_cannot_go_on_in_another_world_are_not_merged(
    world: MPI.Intracomm, together: Together
) -> None:
    plan = dmr.Plan(strategy="merge")
    dmr.run(Still(), runtime_on(world), plan)
    with pytest.raises(dmr.UsageError, match="strategy merge keeps ranks in their loop"):
        dmr.run(Replaced(), runtime_on(world), plan)
    together(True)
