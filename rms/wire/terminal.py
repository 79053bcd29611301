"""Shared by all three commands: one-sentence errors, ``--json``, ``--version``, exit codes.

Standard library only, so that ``dmr`` and ``mpdata`` can use it on compute nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import functools
import io
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from rms._version import __version__
from rms.wire.files import OutputError, descriptor_of, regular_file, write_output

SHOWN = 200  # characters of a bad argument that an error message quotes
MOST = 1e9
"""Largest value of :func:`seconds` and :func:`positive`; timers refuse much larger ones."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of writing alone; without a file's name they are errors of standard output."""

EXTRAS = {
    "mpdata": ("llvmlite", "matplotlib", "numba", "rich"),
    "rms": (
        *("httptools", "jinja2", "matplotlib", "prometheus_client", "rich", "shtab", "starlette"),
        *("textual", "uvicorn", "uvloop"),
    ),
}
"""The modules that each optional part of the distribution brings, beside those of the base."""

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class CommandError(Exception):
    """A command has failed: one sentence, expected and got, and an exit status."""

    def __init__(self, sentence: str, exit_code: int = 2) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Parser(argparse.ArgumentParser):
    """Prints one sentence for bad usage, once however many ranks parse it, and exits 2.

    Attributes:
        sbatch_only: options of sbatch that the command does not have.
    """

    sbatch_only: frozenset[str] = frozenset()

    def error(self, message: str) -> NoReturn:
        """Print what was expected and got."""
        required, _, names = message.rpartition("the following arguments are required: ")
        if names != message:
            message = f"{required}expected {names}, got none"
        raise SystemExit(fail(self.prog, message))

    def _print_message(self, message: str, file: Any = None) -> None:
        try:
            print(end=message, file=file, flush=True)
        except OSError as error:
            _discard_output()
            closed = isinstance(error, BrokenPipeError)
            sentence = f"cannot write standard output: {error.strerror}"
            raise SystemExit(0 if closed else fail(self.prog, sentence, 1)) from None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments; the error for unrecognized ones suggests the closest option."""
        arguments, unrecognized = self.parse_known_args(args, namespace)
        if unrecognized:
            command = self._command(arguments)
            names = [word.partition("=")[0] for word in unrecognized]
            if of_sbatch := [name for name in names if name in command.sbatch_only]:
                hint = f"; {', '.join(of_sbatch)}: an option of sbatch, not of {command.prog}"
            else:
                options = command._option_string_actions
                hint = max(did_you_mean(name, options) for name in names)
            hint = hint or f" ({command.prog} --help lists all options)"
            command.error(f"unrecognized arguments: {' '.join(unrecognized)}{hint}")
        return arguments

    def _command(self, arguments: argparse.Namespace) -> Parser:
        """Return the parser of the selected subcommand, or this one if there is none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                command = action.choices.get(str(getattr(arguments, action.dest, None)))
                return command if isinstance(command, Parser) else self
        return self

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            expected = "a command" if hint else f"a command of {', '.join(choices)}"
            self.error(f"expected {expected}, got {value!r}{hint}")
        raise argparse.ArgumentError(action, f"expected {', '.join(choices)}, got {value!r}{hint}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            value = super()._get_value(action, arg_string)
            if isinstance(value, float) and not math.isfinite(value):
                raise argparse.ArgumentError(action, "")
            return value
        except argparse.ArgumentError:
            kind = "a whole number" if action.type is int else "a number"
            if action.type not in (int, float):
                raise
            expected = f"expected {kind}, got {arg_string!r}"
            raise argparse.ArgumentError(action, expected) from None

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            if not isinstance(action.nargs, int):
                raise
            got = len(arg_strings_pattern) - len(arg_strings_pattern.lstrip("A"))
            expected = f"expected {action.nargs} values, got {got}"
            raise argparse.ArgumentError(action, expected) from error


def at_least(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of an option that is a whole number of a range, for argparse."""
    return functools.partial(_number, kind=int, least=least, most=most)


def _number(text: str, *, kind: type[Any], least: float, most: float) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if least <= number <= most:
        return number
    bound = "above 0" if 0.0 < least < 1.0 else f"of at least {least:g}"
    bound = f"of at most {most:g}" if number > most else bound
    form = f"a {'whole ' * (kind is int)}number {bound}"
    raise argparse.ArgumentTypeError(f"expected {form}, got {text[:SHOWN]!r}")


seconds = functools.partial(_number, kind=float, least=0.0, most=MOST)
positive = functools.partial(_number, kind=float, least=math.ulp(0.0), most=MOST)
"""Types of options that are numbers of at least 0, and above 0, for argparse."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` for the closest match of a word, "" without a match."""
    matches = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "fish")


class _PrintCompletion(argparse.Action):
    """Prints what a shell reads to complete the command: a script that starts no Python."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print it and exit."""
        try:
            import shtab  # only here
        except ModuleNotFoundError as error:
            raise SystemExit(fail(parser.prog, missing_extra("rms", error.name))) from None
        _complete(parser, shtab)
        parser._print_message(f"{shtab.complete(parser, values)}\n", sys.stdout)
        parser.exit(0)


def _complete(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Set how a shell completes arguments: by words, or by names of files or folders."""
    for action in parser._actions:
        completion = None
        if isinstance(action, argparse._SubParsersAction):
            for command in set(action.choices.values()):
                _complete(command, shtab)
        elif words := _COMPLETIONS.get(action):
            completion = shtab.cmd(words if isinstance(words, str) else f"echo {' '.join(words())}")
        elif action.type is Path or "FILE" in str(action.metavar):
            completion = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
        if completion is not None:
            action.complete = completion  # type: ignore[attr-defined]  # the attribute shtab reads


Words = str | Callable[[], Iterable[str]]
"""Words that complete an argument: the output of a shell command, or a function's result."""

_COMPLETIONS: dict[argparse.Action, Words] = {}


def completed_by(action: argparse.Action, words: Words) -> None:
    """Set the words that a shell completes an argument with."""
    _COMPLETIONS[action] = words


JOB_IDS = "rms queue --noheader --format %i 2>/dev/null"
NODE_NAMES = "rms nodes 2>/dev/null | tail -n +2 | cut -d' ' -f1"
"""Shell commands that print the ids of jobs and the names of nodes, for completion."""


def parser(prog: str, description: str) -> Parser:
    """Return a command's parser with ``--version`` and ``--print-completion``.

    Standard output escapes characters that its encoding lacks as ``\\x1b``, like standard error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    top = Parser(prog=prog, description=description, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{prog} {__version__}")
    top.add_argument(
        COMPLETION,
        action=_PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"what a shell ({', '.join(SHELLS)}) reads to complete this command",
    )
    return top


def add_common(command: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    command.add_argument("--json", metavar="FILE", help="write the result as JSON (- for stdout)")
    command.add_argument("-v", "--verbose", action="store_true", help="say more")


def is_first_rank(env: Mapping[str, str]) -> bool:
    """Return whether this process prints, by the variables of its launcher."""
    return all(env.get(name, "0") == "0" for name in RANK_VARIABLES)


def fail(prog: str, sentence: object, exit_code: int = 2) -> int:
    """Print one sentence on standard error, once however many ranks do; return the status."""
    if is_first_rank(os.environ):
        print(f"{prog}: error: {printable(str(sentence))}", file=sys.stderr)
    return exit_code


def missing_extra(prog: str, module: str | None) -> str | None:
    """Return the sentence for a module that cannot be imported, None if no extra brings it."""
    top = (module or "").partition(".")[0]
    extras = [extra for extra, modules in EXTRAS.items() if top in modules]
    if not extras:
        return None
    extra = prog if prog in extras else extras[0]
    return f"expected the module {top}, got none; pip install 'malleable-mpi[{extra}]'"


def extra_installed(extra: str) -> bool:
    """Return whether all modules of an extra are installed, without an import of them."""
    return _missing_module(extra) is None


def require_extra(extra: str) -> None:
    """Check that all modules of an extra are installed.

    Raises:
        CommandError: one of them is not.
    """
    module = _missing_module(extra)
    if module is not None:
        raise CommandError(str(missing_extra(extra, module)))


def _missing_module(extra: str) -> str | None:
    for module in EXTRAS[extra]:
        if sys.modules.get(module) is None and find_spec(module) is None:
            return module
    return None


@contextlib.contextmanager
def refuse_on(*errors: type[Exception], exit_code: int = 2) -> Iterator[None]:
    """Turn errors that state what was expected and got into a :class:`CommandError`."""
    try:
        yield
    except errors as error:
        raise CommandError(str(error), exit_code) from None


def run_command(
    prog: str, arguments: argparse.Namespace, call: Callable[[argparse.Namespace], int]
) -> int:
    """Call a command; return its exit status, after one sentence where it was refused.

    Ctrl-C ends it with status 130.
    """
    status = 0
    try:
        problem = check_writable(arguments.json, "--json")
        status = fail(prog, problem) if problem is not None else call(arguments)
        print(end="", flush=True)
        return status
    except CommandError as error:
        return fail(prog, error, error.exit_code)
    except ModuleNotFoundError as error:
        sentence = missing_extra(prog, error.name)
        if sentence is None:
            raise
        return fail(prog, sentence)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except RecursionError:
        return fail(prog, "expected input that is nested less deeply, got more")
    except UnicodeEncodeError as error:
        return fail(prog, f"expected text in UTF-8, got {error.object[:SHOWN]!r}")
    except BrokenPipeError:
        _discard_output()  # its reader has closed the pipe
        return status
    except OutputError as error:
        return fail(prog, error, 1)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return fail(
                prog, f"expected a path that a file can have, got {error.filename!s:.{SHOWN}}"
            )
        if error.errno not in DISK_ERRORS:
            raise
        if error.filename is None:
            _discard_output()
        name = error.filename or "standard output"
        return fail(prog, f"cannot write {name}: {error.strerror}", 1)


def _discard_output() -> None:
    """Discard what standard output holds, which the exit of Python would write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(line: str) -> None:
    """Print a line for the user on standard error."""
    print(f"rms: {printable(line)}", file=sys.stderr, flush=True)


def publish(target: str | None, result: Any, lines: Sequence[str]) -> None:
    """Write a result as JSON to ``target``, if any; print its lines unless JSON is printed."""
    if target is not None:
        emit_json(target, result)
    if target != "-" and lines:
        print("\n".join(lines))


def printable(text: str) -> str:
    """Return a text with control characters written out, as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of text; a column is as wide as its widest cell."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(f"{cell:{w}s}" for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]


def say(text: str) -> None:
    """Print a line with the time of day on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {printable(text)}", file=sys.stderr, flush=True)


def emit_json(target: str, result: Any) -> None:
    """Write a result to a file, whole or not at all, or to standard output for ``-``."""
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_output(Path(target), text)


def check_writable(target: str | Path | None, option: str, *, regular: bool = False) -> str | None:
    """Return a sentence if a file could not be written there, before any work is done.

    Args:
        regular: refuse devices and pipes, in which nothing can be read or written twice.
    """
    if target is None or target == "-":
        return None
    try:
        if Path(target).is_dir():
            return f"expected a file for {option}, got {target}, which is a directory"
        file = regular_file(Path(target))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        return f"expected a file for {option}, got {target}: {error.strerror}"
    if file is None:
        if regular:
            return f"expected a regular file for {option}, got {target}"
        # A descriptor may be open to write into what this user could not open.
        mode = os.W_OK if descriptor_of(Path(target)) is None else os.F_OK
        if os.access(target, mode):
            return None
        return f"expected a writable file for {option}, got {target}"
    folder = file.parent
    if not folder.is_dir():
        return f"expected an existing folder for {option}, got {target}"
    if not os.access(folder, os.W_OK):
        return f"expected a writable folder for {option}, got {target}"
    return None


# --- times in words -----------------------------------------------------------------------------

_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def clock(at_s: float, *, day: bool = False) -> str:
    """Return the local time of day, with the date if ``day`` is set."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S", time.localtime(at_s))


def duration(seconds: float, units: int = 2) -> str:
    """Return a length of time in its two largest units, ``3 min 5 s``, or in one, ``3.08 min``."""
    if units == 1:
        for unit, name, _, _ in _UNITS:
            if seconds >= unit:
                return f"{seconds / unit:.3g} {name}"
        return f"{seconds:.3g} s"
    if seconds < 59.95:  # 60.0 s is a minute
        return f"{seconds:.1f} s"
    whole = round(seconds)
    unit, name, small, rest = next(row for row in _UNITS if whole >= row[0])
    return f"{whole // unit} {name} {whole % unit // small} {rest}"


def hms(seconds: float) -> str:
    """Return a length of time as ``h:mm:ss``, to the second: ``0:04:05``, ``27:04:05``."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def slurm_duration(seconds: float) -> str:
    """Return a length of time in the format of squeue: ``2-03:04:05``, ``3:04:05``, ``4:05``."""
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
