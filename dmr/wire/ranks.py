"""Messages between rank 0 and the other ranks of one world, waited for without spinning.

While a resize is under way two worlds may share the cores: a rank that spins in a collective
takes them from the very ranks it waits for. So waiting here polls, yields, then sleeps.
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
"""Polls that yield the core; from then on a wait sleeps between them."""

SLEEP_S = 1e-4

BULK_BYTES = 1 << 16
"""A longer message of rank 0 goes by MPI_Ibcast, which implementations send to a node once."""

Check = Callable[[float], None]
"""Called now and then with the seconds waited so far; it may raise."""


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
    """Rank 0's next message comes by MPI_Ibcast, so many bytes."""

    size: int


class RankMessages:
    """Messages between rank 0 and the others of a world.

    Args:
        comm: the library's own communicator over its ranks.
        conversation: number of this conversation, the same on all ranks: messages of an earlier
            one, which came too late to be received, are thrown away.

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
        words = MPI.pickle.dumps((self._conversation, message))
        if len(words) <= BULK_BYTES:
            self._send_words(words)
            return
        self._send_words(MPI.pickle.dumps((self._conversation, Bulk(len(words)))))
        wait_until(self._comm.Ibcast(np.frombuffer(words, np.uint8)).Test)

    def _send_words(self, words: bytes) -> None:
        for rank in range(1, self._comm.size):
            self._comm.Send(words, rank, tags.FROM_ROOT)

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
                words = np.empty(message.size, np.uint8)
                wait_until(self._comm.Ibcast(words).Test, None, sleep_s)
                conversation, message = MPI.pickle.loads(words)
            if conversation == self._conversation:
                return message
