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
from rms.wire.terminal import CommandError, publish, refuse_on

Experiment = Callable[[argparse.Namespace], tuple[dict[str, Any], list[str], bool]]
"""Given the options: the JSON, the tables, whether all that must hold does."""

EXPERIMENTS: Mapping[str, Experiment] = {
    "iserte-rojek": lambda options: iserte_rojek(options.figures),
    "chiesi": lambda options: chiesi(options.figures),
    "cirrus": lambda options: cirrus(data_folder(options), options.figures, progress),
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


def reproduce(arguments: argparse.Namespace) -> int:
    """``rms reproduce NAME``: exit 1 if what must hold does not."""
    if arguments.name not in EXPERIMENTS:
        raise CommandError(
            f"expected an experiment of {', '.join(EXPERIMENTS)}, got {arguments.name!r}"
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
