"""Ranks of several launches become one world, where a job starts as a launch for each node.

MPI's launchers end all ranks of a launch together, so a node can be given back without a new world
only if its ranks are a launch of their own. The launches meet in pairs, then pairs of those, by
MPI_Comm_accept and MPI_Comm_connect; they find each other by files beside the completion record.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from mpi4py import MPI

from dmr.errors import UsageError
from rms.wire.files import write_whole
from rms.wire.messages import COMPLETION_VARIABLE, LAUNCHES_VARIABLE, PER_NODE, WORLD_VARIABLE

MEET_S = 60.0
"""How long launches wait for one another: those of a busy machine start seconds apart."""

LOOK_S = 2e-3


def launches_of(env: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """Return the launches, and ranks of each, that this process's job starts as; () for one.

    Raises:
        UsageError: a user has asked for something else.
    """
    given = env.get(LAUNCHES_VARIABLE, "")
    if given in ("", PER_NODE):  # asked of an RMS, if there is one that can
        return ()
    if not all(re.fullmatch(r"\d+:\d+", word) for word in given.split()):
        raise UsageError(f"expected {LAUNCHES_VARIABLE}={PER_NODE}, or none, got {given!r}")
    pairs = (word.split(":") for word in given.split())
    return tuple((int(launch), int(ranks)) for launch, ranks in pairs)


def assemble(
    comm: MPI.Intracomm, launches: tuple[tuple[int, int], ...], env: Mapping[str, str]
) -> MPI.Intracomm:
    """Return all ranks of ``launches`` in their order (collective over all of them).

    Args:
        comm: the ranks of this launch.

    Raises:
        TimeoutError: another launch did not come.
    """
    own = [launch for launch, _ in launches].index(int(env[WORLD_VARIABLE]))
    folder, whole, reach = Path(env[COMPLETION_VARIABLE]).parent, comm, 1
    while reach < len(launches):
        first = own - own % (2 * reach)  # of those that are one from here on
        if first + reach < len(launches):
            file = folder / f"port-{launches[first][0]}-{reach}"
            connects = own >= first + reach
            inter = _connect(whole, file) if connects else _accept(whole, file)
            merged = inter.Merge(high=connects)
            inter.Disconnect()
            if whole != comm:
                whole.Disconnect()
            whole = merged
        reach *= 2
    return whole


def _accept(comm: MPI.Intracomm, file: Path) -> MPI.Intercomm:
    port = ""
    if comm.rank == 0:
        port = MPI.Open_port()
        write_whole(file, port.encode())
    try:
        return comm.Accept(port)
    finally:
        if comm.rank == 0:
            MPI.Close_port(port)
            file.unlink(missing_ok=True)


def _connect(comm: MPI.Intracomm, file: Path) -> MPI.Intercomm:
    port = None
    if comm.rank == 0:
        until = time.monotonic() + MEET_S
        while not file.exists() and time.monotonic() < until:
            time.sleep(LOOK_S)
        port = file.read_text() if file.exists() else None
    port = comm.bcast(port)
    if port is None:
        raise TimeoutError(f"expected the job's other launches within {MEET_S:g} s, got none")
    return comm.Connect(port)
