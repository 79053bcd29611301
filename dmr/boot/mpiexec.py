"""mpiexec: its command line, the variables it leaves in the environment, how it is ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAUNCHER_PREFIXES = (
    "PMI_",
    "PMIX_",
    "PRTE_",
    "HYDI_",
    "MPI_LOCAL",
    "OMPI_COMM",
    "OMPI_APP",
    "OMPI_UNIV",
)
"""How variables begin that a launcher sets for its ranks; another launcher must not see them."""

END_S = 5.0


def mpiexec_command(mpiexec: str) -> list[str]:
    """Return the command that starts ranks: mpiexec, and the options that it needs here."""
    if (Path(mpiexec).resolve().parent / "ompi_info").exists():
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [mpiexec, "--oversubscribe", *root]
    return [mpiexec]


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of the launcher that started this process."""
    return {key: value for key, value in env.items() if not key.startswith(LAUNCHER_PREFIXES)}


def end_process(child: subprocess.Popen[Any]) -> None:
    """End a launcher and, by it, its ranks."""
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
