"""Since when nodes have been idle, and how many were powered off and on in the last minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from rms.core.modes import Node

MINUTE_S = 60.0
"""The time over which switches are counted, as Slurm's SuspendRate and ResumeRate count them."""


@dataclass(slots=True)
class Idle:
    """Kept while a policy may power nodes off.

    Attributes:
        since_s: when each node was last given back; of those never held, when this began.
        off_s, on_s: when hosts were powered off, and on, an entry for each, of the last minute.
    """

    since_s: dict[Node, float] = field(default_factory=dict)
    off_s: list[float] = field(default_factory=list)
    on_s: list[float] = field(default_factory=list)

    def begin(self, nodes: int, now_s: float) -> None:
        """Take all nodes for idle from now on, as far as is known."""
        self.since_s = dict.fromkeys(map(Node, range(nodes)), now_s)

    def free(self, nodes: Iterable[Node], now_s: float) -> None:
        """Enter that nodes were given back."""
        self.since_s.update(dict.fromkeys(nodes, now_s))

    def whole_since_s(self, slots: Iterable[Node]) -> float:
        """Return since when all slots of a host have been idle, which they are."""
        return max([self.since_s.get(node, -inf) for node in slots])

    def switch(self, now_s: float, *, on: bool) -> None:
        """Enter that a host was powered on or off."""
        times = self.on_s if on else self.off_s
        times[:] = [*_recent(times, now_s), now_s]

    def switches_left(self, at_most: int, now_s: float, *, on: bool) -> int:
        """Return how many more hosts may be powered on or off now."""
        return at_most - len(_recent(self.on_s if on else self.off_s, now_s))

    def next_s(self, at_most: int, now_s: float) -> float:
        """Return when more may be, where no more may now."""
        full = [_recent(times, now_s) for times in (self.off_s, self.on_s)]
        return min([times[0] + MINUTE_S for times in full if len(times) >= at_most], default=inf)


def _recent(times: list[float], now_s: float) -> list[float]:
    return [at_s for at_s in times if at_s + MINUTE_S > now_s]
