"""``rms submit``: a job script or a command, with what its job is to have."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from rms.client import commands
from rms.client.connection import server_address
from rms.core.model.jobs import Mode
from rms.formats.jobscript import Options, ScriptError, parse_text, read_option
from rms.wire.terminal import Parser, printable, publish, refuse_on, tell


def add_submit(command: Parser) -> None:
    """Add the options of ``rms submit``."""
    command.description = (
        "Hand in a job script or a command. One whose program was measured by rms profile on this "
        "machine needs no table of run times: it is found by all words of the command (of a "
        "script, of its one launcher line), the contents of the program's file (of an interpreter, "
        "its script's too) and the machine (processor, cores, GPUs). Under a policy whose jobs "
        "share nodes (placement less-consume, first-fit-shared, consolidate) --nodes counts "
        "slots, of one process each."
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
    add("-a", "--array", metavar="SPEC", help="a task for each index: 0-11%%4 (4 at once), 1,3,5")
    add("-N", "--nodes", metavar="N|MIN-MAX", help="nodes of each job (default: 1)")
    add("-n", "--ntasks", metavar="N", help="ranks, one for each slot of the nodes")
    add(
        "--preferred",
        metavar="N",
        help="nodes that a job starts with (default: MAX of --nodes, or all there are)",
    )
    add(
        "--mode",
        choices=[*Mode],
        metavar="MODE",
        help="fixed (default): keeps its size; moldable: may start at another; malleable: may be "
        "resized while it runs; flexible: both",
    )
    add(
        "-t",
        "--time",
        metavar="TIME",
        help="time limit: minutes, M:S, H:M:S, D-H:M:S or UNLIMITED; jobs with one can be "
        "backfilled",
    )
    add("-J", "--job-name", metavar="NAME", help="default: the name of the script or program")
    add("-o", "--output", metavar="FILE", help="of standard output (default: rms-%%j.out)")
    add("-e", "--error", metavar="FILE", help="of standard error (default: --output)")
    add("-D", "--chdir", metavar="DIR", help="where to run (default: this folder)")
    add(
        "--export",
        metavar="ALL|NONE|NAME[=VALUE],...",
        help="variables that the job gets (default: ALL); ALL,NAME=VALUE adds some",
    )
    add("--cooldown", metavar="S", help="least time from one resize to the next, in seconds")
    add(
        "--profile",
        metavar="NAME|FILE|none",
        help="a measured profile, instead of the one that is looked up",
    )
    add(
        "--memory-bandwidth",
        metavar="GB/S",
        help="bandwidth of each process, where jobs share nodes (default: as profiled)",
    )
    add("--power", metavar="W", help="power that the job adds to the idle power of its nodes")
    add("-b", "--begin", metavar="TIME", help="not before: now+1hour, 16:00, 2026-12-01")
    add(
        "-d",
        "--dependency",
        metavar="LIST",
        help="after the ends of others: afterok:7:8_2,afterany:9, singleton",
    )
    add(
        "-w",
        "--nodelist",
        metavar="NODES",
        help="only on these nodes (n[1-3,7]); all, without --nodes",
    )
    add("-x", "--exclude", metavar="NODES", help="on none of these nodes")
    add(
        "--wait-for-nodes",
        action="store_true",
        help="stay pending while the cluster has too few nodes",
    )
    order = command.add_mutually_exclusive_group()
    order.add_argument(
        "--priority",
        metavar="N",
        help="jobs of a higher priority start first, whatever the policy (default: 0)",
    )
    order.add_argument("--nice", metavar="N", help="the same as --priority=-N")
    add("-H", "--hold", action="store_true", help="do not start before rms release")
    add("-A", "--account", metavar="NAME", help="account that its use of nodes is counted for")
    add(
        "-p",
        "--partition",
        metavar="NAME",
        help="of Slurm's partitions, with --engine slurm; elsewhere without effect",
    )
    add(
        "-c",
        "--cpus-per-task",
        metavar="N",
        help="for Slurm, with --engine slurm; elsewhere without effect",
    )
    add("--gres", metavar="gpu:N", help="only on nodes with N GPUs")
    add("-G", "--gpus", metavar="N", help="nodes with N GPUs in total")
    add("--exclusive", action="store_true", help="no effect: jobs have their nodes exclusively")
    add("--wrap", metavar="COMMAND", help="run a line of shell in place of a SCRIPT")
    add("--mem", metavar="SIZE", help="limit on each node: 512 (MiB), 4G; a job above it is ended")
    add("--signal", metavar="[B:]SIG[@S]", help="sent S seconds before the time limit (default 60)")
    add(
        "--requeue",
        action=argparse.BooleanOptionalAction,
        help="whether the job waits again after the loss of a node",
    )
    add("--power-limit", metavar="W", help="exclude sizes at which the job adds more power")
    add(
        "--idempotency-key",
        metavar="KEY",
        help="if a job was submitted with this key, print its id and submit nothing",
    )
    add(
        "-W",
        "--wait",
        action="store_true",
        help="wait until all jobs have ended; report how, exit with their status",
    )
    command.sbatch_only = frozenset(f"--{name}" for name in SBATCH_ONLY.split())


def submit(arguments: argparse.Namespace) -> int:
    """``rms submit``: print the id of the job or array."""
    server = server_address(arguments.server, os.environ)
    with refuse_on(ScriptError):
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
    return commands.script_of(arguments.command_line), printable(
        Path(arguments.command_line[0]).name
    )


def _standard_input() -> str:
    """Return the text of a script on standard input."""
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


FOR_SLURM = ("partition", "cpus-per-task", "gres", "gpus")
"""Options that are read as ``#SBATCH`` lines."""

SBATCH_ONLY = """
    bb bbf bell batch cluster-constraint clusters comment constraint container contiguous
    core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot distribution
    export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus-per-node
    gpus-per-socket gpus-per-task gres-flags hint ignore-pbs input kill-on-invalid-dep licenses
    mail-type mail-user mem-bind mem-per-cpu mem-per-gpu mincpus network no-kill nodefile
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode overcommit
    oversubscribe parsable prefer propagate qos quiet reboot reservation resv-ports segment
    sockets-per-node spread-job stepmgr switches test-only thread-spec threads-per-core
    time-min tmp tres-per-task uid use-min-nodes wckey
"""
"""Options of sbatch that rms submit lacks; some are accepted in ``#SBATCH`` lines of a script."""


def _with_slurm_options(text: str, arguments: argparse.Namespace) -> str:
    """Insert the options that only Slurm reads as an ``#SBATCH`` line before the first command."""
    values = [(name, getattr(arguments, name.replace("-", "_"))) for name in FOR_SLURM]
    words = [shlex.quote(f"--{name}={value}") for name, value in values if value is not None]
    words += ["--exclusive"] * arguments.exclusive
    if not words:
        return text
    lines = text.split("\n")
    at = next(
        (n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")),
        len(lines),
    )
    return "\n".join([*lines[:at], f"#SBATCH {' '.join(words)}", *lines[at:]])


READ = (
    *("nodes", "ntasks", "preferred", "mode", "time", "begin", "dependency", "mem", "signal"),
    *("account", "nodelist", "exclude", "cooldown", "power", "power-limit", "memory-bandwidth"),
    *("priority", "nice", "array", "job-name", "output", "error", "chdir", "export", "profile"),
)
"""Options with the syntax of the same options in a script."""


def _options(arguments: argparse.Namespace) -> Options:
    """Return the options of the command line."""
    own = [*arguments.arguments, *(arguments.command_line if arguments.script else [])]
    options = Options(
        hold=arguments.hold or None,
        wait_for_nodes=arguments.wait_for_nodes or None,
        requeue=arguments.requeue,
        arguments=tuple(own) or None,
        idempotency_key=arguments.idempotency_key,
    )
    for name in READ:
        text = getattr(arguments, name.replace("-", "_"))
        if text is not None:
            options = read_option(name, text).over(options)
    return options
