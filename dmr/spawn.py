"""Strategy spawn: the old world calls MPI_Comm_spawn, as DMR does. Needs no RMS.

The two worlds speak in this order, all of it collective over the inter-communicator::

    new -> old   the new world is ready
    old -> new   header: progress, size, signature of the fields
    new -> old   accepted, or not: the old world goes on as if nothing had been asked
    old -> new   interiors, in hashed chunks (dmr.move)
    new -> old   every hash agreed: only now does the old world let go of its data
    old -> new   what the resize has cost so far
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from mpi4py import MPI

from dmr import move
from dmr.field import Field, FieldSpec
from dmr.progress import OpenResize, Progress
from dmr.world import Runtime, World, grid_for
from rms.protocol import SLOTS_VARIABLE

if TYPE_CHECKING:
    from dmr.session import Run


POLL_S = 0.0005
"""Sleep between looks for the new world, far below the time that booting it takes."""


BOOT_DEADLINE_S = 60.0
"""A new world that has not answered by then is taken for dead."""


class Header(msgspec.Struct):
    """What the old world tells the new one before anything moves."""

    grid: tuple[int, ...]
    progress: Progress
    signature: dict[str, Any]


@dataclass(frozen=True)
class Arrival:
    """What a new world starts from."""

    world: World
    fields: dict[str, Field]
    progress: Progress


@dataclass(frozen=True)
class Target:
    """What a resize is to lead to: how many ranks, on which slots if an RMS wishes it."""

    ranks: int
    slots: tuple[str, ...] = ()
    wish: int = 0


class Left(SystemExit):
    """Raised in ranks whose part of the job is done: an old world's, or a refused new one's."""


def replace(run: Run, target: Target, told: Sequence[int]) -> str:
    """Replace the world of ``run`` by one at ``target`` (collective).

    ``told`` holds the signals that have come in so far; the new world hears of them.

    Returns only if the resize was rolled back, and why: then the old world simply goes on.
    """
    runtime, world, ranks = run.runtime, run.world, target.ranks
    asked = runtime.clock()
    try:
        inter = _launch(runtime, world.comm, target)
    except MPI.Exception as error:
        return f"spawn failed: {error.Get_error_string()}"
    if not world.comm.allreduce(_meet(inter, BOOT_DEADLINE_S), MPI.LAND):
        # The half-made inter-communicator cannot be freed; it costs a little memory.
        return f"the new world did not answer within {BOOT_DEADLINE_S:.0f} s"
    ready = runtime.clock()
    specs = {name: block.spec for name, block in run.fields.items()}
    header = Header(world.grid, run.progress, _signature(specs))
    _tell(inter, world.rank, msgspec.json.encode(header))
    if not inter.allreduce(1, op=MPI.MIN):
        inter.Disconnect()
        return "the new world states other fields"
    sent = 0
    for block in run.fields.values():
        layout = block.spec.decompose(grid_for(ranks, list(specs.values())))
        sent += move.send(inter, block, world.rank, layout)
    sent = world.comm.allreduce(sent)
    stop = world.comm.allreduce(bool(told), MPI.LOR)
    if not inter.allreduce(1, op=MPI.MIN):
        inter.Disconnect()
        return "data did not arrive whole"
    moved = runtime.clock()
    return _leave(
        run,
        inter,
        OpenResize(
            step=run.step,
            from_ranks=world.size,
            to_ranks=ranks,
            strategy="spawn",
            boot_s=ready - asked,
            move_s=moved - ready,
            old_stall_s=moved - asked,
            bytes=sent,
            told=stop,
            wish=target.wish,
        ),
    )


def join(
    runtime: Runtime, comm: MPI.Intracomm, specs: Mapping[str, FieldSpec], grid: tuple[int, ...]
) -> Arrival:
    """Receive the job from the world that spawned this one (collective)."""
    inter = runtime.parent
    if inter is None:
        raise RuntimeError("expected to be a spawned world")
    _meet(inter)
    header = msgspec.json.decode(inter.bcast(None, root=0), type=Header)
    same = header.signature == _signature(specs)
    inter.allreduce(int(same), op=MPI.MIN)
    if not same:
        _refuse(inter)
    world = World(comm, header.progress.generation + 1, grid)
    fields = world.allocate(specs)
    intact = True
    for block in fields.values():
        intact &= move.receive(inter, block, world.rank, block.spec.decompose(header.grid))
    intact = bool(comm.allreduce(int(intact), op=MPI.MIN))
    inter.allreduce(int(intact), op=MPI.MIN)
    if not intact:
        _refuse(inter)
    progress = header.progress
    progress.open_resize = msgspec.json.decode(inter.bcast(None, root=0), type=OpenResize)
    progress.open_resize.arrived_at = runtime.clock()
    progress.elapsed_s += progress.open_resize.old_stall_s
    progress.generation = world.generation
    progress.wish = max(progress.wish, progress.open_resize.wish)
    inter.Disconnect()
    return Arrival(world, fields, progress)


def _launch(runtime: Runtime, comm: MPI.Intracomm, target: Target) -> MPI.Intercomm:
    info = MPI.Info.Create()
    try:
        info.Set("wdir", str(Path.cwd()))
        command = runtime.command
        if target.slots:
            # Spawn cannot set the environment; env(1) can.
            command = ("env", f"{SLOTS_VARIABLE}={' '.join(target.slots)}", *command)
        program, *arguments = command
        return comm.Spawn(program, arguments, maxprocs=target.ranks, info=info, root=0)
    finally:
        info.Free()


def _meet(inter: MPI.Intercomm, deadline_s: float | None = None) -> bool:
    """Wait for the other world without spinning: its ranks may need this very core to boot.

    Returns False if it does not come within ``deadline_s``: its ranks died while they started.
    """
    request = inter.Ibarrier()
    begun = time.monotonic()
    while not request.Test():
        if deadline_s is not None and time.monotonic() - begun > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _leave(run: Run, inter: MPI.Intercomm, cost: OpenResize) -> NoReturn:
    _tell(inter, run.world.rank, msgspec.json.encode(cost))
    inter.Disconnect()
    raise Left(0)


def _refuse(inter: MPI.Intercomm) -> NoReturn:
    """Leave quietly: the old world reports and goes on (MPI_Abort here would end it too)."""
    inter.Disconnect()
    raise Left(0)


def _tell(inter: MPI.Intercomm, rank: int, data: bytes) -> None:
    inter.bcast(data, root=MPI.ROOT if rank == 0 else MPI.PROC_NULL)


def _signature(specs: Mapping[str, FieldSpec]) -> dict[str, Any]:
    return {name: spec.signature() for name, spec in specs.items()}
