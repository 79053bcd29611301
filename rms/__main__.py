"""The command ``rms``."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from rms.commandline import Parser, add_common, check_writable, emit_json, parser
from rms.files import FileError, read_cluster, read_workload
from rms.ledger import NodePower
from rms.model import Mode
from rms.policies import PolicyError, named
from rms.simulate import simulate


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.call(arguments)
        return status
    except (FileError, PolicyError) as error:
        print(f"rms: error: {error}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    top = parser("rms", "Resource manager for malleable jobs (so far: its engine, simulated).")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    sim = commands.add_parser(
        "simulate", help="run a workload on a virtual clock", allow_abbrev=False
    )
    sim.add_argument("--workload", type=Path, required=True, metavar="FILE.toml")
    sim.add_argument("--cluster", type=Path, metavar="FILE.toml")
    sim.add_argument("--processors", type=int, metavar="P", help="that many nodes without power")
    sim.add_argument("--policy", default="array-share", metavar="NAME")
    sim.add_argument("--mode", metavar="MODE", help="override the mode of all jobs")
    sim.add_argument("--per-job", type=Path, metavar="OUT.csv")
    sim.set_defaults(call=_simulate)
    add_common(sim)
    return top


def _simulate(arguments: argparse.Namespace) -> int:
    policy = named(arguments.policy)
    for target, option in ((arguments.json, "--json"), (arguments.per_job, "--per-job")):
        problem = check_writable(target, option)
        if problem is not None:
            raise FileError(problem)
    mode = None
    if arguments.mode is not None:
        if arguments.mode not in list(Mode):
            raise FileError(f"expected a mode of {', '.join(Mode)}, got {arguments.mode!r}")
        mode = Mode(arguments.mode)
    specs = read_workload(arguments.workload, mode)
    result, rows = simulate(specs, _power(arguments), policy)
    if arguments.per_job is not None:
        part = arguments.per_job.with_name(arguments.per_job.name + ".part")
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, ["job", "submit_s", "start_s", "end_s", "nodes", "energy_j"]
            )
            writer.writeheader()
            writer.writerows(rows)
        part.replace(arguments.per_job)
    if arguments.json is not None:
        emit_json(arguments.json, result)
    if arguments.json != "-":
        for name, value in result.items():
            if isinstance(value, dict):
                value = ", ".join(f"{k} {v / 1000:.1f} kJ" for k, v in value.items())
            print(f"{name:22s} {value:.6g}" if isinstance(value, float) else f"{name:22s} {value}")
    return 0


def _power(arguments: argparse.Namespace) -> Sequence[NodePower]:
    if (arguments.cluster is None) == (arguments.processors is None):
        raise FileError("expected either --cluster FILE.toml or --processors P")
    if arguments.cluster is not None:
        return read_cluster(arguments.cluster).power
    if arguments.processors < 1:
        raise FileError(f"expected at least 1 processor, got {arguments.processors}")
    return [NodePower()] * int(arguments.processors)


if __name__ == "__main__":
    sys.exit(main())
