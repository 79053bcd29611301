"""Job scripts, their options, and times in Slurm's forms.

What ``sbatch`` reads is read the same way here, so that one script serves both. Whatever does not
parse raises :class:`ScriptError`. Only :func:`parse_script` touches a file.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from operator import mul
from pathlib import Path
from typing import Any

from rms.core.model import Mode
from rms.formats.begin import parse_begin
from rms.formats.dependency import parse_dependency
from rms.formats.ids import ScriptError as ScriptError
from rms.formats.ids import match, parse_array
from rms.formats.nodelist import NodeListError, expand
from rms.formats.signals import parse_signal

MOST_NODES = 100_000  # of one job
MOST_OPTIONS = 65_536  # characters, of all lines with options
NO_INDEX = 4_294_967_294  # what %a is for a job of no array, as in Slurm
DEFAULT_OUTPUT = "rms-%j.out"
DEFAULT_ARRAY_OUTPUT = "rms-%A_%a.out"

_TIME = re.compile("(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_WORD = re.compile(r"""((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)(.*)""")


@dataclass(frozen=True)
class Options:
    """What a script or a command line asks for; None where it does not say."""

    array: str | None = None  # for parse_array
    nodes: tuple[int, int] | None = None
    preferred: int | None = None
    mode: Mode | None = None
    time_s: float | None = None  # inf where no limit is asked for
    job_name: str | None = None
    output: str | None = None  # for expand_output
    dependency: str | None = None  # for parse_dependency
    requeue: bool | None = None
    ntasks_per_node: int | None = None
    resize_factor: int | None = None
    memory_bandwidth_gb_s: float | None = None
    power_w: float | None = None
    cooldown_s: float | None = None
    profile: str | None = None  # a name, a file, or none
    power_limit_w: float | None = None
    error: str | None = None  # for expand_output; None: with the output
    chdir: str | None = None  # below the folder of the submission, or absolute
    export: str | None = None  # which variables the job gets
    arguments: tuple[str, ...] | None = None  # of the script itself
    idempotency_key: str | None = None
    hold: bool | None = None
    begin: str | None = None  # for parse_begin
    memory_mib: float | None = None  # on each node; 0 for all that there is
    signal: str | None = None  # for parse_signal
    account: str | None = None
    ntasks: int | None = None  # ranks, one on each slot of a job's nodes
    nodelist: str | None = None  # for rms.formats.nodelist.expand
    exclude: str | None = None  # the same

    def over(self, other: Options) -> Options:
        """Return both, this one's word first: a command line goes over its script."""
        mine: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(other, **{name: said for name, said in mine.items() if said is not None})

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and the most nodes, where nodes are cores."""
        return self.nodes or (self.ntasks or 1, self.ntasks or 1)


@dataclass(frozen=True)
class Script:
    """A job script as read; ``slurm_options`` are those of ``#SBATCH`` that mean nothing here.

    One word each, as ``--mem=4G`` or ``-pdebug``, so that they can be handed on to sbatch.
    """

    options: Options
    slurm_options: tuple[str, ...]
    path: Path


@dataclass(frozen=True)
class OutputNames:
    """What the name of a job's output file may hold.

    A job of no array has its own id as ``array_id`` and None as ``index``.
    """

    array_id: str
    index: int | None
    job_id: str
    name: str
    node: str
    user: str


def parse_script(path: Path) -> Script:
    """Read the ``#RMS`` and ``#SBATCH`` lines before a script's first command.

    An option of ``#RMS`` wins over the same one of ``#SBATCH``; of equals, the later.
    """
    try:
        text = path.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise ScriptError(f"{path}: expected a job script, got {error.strerror!r}") from None
    return parse_text(text, path)


def parse_text(text: str, path: Path | str) -> Script:
    """Read a script's text as :func:`parse_script` does; ``path`` is for what is said of it."""
    stated = {"RMS": Options(), "SBATCH": Options()}
    ignored: list[str] = []
    length = 0
    for number, line in enumerate(_lines(text, path), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return Script(stated["RMS"].over(stated["SBATCH"]), tuple(ignored), Path(path))
        if directive := re.match(r"#(RMS|SBATCH)(?=[\s-]|$)", line):
            length += len(line)
            try:
                if length > MOST_OPTIONS:
                    raise ScriptError(f"expected {MOST_OPTIONS} characters of options, got more")
                found, unknown = _directive(directive[1], _words(line[directive.end() :]))
            except ScriptError as error:
                raise ScriptError(f"{path}:{number}: {error}") from None
            stated[directive[1]] = found.over(stated[directive[1]])
            ignored += unknown
    raise ScriptError(f"{path}: expected a command after the comments, got none")


def read_option(name: str, text: str) -> Options:
    """Return what ``--name=text`` asks for, by the names that ``#RMS`` lines use."""
    field, read = _READERS[name]
    try:
        stated: dict[str, Any] = {field: read(text)}
    except ScriptError as error:
        raise ScriptError(f"--{name}: {error}") from None
    return Options(**stated)


def refuse_unsupported(options: Options, slots: Collection[int], *, shared: bool = False) -> None:
    """Refuse what would have no effect here, rather than let it be overlooked.

    Args:
        slots: how many slots the cluster's nodes hold; a job runs a rank on each of its nodes'.
        shared: whether slots are given one by one.

    Raises:
        ScriptError: the first such option.
    """
    if options.resize_factor is not None:
        raise ScriptError("--resize-factor is not in this version; expected a script without it")
    tasks = options.ntasks_per_node
    if shared and tasks is not None:
        raise ScriptError(
            "expected no --ntasks-per-node where jobs share nodes (--nodes counts slots there), "
            f"got {tasks}"
        )
    if tasks is not None and set(slots) != {tasks}:
        found = " or ".join(map(str, sorted(set(slots))))
        raise ScriptError(f"expected --ntasks-per-node={found}, as nodes here hold, got {tasks}")


def nodes_of_tasks(options: Options, slots: Collection[int], *, shared: bool = False) -> Options:
    """Return options with as many nodes as ``--ntasks`` ranks fill, where none are stated.

    Args:
        slots, shared: as in :func:`refuse_unsupported`.

    Raises:
        ScriptError: they do not fill whole nodes, or other nodes than are stated.
    """
    tasks, widths = options.ntasks, {1} if shared else set(slots)
    if tasks is None:
        return options
    held = " or ".join(map(str, sorted(widths)))
    width = widths.pop()
    if widths or (options.nodes is None and tasks % width):
        form = f"--ntasks to fill whole nodes, each of {held} slots"
        raise ScriptError(f"expected {form}, got {tasks}: say --nodes")
    low, high = options.nodes or (tasks // width, tasks // width)
    if not low * width <= tasks <= high * width:
        ranks = f"{low * width}" + (f" to {high * width}" if high > low else "")
        raise ScriptError(f"expected --ntasks of {ranks}, a rank on each slot, got {tasks}")
    return replace(options, nodes=(low, high))


def parse_time(text: str) -> float:
    """Return seconds of ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``.

    ``UNLIMITED``, ``INFINITE`` and, as with ``sbatch --time``, zero are no limit: ``inf``.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    form = "a time as minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"
    days, clock = match(_TIME, text, form).groups()
    parts = [int(part) for part in clock.split(":")]
    units = (60, 1) if days is None and len(parts) < 3 else (3600, 60, 1)
    return float(int(days or 0) * 86400 + sum(map(mul, parts, units))) or math.inf


def parse_power_cap(text: str) -> float | None:
    """Return the watts of ``250`` or ``12.5``, None of ``none``."""
    try:
        return None if text.lower() == "none" else _amount(text)
    except ScriptError:
        form = "a power cap in watts like 250, or none"
        raise ScriptError(f"expected {form}, got {text!r}") from None


def parse_nodes(text: str) -> tuple[int, int]:
    """Return the fewest and the most nodes of ``4`` or ``1-4``."""
    form = f"nodes as N or MIN-MAX with 1 <= MIN <= MAX <= {MOST_NODES}"
    low, high = match("([0-9]{1,9})(?:-([0-9]{1,9}))?", text, form).groups()
    if not 1 <= int(low) <= int(high or low) <= MOST_NODES:
        raise ScriptError(f"expected {form}, got {text!r}")
    return int(low), int(high or low)


def expand_output(pattern: str, job: OutputNames) -> str:
    """Replace ``%A %a %j %x %N %u %%`` in an output file's name; ``%4a`` pads ids with zeros.

    Other symbols stay.
    """
    index = NO_INDEX if job.index is None else job.index
    ids = {"A": job.array_id, "a": str(index), "j": job.job_id}
    texts = {"x": job.name, "N": job.node, "u": job.user, "%": "%"}

    def value(found: re.Match[str]) -> str:
        width, symbol = found.groups()
        return ids[symbol].zfill(min(int(width or 0), 10)) if symbol in ids else texts[symbol]

    return re.sub("%(|[0-9]{1,9}(?!%))([AajxNu%])", value, pattern)


def _lines(text: str, path: Path | str) -> list[str]:
    if not text.strip():
        raise ScriptError(f"{path}: expected a job script, got an empty file")
    if "\0" in text:
        raise ScriptError(f"{path}: expected a text file, got zero bytes in it")
    lines = text.split("\n")
    if not text.startswith("#!"):
        raise ScriptError(f"{path}: expected a first line like #!/bin/sh, got {lines[0][:60]!r}")
    if "\r\n" in text:
        raise ScriptError(f"{path}: expected Unix line ends, got those of DOS")
    return lines


def _words(line: str) -> list[str]:
    words = []
    while (line := line.strip()) and not line.startswith("#"):
        word, line = match(_WORD, line, "closed quotes").groups()
        words.append(_text(shlex.split(word)[0]))
    return words


def _directive(kind: str, words: list[str]) -> tuple[Options, list[str]]:
    options, ignored = Options(), list[str]()
    while words:
        word = words.pop(0)
        if word == "-H":
            word = "--hold"
        if short := re.fullmatch("-([aNtJodeDbAnwx])(.*)", word):
            word = f"--{_SHORT[short[1]]}" + (f"={short[2]}" if short[2] else "")
        option, given, text = word.partition("=")
        name = option.removeprefix("--")
        if option in _FLAGS and not given:
            options = _FLAGS[option].over(options)
        elif (
            option == f"--{name}"
            and name in _READERS
            and (kind == "RMS" or name not in _NOT_SLURMS)
        ):
            text = text if given or not words else words.pop(0)
            if kind == "SBATCH" and name in WATCHED:
                ignored.append(f"{option}={text}")
            options = read_option(name, text).over(options)
        elif kind == "RMS" or option in _FLAGS or not option.startswith("-"):
            known = ", ".join([*(f"--{name}" for name in _READERS), *_FLAGS])
            raise ScriptError(f"expected an option of {known}, got {word!r}")
        else:
            if not given and words and not words[0].startswith("-"):
                word += ("=" if word.startswith("--") else "") + words.pop(0)
            ignored.append(word)
    return options, ignored


def _text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ScriptError(f"expected a printable text, got {text!r}")
    return text


def _count(text: str) -> int:
    return int(match("0*[1-9][0-9]{0,8}", text, "a whole number of at least 1")[0])


def _amount(text: str) -> float:
    form = r"(?=.*[1-9])[0-9]{1,12}(\.[0-9]{1,12})?"
    return float(match(form, text, "a number above 0 like 12.5")[0])


def _memory(text: str) -> float:
    """Return MiB, which is what a number without a unit is."""
    form = "memory like 512 (MiB), 4G or 0.5T, 0 for all of a node"
    number, unit = match(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text.upper(), form).groups()
    return float(number) * 1024.0 ** ("KMGT".index(unit or "M") - 1)


def _node_list(text: str) -> str:
    try:
        expand(_text(text))
    except NodeListError as error:
        raise ScriptError(str(error)) from None
    return text


def _mode(text: str) -> Mode:
    return Mode(match("|".join(Mode), text, f"one of {', '.join(Mode)}")[0])


_READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "array": ("array", lambda text: parse_array(text) and text),
    "nodes": ("nodes", parse_nodes),
    "time": ("time_s", parse_time),
    "job-name": ("job_name", _text),
    "output": ("output", _text),
    "dependency": ("dependency", lambda text: parse_dependency(text) and text),
    "ntasks-per-node": ("ntasks_per_node", _count),
    "preferred": ("preferred", _count),
    "mode": ("mode", _mode),
    "resize-factor": ("resize_factor", _count),
    "memory-bandwidth": ("memory_bandwidth_gb_s", _amount),
    "power": ("power_w", _amount),
    "cooldown": ("cooldown_s", _amount),
    "profile": ("profile", _text),
    "power-limit": ("power_limit_w", _amount),
    "error": ("error", _text),
    "chdir": ("chdir", _text),
    "export": ("export", _text),
    "mem": ("memory_mib", _memory),
    "signal": ("signal", lambda text: parse_signal(text) and text),
    "account": ("account", _text),
    "ntasks": ("ntasks", _count),
    "begin": ("begin", lambda text: parse_begin(text, 0.0) and text),
    "nodelist": ("nodelist", _node_list),
    "exclude": ("exclude", _node_list),
}
WATCHED = ("mem", "signal", "account")
"""Options of sbatch that the RMS heeds where it starts the processes, Slurm where that does."""

_NOT_SLURMS = {
    *("preferred", "mode", "resize-factor", "memory-bandwidth", "power", "power-limit"),
    *("cooldown", "profile"),
}
_FLAGS = {
    "--requeue": Options(requeue=True),
    "--no-requeue": Options(requeue=False),
    "--hold": Options(hold=True),
}
_SHORT = dict(zip("aNtJod", list(_READERS)[:6], strict=True))
_SHORT |= {"e": "error", "D": "chdir", "b": "begin", "A": "account", "n": "ntasks"}
_SHORT |= {"w": "nodelist", "x": "exclude"}
