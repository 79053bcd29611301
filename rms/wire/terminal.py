"""What all three commands share: one-sentence errors, ``--json``, ``--version``, exit codes.

Standard library only, so that ``dmr`` and ``mpdata`` can use it on compute nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rms._version import __version__

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class Parser(argparse.ArgumentParser):
    """Prints one sentence for bad usage, once however many ranks parse it, and exits 2."""

    def error(self, message: str) -> NoReturn:
        """Print what was expected and got."""
        if is_first_rank(os.environ):
            print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def parser(prog: str, description: str) -> Parser:
    """Return a command's parser with ``--version``."""
    top = Parser(prog=prog, description=description, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{prog} {__version__}")
    return top


def add_common(command: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    command.add_argument("--json", metavar="FILE", help="write the result as JSON (- for stdout)")
    command.add_argument("-v", "--verbose", action="store_true", help="say more")


def is_first_rank(env: Mapping[str, str]) -> bool:
    """Return whether this process should speak, judged by what its launcher set."""
    return all(env.get(name, "0") == "0" for name in RANK_VARIABLES)


def emit_json(target: str, result: Any) -> None:
    """Write a result to a file, whole or not at all, or to standard output for ``-``."""
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target).resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)  # a pipe or device is written to, not replaced
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


def check_writable(target: str | Path | None, option: str) -> str | None:
    """Return a sentence if a file could not be written there, before any work is done."""
    if target is None or target == "-":
        return None
    if Path(target).is_dir():
        return f"expected a file for {option}, got {target}, which is a directory"
    folder = Path(target).absolute().parent
    if not folder.is_dir():
        return f"expected an existing folder for {option}, got {target}"
    if not os.access(folder, os.W_OK):
        return f"expected a writable folder for {option}, got {target}"
    return None
