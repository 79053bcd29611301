"""``rms reproduce NAME``: a published experiment, paper against ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rms.formats.config import FileError
from rms.studies.carbonscaler import carbonscaler
from rms.studies.chauhan import chauhan
from rms.studies.chiesi import chiesi
from rms.studies.cirrus import cirrus
from rms.studies.experiment import STATUSES, Result, counts, make_folder, statements, studies
from rms.studies.guim import VARIANTS, Grid, guim
from rms.studies.iserte_rojek import iserte_rojek
from rms.studies.posner import posner
from rms.studies.schaefer import DATA as SCHAEFER
from rms.studies.schaefer import SEEDS as DRAWS
from rms.studies.schaefer import SHUTDOWNS, ShutdownPlan, schaefer
from rms.studies.varysched import varysched
from rms.wire.terminal import CommandError, at_least, columns, completed_by, publish

EXPERIMENTS: Mapping[str, Callable[[argparse.Namespace], Result]] = {
    "iserte-rojek": lambda options: iserte_rojek(options.figures),
    "chiesi": lambda options: chiesi(options.figures),
    "chauhan": lambda options: chauhan(options.figures),
    "varysched": lambda options: varysched(options.figures),
    "carbonscaler": lambda options: carbonscaler(options.carbon, options.figures),
    "cirrus": lambda options: cirrus(data_folder(options), options.figures, progress),
    "posner": lambda options: posner(
        data_folder(options),
        options.seeds or ["S0"],
        options.jobs or os.cpu_count() or 1,
        options.figures,
        progress,
    ),
    "schaefer": lambda options: schaefer(
        data_folder(options),
        shutdown_plan(options),
        options.jobs or os.cpu_count() or 1,
        options.figures,
        progress,
        options.keep,
    ),
    "guim": lambda options: guim(
        data_folder(options),
        grid(options),
        options.jobs or os.cpu_count() or 1,
        options.figures,
        progress,
        options.keep,
    ),
    "statements": lambda options: recorded(),
}
"""Functions of the options. The last one runs nothing: it counts recorded statuses."""


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected names like S0,S1, each once, got {text!r}")
    return names


ASSUMPTIONS = f"simulated assumptions beside the default one: {', '.join(VARIANTS)} (default: all)"

OPTIONS: Mapping[str, tuple[str, Callable[[str], Any], str, str]] = {
    "carbon": ("carbonscaler", Path, "FILE", "hourly g of CO2 per kWh (default: a made-up day)"),
    "seeds": ("posner schaefer", _names, "S0[,S1...]", "workloads, or draws (default: S0; all)"),
    "weeks": (
        "schaefer",
        _names,
        "W[,W...]",
        "winter, spring, summer, autumn (default: these), year, paper",
    ),
    "shutdowns": ("schaefer", _names, "F[,F...]", "F0, F10, F30 (default: all)"),
    "jobs": ("posner schaefer guim", at_least(1), "N", "simulations at once (default: cores)"),
    "logs": ("guim", _names, "L[,L...]", "ctc, sdsc, blue (default: all)"),
    "mixes": ("guim", _names, "M[,M...]", "mem, hybrid, comp, equip (default: all)"),
    "errors": ("guim", _names, "PCT[,PCT...]", "errors of bandwidth (default: 10,50,100)"),
    "keep": (
        "schaefer guim",
        Path,
        "FILE",
        "keep finished simulations there, and do not repeat them",
    ),
    "first": ("guim", at_least(0), "N", f"first jobs of a log; 0: all (default: {Grid().first})"),
    "variants": ("guim", _names, "V[,V...]", ASSUMPTIONS),
}
"""Options of some experiments: names of these, type, value in the help, and help."""


def add_reproduce(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    name = add(
        "name", metavar="|".join(EXPERIMENTS), help="the experiment, by its authors or system"
    )
    completed_by(name, lambda: EXPERIMENTS)
    text = "data of studies that the project does not ship (default: MALLEABLE_DATA)"
    add("--data", type=Path, metavar="DIR", help=text)
    add("--figures", type=Path, metavar="DIR", help="draw its figures there")
    for option, (names, kind, metavar, text) in OPTIONS.items():
        words = f"of {' and '.join(names.split())}: {text}"
        add(f"--{option}", type=kind, metavar=metavar, help=words)


def reproduce(arguments: argparse.Namespace) -> int:
    """``rms reproduce NAME``: exit 1 if a check fails."""
    if arguments.name not in EXPERIMENTS:
        raise CommandError(
            f"expected an experiment of {', '.join(EXPERIMENTS)}, got {arguments.name!r}"
        )
    for option, row in OPTIONS.items():
        names = row[0].split()
        if arguments.name not in names and getattr(arguments, option) is not None:
            raise CommandError(
                f"expected --{option} with {' or '.join(names)} only, got it with {arguments.name}"
            )
    make_folder(arguments.figures)
    result, lines, good = EXPERIMENTS[arguments.name](arguments)
    publish(arguments.json, result, lines)
    return 0 if good else 1


def shutdown_plan(options: argparse.Namespace) -> ShutdownPlan:
    plan = ShutdownPlan()
    choices = {"weeks": tuple(SCHAEFER["weeks"]), "shutdowns": SHUTDOWNS, "seeds": DRAWS}
    for option, names in choices.items():
        for name in getattr(options, option) or ():
            if name not in names:
                raise CommandError(f"expected --{option} of {', '.join(names)}, got {name!r}")
    return ShutdownPlan(
        tuple(options.weeks or plan.weeks),
        tuple(options.shutdowns or plan.shutdowns),
        tuple(options.seeds or plan.seeds),
    )


def grid(options: argparse.Namespace) -> Grid:
    whole = Grid()
    for option in ("logs", "mixes", "variants"):
        names, choices = getattr(options, option) or (), getattr(whole, option)
        for name in names:
            if name not in choices:
                raise CommandError(f"expected --{option} of {', '.join(choices)}, got {name!r}")
    errors = options.errors or [f"{error}" for error in whole.errors]
    for error in errors:
        if not error.isdecimal() or int(error) > 100:
            raise CommandError(f"expected --errors from 0 to 100 (per cent), got {error!r}")
    return Grid(
        tuple(options.logs or whole.logs),
        tuple(options.mixes or whole.mixes),
        tuple(int(error) for error in errors),
        whole.first if options.first is None else options.first,
        tuple(options.variants or whole.variants),
    )


def recorded() -> Result:
    """Return the number of statements by paper and recorded status; nothing runs."""
    numbers = {study: counts(statements(study)) for study in studies()}
    numbers["all"] = {
        status: sum(of_study.get(status, 0) for of_study in numbers.values()) for status in STATUSES
    }
    cells = [
        [study, *(str(of_study.get(status, 0)) for status in STATUSES)]
        for study, of_study in numbers.items()
    ]
    lines = columns(("study", *STATUSES), cells)
    return {"experiment": "statements", "counts": numbers}, lines, True


def data_folder(options: argparse.Namespace) -> Path:
    folder = options.data or os.environ.get("MALLEABLE_DATA")
    if folder is None:
        raise FileError(
            f"expected --data DIR (or MALLEABLE_DATA) with the files of {options.name}, got neither"
        )
    if not Path(folder).is_dir():
        raise FileError(f"expected a folder of data files, got {folder}")
    return Path(folder)


def progress(text: str) -> None:
    """Print a line of progress to a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
