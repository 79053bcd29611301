"""The main job under plain mpirun: grows, shrinks, dies and comes back with the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLINE_S, MPDATA, MPIEXEC, Mpirun, Run, Steady, marked, program, started
from selection import all_wide_but

from mpdata.cases import Request, make_setup
from mpdata.parallel.diagnostics import Diagnostics

FAULTY = program("faulty_run")
RANDOM = ["--case", "random", "--seed", "7", "--grid", "48", "40", "16", "--steps", "30"]
TO_TWO = ["--resize-at", "10:2"]
COMBINATIONS = [
    (boundary, dtype, limiter)
    for boundary in ("periodic", "open", "wall")
    for dtype in ("f8", "f4")
    for limiter in ("--limiter", "--no-limiter")
]


def faulty(ranks: int, fault: str, step: int) -> list[str]:
    """Return the begin of a run of mpdata with a fault at a step, on so many ranks."""
    return [MPIEXEC, "-n", str(ranks), *FAULTY, fault, str(step), "run"]


def options(boundary: str, dtype: str, limiter: str) -> list[str]:
    return [*RANDOM, "--boundary", boundary, "--dtype", dtype, limiter]


@pytest.mark.parametrize(("boundary", "dtype", "limiter"), COMBINATIONS)
@pytest.mark.promise("bits-spawn")
@pytest.mark.covering(1, in_all=2)
def test_resizes_leave_the_same_bits(
    mpdata_run: Mpirun, steady: Steady, boundary: str, dtype: str, limiter: str
) -> None:
    wanted = options(boundary, dtype, limiter)
    alone = steady(*wanted)
    moved = mpdata_run(2, *wanted, "--resize-at", "10:3,20:1")
    assert [(r["step"], r["from"], r["to"]) for r in moved["resizes"]] == [(10, 2, 3), (20, 3, 1)]
    assert all(r["bytes"] == 48 * 40 * 16 * int(dtype[1]) for r in moved["resizes"])
    assert all(r["stall_s"] >= r["move_s"] > 0 for r in moved["resizes"])
    assert moved["ranks"] == 1 and alone["resizes"] == []
    assert moved["sha256"] == alone["sha256"]


@pytest.mark.parametrize("ranks", all_wide_but([2, 3, 4, 6], 3))
@pytest.mark.promise("bits-ranks")
def test_any_number_of_ranks_gives_the_same_bits(
    mpdata_run: Mpirun, steady: Steady, ranks: int, tmp_path: Path
) -> None:
    final = tmp_path / "final.npy"
    found = mpdata_run(ranks, *RANDOM, "--final", str(final))
    alone = steady(*RANDOM)
    assert found["sha256"] == alone["sha256"]
    check = Diagnostics(make_setup("random", Request(grid=(48, 40, 16), seed=7)), compare=False)
    check.add(0, np.load(final))
    assert check.sha256 == found["sha256"] and check.mass == found["mass_final"]


@pytest.mark.parametrize(("boundary", "dtype", "limiter"), COMBINATIONS)
@pytest.mark.covering(0, in_all=2)
@pytest.mark.promise("bits-killed")
def test_killed_and_restarted_on_other_ranks_gives_the_same_bits(
    run: Run, steady: Steady, tmp_path: Path, boundary: str, dtype: str, limiter: str
) -> None:
    wanted = options(boundary, dtype, limiter)
    saving = ["--checkpoint-every", "5", "--checkpoint-dir", "saved"]
    record = tmp_path / "record.json"
    died = run(*faulty(3, "kill-all", 17), *wanted, *saving, "--completion", str(record))
    assert died.returncode != 0 and not record.exists()
    whole = steady(*wanted)
    again = run(
        MPIEXEC, "-n", "2", *MPDATA, "run", *wanted, *saving, "--restart", "--json", "again.json"
    )
    assert "checkpoint-0000000015.h5 at step 15" in again.stdout, again.stdout + again.stderr
    found = json.loads((tmp_path / "again.json").read_text())
    assert found["sha256"] == whole["sha256"]
    assert found["steps"] == 30 and found["ranks"] == 2


@pytest.mark.promise("completion")
def test_killed_after_a_resize_is_not_taken_for_completed(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    died = run(
        *faulty(1, "kill-last", 15),
        *RANDOM,
        "--resize-at",
        "10:2",
        "--json",
        "out.json",
        "--completion",
        str(record),
    )
    assert "resize at step 10: 1 -> 2 ranks" in died.stdout
    told = run(sys.executable, "-m", "dmr", "completion", str(record))
    assert told.returncode == 1
    assert not (tmp_path / "out.json").exists()


@pytest.mark.promise("completion", "json")
def test_record_and_json_on_stdout_after_a_resize(run: Run, tmp_path: Path) -> None:
    """The record says that it is completed; the JSON is all there is on standard output."""
    record = tmp_path / "record.json"
    words = [*RANDOM, "--resize-at", "10:2", "--json", "-"]
    done = run(MPIEXEC, "-n", "1", *MPDATA, "run", *words, env={"DMR_COMPLETION": str(record)})
    assert json.loads(done.stdout)["ranks"] == 2
    told = run(sys.executable, "-m", "dmr", "completion", str(record), "--json", "-")
    assert told.returncode == 0
    found = json.loads(told.stdout)
    assert (found["state"], found["step"], found["generation"]) == ("COMPLETED", 30, 1)


@pytest.mark.parametrize("resized", all_wide_but([False, True], True))
def test_an_exception_on_one_rank_ends_all_with_its_message(
    run: Run, tmp_path: Path, resized: bool
) -> None:
    record = tmp_path / "record.json"
    words = [*RANDOM, *(TO_TWO if resized else []), "--completion", str(record)]
    died = run(*faulty(1 if resized else 2, "raise-last", 15), *words)
    sentence = "rank 1 of 2: ArithmeticError: the dog ate the flux"
    assert died.returncode != 0
    assert sentence in died.stderr
    found = json.loads(record.read_text())
    assert (found["state"], found["message"]) == ("FAILED", sentence)


@pytest.mark.parametrize("resized", all_wide_but([False, True], True))
def test_sigterm_checkpoints_and_ends(
    mpdata_here: Run, steady: Steady, tmp_path: Path, resized: bool
) -> None:
    record = tmp_path / "record.json"
    saving = ["--checkpoint-dir", str(tmp_path / "saved"), "--every", "3"]
    command = [*faulty(1 if resized else 2, "linger", 16), *RANDOM, *saving]
    command += [*(TO_TWO if resized else []), "--completion", str(record)]
    with started(command, cwd=tmp_path) as job:
        assert job.stdout is not None
        early = []
        for line in job.stdout:
            early.append(line)
            if line.startswith("lingering"):
                break
        job.send_signal(signal.SIGTERM)
        rest = job.communicate(timeout=DEADLINE_S)[0]
    assert "ended by SIGTERM at step 18" in rest
    assert ("resize at step 10: 1 -> 2 ranks" in "".join(early)) == resized
    parts, file = sorted((tmp_path / "saved").iterdir())
    assert file.name == "checkpoint-0000000018.h5"
    assert sorted(part.name for part in parts.iterdir()) == ["0.h5", "1.h5"]
    assert json.loads(record.read_text())["state"] == "CANCELLED"
    again = mpdata_here("run", *RANDOM, *saving, "--restart")
    assert "checkpoint-0000000018.h5 at step 18" in again.stdout
    assert steady(*RANDOM)["sha256"] in again.stdout


@pytest.mark.promise("checkpoint")
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
    mpdata_here: Run, steady: Steady, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    wanted = ["--case", "random", "--seed", "3", "--grid", "64", "64", "32", "--steps", "60"]
    saving = ["--checkpoint-every", "1", "--checkpoint-dir", str(saved)]
    command = [MPIEXEC, "-n", "2", *MPDATA, "run", *wanted, *saving, "--restart"]
    command += ["--json", str(tmp_path / "early.json")]
    moments = random.Random(20)
    for _ in range(5):
        before = newest(saved)
        with started(command, cwd=tmp_path) as job:
            while newest(saved) == before and job.poll() is None:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 0.05))
            for pid in marked(job.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + DEADLINE_S
    assert not (tmp_path / "early.json").exists(), "expected to be killed before the end"
    while "another run" in (again := mpdata_here("run", *wanted, *saving, "--restart")).stderr:
        # A killed rank loses its environment, by which it is found, before its files.
        assert time.monotonic() < until, again.stderr
        time.sleep(0.01)
    assert "restarted from" in again.stdout
    assert steady(*wanted)["sha256"] in again.stdout


def newest(folder: Path) -> str:
    names = [p.name for p in folder.glob("checkpoint-*.h5")] if folder.exists() else []
    return max(names, default="")


@pytest.mark.wide
def test_numpy_and_numba_have_the_same_bits(mpdata_run: Mpirun) -> None:
    a, b = (mpdata_run(2, *RANDOM, "--backend", backend) for backend in ("numpy", "numba"))
    assert a["sha256"] == b["sha256"]


@pytest.mark.promise("output")
def test_output_frames_survive_a_resize(
    mpdata_here: Run, mpdata_run: Mpirun, tmp_path: Path
) -> None:
    import h5py

    out = ["--output-every", "10"]
    mpdata_run(1, *RANDOM, "--output", "a.h5", *out)
    mpdata_run(2, *RANDOM, "--output", "b.h5", *out, "--resize-at", "15:1")
    with h5py.File(tmp_path / "a.h5") as a, h5py.File(tmp_path / "b.h5") as b:
        assert list(a["step"]) == list(b["step"]) == [0, 10, 20, 30]
        assert np.array_equal(a["psi"], b["psi"])
    assert mpdata_here("plot", "b.h5").returncode == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.promise("own-code")
def test_the_heat_example_of_the_readme_keeps_its_bits(run: Run, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "jobs" / "heat.py"
    moved = run(MPIEXEC, "-n", "2", sys.executable, str(example))
    assert moved.stdout.count("resize at step") == 2, moved.stdout + moved.stderr
    plain = tmp_path / "plain.py"
    text = example.read_text()
    plain.write_text(text.replace(", dmr.Plan(resizes={100: 3, 200: 1})", ""))
    assert plain.read_text() != text
    steady = run(MPIEXEC, "-n", "1", sys.executable, str(plain))
    assert steady.stdout.split()[-1] == moved.stdout.split()[-1]
    assert len(steady.stdout.split()[-1]) == 64
