"""Meters of the user's own: a recording that is played back, and a program that prints readings.

A recording is a CSV file with the columns ``at_s``, ``device`` and ``joules`` (cumulative) or
``watts``, in the order of time. Between two rows energy rises evenly, or under watts as a
trapezoid; the recording begins with the first reading and is over with its last row.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import signal
import subprocess
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from rms.power.meter import Meter, MeterError, Tally, boottime
from rms.wire.messages import DeviceEnergy

# --- A recording ----------------------------------------------------------------------------------

COLUMNS = ("at_s", "device", "joules"), ("at_s", "device", "watts")


@dataclass
class Curve:
    """The joules, or watts, of a device over time (s since the begin of the recording)."""

    unit: str
    at_s: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        """Add a row; one earlier than the last, or with a falling sum, is a ValueError."""
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
    """Return the devices of a recording."""
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
                try:
                    at_s, value = float(row[0]), float(row[2])
                except ValueError:
                    got = f"{row[0]!r} and {row[2]!r}"
                    raise ValueError(
                        f"expected numbers in line {rows.line_num}, got {got}"
                    ) from None
                begun_s = at_s if begun_s is None else begun_s
                curves.setdefault(row[1], Curve(header[2])).add(at_s - begun_s, value)
    except OSError as error:
        raise MeterError(f"expected a recording in {file}, got {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise MeterError(f"{file}: {error}") from None
    if not curves:
        raise MeterError(f"{file}: expected at least one row, got none")
    return curves


@dataclass
class ReplayMeter(Meter):
    """Plays a recording once; continues at its present time if an earlier agent has begun it."""

    file: Path
    _curves: dict[str, Curve] = field(default_factory=dict)
    _begun_s: float | None = None
    _over: set[str] = field(default_factory=set)

    def open(self) -> None:
        """Read the recording, unless it was read."""
        self._curves = self._curves or read_recording(self.file)

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the energy that was recorded up to now."""
        self.open()
        if self._begun_s is None:
            devices = [dev for dev in self._reported.values() if dev.source == "replay"]
            played_s = [device.counter for device in devices if device.counter]
            self._begun_s = now_s - (max(played_s) + self._gap_s if played_s else 0.0)
        at_s = now_s - self._begun_s
        if len(self._over) == len(self._curves):
            raise MeterError(f"the recording {self.file} has ended")
        devices = []
        for device, curve in self._curves.items():
            if device not in self._over and at_s >= curve.at_s[0]:
                # The counter is the time that was played, s.
                devices.append(DeviceEnergy(device, "replay", curve.spent(at_s), counter=at_s))
                if at_s >= curve.at_s[-1]:
                    self._over.add(device)
        return devices


# --- A program of the user's, which prints a line for a reading -----------------------------------
#
# A line is such as ``node 4711 J``, where the program itself sums up, or ``node 61.7 W``, which is
# integrated here over the times at which lines come.

GAP_S = 10.0  # after a longer time between two powers the energy is unknown
FIRST_WAIT_S = 1.0
MOST_WAIT_S = 60.0
"""Pause before a program that has ended is started again; it doubles until the next line."""

SILENT = "the meter command has printed no reading yet"

NOT_FOUND = (126, 127)  # statuses of a shell that could not start it


@dataclass(frozen=True)
class Line:
    """A reading: the device, joules or watts, and its time (s, the meter's clock)."""

    device: str
    value: float
    unit: str
    at_s: float


def parse_line(text: str, at_s: float) -> Line | None:
    """Read ``gpu-0 61.7 W`` or ``node 4711 J``; None for anything else."""
    words = text.split()
    if len(words) != 3 or words[2] not in ("J", "W"):
        return None
    try:
        value = float(words[1])
    except ValueError:
        return None
    return Line(words[0], value, words[2], at_s) if 0 <= value < math.inf else None


@dataclass
class _Device:
    """A device, the time of its last reading, and its newest line, None after a gap."""

    tally: Tally
    read_s: float
    last: Line | None = None

    def take(self, line: Line) -> bool:
        """Add a line; return whether it is new, not the same sum again."""
        last = self.last
        if last is not None and line.unit == last.unit == "J" and line.value == last.value:
            return False
        self.last = line
        span_s, self.read_s = line.at_s - self.read_s, line.at_s
        if last is not None and line.unit == last.unit == "J" and line.value >= last.value:
            self.tally.joules += line.value - last.value
        elif last is not None and line.unit == last.unit == "W" and span_s <= GAP_S:
            # A trapezoid: in between it may have been at either end all the time.
            self.tally.joules += (line.value + last.value) / 2 * span_s
            self.tally.uncertainty_j += abs(line.value - last.value) / 2 * span_s
        else:  # its first line, or a sum from 0 again, or the first line after a gap
            self.tally.unseen_s += span_s
        return True


@dataclass
class Command(Meter):
    """Runs the program, and starts it again when it ends; without lines there is a gap."""

    command: str
    clock: Callable[[], float] = boottime
    _lines: SimpleQueue[Line | str] = field(default_factory=SimpleQueue)
    _devices: dict[str, _Device] = field(default_factory=dict)
    _reported_s: float | None = None
    _process: subprocess.Popen[str] | None = None
    _wait_s: float = FIRST_WAIT_S
    _start_s: float = 0.0
    _bad: bool = False

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the devices with lines since the last reading."""
        if self._reported_s is None:
            self._reported_s = now_s - self._gap_s
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process, now_s)
        if self._process is None and now_s >= self._start_s:
            self._start()
        fresh = self._take_lines()
        if not self._devices:
            self.trouble = self.trouble or SILENT
        elif self.trouble == SILENT:
            self.trouble = ""
        return [self._devices[name].tally.energy(name, "command") for name in fresh]

    def close(self) -> None:
        """End the program and its children."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:  # else its number may be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self.command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Queue its lines with their times, on a thread."""
        with process.stdout or contextlib.nullcontext(()) as lines:
            for text in lines:
                self._lines.put(parse_line(text, self.clock()) or text.strip())

    def _ended(self, process: subprocess.Popen[str], now_s: float) -> None:
        """Note the end of the program, which is started again after a pause."""
        self.close()
        for device in self._devices.values():
            device.last = None
        if process.returncode in NOT_FOUND:
            raise MeterError(f"could not start the meter command {self.command!r}")
        self.trouble = (
            f"the meter command ended with status {process.returncode}; it is started again"
        )
        self._start_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)

    def _take_lines(self) -> list[str]:
        """Read all new lines; return their devices, every device once."""
        fresh: dict[str, None] = {}
        while not self._lines.empty():
            line = self._lines.get()
            if isinstance(line, str):
                if line and not self._bad:
                    self._bad = True
                    self.trouble = (
                        "expected lines such as 'node 61.7 W' or 'node 4711 J' of the meter "
                        f"command, got {line[:60]!r}"
                    )
                continue
            self._wait_s = FIRST_WAIT_S
            if line.device not in self._devices:
                before = self._reported.get(line.device)
                read_s = line.at_s if before is None else self._reported_s
                self._devices[line.device] = _Device(Tally.after(before), read_s or line.at_s)
            if self._devices[line.device].take(line):
                fresh[line.device] = None
        return list(fresh)
