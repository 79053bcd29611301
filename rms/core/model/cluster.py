"""The nodes of a cluster by name; the engine knows them by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from rms.core.model.contention import Processors, SharedNode, shared_nodes
from rms.core.model.jobs import Node, NodePower, Site


@dataclass(frozen=True)
class Cluster:
    """Nodes with the slots they hold (``cpu:3``, ``gpu:0``), and power models if any.

    Where jobs share nodes, a job gets slots: every slot then has an entry of its own in ``names``
    (``n1/0``) and ``slots``, and the slots of a host follow one another.

    Attributes:
        power: models by host; empty where there are none.
        bandwidth_gb_s: memory bandwidth by host, ``inf`` where it is not stated; empty where none
            is stated.
        shared: hosts that jobs share slot by slot; empty where jobs get whole nodes.
        levels: frequencies (GHz) and voltages that nodes can be set to, rising; empty for none.
        processors: kinds of processors by host, in the order of its slots; empty where a host has
            one kind only.
    """

    names: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]
    power: tuple[NodePower, ...]
    bandwidth_gb_s: tuple[float, ...] = ()
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()
    processors: tuple[tuple[Processors, ...], ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of slots by node."""
        return tuple(len(slots) for slots in self.slots)

    @property
    def site(self) -> Site:
        """The cluster for the engine."""
        names, shared = self.names, self.shared
        return Site(len(names), self.power, shared=shared, levels=self.levels, names=names)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts: the nodes, or the hosts of the slots."""
        return tuple(dict.fromkeys(map(self.host_of, range(len(self.names)))))

    @cached_property
    def nodes_of(self) -> dict[str, tuple[Node, ...]]:
        """Nodes by name: a node, a slot, or all slots of a host."""
        nodes: dict[str, tuple[Node, ...]] = {name: (Node(n),) for n, name in enumerate(self.names)}
        if self.shared:
            for node in range(len(self.names)):
                host = self.host_of(node)
                nodes[host] = (*nodes.get(host, ()), Node(node))
        return nodes

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of processors by slot: the name, else the number on the host, from 0.

        Empty where the processors of every host are alike and have no name.
        """
        if not any(len(node.processors) > 1 or node.processors[0].name for node in self.shared):
            return ()
        return tuple(
            kind.name or str(number)
            for node in self.shared
            for number, kind in enumerate(node.processors)
            for _ in range(kind.number)
        )

    def kinds_of(self, nodes: Iterable[int]) -> tuple[str, ...]:
        """Return the kinds of processors of slots, in order; empty where all are alike."""
        return tuple(self.kinds[node] for node in nodes) if self.kinds else ()

    def booked(self, host: str) -> tuple[str, ...]:
        """Return the names under which the energy of a host is booked.

        For a host that jobs share: its own name, for its idle power, and the names of its slots,
        for the power that jobs add.
        """
        if not self.shared:
            return (host,)
        return (host, *(self.names[node] for node in self.nodes_of[host]))

    def host_of(self, node: int) -> str:
        """Return the name of the host of a node, or slot."""
        name = self.names[node]
        return name.rpartition("/")[0] if self.shared else name

    def hosts_of(self, nodes: Iterable[int]) -> list[str]:
        """Return the hosts of nodes, in order, without repetition."""
        return list(dict.fromkeys(map(self.host_of, nodes)))

    @classmethod
    def recorded(
        cls,
        names: tuple[str, ...],
        power: tuple[NodePower, ...] = (),
        widths: tuple[int, ...] = (),
        shared: tuple[SharedNode, ...] = (),
        levels: tuple[tuple[float, float], ...] = (),
    ) -> Cluster:
        """Return a cluster as a journal records it: with numbers of slots, not their ids."""
        pairs = zip(names, widths or (1,) * len(names), strict=True)
        slots = tuple((f"{name}/",) * width for name, width in pairs)
        return cls(names, slots, power, shared=shared, levels=levels)

    def first(self, number: int) -> Cluster:
        """Return the first nodes of a cluster whose nodes are not shared."""
        fields = ("names", "slots", "power", "bandwidth_gb_s", "processors")
        return replace(self, **{name: getattr(self, name)[:number] for name in fields})

    def split(self) -> Cluster:
        """Return the same hosts, shared slot by slot.

        A kind of processors with a name gives it to its slots: ``n1/gpu0``.
        """
        shared = shared_nodes(self.widths, self.bandwidth_gb_s, self.processors)
        names = tuple(
            f"{host}/{slot}"
            for host, node in zip(self.names, shared, strict=True)
            for slot in _slot_names(node)
        )
        slots = tuple((slot,) for of_host in self.slots for slot in of_host)
        return replace(self, names=names, slots=slots, shared=shared)

    def slots_of(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Return the slots of nodes, in order."""
        return tuple(slot for node in nodes for slot in self.slots[node])


def _slot_names(node: SharedNode) -> Iterable[str]:
    """Yield the names of a host's slots, numbered by kind; kinds without a name count as one."""
    numbers: Counter[str] = Counter()
    for kind in node.processors:
        for _ in range(kind.number):
            yield f"{kind.name}{numbers[kind.name]}"
            numbers[kind.name] += 1
