"""What waits and runs, for launchers that ask for nodes by that, and until when those are held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WaitingJob:
    """A job that waits: the nodes without which it does not start, those it wants, for how long."""

    least: int
    wants: int
    needs_s: float


@dataclass(frozen=True)
class Demand:
    """What there is to do for nodes.

    Attributes:
        waiting: jobs, the oldest first.
        busy: nodes that jobs have or are about to have.
        closed: nodes that are given to no job.
        barred: those of them that a user has drained, or that are broken.
    """

    waiting: Sequence[WaitingJob] = ()
    busy: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Leases:
    """Until when nodes are held.

    Attributes:
        until_s: of nodes that are not held for good, when jobs there are to be told to end, by the
            wall clock.
        most: how many nodes are held at once at most.
        longest_s: how long a job may run on nodes that have just come.
        waits: what nodes that are asked for wait for, "" where none are.
    """

    until_s: Mapping[str, float]
    most: int
    longest_s: float
    waits: str = ""
