"""Rebalancing inside one communicator, as strategy merge does: what stays is copied, not sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from dmr.data import streams
from dmr.data.decomposition import choose_grid
from dmr.data.field import Field, FieldSpec

Together = Callable[..., None]
pytestmark = [pytest.mark.mpi(min_size=3)]


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(("shape", "split"), [((17,), (0,)), ((13, 9), (0, 1)), ((12, 5, 4), (0,))])
@pytest.mark.covering(1)
def test_any_size_to_any_other_in_place(
    world: MPI.Intracomm,
    together: Together,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    split: tuple[int, ...],
    on_host: bool,
) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 64)
    whole = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    spec = FieldSpec(shape, "f8", lambda box: whole[box.slices()], halo=1, split=split)
    extents, ones = [shape[axis] for axis in spec.split], [1] * len(spec.split)
    for old_size in range(1, world.size + 1):
        for new_size in range(1, world.size + 1):
            old, new = (
                spec.decompose(choose_grid(size, extents, ones)) for size in (old_size, new_size)
            )
            sends, takes, kept, here = list[Any](), list[Any](), 0, None
            if world.rank < old_size:
                before = Field(spec, old, world.rank)
                before.initialise()
                sends.append(before.sending(world, new, on_host=on_host))
            if world.rank < new_size:
                here = Field(spec, new, world.rank)
                takes.append(here.receiving(world, old, on_host=on_host))
                if world.rank < old_size:
                    kept = here.keep(before)
            results = streams.drive([*sends, *takes])
            sent, intact = sum(results[: len(sends)]), all(results[len(sends) :])
            right = here is None or np.array_equal(here.interior, whole[here.box.slices()])
            together(right and intact, f"{old_size} to {new_size}")
            moved = world.allreduce(sent) + world.allreduce(kept)
            together(moved == whole.nbytes, "every cell is sent or kept, once")
