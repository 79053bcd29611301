"""A world: one generation of MPI ranks of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpi4py import MPI

from dmr.data.decomposition import GridError, choose_grid
from dmr.data.field import Field, FieldSpec
from dmr.errors import UsageError


@dataclass(frozen=True)
class World:
    """The ranks that run the job now.

    Attributes:
        comm: a communicator over all ranks, for the application.
        internal_comm: one over the same ranks for the library's own messages, so that no pending
            receive of the application can take one.
        generation: 0 for the first world, one more with every resize.
        grid: process grid over the split axes (rows, columns).
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

    def allocate(self, specs: Mapping[str, FieldSpec]) -> dict[str, Field]:
        """Return this rank's zeroed block of every field."""
        return {
            name: spec.block(spec.decompose(self.grid), self.rank) for name, spec in specs.items()
        }


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


def grid_for(size: int, specs: Sequence[FieldSpec]) -> tuple[int, ...]:
    """Return the process grid on which every field's blocks are thick enough.

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
