"""What all three commands share: one-sentence errors, ``--json``, ``--version``, exit codes.

Standard library only, so that ``dmr`` and ``mpdata`` can use it on compute nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rms._version import __version__
from rms.wire.files import write_whole

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class CommandError(Exception):
    """A command cannot do what was asked: one sentence, expected and got, and an exit status."""

    def __init__(self, sentence: str, exit_code: int = 2) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Parser(argparse.ArgumentParser):
    """Prints one sentence for bad usage, once however many ranks parse it, and exits 2."""

    def error(self, message: str) -> NoReturn:
        """Print what was expected and got."""
        raise SystemExit(fail(self.prog, message))


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
        import shtab  # nobody else needs it

        _complete_paths(parser, shtab.FILE, shtab.DIRECTORY)
        print(shtab.complete(parser, values))
        parser.exit(0)


def _complete_paths(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Let arguments that are paths be completed by names of files, or of folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in set(action.choices.values()):
                _complete_paths(command, file, folder)
        elif action.type is Path or "FILE" in str(action.metavar):
            found = folder if action.metavar == "DIR" else file
            action.complete = found  # type: ignore[attr-defined]


def parser(prog: str, description: str) -> Parser:
    """Return a command's parser with ``--version`` and ``--print-completion``."""
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
    """Return whether this process should speak, judged by what its launcher set."""
    return all(env.get(name, "0") == "0" for name in RANK_VARIABLES)


def fail(prog: str, sentence: object, exit_code: int = 2) -> int:
    """Print one sentence on standard error, once however many ranks do; return the status."""
    if is_first_rank(os.environ):
        print(f"{prog}: error: {printable(str(sentence))}", file=sys.stderr)
    return exit_code


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
    """Call a command; return its exit status, after one sentence where it was refused."""
    try:
        problem = check_writable(arguments.json, "--json")
        return fail(prog, problem) if problem is not None else call(arguments)
    except CommandError as error:
        return fail(prog, error, error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def tell(line: str) -> None:
    """Tell the user, beside what is printed for scripts."""
    print(f"rms: {printable(line)}", file=sys.stderr, flush=True)


def publish(target: str | None, result: Any, lines: Sequence[str]) -> None:
    """Write a result as JSON if that is asked for; print its lines unless JSON is printed."""
    if target is not None:
        emit_json(target, result)
    if target != "-" and lines:
        print("\n".join(lines))


def printable(text: str) -> str:
    """Return a text as a terminal can show it: what would steer it is written out, as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of text, each column as wide as its widest cell."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(f"{cell:{w}s}" for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]


def say(text: str) -> None:
    """Tell the operator something, with the time of day, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {printable(text)}", file=sys.stderr, flush=True)


def emit_json(target: str, result: Any) -> None:
    """Write a result to a file, whole or not at all, or to standard output for ``-``."""
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target).resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)  # a pipe or device is written to, not replaced
        return
    write_whole(path, text)


def check_writable(target: str | Path | None, option: str) -> str | None:
    """Return a sentence if a file could not be written there, before any work is done."""
    if target is None or target == "-":
        return None
    if Path(target).is_dir():
        return f"expected a file for {option}, got {target}, which is a directory"
    folder = Path(target).absolute().parent
    if not folder.is_dir():
        return f"expected an existing folder for {option}, got {target}"
    if not os.access(folder, os.W_OK):
        return f"expected a writable folder for {option}, got {target}"
    return None
