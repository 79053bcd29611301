"""Readings of power, from nodes' meters and this machine's devices, on their way to the books."""

from __future__ import annotations

from collections.abc import Callable

from rms.core.model import Node
from rms.core.scheduler import Scheduler
from rms.wire.messages import Metered

STALE_S = 60.0
"""A node whose power was not read for so long is booked by its model again."""


class Meters:
    """Takes readings, and lets the model speak again where they stop.

    Args:
        now: wall clock in seconds.
        say: where to tell the operator what happened.
    """

    def __init__(
        self, scheduler: Scheduler, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._scheduler, self._now, self._say = scheduler, now, say
        self._read_s: dict[Node, float] = {}
        self._unmetered: set[str] = set()

    def device(self, at_s: float, gpu: int, watts: float) -> None:
        """Take a reading of one of this machine's devices, for the node that it is."""
        for node, slots in enumerate(self._scheduler.cluster.slots):
            if slots == (f"gpu:{gpu}",):
                self._take(Node(node), at_s, watts, "nvidia-smi")

    def node(self, said: Metered) -> None:
        """Take what a node's meter says.

        Raises:
            ValueError: of a node that there is not.
        """
        names = self._scheduler.cluster.names
        if said.node not in names:
            raise ValueError(f"expected a node of this cluster, got {said.node}")
        if said.reason and said.reason not in self._unmetered:
            self._unmetered.add(said.reason)
            self._say(f"power is the model's on {said.node}, and others alike: {said.reason}")
        if said.watts is not None:
            self._take(Node(names.index(said.node)), self._now(), said.watts, said.source)

    def forget_stale(self, at_s: float) -> None:
        """Let the model speak for nodes whose meters have fallen silent.

        Args:
            at_s: time of the books from which it does.
        """
        before = self._now() - STALE_S
        names = self._scheduler.cluster.names
        for node in [node for node, read_s in self._read_s.items() if read_s < before]:
            self._say(f"no reading of {names[node]} for {STALE_S:g} s: by the model")
            self._scheduler.forget_reading(at_s, node)
            del self._read_s[node]

    def _take(self, node: Node, at_s: float, watts: float, source: str) -> None:
        self._scheduler.reading(at_s, node, watts, source)
        self._read_s[node] = self._now()
