"""Which way of resizing is used here."""

from __future__ import annotations

from mpi4py import MPI

from dmr.boot.environment import Runtime
from dmr.errors import UsageError, print_line

STRATEGIES = ("auto", "spawn", "warm", "merge", "restart")


def choose(wanted: str, runtime: Runtime, *, scripted: bool) -> str:
    """Return the strategy to use for ``wanted``.

    Args:
        scripted: whether the run itself plans resizes, so that it is refused at once where none
            can be had.

    Raises:
        UsageError: it does not exist, or cannot be had here.
    """
    if wanted not in STRATEGIES:
        raise UsageError(f"expected a strategy of {', '.join(STRATEGIES)}, got {wanted!r}")
    managed = runtime.manager is not None
    if wanted == "warm" and not managed:
        raise UsageError("strategy warm needs a launcher; under bare mpirun expected spawn")
    if scripted and not runtime.launched and runtime.mpiexec is None:
        raise UsageError(
            "no mpiexec found to start a new world with; expected one on PATH "
            "(pip install 'malleable-mpi[mpich]' brings it)"
        )
    best = _best(runtime)
    if wanted == "auto":
        return best
    obstacle = _obstacle(wanted, runtime)
    if obstacle is None:
        return wanted
    if runtime.comm.rank == 0 and runtime.rendezvous is None and runtime.parent is None:
        words = f"strategy {wanted} cannot be had here ({obstacle}); using {best}"
        print_line(words, runtime.log)
    return best


def accept_connect_works(runtime: Runtime) -> bool:
    """Return whether two launches can meet by accept/connect here."""
    if runtime.probed is not None:
        return bool(runtime.probed["accept_connect"])
    return MPI.get_vendor()[0] == "MPICH"


def _best(runtime: Runtime) -> str:
    managed = runtime.manager is not None
    if runtime.launches:
        return "merge"  # which lets go of whole launches without a new world
    if runtime.probed is not None:
        chosen: str = runtime.probed["strategies"]["rms" if managed else "mpirun"]["auto"]
        return chosen
    # Nobody has asked dmr probe: what the two libraries are known to do.
    return "warm" if managed and accept_connect_works(runtime) else "spawn"


def _obstacle(wanted: str, runtime: Runtime) -> str | None:
    """Return what keeps a strategy from working here, None if nothing is known to."""
    joins = "accept/connect" if runtime.manager is not None else "spawn"
    needed = {"warm": "accept/connect", "spawn": "spawn", "merge": joins}.get(wanted)
    if needed == "accept/connect" and not accept_connect_works(runtime):
        return "two launches of this MPI cannot meet by accept/connect"
    if needed == "spawn" and runtime.probed is not None and not runtime.probed["spawn"]:
        return "MPI_Comm_spawn does not work"
    return None
