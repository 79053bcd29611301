"""``dmr probe``: tries each function of MPI that a resize needs, with a deadline.

Results are kept in the user's cache folder, one file for each host and MPI library; strategy
``auto`` depends on them.
"""

from __future__ import annotations

import contextlib
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dmr.boot.environment import probe_file
from dmr.boot.mpiexec import clean_environment, end_process
from rms.wire.files import write_whole
from rms.wire.mpiexec import mpiexec_command

DEADLINE_S = 60.0
MEET_S = 5.0
"""Timeout of MPI_Comm_connect: that of Open MPI waits forever, whatever its own timeout."""

_VERSION = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    print("MPI", MPI.Get_library_version().splitlines()[0].strip(" \\t\\0"))
"""

_SPAWN = """
import sys
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    inter = MPI.COMM_WORLD.Spawn(sys.executable, ["-P", sys.argv[0]], maxprocs=1)
    assert inter.recv(source=0) == "here"
    inter.Disconnect()
    print("WORKS")
else:
    parent.send("here", dest=0)
    parent.Disconnect()
"""

_ACCEPT = """
import pathlib, sys
from mpi4py import MPI
file = pathlib.Path(sys.argv[1])
port = MPI.Open_port()
part = file.with_suffix(".part")
part.write_text(port)
part.rename(file)
inter = MPI.COMM_WORLD.Accept(port)
inter.send("here", dest=0)
inter.Disconnect()
"""

_CONNECT = """
import os, pathlib, sys, threading, time
from mpi4py import MPI
file = pathlib.Path(sys.argv[1])
while not file.exists():
    time.sleep(0.01)
late = threading.Timer(float(sys.argv[2]), os._exit, (1,))
late.daemon = True
late.start()
inter = MPI.COMM_WORLD.Connect(file.read_text())
assert inter.recv(source=0) == "here"
inter.Disconnect()
late.cancel()
print("WORKS")
"""

_GPU = """
import cupy
from mpi4py import MPI
comm = MPI.COMM_WORLD
array = cupy.full(1000, comm.rank)
if comm.rank == 0:
    comm.Send(array, 1)
else:
    comm.Recv(array, 0)
    cupy.cuda.get_current_stream().synchronize()
    assert int(array.sum()) == 0
    print("WORKS")
"""


def probe(mpiexec: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Try everything; return the JSON of ``dmr probe`` and keep it for ``auto``."""
    output = _try(mpiexec, _VERSION, env)
    version = output.partition("MPI ")[2].splitlines()[0] if "MPI " in output else ""
    result: dict[str, Any] = {
        "mpi": version,
        "launcher": mpiexec,
        "host": platform.node(),
        "launches": bool(version),
        "spawn": "WORKS" in _try(mpiexec, _SPAWN, env),
        "accept_connect": _meets(mpiexec, env),
        "gpu_aware": "WORKS" in _try(mpiexec, _GPU, env, ranks=2),
    }
    result["strategies"] = strategies(result)
    path = probe_file(mpiexec, env)
    with contextlib.suppress(OSError):  # the next run tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(result, indent=2) + "\n")
    return result


def strategies(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strategy of ``auto`` with and without an RMS, and the reason."""
    connects, spawns = result["accept_connect"], result["spawn"]
    if connects:
        managed = "warm", "two launches can meet by accept/connect"
    elif spawns:
        managed = "spawn", "two launches cannot meet by accept/connect, spawn works"
    else:
        managed = "restart", "neither accept/connect nor spawn works"
    bare = ("spawn", "spawn works") if spawns else ("restart", "spawn does not work; mpiexec does")
    return {
        "rms": {"auto": managed[0], "why": managed[1]},
        "mpirun": {"auto": bare[0], "why": bare[1]},
    }


def _try(mpiexec: str, program: str, env: Mapping[str, str], ranks: int = 1) -> str:
    """Return the output of a program under the launcher, "" if it failed or was late."""
    with tempfile.TemporaryDirectory(prefix="dmr-") as folder:
        script = Path(folder) / "probe.py"
        script.write_text(program)
        words = [sys.executable, "-P", str(script)]
        return _end(_start(mpiexec_command(mpiexec, ranks, words), env), DEADLINE_S)


def _meets(mpiexec: str, env: Mapping[str, str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="dmr-") as folder:
        port = Path(folder) / "port"
        both = []
        for name, program in (("accept", _ACCEPT), ("connect", _CONNECT)):
            script = Path(folder) / f"{name}.py"
            script.write_text(program)
            words = [sys.executable, "-P", str(script), str(port), str(MEET_S)]
            both.append(_start(mpiexec_command(mpiexec, 1, words), env))
        try:
            return "WORKS" in _end(both[1], DEADLINE_S)
        finally:
            _end(both[0], 1.0)


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _end(process: subprocess.Popen[str], deadline_s: float) -> str:
    """Return the output of a launcher's ranks; end them if they are late, and on any error."""
    with process:
        try:
            return process.communicate(timeout=deadline_s)[0]
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if process.poll() is None:
                end_process(process)  # the launcher ends its ranks


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the result as lines."""
    yes = {True: "works", False: "does not work here"}
    lines = [
        f"MPI             {result['mpi'] or 'none that starts'}",
        f"launcher        {result['launcher']}",
        f"spawn           {yes[result['spawn']]}",
        f"accept/connect  {yes[result['accept_connect']]}",
        f"GPU-aware MPI   {yes[result['gpu_aware']]}",
    ]
    for where, name in (("rms", "under an RMS"), ("mpirun", "bare mpirun")):
        chosen = result["strategies"][where]
        lines.append(f"auto, {name:13s} {chosen['auto']}: {chosen['why']}")
    return lines
