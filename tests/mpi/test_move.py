"""Moving fields between two worlds, made here by cutting COMM_WORLD in two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from dmr import move
from dmr.field import Field, FieldSpec
from dmr.gather import slabs
from dmr.layout import Box, choose_grid

Together = Callable[..., None]
pytestmark = [pytest.mark.mpi(min_size=3)]


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def spec_of(shape: tuple[int, ...], dtype: str, split: tuple[int, ...]) -> FieldSpec:
    whole = values(shape, dtype)
    return FieldSpec(
        shape, dtype, lambda box: whole[box.slices((0,) * len(shape))], halo=2, split=split
    )


class TwoWorlds:
    """The first ``old`` ranks are the old world, the others the new one."""

    def __init__(self, world: MPI.Intracomm, old: int) -> None:
        self.is_old = world.rank < old
        self.local = world.Split(0 if self.is_old else 1, world.rank)
        self.inter = self.local.Create_intercomm(0, world, old if self.is_old else 0, tag=5)
        self.sizes = (old, world.size - old)

    def free(self) -> None:
        self.inter.Free()
        self.local.Free()


def layouts(spec: FieldSpec, sizes: tuple[int, int]) -> list[Any]:
    extents = [spec.shape[axis] for axis in spec.split]
    ones = [1] * len(extents)
    return [spec.decompose(choose_grid(size, extents, ones)) for size in sizes]


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "c16"])
@pytest.mark.parametrize(
    ("shape", "split"),
    [((17,), (0,)), ((13, 9), (0, 1)), ((7, 11, 5), (0, 1)), ((5, 6, 7, 3), (2, 0))],
)
def test_interiors_arrive_bitwise_for_every_cut_of_the_ranks(
    world: MPI.Intracomm,
    together: Together,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    split: tuple[int, ...],
    dtype: str,
) -> None:
    monkeypatch.setattr(move, "CHUNK_BYTES", 64)  # many messages even for few cells
    whole = values(shape, dtype)
    for old_size in range(1, world.size):
        worlds = TwoWorlds(world, old_size)
        spec = spec_of(shape, dtype, split)
        old, new = layouts(spec, worlds.sizes)
        if worlds.is_old:
            field = Field(spec, old, worlds.local.rank)
            field.initialise()
            sent = move.send(worlds.inter, field, worlds.local.rank, new)
            good = sent == field.box.size * whole.itemsize
        else:
            field = Field(spec, new, worlds.local.rank)
            intact = move.receive(worlds.inter, field, worlds.local.rank, old)
            here = whole[field.box.slices((0,) * len(shape))]
            good = intact and np.array_equal(field.interior, here)
        worlds.free()
        together(good, f"{old_size} old ranks")


def test_a_changed_byte_is_noticed(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = TwoWorlds(world, 1)
    spec = spec_of((8, 6), "f8", (0, 1))
    old, new = layouts(spec, worlds.sizes)
    if worlds.is_old:
        true_digest = move._digest
        monkeypatch.setattr(move, "_digest", lambda data: true_digest(data[:-1]))
        field = Field(spec, old, 0)
        field.initialise()
        move.send(worlds.inter, field, 0, new)
        good = True
    else:
        field = Field(spec, new, worlds.local.rank)
        good = not move.receive(worlds.inter, field, worlds.local.rank, old)
    worlds.free()
    together(good, "expected the hash to disagree")


def test_slabs_bring_the_field_in_file_order(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmr.gather.SLAB_BYTES", 200)
    spec = spec_of((11, 6, 4), "f8", (0, 1))
    field = Field(spec, spec.decompose(choose_grid(world.size, (11, 6), (1, 1))), world.rank)
    field.initialise()
    parts = [(box, part) for box, part in slabs(world, field)]
    if world.rank == 0:
        whole = np.concatenate([part for _, part in parts if part is not None])
        good = np.array_equal(whole, values((11, 6, 4), "f8")) and len(parts) == 11
    else:
        good = all(part is None for _, part in parts)
    together(good, "slabs")


def test_box_helper_matches_the_field(world: MPI.Intracomm, together: Together) -> None:
    spec = spec_of((12, 12), "f8", (0, 1))
    layout = spec.decompose(choose_grid(world.size, (12, 12), (1, 1)))
    owned = world.allgather(layout.box(world.rank))
    union = sum(box.size for box in owned)
    overlap = any(
        a.intersect(b).size for i, a in enumerate(owned) for b in owned[:i] if isinstance(b, Box)
    )
    together(union == 144 and not overlap, "boxes tile the array")
