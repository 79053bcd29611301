"""Two worlds of ranks, made by cutting COMM_WORLD in two."""

from __future__ import annotations

from mpi4py import MPI

from dmr.data.decomposition import Decomposition
from dmr.data.distributed import Distributed
from dmr.data.streams import drive
from dmr.wire.ranks import Check


class TwoWorlds:
    """The first ``old`` ranks are the old world, the others the new one."""

    def __init__(self, world: MPI.Intracomm, old: int) -> None:
        self.is_old = world.rank < old
        self.local = world.Split(0 if self.is_old else 1, world.rank)
        self.inter = self.local.Create_intercomm(0, world, old if self.is_old else 0, tag=5)
        self.sizes = (old, world.size - old)

    def send(
        self,
        part: Distributed,
        new: Decomposition,
        *,
        on_host: bool = False,
        check: Check | None = None,
    ) -> int:
        """Old ranks: send a part to the new ones; return its bytes."""
        return drive([part.sending(self.inter, new, on_host=on_host)], check)[0]

    def receive(
        self,
        part: Distributed,
        old: Decomposition,
        *,
        on_host: bool = False,
        check: Check | None = None,
    ) -> bool:
        """New ranks: fill a part from the old ones; return whether every hash agrees."""
        return drive([part.receiving(self.inter, old, on_host=on_host)], check)[0]

    def free(self) -> None:
        self.inter.Free()
        self.local.Free()
