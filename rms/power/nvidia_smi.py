"""Power of GPUs by nvidia-smi, which is restarted if it ends, hangs or prints no power."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from queue import SimpleQueue

from rms.power.meter import (
    ABOVE_LIMIT,
    GAP_S,
    GPU_LIMIT_W,
    Meter,
    MeterError,
    PowerIntegral,
    Refusals,
    Tally,
)
from rms.wire.messages import DeviceEnergy

SOURCE = "nvidia-smi"
QUERY = ("--query-gpu=timestamp,index,power.draw,power.max_limit", "--format=csv,noheader,nounits")
LINE = re.compile(
    r"\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+)\s*,\s*(\d+)\s*,\s*(\d+(?:\.\d+)?)\s*"
    r"(?:,\s*(\d+(?:\.\d+)?|\[[^\]]*\]|N/A)\s*)?"
)
END_S = 2.0
SILENT_S = 5.0
"""A GPU is silent after this time without a printed power."""
EVERY_MS = 100
AVERAGE_S = 1.0
"""Time over which a reading is a mean, on Ampere and later; less on others."""
JUMP_S = 5.0
LONGEST_PAUSE_S = 60.0
PROBE_S = 30.0  # without persistence mode the driver takes seconds to wake


@dataclass(frozen=True)
class PowerReading:
    """The power of one GPU (W) at one time (s since the epoch, by nvidia-smi's own clock)."""

    at_s: float
    gpu: int
    power_w: float
    limit_w: float | None = None


def parse_line(line: str) -> PowerReading | None:
    """Return the reading of ``2024/05/06 12:34:56.789, 0, 61.72, 400.00`` (local time, W, W).

    It is None for anything else; the limit may be ``[N/A]`` or missing.

    In the hour that repeats when summer time ends, times are taken to be its first pass.
    """
    match = LINE.fullmatch(line)
    if match is None:
        return None
    stamp, gpu, power, limit = match.groups()
    try:
        at_s = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError):
        return None
    limit_w = float(limit) if limit and limit[0].isdigit() else 0.0
    return PowerReading(at_s, int(gpu), float(power), limit_w or None)


class NvidiaSmi:
    """Reads the power of all GPUs every ``every_ms`` milliseconds, by one child; starts once.

    Attributes:
        error: one sentence, once the program could not start or ended on its own.
        unreadable: the last line that is not a reading, "" without one.
    """

    def __init__(self, program: str = "nvidia-smi", every_ms: int = 200) -> None:
        self.program = program
        self.every_ms = every_ms
        self.error: str | None = None
        self.unreadable = ""
        self._closing = False
        self._running: tuple[subprocess.Popen[str], threading.Thread] | None = None

    def start(self, on_reading: Callable[[PowerReading], None]) -> None:
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
        process, thread = self._running
        wait_s = 0.0 if self._closing else END_S
        self._closing = True
        if process.returncode is None:  # not yet reaped, so its number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        thread.join(wait_s)
        if thread.is_alive():  # a child inside a hung driver outlives SIGKILL
            self.error = f"{self.program} did not end within {END_S:g} s of being killed"
        else:
            self._running = None

    @property
    def hangs(self) -> bool:
        """Whether its child still exists after :meth:`close`."""
        return self._closing and self._running is not None

    def _read(
        self, process: subprocess.Popen[str], on_reading: Callable[[PowerReading], None]
    ) -> None:
        with process:  # closes the pipe and reaps the child
            for line in process.stdout or ():
                if reading := parse_line(line):
                    on_reading(reading)
                elif line.strip():  # the first sentence of the last other line
                    self.unreadable = line.strip().partition(". ")[0].rstrip(".")[:200]
        code = process.returncode
        if not self._closing:
            how = f"with status {code}" if code >= 0 else f"by signal {-code}"
            last = self.unreadable
            self.error = f"{self.program} ended on its own {how}{last and ': '}{last}"


@dataclass
class Devices(Meter):
    """All GPUs of this machine by nvidia-smi, which is restarted when it ends or hangs."""

    program: str = "nvidia-smi"
    most_w: float | None = None
    _readings: SimpleQueue[PowerReading] = field(default_factory=SimpleQueue)
    _sampler: NvidiaSmi | None = None
    _curves: dict[int, PowerIntegral] = field(default_factory=dict)
    _printed_s: dict[int, float] = field(default_factory=dict)
    _refusals: Refusals = field(default_factory=Refusals)
    _before: dict[str, Tally] = field(default_factory=dict)
    _begun_s: float | None = None
    _shift_s: float | None = None
    _started_s: float = 0.0
    _tries: int = 0

    def resume(self, reported: Sequence[DeviceEnergy], gap_s: float, same_boot: bool) -> None:
        """Continue from the readings of an earlier agent; the time between is unseen."""
        for device in reported:
            self._before[device.device] = Tally.after(device)
            self._before[device.device].unseen_s += gap_s

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the GPUs with new readings, and silent ones."""
        if self._begun_s is None:
            self._begun_s = now_s
        if self._sampler is None or (self._sampler.hangs and not self._tries):
            self._start(now_s)
        fresh = self._take_all(now_s)
        assert self._sampler is not None
        refused = self._refusals.words(now_s)
        unreadable, wait_s = self._sampler.unreadable, min(2.0**self._tries, LONGEST_PAUSE_S)
        silent = [gpu for gpu, at_s in self._printed_s.items() if now_s > at_s + SILENT_S]
        if self._sampler.error is not None:
            self.trouble = self._sampler.error
            if not self._curves:
                raise MeterError(self.trouble)
        elif not self._curves:
            wait_s = math.inf
            if now_s > self._started_s + (SILENT_S if unreadable or refused else PROBE_S):
                problem = f"{self.program} prints no power of any device"
                raise MeterError(self._with_reasons(problem, refused))
        elif silent:
            names = ", ".join(f"gpu-{gpu}" for gpu in silent)
            problem = f"{self.program} has printed no power of {names} for {SILENT_S:g} s"
            if not self.trouble.startswith(problem):  # a changed problem is logged again
                self.trouble = self._with_reasons(f"{problem} and is started again", refused)
            # Before its first output it may still be waiting for the driver.
            begun = unreadable or max(self._printed_s.values()) >= self._started_s
            wait_s = max(wait_s, SILENT_S if begun else PROBE_S)
        else:
            self.trouble, self._tries, wait_s = refused, 0, math.inf
        if now_s >= self._started_s + wait_s:
            self._start(now_s)
        unseen = [gpu for gpu, at_s in self._printed_s.items() if now_s > at_s + GAP_S]
        return [self._energy(gpu, now_s) for gpu in sorted({*fresh, *unseen})]

    def _with_reasons(self, problem: str, refused: str) -> str:
        """Return a problem with its likely reasons: the unreadable output, a refused power."""
        assert self._sampler is not None
        unreadable = self._sampler.unreadable
        reasons = [f"it printed {unreadable!r}" if unreadable else "", refused]
        return "; ".join(filter(None, (problem, *reasons)))

    def close(self) -> None:
        """End nvidia-smi; a later reading starts it again, unless it still hangs."""
        if self._sampler is not None:
            self._sampler.close()
            if not self._sampler.hangs:
                self._sampler = None
        self._tries = 0

    def _start(self, now_s: float) -> None:
        if self._sampler is not None:
            self._sampler.close()
            if self._sampler.hangs:  # a second process would hang in the same driver
                self._started_s, self._tries = now_s, self._tries + 1
                return
        self._sampler = NvidiaSmi(self.program, EVERY_MS)
        self._sampler.start(self._readings.put)
        self._started_s, self._tries = now_s, self._tries + 1

    def _take_all(self, now_s: float) -> list[int]:
        """Take the new readings, at times of the caller's clock; return their GPUs.

        Its own times are the local time of day, which is set now and then: they give the distances
        of readings, and begin anew after a jump.
        """
        readings = [self._readings.get_nowait() for _ in range(self._readings.qsize())]
        for reading in list(readings):
            most_w = self.most_w or ABOVE_LIMIT * (reading.limit_w or GPU_LIMIT_W)
            if reading.power_w > most_w:
                self._refusals.add(f"gpu-{reading.gpu}", most_w, now_s)
                readings.remove(reading)
        if not readings:
            return []
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
            self._printed_s[reading.gpu] = now_s
        return sorted({reading.gpu for reading in readings})

    def _energy(self, gpu: int, now_s: float) -> DeviceEnergy:
        name, curve = f"gpu-{gpu}", self._curves[gpu]
        before = self._before.get(name, Tally())
        return Tally(
            before.joules + curve.joules,
            before.unseen_s + curve.unseen_s(now_s),
            before.uncertainty_j + curve.uncertainty_j(),
        ).energy(name, SOURCE)
