"""The surroundings of this process: launcher, environment variables, RMS, slot, MPI library."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dmr.errors import UsageError, raise_on_all
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    JOB_VARIABLE,
    JOIN_VARIABLE,
    LAUNCHES_VARIABLE,
    LISTENER_VARIABLE,
    MARK_VARIABLE,
    PER_NODE,
    RUN_VARIABLE,
    SERVER_VARIABLE,
    SLOTS_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_VARIABLE,
)
from rms.wire.mpiexec import find_mpiexec

if TYPE_CHECKING:
    from mpi4py import MPI

    from dmr.boot.rendezvous import Rendezvous
    from dmr.wire.rms import Manager

LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Set by mpiexec (MPICH, Open MPI, Slurm) for the ranks it starts."""

SCRIPT_VARIABLE = "DMR_RESIZE_AT"
"""Scripted resizes for a program that plans none, ``STEP:RANKS[,STEP:RANKS...]``."""

STRATEGY_VARIABLE = "DMR_STRATEGY"
"""Their strategy, where the plan has ``auto``."""

BACKEND_VARIABLE = "DMR_BACKEND"
"""Backend of a new world that changes it."""

COLLECTIVE_VARIABLE, SIGTERM_VARIABLE = "DMR_COLLECTIVE_S", "DMR_SIGTERM_S"
"""Timeouts (``Plan.collective_s``, ``Plan.sigterm_s``)."""

RATE_VARIABLE = "DMR_MEMORY_GB_S"
"""Rate at which a rank sends its copies to partners, in GB/s, at most (``Plan.partner_gb_s``)."""

CHECK_VARIABLE = "DMR_CHECK"
"""File for the hashes of the data at the end of a run (:mod:`dmr.check.digests`)."""

CHECK_STEPS_VARIABLE = "DMR_CHECK_STEPS"
"""Steps after which ``dmr check`` has a run stop: one without resizes has done far fewer."""


@dataclass
class Runtime:
    """The surroundings of a process, read once in ``__main__``.

    Attributes:
        comm: all ranks of this world; after strategy merge, those of the merged world.
        parent: the world that spawned this one, or None.
        command: starts this program again, for the next world.
        clock: monotonic seconds.
        launched: whether mpiexec started this process.
        mpiexec: path of mpiexec, or None.
        completion: file for the completion record, or None.
        log: stream for the reports of rank 0.
        output: stream for ``run.say``, if it differs from ``log``.
        manager: the RMS that launched this world, or None under bare mpirun.
        rendezvous: how this world meets the running one that it replaces or joins, or None.
        launch: number of the launch that started this process, among those of the job's step.
        launches: launches that this world started as, and ranks of each; () for a single one.
        launch_comm: the ranks of this process's own launch; None for ``comm``.
        slot: the slot of this rank, "" for none.
        on_gpus: whether every rank of this world has a GPU for its slot.
        probed: the result of ``dmr probe`` on the host of rank 0, or None; a run broadcasts it.
        backend: the backend that this world was started for, "" for any.
        check: file for hashes of the data at the end of the run, or None.
        uncoordinated_copies: other copies of this program that srun started as separate MPI jobs.
        env: the environment variables, for the settings of a run.
    """

    comm: MPI.Intracomm
    parent: MPI.Intercomm | None
    command: tuple[str, ...]
    clock: Callable[[], float]
    launched: bool
    mpiexec: str | None
    completion: Path | None
    log: TextIO
    output: TextIO | None = None
    manager: Manager | None = None
    rendezvous: Rendezvous | None = None
    launch: int = 0
    launches: tuple[tuple[int, int], ...] = ()
    launch_comm: MPI.Intracomm | None = None
    slot: str = ""
    on_gpus: bool = False
    probed: Mapping[str, Any] | None = None
    backend: str = ""
    check: Path | None = None
    uncoordinated_copies: int = 0
    env: Mapping[str, str] = field(default_factory=dict)

    def backend_of(self, host: str, device: str) -> str:
        """Return the backend of this world.

        It is the one of a scripted resize (``STEP:RANKS@BACKEND``), else ``device`` if every rank
        has a GPU for its slot, else ``host``.
        """
        return self.backend or (device if self.on_gpus else host)

    def refuse(self, why: str) -> None:
        """Tell the running world that this new world cannot take over; without one, do nothing.

        It is for errors before :func:`dmr.run`, e.g. an input file that is gone. Any rank may call
        it before it exits.
        """
        if self.rendezvous is not None and self.comm.rank == 0:
            self.rendezvous.refuse(why)

    @property
    def slot_kind(self) -> str:
        """Kind of this rank's slot: ``cpu``, ``core`` or ``gpu``; "" for no slot."""
        return kind_of(self.slot)

    @property
    def run_of_job(self) -> tuple[str, int] | None:
        """The job of an RMS and the number of this run of it, None without an RMS."""
        if self.manager is None:
            return None
        return self.env.get(MARK_VARIABLE, ""), int(self.manager.run)

    def forget_completion(self) -> None:
        """Delete the completion record of an earlier run (collective)."""
        if self.completion is None or self.rendezvous is not None:
            return
        from rms.wire.files import OutputError, remove_output

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
        from mpi4py import MPI

        slots = env.get(SLOTS_VARIABLE, "").split()
        slot = slots[comm.rank] if comm.rank < len(slots) else ""
        rendezvous = rendezvous_of(env)
        if rendezvous is None or kind_of(slot) == "gpu":
            bind(slot)  # else at the header: until then the core is the running world's
        if rendezvous is not None:
            rendezvous.watch(comm.rank)
        launches, launch_comm = launches_of(env), comm
        if launches:
            comm = assemble(comm, launches, env)
        parent = MPI.Comm.Get_parent()
        record, check = env.get(COMPLETION_VARIABLE), env.get(CHECK_VARIABLE)
        mpiexec = find_mpiexec(env.get("PATH"))
        launched = any(name in env for name in LAUNCHER_VARIABLES)
        alone = not launched and comm.size == 1 and parent == MPI.COMM_NULL
        return cls(
            comm=comm,
            parent=None if parent == MPI.COMM_NULL else parent,
            command=(sys.executable, *sys.orig_argv[1:]),
            clock=time.perf_counter,
            launched=launched,
            mpiexec=mpiexec,
            completion=Path(record) if record else None,
            log=sys.stderr if check else sys.stdout,
            output=sys.stdout,
            manager=manager_of(env),
            rendezvous=rendezvous,
            launch=int(env.get(WORLD_VARIABLE, "0")),
            launches=launches,
            launch_comm=launch_comm,
            slot=slot,
            on_gpus=bool(slots) and all("gpu:" in one for one in slots),
            probed=cached_probe(mpiexec, env) if comm.rank == 0 else None,
            backend=env.get(BACKEND_VARIABLE, ""),
            check=Path(check) if check else None,
            uncoordinated_copies=int(env.get("SLURM_STEP_NUM_TASKS", "1")) - 1 if alone else 0,
            env=env,
        )


def rendezvous_of(env: Mapping[str, str]) -> Rendezvous | None:
    """Return how a new world meets the running one, None in the first world of a job."""
    listener, number = env.get(LISTENER_VARIABLE, ""), env.get(JOIN_VARIABLE, "")
    if not listener and not number:
        return None
    from dmr.boot.rendezvous import Rendezvous

    launch = int(env.get(WORLD_VARIABLE, "0"))
    return Rendezvous(int(number or 0), launch, listener, manager_of(env))


def manager_of(env: Mapping[str, str]) -> Manager | None:
    """Return the RMS that launched this world, None under bare mpirun."""
    if not {SLOTS_VARIABLE, SERVER_VARIABLE, JOB_VARIABLE} <= env.keys():
        return None
    from dmr.wire.rms import Manager

    token, run = env.get(TOKEN_VARIABLE, ""), env.get(RUN_VARIABLE, "0")
    return Manager(env[SERVER_VARIABLE], env[JOB_VARIABLE], token, run)


def cached_probe(mpiexec: str | None, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the result of ``dmr probe`` for this host and launcher, None if it has not run."""
    if mpiexec is None:
        return None
    try:
        result: dict[str, Any] = json.loads(probe_file(mpiexec, env).read_text())
    except (OSError, ValueError):
        return None
    return result if {"spawn", "accept_connect"} <= result.keys() else None


def probe_file(mpiexec: str, env: Mapping[str, str]) -> Path:
    """Return the path of that result."""
    base = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(mpiexec).resolve()
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    key = sha256(f"{platform.node()}\n{path}\n{stamp}".encode()).hexdigest()[:16]
    return base / "dmr" / f"probe-{key}.json"


def kind_of(slot: str) -> str:
    """Return ``cpu``, ``core`` or ``gpu``, "" for no slot."""
    return slot.rpartition("/")[2].partition(":")[0]


def bind(slot: str) -> None:
    """Bind this process to its slot, ``[HOST/]KIND:N``.

    ``cpu:N`` is core N of the node, ``core:N`` the N-th core that this process may use, ``gpu:N``
    a device (before CUDA starts).
    """
    kind, number = kind_of(slot), slot.rpartition(":")[2]
    if kind == "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = number
    elif kind in ("cpu", "core") and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        core = int(number) if kind == "cpu" else allowed[int(number) % len(allowed)]
        os.sched_setaffinity(0, {core})


# --- memory of this host, as Linux reports it -----------------------------------------------------


def held_on_host() -> int | None:
    """Return the bytes of this process apart from mapped files, None if not known."""
    return _kib(Path("/proc/self/status"), "RssAnon")


def free_on_host(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still have without swapping, None if not known.

    They are free on the node and within the limits of its control groups, such as those of a Slurm
    job with ``ConstrainRAMSpace``; pages of files that the kernel can drop count as free.
    """
    free = [_kib(root / "proc/meminfo", "MemAvailable")]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
                free += [_left_in(one) for one in (group, *group.parents)]
    return min((one for one in free if one is not None), default=None)


def _left_in(group: Path) -> int | None:
    """Return the bytes left of a control group's limit, None if it has none."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, used = ((group / name).read_text().strip() for name in (limit, usage))
            dropped = re.search(rf"^{cached} (\d+)$", (group / "memory.stat").read_text(), re.M)
        except OSError:
            continue
        if most == "max":
            return None
        return max(0, int(most) - int(used) + (int(dropped[1]) if dropped else 0))
    return None


def _kib(path: Path, name: str) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    match = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


# --- ranks of several launches become one world -------------------------------------------------
#
# MPI's launchers end all ranks of a launch together, so a node can be given back without a new
# world only if its ranks are a launch of their own. The launches meet in pairs, then pairs of
# those, by MPI_Comm_accept and MPI_Comm_connect; the port is in a file beside the completion
# record.

MEET_S = 60.0
"""Timeout for another launch: launches of a busy machine start seconds apart."""

LOOK_S = 2e-3


def launches_of(env: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """Return the launches that this job starts as, and ranks of each; () for a single one.

    Raises:
        UsageError: the variable has a value that neither an RMS nor a user may set.
    """
    value = env.get(LAUNCHES_VARIABLE, "")
    if value in ("", PER_NODE):  # a request to the RMS
        return ()
    if not all(re.fullmatch(r"\d+:\d+", word) for word in value.split()):
        raise UsageError(f"expected {LAUNCHES_VARIABLE}={PER_NODE}, or none, got {value!r}")
    pairs = (word.split(":") for word in value.split())
    return tuple((int(launch), int(ranks)) for launch, ranks in pairs)


def assemble(
    comm: MPI.Intracomm, launches: tuple[tuple[int, int], ...], env: Mapping[str, str]
) -> MPI.Intracomm:
    """Return all ranks of ``launches`` in their order (collective over all of them).

    Args:
        comm: the ranks of this launch.
    """
    own = [launch for launch, _ in launches].index(int(env[WORLD_VARIABLE]))
    folder, whole, reach = Path(env[COMPLETION_VARIABLE]).parent, comm, 1
    while reach < len(launches):
        first = own - own % (2 * reach)  # of the launches that are merged from here on
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
    from mpi4py import MPI

    from rms.wire.files import write_whole

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
