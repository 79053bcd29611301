"""mpiexec: its environment variables, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

LAUNCHER_PREFIXES = (
    "PMI_",
    "PMIX_",
    "PRTE_",
    "HYDI_",
    "MPI_LOCAL",
    *("OMPI_APP", "OMPI_ARGV", "OMPI_COMM", "OMPI_FILE", "OMPI_NUM", "OMPI_PARENT"),
    *("OMPI_TOOL", "OMPI_UNIV", "OMPI_WORLD"),
)
"""Prefixes of the variables that a launcher sets for its ranks; another one must not see them."""

HYDRA_VARIABLE = "HYDI_CONTROL_FD"
"""Set by MPICH's mpiexec for its ranks."""

END_S = 5.0


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of the launcher that started this process."""
    return {key: value for key, value in env.items() if not key.startswith(LAUNCHER_PREFIXES)}


def leave_launcher() -> None:
    """End this process alone, while it or others may wait in MPI; return if that fails.

    MPICH's mpiexec ends all ranks, those of the world that spawned this one included, if a process
    ends without MPI_Finalize, which waits for the other ranks. This function sends the launcher
    the message of MPI_Finalize (PMI 1: ``cmd=finalize``).
    """
    if "PMI_FD" not in os.environ or HYDRA_VARIABLE not in os.environ:
        return  # another launcher, which may speak another protocol (srun --mpi=pmi2)
    with contextlib.suppress(OSError, ValueError):
        sock = int(os.environ["PMI_FD"])
        os.write(sock, b"cmd=finalize\n")
        poller = select.poll()  # not select: an application may have many open files
        poller.register(sock, select.POLLIN)
        if poller.poll(1000.0 * END_S) and b"finalize_ack" in os.read(sock, 1024):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(0)


def end_process(child: subprocess.Popen[Any]) -> None:
    """End a launcher and, by it, its ranks."""
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
