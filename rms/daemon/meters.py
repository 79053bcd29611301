"""Readings of energy, from the meters of nodes, on their way to the books."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rms.core.model import Node
from rms.core.scheduler import Scheduler
from rms.wire.messages import DeviceEnergy, MeterAnswer, Metered

STALE_S = 60.0
"""A node whose energy was not read for so long is booked by its model again."""


@dataclass
class _Host:
    """What was last reported of a node, or of this machine."""

    report: Metered
    devices: dict[str, DeviceEnergy] = field(default_factory=dict)
    at_s: dict[str, float] = field(default_factory=dict)
    watts: dict[str, float] = field(default_factory=dict)


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
        self._hosts: dict[str, _Host] = {}
        self._read_s: dict[Node, float] = {}
        self._unmetered: set[str] = set()

    def node(self, said: Metered) -> MeterAnswer:
        """Take what a node's agent has read; answer to its first word with what is known.

        Raises:
            ValueError: of a node that there is not.
        """
        if said.node and said.node not in self._scheduler.cluster.names:
            raise ValueError(f"expected a node of this cluster, got {said.node}")
        host = self._hosts.get(said.node)
        if said.number == 0:
            if host is None:
                return MeterAnswer()
            last = host.report
            return MeterAnswer(list(host.devices.values()), last.boot, last.at_s)
        if said.reason and said.reason not in self._unmetered:
            self._unmetered.add(said.reason)
            self._say(
                f"power is the model's on {said.node or 'this machine'}, and others alike:"
                f" {said.reason}"
            )
        host = self._hosts.setdefault(said.node, _Host(said))
        if host.report.agent == said.agent and said.number < host.report.number:
            return MeterAnswer()
        host.report = said
        for device in said.devices:
            self._mean(host, device)
        self._book(said, host)
        return MeterAnswer()

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

    def _mean(self, host: _Host, device: DeviceEnergy) -> None:
        """Enter a device's mean power since it was reported last."""
        name, at_s = device.device, host.report.at_s
        before = host.devices.get(name)
        if before is not None and at_s > host.at_s[name]:
            host.watts[name] = (device.joules - before.joules) / (at_s - host.at_s[name])
        host.devices[name], host.at_s[name] = device, at_s

    def _book(self, said: Metered, host: _Host) -> None:
        """Hand on the power of the nodes that a report is of, each device's to its own."""
        cluster = self._scheduler.cluster
        if said.node:
            node = Node(cluster.names.index(said.node))
            self._take(node, list(host.watts), host, 1)
            return
        nodes = [Node(n) for n in range(len(cluster.names))]
        shared = [name for name in host.watts if not name.startswith("gpu-")]
        for node in nodes:
            slots = cluster.slots[node]
            own = [name for name in host.watts if slots == (name.replace("-", ":"),)]
            if any(slot.startswith("gpu:") for slot in slots):
                self._take(node, own, host, 1)
            else:
                self._take(node, shared, host, len(nodes))

    def _take(self, node: Node, devices: Iterable[str], host: _Host, share: int) -> None:
        found = list(devices)
        if found:
            watts = sum(host.watts[name] for name in found) / share
            source = " and ".join(dict.fromkeys(host.devices[name].source for name in found))
            self._scheduler.reading(self._now(), node, watts, source)
            self._read_s[node] = self._now()
