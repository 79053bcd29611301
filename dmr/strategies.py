"""Which way of resizing is used here."""

from __future__ import annotations

from mpi4py import MPI

from dmr.errors import UsageError
from dmr.world import Runtime

STRATEGIES = ("auto", "spawn", "warm", "merge", "restart")


def choose(wanted: str, runtime: Runtime, *, asked: bool) -> str:
    """Return the strategy to use for ``wanted``.

    Args:
        asked: whether the run itself asks for resizes, so that it should be told now if none
            can be had.

    Raises:
        UsageError: it does not exist, or cannot be had here.
    """
    if wanted not in STRATEGIES:
        raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {wanted!r}")
    managed = runtime.manager is not None
    if wanted == "warm" and not managed:
        raise UsageError("strategy warm needs a launcher; under bare mpirun expected spawn")
    if asked and not runtime.launched and runtime.mpiexec is None:
        raise UsageError(
            "no mpiexec found to start a new world with; expected one on PATH "
            "(pip install 'malleable-mpi[mpich]' brings it)"
        )
    if wanted != "auto":
        return wanted
    found = runtime.known
    if found is not None:
        chosen: str = found["strategies"]["rms" if managed else "mpirun"]["auto"]
        return chosen
    # Nobody has asked dmr probe: what the two libraries are known to do.
    if not managed:
        return "spawn"
    return "warm" if MPI.get_vendor()[0] == "MPICH" else "spawn"
