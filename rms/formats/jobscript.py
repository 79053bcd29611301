"""Job scripts, the options of a job, and the nodes that these request of a cluster.

Options of ``sbatch`` have the same meaning here, so that one script serves both. ``jobscript.toml``
has every option once: ``rms submit``, the ``#RMS`` and ``#SBATCH`` lines of a script and the daemon
use it. A text that does not parse raises :class:`ScriptError`. Only
:func:`parse_script` reads a file.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rms.core.model.jobs import Mode
from rms.formats.values import (
    SHOWN,
    expand,
    match,
    parse_array,
    parse_begin,
    parse_dependency,
    parse_signal,
    seconds_of,
    shown,
)
from rms.formats.values import ScriptError as ScriptError
from rms.wire.users import Options

MOST_NODES = 100_000  # of one job
MOST_OPTIONS = 65_536  # characters, of all lines with options
NO_INDEX = 4_294_967_294  # of %a in a job without an array, as in Slurm
DEFAULT_OUTPUT = "rms-%j.out"
DEFAULT_ARRAY_OUTPUT = "rms-%A_%a.out"

_GPU_REQUEST = re.compile(
    "(?:--(gres|gpus|gpus-per-(?:node|task|socket)|tres-per-(?:job|node|socket|task))=|(-G)=?)(.*)"
)
_NO_GPUS = re.compile("none|(?:(?:gres/)?gpu(?::[^:,]+)?:|[^:,]+:)?0+")
_COMMAND = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#(RMS|SBATCH)(?=[\s-]|$)(.*)", re.MULTILINE)
_WORD = re.compile(r"""\s*((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""")
_REST = re.compile(r"\s*(?:#|\Z)")
_QUOTED = re.compile(r"""\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'""")

# --- Values of options -----------------------------------------------------------------------


def parse_time(text: str) -> float:
    """Return seconds of ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``.

    ``UNLIMITED``, ``INFINITE`` and, as with ``sbatch --time``, zero are no limit: ``inf``.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    seconds = seconds_of(text, 60.0)
    if seconds is None:
        form = "a time as minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"
        raise ScriptError(f"expected {form}, got {shown(text)!r}")
    return seconds or math.inf


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


def _limit_s(text: str) -> float:
    """Return a time limit in seconds, 0 for none: JSON has no infinity."""
    limit_s = parse_time(text)
    return 0.0 if limit_s == math.inf else limit_s


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return a reader that parses a text and returns it as it is."""

    def read(text: str) -> str:
        parse(text)
        return text

    return read


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


def _memory(text: str) -> float:
    """Return MiB, the unit of a bare number."""
    form = "memory like 512 (MiB), 4G or 0.5T, 0 for all of a node"
    number, unit = match(r"(?i)([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)B?", text, form).groups()
    return float(number) * 1024.0 ** ("KMGT".index(unit.upper() or "M") - 1)


def _span(text: str) -> float:
    form = "a time like 90m, 12h or 2d"
    number, unit = match(r"((?=.*[1-9])[0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])", text, form).groups()
    return float(number) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}[unit]


def _interval(text: str) -> str:
    form = r"auto|(?=.*[1-9])[0-9]{1,12}(\.[0-9]{1,12})?"
    return match(form, text, "auto, or seconds above 0 like 12.5")[0]


def _refused(text: str) -> int:
    _count(text)
    raise ScriptError(f"expected a script without it, as this version lacks it, got {text!r}")


def _resize_by(text: str) -> str:
    return match(
        r"messages|signal|command:.*\S.*", _text(text), "messages, signal, or command:COMMAND"
    )[0]


def _mode(text: str) -> Mode:
    return Mode(match("|".join(Mode), text, f"one of {', '.join(Mode)}")[0])


_READERS: Mapping[str, Callable[[str], object]] = {
    "amount": _amount,
    "array": _checked(parse_array),
    "begin": _checked(lambda text: parse_begin(text, 0.0)),
    "count": _count,
    "dependency": _checked(parse_dependency),
    "interval": _interval,
    "key": str,
    "limit": _limit_s,
    "memory": _memory,
    "mode": _mode,
    "names": _checked(lambda text: expand(_text(text))),
    "nice": lambda text: -_priority(text),
    "nodes": parse_nodes,
    "priority": _priority,
    "refused": _refused,
    "resize-by": _resize_by,
    "signal": _checked(parse_signal),
    "span": _span,
    "text": _text,
}


# --- The options of a job --------------------------------------------------------------------


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option of a job, a row of ``jobscript.toml``."""

    name: str
    read: str | None = None
    short: str = ""
    metavar: str = ""
    help: str = ""
    lines: tuple[str, ...] = ("RMS", "SBATCH")
    field: str = ""
    choices: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """Its name as an attribute."""
        return self.field or self.name.replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.read is None and not self.metavar

    @property
    def of_slurm(self) -> bool:
        """Whether only Slurm reads it, from a line of the script."""
        return self.key not in Options.__struct_fields__


_TABLE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
OPTIONS = [msgspec.convert({"name": name, **row}, Option) for name, row in _TABLE.items()]
"""All options of a job, in the order of ``rms submit --help``."""

WATCHED = ("mem", "signal", "account", "priority", "nice")
"""Options of sbatch that the RMS heeds where it starts the processes, Slurm where that does."""

_OPTIONS = {option.name: option for option in OPTIONS}
_SHORT = {option.short: option for option in OPTIONS if option.short and option.lines}
_FLAGS = {f"--{option.name}" for option in OPTIONS if option.is_flag and option.lines}
_FLAGS.add("--no-requeue")


def read_option(name: str, text: str) -> Options:
    """Return the value of an option; of a flag the text does not matter.

    Args:
        name: as in the table, also ``no-requeue``.
    """
    option = _OPTIONS.get(name) or _OPTIONS[name.removeprefix("no-")]
    try:
        value = option.name == name if option.read is None else _READERS[option.read](text)
    except ScriptError as error:
        raise ScriptError(f"--{name}: {error}") from None
    stated: dict[str, Any] = {option.key: value}
    return Options(**stated)


def check_options(options: Options) -> None:
    """Refuse options of a message that the readers of the table would refuse."""
    for option in OPTIONS:
        value = getattr(options, option.key, None)
        if isinstance(value, str):
            read_option(option.name, value)


# --- Scripts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A job script; ``slurm_options`` are options of ``#SBATCH`` for Slurm alone.

    Every one is a single word, such as ``--mem=4G`` or ``-pdebug``.
    """

    options: Options
    slurm_options: tuple[str, ...]
    path: Path


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
    number, at, length = 1, 0, 0
    for line in _DIRECTIVE.finditer(text, 0, command.start()):
        number += text.count("\n", at, line.start())
        at = line.start()
        length += len(line[0])
        try:
            if length > MOST_OPTIONS:
                raise ScriptError(f"expected {MOST_OPTIONS} characters of options, got more")
            named, others = _directive(line[1], _words(line[2]))
        except ScriptError as error:
            raise ScriptError(f"{path}:{number}: {error}") from None
        for name, value in named:
            stated[line[1]][name.removeprefix("no-")] = number, name, value
        ignored += others
    options = _read(stated["RMS"], path).over(_read(stated["SBATCH"], path))
    return Script(options, tuple(ignored), Path(path))


def _read(stated: Mapping[str, tuple[int, str, str]], path: Path | str) -> Options:
    """Return the options of all lines of a kind; the last occurrence of an option counts."""
    options = Options()
    for number, name, text in stated.values():
        try:
            options = read_option(name, text).over(options)
        except ScriptError as error:
            raise ScriptError(f"{path}:{number}: {error}") from None
    return options


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
    """Return names and texts ("" for a flag) of a line's options, and the options for Slurm."""
    options, ignored, words = list[tuple[str, str]](), list[str](), deque(line)
    while words:
        word = words.popleft()
        word = {"-H": "--hold", "-k": "--no-kill", "--nice": "--nice=100"}.get(word, word)
        if word == "--no-kill=off":
            continue
        short = _SHORT.get(word[1:2]) if word[:1] == "-" else None
        if short is not None and short.read is not None:
            word = f"--{short.name}" + (f"={word[2:]}" if word[2:] else "")
        name, equals, text = word.removeprefix("--").partition("=")
        option = _OPTIONS.get(name) if word.startswith("--") else None
        flag = f"--{name}" in _FLAGS and word.startswith("--")
        if flag and not equals:
            options.append((name, ""))
        elif option is not None and option.read is not None and kind in option.lines:
            text = text if equals or not words else words.popleft()
            if kind == "SBATCH" and name in WATCHED:
                ignored.append(f"--{name}={text}")
            options.append((name, text))
        elif kind == "RMS" or flag or not word.startswith("-"):
            names = [f"--{option.name}" for option in OPTIONS if option.lines and option.read]
            expected = ", ".join([*names, *sorted(_FLAGS)])
            raise ScriptError(f"expected an option of {expected}, got {word!r}")
        else:
            if not equals and words and not words[0].startswith("-"):
                word += ("=" if word.startswith("--") else "") + words.popleft()
            ignored.append(word)
    return options, ignored


# --- Nodes of a job ----------------------------------------------------------------------------


def refuse_unsupported(options: Options, slots: Collection[int], *, shared: bool = False) -> None:
    """Refuse options without effect on a cluster.

    Args:
        slots: numbers of slots of the cluster's nodes; a job runs a rank on every slot.
        shared: whether jobs get slots one by one.
    """
    tasks = options.ntasks_per_node
    if shared and tasks is not None:
        raise ScriptError(
            "expected no --ntasks-per-node where jobs share nodes (--nodes counts slots there), "
            f"got {tasks}"
        )
    if tasks is not None and set(slots) != {tasks}:
        held = " or ".join(map(str, sorted(set(slots))))
        raise ScriptError(f"expected --ntasks-per-node={held}, as nodes here hold, got {tasks}")


def nodes_of_tasks(options: Options, slots: Collection[int], *, shared: bool = False) -> Options:
    """Return options with as many nodes as ``--ntasks`` ranks fill, where none are stated.

    Args:
        slots, shared: as in :func:`refuse_unsupported`.
    """
    tasks, widths = options.ntasks, {1} if shared else set(slots)
    if tasks is None:
        return options
    held = " or ".join(map(str, sorted(widths)))
    width = widths.pop()
    if widths or (options.nodes is None and tasks % width):
        form = f"--ntasks to fill whole nodes of {held} slots"
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

    A GPU is a slot, and a job runs a rank on every slot of its nodes, so only nodes with exactly
    the requested number of GPUs match.

    Args:
        own: options for sbatch, single words.
        nodes: the slots of the nodes.

    Returns:
        The options, and the words that do not request GPUs.
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
            raise ScriptError(f"expected GPUs of whole nodes, {width} per node, got {got}")
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


# --- Names of output files -----------------------------------------------------------------------


@dataclass(frozen=True)
class OutputNames:
    """Values of the placeholders in the name of an output file.

    A job without an array has its own id as ``array_id`` and None as ``index``.
    """

    array_id: str
    index: int | None
    job_id: str
    name: str
    node: str
    user: str


def expand_output(pattern: str, job: OutputNames) -> str:
    """Replace ``%A %a %j %x %N %u %%`` in an output file's name; ``%4a`` pads ids with zeros.

    Other symbols stay.
    """
    index = NO_INDEX if job.index is None else job.index
    ids = {"A": job.array_id, "a": str(index), "j": job.job_id}
    texts = {"x": job.name, "N": job.node, "u": job.user, "%": "%"}

    def value(placeholder: re.Match[str]) -> str:
        width, symbol = placeholder.groups()
        return ids[symbol].zfill(min(int(width or 0), 10)) if symbol in ids else texts[symbol]

    return re.sub("%(|[0-9]{1,9}(?!%))([AajxNu%])", value, pattern)
