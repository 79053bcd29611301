"""Power as nvidia-smi reads it, and the energy under such a curve. Knows nothing of jobs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import IO

QUERY = ("--query-gpu=timestamp,index,power.draw", "--format=csv,noheader,nounits")
END_S = 5.0
PROBE_S = 30.0  # without persistence mode the driver takes seconds to wake
LINE = re.compile(r"\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+)\s*,\s*(\d+)\s*,\s*(\d+(?:\.\d+)?)\s*")


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
    """Reads the power of all GPUs every ``every_ms`` milliseconds, by one child process.

    Attributes:
        source: what the energy books call these readings.
        error: one sentence, once the program could not start or ended on its own.
    """

    source = "nvidia-smi"

    def __init__(self, program: str = "nvidia-smi", every_ms: int = 200) -> None:
        self.program = program
        self.every_ms = every_ms
        self.error: str | None = None
        self._closing = False
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def start(self, on_reading: Callable[[Reading], None]) -> None:
        """Start reading; ``on_reading`` is called on a thread of the sampler and must not raise.

        A program that cannot start is no exception: see :attr:`error`.

        Raises:
            RuntimeError: it was started already.
        """
        if self._process is not None:
            raise RuntimeError("expected a sampler at rest, got one that was started already")
        self.error, self._closing = None, False
        try:
            self._process = process = subprocess.Popen(
                [self.program, *QUERY, "-lms", str(self.every_ms)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # the terminal's Ctrl-C is for the daemon alone
            )
        except OSError as error:
            self.error = f"could not start {self.program}: {error.strerror or error}"
            return
        self._thread = threading.Thread(
            target=self._read, args=(process, on_reading), name=self.source, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the child, all it started, and the thread; closing twice does nothing."""
        process, thread = self._process, self._thread
        if process is None or thread is None:
            return
        self._closing = True
        if process.returncode is None:  # not yet reaped, so its number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        thread.join(END_S)
        if thread.is_alive():  # a child inside a hung driver outlives SIGKILL
            self.error = f"{self.program} did not end within {END_S:g} s of being killed"
        self._process = self._thread = None

    def __enter__(self) -> NvidiaSmi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, process: subprocess.Popen[str], tell: Callable[[Reading], None]) -> None:
        assert process.stdout is not None
        last = _pass_on(process.stdout, tell)
        code = process.wait()
        if not self._closing:
            how = f"with status {code}" if code >= 0 else f"by signal {-code}"
            self.error = f"{self.program} ended on its own {how}{last and ': '}{last}"


def _pass_on(lines: IO[str], tell: Callable[[Reading], None]) -> str:
    """Hand on every reading; return the first sentence of the last line that was none."""
    last = ""
    with lines:
        for line in lines:
            reading = parse_line(line)
            if reading is not None:
                tell(reading)
            elif line.strip():
                last = line.strip().partition(". ")[0].rstrip(".")
    return last


def integrate(readings: Sequence[Reading], start_s: float, end_s: float) -> dict[int, float]:
    """Return the energy of each GPU (J) between two times (s since the epoch).

    The trapezoidal rule over each GPU's readings, in any order (Iserte & Rojek, section 5.2:
    energy by integrating power curves). Start and end are interpolated between readings; before
    the first reading and after the last the power is held.

    Raises:
        ValueError: the end is before the start.
    """
    if end_s < start_s:
        raise ValueError(f"expected an end not before {start_s} s, got {end_s} s")
    curves: dict[int, list[tuple[float, float]]] = {}
    for reading in readings:
        curves.setdefault(reading.gpu, []).append((reading.at_s, reading.power_w))
    return {gpu: _area(sorted(curves[gpu]), start_s, end_s) for gpu in sorted(curves)}


def _area(curve: Sequence[tuple[float, float]], start: float, end: float) -> float:
    (first, first_w), (last, last_w) = curve[0], curve[-1]
    parts = [max(0.0, min(end, first) - start) * first_w, max(0.0, end - max(start, last)) * last_w]
    for (t0, w0), (t1, w1) in pairwise(curve):
        low, high = max(t0, start), min(t1, end)
        if low < high:
            ends_w = [w0 + (w1 - w0) * ((t - t0) / (t1 - t0)) for t in (low, high)]
            parts.append((high - low) * (ends_w[0] + ends_w[1]) / 2)
    return math.fsum(parts)


def available(program: str = "nvidia-smi") -> bool:
    """Return whether the program reads the power of at least one GPU now (it is run once)."""
    try:
        done = subprocess.run(
            [program, *QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and any(map(parse_line, done.stdout.splitlines()))
