"""The first lines of a spawned rank: ``python bootstrap.py PROGRAM ...``.

MPI_Comm_spawn has no deadline and waits until every new rank has initialised MPI. So that comes
first here, before any part of the program that may fail or hang; from then on the old world waits
with deadlines. What follows is the program as Python itself would run it.

This file is run by its path: ``python -m`` would put the working folder, which other users may be
able to write to, first on ``sys.path``, and ``-P`` would change the program's ``sys.path``.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def bootstrap_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts a program again by way of this module."""
    options, program = split_command(command[1:])
    return (sys.executable, *options, __file__, *program)


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split Python's own options from ``-m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at][:2] not in ("-m", "-c"):
        at += 2 if words[at] in OPTIONS_WITH_VALUE else 1
    return list(words[:at]), list(words[at:])


def main(words: Sequence[str]) -> None:
    """Run a program as ``__main__``."""
    kind, *rest = words
    if not sys.flags.safe_path:  # replaces this file's folder by the program's
        own = {"-m": str(Path.cwd()), "-c": ""}
        sys.path[0] = own.get(kind, str(Path(kind).resolve().parent))

    from mpi4py import MPI  # initialises MPI

    from dmr.boot.environment import rendezvous_of

    rendezvous = rendezvous_of(os.environ)
    if rendezvous is not None:
        rendezvous.watch(MPI.COMM_WORLD.rank)
    sys.orig_argv = [sys.executable, *split_command(sys.orig_argv[1:])[0], *words]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(words)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
