"""``mpdata run --backend cupy`` on a GPU: ranks, resizes and files, all that share one GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, program

from mpdata.errors import InputError
from mpdata.numerics.cuda.device import load_cupy
from rms.wire.marks import environment

try:
    load_cupy()
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)
try:
    from mpi4py import MPI  # noqa: F401 - whether it loads
except (ImportError, RuntimeError) as error:
    pytest.skip(f"no MPI: {error}", allow_module_level=True)

BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")
RANDOM = ["--case", "random", "--seed", "7", "--grid", "96", "72", "40", "--steps", "24"]
ON_GPU = ["--backend", "cupy", "--share-gpu"]
DEADLINE_S = 120
MpdataRun = Callable[..., Any]

pytestmark = [
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec on PATH"),
    pytest.mark.promise("gpu"),
]


@pytest.fixture
def mpdata_run(tmp_path: Path) -> MpdataRun:
    def call(ranks: int, *arguments: str) -> Any:
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        command = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "mpdata", "run"]
        command += [*RANDOM, *arguments, "--json", str(out)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(out.read_text())

    return call


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("boundary", ["periodic", "open,wall,fixed:1.5"])
def test_the_bits_of_numba_on_any_number_of_ranks(
    mpdata_run: MpdataRun, boundary: str, dtype: str
) -> None:
    wanted = ["--boundary", boundary, "--dtype", dtype]
    alone = mpdata_run(1, *wanted, *ON_GPU)
    assert alone["backend"] == "cupy"
    for ranks in (2, 4):
        assert mpdata_run(ranks, *wanted, *ON_GPU)["sha256"] == alone["sha256"]
    assert mpdata_run(2, *wanted, *ON_GPU, "--overlap", "off")["sha256"] == alone["sha256"]
    assert mpdata_run(1, *wanted, "--backend", "numba")["sha256"] == alone["sha256"]


def test_resizes_with_device_fields_leave_the_same_bits(mpdata_run: MpdataRun) -> None:
    steady = mpdata_run(1, *ON_GPU, "--tracers", "2")
    moved = mpdata_run(2, *ON_GPU, "--tracers", "2", "--resize-at", "8:3,16:1")
    assert [(r["step"], r["from"], r["to"]) for r in moved["resizes"]] == [(8, 2, 3), (16, 3, 1)]
    assert all(r["stall_s"] >= r["move_s"] > 0 for r in moved["resizes"])
    assert moved["sha256"] == steady["sha256"]


def test_checkpoints_go_on_on_another_number_of_ranks(mpdata_run: MpdataRun) -> None:
    whole = mpdata_run(2, *ON_GPU, "--checkpoint-every", "10", "--checkpoint-dir", "saved")
    again = mpdata_run(1, *ON_GPU, "--checkpoint-dir", "saved", "--restart")
    assert again["sha256"] == whole["sha256"]


def test_a_killed_rank_leaves_the_same_bits(mpdata_run: MpdataRun, tmp_path: Path) -> None:
    steady = mpdata_run(2, *ON_GPU, "--tracers", "2")
    out, log = tmp_path / "out.json", tmp_path / "log"
    out.unlink()
    command = [sys.executable, "-m", "dmr", "run", "-n", "2", "--every", "1", "--"]
    command += [*program("paced"), str(ROOT / "mpdata" / "__main__.py"), "run", *RANDOM, *ON_GPU]
    command += ["--tracers", "2", "--json", str(out)]
    env = {**os.environ, "PACE_S": "0.25", "PACE_LATE_S": "0.25", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, cwd=tmp_path, env=env, **streams) as process:
            watch = threading.Timer(DEADLINE_S, process.terminate)
            watch.start()
            while process.poll() is None and "copies in memory: " not in log.read_text():
                time.sleep(0.05)
            for path in Path("/proc").glob("[0-9]*"):
                words = environment(int(path.name)) or []
                if process.poll() is None and {b"PMI_RANK=1", b"PACE_S=0.25"} <= {*words}:
                    os.kill(int(path.name), signal.SIGKILL)
            process.wait()
            watch.cancel()
    assert process.returncode == 0, log.read_text()
    (step,) = re.findall(r"going on from the copy at step (\d+)", log.read_text())
    assert 0 <= int(step) < 24
    result = json.loads(out.read_text())
    assert (result["backend"], result["sha256"]) == ("cupy", steady["sha256"])
    assert [one["sha256"] for one in result["tracers"]] == [
        one["sha256"] for one in steady["tracers"]
    ]


def test_more_ranks_than_gpus_are_refused(tmp_path: Path) -> None:
    ranks = load_cupy().cuda.runtime.getDeviceCount() + 1
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m", "mpdata", "run", *RANDOM]
    done = subprocess.run(
        [*command, "--backend", "cupy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2 and "expected a GPU for every rank of a node" in done.stderr
