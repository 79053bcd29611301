"""``dmr bench``: one resize of a real field, by the path of a job.

For ``warm``, ``merge`` and ``restart`` a private ``rms serve`` boots the worlds; ``spawn``, and
without the extra ``rms`` also ``merge`` and ``restart``, run under bare mpirun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rms.client.commands import jobs, script_of, submit
from rms.client.connection import ask
from rms.studies.embedded import embedded_daemon, wait_until_over
from rms.wire.mpiexec import find_mpiexec, mpiexec_command
from rms.wire.terminal import extra_installed
from rms.wire.users import OVER, JobRow, Options, ResizeAnswer, ResizeCommand

DEADLINE_S = 300.0
CLUSTER = """name = "bench"
[[nodes]]
name = "n[1-{}]"
cores = 1
power = {{ idle_w = 1.0, static_w = 1.0, dynamic_w = 1.0 }}
"""
DISK_PIECE_BYTES = 2 << 20


class BenchError(Exception):
    """A resize that could not be measured; one sentence."""


def bench(old: int, new: int, mib: int, strategy: str, mpiexec: str | None) -> dict[str, Any]:
    """Measure one resize from ``old`` to ``new`` ranks; return the JSON of ``dmr bench``.

    Raises:
        BenchError: it did not take place, or a cell arrived wrong.
        CommandError: ``warm`` without the extra ``rms``.
    """
    daemon = strategy == "warm" or (strategy != "spawn" and extra_installed("rms"))
    # Before the restart: a virtual machine that gets new memory writes to a disk more slowly.
    rates = disk_rates(Path.cwd(), mib << 20) if strategy == "restart" else {}
    with tempfile.TemporaryDirectory(prefix="dmr-") as name:
        folder = Path(name)
        out = folder / "out.json"
        job = [sys.executable, "-P", "-m", "dmr.bench.program", "--mib", str(mib)]
        job += ["--out", str(out), "--strategy", strategy]
        if not daemon:
            if mpiexec is None:
                raise BenchError("expected mpiexec on PATH or beside python, got none")
            words = _run(mpiexec_command(mpiexec, old, [*job, "--resize-to", str(new)]))
        else:
            words = _resize(folder, job, old, new)
        if not out.exists():
            raise BenchError(f"the resize did not take place: {words or 'no word from the job'}")
        result: dict[str, Any] = json.loads(out.read_text())
    if not result["right"]:
        raise BenchError("cells of the field arrived wrong")
    if result["strategy"] in ("warm", "spawn"):
        result["raw_gb_per_s"] = _plain_rate(old, new, mib, mpiexec, pinned=daemon)
    return result | rates


def _resize(folder: Path, job: Sequence[str], old: int, new: int) -> str:
    """Run the job under a daemon, resize it once it steps; return the end of its output."""
    if old == new != 1:
        raise BenchError("expected another number of ranks, or one rank that moves")
    cluster, out = folder / "cluster.toml", folder / "out.txt"
    cluster.write_text(CLUSTER.format(max(old, new) + (old == new)))
    serving = ["--cluster", str(cluster), "--policy", "fifo"]
    sizes = min(old, new), max(old, new)
    options = Options(nodes=sizes, preferred=old, mode="malleable", output=str(out))
    end = time.monotonic() + DEADLINE_S

    def check(rows: Sequence[JobRow]) -> None:
        if time.monotonic() > end:
            raise BenchError(f"expected an end within {DEADLINE_S:g} s")

    with embedded_daemon(serving, folder, local=True, env=as_installed(os.environ)) as server:
        env = as_installed(os.environ)
        number = submit(server, script_of(job), "bench", options, env).ids[0]
        while (row := jobs(server, number)[0]).step == 0 and row.state not in OVER:
            check([row])
            time.sleep(0.05)
        if row.state not in OVER:
            time.sleep(0.5)  # let its cores settle
            target = ResizeCommand(number, new, on="n2" if old == new else None)
            answer = ask(ResizeAnswer, server, "POST", "/resize", target)
            if answer.decision not in ("Resize", "Waits"):
                raise BenchError(f"not resized: {answer.reason}")
        (row,) = wait_until_over(server, check)
    return row.reason or out.read_text()[-300:]


def _plain_rate(old: int, new: int, mib: int, mpiexec: str | None, *, pinned: bool) -> float:
    """Return the rate of plain sends of as many bytes between as many ranks, in GB/s.

    Args:
        pinned: whether the ranks of each world have cores of their own, in turn.

    Raises:
        BenchError: it could not be measured.
    """
    mpiexec = mpiexec or find_mpiexec(None)
    if mpiexec is None:
        return 0.0
    cores = sorted(os.sched_getaffinity(0)) if pinned and hasattr(os, "sched_getaffinity") else []
    first = 1 if old == new else 0  # a rank that moves goes to another node
    places = [*range(old), *range(first, first + new)]
    names = ",".join(str(cores[place % len(cores)]) for place in places) if cores else "-"
    with tempfile.TemporaryDirectory(prefix="dmr-") as folder:
        out = Path(folder) / "out.json"
        sends = [sys.executable, "-P", "-m", "dmr.bench.program", "--mib", str(mib)]
        sends += ["--out", str(out), "--plain", str(old), str(new), names]
        words = _run(mpiexec_command(mpiexec, old + new, sends))
        if not out.exists():
            raise BenchError(f"plain sends could not be measured: {words or 'no word from them'}")
        return float(json.loads(out.read_text())["raw_gb_per_s"])


def disk_rates(folder: Path, size: int) -> dict[str, float]:
    """Return the rates at which a plain file of so many bytes is written and read there, in GB/s.

    Written with ``fsync``; read as a restart reads, from what the system has kept of it. The
    memory on this side is there beforehand. The better of two rounds counts.
    """
    values = np.ones(size, np.uint8).data
    pieces = [values[at : at + DISK_PIECE_BYTES] for at in range(0, size, DISK_PIECE_BYTES)]
    took: dict[str, list[float]] = {"disk_write_gb_per_s": [], "disk_read_gb_per_s": []}
    for _ in range(2):
        with tempfile.TemporaryFile(dir=folder) as file:
            handle = file.fileno()
            begun = time.perf_counter()
            for piece in pieces:
                os.write(handle, piece)
            os.fsync(handle)
            written = time.perf_counter()
            os.lseek(handle, 0, os.SEEK_SET)
            for piece in pieces:
                os.readv(handle, [piece])
            took["disk_write_gb_per_s"].append(written - begun)
            took["disk_read_gb_per_s"].append(time.perf_counter() - written)
    return {key: size / min(seconds) / 1e9 for key, seconds in took.items()}


def as_installed(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which modules are compiled once, as an installation has them.

    With byte code switched off every rank would compile every module of a checkout again.
    """
    return {key: value for key, value in env.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _run(command: list[str]) -> str:
    env = as_installed(os.environ)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"expected an end within {DEADLINE_S:g} s") from None
    return (done.stderr or done.stdout)[-300:].strip()
