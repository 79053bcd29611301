"""``rms submit``: a job script or a command, with the options of its job."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from rms.client import commands
from rms.client.connection import server_address
from rms.formats.jobscript import OPTIONS, Option, ScriptError, parse_text, read_option
from rms.wire.terminal import Parser, printable, publish, tell
from rms.wire.users import Options


def add_submit(command: Parser) -> None:
    command.description = (
        "Submit a job script or a command. One whose program was measured by rms profile on this "
        "machine needs no table of run times: its profile has all words of the command (of a "
        "script, of its one launcher line), the contents of the program's file (of an interpreter, "
        "its script's too) and the machine (processor, cores, GPUs). Under a policy whose jobs "
        "share nodes (placement less-consume, first-fit-shared, consolidate) --nodes counts "
        "slots, of one process."
    )
    add = command.add_argument
    add(
        "script",
        type=Path,
        nargs="?",
        metavar="SCRIPT",
        help="a job script, as for sbatch (default: standard input)",
    )
    add(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="of the script; those that begin with - come last, after --",
    )
    order = command.add_mutually_exclusive_group()
    for option in OPTIONS:
        if option.help:
            _add(order if option.key == "priority" else command, option)
    add("--wrap", metavar="COMMAND", help="run a line of shell in place of a SCRIPT")
    add(
        "-W",
        "--wait",
        action="store_true",
        help="wait until all jobs have ended; report how, exit with their status",
    )
    command.sbatch_only = frozenset(f"--{name}" for name in SBATCH_ONLY.split())


def _add(command: argparse._ActionsContainer, option: Option) -> None:
    """Add an option of a job to the command line; None is its value where it is not stated."""
    names = [f"-{option.short}"] if option.short else []
    names.append(f"--{option.name}")
    if option.name == "requeue":
        command.add_argument(*names, action=argparse.BooleanOptionalAction, help=option.help)
    elif option.is_flag:
        command.add_argument(*names, action="store_true", default=None, help=option.help)
    else:
        command.add_argument(
            *names, metavar=option.metavar, choices=option.choices, help=option.help
        )


def submit(arguments: argparse.Namespace) -> int:
    """``rms submit``: print the id of the job or array."""
    server = server_address(arguments.server, os.environ)
    text, name = _script(arguments)
    options = _options(arguments)
    sent = commands.submit(server, _with_slurm_options(text, arguments), name, options)
    for words in sent.warnings:
        tell(f"warning: {words}")
    number = sent.ids[0].partition("_")[0]
    publish(arguments.json, {"id": number, "ids": sent.ids}, [number])
    return commands.wait_for(server, number, tell) if arguments.wait else 0


def _script(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the text to hand in and its name: a script, or one that runs the command."""
    script: Path | None = arguments.script
    if arguments.wrap is not None:
        if script is not None or arguments.command_line:
            raise ScriptError("expected --wrap without a SCRIPT or -- COMMAND, got both")
        return f"#!/bin/sh\n{arguments.wrap}\n", "wrap"
    if script is None and not arguments.command_line:
        return _standard_input(), "stdin"
    if script is not None:
        if not script.exists() and shutil.which(str(script)):
            command = shlex.join([str(script), *arguments.arguments, *arguments.command_line])
            got = f"{script}, which does not exist; for a command: rms submit -- {command}"
            raise ScriptError(f"expected a job script, got {got}")
        return commands.read_script(script), printable(script.name)
    name = Path(arguments.command_line[0]).name
    return commands.script_of(arguments.command_line), printable(name)


def _standard_input() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise ScriptError("expected a SCRIPT or -- COMMAND, got neither")
    expected = "a SCRIPT, -- COMMAND or a script in standard input"
    try:
        text = sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"expected {expected}, got {error}") from None
    if not text:
        raise ScriptError(f"expected {expected}, got none")
    parse_text(text, "standard input")
    return text


SBATCH_ONLY = """
    bb bbf bell batch cluster-constraint clusters comment constraint container contiguous
    core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot distribution
    export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus-per-node
    gpus-per-socket gpus-per-task gres-flags hint ignore-pbs input kill-on-invalid-dep licenses
    mail-type mail-user mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode overcommit
    oversubscribe parsable prefer propagate qos quiet reboot reservation resv-ports segment
    sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core
    time-min tmp tres-per-task uid use-min-nodes wckey
"""
"""Options of sbatch that rms submit lacks; some are accepted in ``#SBATCH`` lines of a script."""


def _with_slurm_options(text: str, arguments: argparse.Namespace) -> str:
    """Insert the options that only Slurm reads as an ``#SBATCH`` line before the first command."""
    words = []
    for option in OPTIONS:
        value = getattr(arguments, option.name.replace("-", "_"), None) if option.of_slurm else None
        if value is not None:
            words.append(f"--{option.name}" if option.is_flag else f"--{option.name}={value}")
    words = [shlex.quote(word) for word in words]
    if not words:
        return text
    lines = text.split("\n")
    at = next(
        (n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")),
        len(lines),
    )
    return "\n".join([*lines[:at], f"#SBATCH {' '.join(words)}", *lines[at:]])


def _options(arguments: argparse.Namespace) -> Options:
    own = [*arguments.arguments, *(arguments.command_line if arguments.script else [])]
    options = Options(arguments=tuple(own) or None)
    for option in OPTIONS:
        value = getattr(arguments, option.name.replace("-", "_"), None)
        if value is not None and not option.of_slurm:
            name = f"no-{option.name}" if value is False else option.name
            options = read_option(name, str(value)).over(options)
    return options
