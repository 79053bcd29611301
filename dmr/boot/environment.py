"""What surrounds the process that this library runs in: launcher, environment, RMS, slot."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mpi4py import MPI

from dmr.boot import bootstrap, probe
from dmr.boot.rendezvous import Rendezvous
from dmr.errors import UsageError, raise_on_all
from dmr.wire.rms import Manager
from rms.wire.files import OutputError, remove_output, write_whole
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    COOLDOWN_VARIABLE,
    LAUNCHES_VARIABLE,
    PER_NODE,
    SLOTS_VARIABLE,
    WORLD_VARIABLE,
)
from rms.wire.mpiexec import find_mpiexec

LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Set by mpiexec (MPICH, Open MPI, Slurm) for the ranks it starts."""


SCRIPT_VARIABLE = "DMR_RESIZE_AT"
"""Scripted resizes for a program that plans none, ``STEP:RANKS[,STEP:RANKS...]``."""

STRATEGY_VARIABLE = "DMR_STRATEGY"
"""How such resizes are done, where the plan says ``auto``."""

BACKEND_VARIABLE = "DMR_BACKEND"
"""Set for the ranks of a world that is to compute in another way than the one before."""


COLLECTIVE_VARIABLE, SIGTERM_VARIABLE = "DMR_COLLECTIVE_S", "DMR_SIGTERM_S"
"""Timeouts (``Plan.collective_s``, ``Plan.sigterm_s``)."""

CHECK_VARIABLE = "DMR_CHECK"
"""Where to write what the run is at its end (:mod:`dmr.check.digests`), for ``dmr check``."""


@dataclass
class Runtime:
    """What the library needs of the process it runs in, read once in ``__main__``.

    Attributes:
        comm: all ranks of this world; after strategy merge those of the merged one, so that its
            rank 0 is one.
        parent: the world that spawned this one, or None.
        command: how to start this program again, for the next world.
        respawn: the same by way of :mod:`dmr.boot.bootstrap`, for MPI_Comm_spawn.
        clock: monotonic seconds.
        launched: whether mpiexec started this process.
        mpiexec: path of mpiexec, or None where there is none.
        completion: where to write the completion record, or None.
        rendezvous: why this world was booted beside a running one, or None.
        launch: number of the launch that started this process, among those of the job's step.
        slot: the slot of this rank, "" where nobody gave it one.
        on_gpus: whether every rank of this world has a GPU for its slot.
        probed: the result of ``dmr probe`` on the host of rank 0, if it was run; broadcast to all
            ranks when a run is entered.
        manager: the RMS that launched this world, or None under bare mpirun.
        log: where rank 0 reports.
        output: where it prints for the application (``run.say``), where that is elsewhere.
        script: resizes that the surroundings ask for (``DMR_RESIZE_AT``), or "".
        strategy: how, where the plan leaves it open (``DMR_STRATEGY``).
        backend: the backend that this world was started to have, "" where nobody named one.
        uncoordinated_copies: other copies of this program that srun started without
            telling MPI of them.
        check: where to write hashes of all that travels when the run ends, or None.
        cooldown: seconds between resizes that the surroundings ask for (``DMR_COOLDOWN``), or "".
        limits: the timeouts ``DMR_COLLECTIVE_S`` and ``DMR_SIGTERM_S``, "" where not set.
        launches: those that this world has started as, and ranks of each; () where it is one.
        launch_comm: the ranks of this process's own launch; ``comm`` where None.
    """

    comm: MPI.Intracomm
    parent: MPI.Intercomm | None
    command: tuple[str, ...]
    clock: Callable[[], float]
    launched: bool
    mpiexec: str | None
    completion: Path | None
    log: TextIO
    manager: Manager | None = None
    respawn: tuple[str, ...] = ()
    rendezvous: Rendezvous | None = None
    launch: int = 0
    slot: str = ""
    probed: Mapping[str, Any] | None = None
    script: str = ""
    strategy: str = "auto"
    backend: str = ""
    cooldown: str = ""
    limits: tuple[str, str] = ("", "")
    uncoordinated_copies: int = 0
    on_gpus: bool = False
    check: Path | None = None
    output: TextIO | None = None
    launches: tuple[tuple[int, int], ...] = ()
    launch_comm: MPI.Intracomm | None = None

    def backend_of(self, host: str, device: str) -> str:
        """Return the backend that this world is to compute with.

        The one named for it (``STEP:RANKS@BACKEND``), else ``device`` where the RMS has given a
        GPU to every rank, else ``host``.
        """
        return self.backend or (device if self.on_gpus else host)

    def refuse(self, why: str) -> None:
        """Say why this world cannot take over the running one that waits for it, if one does.

        For what a program finds wrong before it reaches :func:`dmr.run` (an input file that has
        changed or is gone, say); call it on any rank, then leave.
        """
        if self.rendezvous is not None and self.comm.rank == 0:
            self.rendezvous.refuse(why, self.manager)

    @property
    def slot_kind(self) -> str:
        """What this rank's slot is: ``cpu``, ``core`` or ``gpu``; "" where nobody gave it one."""
        return kind_of(self.slot)

    def forget_completion(self) -> None:
        """Delete the record of an earlier run (collective): without one, this run has died.

        Raises:
            UsageError: it cannot be deleted.
        """
        if self.completion is None or self.rendezvous is not None:
            return
        problem = None
        if self.comm.rank == 0:
            try:
                remove_output(self.completion)
            except OutputError as error:
                problem = str(error)
        raise_on_all(self.comm, problem)

    @classmethod
    def here(cls, comm: MPI.Intracomm, env: Mapping[str, str] = os.environ) -> Runtime:
        """Read the surroundings of this process; call it from ``__main__`` only."""
        slots = env.get(SLOTS_VARIABLE, "").split()
        slot = slots[comm.rank] if comm.rank < len(slots) else ""
        rendezvous = Rendezvous.from_env(env)
        if rendezvous is None or kind_of(slot) == "gpu":
            bind(slot)  # else once it is called: until then it keeps off the running world's core
        manager = Manager.from_env(env)
        if rendezvous is not None:
            rendezvous.watch(comm.rank, manager)
        launches, launch_comm = launches_of(env), comm
        if launches:
            comm = assemble(comm, launches, env)
        parent = MPI.Comm.Get_parent()
        record = env.get(COMPLETION_VARIABLE)
        mpiexec = find_mpiexec(env.get("PATH"))
        launched = any(name in env for name in LAUNCHER_VARIABLES)
        alone = not launched and comm.size == 1 and parent == MPI.COMM_NULL
        return cls(
            comm=comm,
            parent=None if parent == MPI.COMM_NULL else parent,
            command=(sys.executable, *sys.orig_argv[1:]),
            respawn=bootstrap.bootstrap_command(sys.orig_argv),
            clock=time.perf_counter,
            launched=launched,
            uncoordinated_copies=int(env.get("SLURM_STEP_NUM_TASKS", "1")) - 1 if alone else 0,
            mpiexec=mpiexec,
            probed=probe.cached_result(mpiexec, env) if comm.rank == 0 else None,
            completion=Path(record) if record else None,
            check=Path(env[CHECK_VARIABLE]) if env.get(CHECK_VARIABLE) else None,
            log=sys.stderr if env.get(CHECK_VARIABLE) else sys.stdout,
            output=sys.stdout,
            manager=manager,
            rendezvous=rendezvous,
            slot=slot,
            script=env.get(SCRIPT_VARIABLE, ""),
            strategy=env.get(STRATEGY_VARIABLE, "auto"),
            backend=env.get(BACKEND_VARIABLE, ""),
            cooldown=env.get(COOLDOWN_VARIABLE, ""),
            limits=(env.get(COLLECTIVE_VARIABLE, ""), env.get(SIGTERM_VARIABLE, "")),
            on_gpus=bool(slots) and all("gpu:" in one for one in slots),
            launch=int(env.get(WORLD_VARIABLE, "0")),
            launches=launches,
            launch_comm=launch_comm,
        )


def kind_of(slot: str) -> str:
    """Return ``cpu``, ``core`` or ``gpu``, "" of no slot."""
    return slot.rpartition("/")[2].partition(":")[0]


def bind(slot: str) -> None:
    """Keep this process on its slot.

    ``cpu:N`` is a core by its number, ``core:N`` the N-th of those this process may use,
    ``gpu:N`` a device (before CUDA starts); ``HOST/`` may go before.
    """
    kind, number = kind_of(slot), slot.rpartition(":")[2]
    if kind == "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = number
    elif kind in ("cpu", "core") and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        core = int(number) if kind == "cpu" else allowed[int(number) % len(allowed)]
        os.sched_setaffinity(0, {core})


# --- ranks of several launches become one world -------------------------------------------------
#
# MPI's launchers end all ranks of a launch together, so a node can be given back without a new
# world only if its ranks are a launch of their own. The launches meet in pairs, then pairs of
# those, by MPI_Comm_accept and MPI_Comm_connect; they find each other by files beside the
# completion record.

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
