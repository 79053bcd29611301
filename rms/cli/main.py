"""The command ``rms``: the table of its commands and their modules.

A module is loaded only when its command is used: ``rms launch`` runs for every launcher line of
every job, and is to start fast.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from rms.wire.terminal import (
    COMPLETION,
    Parser,
    add_common,
    fail,
    missing_extra,
    parser,
    require_extra,
    run_command,
)

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
    "suspend": (CLIENT, "stop the processes of running jobs, which keep their nodes"),
    "continue": (CLIENT, "let suspended jobs run again"),
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
"""Module and help of the commands. A module has a function of the command's name (``_`` for ``-``,
``change`` for one of :data:`CHANGES`), and ``add_NAME`` for its options, if there are any."""

CHANGES = {
    "cancel": "CANCELLED",
    "hold": "HELD",
    "release": "RELEASED",
    "suspend": "SUSPENDED",
    "continue": "CONTINUED",
}
"""Commands that only change the jobs that ids and filters select, and the heads of their tables."""

WITH_COMMAND_LINE = ("submit", "launch", "profile", "pilot")
"""Commands that end with ``-- COMMAND``, or options of another one."""

WITHOUT_SERVER = ("serve", "pilot", "reproduce", "compare", "replay")


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
    function = _function(name)
    if name in CHANGES:
        function = partial(function, head=CHANGES[name])
    if getattr(arguments, "figure", None) or getattr(arguments, "figures", None):
        function = partial(_with_extra, function)
    return run_command("rms", arguments, function)


def _with_extra(function: Any, arguments: argparse.Namespace) -> int:
    """Run a command that draws at its end, once it is clear that it can."""
    require_extra("rms")
    status: int = function(arguments)
    return status


def _function(name: str, prefix: str = "") -> Any:
    """Return the function of a command, or that which adds its options; None for none."""
    function = "change" if name in CHANGES else name.replace("-", "_")
    try:
        module = importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        sentence = missing_extra("rms", error.name)
        if sentence is None:
            raise
        raise SystemExit(fail("rms", sentence)) from None
    return getattr(module, f"{prefix}{function}", None)


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
        add = _function(name, "add_")
        if add is not None:
            add(command)
    return top
