"""Cluster files, workload files and criteria for jobs: read once, unknown keys refused.

Files are TOML; a workload may also be CSV. There a column is a key of ``[[jobs]]`` whose value is
no table; a nested one has the name of its table in front (``resize = {every_s}`` is
``resize_every_s``), and ``nodes = [min, max]`` is two columns. A text or a file that does not parse
raises :class:`FileError`.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from rms.core.model.contention import Processors, SharedNode, shared_nodes
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Speedup
from rms.core.model.speedup import OperatingPoint, fit_law
from rms.formats.profiles import Profile, ProfileError
from rms.formats.profiles import named as read_named
from rms.formats.profiles import read as read_profile
from rms.formats.values import ScriptError, expand
from rms.wire.files import check_finite
from rms.wire.terminal import CommandError

Shape = TypeVar("Shape")
MOST_NODES = 2**31 - 1
"""The largest size of a job in a workload file."""

ROUNDING = 1e-9
"""A limit below the run time by this share is equal to it."""


class FileError(CommandError, ValueError):
    """A file that does not parse."""


class _Power(NodePower, frozen=True, forbid_unknown_fields=True):
    pass


class _Processors(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    factor: float = 1.0
    socket_gb_s: float | None = None
    name: str = ""


class _Nodes(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    cores: int = 1
    gpus: int = 0
    slots: int | None = None
    processors: list[_Processors] | None = None
    memory_bandwidth_gb_s: float | None = None
    power: _Power = msgspec.field(default_factory=_Power)
    frequencies: list[float] | None = None


class _Cluster(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    nodes: list[_Nodes]


class ClusterFile(msgspec.Struct, frozen=True):
    """A cluster: the names, devices and power models of its nodes.

    Attributes:
        bandwidth_gb_s: memory bandwidth of the nodes, ``inf`` where it is not stated; empty if no
            node states it.
        frequencies: the frequencies that its nodes can be set to, in GHz, rising; empty for none.
        processors: kinds of processors of the nodes, in the order of their slots; empty if no node
            states any.
    """

    name: str
    nodes: tuple[str, ...]
    power: tuple[NodePower, ...]
    gpus: tuple[int, ...]
    slots: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    bandwidth_gb_s: tuple[float, ...] = ()
    frequencies: tuple[float, ...] = ()
    processors: tuple[tuple[Processors, ...], ...] = ()

    @property
    def shared(self) -> tuple[SharedNode, ...]:
        """The nodes as hosts whose slots jobs get one by one."""
        return shared_nodes(self.slots, self.bandwidth_gb_s, self.processors)

    @property
    def levels(self) -> tuple[tuple[float, float], ...]:
        """Frequencies with voltages, which are taken to be proportional to them."""
        return tuple((ghz, ghz / self.frequencies[-1]) for ghz in self.frequencies)


class _Clocks(msgspec.Struct, forbid_unknown_fields=True):
    ghz: list[float]
    time_s: list[float]
    power_w: list[float]


class _SpeedupTable(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[int] = []
    time_s: list[float] = []
    power_w_per_node: list[float] = []
    peak_w_per_node: list[float] = []
    t1_s: float | None = None
    tc_s: float | None = None
    interpolate: str | None = None
    fit: str | None = None
    profile: str | None = None
    frequency: _Clocks | None = None


class _Resize(msgspec.Struct, forbid_unknown_fields=True):
    every_s: float
    price_s: float = 0.0


class _JobEntry(msgspec.Struct, forbid_unknown_fields=True):
    nodes: tuple[int, int]
    speedup: _SpeedupTable | None = None
    name: str = ""
    user: str = ""
    account: str = ""
    count: int = 1
    submit_s: float = 0.0
    preferred: int | None = None
    mode: Mode = Mode.FIXED
    limit_s: float | None = None
    deadline_s: float | None = None
    run_s: float | None = None
    serial: float | None = None
    array: str | None = None
    resize: _Resize | None = None
    memory_bandwidth_gb_s: float | None = None
    power_w: float | None = None

    @property
    def size(self) -> int:
        """The preferred size, by default the largest."""
        return self.nodes[1] if self.preferred is None else self.preferred


class _Workload(msgspec.Struct, forbid_unknown_fields=True):
    jobs: list[_JobEntry]


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster file."""
    raw = _read(path, _Cluster)
    rows: list[tuple[str, NodePower, _Nodes, int, tuple[Processors, ...]]] = []
    for group in raw.nodes:
        _check_counts(group, path)
        stated = msgspec.structs.asdict(group.power)
        for key, value in stated.items():
            if not 0.0 <= value < inf:
                raise FileError(f"{path}: expected {key} of at least 0, got {value:g}")
        power, kinds = NodePower(**stated), _kinds(group, path)
        width = sum(kind.number for kind in kinds)
        width = width or group.slots or group.gpus or group.cores
        try:
            members = expand(group.name)
        except ScriptError as error:
            raise FileError(f"{path}: {error}") from None
        rows += [(name, power, group, width, kinds or (Processors(width),)) for name in members]
    if not rows:
        raise FileError(f"{path}: expected at least one node, got none")
    names, powers, groups, widths, processors = zip(*rows, strict=True)
    if len(set(names)) != len(names):
        raise FileError(f"{path}: expected every node once, got repeated names")
    gb_s = tuple(group.memory_bandwidth_gb_s or inf for group in groups)
    return ClusterFile(
        raw.name,
        names,
        powers,
        tuple(group.gpus for group in groups),
        widths,
        tuple(group.cores for group in groups),
        gb_s if min(gb_s) < inf else (),
        _frequencies(raw, path),
        processors if any(group.processors is not None for group in groups) else (),
    )


def _check_counts(group: _Nodes, path: Path) -> None:
    """Refuse nodes without slots, or of a bandwidth that cannot be."""
    for key, value, least in (
        ("slots", group.slots, 1),
        ("cores", group.cores, 1),
        ("gpus", group.gpus, 0),
    ):
        if value is not None and value < least:
            raise FileError(f"{path}: expected {key} of at least {least}, got {value}")
    gb_s = group.memory_bandwidth_gb_s
    if gb_s is not None and not 0.0 < gb_s < inf:
        raise FileError(f"{path}: expected memory_bandwidth_gb_s above 0, got {gb_s:g}")


def _kinds(group: _Nodes, path: Path) -> tuple[Processors, ...]:
    """Return the kinds of processors that nodes state, () for none."""
    if group.processors is None:
        return ()

    def check(met: bool, expected: str, got: str) -> None:
        if not met:
            raise FileError(f"{path}: expected {expected}, got {got}")

    names = [kind.name for kind in group.processors if kind.name]
    check(bool(group.processors), "kinds of processors of nodes", "an empty list")
    check(group.slots is None, "slots or processors of nodes", "both")
    check(not group.gpus, "processors of nodes without gpus", f"gpus = {group.gpus}")
    check(len(set(names)) == len(names), "different names of kinds of processors", f"{names}")
    for kind in group.processors:
        check(kind.count >= 1, "count of processors of at least 1", f"{kind.count}")
        factor = "factor of processors of at least 1, the fastest kind's"
        check(kind.factor >= 1.0, factor, f"{kind.factor:g}")
        spelled = not kind.name or re.fullmatch("[A-Za-z]+", kind.name) is not None
        check(spelled, "a name of processors of letters", repr(kind.name))
        if kind.socket_gb_s is not None:
            node_gb_s = group.memory_bandwidth_gb_s
            got = f"socket_gb_s = {kind.socket_gb_s:g}"
            if node_gb_s is None:
                check(False, "memory_bandwidth_gb_s of nodes with a socket", f"none and {got}")
            elif not 0.0 < kind.socket_gb_s <= node_gb_s:
                check(False, f"a socket above 0 and at most the node's {node_gb_s:g} GB/s", got)
    return tuple(
        Processors(kind.count, kind.factor, kind.socket_gb_s or inf, kind.name)
        for kind in group.processors
    )


def _frequencies(raw: _Cluster, path: Path) -> tuple[float, ...]:
    """Return the frequencies (GHz) of a cluster's nodes, which must be the same for all."""
    first = raw.nodes[0].frequencies or []
    if any((group.frequencies or []) != first for group in raw.nodes):
        raise FileError(f"{path}: expected the same frequencies of all nodes, got others")
    if first != sorted(set(first)) or min(first, default=1.0) <= 0.0 or inf in first:
        raise FileError(f"{path}: expected rising frequencies above 0 (GHz), got {first}")
    return tuple(first)


def read_workload(
    path: Path,
    mode: Mode | None = None,
    say: Callable[[str], None] | None = None,
    profiles: Path | None = None,
    names: dict[JobId, str] | None = None,
) -> list[JobSpec]:
    """Read a workload file, TOML or ``*.csv``; ``mode`` overrides the modes of its jobs.

    The ids of the jobs are their places in the file, from 1. A limit below the run time is raised
    to it.

    Args:
        say: receives lines about the fit of laws and about raised limits.
        profiles: folder of measured profiles that a workload may name.
        names: receives the names of the jobs that state one.
    """
    specs: list[JobSpec] = []
    raised = 0
    for where, entry in _entries(path):
        _check_numbers(entry, where)
        law = _amdahl(entry, where)
        table = entry.speedup
        spec = _spec(
            entry,
            JobId(str(len(specs) + 1)),
            where,
            mode,
            law if table is None else _speedup(table, path, say, profiles),
            () if table is None else _operating_points(table, path, profiles),
        )
        if spec.limit_s != entry.limit_s:
            raised += entry.count
        for _ in range(entry.count):
            specs.append(msgspec.structs.replace(spec, id=JobId(str(len(specs) + 1))))
            if names is not None and entry.name:
                names[specs[-1].id] = entry.name
    if not specs:
        raise FileError(f"{path}: expected at least one job, got none")
    if raised and say is not None:
        say(f"{path}: {raised} jobs beyond their limit: the limit raised to the run time")
    return specs


def _entries(path: Path) -> Iterator[tuple[str, _JobEntry]]:
    """Yield the place of an entry in a workload file, for messages, and the entry."""
    if path.suffix != ".csv":
        for entry in _read(path, _Workload).jobs:
            yield str(path), entry
        return
    try:
        yield from _read_rows(path)
    except FileNotFoundError:
        raise FileError(f"expected a file, got {path}, which does not exist") from None
    except OSError as error:
        raise FileError(f"{path}: {error}") from None


def _entry_of_row(values: dict[str, Any], where: str) -> _JobEntry:
    low = values.pop("nodes_min", None)
    if low is None:
        raise FileError(f"{where}: expected a whole number in column nodes_min, got an empty cell")
    every_s, price_s = values.pop("resize_every_s", None), values.pop("resize_price_s", None)
    resize = None if every_s is None else _Resize(every_s, price_s or 0.0)
    if resize is None and price_s:
        raise FileError(f"{where}: expected resize_every_s with resize_price_s, got an empty cell")
    return _JobEntry((low, values.pop("nodes_max", low)), resize=resize, **values)


def _check_numbers(entry: _JobEntry, where: str) -> None:
    if entry.count < 1:
        raise FileError(f"{where}: expected count of at least 1, got {entry.count}")
    if entry.nodes[1] > MOST_NODES:
        raise FileError(f"{where}: expected at most {MOST_NODES} nodes, got {entry.nodes[1]}")
    values = msgspec.structs.asdict(entry)
    if entry.resize is not None:
        values["resize_every_s"] = entry.resize.every_s
        values["resize_price_s"] = entry.resize.price_s
    for name in ("submit_s", "resize_price_s", "memory_bandwidth_gb_s", "power_w"):
        if (value := values.get(name)) is not None and value < 0.0:
            raise FileError(f"{where}: expected {name} of at least 0, got {value:.10g}")
    for name in ("limit_s", "run_s", "resize_every_s"):
        if (value := values.get(name)) is not None and value <= 0.0:
            raise FileError(f"{where}: expected {name} above 0, got {value:.10g}")


def _amdahl(entry: _JobEntry, where: str) -> Speedup | None:
    """Return t(n) = run_s (serial + (1 - serial) preferred / n), None without ``serial``."""
    run_s, serial = entry.run_s, entry.serial
    if (entry.speedup is None) == (run_s is None):
        got = "neither" if run_s is None else "both"
        raise FileError(f"{where}: expected either run_s or speedup, got {got}")
    if serial is None:
        if run_s is not None and entry.nodes[0] < entry.nodes[1]:
            raise FileError(f"{where}: expected serial with run_s of several sizes, got none")
        return None
    if run_s is None:
        raise FileError(f"{where}: expected run_s with serial, got speedup")
    if not 0.0 <= serial < 1.0:
        raise FileError(f"{where}: expected serial from 0 to below 1, got {serial:.10g}")
    return Speedup(law=((1.0 - serial) * run_s * entry.size, serial * run_s))


def _spec(
    entry: _JobEntry,
    job_id: JobId,
    where: str,
    mode: Mode | None,
    speedup: Speedup | None,
    points: tuple[OperatingPoint, ...],
) -> JobSpec:
    """Return the first job of an entry."""
    resize = entry.resize
    try:
        spec = JobSpec(
            id=job_id,
            submit_s=entry.submit_s,
            nodes_min=entry.nodes[0],
            nodes_max=entry.nodes[1],
            preferred=entry.size,
            mode=entry.mode if mode is None else mode,
            speedup=speedup,
            limit_s=entry.limit_s,
            deadline_s=entry.deadline_s,
            run_s=entry.run_s if speedup is None else None,
            resize_every_s=None if resize is None else resize.every_s,
            resize_price_s=0.0 if resize is None else resize.price_s,
            array=entry.array,
            power_w=entry.power_w,
            bandwidth_gb_s=entry.memory_bandwidth_gb_s,
            operating_points=points,
            account=sys.intern(entry.account or entry.user),
        )
    except ValueError as error:
        raise FileError(f"{where}: {error}") from None
    sizes = spec.sizes()
    if not sizes or spec.preferred not in sizes:
        raise FileError(f"{where}: expected preferred nodes of {list(sizes)}, got {spec.preferred}")
    run_s = {n: spec.time_s(n) or 0.0 for n in (spec.preferred, sizes[0], sizes[-1])}
    for n, time_s in run_s.items():
        if not 0.0 < time_s < inf:
            raise FileError(
                f"{where}: expected a finite run time above 0, got {time_s:.10g} s on {n} nodes"
            )
    least_s = run_s[spec.preferred]
    if spec.limit_s is None or spec.limit_s >= least_s * (1.0 - ROUNDING):
        return spec
    return msgspec.structs.replace(spec, limit_s=least_s)


def _speedup(
    table: _SpeedupTable, path: Path, say: Callable[[str], None] | None, profiles: Path | None
) -> Speedup:
    if table.profile is not None:
        table = _profile(table, path, profiles)
    if table.t1_s is not None or table.tc_s is not None:
        if table.t1_s is None or table.tc_s is None or table.nodes or table.time_s:
            raise FileError(f"{path}: expected speedup as t1_s and tc_s, or as nodes and time_s")
        return Speedup(law=(table.t1_s, table.tc_s))
    powers = (table.power_w_per_node, table.peak_w_per_node)
    lengths = {len(table.nodes), len(table.time_s), *(len(column) for column in powers if column)}
    if lengths != {len(table.nodes)} or not table.nodes:
        raise FileError(f"{path}: expected as many times and powers as nodes in speedup")
    if table.nodes != sorted(set(table.nodes)) or min(table.time_s) <= 0:
        raise FileError(f"{path}: expected rising nodes and positive times in speedup")
    if table.interpolate not in (None, "inverse"):
        raise FileError(f'{path}: expected interpolate = "inverse", got {table.interpolate!r}')
    if table.fit is not None:
        return _fitted(table, path, say)
    return Speedup(
        tuple(table.nodes),
        tuple(table.time_s),
        tuple(table.power_w_per_node),
        interpolate=table.interpolate is not None,
        peak_w_per_node=tuple(table.peak_w_per_node),
    )


def _operating_points(
    table: _SpeedupTable, path: Path, profiles: Path | None
) -> tuple[OperatingPoint, ...]:
    """Return time and power over frequency, as stated or of a measured profile; empty for none."""
    clocks = table.frequency
    if clocks is None:
        return () if table.profile is None else _read_profile(table, path, profiles)[1]
    ghz, time_s, power_w = clocks.ghz, clocks.time_s, clocks.power_w
    if not ghz or not len(ghz) == len(time_s) == len(power_w):
        raise FileError(f"{path}: expected as many times and powers as ghz in frequency")
    if ghz != sorted(set(ghz)) or min(*ghz, *time_s, *power_w) <= 0.0:
        raise FileError(f"{path}: expected rising ghz, times and powers above 0 in frequency")
    rows = zip(ghz, time_s, power_w, strict=True)
    return tuple(OperatingPoint(f, t / time_s[-1], w / power_w[-1]) for f, t, w in rows)


def _profile(table: _SpeedupTable, path: Path, profiles: Path | None) -> _SpeedupTable:
    """Return a measured profile as a table."""
    if table.nodes or table.time_s or table.t1_s is not None:
        raise FileError(f"{path}: expected a profile or a table in speedup, got both")
    measured, _ = _read_profile(table, path, profiles)
    measured.interpolate, measured.fit = table.interpolate, table.fit
    return measured


def _read_profile(
    table: _SpeedupTable, path: Path, profiles: Path | None
) -> tuple[_SpeedupTable, tuple[OperatingPoint, ...]]:
    """Return the table and the operating points of a measured profile.

    It is a file ``*.json``, of ``rms profile`` or a table (nodes, time_s, power_w_per_node), or
    else the name of a stored one.
    """
    name = str(table.profile)
    file = path.parent / name
    try:
        if file.suffix != ".json":
            return _measured(read_named(profiles, name))
        data = file.read_bytes()
        if "points" in msgspec.json.decode(data, type=dict[str, Any]):
            return _measured(read_profile(file))
        return msgspec.json.decode(data, type=_SpeedupTable), ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: expected a profile {file}, got: {error}") from None
    except ProfileError as error:
        raise FileError(f"{path}: {error}") from None


def _measured(profile: Profile) -> tuple[_SpeedupTable, tuple[OperatingPoint, ...]]:
    points = profile.matrix()
    has_peaks = any(point.peak_w for point in points)
    sizes = _SpeedupTable(
        [point.nodes for point in points],
        [point.run_s for point in points],
        [point.node_w for point in points],
        [point.peak_w / point.nodes for point in points if has_peaks],
    )
    return sizes, operating_points(profile)


def operating_points(profile: Profile) -> tuple[OperatingPoint, ...]:
    """Return time and power over frequency, of the size with most clocks that were set.

    Power is that above idle. Empty if fewer than two clocks were set.
    """
    sizes: dict[tuple[int, str], dict[float, tuple[float, float]]] = {}
    for point in profile.points:
        if point.mhz is not None:
            above_w = max(0.0, point.node_w * point.nodes - point.idle_w)
            clocks = sizes.setdefault((point.nodes, point.way), {})
            clocks[point.mhz / 1000.0] = point.run_s, above_w
    rows = sorted(max(sizes.values(), key=len, default={}).items())
    if len(rows) < 2:
        return ()
    _, (top_s, top_w) = rows[-1]
    return tuple(
        OperatingPoint(ghz, run_s / top_s, above_w / top_w if top_w else 1.0)
        for ghz, (run_s, above_w) in rows
    )


def _fitted(table: _SpeedupTable, path: Path, say: Callable[[str], None] | None) -> Speedup:
    """Return t(n) = tc + t1 / n by least squares, and report its error."""
    if table.fit != "law" or len(table.nodes) < 2 or table.power_w_per_node:
        raise FileError(
            f'{path}: expected fit = "law" for two sizes or more, without powers, got {table.fit!r}'
        )
    t1_s, tc_s = fit_law(table.nodes, table.time_s)
    law = Speedup(law=(t1_s, tc_s))
    errors = [abs(law.time(n) / t - 1.0) for n, t in zip(table.nodes, table.time_s, strict=True)]
    if min(law.time(n) for n in (1, table.nodes[-1], 10**6)) <= 0:
        raise FileError(
            f"{path}: expected times that t(n) = tc + t1 / n can fit, got tc = {tc_s:g} s"
        )
    if say is not None:
        off = f"off by {100 * fmean(errors):.1f} % on average, {100 * max(errors):.1f} % at most"
        say(f"{path}: t(n) = {tc_s:.4g} s + {t1_s:.4g} s / n, {off}")
    return law


def _read(path: Path, shape: type[Shape]) -> Shape:
    try:
        content = msgspec.toml.decode(path.read_bytes(), type=shape)
        check_finite(msgspec.to_builtins(content))
        return content
    except FileNotFoundError:
        raise FileError(f"expected a file, got {path}, which does not exist") from None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise FileError(f"{path}: {error}") from None


# --- Rows of a workload as CSV: a header of columns, then a row per job ---------------------------


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    value = _number(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


NUMBER = (_number, "a number")
WHOLE = (_whole, "a whole number")
TEXT = (sys.intern, "text")
COLUMNS: dict[str, tuple[Callable[[str], Any], str]] = {
    "submit_s": NUMBER,
    "name": TEXT,
    "user": TEXT,
    "account": TEXT,
    "array": TEXT,
    "count": WHOLE,
    "mode": (Mode, f"a mode of {', '.join(Mode)}"),
    "nodes_min": WHOLE,
    "nodes_max": WHOLE,
    "preferred": WHOLE,
    "limit_s": NUMBER,
    "deadline_s": NUMBER,
    "run_s": NUMBER,
    "serial": NUMBER,
    "resize_every_s": NUMBER,
    "resize_price_s": NUMBER,
    "memory_bandwidth_gb_s": NUMBER,
    "power_w": NUMBER,
}
"""The reader of the cells of a column, and the kind of its values in words."""


def _read_rows(path: Path) -> Iterator[tuple[str, _JobEntry]]:
    """Yield the place and the entry of every row."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            header = next(reader, [])
            _check_header(header, path)
            for cells in reader:
                if cells:
                    where = f"{path}: line {reader.line_num}"
                    yield where, _entry_of_row(_values(header, cells, where), where)
        except (csv.Error, UnicodeDecodeError) as error:
            raise FileError(
                f"{path}: expected CSV, got after line {reader.line_num}: {error}"
            ) from None


def _check_header(header: Sequence[str], path: Path) -> None:
    """Refuse a header with unknown or repeated columns, or without a size."""
    for name in header:
        if name not in COLUMNS:
            raise FileError(f"{path}: expected columns of {', '.join(COLUMNS)}, got {name[:40]!r}")
        if header.count(name) > 1:
            raise FileError(
                f"{path}: expected every column once, got {name} {header.count(name)} times"
            )
    if "nodes_min" not in header:
        raise FileError(
            f"{path}: expected a column nodes_min, got {', '.join(header) or 'no header'}"
        )


def _values(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, Any]:
    if len(cells) != len(header):
        raise FileError(f"{where}: expected {len(header)} cells, got {len(cells)}")
    values = {}
    for name, text in zip(header, cells, strict=True):
        if text:
            read, kind = COLUMNS[name]
            try:
                values[name] = read(text)
            except ValueError:
                raise FileError(
                    f"{where}: expected {kind} in column {name}, got {text[:40]!r}"
                ) from None
    return values


# --- Criteria: user=alice,name=wrf*,nodes=4-64,hours=1- -------------------------------------------

LABELS = ("user", "account", "partition", "name")
RANGES = ("nodes", "hours")
FORM = "user, account, partition or name = PATTERN, nodes or hours = MIN-MAX"


class Criteria(msgspec.Struct, frozen=True):
    """Criteria for jobs: at least one of every kind must hold.

    Attributes:
        labels: shell patterns by ``LABELS``.
        ranges: pairs ``(least, most)`` by ``RANGES``.
    """

    labels: Mapping[str, tuple[str, ...]] = {}
    ranges: Mapping[str, tuple[tuple[float, float], ...]] = {}

    def match(self, nodes: int, run_s: float, labels: Mapping[str, str]) -> bool:
        """Return whether a job matches.

        Args:
            nodes, run_s: its size and its run time in s.
            labels: its user, account, partition and name.
        """
        values = {"nodes": float(nodes), "hours": run_s / 3600.0}
        return all(
            any(low <= values[kind] <= high for low, high in spans)
            for kind, spans in self.ranges.items()
        ) and all(
            any(fnmatchcase(labels.get(kind, ""), pattern) for pattern in patterns)
            for kind, patterns in self.labels.items()
        )


def parse_criteria(text: str) -> Criteria:
    """Read ``user=alice,user=bob,name=wrf*,nodes=4-64,hours=1-``."""
    labels: dict[str, list[str]] = {}
    ranges: dict[str, list[tuple[float, float]]] = {}
    for part in text.split(","):
        kind, equals, value = (text.strip() for text in part.partition("="))
        if kind in LABELS and equals and value:
            labels.setdefault(kind, []).append(value)
        elif kind in RANGES and value:
            ranges.setdefault(kind, []).append(_range(value, part))
        else:
            raise FileError(f"expected {FORM}, got {part!r}")
    return Criteria(
        {kind: tuple(patterns) for kind, patterns in labels.items()},
        {kind: tuple(spans) for kind, spans in ranges.items()},
    )


def _range(value: str, part: str) -> tuple[float, float]:
    low, dash, high = value.partition("-")
    try:
        least = float(low) if low else 0.0
        most = (float(high) if high else inf) if dash else least
    except ValueError:
        raise FileError(f"expected a range like 4-64, 4- or -64, got {part!r}") from None
    if not 0.0 <= least <= most:
        raise FileError(f"expected a range from less to more, got {part!r}")
    return least, most
