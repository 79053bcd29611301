"""Power of the processors' packages by RAPL, through Linux powercap.

It shows an energy counter in microjoules for each package, which wraps around at
``max_energy_range_uj``. Memory, disks and fans are in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rms.power.meter import MeterError

POWERCAP = Path("/sys/class/powercap")


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

    def close(self) -> None:
        """There is nothing to end."""

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
