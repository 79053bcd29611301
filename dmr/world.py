"""A world: one generation of MPI ranks of a job."""

from __future__ import annotations

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
        decompositions: of every field over these ranks.
    """

    comm: MPI.Intracomm
    internal_comm: MPI.Intracomm
    generation: int
    decompositions: Mapping[str, Decomposition]

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self.comm.rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self.comm.size)

    @property
    def grid(self) -> tuple[int, ...]:
        """Process grid of the fields with the most split axes (rows, columns); else (size,)."""
        grids = (one.grid for one in self.decompositions.values())
        return max(grids, key=len, default=()) or (self.size,)

    def allocate(self, specs: Mapping[str, Spec]) -> dict[str, Distributed]:
        """Return this rank's zeroed block of every field.

        Raises:
            ValueError: an array of the application's own does not have the shape of its block.
        """
        fields: dict[str, Distributed] = {}
        for name, decomposition in self.decompositions.items():
            try:
                fields[name] = specs[name].block(decomposition, self.rank)
            except ValueError as error:
                raise ValueError(f"field {name}: {error}") from None
        return fields


def disconnect(comm: MPI.Intracomm) -> None:
    """Free a communicator of ranks that may be of two launches (collective).

    MPI_Comm_disconnect of Open MPI 5.0 does not return there.
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
    """Return the decomposition of every field, the same on every rank and in every world.

    Fields with equally many split axes and no process grid of their own share one.

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


def _own_grid(name: str, spec: Spec, size: int) -> tuple[int, ...]:
    """Return the process grid of a field that states one."""
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
