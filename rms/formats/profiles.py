"""Measured profiles of programs: time, power and energy by size (``rms profile``).

Chauhan et al. (section III) call a profile a PET matrix, and keep it in a knowledge base. Here the
base is a folder with one JSON file per program and machine. Files are written whole or not at all,
so that concurrent commands do no harm to one another. A profile that is missing or does not parse
raises :class:`ProfileError`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from rms.core.model.speedup import Speedup, fit_law
from rms.wire.files import write_output
from rms.wire.terminal import CommandError

FORMAT = 1
PROFILES_VARIABLE = "RMS_PROFILES"
"""The folder of profiles, instead of ``profiles`` in the state folder; empty for none."""

SEPARATE, MALLEABLE = WAYS = "separate", "malleable"
"""Ways to measure a point: by a run of its own, or by resizing one run."""

_INTERPRETER = re.compile(r"(python|perl|ruby|bash|sh|julia|Rscript|node)[0-9.]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ProfileError(CommandError, ValueError):
    """A profile is missing or does not parse."""


class Machine(msgspec.Struct, frozen=True):
    """The machine of a profile: processor model, number of cores, names of GPUs."""

    cpu: str
    cores: int
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        gpus = "".join(f", {name}" for name in self.gpus)
        return f"{self.cpu}, {self.cores} core{'s' * (self.cores != 1)}{gpus}"


class Program(msgspec.Struct, frozen=True):
    """A measured program: all words of its command, and the hash of its file.

    Of an interpreter (python, sh, ...) the script that it runs is hashed too.
    """

    words: tuple[str, ...]
    sha256: str

    @classmethod
    def find(cls, words: Sequence[str], cwd: Path, path: str) -> Program | None:
        """Return the program of a command, None if there is no such file.

        Args:
            cwd: its working folder.
            path: the search path, as in ``PATH``.
        """
        named = words[0] if "/" not in words[0] else str(cwd / words[0])
        program = shutil.which(named, path=path)
        if program is None:
            return None
        files = [Path(program)]
        if _INTERPRETER.fullmatch(files[0].name):
            script = next((cwd / word for word in words[1:] if not word.startswith("-")), None)
            files += [script] if script is not None and script.is_file() else []
        try:
            hashes = "".join(_sha256(file) for file in files)
        except OSError:
            return None
        return cls(tuple(words), hashes if len(files) == 1 else _digest(hashes))


class Point(msgspec.Struct, frozen=True):
    """One size (and frequency) of a profile.

    Attributes:
        nodes: how many.
        way: ``separate`` or ``malleable``.
        time_s: run times of the whole job; of a malleable run, the seconds per step of its periods
            at this size, times the steps of the job.
        energy_j: energies of the job in these runs.
        source: source of the energy: ``model``, or meters.
        peak_w: highest power of the job's nodes above their idle power.
        idle_w: idle power of these nodes.
        mhz: clock that was set, None for none.
        uncertainty_j: half-width of the energy of one run, by the meters.
        steps: that the job reports, 0 for none.
    """

    nodes: int
    way: str
    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    source: str
    peak_w: float = 0.0
    idle_w: float = 0.0
    mhz: float | None = None
    uncertainty_j: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or not self.time_s or len(self.time_s) != len(self.energy_j):
            raise ValueError("expected nodes, and as many energies as times")
        if min(self.time_s) <= 0.0 or min(self.energy_j) < 0.0:
            raise ValueError("expected times above 0 and energies of at least 0")

    @property
    def run_s(self) -> float:
        """Median of the run times."""
        return median(self.time_s)

    @property
    def spread_s(self) -> float:
        """Longest less shortest run."""
        return max(self.time_s) - min(self.time_s)

    @property
    def node_w(self) -> float:
        """Mean power of a node."""
        return sum(self.energy_j) / sum(self.time_s) / self.nodes

    @property
    def run_j(self) -> float:
        """Energy of a run of the median time at the mean power."""
        return self.node_w * self.nodes * self.run_s


class SideBySide(msgspec.Struct, frozen=True):
    """Copies of a program and probes of memory bandwidth that ran at once, one on a core.

    Attributes:
        time_s: run time of a copy, mean of the rounds; 0 if only probes ran.
        probe_gb_s: bandwidth of a probe meanwhile; 0 without probes.
    """

    copies: int
    probes: int
    time_s: float = 0.0
    probe_gb_s: float = 0.0


class Bandwidth(msgspec.Struct, frozen=True):
    """Memory bandwidth, GB/s: the demand of one process of a program, and that of a node.

    Attributes:
        process_gb_s: mean demand of a process; an upper bound if ``process_at_most``, as no
            contention showed.
        process_error_gb_s: standard error; of a bound it is in the bound.
        node_gb_s: highest sum of probes on all cores or fewer.
        node_at_least: whether probes do not slow one another, so that a node may have more.
        probe_gb_s: bandwidth of a single probe, the highest demand of a core.
        rounds: number of repetitions of all measurements.
        runs: means of the rounds.
        notes: other observations, in words.
    """

    process_gb_s: float
    process_error_gb_s: float
    process_at_most: bool
    node_gb_s: float
    node_error_gb_s: float
    node_at_least: bool
    probe_gb_s: float
    rounds: int
    runs: tuple[SideBySide, ...]
    notes: tuple[str, ...] = ()


class Profile(msgspec.Struct, frozen=True):
    """The measurements of a program on a machine.

    Attributes:
        name: its name, by which users may choose it.
        steps: steps of the program; 0 if unknown.
        measured: date and time of the newest point.
        memory_bandwidth_gb_s: demand of a process; None without a measurement, or with an upper
            bound only.
        node_bandwidth_gb_s: bandwidth of a node of the machine, or its lower bound; None without a
            measurement.
        bandwidth: the measurements of both.
    """

    name: str
    program: Program
    machine: Machine
    points: tuple[Point, ...]
    steps: int = 0
    measured: str = ""
    format: int = FORMAT
    memory_bandwidth_gb_s: float | None = None
    node_bandwidth_gb_s: float | None = None
    bandwidth: Bandwidth | None = None

    def matrix(self, way: str | None = None, mhz: float | None = None) -> list[Point]:
        """Return the points of one way and frequency, by size.

        Args:
            way: None for separate runs, or the malleable one where there are none.
        """
        points = [point for point in self.points if point.mhz == mhz]
        if way is None:
            way = SEPARATE if any(point.way == SEPARATE for point in points) else MALLEABLE
        return sorted((p for p in points if p.way == way), key=lambda point: point.nodes)

    def speedup(self, low: int = 0, high: int = 0, *, power: bool = True) -> Speedup:
        """Return run time and power against nodes, at unchanged clocks.

        Sizes between the measured ones are linear in 1/n. Those up to ``high`` and down to ``low``
        follow the law t(n) = tc + t1 / n of the measured ones, but are no better than perfect
        scaling of the next measured one, and no worse than it.

        Args:
            power: whether the power is included.
        """
        points = self.matrix()
        time_s = {point.nodes: point.run_s for point in points}
        node_w = {point.nodes: point.node_w for point in points}
        peak_w = {point.nodes: point.peak_w / point.nodes for point in points}
        law = fit_law(list(time_s), list(time_s.values())) if len(points) > 1 else None
        for n, nearest in ((low, points[0]), (high, points[-1])):
            if n < 1 or points[0].nodes <= n <= points[-1].nodes:
                continue
            perfect_s = nearest.run_s * nearest.nodes / n
            t1_s, tc_s = law or (perfect_s * n, 0.0)
            slow_s, fast_s = sorted((perfect_s, nearest.run_s), reverse=True)
            time_s[n] = min(slow_s, max(fast_s, tc_s + t1_s / n))
            node_w[n], peak_w[n] = nearest.node_w, peak_w[nearest.nodes]
        nodes = sorted(time_s)
        return Speedup(
            tuple(nodes),
            tuple(time_s[n] for n in nodes),
            tuple(node_w[n] for n in nodes) if power else (),
            interpolate=True,
            peak_w_per_node=tuple(peak_w[n] for n in nodes)
            if power and any(peak_w.values())
            else (),
        )


def key(program: Program, machine: Machine) -> str:
    """Return the key of a program on a machine, in the name of its file."""
    return _digest(msgspec.json.encode((program, machine)).decode())[:12]


def folder(env: Mapping[str, str], state: Path) -> Path | None:
    """Return the folder of profiles, None for no profiles.

    Args:
        state: the user's state folder.
    """
    named = env.get(PROFILES_VARIABLE)
    if named is None:
        return state / "profiles"
    return Path(named).absolute() if named else None


def name_of(words: Sequence[str]) -> str:
    """Return the name of a command: its program, or the script or module of an interpreter."""
    name = Path(words[0]).name
    if _INTERPRETER.fullmatch(name) and "-c" not in words:
        name = next((Path(word).name for word in words[1:] if not word.startswith("-")), name)
    return re.sub(r"[^A-Za-z0-9._-]|^[._-]|\.json$", "-", name).lstrip("-") or "program"


def check_name(name: str) -> str:
    """Return a name that a profile may have."""
    if not _NAME.fullmatch(name) or name.endswith(".json"):
        raise ProfileError(
            f"expected a name of letters, digits and . _ - for a profile, got {name!r}"
        )
    return name


def read(path: Path) -> Profile:
    """Read a profile."""
    try:
        return parsed(path.read_bytes(), path)
    except FileNotFoundError:
        raise ProfileError(f"expected a profile, got {path}, which does not exist") from None
    except OSError as error:
        raise ProfileError(f"expected a profile, got {path}: {error}") from None


def parsed(text: bytes, path: Path | str) -> Profile:
    """Return the profile that a file holds.

    Args:
        path: of the file, for error messages.
    """
    try:
        profile = msgspec.json.decode(text, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(f"expected a profile, got {path}: {error}") from None
    if profile.format != FORMAT:
        raise ProfileError(f"{path}: expected a profile of format {FORMAT}, got {profile.format}")
    if not profile.matrix():
        raise ProfileError(
            f"{path}: expected a profile with points at clocks as they are, got none"
        )
    return profile


def write(path: Path, profile: Profile) -> None:
    """Write a profile, whole or not at all.

    Raises:
        ProfileError: its folder cannot be made.
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfileError(
            f"expected a place for a profile, got {path}: {error.strerror}"
        ) from None
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2)
    write_output(path, text + b"\n", sync=True)


def path_of(base: Path, name: str, program: Program, machine: Machine) -> Path:
    """Return the file of a program's profile in a folder of profiles."""
    return base / f"{name}-{key(program, machine)}.json"


def find(
    base: Path | None, program: Program | None, machine: Callable[[], Machine]
) -> Profile | None:
    """Return the profile of a program on a machine: same words, same file, same machine.

    Args:
        machine: returns the machine; called only if there are profiles.
    """
    if base is None or program is None or not any(base.glob("*.json")):
        return None
    for path in sorted(base.glob(f"*-{key(program, machine())}.json")):
        profile = read(path)
        if (profile.program, profile.machine) == (program, machine()):
            return profile
    return None


def named(base: Path | None, name: str) -> Profile:
    """Return the one profile of a name."""
    paths = [] if base is None else sorted(base.glob("*.json"))
    matches = [p for p in paths if name in (p.stem, p.stem.rpartition("-")[0])]
    if len(matches) != 1:
        got = ", ".join(path.stem for path in matches or paths) or "none"
        raise ProfileError(f"expected a file or the name of one profile, got {name!r} of: {got}")
    return read(matches[0])


def merged(old: Profile | None, new: Profile) -> Profile:
    """Return a profile with the points of a new measurement, and older ones of another way."""
    if old is None:
        return new
    ways = {point.way for point in new.points}
    kept = tuple(point for point in old.points if point.way not in ways)
    steps = new.steps or old.steps
    profile = msgspec.structs.replace(new, points=kept + new.points, steps=steps)
    return profile if new.bandwidth is not None else with_bandwidth(profile, old.bandwidth)


def with_bandwidth(profile: Profile, bandwidth: Bandwidth | None) -> Profile:
    """Return a profile with a measurement of bandwidth, if there is one."""
    if bandwidth is None:
        return profile
    return msgspec.structs.replace(
        profile,
        memory_bandwidth_gb_s=None if bandwidth.process_at_most else bandwidth.process_gb_s,
        node_bandwidth_gb_s=bandwidth.node_gb_s,
        bandwidth=bandwidth,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
