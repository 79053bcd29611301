"""How the old world starts a new one without an RMS."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from mpi4py import MPI

from dmr.boot.bootstrap import bootstrap_command
from dmr.boot.environment import BACKEND_VARIABLE, Runtime
from dmr.boot.mpiexec import clean_environment, end_process
from dmr.errors import RolledBackError
from dmr.plan import NextWorld
from dmr.wire.channel import LOOPBACK, ChannelError, ControlChannel, Listener
from rms.wire.messages import JOIN_VARIABLE, LISTENER_VARIABLE, SLOTS_VARIABLE
from rms.wire.mpiexec import host_options, mpiexec_command

HOSTS_VARIABLES = {
    "HYDRA_HOST_FILE",
    "PRTE_MCA_prte_default_hostfile",
    "SLURM_JOB_ID",
    "PBS_NODEFILE",
    "PE_HOSTFILE",
    "LSB_HOSTS",
}
"""Variables from which mpiexec takes its hosts."""

POLL_S = 0.1
"""Interval of the checks that a started mpiexec still runs."""


def spawn(
    runtime: Runtime,
    comm: MPI.Intracomm,
    wanted: NextWorld,
    stack: contextlib.ExitStack,
    boot_s: float,
) -> tuple[MPI.Intercomm, Callable[[], ControlChannel]]:
    """Start ranks by MPI_Comm_spawn (collective); strategy merge starts the missing ones only.

    Returns:
        The inter-communicator to the new ranks, and a function by which rank 0 meets them.

    The call cannot be cancelled: if it does not return within ``boot_s``, the job ends. New ranks
    start by way of :mod:`dmr.boot.bootstrap`, so it returns as soon as Python and MPI are up.
    """
    ranks = wanted.ranks - (comm.size if wanted.strategy == "merge" else 0)
    slots = wanted.slots[-ranks:]
    listener = None
    if comm.rank == 0:
        listener = _listener(runtime)
        stack.callback(listener.close)
    # Spawn cannot set the environment; env(1) can.
    settings = [f"{LISTENER_VARIABLE}={'' if listener is None else listener.address}"]
    if slots:
        settings.append(f"{SLOTS_VARIABLE}={' '.join(slots)}")
    if backend := wanted.backend or runtime.backend:
        settings.append(f"{BACKEND_VARIABLE}={backend}")
    if MPI.get_vendor()[0] == "Open MPI":  # which takes no variable to other hosts by itself
        kept = clean_environment(os.environ)
        names = {word.partition("=")[0] for word in settings} | {"PWD", "OLDPWD", "HOSTNAME"}
        settings += [f"{n}={kept[n]}" for n in kept if n.isidentifier() and n not in names]
    late = f"MPI_Comm_spawn did not return within {boot_s:g} s and cannot be taken back"
    timer = threading.Timer(boot_s, end_all_ranks, (late,))
    timer.daemon = True
    info = MPI.Info.Create()
    try:
        if not runtime.launched:
            _put_mpiexec_on_path(runtime.mpiexec)
        info.Set("wdir", str(Path.cwd()))
        if hosts := hosts_of(slots):
            info.Set("hosts", hosts)
        arguments = ["-u", JOIN_VARIABLE, *settings, *bootstrap_command(runtime.command)]
        if comm.rank == 0:
            timer.start()
        inter = comm.Spawn("env", arguments, maxprocs=ranks, info=info, root=0)
    except MPI.Exception as error:
        raise RolledBackError(f"MPI_Comm_spawn failed: {error.Get_error_string()}") from None
    finally:
        timer.cancel()
        info.Free()

    def wait() -> ControlChannel:
        if listener is None:
            raise RuntimeError("expected rank 0 to wait")
        try:
            return listener.accept(boot_s)
        except ChannelError:
            raise ChannelError(f"the new world was not ready within {boot_s:g} s") from None

    return inter, wait


def _listener(runtime: Runtime) -> Listener:
    """Return a listener that a new world on any host of the launcher can connect to."""
    if runtime.manager is not None:
        return Listener(runtime.manager.host)
    return Listener(socket.gethostname() if runtime.launched else LOOPBACK)


def _put_mpiexec_on_path(mpiexec: str | None) -> None:
    """Put mpiexec on PATH: without one, MPI_Comm_spawn of a singleton waits forever."""
    if mpiexec is None:
        raise RolledBackError("expected an mpiexec on PATH to start ranks with, got none")
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("mpiexec", path=path) is None:
        os.environ["PATH"] = f"{path}{os.pathsep}{Path(mpiexec).parent}"


def hosts_of(slots: Sequence[str]) -> str:
    """Return the hosts of slots in the syntax of MPICH, ``n1:2,n3:1``; "" for none."""
    names = [slot.partition("/")[0] for slot in slots if "/" in slot]
    return ",".join(f"{name}:{len(list(ranks))}" for name, ranks in groupby(names))


def host_of_rank(env: Mapping[str, str] = os.environ) -> str:
    """Return the name by which the launcher knows this rank's host."""
    return env.get("PMI_HOSTNAME") or MPI.Get_processor_name()


def start_mpiexec(
    runtime: Runtime,
    wanted: NextWorld,
    stack: contextlib.ExitStack,
    boot_s: float,
    hosts: Sequence[str] = (),
) -> tuple[subprocess.Popen[bytes], ControlChannel]:
    """Rank 0: start a world by an mpiexec of its own, and meet it.

    The process is ended if an error leaves ``stack``.

    Args:
        hosts: of the present ranks. The new ranks start there in turn, unless the environment
            names hosts to mpiexec.

    Raises:
        ChannelError: it could not be started, ended, or was not ready within ``boot_s``.
    """
    if runtime.mpiexec is None:
        raise ChannelError("expected mpiexec on PATH to start the new world, got none")
    listener = _listener(runtime)
    stack.callback(listener.close)
    env = clean_environment(os.environ) | {LISTENER_VARIABLE: listener.address}
    if wanted.backend:
        env[BACKEND_VARIABLE] = wanted.backend
    where: list[str] = []
    if len(set(hosts)) > 1 and not HOSTS_VARIABLES & env.keys():
        where = host_options(runtime.mpiexec, hosts, env)
    command = mpiexec_command(runtime.mpiexec, wanted.ranks, runtime.command, where)
    try:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ChannelError(f"could not start {command[0]}: {error}") from None
    stack.push(lambda kind, *_: end_process(process) if kind is not None else None)
    until = time.monotonic() + boot_s
    while time.monotonic() < until:
        with contextlib.suppress(ChannelError):
            return process, listener.accept(POLL_S)
        if process.poll() is not None:
            raise ChannelError(f"the new world ended with {process.returncode} while it booted")
    raise ChannelError(f"the new world was not ready within {boot_s:g} s")


def end_all_ranks(why: str) -> NoReturn:
    """End this process, and by that its world, where a rank would wait in MPI forever."""
    print(f"error: {why}", file=sys.stderr, flush=True)
    os._exit(1)
