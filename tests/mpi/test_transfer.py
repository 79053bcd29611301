"""Moving fields between two worlds, made here by cutting COMM_WORLD in two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash
from mpi4py import MPI
from two_worlds import TwoWorlds

from dmr.data import streams
from dmr.data.decomposition import Box, choose_grid
from dmr.data.field import Field, FieldSpec
from dmr.data.gather import slabs
from dmr.errors import TransferError
from dmr.system import libc

Together = Callable[..., None]
pytestmark = [pytest.mark.mpi(min_size=3)]


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def spec_of(shape: tuple[int, ...], dtype: str, split: tuple[int, ...]) -> FieldSpec:
    whole = values(shape, dtype)
    return FieldSpec(shape, dtype, lambda box: whole[box.slices()], halo=2, split=split)


def decompositions(spec: FieldSpec, sizes: tuple[int, int]) -> list[Any]:
    extents = [spec.shape[axis] for axis in spec.split]
    ones = [1] * len(extents)
    return [spec.decompose(choose_grid(size, extents, ones)) for size in sizes]


@pytest.mark.parametrize("way", ["packed", "messages", "read"])
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
    way: str,
) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 64)  # many messages even for few cells
    if way == "read":
        monkeypatch.setattr(streams, "LEAST_READ_BYTES", 0)
    on_host = way != "packed"
    whole = values(shape, dtype)
    for old_size in range(1, world.size):
        worlds = TwoWorlds(world, old_size)
        spec = spec_of(shape, dtype, split)
        old, new = decompositions(spec, worlds.sizes)
        if worlds.is_old:
            field = Field(spec, old, worlds.local.rank)
            field.initialise()
            sent = worlds.send(field, new, on_host=on_host)
            good = sent == field.box.size * whole.itemsize
        else:
            field = Field(spec, new, worlds.local.rank)
            intact = worlds.receive(field, old, on_host=on_host)
            here = whole[field.box.slices()]
            good = intact and np.array_equal(field.interior, here)
        worlds.free()
        together(good, f"{old_size} old ranks")


def test_blocks_that_lie_alike_are_not_packed(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows cut along the slowest axis go from storage to storage; other cuts do not."""
    spec, columns = spec_of((12, 6, 4), "f8", (0,)), spec_of((12, 6, 4), "f8", (1,))
    for wanted, one in ((True, spec), (False, columns)):
        worlds = TwoWorlds(world, 1)
        mine, other = decompositions(one, worlds.sizes)[:: 1 if worlds.is_old else -1]
        field = Field(one, mine, worlds.local.rank)
        packed = list[Box]()
        monkeypatch.setattr(field, "pack", partial(noted, packed, field.pack))
        monkeypatch.setattr(field, "unpack", partial(noted, packed, field.unpack))
        if worlds.is_old:
            worlds.send(field, other, on_host=True)
        else:
            worlds.receive(field, other, on_host=True)
        alike = wanted or worlds.sizes == (1, 1)
        worlds.free()
        together(bool(packed) != alike, f"{packed}")


def noted(boxes: list[Box], true: Callable[..., Any], box: Box, *values: Any) -> Any:
    boxes.append(box)
    return true(box, *values)


def test_a_changed_byte_is_noticed(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = TwoWorlds(world, 1)
    spec = spec_of((8, 6), "f8", (0, 1))
    old, new = decompositions(spec, worlds.sizes)
    if worlds.is_old:
        other = SimpleNamespace(xxh3_64=lambda: xxhash.xxh3_64(seed=1))
        monkeypatch.setattr(streams, "xxhash", other)
        field = Field(spec, old, 0)
        field.initialise()
        worlds.send(field, new)
        good = True
    else:
        field = Field(spec, new, worlds.local.rank)
        good = not worlds.receive(field, old)
    worlds.free()
    together(good, "expected the hash to disagree")


@pytest.mark.parametrize("reads", [True, False])
def test_memory_of_a_rank_on_this_node_is_read_or_sent_where_that_is_not_allowed(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """One new rank may not read (as Yama would have it): it gets messages, the others read."""
    monkeypatch.setattr(streams, "LEAST_READ_BYTES", 0)
    worlds = TwoWorlds(world, 1)
    spec = spec_of((12, 6), "f8", (0,))
    old, new = decompositions(spec, worlds.sizes)
    mine, other = (old, new) if worlds.is_old else (new, old)
    field, filled = Field(spec, mine, worlds.local.rank), list[int]()
    if worlds.is_old:
        field.initialise()
        worlds.send(field, new, on_host=True)
        good = True
    else:
        refused = not reads and worlds.local.rank == 0
        read = libc.read_memory

        def counted(*words: Any) -> int:
            filled.extend([] if refused else [1])
            return -1 if refused else read(*words)

        monkeypatch.setattr(libc, "read_memory", counted)
        intact = worlds.receive(field, other, on_host=True)
        good = intact and np.array_equal(field.interior, spec.initial(field.box))
        good = good and bool(filled) != refused
    worlds.free()
    together(good, f"{filled}")


def test_a_sender_whose_memory_is_gone_is_an_error_of_one_sentence(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lets a new rank read at first, then no more."""
    monkeypatch.setattr(streams, "LEAST_READ_BYTES", 0)
    worlds = TwoWorlds(world, 1)
    spec = spec_of((12, 6), "f8", (0,))
    old, new = decompositions(spec, worlds.sizes)
    field = Field(spec, old if worlds.is_old else new, worlds.local.rank)
    read, reads = libc.read_memory, list[int]()

    def gone(pid: int, address: int, into: Any) -> int:
        reads.append(address)
        return read(pid, address, into) if len(reads) == 1 else -1

    def check(waited_s: float) -> None:
        if waited_s > 0.5:
            raise TimeoutError

    monkeypatch.setattr(libc, "read_memory", gone)
    try:
        if worlds.is_old:
            worlds.send(field, new, on_host=True, check=check)
        else:
            worlds.receive(field, old, on_host=True, check=check)
        good = len(reads) < 2  # a kernel that lets no process read memory of another
    except TransferError as error:
        good = not worlds.is_old and "bytes of process" in str(error)
    except TimeoutError:
        good = worlds.is_old
    together(good, "expected one sentence")


def test_memory_of_another_process_with_the_same_number_is_not_read() -> None:
    offered = streams.offer(0)
    offered[2] += np.int64(1)
    assert not streams.readable(offered)


@pytest.mark.parametrize("fails_on_old", [True, False])
def test_short_memory_is_said_by_the_rank_that_meets_it(
    world: MPI.Intracomm,
    together: Together,
    monkeypatch: pytest.MonkeyPatch,
    fails_on_old: bool,
) -> None:
    """The others are told by the resize; here they wait for a while only."""

    def short(*_: Any) -> None:
        raise MemoryError("no room for 8 bytes")

    def check(waited_s: float) -> None:
        if waited_s > 0.2:
            raise TimeoutError

    worlds = TwoWorlds(world, 1)
    spec = spec_of((64, 6), "f8", (1,))
    old, new = decompositions(spec, worlds.sizes)
    field = Field(spec, old if worlds.is_old else new, worlds.local.rank)
    fails = worlds.is_old == fails_on_old
    if fails:
        monkeypatch.setattr(streams, "_packed", short)
        monkeypatch.setattr(streams, "_buffer", short)
    try:
        if worlds.is_old:
            worlds.send(field, new, check=check)
        else:
            worlds.receive(field, old, check=check)
        good = not fails  # few bytes are sent whether they are received or not
    except TransferError as error:
        good = fails and "not enough memory to move the data: no room" in str(error)
    except TimeoutError:
        good = not fails
    together(good, "expected one sentence about memory")


def test_slabs_bring_the_field_in_file_order(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmr.data.gather.SLAB_BYTES", 200)
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
    decomposition = spec.decompose(choose_grid(world.size, (12, 12), (1, 1)))
    owned = world.allgather(decomposition.box(world.rank))
    union = sum(box.size for box in owned)
    overlap = any(
        a.intersect(b).size for i, a in enumerate(owned) for b in owned[:i] if isinstance(b, Box)
    )
    together(union == 144 and not overlap, "boxes tile the array")
