"""Measured energy: meters' reports, which replace energy of the model.

The books of :mod:`rms.core.books.ledger` are the model's, from events alone. A report of a node's
meters has the energy of its devices since the one before (cumulative, so that a lost report loses
no energy). For that time the measurement takes the place of the model, and both are split over the
owners of the node (:mod:`rms.core.books.spans`): a device's energy in proportion to the modelled
energy, or to time where the model has 0 W. A device that several nodes share is split by the
activity of its owners, where agents report it (:mod:`rms.core.books.shares`), else by the model
alone (:meth:`Measured.split_errors`); its parts are uncertain. The model supplies the
energy for the time in which a device was not read, in proportion to the device's share of the
measured energy there, and for the time since the last report. Energy above the bound of a device is
refused. No I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from rms.core.books.shares import Fit, Work, split, work
from rms.core.books.spans import BOOT, IDLE, MODEL, OFF, WHOLE, Share, Span, Spans
from rms.wire.messages import NODE_LIMIT_W, Activity, DeviceEnergy, MeterAnswer, Metered

KEPT_S = 3600.0
"""Spans are kept for this time after a device's last reading, to split its energy later."""

SILENT_S, LONGEST_SILENT_S = 10.0, 600.0
"""The model's power replaces that of a device without a report for the first time, or for three
times the interval of its last two reports, at most for the second time."""

MOST_W = 2 * NODE_LIMIT_W
"""Default bound of the power of a device."""

SLACK_S = 10.0
"""A report may exceed the bound of a device by the energy of this time at the bound."""

ROUNDING = 1e-9
"""A smaller uncertainty of a split, as a share of the device's energy, is set to 0."""

FITTED_S = 60.0
"""Longer intervals between two readings are not fitted."""

HOST = ""
"""Owner of the activity of a whole host, and in an interval of that of no job."""

AGENTS_KEPT = 8
"""Number of replaced agents of a host that are remembered."""


class ReplacedAgentError(ValueError):
    """A report of an agent that another one has replaced."""


class MeteredDevice(msgspec.Struct):
    """A device with its last report.

    Attributes:
        energy: as last reported.
        at_s: time of that report.
        booked_j: its energy in the books.
        errors_j: its uncertainty in the books, by source, without that of its split.
        agent: the agent that reported it last.
        taken_s: receipt of its last report with new joules, in the books' time.
        left_j: energy that its next reports may have within the bound of its power.
        fit: of its power to activity, where several nodes share it.
        activity, active_s: of the host at its last report with new joules, with the time; None
            where that report had none.
    """

    energy: DeviceEnergy
    at_s: float
    booked_j: float = 0.0
    errors_j: dict[str, float] = {}
    agent: str = ""
    taken_s: float = 0.0
    left_j: float = 0.0
    fit: Fit = msgspec.field(default_factory=Fit)
    activity: dict[str, Activity] | None = {}
    active_s: float = 0.0

    def works(self, activity: Mapping[str, Activity], at_s: float) -> tuple[dict[str, Work], float]:
        """Return the activity since its last report with new joules by owner, and the time, s.

        That of the whole host, "", becomes that of no job. Without activity in both reports there
        is none.
        """
        if is_gpu(self.energy.device):
            device = self.energy.device
            known = HOST in activity and device in activity[HOST].gpu_s
            owners = activity.items() if known else ()
            activity = {owner: Activity(owner, own.gpu_s.get(device, 0.0)) for owner, own in owners}
        before, seconds = self.activity, at_s - self.active_s
        self.activity, self.active_s = dict(activity) or None, at_s
        if before is None or self.activity is None:
            return {}, seconds
        works = {owner: work(now, before.get(owner)) for owner, now in activity.items()}
        host = works.pop(HOST, None)
        if host is not None:
            jobs = list(works.values())
            rest = [0.0, 0.0, 0.0]
            if host.counters is not None:
                counted = [each.counters for each in jobs if each.counters is not None]
                sums = zip(host.counters, *counted, strict=True)
                rest = [max(0.0, whole - sum(own)) for whole, *own in sums]
            cpu_s = max(0.0, host.cpu_s - sum(each.cpu_s for each in jobs))
            gpu_s = max(0.0, host.gpu_s - sum(each.gpu_s for each in jobs))
            works[HOST] = Work(cpu_s, (rest[0], rest[1], rest[2]), gpu_s)
        return works, seconds


class MeteredHost(msgspec.Struct):
    """The meters of a host, for a restarted daemon.

    Attributes:
        agent: the id of the agent that reports now.
        number: of its newest report.
        heard_s: time of that report, at most the daemon's time.
        boot, at_s: of the newest report that was booked.
        devices: by name.
        nodes: end of the booked reports, by node.
        before: agents that were replaced.
    """

    agent: str
    number: int
    heard_s: float
    boot: str = ""
    at_s: float = 0.0
    devices: dict[str, MeteredDevice] = {}
    nodes: dict[str, float] = {}
    before: list[str] = []

    @property
    def answer(self) -> MeterAnswer:
        """The answer to an agent that begins: the last readings."""
        energies = [device.energy for device in self.devices.values()]
        return MeterAnswer(energies, self.boot, self.at_s)


@dataclass(frozen=True)
class DeviceReading:
    """The energy of a device since its last report.

    Attributes:
        device: the device, with this report included.
        nodes: the nodes that it belongs to.
        since_s: time of the last report.
        share: the measured energy, with its uncertainty.
        unseen_s: part of the time without a measurement.
        watts: its mean power by node, W; empty without a measurement.
        works: activity by owner since its last report with new joules, "" that of no job.
    """

    device: MeteredDevice
    nodes: Sequence[str]
    since_s: float
    share: Share
    unseen_s: float
    watts: dict[str, float] = field(default_factory=dict)
    works: Mapping[str, Work] = field(default_factory=dict)

    @property
    def unseen(self) -> float:
        """The share of the time without a measurement."""
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
        hosts: by name.
        node_w: newest mean power of nodes that are measured, W.
        sources: their meters.
        until_s: time of the newest report.
        idle_w: idle power in the model by node, W.
        errors_j: uncertainty of all measured energy, by source.
        most_w: bound of the power of a device; a reading above it is refused.
        refused: devices whose energy in the newest report was refused.
    """

    def __init__(self) -> None:
        self.most_w = MOST_W
        self.refused: list[str] = []
        self._newest: dict[str, dict[str, DeviceReading]] = {}
        self.spans = Spans()
        self.hosts: dict[str, MeteredHost] = {}
        self.node_w: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self.until_s = -inf
        self.idle_w: dict[str, float] = {}
        self.errors_j: dict[str, float] = {}

    def take(self, report: Metered, now_s: float, nodes: Mapping[str, Sequence[str]]) -> bool:
        """Take in a report; return whether it is new. A repeated one changes nothing.

        Args:
            now_s: the books' time; a later time of the report is due to another clock.
            nodes: nodes by device; several share it.

        Raises:
            ReplacedAgentError: another agent reports in its place.
        """
        at_s = min(report.at_s, now_s)
        host = self.hosts.get(report.node)
        if host is None:
            host = self.hosts[report.node] = MeteredHost(report.agent, -1, at_s)
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
        host: MeteredHost,
        report: Metered,
        times_s: tuple[float, float],
        nodes: Mapping[str, Sequence[str]],
    ) -> None:
        (since_s, now_s), at_s = times_s, host.heard_s
        self.until_s = max(self.until_s, at_s)
        readings, self.refused = [], []
        activity = {each.owner: each for each in report.activity}
        for energy in report.devices:
            device = host.devices.get(energy.device)
            if device is None:  # it began since the last report; without energy yet, now
                begun_s = since_s if energy.joules else at_s
                device = MeteredDevice(DeviceEnergy(energy.device, energy.source, 0.0), begun_s)
                device.taken_s, device.left_j = begun_s, self.most_w * SLACK_S
                if begun_s == at_s:
                    device.energy = energy
                host.devices[energy.device] = device
            if device.agent != host.agent:  # activity counts from the begin of an agent
                device.agent, device.activity, device.active_s = host.agent, {}, device.at_s
            own = nodes.get(energy.device, ())
            readings.append(self._reading(device, energy, (at_s, now_s), own, activity))
        for node, of_node in _by_node(readings).items():
            self._replace(host, node, of_node)
        newest = self._newest.setdefault(report.node, {})
        for reading in readings:
            self._spread(reading)
            newest[reading.device.energy.device] = reading
        self._set_power(newest.values(), at_s)

    def _reading(
        self,
        device: MeteredDevice,
        energy: DeviceEnergy,
        times_s: tuple[float, float],
        nodes: Sequence[str],
        activity: Mapping[str, Activity],
    ) -> DeviceReading:
        """Return the reading of a device since its last report, and enter it."""
        (at_s, now_s), before, since_s = times_s, device.energy, device.at_s
        left_j = min(device.left_j, self.most_w * SLACK_S)
        left_j += self.most_w * max(0.0, now_s - device.taken_s)
        device.energy, device.at_s = energy, at_s
        share = Share(estimate=len(nodes) > 1)
        joules = energy.joules - before.joules
        error_j = max(0.0, energy.uncertainty_j - before.uncertainty_j)
        works, active_s = dict[str, Work](), 0.0
        if joules != 0.0:  # its counter may change less often than it is reported
            works, active_s = device.works(activity, at_s)
        if joules > 0.0:
            device.taken_s, device.left_j = now_s, left_j
        if max(joules, error_j) > left_j:
            self.refused.append(energy.device)
            return DeviceReading(device, nodes, since_s, share, at_s - since_s)
        if joules < 0.0:  # the count of another meter: nothing is measured in between
            return DeviceReading(device, nodes, since_s, share, at_s - since_s)
        device.left_j -= joules
        share.joules, share.uncertainty_j = joules, error_j
        unseen_s = min(max(0.0, energy.unseen_s - before.unseen_s), at_s - since_s)
        if works and share.estimate and joules and not unseen_s and 0.0 < active_s <= FITTED_S:
            idle_w = sum(self.idle_w.get(node, 0.0) for node in nodes)
            device.fit.observe(active_s, joules, works.values(), min(idle_w, joules / active_s))
        return DeviceReading(device, nodes, since_s, share, unseen_s, works=works)

    def _set_power(self, newest: Iterable[DeviceReading], at_s: float) -> None:
        """Set the power of the nodes of a host, and its sources, from the readings of devices."""
        for node, of_node in _by_node(newest).items():
            recent = [reading for reading in of_node if not reading.silent(at_s)]
            if not recent:
                self.node_w.pop(node, None)
                self.sources.pop(node, None)
                continue
            sources = {reading.device.energy.source for reading in recent}
            watts = [reading.watts[node] for reading in recent if node in reading.watts]
            if len(recent) < len(of_node):
                whole_j = sum(reading.device.energy.joules for reading in of_node)
                recent_j = sum(reading.device.energy.joules for reading in recent)
                share = recent_j / whole_j if whole_j else len(recent) / len(of_node)
                spans = self.spans.on(node)
                sources.add(MODEL)
                watts.append((1.0 - share) * (spans[-1].watts if spans else 0.0))
            if any(reading.watts for reading in recent):
                self.node_w[node] = sum(watts)
            self.sources[node] = " and ".join(
                sorted(sources, key=lambda source: (source == MODEL, source))
            )

    def _replace(self, host: MeteredHost, node: str, readings: Sequence[DeviceReading]) -> None:
        """Remove the model's energy of a node from the books for the time of a report."""
        at_s = host.heard_s
        since_s = host.nodes.get(node, min(reading.since_s for reading in readings))
        host.nodes[node] = at_s
        weights = [reading.device.energy.joules for reading in readings]
        if not sum(weights):
            weights = [1.0] * len(readings)
        pairs = zip(weights, readings, strict=True)
        share = sum(weight * (1.0 - reading.unseen) for weight, reading in pairs) / sum(weights)
        for span, seconds in self.spans.pieces(node, since_s, at_s):
            until_s = at_s if span.end_s is None else min(at_s, span.end_s)
            self.spans.replaced(span, share * span.watts * seconds, until_s)

    def _spread(self, reading: DeviceReading) -> None:
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
        source = energy.source
        left_j, of_node = joules, dict.fromkeys(reading.nodes, 0.0)
        shares = self._by_activity(reading, pieces, joules) if whole.estimate else None
        if shares is not None:
            weights, splits, way = shares
            source = f"{energy.source} by {way}"
        else:
            weights = _weights(pieces)
            splits = self.split_errors(pieces, weights, joules) if whole.estimate else []
        for errors_j in (reading.device.errors_j, self.errors_j):
            errors_j[source] = errors_j.get(source, 0.0) + error_j
        for at, ((span, _), weight) in enumerate(zip(pieces, weights, strict=True), 1):
            part_j = joules * weight if at < len(pieces) else left_j
            left_j -= part_j
            of_node[span.node] += part_j
            part_error_j = error_j * weight + (splits[at - 1] if splits else 0.0)
            if part_j or part_error_j:
                share = Share(part_j, part_error_j, whole.estimate)
                self.spans.measured(span, energy.device, source, share)
        measured_s = span_s - reading.unseen_s
        for node, part_j in of_node.items():
            self.spans.totals.node_j[node] += part_j
            if measured_s > 0.0:
                reading.watts[node] = part_j / measured_s

    def _by_activity(
        self, reading: DeviceReading, pieces: Sequence[tuple[Span, float]], joules: float
    ) -> tuple[list[float], list[float], str] | None:
        """Return weights and uncertainties of pieces by activity, and what they rest on.

        None where there is one owner, or the activity of a running one is not reported.
        """
        held_s = _sums_of((span.owner, seconds) for span, seconds in pieces)
        running = held_s.keys() - {IDLE, OFF, BOOT}
        if len(held_s) < 2 or not running <= reading.works.keys() or not joules:
            return None
        works = {owner: reading.works[owner] for owner in sorted(running)}
        if rest := [each for owner, each in reading.works.items() if owner not in running]:
            works[HOST] = Work.sum(rest)
        idle_j = [
            min(span.watts, self.idle_w.get(span.node, 0.0)) * seconds for span, seconds in pieces
        ]
        modelled_j = sum(span.watts * seconds for span, seconds in pieces)
        span_s = reading.device.at_s - reading.since_s
        scale = min(1.0, joules / modelled_j) if modelled_j else 0.0
        idle_w = scale * sum(idle_j) / span_s if span_s > 0.0 else 0.0
        gpu = is_gpu(reading.device.energy.device)
        shares = split(reading.device.fit, span_s, joules, works, idle_w, gpu=gpu)
        base = _parts(idle_j, [seconds for _, seconds in pieces])
        parts, errors = [], []
        for (span, seconds), own in zip(pieces, base, strict=True):
            owner = HOST if span.owner == IDLE else span.owner
            of_owner = seconds / held_s[span.owner] if held_s[span.owner] else 0.0
            part_j = own * shares.base_j + of_owner * shares.dynamic_j.get(owner, 0.0)
            if IDLE not in held_s:
                part_j += own * shares.dynamic_j.get(HOST, 0.0)
            parts.append(part_j / joules)
            error_j = own * shares.base_error_j + of_owner * shares.errors_j.get(owner, 0.0)
            errors.append(error_j)
        return parts, errors, shares.way

    def split_errors(
        self, pieces: Sequence[tuple[Span, float]], weights: Sequence[float], joules: float
    ) -> list[float]:
        """Return the uncertainties of parts of a shared device's energy due to the split, J.

        The dynamic energy of the device is the measured energy minus the modelled idle energy of
        its nodes (scaled down if less than the model's total was measured). The energy of an owner
        is at least the idle energy of its own nodes, and at most that plus the whole dynamic
        energy; the only running owner has the maximum. The uncertainty is the distance to the
        farther bound, so the true value lies within it. Weights divide the uncertainty of an owner
        over its pieces.
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
        """Use the model for the power of a host's nodes, whose meters have fallen silent."""
        self._newest.pop(host, None)
        for node in self.hosts[host].nodes:
            self.node_w.pop(node, None)
            self.sources.pop(node, None)

    def silent(self, host: str) -> set[str]:
        """Return the devices of a host that its agent no longer reports."""
        readings, heard_s = self._newest.get(host, {}), self.hosts[host].heard_s
        return {
            name
            for name, reading in readings.items()
            if reading.unseen < 1.0 and reading.silent(heard_s)
        }

    def whole(self, host: str) -> bool:
        """Return whether the present agent of a host has reported the whole node as a device."""
        state = self.hosts.get(host)
        device = None if state is None else state.devices.get(WHOLE)
        return state is not None and device is not None and device.agent == state.agent

    @property
    def booked_s(self) -> dict[str, float]:
        """The end of the meters' reports, by node."""
        return {node: at_s for host in self.hosts.values() for node, at_s in host.nodes.items()}

    @property
    def kept_s(self) -> dict[str, float]:
        """The time from which spans are kept for later reports, by node; "" for all other nodes.

        The nodes of a host are not known before its first energy.
        """
        kept_s: dict[str, float] = {}
        for host in self.hosts.values():
            times = [device.at_s for device in host.devices.values()]
            from_s = max(min(times, default=host.heard_s), host.heard_s - KEPT_S)
            kept_s.update(dict.fromkeys(host.nodes, from_s))
            if not host.nodes:
                from_s = max(from_s, self.until_s - KEPT_S)
                kept_s[""] = min(kept_s.get("", inf), from_s)
        return kept_s


def is_gpu(device: str) -> bool:
    """Return whether a device is a GPU."""
    return device.startswith("gpu-")


def _by_node(readings: Iterable[DeviceReading]) -> dict[str, list[DeviceReading]]:
    by_node: dict[str, list[DeviceReading]] = {}
    for reading in readings:
        for node in reading.nodes:
            by_node.setdefault(node, []).append(reading)
    return by_node


def _weights(pieces: Sequence[tuple[Span, float]]) -> list[float]:
    """Return shares of pieces of time: by energy of the model, by time, else equal ones."""
    seconds = [seconds for _, seconds in pieces]
    return _parts([span.watts * seconds for span, seconds in pieces], seconds)


def _parts(*figures: Sequence[float]) -> list[float]:
    """Return the parts of the first figures that are not all 0 in their sum, else equal ones."""
    for own in figures:
        whole = sum(own)
        if whole > 0.0:
            return [each / whole for each in own]
    return [1.0 / len(figures[0])] * len(figures[0])


def _sums_of(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums = dict[str, float]()
    for name, value in pairs:
        sums[name] = sums.get(name, 0.0) + value
    return sums
