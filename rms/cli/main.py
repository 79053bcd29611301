"""The command ``rms``: the table of its commands and their modules.

A module is loaded only when its command is used: ``rms launch`` runs for every launcher line of
every job, and is to start fast.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from rms.wire import terminal
from rms.wire.terminal import COMPLETION, Parser, add_common, at_least, completed_by, parser

CLIENT, DAEMON = "rms.cli.client", "rms.cli.daemon"

COMMANDS = {
    "serve": (DAEMON, "run the daemon"),
    "pilot": (DAEMON, "run the daemon on nodes that it requests from Slurm"),
    "submit": ("rms.cli.submit", "submit a job script or a command"),
    "launch": ("rms.client.launch", "run a launcher line of a job script"),
    "queue": ("rms.cli.queue", "pending and running jobs"),
    "nodes": (CLIENT, "nodes, their states and their jobs"),
    "show": ("rms.cli.queue", "all facts about a job"),
    "cancel": (CLIENT, "end jobs"),
    "hold": (CLIENT, "keep pending jobs from starting"),
    "release": (CLIENT, "let held jobs start"),
    "requeue": (CLIENT, "end running jobs and queue them again"),
    "wait": (CLIENT, "wait for jobs; ends with their exit status"),
    "attach": (CLIENT, "a job's output as it grows; ends with its exit status"),
    "acct": ("rms.cli.acct", "times, energy and cost of jobs"),
    "resize": (CLIENT, "change the size of a running job"),
    "policy": (CLIENT, "show or change the policy of jobs, and of tasks"),
    "power-cap": (CLIENT, "show or set the power cap of the cluster"),
    "shutdown": (CLIENT, "end all jobs at checkpoints, then the daemon"),
    "explain": (CLIENT, "decisions about a job, with their reasons"),
    "top": (CLIENT, "a live view of the daemon"),
    "web": (CLIENT, "a live page of the daemon, for a browser of this machine"),
    "report": ("rms.cli.report", "a page with figures: of all jobs, or of a result"),
    "drain": (CLIENT, "start no more jobs on nodes"),
    "resume": (CLIENT, "start jobs on drained nodes again"),
    "simulate": ("rms.cli.simulate", "run a workload on a virtual clock"),
    "reproduce": ("rms.cli.reproduce", "a published experiment, paper against ours"),
    "compare": ("rms.cli.compare", "run scripts for real in all modes, by turns"),
    "profile": ("rms.cli.profile", "time, power and energy of a command by size"),
    "replay": (DAEMON, "run a journal through the engine again"),
}
"""Module and help of the commands. A module has a function of the command's name (``_`` for ``-``),
and ``add_NAME`` for its options where ``options.toml`` does not have them."""

WITH_COMMAND_LINE = ("submit", "launch", "profile", "pilot")
"""Commands that end with ``-- COMMAND``, or options of another one."""

WITHOUT_SERVER = ("serve", "pilot", "reproduce", "compare", "profile", "replay")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    words, command_line = list(sys.argv[1:] if argv is None else argv), []
    if words and words[0] in WITH_COMMAND_LINE and "--" in words:
        at = words.index("--")
        words, command_line = words[:at], words[at + 1 :]
    top = _parser(words[0] if words else "")
    if not words:
        top.print_help()
        return 0
    arguments = top.parse_args(words)
    arguments.command_line = command_line
    name = arguments.command
    return terminal.run_command("rms", arguments, getattr(_module(name), name.replace("-", "_")))


def _module(name: str) -> object:
    return importlib.import_module(COMMANDS[name][0])


def _parser(wanted: str) -> Parser:
    """Return the parser of one command; for help and unknown commands that of all."""
    top = parser("rms", "Resource manager for malleable jobs.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    whole = wanted.startswith(COMPLETION)  # of every command all options are wanted
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        command = commands.add_parser(name, help=COMMANDS[name][1], allow_abbrev=False)
        if name != wanted and not whole:
            continue
        add_common(command)
        if name not in WITHOUT_SERVER:
            command.add_argument("--server", metavar="ADDRESS", help="default: RMS_SERVER")
        module = _module(name)
        add = getattr(module, f"add_{name}", None)
        if add is None:
            _add_rows(command, name, vars(module))
        else:
            add(command)
    return top


# --- Options of options.toml ----------------------------------------------------------------------


@cache
def _tables() -> dict[str, dict[str, Any]]:
    import tomllib  # not for rms launch

    return tomllib.loads(Path(__file__).with_name("options.toml").read_text())


def _add_rows(command: argparse.ArgumentParser, table: str, names: Mapping[str, Any]) -> None:
    """Add the options of a command, or of a group, whose texts have the names of a module."""
    for key, row in _tables().get(table, {}).items():
        if key == "module":
            names = vars(importlib.import_module(row))
        elif key in ("description", "epilog"):
            setattr(command, key, row.format_map(names))
            if "\n" in row:
                command.formatter_class = argparse.RawDescriptionHelpFormatter
        elif isinstance(row, dict):
            _add_row(command, key, dict(row), {"Path": Path, "int": int, **vars(terminal), **names})
        elif row.startswith("add_"):
            names[row](command)
        else:
            _add_rows(command, row, names)


def _add_row(
    command: argparse.ArgumentParser, name: str, row: dict[str, Any], names: Mapping[str, Any]
) -> None:
    flags = [row.pop("short"), name] if "short" in row else [name]
    words, title = row.pop("words", ""), row.pop("group", "")
    group: argparse._ActionsContainer = command
    if title:
        groups = {group.title: group for group in command._action_groups}
        group = groups.get(title) or command.add_argument_group(title)
    if row.pop("one-of", False):
        several = command._mutually_exclusive_groups
        group = several[0] if several else command.add_mutually_exclusive_group()
    if "least" in row:
        row["type"] = at_least(row.pop("least"), row.pop("most", inf))
    for key, value in row.items():
        if key in ("help", "default", "metavar") and isinstance(value, str):
            row[key] = value.format_map(names)
        elif key in ("type", "const", "choices") and isinstance(value, str):
            row[key] = names[value]
    action = group.add_argument(*flags, **row)
    if words:
        values = names[words]
        ready = isinstance(values, str) or callable(values)
        completed_by(action, values if ready else lambda: values)
