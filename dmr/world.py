"""A world: one generation of MPI ranks of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mpi4py import MPI

from dmr.data.decomposition import Decomposition, GridError, choose_grid
from dmr.data.distributed import Distributed, Spec
from dmr.errors import UsageError


@dataclass(frozen=True)
class World:
    """The ranks that run the job now.

    Attributes:
        comm: a communicator over all ranks, for the application.
        internal_comm: one over the same ranks for the library's own messages, so that no pending
            receive of the application can take one.
        generation: 0 for the first world, one more with every resize.
        grid: process grid over the split axes (rows, columns) of the fields with the most of them.
    """

    comm: MPI.Intracomm
    internal_comm: MPI.Intracomm
    generation: int
    grid: tuple[int, ...]

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self.comm.rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self.comm.size)

    def allocate(self, specs: Mapping[str, Spec]) -> dict[str, Distributed]:
        """Return this rank's zeroed block of every field.

        Raises:
            ValueError: an array of the application's own is no such block; it names the field.
        """
        return {
            name: block_of(name, specs[name], decomposition, self.rank)
            for name, decomposition in decompositions_for(self.size, specs).items()
        }


def block_of(name: str, spec: Spec, decomposition: Decomposition, rank: int) -> Distributed:
    """Return a rank's zeroed block of a field; an error names the field."""
    try:
        return spec.block(decomposition, rank)
    except ValueError as error:
        raise ValueError(f"field {name}: {error}") from None


def disconnect(comm: MPI.Intracomm) -> None:
    """Part from the ranks of a communicator (collective).

    Open MPI 5.0 does not come back from MPI_Comm_disconnect where they are of two launches; there
    they wait for each other and free it.
    """
    if MPI.get_vendor()[0] == "Open MPI":
        comm.Barrier()
        comm.Free()
    else:
        comm.Disconnect()


def grid_for(size: int, specs: Sequence[Spec]) -> tuple[int, ...]:
    """Return the process grid on which every field's blocks are thick enough.

    Args:
        specs: of fields that are split along as many axes.

    Raises:
        UsageError: no process grid of ``size`` ranks fits.
    """
    axes = {len(spec.split) for spec in specs}
    if len(axes) != 1:
        raise UsageError(f"expected all fields split along as many axes, got {sorted(axes)}")
    extents = [min(spec.shape[spec.split[i]] for spec in specs) for i in range(axes.pop())]
    thinnest = [max(spec.thinnest_blocks()[i] for spec in specs) for i in range(len(extents))]
    try:
        return choose_grid(size, extents, thinnest)
    except GridError as error:
        raise UsageError(str(error)) from None


def decompositions_for(size: int, specs: Mapping[str, Spec]) -> dict[str, Decomposition]:
    """Return how every field is cut over so many ranks: the same on every rank and in every world.

    Fields that are split along as many axes, and name no process grid of their own, share one.

    Raises:
        UsageError: no process grid of ``size`` ranks fits.
    """
    alike: dict[int, list[str]] = {}
    grids: dict[str, tuple[int, ...]] = {}
    for name, spec in specs.items():
        if spec.split and spec.grid is not None:
            grids[name] = _own_grid(name, spec, size)
        else:
            alike.setdefault(len(spec.split), []).append(name)
    for axes, names in alike.items():
        try:
            grid = grid_for(size, [specs[name] for name in names]) if axes else ()
        except UsageError as error:
            raise UsageError(f"field {', '.join(names)}: {error}") from None
        grids |= dict.fromkeys(names, grid)
    try:
        return {
            name: spec.decompose(grids[name], 1 if spec.split else size)
            for name, spec in specs.items()
        }
    except ValueError as error:
        raise UsageError(str(error)) from None


def sent_once_a_node(
    decompositions: Mapping[str, Decomposition], receivers: tuple[int, ...]
) -> dict[str, Decomposition]:
    """Return the decompositions of a world where some ranks receive whole arrays and share them."""
    return {
        name: dataclasses.replace(one, receivers=receivers) if receivers and not one.split else one
        for name, one in decompositions.items()
    }


def _own_grid(name: str, spec: Spec, size: int) -> tuple[int, ...]:
    """Return the process grid that a field has of its own.

    Raises:
        UsageError: it is none of so many ranks.
    """
    grid = tuple(map(int, () if spec.grid is None else spec.grid(size)))
    if len(grid) != len(spec.split) or prod(grid) != size or min(grid) < 1:
        raise UsageError(
            f"field {name}: expected grid({size}) to be a process grid of {size} ranks over "
            f"{len(spec.split)} axes, got {grid}; has it been fixed on the command line?"
        )
    cells = [spec.shape[axis] for axis in spec.split]
    least = spec.thinnest_blocks()
    if any(n > 1 and c // n < t for n, c, t in zip(grid, cells, least, strict=True)):
        raise UsageError(
            f"field {name}: expected blocks at least {' x '.join(map(str, least))} cells thick "
            f"where cut, got {' x '.join(map(str, cells))} cells cut into {grid}"
        )
    return grid


def widest_grid(size: int, decompositions: Mapping[str, Decomposition]) -> tuple[int, ...]:
    """Return the process grid of the fields with the most split axes; (size,) where none has."""
    return max((one.grid for one in decompositions.values()), key=len, default=()) or (size,)
