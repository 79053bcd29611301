"""mpiexec: the variables it leaves in the environment, and how it is ended."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
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
