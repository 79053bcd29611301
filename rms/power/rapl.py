"""Energy of the processors' packages and memory by RAPL, through Linux powercap.

Zones are counters in microjoules that wrap around (Documentation/power/powercap/powercap.rst).
Packages and memory are counted, ``psys`` only without packages, parts of packages never.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rms.power.meter import ABOVE_LIMIT, Meter, MeterError, Refusals, Tally
from rms.wire.messages import DeviceEnergy

MOST_W = 1000.0
"""Bound of a zone's power where it states no limit: twice what the largest sockets draw."""

LATE_S = 0.1  # a reading may be so much older than its time
ALIKE_S = 5e-3  # counters that mirror one another may be updated so much apart
UPDATE_S = 1e-3
"""The counters are updated about every millisecond (Intel SDM, volume 3B, 15.10)."""

FALLBACKS = ("intel-rapl", "intel-rapl-mmio")
"""The second shows the same packages by another way; it is read only where the first has none."""


def counted(before: int, now: int, range_: int, most: float) -> int | None:
    """Return the count of a counter between two readings, None if it is unknown.

    A counter that falls has wrapped around if its count is then no more than ``most``; else it was
    reset. If it may have wrapped around once more, the time between was too long.

    Args:
        range_: the value at which it wraps around, 0 if unknown.
        most: bound of its count, in its unit.
    """
    spent = now - before
    if spent < 0:
        if not range_:
            return None
        spent += range_
    if not 0 <= spent <= most or (range_ and spent + range_ <= most):
        return None
    return spent


@dataclass
class Zone:
    """A counter: its place, and its count.

    Attributes:
        name: the kernel's, with the package's number for memory.
        file: of the counter.
        range_uj: the value at which it wraps around, 0 if unknown.
        twin: an earlier zone of the same package that it may mirror, until they differ.
        last_uj, last_s: its newest reading, None before the first.
        counted_uj: its count since its first reading, or since that of an earlier agent.
        refused: whether the newest reading was above the bound.
    """

    path: Path
    name: str
    device: str
    range_uj: int
    most_w: float
    twin: Zone | None = None
    last_uj: int | None = None
    last_s: float = 0.0
    counted_uj: int = 0
    tally: Tally = field(default_factory=Tally)
    refused: bool = False

    def __post_init__(self) -> None:
        self.file = f"{self.path}/energy_uj"

    @property
    def source(self) -> str:
        """The name of its meter in the books."""
        return "rapl-dram" if self.name.startswith("dram") else "rapl"

    def read(self, now_s: float) -> bool:
        """Take a reading; return whether there was one."""
        now_uj = _number(self.file)
        if now_uj is None:
            return False  # the next one holds its energy too
        if self.twin is not None and self.twin.last_s == now_s:
            self._compare(now_uj, self.twin)
        if self.last_uj is not None:
            gap_s = now_s - self.last_s
            most_uj = self.most_w * (gap_s + LATE_S) * 1e6
            self.refused = now_uj - self.last_uj > most_uj
            spent_uj = counted(self.last_uj, now_uj, self.range_uj, most_uj)
            if spent_uj is None:
                self.tally.unseen_s += gap_s
                self.tally.uncertainty_j += self.edges_j
            else:
                self.counted_uj += spent_uj
        self.last_uj, self.last_s = now_uj, now_s
        return True

    @property
    def edges_j(self) -> float:
        """The uncertainty of a span, as the counter is not updated at its begin and end."""
        return self.most_w * UPDATE_S

    def _compare(self, now_uj: int, twin: Zone) -> None:
        """Drop the twin if it differs: a mirror's value is between two readings of its twin."""
        before_uj, after_uj = twin.last_uj, _number(twin.file)
        if before_uj is None or after_uj is None:
            return
        ahead_uj, moved_uj = now_uj - before_uj, after_uj - before_uj
        if self.range_uj:
            ahead_uj, moved_uj = ahead_uj % self.range_uj, moved_uj % self.range_uj
        behind_uj = self.range_uj - ahead_uj if self.range_uj else -ahead_uj
        slack_uj = self.most_w * ALIKE_S * 1e6
        if not (ahead_uj <= moved_uj + slack_uj or 0 <= behind_uj <= slack_uj):
            self.twin = None

    def energy(self) -> DeviceEnergy:
        """Return its energy, uncertain by its updates: its gain is not stated."""
        tally = self.tally
        joules = tally.joules + self.counted_uj * 1e-6
        whole = Tally(joules, tally.unseen_s, tally.uncertainty_j + self.edges_j)
        counter = None if self.last_uj is None else self.last_uj * 1e-6
        return whole.energy(self.device, self.source, counter)


@dataclass
class Rapl(Meter):
    """The zones of this machine.

    Attributes:
        most_w: bound of the power of a zone; None for twice its limit.
    """

    folder: Path
    most_w: float | None = None
    _refusals: Refusals = field(default_factory=Refusals)
    _listed: list[str] = field(default_factory=list)
    _counting: list[Zone] = field(default_factory=list)
    _zones: dict[Path, Zone] = field(default_factory=dict)
    _reported_s: float | None = None

    def read(self, now_s: float) -> list[DeviceEnergy]:
        """Return the energy of the zones; a zone that cannot be read now is left out."""
        if self._reported_s is None:
            self._reported_s = now_s - self._gap_s
        zones = self._find(now_s)
        read = [zone for zone in zones if zone.read(now_s)]
        lost = [zone.path for zone in zones if zone not in read]
        why_not = _why_not(lost[0]) if lost else ""
        if not read and all(_locked(path) for path in lost):
            raise MeterError(why_not or f"no processor package in {self.folder}")
        counting = [zone for zone in read if zone.twin is None]
        for zone in counting:
            if zone.refused:
                self._refusals.add(zone.device, zone.most_w, now_s)
        self.trouble = "; ".join(filter(None, (why_not, self._refusals.words(now_s))))
        return [zone.energy() for zone in counting]

    def _find(self, now_s: float) -> list[Zone]:
        """Return the zones that count; they are listed again if any has come or gone."""
        try:
            listed = sorted(os.listdir(self.folder))  # noqa: PTH208  (a tenth of the time of glob)
        except OSError:
            listed = []
        if listed == self._listed:
            return self._counting
        self._listed, self._counting = listed, []
        for kind in FALLBACKS:
            paths = [self.folder / name for name in listed if name.startswith(f"{kind}:")]
            zones = [self._zone(path, now_s) for path in sorted(paths, key=_place)]
            counting = [zone for zone in zones if zone is not None]
            packages = any(zone.name.startswith("package") for zone in counting)
            self._counting = [zone for zone in counting if zone.name != "psys" or not packages]
            if self._counting:
                break
        return self._counting

    def _zone(self, path: Path, now_s: float) -> Zone | None:
        """Return the zone of a folder; None for a part of another."""
        name = _text(f"{path}/name") or ""
        if name == "dram":
            package = _text(f"{path.parent}/{path.name.rpartition(':')[0]}/name") or ""
            name = f"dram{package.removeprefix('package')}"
        if not name.startswith(("package-", "dram", "psys")):
            return None
        zone = self._zones.get(path)
        if zone is None or zone.name != name:
            self._zones[path] = zone = self._new(path, name, now_s)
        return zone

    def _new(self, path: Path, name: str, now_s: float) -> Zone:
        """Return a new zone, as an earlier agent has read it."""
        whole = name.partition("-die-")[0]
        others = [zone for place, zone in self._zones.items() if place != path]
        twin = next((zone for zone in others if zone.name.partition("-die-")[0] == whole), None)
        taken = any(zone.device == name for zone in others)
        zone = Zone(
            path,
            name,
            f"{name}-zone-{path.name.partition(':')[2]}" if taken else name,
            _number(f"{path}/max_energy_range_uj") or 0,
            self.most_w or _most_w(path),
            twin,
        )
        before = self._reported.get(zone.device)
        if before is not None and self._reported_s is not None:
            zone.tally = Tally.after(before)
            if self._same_boot and before.source == zone.source and before.counter is not None:
                zone.last_uj, zone.last_s = round(before.counter * 1e6), self._reported_s
            else:
                zone.tally.unseen_s += now_s - self._reported_s
        return zone


def _place(path: Path) -> list[int]:
    """Return a key by which ``intel-rapl:10`` comes after ``intel-rapl:2``."""
    return [int(part) if part.isdecimal() else -1 for part in path.name.split(":")[1:]]


def _most_w(path: Path) -> float:
    """Return a bound of a zone's power from the limits it states, W."""
    limits = (
        _number(str(file))
        for pattern in ("constraint_*_power_limit_uw", "constraint_*_max_power_uw")
        for file in path.glob(pattern)
    )
    stated = max((limit for limit in limits if limit), default=0) * 1e-6
    return ABOVE_LIMIT * stated if stated else MOST_W


def _locked(path: Path) -> bool:
    try:
        (path / "energy_uj").read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _why_not(path: Path) -> str:
    file = path / "energy_uj"
    if not _locked(path):
        return f"{file} could not be read"
    return (
        f"{file} may be read by root alone (since 2020, CVE-2020-8694); a site opens it to a group"
        f" at every boot by tmpfiles.d: z {path.parent}/intel-rapl*/energy_uj 0440 root GROUP"
    )


def _text(path: str) -> str | None:
    """Return the text of a file of a line, None if it cannot be read now.

    With pathlib it takes five times as long, once a second.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 1 << 12).decode().strip()
        finally:
            os.close(file)
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None
