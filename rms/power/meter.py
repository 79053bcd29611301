"""What reads energy: one interface for every kind of meter, and all of a node's together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rms.wire.bounds import NODE_LIMIT_W
from rms.wire.messages import DeviceEnergy

AGAIN_S = 60.0
"""How long a meter that could not be read is left alone before it is tried again."""

ABOVE_LIMIT = 2.0
"""A power above this multiple of the limit of a device is implausible."""

GPU_LIMIT_W = 1500.0
"""Default power limit of a GPU: no GPU has a higher one."""

SLACK_S = 1.0
"""A reading may exceed the bound of a device by the energy of this time at the bound."""


def boottime() -> float:
    """Return seconds of a clock that never goes back and goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class MeterError(Exception):
    """Energy cannot be read; one sentence."""


class Meter(Protocol):
    """One kind of meter of this machine; opens what it reads at its first reading.

    Attributes:
        sources: what it is called in the books, one name for each kind of device.
        every_s: the longest time between two readings at which it is right.
        trouble: what it cannot read beside what it can, one sentence, or "".
    """

    sources: Sequence[str]
    every_s: float
    trouble: str

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the devices of which there is news; none while there is nothing yet.

        A device that cannot be read now is left out: the model speaks for it until it is back.

        Args:
            now_s: by :func:`boottime`.

        Raises:
            MeterError: there is nothing to read here, or no more.
        """

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Go on from what an earlier agent has read; called before the first reading, if at all.

        A counter that went on meanwhile has measured the time between, if it can be told how far
        it went; else that time is added to ``unseen_s``.

        Args:
            known: all devices that were read, of this meter and of others.
            gap_s: how long ago that was at the next reading, s.
            same_boot: whether counters are those of then.
        """

    def close(self) -> None:
        """End what reads."""


@dataclass
class Tally:
    """What a device has been read to have had, for meters to add to.

    Attributes:
        joules, unseen_s, uncertainty_j: as in :class:`DeviceEnergy`.
    """

    joules: float = 0.0
    unseen_s: float = 0.0
    uncertainty_j: float = 0.0

    @classmethod
    def after(cls, known: DeviceEnergy | None) -> Tally:
        """Return one that goes on from a report, or begins for None."""
        if known is None:
            return cls()
        return cls(known.joules, known.unseen_s, known.uncertainty_j)

    def energy(self, device: str, source: str, counter: float | None = None) -> DeviceEnergy:
        """Return it as a report has it."""
        figures = self.joules, self.unseen_s, self.uncertainty_j
        return DeviceEnergy(device, source, *figures, counter)


@dataclass
class Refusals:
    """The devices of which a power was refused as implausible in the last minute."""

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

    One that fails is left for the next; after a while the better ones are tried again.

    Attributes:
        current: the meter that was read last, None where none could be.
        refused: why those could not be read that were tried, by their place.
    """

    meters: Sequence[Meter]
    current: Meter | None = None
    refused: dict[int, str] = field(default_factory=dict)
    _failed_s: float = 0.0

    def read(self, now_s: float) -> tuple[Meter, list[DeviceEnergy]] | None:
        """Return a meter and what it has read, None where none can be read."""
        if self.refused and now_s >= self._failed_s + AGAIN_S:
            self.refused.clear()
        for n, meter in enumerate(self.meters):
            if n in self.refused:
                continue
            try:
                found = meter.read(now_s)
            except MeterError as error:
                meter.close()
                self.refused[n], self._failed_s = str(error), now_s
                continue
            if self.current is not meter and self.current is not None:
                self.current.close()
            self.current = meter
            return meter, found
        self.current = None
        return None

    @property
    def reason(self) -> str:
        """Why nothing, or something, cannot be read."""
        if len(self.refused) == len(self.meters):
            return "; ".join(self.refused.values())
        return "; ".join(meter.trouble for meter in self.meters if meter.trouble)


@dataclass
class _Given:
    """What was reported of a device, when, by which meter, and what earlier ones had read.

    A reading of the same meter without new joules does not replace it: counters may be renewed less
    often than they are read.
    """

    meter: Meter
    at_s: float
    last: DeviceEnergy
    before: Tally
    left_j: float
    """Energy that its next readings may have within the bound of its power."""


@dataclass
class NodeMeter:
    """All meters of a node: each device is read by the first ladder that knows it.

    A device that goes over from one meter to another keeps what it has had; the time since its last
    new joules is unseen. So it is at an implausible reading.

    Attributes:
        most_w: bound of the power of each device; None for the default.
    """

    ladders: Sequence[Ladder]
    most_w: float | None = None
    _refusals: Refusals = field(default_factory=Refusals)
    _read_s: float = 0.0
    _given: dict[str, _Given] = field(default_factory=dict)

    @property
    def every_s(self) -> float:
        """The longest time between two readings at which all of them are right."""
        current = (ladder.current for ladder in self.ladders)
        return min((meter.every_s for meter in current if meter is not None), default=AGAIN_S)

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Go on from what an earlier agent has read; see :meth:`Meter.resume`."""
        for ladder in self.ladders:
            for meter in ladder.meters:
                meter.resume(known, gap_s, same_boot)

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the devices of which there is news, each once; none while there is nothing yet.

        Raises:
            MeterError: there is nothing to read here.
        """
        self._read_s = now_s
        found: dict[str, DeviceEnergy] = {}
        readable = False
        for ladder in self.ladders:
            read = ladder.read(now_s)
            if read is not None:
                readable = True
                meter, devices = read
                for device in devices:
                    if device.device not in found:
                        found[device.device] = self._continued(meter, device, now_s)
        if not readable:
            raise MeterError(self.reason or "no meter was chosen")
        return list(found.values())

    def close(self) -> None:
        """End all of them."""
        for ladder in self.ladders:
            for meter in ladder.meters:
                meter.close()

    @property
    def reason(self) -> str:
        """Why nothing, or something, cannot be read."""
        reasons = [ladder.reason for ladder in self.ladders]
        return "; ".join(filter(None, (*reasons, self._refusals.words(self._read_s))))

    def _most_w(self, device: str) -> float:
        limit_w = GPU_LIMIT_W if device.startswith("gpu-") else NODE_LIMIT_W
        return self.most_w or ABOVE_LIMIT * limit_w

    def _continued(self, meter: Meter, read: DeviceEnergy, now_s: float) -> DeviceEnergy:
        """Return a reading with what other meters had read before."""
        previous = self._given.get(read.device)
        before, most_w = Tally() if previous is None else previous.before, self._most_w(read.device)
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
        had_j = (
            0.0 if previous is None else previous.last.joules
        )  # sums are rounded, and may not fall
        whole = Tally(
            max(had_j, before.joules + read.joules),
            before.unseen_s + read.unseen_s,
            before.uncertainty_j + read.uncertainty_j,
        ).energy(read.device, read.source, read.counter)
        if news:
            self._given[read.device] = _Given(meter, now_s, whole, before, left_j - spent_j)
        return whole
