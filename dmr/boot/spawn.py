"""How the old world brings up a new one by itself, where no RMS does it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from mpi4py import MPI

from dmr import checkpoint
from dmr.boot.environment import BACKEND_VARIABLE
from dmr.boot.mpiexec import clean, end, launcher
from dmr.progress import OpenResize
from dmr.wire.channel import LOOPBACK, ChannelError, ControlChannel, Listener
from rms.wire.messages import JOIN_VARIABLE, LISTENER_VARIABLE, SLOTS_VARIABLE

if TYPE_CHECKING:
    from dmr.application import Plan, Run
    from dmr.resize.source import Target


def spawn(
    run: Run, target: Target, ranks: int, stack: contextlib.ExitStack, boot_s: float
) -> tuple[MPI.Intercomm, Callable[[], ControlChannel]]:
    """Start ``ranks`` ranks by MPI_Comm_spawn (collective); return how rank 0 meets them, too.

    The call itself cannot be taken back: should it not return within ``boot_s``, the job ends with
    a word instead of hanging for good. New ranks start by way of :mod:`dmr.boot.bootstrap`, so
    it returns as soon as Python and MPI are up.

    Raises:
        RolledBackError: MPI refuses.
    """
    from dmr.resize.source import RolledBackError

    runtime, comm = run.runtime, run.world.internal_comm
    listener = None
    machines = set(comm.allgather(MPI.Get_processor_name()))
    if comm.rank == 0:
        near = LOOPBACK if len(machines) == 1 else MPI.Get_processor_name()
        listener = Listener(near if runtime.manager is None else runtime.manager.host)
    if listener is not None:
        stack.callback(listener.close)
    # Spawn cannot set the environment; env(1) can.
    setting = [f"{LISTENER_VARIABLE}={'' if listener is None else listener.address}"]
    if target.slots:
        setting.append(f"{SLOTS_VARIABLE}={' '.join(target.slots[-ranks:])}")
    backend = target.backend or runtime.backend
    if backend:
        setting.append(f"{BACKEND_VARIABLE}={backend}")
    info = MPI.Info.Create()
    words = f"MPI_Comm_spawn did not return within {boot_s:g} s and cannot be taken back"
    watch = threading.Timer(boot_s, give_up, (words,))
    watch.daemon = True
    if comm.rank == 0:
        watch.start()
    try:
        info.Set("wdir", str(Path.cwd()))
        where = placed(target.slots[-ranks:])
        if where:
            info.Set("hosts", where)
        arguments = ["-u", JOIN_VARIABLE, *setting, *runtime.respawn]
        inter = comm.Spawn("env", arguments, maxprocs=ranks, info=info, root=0)
    except MPI.Exception as error:
        raise RolledBackError(f"MPI_Comm_spawn failed: {error.Get_error_string()}") from None
    finally:
        watch.cancel()
        info.Free()

    def wait() -> ControlChannel:
        if listener is None:
            raise RuntimeError("expected rank 0 to wait")
        try:
            return listener.accept(boot_s)
        except ChannelError:
            raise ChannelError(f"the new world was not ready within {boot_s:g} s") from None

    return inter, wait


def placed(slots: Sequence[str]) -> str:
    """Return the hosts of slots as MPICH's launcher takes them: ``n1:2,n3:1``; "" of none."""
    names = [slot.partition("/")[0] for slot in slots if "/" in slot]
    return ",".join(f"{name}:{len(list(each))}" for name, each in groupby(names))


def nested(
    run: Run, target: Target, stack: contextlib.ExitStack, boot_s: float
) -> Callable[[], ControlChannel]:
    """Return how rank 0 starts a world by an mpiexec of its own, and waits for it."""

    def start() -> ControlChannel:
        runtime = run.runtime
        if runtime.mpiexec is None:
            raise ChannelError("no mpiexec found to start the new world with")
        listener = Listener(LOOPBACK)
        stack.callback(listener.close)
        env = clean(os.environ) | {LISTENER_VARIABLE: listener.address}
        if target.backend:
            env[BACKEND_VARIABLE] = target.backend
        command = [*launcher(runtime.mpiexec), "-n", str(target.ranks), *runtime.command]
        try:
            child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise ChannelError(f"could not start {command[0]}: {error}") from None
        stack.push(lambda kind, *_: end(child) if kind is not None else None)
        run.child = child
        until = time.monotonic() + boot_s
        while time.monotonic() < until:
            with contextlib.suppress(ChannelError):
                return listener.accept(0.1)
            if child.poll() is not None:
                raise ChannelError(f"the new world ended with {child.returncode} while it booted")
        raise ChannelError(f"the new world was not ready within {boot_s:g} s")

    return start


def outlive(run: Run, cost: OpenResize) -> None:
    """Old ranks: leave; the one that is the parent of the new world's mpiexec waits for that."""
    if cost.strategy != "restart" or run.runtime.manager is not None:
        return
    with contextlib.suppress(MPI.Exception):
        MPI.Finalize()
    if run.child is not None:
        from dmr.resize.source import Left

        raise Left(run.child.wait())


def store(run: Run, plan: Plan, stack: contextlib.ExitStack) -> tuple[str, Path | None]:
    """Write a checkpoint for the new world (collective); return its folder and path.

    Without a folder for checkpoints it is one beside the program, gone when the resize is over.
    """
    schedule = plan.checkpoint
    if schedule is None:
        name = run.world.internal_comm.bcast(f".dmr-{secrets.token_hex(4)}")
        schedule = checkpoint.Schedule(Path.cwd() / name)
        if run.world.rank == 0:
            stack.callback(shutil.rmtree, schedule.directory, ignore_errors=True)
    path = checkpoint.write(
        schedule, run.world, run.fields, run.progress, plan.options, run.runtime.log
    )
    return str(schedule.directory), path


def give_up(words: str) -> None:
    """End all ranks with a word, where one is caught in MPI for good."""
    print(f"error: {words}", file=sys.stderr, flush=True)
    os._exit(1)
