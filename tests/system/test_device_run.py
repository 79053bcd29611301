"""``--backend cupy`` from the command line, with a stand-in for CuPy (tests/stand_in)."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cuda_on_host import compiler
from device_runs import CUPY, RANDOM, environment
from processes import MPDATA, MPIEXEC, Run
from selection import all_wide_but

Device = Callable[..., Any]

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture
def on_device(run: Run, tmp_path: Path) -> Device:
    """Run ``mpdata run`` on ranks of a machine with some GPUs; return its JSON, or its error."""

    def call(ranks: int, *arguments: str, gpus: int = 3, **env: str) -> Any:
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        command = [MPIEXEC, "-n", str(ranks), *MPDATA, "run", *RANDOM, *arguments]
        done = run(*command, "--json", str(out), env=environment(gpus, **env))
        if done.returncode == 0:
            return json.loads(out.read_text())
        assert done.returncode == 2 and not out.exists(), done.stdout + done.stderr
        assert done.stderr.startswith("mpdata: error: ") and done.stderr.count("\n") == 1
        return done.stderr.removeprefix("mpdata: error: ").strip()

    return call


def test_resizes_with_device_fields_leave_the_same_bits(on_device: Device) -> None:
    steady = on_device(1, *CUPY)
    assert steady["backend"] == "cupy" and steady["resizes"] == []
    moved = on_device(2, *CUPY, "--resize-at", "4:3,9:1")
    assert [(r["step"], r["from"], r["to"]) for r in moved["resizes"]] == [(4, 2, 3), (9, 3, 1)]
    assert all(r["bytes"] == 24 * 20 * 6 * 8 for r in moved["resizes"])
    assert all(r["stall_s"] >= r["move_s"] > 0 for r in moved["resizes"])
    assert moved["sha256"] == steady["sha256"] and moved["ns_per_cell_step"] > 0
    plain = on_device(1, "--backend", "numba")
    assert plain["backend"] == "numba" and plain["sha256"] == steady["sha256"]


def test_auto_takes_cupy_where_a_gpu_answers_and_says_which_it_was(on_device: Device) -> None:
    assert on_device(1, gpus=0)["backend"] == "numba"
    # The next world takes what this one took.
    moved = on_device(1, "--resize-at", "5:2")
    assert moved["backend"] == "cupy" and len(moved["resizes"]) == 1


@pytest.mark.wide
def test_ranks_share_a_gpu_when_asked_to(on_device: Device) -> None:
    said = on_device(2, *CUPY, gpus=1)
    assert said == (
        "expected a GPU for every rank of a node, got 2 ranks and 1 GPU; --share-gpu lets ranks "
        "share, --backend numba needs none"
    )
    assert on_device(2, *CUPY, "--share-gpu", gpus=1)["ranks"] == 2


@pytest.mark.wide
def test_a_resize_to_more_ranks_than_gpus_goes_back(on_device: Device) -> None:
    steady = on_device(1, *CUPY, gpus=1)
    stayed = on_device(1, *CUPY, "--resize-at", "4:2", gpus=1)
    assert stayed["resizes"] == [] and stayed["ranks"] == 1
    assert stayed["sha256"] == steady["sha256"]


@pytest.mark.parametrize(
    ("gpus", "env", "wanted"),
    [
        (0, {}, "backend cupy: expected an NVIDIA GPU and its driver, got none (cudaErrorNoDevice"),
        (1, {"CUDA_VISIBLE_DEVICES": ""}, "backend cupy: expected an NVIDIA GPU and its driver"),
        (1, {"STAND_IN_GPU_BYTES": "99999"}, "expected 0.000"),
    ],
    ids=["no GPU", "none visible", "no memory"],
)
def test_what_is_missing_is_said_in_one_sentence(
    on_device: Device, gpus: int, env: dict[str, str], wanted: str
) -> None:
    assert on_device(1, *CUPY, gpus=gpus, **env).startswith(wanted)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
@pytest.mark.parametrize("command", all_wide_but(["run", "verify", "bench"], "run"))
def test_a_missing_cupy_is_said_with_what_to_install(run: Run, command: str) -> None:
    done = run(*MPDATA, command, *CUPY)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "mpdata: error: backend cupy: expected CuPy, got none; pip install "
        "'malleable-mpi[cuda12]' (or [cuda13])\n"
    )


def test_checkpoints_of_device_fields_go_on_elsewhere(on_device: Device, run: Run) -> None:
    saving = ["--checkpoint-every", "5", "--checkpoint-dir", "saved"]
    whole = on_device(1, *CUPY, *saving)
    for backend in ("cupy", "numba", "numpy"):
        again = on_device(2, "--backend", backend, "--checkpoint-dir", "saved", "--restart")
        assert (again["backend"], again["sha256"]) == (backend, whole["sha256"])


@pytest.mark.wide
def test_verify_and_bench_on_a_device(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    case = ["--case", "periodic-3x3", "--json", str(out)]
    done = run(*MPDATA, "verify", *CUPY, *case, env=environment(1))
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["backend"] == "cupy"
    small = ["--grid", "4", "4", "4", "--rounds", "1", "--no-peer", "--json", str(out)]
    done = run(*MPDATA, "bench", *CUPY, *small, env=environment(1))
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["limits"]["f8"]["device"] == "Stand-in GPU"
    assert {(row["backend"], row["dtype"]) for row in result["rows"]} == {
        ("cupy", "f8"),
        ("cupy", "f4"),
    }
