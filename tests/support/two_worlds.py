"""Two worlds of ranks, made by cutting COMM_WORLD in two."""

from __future__ import annotations

from mpi4py import MPI


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
