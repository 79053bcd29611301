"""Measured energy: meters' reports, and which of the model's joules they stand for.

The books of :mod:`rms.core.books.ledger` are the model's, from events alone. A report of a node's
meters has the energy of its devices since the one before (cumulative, so that a lost one loses
nothing). For that time the measurement takes the place of the model, and both are split over the
owners of the node (:mod:`rms.core.books.spans`): a device's energy in proportion to the modelled
one, or to time where the model has 0 W. A device that several nodes share is split by the model
alone, so each owner's part is uncertain (:meth:`Measured.split_errors`). The model supplies the
energy for the time that a device was unseen, in proportion to the device's share of the measured
energy there, and for the time since the last report. Energy above the bound of a device is refused.
No I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from rms.core.books.spans import IDLE, MODEL, OFF, WHOLE, Share, Span, Spans
from rms.wire.messages import NODE_LIMIT_W, DeviceEnergy, MeterAnswer, Metered

KEPT_S = 3600.0
"""How long after its last reading a device's energy is still split over those who held it then."""

SILENT_S, LONGEST_SILENT_S = 10.0, 600.0
"""The model's power replaces that of a device without a report for this time, or for three times
the interval of its last two reports (at most the longest)."""

MOST_W = 2 * NODE_LIMIT_W
"""Default bound of the power of a device."""

SLACK_S = 10.0
"""A report may exceed the bound of a device by the energy of this time at the bound."""

ROUNDING = 1e-9
"""A smaller uncertainty of a split, as a share of the device's energy, is set to 0."""

AGENTS_KEPT = 8
"""How many agents of a host are remembered that another one has replaced."""


class ReplacedAgentError(ValueError):
    """A report of an agent in whose place another one reports now."""


class Device(msgspec.Struct):
    """A device with its last report.

    Attributes:
        energy: as last reported.
        at_s: when.
        booked_j: its energy in the books.
        errors_j: its uncertainty in the books, by source, without that of its split.
        agent: the agent that reported it last.
        taken_s: receipt of its last report with new joules, in the books' time.
        left_j: energy that its next reports may have within the bound of its power.
    """

    energy: DeviceEnergy
    at_s: float
    booked_j: float = 0.0
    errors_j: dict[str, float] = {}
    agent: str = ""
    taken_s: float = 0.0
    left_j: float = 0.0


class Host(msgspec.Struct):
    """The meters of a host: all that a restarted daemon needs.

    Attributes:
        agent: the id of the agent that reports now.
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
        """The answer to an agent that asks where to go on."""
        known = [device.energy for device in self.devices.values()]
        return MeterAnswer(known, self.boot, self.at_s)


@dataclass(frozen=True)
class Reading:
    """The energy of a device since its last report.

    Attributes:
        device: the device, with this report included.
        nodes: those it belongs to.
        since_s: when that was.
        share: the measured energy, with its uncertainty.
        unseen_s: how much of the time nothing was measured.
        watts: its mean power by node, W; empty if nothing was measured.
    """

    device: Device
    nodes: Sequence[str]
    since_s: float
    share: Share
    unseen_s: float
    watts: dict[str, float] = field(default_factory=dict)

    @property
    def unseen(self) -> float:
        """The share of the time in which nothing was measured."""
        span_s = self.device.at_s - self.since_s
        return min(1.0, self.unseen_s / span_s) if span_s > 0.0 else 0.0

    def silent(self, at_s: float) -> bool:
        """Return whether the model replaces the reading at a time."""
        late_s = at_s - self.device.at_s
        usual_s = max(SILENT_S, min(3 * (self.device.at_s - self.since_s), LONGEST_SILENT_S))
        return self.unseen >= 1.0 or late_s > usual_s


class Measured:
    """Takes reports in and keeps the sums.

    Attributes:
        spans: the owners of nodes; the sums.
        hosts: by the name under which they report.
        node_w: newest mean power of nodes that are measured, W.
        sources: their meters.
        until_s: when the newest report was made.
        idle_w: idle power of each node in the model, W.
        errors_j: uncertainty of all measured energy, by source.
        most_w: bound of the power of each device; a reading above it is refused.
        refused: devices whose energy in the newest report was refused.
    """

    def __init__(self) -> None:
        self.most_w = MOST_W
        self.refused: list[str] = []
        self._newest: dict[str, dict[str, Reading]] = {}
        self.spans = Spans()
        self.hosts: dict[str, Host] = {}
        self.node_w: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self.until_s = -inf
        self.idle_w: dict[str, float] = {}
        self.errors_j: dict[str, float] = {}

    def take(self, report: Metered, now_s: float, nodes: Mapping[str, Sequence[str]]) -> bool:
        """Take in a report; return whether it is news. A repeated one changes nothing.

        Args:
            now_s: the books' time; of a report from later, their clocks differ.
            nodes: the nodes that each device belongs to; several share it.

        Raises:
            ReplacedAgentError: another agent reports in its place.
        """
        at_s = min(report.at_s, now_s)
        host = self.hosts.get(report.node)
        if host is None:
            host = self.hosts[report.node] = Host(report.agent, -1, at_s)
        if report.agent != host.agent:
            if report.number or report.agent in host.before:
                got = f"{report.agent}, which it has replaced"
                raise ReplacedAgentError(f"expected a report of agent {host.agent}, got {got}")
            host.before = [*host.before, host.agent][-AGENTS_KEPT:]
            host.agent, host.number = report.agent, -1
            self._newest.pop(report.node, None)
        if report.number <= host.number:
            return False
        host.number = report.number
        since_s, host.heard_s = host.heard_s, max(host.heard_s, at_s)
        if report.number:
            host.boot, host.at_s = report.boot, report.at_s
            self._book(host, report, (since_s, now_s), nodes)
        return True

    def _book(
        self,
        host: Host,
        report: Metered,
        times_s: tuple[float, float],
        nodes: Mapping[str, Sequence[str]],
    ) -> None:
        (since_s, now_s), at_s = times_s, host.heard_s
        self.until_s = max(self.until_s, at_s)
        readings, self.refused = [], []
        for energy in report.devices:
            device = host.devices.get(energy.device)
            if device is None:  # it began since the last report; with nothing measured yet, now
                begun_s = since_s if energy.joules else at_s
                device = Device(DeviceEnergy(energy.device, energy.source, 0.0), begun_s)
                device.taken_s, device.left_j = begun_s, self.most_w * SLACK_S
                if begun_s == at_s:
                    device.energy = energy
                host.devices[energy.device] = device
            device.agent = host.agent
            own = nodes.get(energy.device, ())
            readings.append(self._reading(device, energy, (at_s, now_s), own))
        by_node: dict[str, list[Reading]] = {}
        for reading in readings:
            for node in reading.nodes:
                by_node.setdefault(node, []).append(reading)
        for node, of_node in by_node.items():
            self._replace(host, node, of_node)
        newest = self._newest.setdefault(report.node, {})
        for reading in readings:
            self._spread(reading)
            newest[reading.device.energy.device] = reading
        self._set_power(newest.values(), at_s)

    def _reading(
        self,
        device: Device,
        energy: DeviceEnergy,
        times_s: tuple[float, float],
        nodes: Sequence[str],
    ) -> Reading:
        """Return the reading of a device since its last report, and enter it."""
        (at_s, now_s), before, since_s = times_s, device.energy, device.at_s
        left_j = min(device.left_j, self.most_w * SLACK_S)
        left_j += self.most_w * max(0.0, now_s - device.taken_s)
        device.energy, device.at_s = energy, at_s
        share = Share(estimate=len(nodes) > 1)
        joules = energy.joules - before.joules
        error_j = max(0.0, energy.uncertainty_j - before.uncertainty_j)
        if joules > 0.0:  # its counter may be renewed less often than it is reported
            device.taken_s, device.left_j = now_s, left_j
        if max(joules, error_j) > left_j:
            self.refused.append(energy.device)
            return Reading(device, nodes, since_s, share, at_s - since_s)
        if joules < 0.0:  # the count of another meter: the time between is unseen
            return Reading(device, nodes, since_s, share, at_s - since_s)
        device.left_j -= joules
        share.joules, share.uncertainty_j = joules, error_j
        unseen_s = min(max(0.0, energy.unseen_s - before.unseen_s), at_s - since_s)
        return Reading(device, nodes, since_s, share, unseen_s)

    def _set_power(self, newest: Collection[Reading], at_s: float) -> None:
        """Set the power of the nodes of a host, and its sources, from the readings of devices."""
        by_node: dict[str, list[Reading]] = {}
        for reading in newest:
            for node in reading.nodes:
                by_node.setdefault(node, []).append(reading)
        for node, of_node in by_node.items():
            seen = [reading for reading in of_node if not reading.silent(at_s)]
            if not seen:
                self.node_w.pop(node, None)
                self.sources.pop(node, None)
                continue
            sources = {reading.device.energy.source for reading in seen}
            watts = [reading.watts[node] for reading in seen if node in reading.watts]
            if len(seen) < len(of_node):
                whole_j = sum(reading.device.energy.joules for reading in of_node)
                seen_j = sum(reading.device.energy.joules for reading in seen)
                share = seen_j / whole_j if whole_j else len(seen) / len(of_node)
                spans = self.spans.on(node)
                sources.add(MODEL)
                watts.append((1.0 - share) * (spans[-1].watts if spans else 0.0))
            if any(reading.watts for reading in seen):
                self.node_w[node] = sum(watts)
            self.sources[node] = " and ".join(
                sorted(sources, key=lambda source: (source == MODEL, source))
            )

    def _replace(self, host: Host, node: str, readings: Sequence[Reading]) -> None:
        """Take the model's energy of a node out of the books for the time of a report."""
        at_s = host.heard_s
        since_s = host.nodes.get(node, min(reading.since_s for reading in readings))
        host.nodes[node] = at_s
        weights = [reading.device.energy.joules for reading in readings]
        if not sum(weights):
            weights = [1.0] * len(readings)
        seen = zip(weights, readings, strict=True)
        share = sum(weight * (1.0 - reading.unseen) for weight, reading in seen) / sum(weights)
        for span, seconds in self.spans.pieces(node, since_s, at_s):
            until_s = at_s if span.end_s is None else min(at_s, span.end_s)
            self.spans.replaced(span, share * span.watts * seconds, until_s)

    def _spread(self, reading: Reading) -> None:
        """Split the energy of a device over the owners of its nodes."""
        at_s, since_s, whole = reading.device.at_s, reading.since_s, reading.share
        pieces = [
            piece for node in reading.nodes for piece in self.spans.pieces(node, since_s, at_s)
        ]
        if not pieces:
            return
        joules, span_s = whole.joules, at_s - since_s
        if span_s > 0.0:  # a part of the time may be before the books, or of no cluster
            held = sum(seconds for _, seconds in pieces) / (span_s * len(reading.nodes))
            joules *= 1.0 if held > 1.0 - 1e-9 else held
        reading.device.booked_j += joules
        scale = joules / whole.joules if whole.joules else 0.0
        energy, error_j = reading.device.energy, whole.uncertainty_j * scale
        for errors_j in (reading.device.errors_j, self.errors_j):
            errors_j[energy.source] = errors_j.get(energy.source, 0.0) + error_j
        weights, left_j, of_node = _weights(pieces), joules, dict.fromkeys(reading.nodes, 0.0)
        splits = self.split_errors(pieces, weights, joules) if whole.estimate else None
        for at, ((span, _), weight) in enumerate(zip(pieces, weights, strict=True), 1):
            part_j = joules * weight if at < len(pieces) else left_j
            left_j -= part_j
            of_node[span.node] += part_j
            part_error_j = error_j * weight + (splits[at - 1] if splits else 0.0)
            if part_j or part_error_j:
                share = Share(part_j, part_error_j, whole.estimate)
                self.spans.measured(span, energy.device, energy.source, share)
        seen_s = span_s - reading.unseen_s
        for node, part_j in of_node.items():
            self.spans.totals.enter_node(node, part_j)
            if seen_s > 0.0:
                reading.watts[node] = part_j / seen_s

    def split_errors(
        self, pieces: Sequence[tuple[Span, float]], weights: Sequence[float], joules: float
    ) -> list[float]:
        """Return the uncertainty of each part of a shared device's energy due to the split, J.

        The dynamic energy of the device is the measured energy minus the modelled idle energy of
        its nodes (scaled down if less than the model's total was measured). The energy of an owner
        is at least the idle energy of its own nodes, and at most that plus the whole dynamic
        energy; the only running owner has the maximum. The uncertainty is the distance to the
        farther bound, so the true value lies within it. Weights divide that of an owner over its
        pieces.
        """
        modelled_j = sum(span.watts * seconds for span, seconds in pieces)
        scale = min(1.0, joules / modelled_j) if modelled_j else 0.0
        part_j, idle_j, weight = dict[str, float](), dict[str, float](), dict[str, float]()
        for (span, seconds), share in zip(pieces, weights, strict=True):
            owner, idle_w = span.owner, min(span.watts, self.idle_w.get(span.node, 0.0))
            part_j[owner] = part_j.get(owner, 0.0) + share * joules
            idle_j[owner] = idle_j.get(owner, 0.0) + scale * idle_w * seconds
            weight[owner] = weight.get(owner, 0.0) + share
        dynamic_j = max(0.0, joules - sum(idle_j.values()))
        running = [owner for owner in part_j if owner not in (IDLE, OFF)]
        errors = {}
        for owner, own_j in part_j.items():
            most_j = idle_j[owner] + (dynamic_j if owner in running else 0.0)
            least_j = most_j if running == [owner] else idle_j[owner]
            error_j = max(own_j - least_j, most_j - own_j)
            errors[owner] = error_j if error_j > ROUNDING * joules else 0.0
        number = Counter(span.owner for span, _ in pieces)
        return [
            errors[span.owner]
            * (share / weight[span.owner] if weight[span.owner] else 1.0 / number[span.owner])
            for (span, _), share in zip(pieces, weights, strict=True)
        ]

    # --- silent meters, and the time from which spans are kept -------------------------------

    def forget_power(self, host: str) -> None:
        """Take the power of a host's nodes from the model: its meters have fallen silent."""
        self._newest.pop(host, None)
        for node in self.hosts[host].nodes:
            self.node_w.pop(node, None)
            self.sources.pop(node, None)

    def silent(self, host: str) -> set[str]:
        """Return the devices of a host that its agent reported before, but no longer reports."""
        readings, heard_s = self._newest.get(host, {}), self.hosts[host].heard_s
        return {
            name
            for name, reading in readings.items()
            if reading.unseen < 1.0 and reading.silent(heard_s)
        }

    def whole(self, host: str) -> bool:
        """Return whether the current agent of a host has reported the whole node as a device."""
        state = self.hosts.get(host)
        device = None if state is None else state.devices.get(WHOLE)
        return state is not None and device is not None and device.agent == state.agent

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
        kept_s: dict[str, float] = {}
        for host in self.hosts.values():
            times = [device.at_s for device in host.devices.values()]
            from_s = max(min(times, default=host.heard_s), host.heard_s - KEPT_S)
            kept_s.update(dict.fromkeys(host.nodes, from_s))
        return kept_s


def _weights(pieces: Sequence[tuple[Span, float]]) -> list[float]:
    """Return shares of pieces of time: by energy of the model, by time, else equal ones."""
    by_energy = [span.watts * seconds for span, seconds in pieces]
    for parts in (by_energy, [seconds for _, seconds in pieces]):
        whole = sum(parts)
        if whole > 0.0:
            return [part / whole for part in parts]
    return [1.0 / len(pieces)] * len(pieces)
