"""Messages between rank 0 and the other ranks of one world, with waits that do not spin.

During a resize two worlds may share the cores, and a rank that spins in a collective call takes
them from the ranks that it waits for. A wait here polls, yields, then sleeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from dmr.wire import tags

YIELDS = 200
"""Number of polls that yield the core; a wait sleeps between further ones."""

SLEEP_S = 1e-4

BULK_BYTES = 1 << 16
"""A longer message of rank 0 goes by MPI_Ibcast, which implementations send to a node once."""

Check = Callable[[float], None]
"""Called at intervals with the seconds waited so far; it may raise."""


def wait_until(
    done: Callable[[], bool], check: Check | None = None, sleep_s: float = SLEEP_S
) -> None:
    """Wait until ``done``; yield the core first, then sleep."""
    polls = 0
    begun = 0.0
    while not done():
        polls += 1
        if polls < YIELDS:
            os.sched_yield()
            continue
        begun = begun or time.monotonic()
        if check is not None:
            check(time.monotonic() - begun)
        time.sleep(sleep_s)


@dataclass(frozen=True)
class Bulk:
    """Announces a message of rank 0 by MPI_Ibcast, of ``size`` bytes."""

    size: int


class RankMessages:
    """Messages between rank 0 and the others of a world.

    Args:
        comm: the library's own communicator over its ranks.
        conversation: number of this conversation, the same on all ranks: late messages of an
            earlier one are dropped.

    Attributes:
        is_root: whether this is rank 0.
    """

    def __init__(self, comm: MPI.Intracomm, conversation: int) -> None:
        self._comm, self._conversation = comm, conversation
        self.is_root = comm.rank == 0

    def send_all(self, message: Any) -> None:
        """Rank 0: send a message to all others."""
        if self._comm.size == 1:
            return
        data = MPI.pickle.dumps((self._conversation, message))
        is_bulk = len(data) > BULK_BYTES
        first = MPI.pickle.dumps((self._conversation, Bulk(len(data)))) if is_bulk else data
        for rank in range(1, self._comm.size):
            self._comm.Send(first, rank, tags.FROM_ROOT)
        if is_bulk:
            wait_until(self._comm.Ibcast(np.frombuffer(data, np.uint8)).Test)

    def receive(self, check: Check | None = None, sleep_s: float = SLEEP_S) -> Any:
        """Others: return the next message of rank 0."""
        return self._next(0, tags.FROM_ROOT, check, sleep_s)

    def pending(self) -> bool:
        """Return whether rank 0 has sent a message."""
        return bool(self._comm.Iprobe(0, tags.FROM_ROOT))

    def report(self, message: Any) -> None:
        """Others: send a message to rank 0."""
        self._comm.send((self._conversation, message), 0, tags.TO_ROOT)

    def collect(self, check: Check | None = None) -> list[Any]:
        """Rank 0: return the next report of every other rank; ``check`` may raise meanwhile."""
        return [self._next(rank, tags.TO_ROOT, check) for rank in range(1, self._comm.size)]

    def _next(self, rank: int, tag: int, check: Check | None, sleep_s: float = SLEEP_S) -> Any:
        while True:
            wait_until(lambda: bool(self._comm.Iprobe(rank, tag)), check, sleep_s)
            conversation, message = self._comm.recv(source=rank, tag=tag)
            if isinstance(message, Bulk):
                data = np.empty(message.size, np.uint8)
                wait_until(self._comm.Ibcast(data).Test, None, sleep_s)
                conversation, message = MPI.pickle.loads(data)
            if conversation == self._conversation:
                return message
