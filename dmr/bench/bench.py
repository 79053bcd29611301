"""``dmr bench``: one resize of a real field, by the path that a job would take.

For ``warm``, ``merge`` and ``restart`` a private ``rms serve`` boots the worlds; for ``spawn`` the
job runs under bare mpirun.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rms.wire.mpiexec import find_mpiexec, mpiexec_command

DEADLINE_S = 300.0
POWER = "power = { idle_w = 1.0, static_w = 1.0, dynamic_w = 1.0 }"
FIXED_S = 0.020
"""What the stall of a resize may be beside the move."""

OF_RAW = 0.9
"""Share of the rate of plain sends that the move is to reach."""

OF_DISK = 0.8
"""Share of the disk's own rate that a restart is to reach, writing and reading."""

DISK_PIECE_BYTES = 2 << 20

BOUND = {(1, 1), (1, 2), (2, 1)}
"""Old and new ranks for which that is promised: there, each rank of a world has a core."""


class BenchError(Exception):
    """A resize that could not be measured; one sentence."""


def bench(old: int, new: int, mib: int, strategy: str, mpiexec: str | None) -> dict[str, Any]:
    """Measure one resize from ``old`` to ``new`` ranks; return the JSON of ``dmr bench``.

    Raises:
        BenchError: it did not take place, or a cell arrived wrong.
    """
    # Before the restart: a virtual machine that is given new memory writes to a disk more slowly.
    rates = disk_rates(Path.cwd(), mib << 20) if strategy == "restart" else {}
    with tempfile.TemporaryDirectory(prefix="dmr-") as name:
        folder = Path(name)
        out = folder / "out.json"
        job = [sys.executable, "-P", "-m", "dmr.bench.program", "--mib", str(mib)]
        job += ["--out", str(out), "--strategy", strategy]
        if strategy == "spawn":
            if mpiexec is None:
                raise BenchError("no mpiexec found; expected one on PATH or beside python")
            command = mpiexec_command(mpiexec, old, [*job, "--resize-to", str(new)])
            said = _run(command, as_installed(os.environ))
        else:
            with serving(folder, max(old, new) + (old == new)) as env:
                said = _resized(folder, job, old, new, env)
        if not out.exists():
            raise BenchError(f"the resize did not take place: {said or 'no word from the job'}")
        found: dict[str, Any] = json.loads(out.read_text())
    if not found["right"]:
        raise BenchError("cells of the field arrived wrong")
    if found["strategy"] in ("warm", "spawn"):
        found["raw_gb_per_s"] = _plain_rate(old, new, mib, mpiexec, pinned=strategy != "spawn")
    found |= rates
    bound = bound_s(found)
    return found | {"bound_s": bound, "holds": None if bound is None else found["stall_s"] <= bound}


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
        said = _run(mpiexec_command(mpiexec, old + new, sends), as_installed(os.environ))
        if not out.exists():
            raise BenchError(f"plain sends could not be measured: {said or 'no word from them'}")
        return float(json.loads(out.read_text())["raw_gb_per_s"])


def bound_s(found: Mapping[str, Any]) -> float | None:
    """Return what the stall of a resize should stay within, None where nothing is promised.

    That of a warm one by the rate of plain sends, of a restart by the disk's own. More ranks than
    cores poll against each other; merge and spawn have parts in the stall that no rate tells.
    """
    if found["strategy"] == "restart":
        bytes_gb = found["bytes"] / (OF_DISK * 1e9)
        return FIXED_S + float(
            bytes_gb / found["disk_write_gb_per_s"] + bytes_gb / found["disk_read_gb_per_s"]
        )
    promised = found["strategy"] == "warm" and (found["from"], found["to"]) in BOUND
    if not promised or not found["raw_gb_per_s"]:
        return None
    return FIXED_S + float(found["bytes"] / (OF_RAW * found["raw_gb_per_s"] * 1e9))


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


@contextlib.contextmanager
def serving(folder: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Serve nodes of one core each, cores in turn; yield the clients' environment."""
    cluster = folder / "cluster.toml"
    cluster.write_text(f'name = "bench"\n[[nodes]]\nname = "n[1-{nodes}]"\ncores = 1\n{POWER}\n')
    own = {"RMS_SERVER": f"unix:{folder / 's' / 'socket'}"}
    env = as_installed(os.environ) | own
    command = [sys.executable, "-P", "-m", "rms", "serve", "--state", str(folder / "s")]
    command += ["--cluster", str(cluster), "--policy", "fifo", "--grace", "1", "--with-parent"]
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, env=env)
        try:
            until(lambda: "serving at" in (folder / "log").read_text(), "a serving daemon")
            yield env
        finally:
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _resized(folder: Path, job: list[str], old: int, new: int, env: Mapping[str, str]) -> str:
    """Run the job, resize it once it steps, wait for its end; return what it printed."""
    sizes = f"{min(old, new)}-{max(old, new)}"
    options = ["--mode", "malleable", "--nodes", sizes, "--preferred", str(old)]
    options += ["--output", str(folder / "out.txt"), "--json", "-"]
    number = rms(env, "submit", *options, "--", *job)["id"]
    until(lambda: rms(env, "show", number)[0]["step"] > 0, "a step of the job")
    time.sleep(0.5)  # let its cores settle
    on = ["--on", "n2"] if old == new == 1 else []
    if old == new and not on:
        raise BenchError("expected another number of ranks, or one rank that moves")
    rms(env, "resize", number, str(new), *on)
    _run([sys.executable, "-P", "-m", "rms", "wait", number], env)
    row = rms(env, "show", number)[0]
    return str(row["reason"] or (folder / "out.txt").read_text()[-300:])


def rms(env: Mapping[str, str], *words: str) -> Any:
    """Return the JSON that a client command prints.

    Raises:
        BenchError: it failed; its own sentence.
    """
    command = [sys.executable, "-P", "-m", "rms", *words]
    if words[0] != "submit":
        command += ["--json", "-"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise BenchError(done.stderr.strip().removeprefix("rms: error: "))
    return json.loads(done.stdout)


def _run(command: list[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"expected an end within {DEADLINE_S:g} s") from None
    return (done.stderr or done.stdout)[-300:].strip()


def until(happens: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for something.

    Raises:
        BenchError: it does not happen in time.
    """
    end = time.monotonic() + deadline_s
    while not happens():
        if time.monotonic() > end:
            raise BenchError(f"expected {what} within {deadline_s:g} s")
        time.sleep(0.05)
