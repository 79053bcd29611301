"""mpiexec's command line, by which ranks are started with and without the RMS."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

LAUNCHERS = ("srun", "mpirun", "mpiexec")
"""Programs by which a script starts a parallel program."""


def find_mpiexec(path: str | None) -> str | None:
    """Return the mpiexec on a search path (None: this process's), or the one beside this Python."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=path) or shutil.which("mpiexec", path=beside)


def is_program(name: str, folder: Path, path: str) -> bool:
    """Return whether a program is executable, in a working folder or on a search path."""
    if shutil.which(str(folder / name)):
        return True
    return "/" not in name and shutil.which(name, path=path) is not None


def mpiexec_command(
    mpiexec: str, ranks: int, command: Sequence[str], where: Sequence[str] = ()
) -> list[str]:
    """Return the command line that starts ranks of a command."""
    needed = ["--oversubscribe"] if is_open_mpi(mpiexec) else []
    if needed and os.geteuid() == 0:
        needed.append("--allow-run-as-root")
    return [mpiexec, *needed, *where, "-n", str(ranks), *command]


def is_open_mpi(mpiexec: str) -> bool:
    """Return whether a mpiexec is Open MPI's, whose launches cannot connect."""
    places = {Path(mpiexec).parent, Path(mpiexec).resolve().parent}
    return any((place / "ompi_info").exists() for place in places)
