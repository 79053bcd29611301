"""Tracers on velocities from a file, under plain mpirun, through resizes and a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from processes import MPDATA, MPIEXEC, Mpirun, Refused, Run

GRID = (24, 20, 6)
RANDOM = ["--case", "random", "--seed", "7", "--grid", "24", "20", "6", "--steps", "12"]
WANTED = [*RANDOM, "--tracers", "2", "--velocities", "v.h5"]


def write(path: Path, largest: float = 0.1, times: tuple[float, ...] = (0, 3, 4.5, 12)) -> None:
    """Write a flow that is periodic in space and rough in time."""
    rng = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        file["time"] = np.array(times, float)
        for axis in range(3):
            shape = [n + (a == axis) for a, n in enumerate(GRID)]
            c = rng.uniform(-largest, largest, (len(times), *shape))
            ends = c.swapaxes(1, axis + 1)
            ends[:, -1] = ends[:, 0]
            file[f"c{axis + 1}"] = c


def figures(result: dict[str, Any]) -> list[Any]:
    return [result["sha256"], result["tracers"], result["mass_initial"], result["max"]]


def test_resizes_and_a_restart_leave_the_same_bits(
    run: Run, mpdata_run: Mpirun, tmp_path: Path
) -> None:
    write(tmp_path / "v.h5")
    steady = mpdata_run(1, *WANTED, "--overlap", "off")
    moved = mpdata_run(2, *WANTED, "--resize-at", "5:1,9:2")
    assert [(r["step"], r["from"], r["to"]) for r in moved["resizes"]] == [(5, 2, 1), (9, 1, 2)]
    assert all(r["bytes"] == 2 * 24 * 20 * 6 * 8 for r in moved["resizes"])
    assert figures(moved) == figures(steady)
    saving = ["--checkpoint-every", "5", "--checkpoint-dir", "saved"]
    assert figures(mpdata_run(1, *WANTED, *saving)) == figures(steady)
    (tmp_path / "saved" / "checkpoint-0000000010.h5").unlink()
    again = run(
        MPIEXEC, "-n", "2", *MPDATA, "run", *WANTED, *saving, "--restart", "--json", "again.json"
    )
    assert "checkpoint-0000000005.h5 at step 5" in again.stdout, again.stdout + again.stderr
    assert figures(json.loads((tmp_path / "again.json").read_text())) == figures(steady)


def test_checkpoints_of_other_velocities_are_refused(mpdata_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "v.h5")
    saving = ["--checkpoint-every", "5", "--checkpoint-dir", "saved", "--restart"]
    assert mpdata_here("run", *WANTED, *saving).returncode == 0
    write(tmp_path / "v.h5", largest=0.05)
    other = mpdata_here("run", *WANTED, *saving)
    assert other.returncode == 2 and "expected velocities" in other.stderr
    fewer = mpdata_here("run", *RANDOM, "--velocities", "v.h5", *saving)
    assert fewer.returncode == 2 and "expected tracers 1, got a checkpoint" in fewer.stderr


def test_what_a_run_with_tracers_reports(mpdata_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "v.h5")
    files = ["--output", "out.h5", "--output-every", "5", "--final", "final.npy"]
    done = mpdata_here("run", *WANTED, *files, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "ns per cell, tracer and step" in done.stdout and "psi2: min" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [set(tracer) for tracer in result["tracers"]] == [
        {"name", "mass_initial", "mass_final", "min", "max", "sha256"}
    ] * 2
    assert [tracer["name"] for tracer in result["tracers"]] == ["psi", "psi2"]
    assert result["options"]["tracers"] == 2 and result["options"]["velocities"]
    final = np.load(tmp_path / "final.npy")
    assert final.shape == (2, *GRID)
    assert [float(f.min()) for f in final] == [tracer["min"] for tracer in result["tracers"]]
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file["step"]) == [0, 5, 10, 12]
        assert np.array_equal(file["psi2"][-1], final[1])
    assert mpdata_here("plot", "out.h5").returncode == 0


BAD = [
    (["--velocities", "none.h5"], "expected a velocity file, got none.h5, which does not exist"),
    (["--velocities", "v.h5", "--courant", "0.5"], "expected no --courant with it, got 0.5"),
    (["--velocities", "v.h5", "--steps", "13"], "expected times covering 0.5 to 12.5"),
    (["--velocities", "v.h5", "--grid", "24", "20", "5"], "expected c1 of shape (4, 25, 20, 5)"),
    (["--velocities", "wild.h5"], "unstable: expected outgoing |c| / h of at most 1"),
    (["--velocities", "v.h5", "--case", "cone", "--days", "3"], "expected no --days with it"),
    (["--tracers", "0"], "expected at least 1 tracer in --tracers, got 0"),
    (["--seed", str(2**63 - 1), "--tracers", "2"], "expected seeds up to 2^63 - 1"),
    (["--overlap", "maybe"], "expected an overlap of auto, on, off, got 'maybe'"),
]


@pytest.mark.parametrize(("extra", "expected"), BAD)
def test_one_sentence_and_exit_2(
    refused: Refused, tmp_path: Path, extra: list[str], expected: str
) -> None:
    write(tmp_path / "v.h5")
    write(tmp_path / "wild.h5", largest=2.0)
    assert expected in refused("run", *RANDOM, *extra, "--json", "x.json")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.wide
@pytest.mark.parametrize("extra, expected", [BAD[4]])
def test_two_ranks_say_it_once(run: Run, tmp_path: Path, extra: list[str], expected: str) -> None:
    write(tmp_path / "wild.h5", largest=2.0)
    done = run(MPIEXEC, "-n", "2", *MPDATA, "run", *RANDOM, *extra)
    assert done.returncode == 2
    assert expected in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def huge(path: Path, value: float, courant: float = 0.02, **more: np.ndarray) -> None:
    psi = np.zeros((8, 8, 4))
    psi[3:5, 3, 1] = value
    faces = {
        f"c{axis + 1}": np.full([n + (a == axis) for a, n in enumerate(psi.shape)], courant)
        for axis in range(3)
    }
    np.savez(path, psi=psi, **faces, **more)


def test_single_precision_has_a_limit(mpdata_here: Run, tmp_path: Path) -> None:
    huge(tmp_path / "in.npz", 2e12)
    wanted = ["run", "--input", "in.npz", "--steps", "2", "--backend", "numpy"]
    done = mpdata_here(*wanted, "--dtype", "f4")
    assert done.returncode == 2
    assert "expected |psi| of at most 1e+12 in f4" in done.stderr
    for fine in (["--dtype", "f8"], ["--dtype", "f4", "--iterations", "1"]):
        assert mpdata_here(*wanted, *fine).returncode == 0


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.covering(0)
def test_a_field_that_is_not_finite_at_the_end_is_a_failure(
    run: Run, tmp_path: Path, ranks: int, backend: str
) -> None:
    # Without the limiter the field grows near the stability limit, by 1e18 in 60 steps.
    huge(tmp_path / "in.npz", 1e149, courant=0.33)
    wanted = ["--input", "in.npz", "--steps", "900", "--gauge", "infinite", "--no-limiter"]
    wanted += ["--backend", backend]
    files = ["--json", "x.json", "--final", "x.npy", "--completion", "record.json"]
    done = run(MPIEXEC, "-n", str(ranks), *MPDATA, "run", *wanted, *files)
    assert done.returncode == 1
    assert "expected finite values at the end, got NaN or inf in" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", "record.json"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["state"], record["exit_code"]) == ("FAILED", 1)
