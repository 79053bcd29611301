"""The commands that talk to a running daemon: their options, and the tables they print."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from rms.cli.queue import add_filters
from rms.client.commands import follow, jobs, read_script, script_of, wait_for
from rms.client.commands import submit as send
from rms.client.connection import ServerError, ask, server_address
from rms.formats.energy import Account, resize_words, slurm_words
from rms.formats.jobscript import (
    Options,
    ScriptError,
    parse_nodes,
    parse_time,
    read_option,
)
from rms.wire.terminal import columns, printable, publish, refuse_on
from rms.wire.users import (
    HistoryEntry,
    JobIds,
    JobRow,
    JobSelection,
    NodeNames,
    NodePattern,
    NodeRow,
    Nothing,
    ResizeAnswer,
    ResizeCommand,
)

if TYPE_CHECKING:
    from rich.console import Group

    from rms.wire.users import Snapshot

LIVE_VIEW_S = 1.0
"""How often the live view is drawn anew."""


def _server(arguments: argparse.Namespace) -> str:
    return server_address(arguments.server, os.environ)


def _show(
    arguments: argparse.Namespace, result: object, heads: list[str], rows: list[list[str]]
) -> int:
    publish(arguments.json, msgspec.to_builtins(result), columns(heads, rows))
    return 0


# --- handing in, and waiting -------------------------------------------------------------------


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
    server = _server(arguments)
    with refuse_on(ScriptError):
        text, name = _script(arguments)
        sent = send(server, text, name, _options(arguments))
    for words in sent.warnings:
        _say(f"warning: {words}")
    number = sent.ids[0].partition("_")[0]
    publish(arguments.json, {"id": number, "ids": sent.ids}, [number])
    return wait_for(server, number, _say) if arguments.wait else 0


def _say(line: str) -> None:
    """Tell the user, beside what is printed for scripts."""
    print(f"rms: {printable(line)}", file=sys.stderr, flush=True)


def _script(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the text to hand in and its name: a script, or one that runs the command."""
    script: Path | None = arguments.script
    if script is None and not arguments.command_line:
        raise ScriptError("expected a SCRIPT or -- COMMAND, got neither")
    if script is not None:
        return read_script(script), printable(script.name)
    return script_of(arguments.command_line), printable(Path(arguments.command_line[0]).name)


def _options(arguments: argparse.Namespace) -> Options:
    """Return what the command line sets."""
    own = [*arguments.arguments, *(arguments.command_line if arguments.script else [])]
    mode, cooldown = arguments.mode, arguments.cooldown
    power, limit, gb_s = arguments.power, arguments.power_limit, arguments.memory_bandwidth
    asked = None if gb_s is None else read_option("memory-bandwidth", gb_s)
    return Options(
        array=arguments.array,
        nodes=None if arguments.nodes is None else parse_nodes(arguments.nodes),
        preferred=arguments.preferred,
        mode=None if mode is None else read_option("mode", mode).mode,
        time_s=None if arguments.time is None else parse_time(arguments.time),
        job_name=arguments.job_name,
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


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms wait``."""
    command.add_argument("id")


def wait(arguments: argparse.Namespace) -> int:
    """``rms wait ID``: 0 if all its jobs are COMPLETED, else the highest exit status."""
    return wait_for(_server(arguments), arguments.id)


add_attach = add_wait


def attach(arguments: argparse.Namespace) -> int:
    """``rms attach ID``: its output as it grows, from the beginning; ends with its status."""
    out = sys.stderr if arguments.json == "-" else sys.stdout
    status, job = follow(_server(arguments), arguments.id, out.buffer)
    _say(f"job {job.id} {job.state}, exit status {status}")
    publish(arguments.json, {"id": job.id, "state": job.state, "exit_code": status}, [])
    return status


# --- tables of jobs ----------------------------------------------------------------------------


add_show = add_wait


def show(arguments: argparse.Namespace) -> int:
    """``rms show ID``: all that is known of a job."""
    rows = jobs(_server(arguments), arguments.id)
    table = [line for job in rows for line in _all_of(job)]
    return _show(arguments, rows, ["KEY", "VALUE"], table)


def _all_of(job: JobRow) -> list[list[str]]:
    """Return a line for each thing that is known of a job, resizes one by one."""
    found = msgspec.to_builtins(job)
    resizes = found.pop("resizes")
    found["energy"] = Account.of(job.energy).words
    lines = [[key, str(value)] for key, value in found.items()]
    lines.append(["resizes", str(len(resizes))])
    lines += [[f"resize {n}", resize_words(row)] for n, row in enumerate(job.resizes, 1)]
    by_slurm = slurm_words(job.slurm)
    return [*lines, ["slurm energy", by_slurm]] if by_slurm else lines


add_explain = add_wait


def explain(arguments: argparse.Namespace) -> int:
    """``rms explain ID``: the decisions about a job and their reasons."""
    path = f"/history/{quote(arguments.id)}"
    found = ask(list[HistoryEntry], _server(arguments), "GET", path)
    table = [
        [
            time.strftime("%H:%M:%S", time.localtime(entry.at_s)),
            entry.kind,
            ",".join(entry.nodes),
            entry.reason,
        ]
        for entry in found
    ]
    return _show(arguments, found, ["TIME", "DECISION", "NODES", "REASON"], table)


# --- changing jobs -----------------------------------------------------------------------------


def add_cancel(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``rms cancel``."""
    command.add_argument("id", nargs="*", metavar="ID", help="like 7, 7_3 or 7_[1-3]")
    add_filters(command)


def cancel(arguments: argparse.Namespace) -> int:
    """``rms cancel``: jobs of these ids, and of what else is asked for."""
    ids = ",".join(arguments.id) or None
    body = JobSelection(ids, arguments.state, arguments.name, arguments.user)
    found = ask(JobIds, _server(arguments), "POST", "/cancel", body)
    return _show(arguments, found, ["CANCELLED"], [[job] for job in found.ids])


def add_resize(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms resize``."""
    command.add_argument("id")
    command.add_argument("nodes", type=int)
    command.add_argument("--strategy", metavar="NAME", help="instead of the job's own")
    command.add_argument("--on", metavar="NODE,...", help="go over to these nodes, by their names")


def resize(arguments: argparse.Namespace) -> int:
    """``rms resize ID NODES``: 0 only if the resize was taken on."""
    body = ResizeCommand(arguments.id, arguments.nodes, arguments.strategy, arguments.on)
    found = ask(ResizeAnswer, _server(arguments), "POST", "/resize", body)
    if found.decision != "Resize":
        never = found.reason.startswith("never")
        raise ServerError(f"not resized: {found.reason}", 2 if never else 1)
    return _show(arguments, found, ["DECISION"], [["requested"]])


# --- the cluster -------------------------------------------------------------------------------


def nodes(arguments: argparse.Namespace) -> int:
    """``rms nodes``: like sinfo."""
    rows = ask(list[NodeRow], _server(arguments), "GET", "/nodes")
    table = [
        [
            node.name,
            node.state,
            ",".join(node.slots),
            f"{node.allocated}/{len(node.slots) - node.allocated}",
            "" if node.frequency is None else f"{100 * node.frequency:.0f} %",
            node.job or "",
        ]
        for node in rows
    ]
    return _show(arguments, rows, ["NODE", "STATE", "SLOTS", "ALLOC/IDLE", "FREQ", "JOB"], table)


def add_drain(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms drain`` and ``rms resume``."""
    command.add_argument("node", metavar="NODE")


add_resume = add_drain


def drain(arguments: argparse.Namespace) -> int:
    """``rms drain NODE``: who runs there is left alone."""
    return _drain(arguments, "/drain", "DRAINED")


def resume(arguments: argparse.Namespace) -> int:
    """``rms resume NODE``."""
    return _drain(arguments, "/resume", "RESUMED")


def _drain(arguments: argparse.Namespace, path: str, head: str) -> int:
    found = ask(NodeNames, _server(arguments), "POST", path, NodePattern(arguments.node))
    return _show(arguments, found, [head], [[name] for name in found.nodes])


def shutdown(arguments: argparse.Namespace) -> int:
    """``rms shutdown``."""
    ask(Nothing, _server(arguments), "POST", "/shutdown", Nothing())
    return 0


# --- the live view -------------------------------------------------------------------------------


def top(arguments: argparse.Namespace) -> int:
    """``rms top``: a live view on a terminal, else one look."""
    from rms.client.monitor import snapshot

    server = _server(arguments)
    if arguments.json is not None:
        publish(arguments.json, msgspec.to_builtins(snapshot(server)), [])
    if arguments.json == "-":
        return 0
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal or arguments.json is not None:
        Console(width=200).print(_view(snapshot(server), None))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        for now in _snapshots(server):
            screen.update(_view(now, console.height - 6), refresh=True)
    return 0


def _snapshots(server: str) -> Iterator[Snapshot]:
    from rms.client.monitor import snapshot

    while True:
        yield snapshot(server)
        time.sleep(LIVE_VIEW_S)


def _view(now: Snapshot, most: int | None) -> Group:
    """Return the summary and a table of at most so many jobs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from rms.client.monitor import JOB_HEADS, present_jobs, summary

    table = Table(*JOB_HEADS, box=None, pad_edge=False)
    rows = present_jobs(now)
    for row in rows[:most]:
        table.add_row(*(Text(printable(cell)) for cell in row))  # plain: no markup of rich's
    left = len(rows) - len(rows[:most])
    text = Text(printable(summary(now)))
    return Group(text, table, *([f"... and {left} more"] if left else []))
