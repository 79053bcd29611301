"""A job that the RMS moves from a core to a GPU and back: NumPy in the role of the GPU's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon import LocalRms, Rms, closing
from faulty_jobs import FAULTY
from processes import Mpirun, Refused
from selection import all_wide_but

RANDOM = ["--case", "random", "--seed", "7", "--grid", "24", "20", "8", "--every", "2"]
STEPS = ["--steps", "600"]
NODES = """[[nodes]]
name = "core[1-2]"
[[nodes]]
name = "card"
gpus = 1
"""


class Mixed(LocalRms):
    """Two nodes of one core each, and one with a GPU."""

    nodes_text = NODES


@pytest.fixture
def rms() -> Iterator[Rms]:
    with closing(Mixed(3, "--policy", "fifo")) as found:
        yield found


def submit(rms: Rms, *more: str) -> str:
    outs = ["--json", "out.json", "--final", "final.npy"]
    words = [*FAULTY, "none", "run", *RANDOM, *STEPS, "--backend", "numba,numpy", *outs, *more]
    sizes = ["--nodes", "1-3", "--preferred", "1"]
    job = rms.submit(" ".join(["mpirun", *words]), "--mode", "malleable", *sizes)
    rms.running(job)
    return job


def resizes(rms: Rms, job: str) -> list[tuple[int, int]]:
    return [(row["from"], row["to"]) for row in rms.row(job)["resizes"]]


def resized(rms: Rms, job: str, *nodes: str) -> None:
    before = len(resizes(rms, job))
    rms.ask("resize", job, str(len(nodes)), "--on", ",".join(nodes))
    rms.until(lambda: len(resizes(rms, job)) == before + 1, f"resize to {nodes}")
    rms.until(lambda: rms.row(job)["nodes"] == list(nodes), f"job on {nodes}")


def completed(rms: Rms, job: str) -> tuple[dict[str, object], np.ndarray]:
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job) + rms.said()
    rms.nothing_left()
    return json.loads((rms.work / "out.json").read_text()), np.load(rms.work / "final.npy")


@pytest.mark.parametrize("strategy", all_wide_but(["warm", "merge", "restart"], "merge"))
def test_from_cores_to_a_gpu_and_back(
    rms: Rms, mpdata_run: Mpirun, tmp_path: Path, strategy: str
) -> None:
    final = ["--final", str(tmp_path / "steady.npy")]
    steady = mpdata_run(1, *RANDOM, *STEPS, "--backend", "numba", *final)
    a = np.load(tmp_path / "steady.npy")
    job = submit(rms, "--strategy", strategy)
    resized(rms, job, "core1", "core2")
    resized(rms, job, "card")
    resized(rms, job, "core2")
    found, b = completed(rms, job)
    assert resizes(rms, job) == [(1, 2), (2, 1), (1, 1)]
    # Ranks that stay would compute with the backend they have: where it changes, none does.
    used = [strategy] + ["warm" if strategy == "merge" else strategy] * 2
    assert [row["strategy"] for row in rms.row(job)["resizes"]] == used
    assert found["backend"] == "numba" and found["ranks"] == 1
    # Some steps were NumPy's.
    assert found["sha256"] == steady["sha256"] and a.tobytes() == b.tobytes()


@pytest.mark.wide
def test_the_last_world_is_on_the_gpu(rms: Rms) -> None:
    job = submit(rms)
    resized(rms, job, "card")
    found, _ = completed(rms, job)
    assert found["backend"] == "numpy" and resizes(rms, job) == [(1, 1)]


@pytest.mark.wide
def test_a_world_of_both_computes_as_on_cores(rms: Rms, mpdata_run: Mpirun) -> None:
    steady = mpdata_run(1, *RANDOM, *STEPS, "--backend", "numba")
    job = submit(rms)
    resized(rms, job, "core1", "card")
    found, _ = completed(rms, job)
    assert found["backend"] == "numba" and found["sha256"] == steady["sha256"]


@pytest.mark.parametrize("names", ["numba,", "auto,numpy", "numba,auto", "numba,numpy,cupy"])
def test_other_lists_of_backends_are_refused(refused: Refused, names: str) -> None:
    assert "expected a backend" in refused("run", *RANDOM, *STEPS, "--backend", names)
