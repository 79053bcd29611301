"""``rms pilot``: a daemon that asks Slurm for nodes by what waits, and lets them go."""

from __future__ import annotations

import argparse

from rms.cli.daemon import add_serve, serve
from rms.cli.engines import ON_DEMAND
from rms.formats.jobscript import ScriptError, parse_time
from rms.launch.slurm.ondemand import Limits
from rms.wire.terminal import CommandError, at_least, seconds


def add_pilot(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms pilot``: its own, and those of ``rms serve``."""
    command.epilog = "Options of sbatch for its allocations (--account=x) may follow after --."
    add = command.add_argument_group("allocations").add_argument
    add("--on-demand", action="store_true", help="ask for nodes while jobs wait for them")
    add("--keep", type=at_least(0), default=0, metavar="N", help="hold N nodes whatever waits")
    add(
        "--max-nodes",
        type=at_least(1),
        metavar="M",
        help="never more than these at once (default: --keep, on demand the partition's)",
    )
    add("--time", default="60", metavar="T", help="of an allocation, as Slurm's (default 1 h)")
    add(
        "--idle",
        type=seconds,
        default=60.0,
        metavar="S",
        help="how long a node is kept that nobody needs (default 60)",
    )
    add(
        "--backlog",
        type=at_least(1),
        default=1,
        metavar="N",
        help="allocations that wait in Slurm's queue at once (default 1)",
    )
    add_serve(command)


def pilot(arguments: argparse.Namespace) -> int:
    """``rms pilot``: serve until told to stop."""
    if arguments.engine != "local":
        raise CommandError(f"expected no --engine for rms pilot, got {arguments.engine}")
    if arguments.nodes is not None:
        raise CommandError(f"expected --max-nodes for rms pilot, got --nodes {arguments.nodes}")
    arguments.limits, arguments.engine = limits(arguments), ON_DEMAND
    return serve(arguments)


def limits(arguments: argparse.Namespace) -> Limits:
    """Return what the user allows.

    Raises:
        CommandError: it cannot be.
    """
    keep, most = arguments.keep, arguments.max_nodes
    if not (arguments.on_demand or keep):
        raise CommandError("expected --on-demand, --keep N or both, got neither")
    if most is not None and most < keep:
        raise CommandError(f"expected --max-nodes of at least {keep}, got {most}")
    try:
        time_s = parse_time(arguments.time)
    except ScriptError as error:
        raise CommandError(str(error)) from None
    if time_s == float("inf"):
        raise CommandError("expected a --time at which allocations end, got none")
    if most is None:
        most = 0 if arguments.on_demand else keep
    return Limits(
        on_demand=arguments.on_demand,
        keep=keep,
        most=most,
        time_s=time_s,
        idle_s=arguments.idle,
        backlog=arguments.backlog,
        partition=arguments.partition,
        options=tuple(arguments.command_line),
    )
