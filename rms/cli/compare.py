"""``rms compare``: scripts for real in several modes, by turns."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rms.cli.options import add_engine, add_policy, check_engine, local_nodes
from rms.core.model.jobs import Mode
from rms.core.policies import PolicyError, named
from rms.studies.compare import FEWEST_ROUNDS
from rms.wire.terminal import (
    CommandError,
    at_least,
    check_writable,
    publish,
    refuse_on,
    say,
    seconds,
)


def add_compare(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Run scripts for real in every mode, by turns in several rounds on fresh embedded RMSs, "
        "and print the paper's table: medians with their ranges, and which modes differ. Before "
        "the first round every script runs once (of an array its first task), counted nowhere, so "
        "that all modes start with the same caches; a script that fails there ends the comparison."
    )
    add = command.add_argument
    add("scripts", type=Path, nargs="+", metavar="SCRIPT", help="job scripts, submitted in order")
    modes = ",".join(Mode)
    add("--modes", default=modes, metavar="MODE,...", help=f"default: {modes}")
    add(
        "--times",
        type=at_least(1),
        default=FEWEST_ROUNDS,
        metavar="N",
        help=f"rounds of all modes (default {FEWEST_ROUNDS}; with fewer no difference counts)",
    )
    add_engine(add)
    add("--nodes", type=at_least(1), metavar="N", help="default: all there are")
    add(
        "--delay",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds from one submission to the next (default 2)",
    )
    add_policy(add)
    add(
        "--folder",
        type=Path,
        default=Path("compare"),
        metavar="D",
        help="output of the jobs (default: compare)",
    )
    add("--figure", type=Path, metavar="FILE.png", help="draw nodes and power over time")
    add(
        "--listen",
        default="",
        metavar="unix:PATH",
        help="address of the embedded RMS, for rms web, top and queue meanwhile (default: any)",
    )


def compare(arguments: argparse.Namespace) -> int:
    """``rms compare SCRIPT...``: run the scripts in every mode; exit 1 if a job failed."""
    from rms.launch.slurm.commands import SlurmError
    from rms.studies import compare as study

    with refuse_on(PolicyError):
        named(arguments.policy)
    check_engine(arguments.engine)
    problem = check_writable(arguments.figure, "--figure")
    if problem is not None:
        raise CommandError(problem)
    if arguments.listen and not arguments.listen.startswith("unix:"):
        raise CommandError(f"expected --listen unix:PATH, got {arguments.listen!r}")
    local = arguments.engine == "local"
    nodes = local_nodes(arguments.nodes) if local else arguments.nodes
    setup = study.ComparisonSetup(
        arguments.engine,
        nodes,
        arguments.policy,
        arguments.delay,
        arguments.folder.absolute(),
        os.environ,
        arguments.listen,
    )
    modes = arguments.modes.split(",")
    for name in modes:
        if name not in list(Mode):
            raise CommandError(f"expected modes of {', '.join(Mode)}, got {name!r}")
    if len(set(modes)) < len(modes):
        raise CommandError(f"expected different modes, got {arguments.modes}")
    with refuse_on(PolicyError), refuse_on(SlurmError, exit_code=1):
        scripts = [path.absolute() for path in arguments.scripts]
        result = study.compare(scripts, list(map(Mode, modes)), setup, say, arguments.times)
    if arguments.figure is not None:
        study.draw(result, arguments.figure)
    wrong = study.problems(result)
    publish(arguments.json, result, [*study.table(result), *wrong])
    return 1 if wrong else 0
