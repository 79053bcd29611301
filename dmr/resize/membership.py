"""How a rank becomes part of a merged world, goes back to the one before, or leaves (merge)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NoReturn

from mpi4py import MPI

from dmr.application import Run
from dmr.data.field import Field
from dmr.errors import Left
from dmr.state.progress import OpenResize
from dmr.state.values import ValuesError, adopt
from dmr.world import World, disconnect


def join(comm: MPI.Intracomm, inter: MPI.Intercomm, *, high: bool, keep: bool) -> MPI.Intracomm:
    """Return both sides of ``inter`` as one communicator, and free what led to it.

    ``keep`` spares ``comm``, where it is the world's own.
    """
    merged = inter.Merge(high=high)
    inter.Disconnect()
    if not keep:
        disconnect(comm)
    return merged


class Snapshot:
    """What a rank is before it enters a new world that may be taken back.

    Raises:
        ValuesError: ``run.state`` cannot be copied.
    """

    def __init__(self, run: Run) -> None:
        progress = run.progress
        self.world, self._fields, self._restored = run.world, dict(run.fields), run.restored
        self._generation, self._launches = progress.generation, progress.launches
        try:
            self._values = copy.deepcopy(progress.values)
        except Exception as error:  # whatever the values' own code raises
            raise ValuesError(
                f"run.state cannot be copied: {type(error).__name__}: {error}"
            ) from None

    def put_back(self, run: Run) -> None:
        """Be that again; ``build`` is to run again, on all ranks."""
        run.world, run.restored, run.internal.built = self.world, self._restored, False
        run.internal.free_carts()
        run.fields.clear()
        run.fields.update(self._fields)
        _join(run)
        progress = run.progress
        progress.generation, progress.launches = self._generation, self._launches
        # The program may hold references to the dictionary and to its values.
        values = {
            name: adopt(progress.values.get(name), value) for name, value in self._values.items()
        }
        progress.values.clear()
        progress.values.update(values)


def enter(
    run: Run,
    comm: MPI.Intracomm,
    grid: tuple[int, ...],
    fields: dict[str, Field],
    launches: Sequence[tuple[int, int]],
) -> None:
    """Make a rank that goes on part of the new world, which is still to be built."""
    progress = run.progress
    progress.generation += 1
    progress.launches = list(launches)
    run.world = World(comm, comm.Dup(), progress.generation, grid)
    part_from_fields(run)
    run.fields.update(fields)
    _join(run)
    run.internal.built, run.restored = False, True


def part_from_fields(run: Run) -> None:
    """Let go of the fields, and of what they use of the world's communicator."""
    for block in run.fields.values():
        block.join(None)
    run.fields.clear()
    run.internal.free_carts()


def _join(run: Run) -> None:
    for block in run.fields.values():
        block.join(run.world.internal_comm)


def stay(run: Run, old: World, cost: OpenResize) -> None:
    """The job is the new world's: let go of the old one."""
    progress = run.progress
    progress.open_resize = cost
    progress.answered_request = max(progress.answered_request, cost.request)
    cost.arrived_at = run.runtime.clock()
    run.internal.attempts = run.internal.polls = 0  # as in the ranks that have joined
    run.runtime.comm = run.world.comm
    free(old)


def leave(run: Run, old: World, comm: MPI.Intracomm) -> NoReturn:
    """Leave for good: nothing may connect this rank to those that stay."""
    comm.Free()
    run.runtime.comm = run.internal.launch_comm
    part_from_fields(run)
    free(old)
    raise Left(0)


def free(world: World) -> None:
    """Free a world's communicators, with all who are in it."""
    disconnect(world.comm)
    disconnect(world.internal_comm)
