"""Hundreds of ranks in one process: as much of a communicator as transfers use, counting messages.

All goes through one mailbox, messages between two ranks in order. A barrier counts as the messages
that a dissemination barrier sends: the logarithm of the number of ranks.
"""
# ruff: noqa: N802 - methods have the names that mpi4py gives them

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from dmr.data.distributed import Steps, T, Wait


class Request:
    """Something under way; done once ``poll`` has said so."""

    def __init__(self, poll: Callable[[], bool]) -> None:
        self._poll, self._done = poll, False

    def Test(self) -> bool:
        self._done = self._done or self._poll()
        return self._done


@dataclass
class Mail:
    data: bytes
    taken: bool = False


@dataclass
class Network:
    """Two groups of ranks (or one): what is under way between them, and what each has sent."""

    sizes: tuple[int, int]
    mail: dict[tuple[int, int, int, int], deque[Mail]] = field(default_factory=dict)
    waiting: dict[tuple[int, int, int], set[int]] = field(default_factory=dict)
    """Sources of which there is mail, by side, rank and tag."""
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Messages by side and rank."""
    entered: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Ranks of a side that have entered a barrier, by its number."""

    def comms(self, side: int) -> list[SimulatedComm]:
        """Return the communicator of every rank of a side."""
        return [SimulatedComm(self, side, rank) for rank in range(self.sizes[side])]


class SimulatedComm:
    """One rank's communicator: an inter-communicator between two sides where they are two."""

    def __init__(self, network: Network, side: int, rank: int) -> None:
        self._network, self._side, self.rank = network, side, rank
        self._other = 1 - side if network.sizes[1] else side
        self._barriers, self._attributes = 0, dict[int, Any]()

    def Is_inter(self) -> bool:
        return self._other != self._side

    def Get_attr(self, key: int) -> Any:
        return self._attributes.get(key)

    def Set_attr(self, key: int, value: Any) -> None:
        self._attributes[key] = value

    def _post(self, buffer: Any, peer: int, tag: int) -> Mail:
        network, found = self._network, Mail(bytes(buffer.data))
        network.mail.setdefault((self._other, peer, tag, self.rank), deque()).append(found)
        network.waiting.setdefault((self._other, peer, tag), set()).add(self.rank)
        network.sent[self._side, self.rank] += 1
        return found

    def _take(self, buffer: Any, peer: int, tag: int) -> bool:
        box = self._network.mail.get((self._side, self.rank, tag, peer))
        if not box:
            return False
        found = box.popleft()
        if not box:
            self._network.waiting[self._side, self.rank, tag].discard(peer)
        found.taken = True
        buffer.view(np.uint8)[:] = np.frombuffer(found.data, np.uint8)
        return True

    def Isend(self, buffer: Any, dest: int, tag: int) -> Request:
        self._post(buffer, dest, tag)
        return Request(lambda: True)

    def Issend(self, buffer: Any, dest: int, tag: int) -> Request:
        found = self._post(buffer, dest, tag)
        return Request(lambda: found.taken)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Request:
        return Request(lambda: self._take(buffer, source, tag))

    def Recv(self, buffer: Any, source: int, tag: int) -> None:
        assert self._take(buffer, source, tag)

    def Iprobe(self, source: int, tag: int, status: MPI.Status) -> bool:
        found = self._network.waiting.get((self._side, self.rank, tag))
        if not found:
            return False
        status.Set_source(min(found))
        return True

    def Ibarrier(self) -> Request:
        network, number = self._network, self._barriers
        self._barriers += 1
        network.entered[self._side, number] += 1
        network.sent[self._side, self.rank] += max(1, sum(network.sizes) - 1).bit_length()
        wanted = network.sizes[self._other]
        return Request(lambda: network.entered[self._other, number] == wanted)


def run_all(transfers: Sequence[Steps[T]], seed: int = 0) -> list[T]:
    """Run the transfers of all ranks to their ends, in turns; some stand still in some rounds.

    Return their results.
    """
    rng, results = random.Random(seed), dict[int, T]()

    def advanced(one: Steps[T]) -> Wait | None:
        try:
            return next(one)
        except StopIteration as end:
            results[id(one)] = end.value
            return None

    under_way = [(one, wait) for one in transfers if (wait := advanced(one)) is not None]
    idle = 0
    while under_way:
        left = []
        for one, wait in under_way:
            found: Callable[[], bool] | None = wait
            if seed and rng.random() < 0.5:
                left.append((one, wait))
                continue
            while found is not None and found():
                found = advanced(one)
            if found is not None:
                left.append((one, found))
        idle = idle + 1 if left == under_way else 0  # who waits may have taken something meanwhile
        assert idle < 50, "all ranks wait"
        under_way = left
    return [results[id(one)] for one in transfers]
