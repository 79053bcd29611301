"""Power of GPUs by nvidia-smi, and the energy under such a curve. Knows nothing of jobs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from queue import SimpleQueue

from rms.power.integral import PowerIntegral
from rms.power.meter import MeterError, Tally
from rms.wire.messages import DeviceEnergy

SOURCE = "nvidia-smi"
QUERY = ("--query-gpu=timestamp,index,power.draw", "--format=csv,noheader,nounits")
LINE = re.compile(r"\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+)\s*,\s*(\d+)\s*,\s*(\d+(?:\.\d+)?)\s*")
END_S = 5.0
EVERY_MS = 100
AVERAGE_S = 1.0
"""Over how long a reading is a mean, on Ampere and later; less on others."""
JUMP_S = 5.0
LONGEST_PAUSE_S = 60.0
PROBE_S = 30.0  # without persistence mode the driver takes seconds to wake


@dataclass(frozen=True)
class Reading:
    """The power of one GPU (W) at one time (s since the epoch, by nvidia-smi's own clock)."""

    at_s: float
    gpu: int
    power_w: float


def parse_line(line: str) -> Reading | None:
    """Read ``2024/05/06 12:34:56.789, 0, 61.72`` (local time, W); None for anything else.

    In the hour that repeats when summer time ends, times are taken to be its first pass.
    """
    match = LINE.fullmatch(line)
    if match is None:
        return None
    stamp, gpu, power = match.groups()
    try:
        at_s = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError):
        return None
    return Reading(at_s, int(gpu), float(power))


class NvidiaSmi:
    """Reads the power of all GPUs every ``every_ms`` milliseconds, by one child; starts once.

    ``error`` is one sentence, once the program could not start or ended on its own.
    """

    source = SOURCE

    def __init__(self, program: str = "nvidia-smi", every_ms: int = 200) -> None:
        self.program = program
        self.every_ms = every_ms
        self.error: str | None = None
        self._closing = False
        self._running: tuple[subprocess.Popen[str], threading.Thread] | None = None

    def start(self, on_reading: Callable[[Reading], None]) -> None:
        """Start; ``on_reading`` is called on the sampler's thread and must not raise."""
        command = [self.program, *QUERY, "-lms", str(self.every_ms)]
        try:
            process = subprocess.Popen(  # in its own session: Ctrl-C is for the daemon alone
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.error = f"could not start {self.program}: {error.strerror}"
            return
        thread = threading.Thread(target=self._read, args=(process, on_reading), daemon=True)
        self._running = process, thread
        thread.start()

    def close(self) -> None:
        """End the child, all it started, and the thread; closing twice does nothing."""
        if self._running is None:
            return
        (process, thread), self._running = self._running, None
        self._closing = True
        if process.returncode is None:  # not yet reaped, so its number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        thread.join(END_S)
        if thread.is_alive():  # a child inside a hung driver outlives SIGKILL
            self.error = f"{self.program} did not end within {END_S:g} s of being killed"

    def __enter__(self) -> NvidiaSmi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, process: subprocess.Popen[str], tell: Callable[[Reading], None]) -> None:
        with process:  # closes the pipe and reaps the child
            last = _pass_on(process.stdout or (), tell)
        code = process.returncode
        if not self._closing:
            how = f"with status {code}" if code >= 0 else f"by signal {-code}"
            self.error = f"{self.program} ended on its own {how}{last and ': '}{last}"


def _pass_on(lines: Iterable[str], tell: Callable[[Reading], None]) -> str:
    """Hand on every reading; return the first sentence of the last line that was none."""
    last = ""
    for line in lines:
        if reading := parse_line(line):
            tell(reading)
        elif line.strip():
            last = line.strip().partition(". ")[0].rstrip(".")
    return last


def integrate(readings: Sequence[Reading], start_s: float, end_s: float) -> dict[int, float]:
    """Return the energy of each GPU (J) from start to end (s since the epoch; 0 J if reversed).

    The trapezoidal rule over each GPU's readings, in any order (Iserte & Rojek, section 5.2:
    energy by integrating power curves). Start and end are interpolated between readings; before
    the first reading and after the last the power is held.
    """
    curves: dict[int, list[Reading]] = {}
    for reading in sorted(readings, key=lambda r: r.at_s):
        curves.setdefault(reading.gpu, []).append(reading)
    return {gpu: _area(curve, start_s, end_s) for gpu, curve in sorted(curves.items())}


def _area(curve: Sequence[Reading], start: float, end: float) -> float:
    head_s, tail_s = min(end, curve[0].at_s) - start, end - max(start, curve[-1].at_s)
    parts = [max(0.0, head_s) * curve[0].power_w, max(0.0, tail_s) * curve[-1].power_w]
    for a, b in pairwise(curve):
        low, high = max(a.at_s, start), min(b.at_s, end)
        if low < high:
            slope = (b.power_w - a.power_w) / (b.at_s - a.at_s)
            middle_s = ((low - a.at_s) + (high - a.at_s)) / 2  # of a trapezoid: its mean height
            parts.append((high - low) * (a.power_w + slope * middle_s))
    return math.fsum(parts)


@dataclass
class Devices:
    """All GPUs of this machine by nvidia-smi, which is started anew where it ends."""

    program: str = "nvidia-smi"
    sources: Sequence[str] = (SOURCE,)
    every_s: float = 1.0
    trouble: str = ""
    _readings: SimpleQueue[Reading] = field(default_factory=SimpleQueue)
    _sampler: NvidiaSmi | None = None
    _curves: dict[int, PowerIntegral] = field(default_factory=dict)
    _before: dict[str, Tally] = field(default_factory=dict)
    _begun_s: float | None = None
    _shift_s: float | None = None
    _started_s: float = 0.0
    _tries: int = 0

    def resume(self, known: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Go on from what an earlier agent has read; the time between nobody has seen."""
        for device in known:
            self._before[device.device] = Tally.after(device)
            self._before[device.device].unseen_s += gap_s

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the GPUs of which there are new readings.

        Raises:
            MeterError: nvidia-smi tells of none.
        """
        if self._begun_s is None:
            self._begun_s = now_s
        if self._sampler is None:
            self._start(now_s)
        fresh = self._take_all(now_s)
        assert self._sampler is not None
        if self._sampler.error is not None:
            self.trouble = self._sampler.error
            if not self._curves:
                raise MeterError(self.trouble)
            if now_s >= self._started_s + min(2.0**self._tries, LONGEST_PAUSE_S):
                self._start(now_s)
        elif not self._curves and now_s > self._started_s + PROBE_S:
            raise MeterError(f"{self.program} tells no power of any device")
        return [self._energy(gpu, now_s) for gpu in fresh]

    def close(self) -> None:
        """End nvidia-smi; a later reading starts it again and goes on."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        self._tries = 0

    def _start(self, now_s: float) -> None:
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = NvidiaSmi(self.program, EVERY_MS)
        self._sampler.start(self._readings.put)
        self._started_s, self._tries = now_s, self._tries + 1

    def _take_all(self, now_s: float) -> list[int]:
        """Take the readings that have come, at times of the caller's clock; return whose they are.

        Its own times are the local time of day, which is set now and then: they tell how far apart
        readings are, and where they jump they begin anew.
        """
        readings = [self._readings.get_nowait() for _ in range(self._readings.qsize())]
        if not readings:
            return []
        self.trouble, self._tries = "", 0
        newest_s = max(reading.at_s for reading in readings)
        if self._shift_s is None or abs(newest_s + self._shift_s - now_s) > JUMP_S:
            self._shift_s = now_s - newest_s
        for reading in readings:
            at_s = reading.at_s + self._shift_s
            if reading.gpu not in self._curves:
                self._curves[reading.gpu] = PowerIntegral(AVERAGE_S)
                if before := self._before.get(f"gpu-{reading.gpu}"):
                    before.unseen_s += max(0.0, at_s - (self._begun_s or at_s))
            self._curves[reading.gpu].add(at_s, reading.power_w)
        return sorted({reading.gpu for reading in readings})

    def _energy(self, gpu: int, now_s: float) -> DeviceEnergy:
        name, curve = f"gpu-{gpu}", self._curves[gpu]
        before = self._before.get(name, Tally())
        return Tally(
            before.joules + curve.joules,
            before.unseen_s + curve.unseen_s(now_s),
            before.uncertainty_j + curve.uncertainty_j(),
        ).energy(name, SOURCE)
