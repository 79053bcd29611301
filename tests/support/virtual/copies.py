"""Copies in memory as a model: pieces that keepers hold, and what a new world goes on from.

As :mod:`dmr.memory.copies` has it, every host of a world has a piece of a generation at its own
keeper and one at a partner's. A generation is whole while some keeper has each of its pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dmr.memory.piece import partner_shifts

if TYPE_CHECKING:
    from virtual.machine import Process


class Generation(NamedTuple):
    """The state at a step, as a world copied it on so many hosts; the newest is the largest."""

    step: int
    life: int
    world: int
    hosts: int


@dataclass
class Pieces:
    """What a keeper holds.

    Attributes:
        host: its name.
        held: the pieces of each generation, by the number of their host.
        kept: the newest generation that was complete.
        hurt: whether it, or its host, has met a fault.
        alone_s: since when it has no ranks.
    """

    host: str
    held: dict[Generation, set[int]] = field(default_factory=dict)
    kept: Generation | None = None
    hurt: bool = False
    alone_s: float = 0.0


@dataclass
class Complete:
    """The newest generation of a launcher line that was complete, and the keepers of its pieces."""

    generation: Generation
    holders: list[list[Process]]

    @property
    def lasts(self) -> bool:
        """Whether no fault has taken both copies of a piece."""
        return all(any(not pieces_of(one).hurt for one in own) for own in self.holders)


class Copies:
    """The copies of a world.

    Args:
        places: its keepers, in their ring: one on each of its hosts.
        life: worlds of the line that have died before.
        answers: whether a process can be reached.
    """

    def __init__(
        self, places: Sequence[Process], life: int, answers: Callable[[Process], bool]
    ) -> None:
        self.places, self.life, self.answers = places, life, answers
        self.pending: Generation | None = None

    def take(self, step: int, world: int) -> Generation:
        """Copy a step: each host's piece is with its keeper, and on its way to the partner's."""
        self.pending = generation = Generation(step, self.life, world, len(self.places))
        for at, place in enumerate(self.places):
            pieces_of(place).held.setdefault(generation, set()).add(at)
        return generation

    def confirm(self, generation: Generation) -> Complete | None:
        """Let the partners have a generation, and older ones go; None if one does not answer."""
        if self.pending != generation or not all(map(self.answers, self.places)):
            return None
        count, holders = len(self.places), list[list["Process"]]()
        for at, place in enumerate(self.places):
            shifts = partner_shifts(count, 1)
            own = [place, *(self.places[(at + shift) % count] for shift in shifts)]
            for one in own:
                pieces_of(one).held.setdefault(generation, set()).add(at)
            holders.append(own)
        for place in self.places:
            pieces = pieces_of(place)
            pieces.held = {one: held for one, held in pieces.held.items() if one >= generation}
            pieces.kept = generation
        return Complete(generation, holders)


def pieces_of(keeper: Process) -> Pieces:
    """Return what a keeper holds."""
    assert keeper.pieces is not None
    return keeper.pieces


def newest(keepers: Iterable[Process]) -> Generation | None:
    """Return the newest generation that keepers hold whole."""
    found = dict[Generation, set[int]]()
    for keeper in keepers:
        for generation, held in pieces_of(keeper).held.items():
            found.setdefault(generation, set()).update(held)
    return max((one for one, held in found.items() if len(held) == one.hosts), default=None)
