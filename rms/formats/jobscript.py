"""Job scripts, their options, and times in Slurm's forms.

What ``sbatch`` reads is read the same way here, so that one script serves both. Whatever does not
parse raises :class:`ScriptError`. Only :func:`parse_script` touches a file.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import mul
from pathlib import Path
from typing import Any

from rms.core.model.jobs import Mode
from rms.formats.values import (
    SHOWN,
    NodeListError,
    expand,
    match,
    parse_array,
    parse_begin,
    parse_dependency,
    parse_signal,
)
from rms.formats.values import ScriptError as ScriptError

MOST_NODES = 100_000  # of one job
MOST_OPTIONS = 65_536  # characters, of all lines with options
NO_INDEX = 4_294_967_294  # what %a is for a job of no array, as in Slurm
DEFAULT_OUTPUT = "rms-%j.out"
DEFAULT_ARRAY_OUTPUT = "rms-%A_%a.out"

_TIME = re.compile("(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_GPU_REQUEST = re.compile(
    "(?:--(gres|gpus|gpus-per-(?:node|task|socket)|tres-per-(?:job|node|socket|task))=|(-G)=?)(.*)"
)
_NO_GPUS = re.compile("none|(?:(?:gres/)?gpu(?::[^:,]+)?:|[^:,]+:)?0+")
_COMMAND = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#(RMS|SBATCH)(?=[\s-]|$)(.*)", re.MULTILINE)
_WORD = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""")
_REST = re.compile(r"\s*(?:#|\Z)")
_QUOTED = re.compile(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'""")


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
    wait_for_nodes: bool | None = None
    begin: str | None = None  # for parse_begin
    memory_mib: float | None = None  # on each node; 0 for all that there is
    signal: str | None = None  # for parse_signal
    account: str | None = None
    ntasks: int | None = None  # ranks, one on each slot of a job's nodes
    nodelist: str | None = None  # for rms.formats.values.expand
    exclude: str | None = None  # the same
    priority: int | None = None

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
    except FileNotFoundError:
        raise ScriptError(f"expected a job script, got {path}, which does not exist") from None
    except OSError as error:
        raise ScriptError(f"expected a job script, got {path}: {error.strerror}") from None
    return parse_text(text, path)


def parse_text(text: str, path: Path | str) -> Script:
    """Read a script's text as :func:`parse_script` does; error messages start with ``path``."""
    _check_text(text, path)
    command = _COMMAND.search(text)
    if command is None:
        raise ScriptError(f"{path}: expected a command after the comments, got none")
    stated: dict[str, dict[str, tuple[int, str, str]]] = {"SBATCH": {}, "RMS": {}}
    ignored: list[str] = []
    number, seen, length = 1, 0, 0
    for line in _DIRECTIVE.finditer(text, 0, command.start()):
        number += text.count("\n", seen, line.start())
        seen = line.start()
        length += len(line[0])
        try:
            if length > MOST_OPTIONS:
                raise ScriptError(f"expected {MOST_OPTIONS} characters of options, got more")
            named, others = _directive(line[1], _words(line[2]))
        except ScriptError as error:
            raise ScriptError(f"{path}:{number}: {error}") from None
        for name, value in named:
            option = name.removeprefix("--no-").removeprefix("--")  # --no-requeue is --requeue's
            stated[line[1]][option] = number, name, value
        ignored += others
    options = _read(stated["RMS"], path).over(_read(stated["SBATCH"], path))
    return Script(options, tuple(ignored), Path(path))


def _read(stated: Mapping[str, tuple[int, str, str]], path: Path | str) -> Options:
    """Return the options of all lines of a kind; the last occurrence of an option counts."""
    options = Options()
    for number, name, value in stated.values():
        try:
            option = _FLAGS.get(name) or read_option(name, value)
        except ScriptError as error:
            raise ScriptError(f"{path}:{number}: {error}") from None
        options = option.over(options)
    return options


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
        to = f"{low} to " if high > low else ""
        ranks = (f"{low * width} to " if high > low else "") + f"{high * width}"
        nodes = f"{to}{high} node{'s' * (high > 1)} with {width} slot{'s' * (width > 1)}"
        alone, rest = divmod(tasks, width)
        hint = "" if rest else f"; -n {tasks} alone takes {alone} node{'s' * (alone > 1)}"
        raise ScriptError(f"expected --ntasks of {ranks} ({nodes}), got {tasks}{hint}")
    return replace(options, nodes=(low, high))


def nodes_with_gpus(
    options: Options, own: Sequence[str], nodes: Mapping[str, Sequence[str]]
) -> tuple[Options, list[str]]:
    """Return options limited to the nodes with the GPUs that a script requests.

    A GPU is a slot, and a job runs a rank on each slot of its nodes, so only nodes with exactly the
    requested number of GPUs match.

    Args:
        own: options for sbatch, one word each.
        nodes: the slots of each node.

    Returns:
        The options, and the words that do not request GPUs.

    Raises:
        ScriptError: no nodes meet the request.
    """
    per_node, total, request = set[int](), None, list[str]()
    rest = [word for word in own if _GPU_REQUEST.fullmatch(word) is None]
    stated = {
        gpu_option[1] or "gpus": gpu_option
        for gpu_option in map(_GPU_REQUEST.fullmatch, own)
        if gpu_option
    }
    for name, gpu_option in stated.items():  # of an option that is repeated the last
        if _NO_GPUS.fullmatch(gpu_option[3]):
            continue
        request.append(gpu_option[0])
        count = _gpus(name, gpu_option[3], gpu_option[0])
        if name in ("gres", "gpus-per-node"):
            per_node.add(count)
        elif name == "gpus":
            total = count
        elif name != "gpus-per-task" or count != 1:
            form = "GPUs as --gpus, --gpus-per-node, --gres=gpu:N or --gpus-per-task=1"
            raise ScriptError(f"expected {form}, got {gpu_option[0]}")
    if not request:
        return options, rest
    got = " ".join(request)
    with_gpus = {
        name: len(slots)
        for name, slots in nodes.items()
        if all(slot.startswith("gpu:") for slot in slots)
    }
    widths = set(with_gpus.values()) & (per_node or set(with_gpus.values()))
    if len(widths) != 1 or len(per_node) > 1:
        held = " or ".join(map(str, sorted(set(with_gpus.values()))))
        form = f"--gres=gpu:N for all GPUs of a node (here {held})"
        none = "no request for GPUs, as no node here has one"
        raise ScriptError(f"expected {form if held else none}, got {got}")
    (width,) = widths
    if total is not None:
        low, high = options.nodes or (max(1, total // width),) * 2
        if not low * width <= total <= high * width:
            raise ScriptError(f"expected GPUs of whole nodes, {width} on each, got {got}")
        if options.ntasks is None:
            options = replace(options, nodes=(low, high))
    names = [name for name, held in with_gpus.items() if held == width]
    if options.nodelist is not None:
        listed = set(expand(options.nodelist))
        names = [name for name in names if {name, name.rpartition("/")[0]} & listed]
        if not names:
            raise ScriptError(f"expected a --nodelist with GPUs for {got}, got {options.nodelist}")
    elif len(names) == len(nodes):
        return options, rest
    elif options.nodes is None and options.ntasks is None and options.preferred is None:
        options = replace(options, nodes=(1, 1))
    return replace(options, nodelist=",".join(names)), rest


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


def _check_text(text: str, path: Path | str) -> None:
    if not text.strip():
        raise ScriptError(f"{path}: expected a job script, got an empty file")
    if "\0" in text:
        raise ScriptError(f"{path}: expected a text file, got zero bytes in it")
    if not text.startswith("#!"):
        first = text[:60].partition("\n")[0]
        raise ScriptError(f"{path}: expected a first line like #!/bin/sh, got {first!r}")
    if "\r\n" in text:
        raise ScriptError(f"{path}: expected Unix line ends, got those of DOS")


def _words(line: str) -> list[str]:
    """Split a line into words as a shell does, up to a comment."""
    words, at = [], 0
    while not _REST.match(line, at):
        word = _WORD.match(line, at)
        if word is None:
            raise ScriptError(f"expected closed quotes, got {line[at : at + SHOWN]!r}")
        words.append(_text(_QUOTED.sub(_unquoted, word[1])))
        at = word.end()
    return words


def _unquoted(quoted: re.Match[str]) -> str:
    escaped, double, single = quoted.groups()
    if double is not None:
        return re.sub(r'\\(["\\])', r"\1", double)
    return str(escaped or single or "")


def _directive(kind: str, line: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return name and text ("" for a flag) of each option of a line, and the options for Slurm."""
    options, ignored, words = list[tuple[str, str]](), list[str](), deque(line)
    while words:
        word = words.popleft()
        word = {"-H": "--hold", "--nice": "--nice=100"}.get(word, word)
        if short := re.fullmatch("-([aNtJodeDbAnwx])(.*)", word):
            word = f"--{_SHORT[short[1]]}" + (f"={short[2]}" if short[2] else "")
        option, given, text = word.partition("=")
        name = option.removeprefix("--")
        if option in _FLAGS and not given:
            options.append((option, ""))
        elif (
            option == f"--{name}"
            and name in _READERS
            and (kind == "RMS" or name not in _NOT_SLURMS)
        ):
            text = text if given or not words else words.popleft()
            if kind == "SBATCH" and name in WATCHED:
                ignored.append(f"{option}={text}")
            options.append((name, text))
        elif kind == "RMS" or option in _FLAGS or not option.startswith("-"):
            known = ", ".join([*(f"--{name}" for name in _READERS), *_FLAGS])
            raise ScriptError(f"expected an option of {known}, got {word!r}")
        else:
            if not given and words and not words[0].startswith("-"):
                word += ("=" if word.startswith("--") else "") + words.popleft()
            ignored.append(word)
    return options, ignored


def _text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ScriptError(f"expected a printable text, got {text!r}")
    return text


def _count(text: str) -> int:
    return int(match("0*[1-9][0-9]{0,8}", text, "a whole number of at least 1")[0])


def _priority(text: str) -> int:
    form = "a whole number from -2147483645 to 2147483645"
    priority = int(match("[+-]?[0-9]{1,10}", text, form)[0])
    if abs(priority) > 2_147_483_645:
        raise ScriptError(f"expected {form}, got {text!r}")
    return priority


def _amount(text: str) -> float:
    form = r"(?=.*[1-9])[0-9]{1,12}(\.[0-9]{1,12})?"
    return float(match(form, text, "a number above 0 like 12.5")[0])


def _gpus(name: str, text: str, word: str) -> int:
    """Return how many GPUs an option of sbatch requests; ``word`` is the whole of it."""
    if name == "gres" and not re.fullmatch("(?:gres/)?gpu(?:[:=].*)?", text.partition(",")[0]):
        raise ScriptError(
            f"expected --gres=gpu:N, as GPUs are the only generic resource here, got {word}"
        )
    form = r"(?:gres/)?gpu(?::([0-9]{1,9}))?" if name == "gres" else "([0-9]{1,9})"
    number = re.fullmatch(form, text)
    if number is None:
        raise ScriptError(f"expected a number of GPUs without a type (--gres=gpu:N), got {word}")
    return int(number[1] or 1)


def _memory(text: str) -> float:
    """Return MiB, which is what a number without a unit is."""
    form = "memory like 512 (MiB), 4G or 0.5T, 0 for all of a node"
    number, unit = match(r"(?i)([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text, form).groups()
    return float(number) * 1024.0 ** ("KMGT".index(unit.upper() or "M") - 1)


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
    "priority": ("priority", _priority),
    "nice": ("priority", lambda text: -_priority(text)),
}
WATCHED = ("mem", "signal", "account", "priority", "nice")
"""Options of sbatch that the RMS heeds where it starts the processes, Slurm where that does."""

_NOT_SLURMS = {
    *("preferred", "mode", "resize-factor", "memory-bandwidth", "power", "power-limit"),
    *("cooldown", "profile"),
}
_FLAGS = {
    "--requeue": Options(requeue=True),
    "--no-requeue": Options(requeue=False),
    "--hold": Options(hold=True),
    "--wait-for-nodes": Options(wait_for_nodes=True),
}
_SHORT = dict(zip("aNtJod", list(_READERS)[:6], strict=True))
_SHORT |= {"e": "error", "D": "chdir", "b": "begin", "A": "account", "n": "ntasks"}
_SHORT |= {"w": "nodelist", "x": "exclude"}
