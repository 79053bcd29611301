"""What a user gets wrong: one sentence on standard error, exit 2, nothing half-written."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from processes import MPDATA, MPIEXEC, Refused, Run

SMALL = ["--case", "random", "--grid", "12", "10", "4", "--steps", "4"]


BAD = [
    (["--case", "nowhere"], "expected a case of sphere, cone"),
    (["--backend", "fortran"], "expected a backend of auto, numpy, numba"),
    (["--boundary", "sticky"], "expected a boundary of periodic, open, wall, fixed:VALUE"),
    (["--boundary", "open,open"], "expected one boundary or three, got 2"),
    (["--boundary", "fixed:much"], "expected a number in fixed:VALUE"),
    (["--boundary", "open,wall/periodic,open"], "expected both ends of an axis periodic or none"),
    (["--boundary", "pole"], "expected poles along axis 1 only"),
    (["--grid", "11", "8", "4", "--boundary", "periodic,pole,wall"], "an even number of cells"),
    (["--angle", "45"], "expected an angle of -360 to 360 degrees and case bell with it"),
    (["--strategy", "magic"], "expected a strategy of auto, spawn, warm, merge, restart"),
    (["--strategy", "warm"], "strategy warm needs a launcher; under bare mpirun expected spawn"),
    (["--iterations", "4"], "expected 1 to 3 iterations, got 4"),
    (["--dtype", "f2"], "expected a dtype of f8, f4"),
    (["--steps", "0"], "expected at least 1 step"),
    (["--every", "0"], "expected at least 1 step in --every"),
    (["--threads", "0"], "expected at least 1 thread"),
    (["--grid", "0", "4", "4"], "expected at least 1 cell"),
    (["--courant", "1.5"], "expected a Courant number in (0, 1]"),
    (["--seed", "-1"], "expected a seed from 0"),
    (["--case", "cone", "--courant", "0.5"], "fixes its own Courant numbers"),
    (["--resize-at", "5"], "expected --resize-at STEP:RANKS"),
    (["--resize-at", "3:2,2:1"], "expected rising steps"),
    (["--resize-at", "9:2"], "expected resizes before the last step 4, got step 9"),
    (["--resize-at", "2:60"], "expected fewer, such as"),
    (["--restart"], "expected --checkpoint-dir D"),
    (["--output", "x.h5"], "expected --output FILE.h5 and --output-every S"),
    (["--json", "no/such/folder/x.json"], "expected an existing folder for --json"),
    (["--case", "winds", "--winds", "u.nc", "v.nc"], "expected a wind file, got u.nc"),
    (["--gauge", "odd"], "expected a gauge of standard, infinite, got 'odd'"),
    (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    (["--input", "missing.npz"], "expected no --case with it"),
]


@pytest.mark.parametrize(("extra", "expected"), BAD)
@pytest.mark.promise("cli", "mpirun-warm")
def test_one_sentence_and_exit_2(
    refused: Refused, tmp_path: Path, extra: list[str], expected: str
) -> None:
    assert expected in refused("run", *SMALL, *extra)
    assert list(tmp_path.iterdir()) == []


def test_copies_that_srun_did_not_make_one_world_are_refused(run: Run, tmp_path: Path) -> None:
    done = run(*MPDATA, "run", *SMALL, env={"SLURM_STEP_NUM_TASKS": "3"})
    assert done.returncode == 2
    assert (
        "expected one world of ranks, got 3 copies that know nothing of one another" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


ON_RANKS = [
    (3, ["--case", "nowhere"], "expected a case of"),
    (4, ["--grid", "5", "5", "4"], "cannot cut 5 x 5 cells into 4 blocks at least 3 x 3"),
    (6, ["--grid", "12", "1", "4"], "expected fewer, such as 4 ranks, got 6"),
]


@pytest.mark.parametrize(("ranks", "extra", "expected"), ON_RANKS)
@pytest.mark.covering(0)
def test_many_ranks_still_say_it_once(
    run: Run, ranks: int, extra: list[str], expected: str
) -> None:
    done = run(MPIEXEC, "-n", str(ranks), *MPDATA, "run", *SMALL, *extra)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert expected in done.stderr


def write_arrays(path: Path, **changes: np.ndarray) -> None:
    n, m, el = 6, 5, 4
    arrays = {
        "psi": np.ones((n, m, el)),
        "h": np.ones((n, m, el)),
        "c1": np.full((n + 1, m, el), 0.2),
        "c2": np.full((n, m + 1, el), 0.2),
        "c3": np.full((n, m, el + 1), 0.2),
    }
    np.savez(path, **(arrays | changes))


def spoilt(shape: tuple[int, ...], at: tuple[int, ...], value: float, base: float) -> np.ndarray:
    array = np.full(shape, float(base))
    array[at] = value
    return array


ARRAYS = [
    ({"c1": np.ones((6, 5, 4))}, "expected c1 of shape (7, 5, 4), got (6, 5, 4)"),
    ({"psi": spoilt((6, 5, 4), (5, 4, 3), np.nan, 1)}, "expected finite numbers in psi"),
    (
        {"h": spoilt((6, 5, 4), (1, 2, 3), -1, 1)},
        "expected positive numbers in h, got -1 at (1, 2, 3)",
    ),
    ({"c2": spoilt((6, 6, 4), (0, 0, 0), 0.1, 0.2)}, "expected c2 of the first and the last face"),
    ({"c3": np.full((6, 5, 5), 0.9)}, "unstable: expected outgoing |c| / h of at most 1"),
    ({"psi": spoilt((6, 5, 4), (0, 0, 0), -1, 1)}, "expected psi of one sign"),
]


@pytest.mark.parametrize(("changes", "expected"), ARRAYS)
@pytest.mark.promise("one-sign")
def test_bad_arrays(
    refused: Refused, tmp_path: Path, changes: dict[str, np.ndarray], expected: str
) -> None:
    write_arrays(tmp_path / "in.npz", **changes)
    assert expected in refused("run", "--input", "in.npz", "--steps", "2", "--json", "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.wide
def test_bad_arrays_are_refused_once_by_two_ranks(run: Run, tmp_path: Path) -> None:
    changes, expected = ARRAYS[-1]
    write_arrays(tmp_path / "in.npz", **changes)
    done = run(MPIEXEC, "-n", "2", *MPDATA, "run", "--input", "in.npz", "--steps", "2")
    assert done.returncode == 2
    assert expected in done.stderr and done.stderr.count("error:") == 1


@pytest.mark.promise("input")
def test_good_arrays_run(run: Run, tmp_path: Path) -> None:
    write_arrays(tmp_path / "in.npz")
    done = run(MPIEXEC, "-n", "2", *MPDATA, "run", "--input", "in.npz", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "min 1, max 1" in done.stdout


def test_all_checkpoints_damaged_is_said(mpdata_here: Run, tmp_path: Path) -> None:
    saving = ["--checkpoint-every", "1", "--checkpoint-dir", "saved"]
    assert mpdata_here("run", *SMALL, *saving).returncode == 0
    for path in (tmp_path / "saved").glob("*.h5"):
        path.write_bytes(path.read_bytes()[:1000])
    done = mpdata_here("run", *SMALL, *saving, "--restart")
    assert done.returncode == 2
    assert "expected a whole checkpoint in saved" in done.stderr


def test_a_file_in_place_of_the_checkpoint_folder_is_refused(
    mpdata_here: Run, tmp_path: Path
) -> None:
    (tmp_path / "saved").write_text("a file where the folder should be")
    done = mpdata_here("run", *SMALL, "--checkpoint-every", "2", "--checkpoint-dir", "saved")
    assert done.returncode == 2
    assert "expected a folder in --checkpoint-dir, got saved" in done.stderr


def test_a_record_of_an_earlier_run_is_taken_away(mpdata_here: Run, tmp_path: Path) -> None:
    record = ["--completion", "record.json"]
    assert mpdata_here("run", *SMALL, *record).returncode == 0
    assert (tmp_path / "record.json").exists()
    assert mpdata_here("run", *SMALL, *record, "--dtype", "foo").returncode == 2
    assert not (tmp_path / "record.json").exists()


def test_no_mpiexec_for_a_resize_is_said(run: Run, tmp_path: Path) -> None:
    # A virtual environment whose bin has a Python and nothing else.
    lonely = tmp_path / "bin"
    lonely.mkdir()
    program = (
        "import sys; sys.executable = sys.argv.pop(1); from mpdata.cli.main import main; "
        "sys.exit(main())"
    )
    done = run(
        sys.executable,
        "-c",
        program,
        str(lonely / "python"),
        "run",
        *SMALL,
        "--resize-at",
        "2:2",
        env={"PATH": str(lonely)},
    )
    assert done.returncode == 2
    assert "expected mpiexec on PATH" in done.stderr and "malleable-mpi[mpich]" in done.stderr


def test_no_mpi_library_is_said(run: Run, tmp_path: Path) -> None:
    # mpi4py takes the library named here and nothing else.
    done = run(*MPDATA, "run", *SMALL, env={"MPI4PY_LIBMPI": str(tmp_path / "nowhere.so")})
    assert done.returncode == 2
    assert "no MPI library could be loaded" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["mpdata", "dmr", "rms"])
def test_version(run: Run, command: str) -> None:
    done = run(str(Path(sys.executable).parent / command), "--version")
    assert done.returncode == 0 and done.stdout.startswith(command)


def test_checkpoints_of_an_earlier_run_are_not_mixed_up(mpdata_here: Run, tmp_path: Path) -> None:
    saving = ["--checkpoint-every", "2", "--checkpoint-dir", "saved"]
    assert mpdata_here("run", *SMALL, *saving).returncode == 0
    before = sorted(path.name for path in (tmp_path / "saved").iterdir())
    done = mpdata_here("run", *SMALL, *saving)
    assert done.returncode == 2 and "or --restart to continue from them" in done.stderr
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == before


def test_a_checkpoint_of_another_seed_is_refused(mpdata_here: Run) -> None:
    saving = ["--checkpoint-every", "2", "--checkpoint-dir", "saved", "--restart"]
    assert mpdata_here("run", *SMALL, "--seed", "1", *saving).returncode == 0
    done = mpdata_here("run", *SMALL, "--seed", "2", *saving)
    assert done.returncode == 2 and "expected seed 2, got a checkpoint of seed 1" in done.stderr


FULL = """
import resource, sys
from mpdata.cli.main import main
from mpdata.parallel.app import Advection
true_step = Advection.step
def step(self, run):
    true_step(self, run)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
Advection.step = step
sys.exit(main(sys.argv[1:]))
"""
"""``mpdata run`` where from the first step on there is no more room."""


@pytest.mark.parametrize("extra", [["--output", "x.h5", "--output-every", "2"], ["--final", "x"]])
def test_a_full_disk_is_one_sentence(run: Run, tmp_path: Path, extra: list[str]) -> None:
    words = ["run", *SMALL[:2], "--grid", "24", "24", "24", "--steps", "4", "--backend", "numpy"]
    done = run(MPIEXEC, "-n", "1", sys.executable, "-c", FULL, *words, *extra)
    assert done.returncode == 1
    assert "error: cannot write " in done.stderr and ": File too large" in done.stderr
    assert "Traceback" not in done.stderr
    if extra[0] == "--output":
        with h5py.File(tmp_path / "x.h5") as file:
            assert file["step"][:].tolist() == [0]
    else:
        assert list(tmp_path.iterdir()) == []
