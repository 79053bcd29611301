"""Part ``placement``: which nodes.

A placement opens a :class:`Room` for one pass: the free nodes, of which admission and sizing take
some. The state is left as it is.
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar, Protocol

import msgspec

from rms.core.model import Job, Node
from rms.core.state import State


class Room(Protocol):
    """Free nodes during one pass."""

    @property
    def free(self) -> int:
        """How many are left."""

    @property
    def passed(self) -> int:
        """How many of the first of ``state.ends`` are over by expectation: their nodes are free."""

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits; none where they are only counted."""

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size, taking what it brings.

        Other than ``size`` nodes where they cannot be had; none where they are only counted.
        """


def expected_slowdown(room: Room, job: Job, size: int) -> float:
    """Return how much longer than stated a job is expected to run that starts now.

    A room may say so by a method ``slowdown(job, size)``.
    """
    found = getattr(room, "slowdown", None)
    return 1.0 if found is None else found(job, size)


def take(room: Room, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
    """Take nodes for a job that fits; return the frequency on each too, none for the highest.

    A room that sets frequencies has a method ``take(job, size)``.
    """
    found = getattr(room, "take", None)
    return (room.place(job, size), ()) if found is None else found(job, size)


class Counts:
    """Nodes that are all alike: counted, not placed."""

    __slots__ = ("free", "passed")

    def __init__(self, free: int, passed: int = 0) -> None:
        self.free, self.passed = free, passed

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return size <= self.free

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits."""
        self.free -= size
        return ()

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take what a resize brings."""
        self.free -= max(0, size - job.size)
        return ()


class Lowest:
    """Free nodes, the lowest first."""

    __slots__ = ("_nodes", "free", "passed")

    def __init__(self, state: State) -> None:
        self.free, self.passed = state.free_count, 0
        self._nodes = state.free_nodes()

    @property
    def rest(self) -> list[Node]:
        """The nodes that are left; the room is not used after that."""
        return list(self._nodes)

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return size <= self.free

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take the lowest nodes."""
        self.free -= size
        return tuple(islice(self._nodes, size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a job at its new size: its first ones stay its own."""
        have = job.nodes
        if size <= len(have):
            return have[:size]
        return (*have, *self.place(job, size - len(have)))


class FirstFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest free nodes."""

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        return Lowest(state)


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes are counted only: for traces, and for clusters whose nodes are all alike.

    ``ahead``: a job whose expected end has come no longer holds nodes: of two events of one
    instant, a start may come before the end that makes it possible. That the end did come is
    checked when the instant is over.
    """

    ahead: bool = False
    counted: ClassVar[bool] = True

    def __call__(self, state: State) -> Counts:
        """Open the room of a pass."""
        free = state.free_count
        if not self.ahead:
            return Counts(free)
        now, passed = state.now_s, 0
        for end, _, job in state.ends:
            if end > now:
                break
            free += job.size
            passed += 1
        return Counts(free, passed)
