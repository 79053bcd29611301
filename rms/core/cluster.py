"""The nodes that jobs run on, by name: what stands behind the numbers the engine gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rms.core.model import Node, NodePower, Site


@dataclass(frozen=True)
class Cluster:
    """Nodes with the slots they hold (``cpu:3``, ``gpu:0``), and power models if any."""

    names: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]
    power: tuple[NodePower, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """How many slots each node holds."""
        return tuple(len(slots) for slots in self.slots)

    @property
    def site(self) -> Site:
        """What the engine knows of it."""
        return Site(len(self.names), self.power)

    @classmethod
    def recorded(
        cls, names: tuple[str, ...], power: tuple[NodePower, ...], widths: tuple[int, ...]
    ) -> Cluster:
        """Return nodes as a journal knows them: how many slots they had, not which."""
        each = widths or (1,) * len(names)
        slots = tuple((f"{name}/",) * n for name, n in zip(names, each, strict=True))
        return cls(names, slots, power)

    def slots_of(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Return the slots of nodes, in order."""
        return tuple(slot for node in nodes for slot in self.slots[node])
