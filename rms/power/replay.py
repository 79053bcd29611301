"""Energy from a recording, read back with its times: for tests and for trying things out.

A CSV file with the columns ``at_s``, ``device`` and ``joules`` (cumulative) or ``watts``, in the
order of time. Between two rows energy rises evenly, or under watts as a trapezoid; the recording
begins with the first reading and is over with its last row.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rms.power.meter import MeterError
from rms.wire.messages import DeviceEnergy

COLUMNS = ("at_s", "device", "joules"), ("at_s", "device", "watts")


@dataclass
class Curve:
    """A device: at these times (s since the recording's begin) so many joules, or watts."""

    unit: str
    at_s: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        """Add a row.

        Raises:
            ValueError: it is earlier than the one before, or a sum that falls.
        """
        if not (math.isfinite(at_s) and math.isfinite(value) and value >= 0):
            raise ValueError(f"expected a time and a reading that is not negative, got {value!r}")
        if self.at_s and at_s < self.at_s[-1]:
            raise ValueError(f"expected times that never go back, got {at_s} after {self.at_s[-1]}")
        if self.unit == "watts":
            last_j = self.joules[-1] if self.joules else 0.0
            span_s = at_s - self.at_s[-1] if self.at_s else 0.0
            mean_w = (self.watts[-1] + value) / 2 if self.watts else 0.0
            joules = last_j + mean_w * span_s
            self.watts.append(value)
        elif self.joules and value < self.joules[-1]:
            raise ValueError(
                f"expected joules that never fall, got {value} after {self.joules[-1]}"
            )
        else:
            joules = value
        self.at_s.append(at_s)
        self.joules.append(joules)

    def spent(self, at_s: float) -> float:
        """Return the joules from its first row up to a time."""
        n = bisect_right(self.at_s, at_s) - 1
        if n < 0:
            return 0.0
        joules = self.joules[n] - self.joules[0]
        if n == len(self.at_s) - 1:
            return joules
        span_s = self.at_s[n + 1] - self.at_s[n]
        part = (at_s - self.at_s[n]) / span_s
        if self.unit == "joules":
            return joules + part * (self.joules[n + 1] - self.joules[n])
        rise_w = self.watts[n + 1] - self.watts[n]
        return joules + part * span_s * (self.watts[n] + part / 2 * rise_w)


def read_recording(file: Path) -> dict[str, Curve]:
    """Return the devices of a recording.

    Raises:
        MeterError: it is none; one sentence.
    """
    curves: dict[str, Curve] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = csv.reader(lines)
            header = tuple(next(rows, ()))
            if header not in COLUMNS:
                raise ValueError(
                    f"expected columns at_s,device,joules or at_s,device,watts, got {header}"
                )
            begun_s = None
            for row in rows:
                if len(row) != 3:
                    raise ValueError(
                        f"expected three values in line {rows.line_num}, got {len(row)}"
                    )
                at_s, value = _numbers(row, rows.line_num)
                begun_s = at_s if begun_s is None else begun_s
                curves.setdefault(row[1], Curve(header[2])).add(at_s - begun_s, value)
    except OSError as error:
        raise MeterError(f"expected a recording in {file}, got {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise MeterError(f"{file}: {error}") from None
    if not curves:
        raise MeterError(f"{file}: expected at least one row, got none")
    return curves


def _numbers(row: Sequence[str], line: int) -> tuple[float, float]:
    try:
        return float(row[0]), float(row[2])
    except ValueError:
        raise ValueError(
            f"expected numbers in line {line}, got {row[0]!r} and {row[2]!r}"
        ) from None


@dataclass
class Replay:
    """Plays a recording once.

    Attributes:
        file: the recording.
    """

    file: Path
    sources: Sequence[str] = ("replay",)
    every_s: float = 1.0
    trouble: str = ""
    _curves: dict[str, Curve] = field(default_factory=dict)
    _known: dict[str, DeviceEnergy] = field(default_factory=dict)
    _gap_s: float = 0.0
    _begun_s: float | None = None
    _over: set[str] = field(default_factory=set)

    def open(self) -> None:
        """Read the recording, if that has not been done.

        Raises:
            MeterError: it is none.
        """
        self._curves = self._curves or read_recording(self.file)

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return what was recorded up to now.

        Raises:
            MeterError: it is over, or there is none.
        """
        self.open()
        if self._begun_s is None:
            played_s = [known.counter for known in self._known.values() if known.counter]
            self._begun_s = now_s - (max(played_s) + self._gap_s if played_s else 0.0)
        at_s = now_s - self._begun_s
        if len(self._over) == len(self._curves):
            raise MeterError(f"the recording {self.file} is over")
        found = []
        for device, curve in self._curves.items():
            if device not in self._over and at_s >= curve.at_s[0]:
                # As its counter: how far it has been played, s.
                found.append(DeviceEnergy(device, "replay", curve.spent(at_s), counter=at_s))
                if at_s >= curve.at_s[-1]:
                    self._over.add(device)
        return found

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Go on where it is by now, an earlier agent having begun it."""
        self._known = {device.device: device for device in known if device.source == "replay"}
        self._gap_s = gap_s

    def close(self) -> None:
        """There is nothing to end."""
