"""The persistent requests of halos: a program may swap arrays, or make new ones in every step."""
# ruff: noqa: N802 - methods have the names that mpi4py gives them

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dmr.data.exchange import MOST_ARRAYS, HaloExchange
from dmr.data.field import Field, FieldSpec


class Counting:
    """A communicator that counts the requests that are made of it, and those not freed yet."""

    made = open = 0

    def Send_init(self, *_: Any) -> Any:
        self.made, self.open = self.made + 1, self.open + 1
        return SimpleNamespace(Free=self.Free)

    Recv_init = Send_init

    def Free(self) -> None:
        self.open -= 1


def test_the_requests_of_the_last_arrays_are_kept_and_no_others() -> None:
    spec = FieldSpec((8,), "f8", lambda _: 0.0, halo=1)
    block, comm = Field(spec, spec.decompose((2,)), 0), Counting()
    lies: Any = (comm, block.decomposition, 0, block.memory_layout, spec.halos)
    exchange: Any = HaloExchange(*lies, "periodic", (block.dtype, np))
    exchange._prequest = SimpleNamespace(Startall=len, Waitall=len)
    arrays = [block.scratch() for _ in range(MOST_ARRAYS + 3)]
    for array in (*arrays, *arrays[-MOST_ARRAYS:]):
        exchange.start(array)
        exchange.finish()
    # To and from both neighbours.
    assert (comm.made, comm.open) == (4 * len(arrays), 4 * MOST_ARRAYS)
    exchange.free()
    assert comm.open == 0
