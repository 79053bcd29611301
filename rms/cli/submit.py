"""``rms submit``: a job script or a command, with what its job is to have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rms.client import commands
from rms.client.connection import server_address
from rms.formats.jobscript import Options, ScriptError, parse_nodes, parse_time, read_option
from rms.wire.terminal import printable, publish, refuse_on, tell


def add_submit(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms submit``."""
    command.description = (
        "Hand in a job script or a command. One whose program was measured by rms profile on this "
        "machine needs no table of run times: it is found by all words of the command (of a "
        "script, of its one launcher line), the contents of the program's file (of an interpreter, "
        "its script's too) and the machine (processor, cores, GPUs). Under a policy whose jobs "
        "share nodes (placement less-consume, first-fit-shared, consolidate) --nodes counts "
        "slots, of one process each."
    )
    command.add_argument("script", type=Path, nargs="?", metavar="SCRIPT")
    command.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="of the script; those that begin with - come last, after --",
    )
    for option in ("--array", "--nodes", "--mode", "--time", "--job-name", "--output"):
        command.add_argument(option)
    command.add_argument("--error", metavar="FILE", help="of standard error (default: --output)")
    command.add_argument("--chdir", metavar="DIR", help="where to run (default: this folder)")
    command.add_argument(
        "--export",
        metavar="ALL|NONE|NAME[=VALUE],...",
        help="variables that the job gets (default: ALL); ALL,NAME=VALUE adds some",
    )
    command.add_argument("--preferred", type=int)
    command.add_argument("--cooldown", metavar="S", help="from one resize to the next, at least")
    command.add_argument(
        "--profile",
        metavar="NAME|FILE|none",
        help="a measured profile, instead of the one that is looked up",
    )
    command.add_argument(
        "--memory-bandwidth",
        metavar="GB/S",
        help="what each process asks for, where jobs share nodes (default: as profiled)",
    )
    command.add_argument("--power", metavar="W", help="what the job adds to its nodes' idle power")
    command.add_argument("--begin", metavar="TIME", help="not before: now+1hour, 16:00, 2026-12-01")
    command.add_argument(
        "-d",
        "--dependency",
        metavar="LIST",
        help="after the ends of others: afterok:7:8_2,afterany:9, singleton",
    )
    command.add_argument(
        "-w",
        "--nodelist",
        metavar="LIST",
        help="only on these nodes (n[1-3,7]); all, without --nodes",
    )
    command.add_argument("-x", "--exclude", metavar="LIST", help="on none of these nodes")
    command.add_argument("-H", "--hold", action="store_true", help="until rms release")
    command.add_argument("-A", "--account", metavar="NAME", help="whose usage it counts as")
    command.add_argument("--mem", metavar="SIZE", help="on each node: 512 (MiB), 4G; more ends it")
    command.add_argument(
        "--signal", metavar="[B:]SIG[@S]", help="S seconds before its time is up (default: 60)"
    )
    command.add_argument("--power-limit", metavar="W", help="no size at which it adds more is used")
    command.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="one that was submitted with this key is not submitted again; its id is printed",
    )
    command.add_argument(
        "--wait", action="store_true", help="until they are over; say how they went"
    )


def submit(arguments: argparse.Namespace) -> int:
    """``rms submit``: print the id of the job or array."""
    server = server_address(arguments.server, os.environ)
    with refuse_on(ScriptError):
        text, name = _script(arguments)
        sent = commands.submit(server, text, name, _options(arguments))
    for words in sent.warnings:
        tell(f"warning: {words}")
    number = sent.ids[0].partition("_")[0]
    publish(arguments.json, {"id": number, "ids": sent.ids}, [number])
    return commands.wait_for(server, number, tell) if arguments.wait else 0


def _script(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the text to hand in and its name: a script, or one that runs the command."""
    script: Path | None = arguments.script
    if script is None and not arguments.command_line:
        raise ScriptError("expected a SCRIPT or -- COMMAND, got neither")
    if script is not None:
        return commands.read_script(script), printable(script.name)
    return commands.script_of(arguments.command_line), printable(
        Path(arguments.command_line[0]).name
    )


def _options(arguments: argparse.Namespace) -> Options:
    """Return what the command line sets."""
    own = [*arguments.arguments, *(arguments.command_line if arguments.script else [])]
    mode, cooldown, memory = arguments.mode, arguments.cooldown, arguments.mem
    power, limit, gb_s = arguments.power, arguments.power_limit, arguments.memory_bandwidth
    asked = None if gb_s is None else read_option("memory-bandwidth", gb_s)
    return Options(
        array=arguments.array,
        nodes=None if arguments.nodes is None else parse_nodes(arguments.nodes),
        preferred=arguments.preferred,
        mode=None if mode is None else read_option("mode", mode).mode,
        time_s=None if arguments.time is None else parse_time(arguments.time),
        job_name=arguments.job_name,
        hold=arguments.hold or None,
        dependency=_checked("dependency", arguments.dependency),
        begin=_checked("begin", arguments.begin),
        memory_mib=None if memory is None else read_option("mem", memory).memory_mib,
        signal=_checked("signal", arguments.signal),
        account=_checked("account", arguments.account),
        nodelist=_checked("nodelist", arguments.nodelist),
        exclude=_checked("exclude", arguments.exclude),
        output=arguments.output,
        error=arguments.error,
        chdir=arguments.chdir,
        export=arguments.export,
        arguments=tuple(own) or None,
        idempotency_key=arguments.idempotency_key,
        cooldown_s=None if cooldown is None else read_option("cooldown", cooldown).cooldown_s,
        profile=arguments.profile,
        power_w=None if power is None else read_option("power", power).power_w,
        power_limit_w=None if limit is None else read_option("power-limit", limit).power_limit_w,
        memory_bandwidth_gb_s=None if asked is None else asked.memory_bandwidth_gb_s,
    )


def _checked(name: str, text: str | None) -> str | None:
    """Return an option's text as it is, after a look at whether it can be one."""
    if text is not None:
        read_option(name, text)
    return text
