"""Launchers: what they want to be told, what they leave in the environment, how they are ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAUNCHED = ("PMI_", "PMIX_", "PRTE_", "HYDI_", "MPI_LOCAL", "OMPI_COMM", "OMPI_APP", "OMPI_UNIV")
"""Beginnings of what a launcher sets for its ranks: not for those of another launcher."""

END_S = 5.0


def launcher(mpiexec: str) -> list[str]:
    """Return a launcher with what it wants to be told."""
    if (Path(mpiexec).resolve().parent / "ompi_info").exists():
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [mpiexec, "--oversubscribe", *root]
    return [mpiexec]


def clean(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what the launcher of this process has put there."""
    return {key: value for key, value in env.items() if not key.startswith(LAUNCHED)}


def end(child: subprocess.Popen[Any]) -> None:
    """End a launcher and, by it, its ranks."""
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
