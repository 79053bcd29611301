"""Who sends how much to whom, where only the senders know: without a word to all others.

A rank tells those it has something for, by synchronous sends, and enters a barrier that does not
block once they have heard it; whoever is through the barrier knows all that will come (T. Hoefler,
C. Siebert, A. Lumsdaine, "Scalable communication protocols for dynamic sparse data exchange",
PPoPP 2010, algorithm 2). So a rank sends as many messages as it has receivers, and the logarithm
of the number of ranks for the barrier.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from dmr.data.streams import Pending, Steps, Wait
from dmr.wire import tags

_rounds: list[int] = []
"""The key by which a communicator has the number of its next round, once there is one."""


class Announcements:
    """One round of it, among all ranks of a communicator (an inter-communicator's on both sides).

    Args:
        leaving: how much this rank has for others, by their rank; what is 0 is left out.

    Attributes:
        arriving: how much others have for this rank, by theirs; whole once it is ``done``.
    """

    def __init__(self, comm: MPI.Comm, leaving: Mapping[int, int]) -> None:
        self._comm, self._leaving = comm, leaving
        self.arriving: dict[int, int] = {}
        self.done = False

    def steps(self) -> Steps:
        """Go through the round; yield what has to be waited for."""
        # A rank may be a round ahead of another, and no more: two tags are enough.
        tag = tags.COUNT + _next_round(self._comm) % 2
        with Pending() as pending:
            for peer, count in self._leaving.items():
                if count:
                    number = np.array([count], np.int64)
                    pending.add(self._comm.Issend(number, peer, tag), number)
            while len(pending):
                for wait in pending.oldest():
                    yield self._hearing(wait, tag)
            pending.add(self._comm.Ibarrier(), np.empty(0, np.uint8))
            for wait in pending.oldest():
                yield self._hearing(wait, tag)
        self.done = True

    def _hearing(self, wait: Wait, tag: int) -> Wait:
        """Return a wait during which announcements are heard."""

        def poll() -> bool:
            status = MPI.Status()
            while self._comm.Iprobe(MPI.ANY_SOURCE, tag, status):
                number = np.empty(1, np.int64)
                self._comm.Recv(number, status.Get_source(), tag)
                self.arriving[status.Get_source()] = int(number[0])
            return wait()

        return poll


def _next_round(comm: MPI.Comm) -> int:
    if not _rounds:
        _rounds.append(MPI.Comm.Create_keyval())
    number: int = comm.Get_attr(_rounds[0]) or 0
    comm.Set_attr(_rounds[0], number + 1)
    return number
