"""mpiexec's command line, by which ranks are started with and without the RMS."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
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


def host_options(mpiexec: str, hosts: Sequence[str], env: Iterable[str]) -> list[str]:
    """Return the options that start ranks on hosts in turn; one named twice takes two ranks.

    Args:
        env: names of the variables that all ranks are to have.
    """
    counts = ",".join(f"{host}:{len(list(same))}" for host, same in groupby(hosts))
    if not is_open_mpi(mpiexec):
        return ["-hosts", counts]
    # Open MPI fills the first host otherwise, and takes no variable to other hosts by itself.
    names = [name for name in env if name.isidentifier()]
    exports = [word for name in names for word in ("-x", name)]
    return ["--host", counts, "--map-by", "node:oversubscribe", *exports]


def is_open_mpi(mpiexec: str) -> bool:
    """Return whether a mpiexec is Open MPI's, whose launches cannot connect."""
    places = {Path(mpiexec).parent, Path(mpiexec).resolve().parent}
    return any((place / "ompi_info").exists() for place in places)
