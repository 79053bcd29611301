"""``rms reproduce NAME``: a published experiment, paper against ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rms.studies.chiesi import chiesi
from rms.studies.iserte_rojek import iserte_rojek
from rms.wire.terminal import CommandError, publish

Experiment = Callable[[Path | None], tuple[dict[str, Any], list[str], bool]]
"""Given a folder for figures, or None: the JSON, the tables, whether all that must hold does."""

EXPERIMENTS: Mapping[str, Experiment] = {"iserte-rojek": iserte_rojek, "chiesi": chiesi}


def add_reproduce(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms reproduce``."""
    command.add_argument("name", metavar="iserte-rojek|chiesi")
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
    result, lines, good = EXPERIMENTS[arguments.name](arguments.figures)
    publish(arguments.json, result, lines)
    return 0 if good else 1
