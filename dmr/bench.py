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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dmr.mpiexec import launcher

DEADLINE_S = 300.0
POWER = "power = { idle_w = 1.0, static_w = 1.0, dynamic_w = 1.0 }"


class BenchError(Exception):
    """A resize that could not be measured; one sentence."""


def bench(old: int, new: int, mib: int, strategy: str, mpiexec: str | None) -> dict[str, Any]:
    """Measure one resize from ``old`` to ``new`` ranks; return the JSON of ``dmr bench``.

    Raises:
        BenchError: it did not take place, or a cell arrived wrong.
    """
    with tempfile.TemporaryDirectory(prefix="dmr-") as name:
        folder = Path(name)
        out = folder / "out.json"
        job = [sys.executable, "-m", "dmr.benchrun", "--mib", str(mib), "--out", str(out)]
        job += ["--strategy", strategy]
        if strategy == "spawn":
            if mpiexec is None:
                raise BenchError("no mpiexec found; expected one on PATH or beside python")
            command = [*launcher(mpiexec), "-n", str(old), *job, "--resize-to", str(new)]
            said = _run(command, os.environ)
        else:
            with _serving(folder, old, new) as env:
                said = _resized(folder, job, old, new, env)
        if not out.exists():
            raise BenchError(f"the resize did not take place: {said or 'no word from the job'}")
        found: dict[str, Any] = json.loads(out.read_text())
    if not found["right"]:
        raise BenchError("cells of the field arrived wrong")
    return found


@contextlib.contextmanager
def _serving(folder: Path, old: int, new: int) -> Iterator[dict[str, str]]:
    """Serve as many nodes as the resize needs, cores in turn; yield the clients' environment."""
    nodes = max(old, new) + (old == new)
    cluster = folder / "cluster.toml"
    cluster.write_text(f'name = "bench"\n[[nodes]]\nname = "n[1-{nodes}]"\ncores = 1\n{POWER}\n')
    env = {**os.environ, "RMS_SERVER": f"unix:{folder / 's' / 'socket'}"}
    command = [sys.executable, "-m", "rms", "serve", "--state", str(folder / "s")]
    command += ["--cluster", str(cluster), "--policy", "fifo", "--grace", "1", "--with-parent"]
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _until(lambda: "serving at" in (folder / "log").read_text(), "a serving daemon")
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
    number = _rms(env, "submit", *options, "--", *job)["id"]
    _until(lambda: _rms(env, "show", number)[0]["step"] > 0, "a step of the job")
    time.sleep(0.5)  # let its cores settle
    on = ["--on", "n2"] if old == new == 1 else []
    if old == new and not on:
        raise BenchError("expected another number of ranks, or one rank that moves")
    _rms(env, "resize", number, str(new), *on)
    _run([sys.executable, "-m", "rms", "wait", number], env)
    row = _rms(env, "show", number)[0]
    return str(row["reason"] or (folder / "out.txt").read_text()[-300:])


def _rms(env: Mapping[str, str], *words: str) -> Any:
    command = [sys.executable, "-m", "rms", *words]
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


def _until(happens: Any, what: str) -> None:
    end = time.monotonic() + 60.0
    while not happens():
        if time.monotonic() > end:
            raise BenchError(f"expected {what} within 60 s")
        time.sleep(0.05)
