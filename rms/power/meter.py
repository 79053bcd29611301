"""Meters of energy: their interface, all meters of a node, and energy from readings of power."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rms.wire.messages import NODE_LIMIT_W, DeviceEnergy

AGAIN_S = 60.0  # time until a meter that could not be read is tried again
ABOVE_LIMIT = 2.0  # a power above this multiple of the limit of a device is implausible
GPU_LIMIT_W = 1500.0  # default power limit of a GPU: no GPU has a higher one
SLACK_S = 1.0
"""A reading may exceed the bound of a device by the energy of this time at the bound."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return seconds of a monotonic clock that also counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str:
    """Return the kernel's id of this boot of the machine, "" where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class MeterError(Exception):
    """Energy cannot be read; one sentence."""


@dataclass(kw_only=True)
class Meter:
    """One kind of meter of this machine; it opens its sources at the first reading.

    Attributes:
        every_s: the longest time between two readings at which the energy is right.
        trouble: the devices that it cannot read, one sentence, or "".
    """

    every_s: float = 1.0
    trouble: str = ""
    _reported: dict[str, DeviceEnergy] = field(default_factory=dict)
    _gap_s: float = 0.0
    _same_boot: bool = False

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the devices with new readings; none before the first.

        A device that cannot be read now is left out: the model is used for it until it is back.

        Raises:
            MeterError: there is nothing to read here, or nothing any more.
        """
        raise NotImplementedError

    def resume(self, reported: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Continue from the readings of an earlier agent, before the first reading.

        The time between is added to ``unseen_s``, unless a counter has gone on.

        Args:
            gap_s: time from that report to the next reading, s.
            same_boot: whether counters have gone on since then.
        """
        self._reported = {device.device: device for device in reported}
        self._gap_s, self._same_boot = gap_s, same_boot

    def processes(self, now_s: float) -> dict[str, dict[int, float]]:
        """Return the busy time of devices since the last call by process, s; empty if unknown."""
        return {}

    def close(self) -> None:
        """End its processes and connections."""


@dataclass
class Tally:
    """The energy of a device so far, to which meters add."""

    joules: float = 0.0
    unseen_s: float = 0.0
    uncertainty_j: float = 0.0

    @classmethod
    def after(cls, report: DeviceEnergy | None) -> Tally:
        """Return a tally that continues from a report, or a new one for None."""
        if report is None:
            return cls()
        return cls(report.joules, report.unseen_s, report.uncertainty_j)

    def energy(self, device: str, source: str, counter: float | None = None) -> DeviceEnergy:
        """Return the tally as a part of a report."""
        figures = self.joules, self.unseen_s, self.uncertainty_j
        return DeviceEnergy(device, source, *figures, counter)


@dataclass
class Refusals:
    """The devices with a power that was refused as implausible in the last minute."""

    _newest: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, device: str, most_w: float, now_s: float) -> None:
        """Record that a power of a device above its bound was refused."""
        self._newest[device] = most_w, now_s

    def words(self, now_s: float) -> str:
        """Return a sentence for the log, or ""."""
        return "; ".join(
            f"{device}: refused a power above {most_w:g} W"
            for device, (most_w, at_s) in self._newest.items()
            if now_s < at_s + AGAIN_S
        )


@dataclass
class Ladder:
    """Meters of the same devices, the best first: the first that can be read is taken.

    After a failure the next is taken; after a while the better ones are tried again.

    Attributes:
        refused: reasons why meters could not be read, by their place.
    """

    meters: Sequence[Meter]
    current: Meter | None = None
    refused: dict[int, str] = field(default_factory=dict)
    _failed_s: float = 0.0

    def read(self, now_s: float) -> tuple[Meter, list[DeviceEnergy]] | None:
        """Return a meter and its readings, None if none can be read."""
        if self.refused and now_s >= self._failed_s + AGAIN_S:
            self.refused.clear()
        for n, meter in enumerate(self.meters):
            if n in self.refused:
                continue
            try:
                devices = meter.read(now_s)
            except MeterError as error:
                meter.close()
                self.refused[n], self._failed_s = str(error), now_s
                continue
            if self.current is not meter and self.current is not None:
                self.current.close()
            self.current = meter
            return meter, devices
        self.current = None
        return None

    @property
    def reason(self) -> str:
        """The reason why nothing, or something, cannot be read."""
        if len(self.refused) == len(self.meters):
            return "; ".join(self.refused.values())
        return "; ".join(meter.trouble for meter in self.meters if meter.trouble)


@dataclass
class _Reported:
    """The last report of a device: its time, its meter, and the tally of earlier meters.

    A reading of the same meter without new joules does not replace it.
    """

    meter: Meter
    at_s: float
    last: DeviceEnergy
    before: Tally
    left_j: float
    """Energy of its next readings that is within the bound of its power."""


@dataclass
class NodeMeter:
    """All meters of a node: a device is read by the first ladder that has it.

    A device that changes its meter keeps its tally; the time since its last new joules is unseen,
    also after an implausible reading.
    """

    ladders: Sequence[Ladder]
    most_w: float | None = None
    _refusals: Refusals = field(default_factory=Refusals)
    _read_s: float = 0.0
    _last: dict[str, _Reported] = field(default_factory=dict)

    @property
    def every_s(self) -> float:
        """The longest time between two readings at which all of them are right."""
        current = (ladder.current for ladder in self.ladders)
        return min((meter.every_s for meter in current if meter is not None), default=AGAIN_S)

    def resume(self, reported: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Continue from the readings of an earlier agent; see :meth:`Meter.resume`."""
        for ladder in self.ladders:
            for meter in ladder.meters:
                meter.resume(reported, gap_s, same_boot)

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the devices with new readings, every device once; none before the first."""
        self._read_s = now_s
        devices: dict[str, DeviceEnergy] = {}
        readings = [reading for ladder in self.ladders if (reading := ladder.read(now_s))]
        if not readings:
            raise MeterError(self.reason or "no meter was chosen")
        for meter, own in readings:
            for device in own:
                if device.device not in devices:
                    devices[device.device] = self._continued(meter, device, now_s)
        return list(devices.values())

    def processes(self, now_s: float) -> dict[str, dict[int, float]]:
        """Return the busy time of devices by process, see :meth:`Meter.processes`."""
        busy: dict[str, dict[int, float]] = {}
        for ladder in self.ladders:
            if ladder.current is not None:
                busy |= ladder.current.processes(now_s)
        return busy

    def close(self) -> None:
        """Close all meters."""
        for ladder in self.ladders:
            for meter in ladder.meters:
                meter.close()

    @property
    def reason(self) -> str:
        """The reason why nothing, or something, cannot be read."""
        reasons = [ladder.reason for ladder in self.ladders]
        return "; ".join(filter(None, (*reasons, self._refusals.words(self._read_s))))

    def _continued(self, meter: Meter, read: DeviceEnergy, now_s: float) -> DeviceEnergy:
        """Return a reading with the tally of earlier meters."""
        previous = self._last.get(read.device)
        before = Tally() if previous is None else previous.before
        limit_w = GPU_LIMIT_W if read.device.startswith("gpu-") else NODE_LIMIT_W
        most_w = self.most_w or ABOVE_LIMIT * limit_w
        left_j = most_w * SLACK_S
        if previous is not None:
            left_j = min(left_j, previous.left_j) + most_w * (now_s - previous.at_s)
        spent_j = 0.0 if previous is None else before.joules + read.joules - previous.last.joules
        news = previous is None or previous.meter is not meter or spent_j > 0.0
        implausible = spent_j > left_j
        if implausible:
            self._refusals.add(read.device, most_w, now_s)
        if previous is not None and (implausible or previous.meter is not meter):
            last, spent_j = previous.last, 0.0
            before = Tally(
                last.joules - read.joules,
                last.unseen_s + (now_s - previous.at_s) - read.unseen_s,
                last.uncertainty_j - read.uncertainty_j,
            )
        # Sums are rounded, and may not fall.
        had_j = 0.0 if previous is None else previous.last.joules
        whole = Tally(
            max(had_j, before.joules + read.joules),
            before.unseen_s + read.unseen_s,
            before.uncertainty_j + read.uncertainty_j,
        ).energy(read.device, read.source, read.counter)
        if news:
            self._last[read.device] = _Reported(meter, now_s, whole, before, left_j - spent_j)
        return whole


# --- Energy from readings of power, and its uncertainty -------------------------------------------
#
# A sensor is read more often than it changes, and its readings are late means (docs/rms/energy.md,
# Meters: Yang et al.). The possible error is summed beside the energy, as half of a 95 % interval.

GAIN = 0.05
"""The sensor's own error, as a part of the power: NVML's documentation states 5 % for Fermi and
Kepler, and measurements show the same on later GPUs."""
GAP_S = 2.0  # after a longer time between two readings the energy is unknown
WINDOW_S = 1.0
"""Time over which the range of the readings is taken for that of the power between them."""
UNREAD = 0.4
"""The mean of the whole time may differ from that of the readings by this part of half of that
range: about 1 / sqrt(10) for ten readings with independent errors, and some more."""
LONGEST_PERIOD_S = 1.0  # the longest period of a sensor in the literature
FEWEST_CHANGES = 4


def gain_j(joules: float) -> float:
    """Return the possible error of an energy by the gain of its sensor, J."""
    return joules * GAIN / (1 - GAIN)


@dataclass
class UpdatePeriod:
    """The period of a sensor, from the times at which its readings changed."""

    _value: float | None = None
    _changed_s: float | None = None
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, at_s: float, value: float) -> None:
        """Take a reading; times must not go back."""
        if self._value is not None and value != self._value:
            if self._changed_s is not None:
                self._gaps_s.append(at_s - self._changed_s)
            self._changed_s = at_s
        self._value = value

    @property
    def seconds(self) -> float | None:
        """The period, s: the lower quartile of the times between changes; None before a few."""
        if len(self._gaps_s) < FEWEST_CHANGES:
            return None
        return sorted(self._gaps_s)[len(self._gaps_s) // 4]


@dataclass
class _Window:
    """A short time, and the power in it."""

    seconds: float = 0.0
    joules: float = 0.0
    low_w: float = math.inf
    high_w: float = -math.inf

    def take(self, watts: float) -> None:
        self.low_w, self.high_w = min(self.low_w, watts), max(self.high_w, watts)

    @property
    def mean_w(self) -> float:
        return self.joules / self.seconds


@dataclass
class PowerIntegral:
    """The energy of one device since its first reading, by the trapezoidal rule.

    Attributes:
        averaged_s: the longest time before a reading over which it is a mean, s.
    """

    averaged_s: float
    joules: float = 0.0
    period: UpdatePeriod = field(default_factory=UpdatePeriod)
    _last: tuple[float, float] | None = None
    _unseen_s: float = 0.0
    _interval_s: float = 0.0
    """The longest time between two readings that were not a gap."""
    _extremes_w: tuple[float, float] = (math.inf, -math.inf)
    _window: _Window = field(default_factory=_Window)
    _mean_w: float | None = None
    """Of the last window."""
    _error_j: float = 0.0
    """Beside the sensor's gain, of all windows that are over."""
    _reported_j: float = 0.0

    def add(self, at_s: float, watts: float) -> None:
        """Take a reading; one that is not later than the last is left out."""
        if self._last is not None:
            seconds = at_s - self._last[0]
            if seconds <= 0:
                return
            if seconds > GAP_S:
                self._unseen_s += seconds
                self._close_window()
            else:
                joules = seconds * (self._last[1] + watts) / 2
                self.joules += joules
                self._interval_s = max(self._interval_s, seconds)
                self._window.take(watts)
                self._window.seconds += seconds
                self._window.joules += joules
                if self._window.seconds >= WINDOW_S:
                    self._close_window()
        self._last = at_s, watts
        low, high = self._extremes_w
        self._extremes_w = min(low, watts), max(high, watts)
        self._window.take(watts)
        self.period.add(at_s, watts)

    def unseen_s(self, now_s: float) -> float:
        """Return the time without readings since the first one, s."""
        since_s = 0.0 if self._last is None else now_s - self._last[0]
        return self._unseen_s + (since_s if since_s > GAP_S else 0.0)

    def uncertainty_j(self) -> float:
        """Return half of the interval that holds the true energy, J; never falls.

        The parts are the sensor's gain, changes of power times the delay of readings, and the power
        between readings; at first at least the whole range of readings times their delay.
        """
        low, high = self._extremes_w
        if high < low:
            return 0.0
        error_j = max(self._error_j + self._window_error_j(), self.behind_s * (high - low))
        self._reported_j = max(self._reported_j, gain_j(self.joules) + error_j)
        return self._reported_j

    def _window_error_j(self) -> float:
        window = self._window
        if not window.seconds:
            return 0.0
        changed_w = 0.0 if self._mean_w is None else abs(window.mean_w - self._mean_w)
        unread_j = UNREAD * window.seconds * (window.high_w - window.low_w) / 2
        return self.behind_s * changed_w + unread_j

    @property
    def behind_s(self) -> float:
        """The longest delay of readings, s."""
        period_s = min(self.period.seconds or 0.0, LONGEST_PERIOD_S)
        return self.averaged_s + period_s + self._interval_s

    def _close_window(self) -> None:
        if self._window.seconds:
            self._error_j += self._window_error_j()
            self._mean_w = self._window.mean_w
        self._window = _Window()
