"""Measured energy: meters' reports, and which of the model's joules they stand for.

The books of :mod:`rms.core.ledger` are the model's, from events alone. A report of a node's meters
tells the energy of its devices since the one before (cumulative, so that a lost one loses nothing).
For that time the measurement takes the place of the model, and both are split over those who held
the node (:mod:`rms.core.spans`): a device's energy in proportion to the modelled one, or to time
where the model says 0 W. For the time that a device was not seen the model goes on speaking, in
proportion to what that device has of all that was measured there. After the last report the model
speaks, until the next one. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from rms.core.joules import Share, Span
from rms.core.spans import Spans
from rms.wire.messages import DeviceEnergy, MeterAnswer, Metered

KEPT_S = 3600.0
"""How long after its last reading a device's energy is still split over those who held it then."""

AGENTS_KEPT = 8
"""How many agents of a host are remembered that another one has replaced."""

NodesOf = Callable[[str], Sequence[str]]
"""Says which nodes a device belongs to; several share it, none is not in the books."""


class ReplacedAgentError(ValueError):
    """A report of an agent in whose place another one reports now."""


class Device(msgspec.Struct):
    """What is known of a device.

    Attributes:
        energy: as last reported.
        at_s: when.
        booked_j: what of it is in the books.
    """

    energy: DeviceEnergy
    at_s: float
    booked_j: float = 0.0


class Host(msgspec.Struct):
    """What is known of the meters of a host: all that a restarted daemon needs.

    Attributes:
        agent: who reports now.
        number: of its newest report.
        heard_s: when that was, by the daemon's clock at most.
        boot, at_s: of the newest report that was booked, as it says.
        devices: by name.
        nodes: until when reports have been booked, by node.
        before: agents that were replaced.
    """

    agent: str
    number: int
    heard_s: float
    boot: str = ""
    at_s: float = 0.0
    devices: dict[str, Device] = {}
    nodes: dict[str, float] = {}
    before: list[str] = []

    @property
    def answer(self) -> MeterAnswer:
        """What an agent is told that asks where to go on."""
        known = [device.energy for device in self.devices.values()]
        return MeterAnswer(known, self.boot, self.at_s)


@dataclass(frozen=True)
class Reading:
    """What a device has had since its last report.

    Attributes:
        known: what is known of it, this report included.
        nodes: those it belongs to.
        since_s: when that was.
        share: what was measured, with its uncertainty.
        unseen_s: how much of the time nothing was measured.
    """

    known: Device
    nodes: Sequence[str]
    since_s: float
    share: Share
    unseen_s: float

    @property
    def unseen(self) -> float:
        """The share of the time in which nothing was measured."""
        span_s = self.known.at_s - self.since_s
        return min(1.0, self.unseen_s / span_s) if span_s > 0.0 else 0.0


class Measured:
    """Takes reports in and keeps the sums.

    Attributes:
        spans: who held which node; the sums.
        hosts: by the name under which they report.
        node_w: newest mean power of nodes that are measured, W.
        sources: what measures them.
        until_s: when the newest report was made.
    """

    def __init__(self) -> None:
        self.spans = Spans()
        self.hosts: dict[str, Host] = {}
        self.node_w: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self.until_s = -inf

    def take(self, said: Metered, now_s: float, nodes_of: NodesOf) -> bool:
        """Take in a report; return whether it is news. One heard already changes nothing.

        Args:
            now_s: the books' time; of a report from later, their clocks differ.
            nodes_of: which nodes a device belongs to.

        Raises:
            ReplacedAgentError: another agent reports in its place.
        """
        at_s = min(said.at_s, now_s)
        host = self.hosts.get(said.node)
        if host is None:
            host = self.hosts[said.node] = Host(said.agent, -1, at_s)
        if said.agent != host.agent:
            if said.number or said.agent in host.before:
                got = f"{said.agent}, which it has replaced"
                raise ReplacedAgentError(f"expected a report of agent {host.agent}, got {got}")
            host.before = [*host.before, host.agent][-AGENTS_KEPT:]
            host.agent, host.number = said.agent, -1
        if said.number <= host.number:
            return False
        host.number = said.number
        since_s, host.heard_s = host.heard_s, max(host.heard_s, at_s)
        if said.number:
            host.boot, host.at_s = said.boot, said.at_s
            self._book(host, said, since_s, nodes_of)
        return True

    def _book(self, host: Host, said: Metered, since_s: float, nodes_of: NodesOf) -> None:
        at_s = host.heard_s
        self.until_s = max(self.until_s, at_s)
        readings = []
        for energy in said.devices:
            known = host.devices.get(energy.device)
            if known is None:  # it began since the last report; with nothing measured yet, now
                begun_s = since_s if energy.joules else at_s
                known = Device(DeviceEnergy(energy.device, energy.source, 0.0), begun_s)
                if begun_s == at_s:
                    known.energy = energy
                host.devices[energy.device] = known
            readings.append(_reading(known, energy, at_s, nodes_of(energy.device)))
        by_node: dict[str, list[Reading]] = {}
        for reading in readings:
            for node in reading.nodes:
                by_node.setdefault(node, []).append(reading)
        for node, of_node in by_node.items():
            self._replace(host, node, of_node)
        watts: dict[str, float] = {}
        for reading in readings:
            self._spread(reading, watts)
        self.node_w.update(watts)
        for node, of_node in by_node.items():
            self.sources[node] = " and ".join(
                sorted({reading.known.energy.source for reading in of_node})
            )

    def _replace(self, host: Host, node: str, readings: Sequence[Reading]) -> None:
        """Take the model's energy of a node out of the books for the time of a report."""
        at_s = host.heard_s
        since_s = host.nodes.get(node, min(reading.since_s for reading in readings))
        host.nodes[node] = at_s
        weights = [reading.known.energy.joules for reading in readings]
        if not sum(weights):
            weights = [1.0] * len(readings)
        seen = zip(weights, readings, strict=True)
        share = sum(weight * (1.0 - reading.unseen) for weight, reading in seen) / sum(weights)
        for span, seconds in self.spans.pieces(node, since_s, at_s):
            until_s = at_s if span.end_s is None else min(at_s, span.end_s)
            self.spans.replaced(span, share * span.watts * seconds, until_s)

    def _spread(self, reading: Reading, watts: dict[str, float]) -> None:
        """Split what a device has had over those who held its nodes."""
        at_s, since_s, whole = reading.known.at_s, reading.since_s, reading.share
        pieces = [
            piece for node in reading.nodes for piece in self.spans.pieces(node, since_s, at_s)
        ]
        if not pieces:
            return
        joules, span_s = whole.joules, at_s - since_s
        if span_s > 0.0:  # a part of the time may be before the books, or of no cluster
            held = sum(seconds for _, seconds in pieces) / (span_s * len(reading.nodes))
            joules *= 1.0 if held > 1.0 - 1e-9 else held
        reading.known.booked_j += joules
        scale = joules / whole.joules if whole.joules else 0.0
        weights, left_j, of_node = _weights(pieces), joules, dict.fromkeys(reading.nodes, 0.0)
        for at, ((span, _), weight) in enumerate(zip(pieces, weights, strict=True), 1):
            part_j = joules * weight if at < len(pieces) else left_j
            left_j -= part_j
            of_node[span.node] += part_j
            error_j = whole.uncertainty_j * scale * weight
            energy = reading.known.energy
            if part_j or error_j:
                share = Share(part_j, error_j, whole.estimate)
                self.spans.measured(span, energy.device, energy.source, share)
        seen_s = span_s - reading.unseen_s
        for node, part_j in of_node.items():
            self.spans.totals.enter_node(node, part_j)
            if seen_s > 0.0:
                watts[node] = watts.get(node, 0.0) + part_j / seen_s

    # --- who is silent, and what is kept -----------------------------------------------------

    def forget_power(self, host: str) -> None:
        """Let the model say what a host's nodes draw: its meters have fallen silent."""
        for node in self.hosts[host].nodes:
            self.node_w.pop(node, None)
            self.sources.pop(node, None)

    @property
    def nodes(self) -> list[str]:
        """The nodes that meters have reported of."""
        return [node for host in self.hosts.values() for node in host.nodes]

    @property
    def booked_s(self) -> dict[str, float]:
        """Until when meters have reported, by node."""
        return {node: at_s for host in self.hosts.values() for node, at_s in host.nodes.items()}

    @property
    def kept_s(self) -> dict[str, float]:
        """From when on spans are kept, by node: a report may tell of a time since then."""
        found = {}
        for host in self.hosts.values():
            times = [device.at_s for device in host.devices.values()]
            from_s = max(min(times, default=host.heard_s), host.heard_s - KEPT_S)
            found.update(dict.fromkeys(host.nodes, from_s))
        return found


def _reading(known: Device, energy: DeviceEnergy, at_s: float, nodes: Sequence[str]) -> Reading:
    """Return what a device has had since it was last reported, and take that in."""
    before, since_s = known.energy, known.at_s
    known.energy, known.at_s = energy, at_s
    share = Share(estimate=len(nodes) > 1)
    if energy.joules < before.joules:  # another meter's count: nothing is known of the time between
        return Reading(known, nodes, since_s, share, at_s - since_s)
    share.joules = energy.joules - before.joules
    share.uncertainty_j = max(0.0, energy.uncertainty_j - before.uncertainty_j)
    unseen_s = min(max(0.0, energy.unseen_s - before.unseen_s), at_s - since_s)
    return Reading(known, nodes, since_s, share, unseen_s)


def _weights(pieces: Sequence[tuple[Span, float]]) -> list[float]:
    """Return shares of pieces of time: by energy of the model, by time, else equal ones."""
    for found in (
        [span.watts * seconds for span, seconds in pieces],
        [seconds for _, seconds in pieces],
    ):
        whole = sum(found)
        if whole > 0.0:
            return [each / whole for each in found]
    return [1.0 / len(pieces)] * len(pieces)
