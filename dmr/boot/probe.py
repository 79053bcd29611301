"""``dmr probe``: what this MPI can do here, each thing tried for real with a deadline.

Results are kept in the user's cache folder, one file for each host and MPI library; strategy
``auto`` goes by them.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from dmr.boot.mpiexec import clean_environment, end_process
from rms.wire.files import write_whole
from rms.wire.mpiexec import mpiexec_command

DEADLINE_S = 60.0
MEET_S = 5.0
"""For two ranks that are up; Open MPI's wait for good, whatever timeout they are given."""

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
    said = _try(mpiexec, _VERSION, env)
    version = said.partition("MPI ")[2].splitlines()[0] if "MPI " in said else ""
    found: dict[str, Any] = {
        "mpi": version,
        "launcher": mpiexec,
        "host": platform.node(),
        "launches": bool(version),
        "spawn": "WORKS" in _try(mpiexec, _SPAWN, env),
        "accept_connect": _meets(mpiexec, env),
        "gpu_aware": "WORKS" in _try(mpiexec, _GPU, env, ranks=2),
    }
    found["strategies"] = strategies(found)
    path = cache_file(mpiexec, env)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=2) + "\n")
    except OSError:
        pass  # it is found out again
    return found


def strategies(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``auto`` uses with and without an RMS, and why."""
    connects, spawns = found["accept_connect"], found["spawn"]
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


def cached_result(mpiexec: str | None, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the result kept of an earlier probe of this host and launcher, or None."""
    if mpiexec is None:
        return None
    try:
        found: dict[str, Any] = json.loads(cache_file(mpiexec, env).read_text())
        return found if {"spawn", "accept_connect", "strategies"} <= found.keys() else None
    except (OSError, ValueError):
        return None


def cache_file(mpiexec: str, env: Mapping[str, str]) -> Path:
    """Return where the result for this host and launcher is kept."""
    base = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(mpiexec).resolve()
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    key = sha256(f"{platform.node()}\n{path}\n{stamp}".encode()).hexdigest()[:16]
    return base / "dmr" / f"probe-{key}.json"


def _try(mpiexec: str, program: str, env: Mapping[str, str], ranks: int = 1) -> str:
    """Run a program under the launcher; return what it printed, "" if it failed or was late."""
    with tempfile.TemporaryDirectory(prefix="dmr-") as folder:
        script = Path(folder) / "probe.py"
        script.write_text(textwrap.dedent(program))
        out = _start(mpiexec_command(mpiexec, ranks, [sys.executable, "-P", str(script)]), env)
        return _end(out, DEADLINE_S)


def _meets(mpiexec: str, env: Mapping[str, str]) -> bool:
    """Return whether two launches can meet."""
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
    """Return what a launcher's ranks printed; end it, and them, if it is late or on any error."""
    with process:
        try:
            return process.communicate(timeout=deadline_s)[0]
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if process.poll() is None:
                end_process(process)  # passed on to the ranks


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the result as lines."""
    yes = {True: "works", False: "does not work here"}
    lines = [
        f"MPI             {found['mpi'] or 'none that starts'}",
        f"launcher        {found['launcher']}",
        f"spawn           {yes[found['spawn']]}",
        f"accept/connect  {yes[found['accept_connect']]}",
        f"GPU-aware MPI   {yes[found['gpu_aware']]}",
    ]
    for where, name in (("rms", "under an RMS"), ("mpirun", "bare mpirun")):
        chosen = found["strategies"][where]
        lines.append(f"auto, {name:13s} {chosen['auto']}: {chosen['why']}")
    return lines
