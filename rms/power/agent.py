"""A node's own meter: ``python -m rms.power.agent`` on each node tells what it draws.

Devices are read by nvidia-smi, the processors' packages by RAPL (Linux powercap: an energy counter
in microjoules that wraps around at ``max_energy_range_uj``); their sum is the node's power, and the
source says which of them there were. Memory, disks and fans are in neither. Where nothing can be
read, that is said once, with the reason, and the daemon keeps to its model.

Compute nodes import this, so it needs nothing but msgspec.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rms.power.samplers import NvidiaSmi, Reading, available
from rms.wire.http import UnreachableError, request
from rms.wire.messages import METER_PATH, Metered

POWERCAP = Path("/sys/class/powercap")
PATIENCE_S = 600.0
"""How long a daemon may be away before the meters are nobody's."""


class MeterError(Exception):
    """Power cannot be read; one sentence."""


@dataclass
class Rapl:
    """The packages of this machine: ``intel-rapl:0``, ``intel-rapl:1``, not what they consist of.

    Attributes:
        folder: where the kernel shows them.
    """

    folder: Path = POWERCAP
    _last: dict[Path, int] = field(default_factory=dict)
    _last_s: float | None = None

    source = "rapl"

    def read(self, now_s: float) -> float | None:
        """Return the mean power since the last call, W; None at the first.

        Args:
            now_s: a clock that never goes back, seconds.

        Raises:
            MeterError: there is no such counter, or it may not be read.
        """
        packages = self._packages()
        energies = {package: _number(package / "energy_uj") for package in packages}
        watts = None
        same = self._last.keys() == energies.keys()
        if self._last_s is not None and now_s > self._last_s and same:
            spent = sum(self._spent(package, energies[package]) for package in packages)
            watts = spent * 1e-6 / (now_s - self._last_s)
        if self._last_s is None or now_s > self._last_s:
            self._last, self._last_s = energies, now_s
        return watts

    def _packages(self) -> list[Path]:
        found = [
            zone
            for zone in sorted(self.folder.glob("intel-rapl:*"))
            if zone.name.count(":") == 1 and _text(zone / "name").startswith("package")
        ]
        if not found:
            raise MeterError(f"no processor package in {self.folder}")
        return found

    def _spent(self, package: Path, energy_uj: int) -> int:
        """Return the energy since the last reading; a counter wraps around once at most."""
        spent = energy_uj - self._last[package]
        return spent if spent >= 0 else spent + _number(package / "max_energy_range_uj")


@dataclass
class Devices:
    """All GPUs of this machine together, by nvidia-smi."""

    program: str = "nvidia-smi"
    _power_w: dict[int, float] = field(default_factory=dict)
    _sampler: NvidiaSmi | None = None

    source = "nvidia-smi"

    def read(self, now_s: float) -> float | None:
        """Return their newest power, W; None while there is no reading yet.

        Raises:
            MeterError: there are none, or nvidia-smi has ended.
        """
        if self._sampler is None:
            if not available(self.program):
                raise MeterError(f"{self.program} reads no device")
            self._sampler = NvidiaSmi(self.program)
            self._sampler.start(self._take)
        if self._sampler.error is not None:
            raise MeterError(self._sampler.error)
        return sum(self._power_w.values()) if self._power_w else None

    def _take(self, reading: Reading) -> None:
        self._power_w[reading.gpu] = reading.power_w

    def close(self) -> None:
        """End nvidia-smi."""
        if self._sampler is not None:
            self._sampler.close()


@dataclass
class Meter:
    """What a node draws, of all that can be read there."""

    node: str
    rapl: Rapl
    devices: Devices
    _refused: dict[str, str] = field(default_factory=dict)

    def read(self, now_s: float) -> Metered | None:
        """Return what there is to tell, None while there is nothing yet."""
        watts: dict[str, float] = {}
        wait = False
        for part in (self.rapl, self.devices):
            if part.source in self._refused:
                continue
            try:
                found = part.read(now_s)
            except MeterError as error:
                self._refused[part.source] = str(error)
                continue
            if found is None:
                wait = True
            else:
                watts[part.source] = found
        if wait:
            return None
        if not watts:
            return Metered(self.node, "model", None, "; ".join(self._refused.values()))
        return Metered(self.node, " and ".join(watts), sum(watts.values()))


def run(
    meter: Meter,
    tell: Callable[[Metered], None],
    every_s: float,
    over: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Tell readings until it is over; where there is nothing to read, tell that and return."""
    while not over.is_set():
        said = meter.read(clock())
        if said is not None:
            tell(said)
            if said.watts is None:
                return
        over.wait(every_s)


def teller(env: Mapping[str, str], over: threading.Event) -> Callable[[Metered], None]:
    """Return what sends a reading to the daemon, which may be away for a while."""
    server, token = env["RMS_SERVER"], env["RMS_TOKEN"]
    heard_s = time.monotonic()

    def tell(said: Metered) -> None:
        nonlocal heard_s
        while not over.is_set():
            try:
                status, answer = request(
                    server, "POST", METER_PATH, msgspec.json.encode(said), token=token
                )
                if status != 200:  # another daemon's token: these meters are nobody's any more
                    raise MeterError(f"the daemon answered {status}: {answer.decode()[:200]}")
                heard_s = time.monotonic()
                return
            except UnreachableError as error:
                if time.monotonic() > heard_s + PATIENCE_S:
                    raise MeterError(str(error)) from None
                if said.watts is not None:
                    return  # it is old by the time the daemon is back
            over.wait(1.0)

    return tell


def main(words: list[str]) -> int:
    """Run until told to end; 0 also where there is nothing to read."""
    parser = argparse.ArgumentParser(
        "rms.power.agent", description="Tells a daemon a node's power."
    )
    parser.add_argument("--every", type=float, default=1.0, metavar="S")
    arguments = parser.parse_args(words)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    devices = Devices()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        run(Meter(node, Rapl(), devices), teller(os.environ, over), arguments.every, over)
    except (MeterError, KeyError) as error:
        print(f"rms.power.agent on {node}: {error}", file=sys.stderr)
        return 1
    finally:
        devices.close()
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError:
        raise MeterError(
            f"{path.parent.parent}: its counters may not be read by this user"
        ) from None
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdecimal():
        raise MeterError(f"expected a number in {path}, got {text[:40]!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
