"""``rms reproduce NAME``: a published experiment, paper against ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rms.formats.config import FileError
from rms.studies.chauhan import chauhan
from rms.studies.chiesi import chiesi
from rms.studies.cirrus import cirrus
from rms.studies.experiment import STATUSES, counts, statements, studies
from rms.studies.guim import VARIANTS, Grid, guim
from rms.studies.iserte_rojek import iserte_rojek
from rms.studies.posner import posner
from rms.studies.varysched import varysched
from rms.wire.terminal import CommandError, at_least, columns, completed_by, publish, refuse_on

Experiment = Callable[[argparse.Namespace], tuple[dict[str, Any], list[str], bool]]
"""Given the options: the JSON, the tables, whether all that must hold does."""

EXPERIMENTS: Mapping[str, Experiment] = {
    "iserte-rojek": lambda options: iserte_rojek(options.figures),
    "chiesi": lambda options: chiesi(options.figures),
    "chauhan": lambda options: chauhan(options.figures),
    "varysched": lambda options: varysched(options.figures),
    "cirrus": lambda options: cirrus(data_folder(options), options.figures, progress),
    "posner": lambda options: posner(
        data_folder(options),
        options.seeds or ["S0"],
        options.jobs or os.cpu_count() or 1,
        options.figures,
        progress,
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
"""All but the last one run an experiment; that one counts the recorded statuses of all."""


OPTIONS = {
    "seeds": ("posner",),
    "jobs": ("posner", "guim"),
    "logs": ("guim",),
    "mixes": ("guim",),
    "errors": ("guim",),
    "first": ("guim",),
    "variants": ("guim",),
    "keep": ("guim",),
}
"""Options that only some experiments have."""


def add_reproduce(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms reproduce``."""
    name = command.add_argument(
        "name", metavar="|".join(EXPERIMENTS), help="the experiment, by its authors or system"
    )
    completed_by(name, lambda: EXPERIMENTS)
    command.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data of studies that the project does not ship (default: MALLEABLE_DATA)",
    )
    command.add_argument("--figures", type=Path, metavar="DIR", help="draw its figures there")
    command.add_argument(
        "--seeds", type=_names, metavar="S0[,S1...]", help="of posner's workloads (default: S0)"
    )
    command.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="simulations of posner and guim at once (default: cores)",
    )
    command.add_argument(
        "--logs", type=_names, metavar="L[,L...]", help="of guim: ctc, sdsc, blue (default: all)"
    )
    command.add_argument(
        "--mixes",
        type=_names,
        metavar="M[,M...]",
        help="of guim: mem, hybrid, comp, equip (default: all)",
    )
    command.add_argument(
        "--errors",
        type=_names,
        metavar="PCT[,PCT...]",
        help="of guim's expected bandwidth (default: 10,50,100)",
    )
    command.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="of guim: keep each simulation that is over there, and do not run those again",
    )
    command.add_argument(
        "--first",
        type=at_least(0),
        metavar="N",
        help=f"jobs of each of guim's logs, the first ones; 0 for all (default: {Grid().first})",
    )
    command.add_argument(
        "--variants",
        type=_names,
        metavar="V[,V...]",
        help="assumptions of guim that are simulated beside the default one:"
        f" {', '.join(VARIANTS)} (default: all)",
    )


def reproduce(arguments: argparse.Namespace) -> int:
    """``rms reproduce NAME``: exit 1 if what must hold does not."""
    if arguments.name not in EXPERIMENTS:
        raise CommandError(
            f"expected an experiment of {', '.join(EXPERIMENTS)}, got {arguments.name!r}"
        )
    for option, names in OPTIONS.items():
        if arguments.name not in names and getattr(arguments, option) is not None:
            raise CommandError(
                f"expected --{option} with {' or '.join(names)} only, got it with {arguments.name}"
            )
    if arguments.figures is not None:
        try:
            arguments.figures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"expected a folder for --figures, got: {error}") from None
    with refuse_on(FileError):
        result, lines, good = EXPERIMENTS[arguments.name](arguments)
    publish(arguments.json, result, lines)
    return 0 if good else 1


def grid(options: argparse.Namespace) -> Grid:
    """Return which simulations of guim are asked for.

    Raises:
        CommandError: a name or an error is not one of the paper's.
    """
    asked = Grid()
    for option in ("logs", "mixes", "variants"):
        names, known = getattr(options, option) or (), getattr(asked, option)
        for name in names:
            if name not in known:
                raise CommandError(f"expected --{option} of {', '.join(known)}, got {name!r}")
    errors = options.errors or [f"{error}" for error in asked.errors]
    for error in errors:
        if not error.isdecimal() or int(error) > 100:
            raise CommandError(f"expected --errors from 0 to 100 (per cent), got {error!r}")
    return Grid(
        tuple(options.logs or asked.logs),
        tuple(options.mixes or asked.mixes),
        tuple(int(error) for error in errors),
        asked.first if options.first is None else options.first,
        tuple(options.variants or asked.variants),
    )


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected names like S0,S1, each once, got {text!r}")
    return names


def recorded() -> tuple[dict[str, Any], list[str], bool]:
    """Return how many statements of each paper have which recorded status; nothing runs."""
    found = {study: counts(statements(study)) for study in studies()}
    found["all"] = {
        status: sum(each.get(status, 0) for each in found.values()) for status in STATUSES
    }
    cells = [
        [study, *(str(each.get(status, 0)) for status in STATUSES)] for study, each in found.items()
    ]
    lines = columns(("study", *STATUSES), cells)
    return {"experiment": "statements", "counts": found}, lines, True


def data_folder(options: argparse.Namespace) -> Path:
    """Return the folder of external data.

    Raises:
        FileError: none is named, or it is none.
    """
    folder = options.data or os.environ.get("MALLEABLE_DATA")
    if folder is None:
        raise FileError(
            f"expected --data DIR (or MALLEABLE_DATA) with the files of {options.name}, got neither"
        )
    if not Path(folder).is_dir():
        raise FileError(f"expected a folder of data files, got {folder}")
    return Path(folder)


def progress(text: str) -> None:
    """Say what is being simulated, where somebody looks on."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
