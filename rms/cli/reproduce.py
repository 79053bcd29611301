"""``rms reproduce NAME``: a published experiment, paper against ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rms.formats.config import FileError
from rms.studies.chiesi import chiesi
from rms.studies.cirrus import cirrus
from rms.studies.iserte_rojek import iserte_rojek
from rms.studies.posner import posner
from rms.wire.terminal import CommandError, publish, refuse_on

Experiment = Callable[[argparse.Namespace], tuple[dict[str, Any], list[str], bool]]
"""Given the options: the JSON, the tables, whether all that must hold does."""

EXPERIMENTS: Mapping[str, Experiment] = {
    "iserte-rojek": lambda options: iserte_rojek(options.figures),
    "chiesi": lambda options: chiesi(options.figures),
    "cirrus": lambda options: cirrus(data_folder(options), options.figures, progress),
    "posner": lambda options: posner(
        data_folder(options),
        options.seeds or ["S0"],
        options.jobs or os.cpu_count() or 1,
        options.figures,
        progress,
    ),
}


def add_reproduce(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms reproduce``."""
    command.add_argument("name", metavar="|".join(EXPERIMENTS))
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
        "--jobs", type=_count, metavar="N", help="simulations of posner at once (default: cores)"
    )


def reproduce(arguments: argparse.Namespace) -> int:
    """``rms reproduce NAME``: exit 1 if what must hold does not."""
    if arguments.name not in EXPERIMENTS:
        raise CommandError(
            f"expected an experiment of {', '.join(EXPERIMENTS)}, got {arguments.name!r}"
        )
    for option in ("seeds", "jobs"):
        if arguments.name != "posner" and getattr(arguments, option) is not None:
            raise CommandError(
                f"expected --{option} with posner only, got it with {arguments.name}"
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


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected names like S0,S1, each once, got {text!r}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


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
