"""The ranks of one world, talking through rank 0 without spinning.

While a resize is under way two worlds may share the cores: a rank that spins in a collective
takes them from the very ranks it waits for. So waiting here looks, yields, then sleeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

SPINS = 200
SLEEP_S = 1e-4
TELL, REPORT = 71, 72


Check = Callable[[float], None]
"""Called now and then with the seconds waited so far; it may raise."""


def patiently(
    done: Callable[[], bool], check: Check | None = None, sleep_s: float = SLEEP_S
) -> None:
    """Wait until ``done``; yield the core first, then sleep."""
    looks = 0
    begun = 0.0
    while not done():
        looks += 1
        if looks < SPINS:
            os.sched_yield()
            continue
        begun = begun or time.monotonic()
        if check is not None:
            check(time.monotonic() - begun)
        time.sleep(sleep_s)


class Crew:
    """Rank 0 and the others of a world, on a communicator of the library's own.

    Args:
        comm: its ranks.
        serial: number of this conversation, the same on all ranks: words of an earlier one, that
            came too late to be heard, are thrown away.
    """

    def __init__(self, comm: MPI.Intracomm, serial: int) -> None:
        self._comm, self._serial = comm, serial
        self.first = comm.rank == 0

    def tell(self, words: Any) -> None:
        """Rank 0: say something to all others."""
        for rank in range(1, self._comm.size):
            self._comm.send((self._serial, words), rank, TELL)

    def hear(self, check: Check | None = None, sleep_s: float = SLEEP_S) -> Any:
        """Others: return what rank 0 says next."""
        return self._next(0, TELL, check, sleep_s)

    def told(self) -> bool:
        """Return whether rank 0 has said something."""
        return bool(self._comm.Iprobe(0, TELL))

    def share(self, words: Any = None) -> Any:
        """Return rank 0's words on all ranks (collective)."""
        if self.first:
            self.tell(words)
            return words
        return self.hear()

    def report(self, words: Any) -> None:
        """Others: say something to rank 0."""
        self._comm.send((self._serial, words), 0, REPORT)

    def reports(self, check: Check | None = None) -> list[Any]:
        """Rank 0: return what each other rank says; ``check`` may raise meanwhile."""
        return [self._next(rank, REPORT, check) for rank in range(1, self._comm.size)]

    def _next(self, rank: int, tag: int, check: Check | None, sleep_s: float = SLEEP_S) -> Any:
        while True:
            patiently(lambda: bool(self._comm.Iprobe(rank, tag)), check, sleep_s)
            serial, words = self._comm.recv(source=rank, tag=tag)
            if serial == self._serial:
                return words
