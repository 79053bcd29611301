"""Lists of items between two worlds and through checkpoints; arrays of the application's own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash
from mpi4py import MPI
from two_worlds import TwoWorlds

import dmr
from dmr.checkpoint import store
from dmr.checkpoint.format import BrokenCheckpointError, read_checkpoint
from dmr.data import gather, particles, streams
from dmr.data.decomposition import Decomposition
from dmr.data.field import Field
from dmr.data.particles import Items, ListSpec
from dmr.state.progress import Progress
from dmr.world import World, decompositions_for

Together = Callable[..., None]
pytestmark = [pytest.mark.mpi(min_size=3)]
CELLS = 31
RECORD = np.dtype([("cell", "i4"), ("x", "f8", 3), ("alive", "?")])


def records(begin: int, end: int) -> np.ndarray[Any, Any]:
    """Return some records of every cell: none of every fifth, several of others."""
    cells = np.repeat(np.arange(begin, end), [n % 5 for n in range(begin, end)])
    found = np.zeros(len(cells), RECORD)
    found["cell"], found["alive"] = cells, cells % 2
    found["x"] = np.sqrt(cells)[:, None] + np.arange(3)
    return found


def by_cell(values: np.ndarray[Any, Any], decomposition: Decomposition) -> Any:
    return dmr.rank_of(decomposition, values["cell"])


def list_spec() -> ListSpec:
    return ListSpec((CELLS,), RECORD, lambda box: records(box.start[0], box.stop[0]), owner=by_cell)


def complete(field: Items) -> bool:
    wanted = records(field.box.start[0], field.box.stop[0])
    found = field.items[np.argsort(field.items["cell"], kind="stable")]
    return found.tobytes() == wanted.tobytes()


def test_items_arrive_at_their_owners_for_every_cut_of_the_ranks(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(particles, "CHUNK_BYTES", 64)
    for old_size in range(1, world.size):
        worlds = TwoWorlds(world, old_size)
        spec = list_spec()
        old, new = (spec.decompose((size,)) for size in worlds.sizes)
        if worlds.is_old:
            field = Items(spec, old, worlds.local.rank)
            field.initialise()
            good = worlds.send(field, new) == field.items.nbytes
        else:
            field = Items(spec, new, worlds.local.rank)
            good = worlds.receive(field, old) and complete(field)
        worlds.free()
        together(good, f"{old_size} old ranks")


def test_items_of_ranks_that_stay_are_kept(world: MPI.Intracomm, together: Together) -> None:
    """As strategy merge does it: both decompositions on one communicator."""
    spec = list_spec()
    old, new = spec.decompose((2,)), spec.decompose((world.size,))
    field = Items(spec, new, world.rank)
    transfers: list[Any] = [field.receiving(world, old, on_host=False)]
    wanted = 0
    if world.rank < 2:
        before = Items(spec, old, world.rank)
        before.initialise()
        transfers.append(before.sending(world, new, on_host=False))
        wanted = before.items.nbytes - field.keep(before)
    intact, *sent = streams.drive(transfers)
    together(intact and sum(sent) == wanted, "bytes")
    together(complete(field), "items")


def test_a_changed_byte_of_a_list_is_noticed(
    world: MPI.Intracomm, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = TwoWorlds(world, 1)
    spec = list_spec()
    old, new = (spec.decompose((size,)) for size in worlds.sizes)
    if worlds.is_old:
        other = SimpleNamespace(xxh3_64=lambda: xxhash.xxh3_64(seed=1))
        monkeypatch.setattr(streams, "xxhash", other)
        field = Items(spec, old, 0)
        field.initialise()
        worlds.send(field, new)
        good = True
    else:
        good = not worlds.receive(Items(spec, new, worlds.local.rank), old)
    worlds.free()
    together(good, "expected the hash to disagree")


def test_items_come_back_from_a_checkpoint_on_other_ranks(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    spec, log = list_spec(), io.StringIO()
    schedule = store.Schedule(shared_folder)

    def block(size: int) -> tuple[World, dict[str, Field], MPI.Intracomm]:
        comm = world.Split(0 if world.rank < size else 1, world.rank)
        here = World(comm, comm, 0, {})
        return here, {"list": spec.block(spec.decompose((comm.size,)), comm.rank)}, comm

    here, fields, comm = block(2)
    if world.rank < 2:
        fields["list"].initialise()
        path = store.write(schedule, here, fields, Progress(step=7), {}, log)
        together(path is not None, "written")
    else:
        together(True)
    comm.Free()
    for size in (1, world.size):
        here, fields, comm = block(size)
        good = True
        if world.rank < size:
            progress = store.restore(schedule, here, fields, {}, log)
            found = fields["list"]
            good = progress is not None and isinstance(found, Items) and complete(found)
        together(good, f"restored on {size}")
        comm.Free()
    noticed = True
    if world.rank == 0:
        path = store.path_of(shared_folder, 7)
        with h5py.File(path) as file:  # as any reader has it: one list, from two files
            whole = np.sort(file["fields/list"]["cell"])
        noticed = np.array_equal(whole, np.sort(records(0, CELLS)["cell"]))
        (part,) = shared_folder.glob("*.parts/1.h5")
        with h5py.File(part, "r+") as file:
            values = file["fields/list"][:]
            values["x"][3, 1] += 1
            file["fields/list"][:] = values
        try:
            read_checkpoint(path, {"list": spec.block(spec.decompose((1,)), 0)}, {})
            noticed = False
        except BrokenCheckpointError as error:
            noticed &= "field list" in str(error) and "in part 1.h5" in str(error)
    together(noticed, "expected the changed byte to be noticed")


def test_a_part_that_cannot_be_written_leaves_the_checkpoint_of_before(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = {"list": list_spec()}
    here, log = World(world, world, 0, decompositions_for(world.size, specs)), io.StringIO()
    schedule = store.Schedule(shared_folder)
    fields = here.allocate(specs)
    fields["list"].initialise()
    first = store.write(schedule, here, fields, Progress(step=3), {}, log)
    kept = sorted(shared_folder.iterdir()) if world.rank == 0 else []
    written = store.write_part
    if world.rank == 1:

        def fails(*given: Any) -> Any:
            return "No space left on device", written(*given)[1]

        monkeypatch.setattr(store, "write_part", fails)
    for why in ("No space left on device", "on all nodes, got no file of rank 1"):
        again = store.write(schedule, here, fields, Progress(step=6), {}, log)
        together(first is not None and again is None, "expected it not to be written")
        together(world.rank > 0 or log.getvalue().rstrip().endswith(why), log.getvalue())
        if world.rank == 1:  # now a folder of its node's own
            monkeypatch.setattr(store, "write_part", lambda *_: (None, {}))
    together(world.rank > 0 or sorted(shared_folder.iterdir()) == kept, "what was there")


def test_a_checkpoint_leaves_the_messages_of_the_application_alone(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    """A pending receive of any tag on the application's communicator gets its own message."""
    spec, whole = list_spec(), np.arange(CELLS * 3.0).reshape(CELLS, 3)
    field_spec = dmr.FieldSpec((CELLS, 3), "f8", lambda box: whole[box.slices()], split=(0,))
    schedule, log = store.Schedule(shared_folder), io.StringIO()
    specs = {"list": spec, "field": field_spec}
    here = World(world.Dup(), world.Dup(), 0, decompositions_for(world.size, specs))
    fields = here.allocate(specs)
    for block in fields.values():
        block.initialise()
    found = np.zeros(1 << 22, "u1")
    pending = here.comm.Irecv(found, MPI.ANY_SOURCE, MPI.ANY_TAG)
    path = store.write(schedule, here, fields, Progress(step=3), {}, log)
    parts = list(gather.slabs(here.internal_comm, fields["field"]))
    again = here.allocate(specs)
    progress = store.restore(schedule, here, again, {}, log)
    early = pending.Test()
    world.Barrier()
    here.comm.Send(np.full(3, 7, "u1"), (here.rank + 1) % here.size, 5)
    status = MPI.Status()
    pending.Wait(status)
    together(path is not None and progress is not None and bool(parts), "written and read")
    together(complete(again["list"]), "list")  # type: ignore[arg-type]
    together(np.array_equal(again["field"].interior, fields["field"].interior), "field")
    together(not early and status.Get_count() == 3 and found[:3].tolist() == [7] * 3, "its own")
    here.comm.Free()
    here.internal_comm.Free()


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("split", [(0,), (2,), (0, 1)])
@pytest.mark.parametrize("order", ["C", "F", "other"])
def test_arrays_of_ones_own_are_filled_in_place(
    world: MPI.Intracomm, together: Together, order: str, split: tuple[int, ...], on_host: bool
) -> None:
    shape, halo = (7, 9, 8), ((1, 2), (0, 1), (3, 0))
    whole = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    inside = tuple(slice(lo, -hi or None) for lo, hi in halo)
    for old_size in range(1, world.size):
        worlds = TwoWorlds(world, old_size)
        size, rank = worlds.local.size, worlds.local.rank
        old, new = (Decomposition(shape, split, grid(n, split)) for n in worlds.sizes)
        decomposition = old if worlds.is_old else new
        assert decomposition.size == size
        box = decomposition.box(rank)
        array = padded(tuple(n + sum(side) for n, side in zip(box.shape, halo, strict=True)), order)
        array[...] = -1
        spec = dmr.adapt(array, shape, halo=halo, split=split)
        here = whole[box.slices()]
        if worlds.is_old:
            array[inside] = here
            field = spec.block(decomposition, rank)
            field.initialise()
            worlds.send(field, new, on_host=on_host)
            good = True
        else:
            field = spec.block(decomposition, rank)
            good = worlds.receive(field, old, on_host=on_host)
            good &= np.array_equal(array[inside], here)
        good &= np.shares_memory(array, field.padded)
        worlds.free()
        together(good, f"{old_size} old ranks")


def grid(size: int, split: tuple[int, ...]) -> tuple[int, ...]:
    return (size,) if len(split) == 1 else (size, 1)


def padded(shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    if order == "other":
        return np.zeros((shape[1], shape[0], shape[2]), "f4").transpose(1, 0, 2)
    return np.zeros(shape, "f4", order=order)  # type: ignore[call-overload, no-any-return]


def test_arrays_with_gaps_or_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="without gaps"):
        dmr.adapt(np.zeros((8, 8))[:, :4], (8, 4))
    with pytest.raises(ValueError, match="expected an array of 2 axes, got 1"):
        dmr.adapt(np.zeros(8), (8, 4))
    spec = dmr.adapt(np.zeros((8, 4)), (9, 4))
    with pytest.raises(ValueError, match=r"expected an array of shape \(9, 4\)"):
        spec.block(spec.decompose((1,)), 0)
    spec = dmr.adapt(np.zeros((8, 4)), (8, 4))
    field = spec.block(spec.decompose((1,)), 0)
    with pytest.raises(ValueError, match="expected an array"):
        field.rebind(np.zeros((8, 5)))
    with pytest.raises(ValueError, match="without gaps"):
        field.rebind(np.zeros((4, 8)).T)
    other = np.ones((8, 4))
    field.rebind(other)
    assert field.padded is not None and np.shares_memory(field.padded, other)
