"""Every fault of a resize, injected into real jobs: what came of it, as a table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MPDATA, MPIEXEC, Mpirun, Run
from rms_fixture import Rms, served

FAULTY = [sys.executable, str(Path(__file__).with_name("faulty_resize.py"))]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
STEPS = "1500"
TABLE: list[tuple[str, str, str, str]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what every fault has come to."""
    yield
    widths = [max(len(row[c]) for row in TABLE) for c in range(4)] if TABLE else []
    print("\n")
    for row in TABLE:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of a run that is left alone."""
    out = tmp_path_factory.mktemp("alone") / "out.json"
    command = [MPIEXEC, "-n", "1", *MPDATA, "run", *SMALL, "--steps", STEPS, "--json", str(out)]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    bits: str = json.loads(out.read_text())["sha256"]
    return bits


@pytest.fixture
def rms() -> Iterator[Rms]:
    with served(2, "--policy", "fifo", "--boot-deadline", "6") as found:
        yield found


def faulty(rms: Rms, fault: str, *more: str, launcher: str = "mpirun") -> str:
    words = [*FAULTY, f"'{fault}'", "run", *SMALL, "--steps", STEPS, *more]
    body = " ".join([launcher, *words])
    return rms.submit(body, "--mode", "malleable", "--nodes", "1-2", "--preferred", "1")


def resizes(rms: Rms, job: str) -> list[tuple[int, int]]:
    return [(row["from"], row["to"]) for row in rms.row(job)["resizes"]]


def completed(rms: Rms, job: str, alone: str) -> None:
    (rms.work / "go").touch()
    assert rms.over(job, deadline_s=100) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
    assert rms.row(job)["answer"] == alone
    rms.nothing_left()
    assert [node["state"] for node in rms.ask("nodes")] == ["idle", "idle"]


ROLLED_BACK = {
    "new rank killed at boot": "the new world",
    "new rank killed at connect": "",
    "new rank killed in the middle of the move": "world is gone",
    "new rank killed before acknowledging": "world is gone",
    "new rank killed after acknowledging": "world is gone",
    "new rank killed when it has the job": "world is gone",
    "new world says no word": "was not ready within 6 s",
    "new world cannot build": "world",
}


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_the_old_world_goes_on(rms: Rms, alone: str, fault: str) -> None:
    job = faulty(rms, fault)
    rms.running(job)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    why = rms.rolled_back(job)[0]
    # Which of two waits notices it is chance where the fault comes between them.
    assert ROLLED_BACK[fault] in why and why
    assert [node["state"] for node in rms.ask("nodes")] == ["allocated", "idle"]
    rms.ask("resize", job, "2")
    rms.until(lambda: resizes(rms, job) == [(1, 2)], "a resize after it")
    completed(rms, job, alone)
    TABLE.append((fault, "rolled back, same bits", "resized later", why))


def test_a_launcher_that_never_answers(rms: Rms, alone: str) -> None:
    fake = rms.work / "bin"
    fake.mkdir()
    script = fake / "mpiexec"
    script.write_text(f'#!/bin/sh\n[ "$DMR_JOIN" = 1 ] && exec sleep 1000\nexec {MPIEXEC} "$@"\n')
    script.chmod(0o755)
    job = faulty(
        rms,
        "none",
        launcher=f'PATH="$PATH:{fake}"; export PATH; PATH=$(echo "$PATH" | '
        f"sed 's#:{fake}$##; s#^\\([^:]*\\)#\\1:{fake}#'); mpirun",
    )
    rms.running(job)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert "was not ready within 6 s" in rms.rolled_back(job)[0]
    rms.ask("resize", job, "2")
    rms.until(lambda: resizes(rms, job) == [(1, 2)], "a resize after it")
    completed(rms, job, alone)
    row = "launcher that never answers", "rolled back, same bits", "resized later"
    TABLE.append((*row, "was not ready within 6 s"))


def test_an_old_rank_that_dies_takes_the_job_and_nothing_else(rms: Rms) -> None:
    fault = "old rank killed in the middle of the move"
    job = faulty(rms, fault)
    rms.running(job)
    rms.ask("resize", job, "2")
    assert rms.over(job) == ["FAILED"]
    rms.nothing_left()
    assert [node["state"] for node in rms.ask("nodes")] == ["idle", "idle"]
    TABLE.append((fault, "failed, nothing left", "", rms.row(job)["reason"]))


@pytest.mark.parametrize("state", ["booting", "ready", "moving", "leaving"])
def test_a_killed_rms_comes_back_to_the_same_resize(rms: Rms, alone: str, state: str) -> None:
    more = ["--every", "200"] if state == "ready" else []
    fault = f"RMS killed while {state}"
    job = faulty(rms, fault, *more)
    rms.running(job)
    rms.ask("resize", job, "2")
    if state == "leaving":
        rms.until(lambda: resizes(rms, job), "commit")
    else:
        rms.until(lambda: rms.row(job)["resizing"] == state, state)
    rms.end(signal.SIGKILL)
    rms.start()
    rms.until(lambda: rms.row(job)["size"] == 2, "resize")
    assert resizes(rms, job) == [(1, 2)]
    completed(rms, job, alone)
    TABLE.append((fault, "resized once, same bits", "", ""))


def test_a_full_disk_at_a_checkpoint(rms: Rms, alone: str) -> None:
    fault = "disk full at a checkpoint"
    saving = ["--checkpoint-dir", "saved", "--checkpoint-every", "500"]
    job = faulty(rms, fault, *saving, "--strategy", "restart")
    rms.running(job)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert "the checkpoint could not be written" in rms.rolled_back(job)[0]
    completed(rms, job, alone)
    assert "No space left on device" in rms.output(job)
    assert list((rms.work / "saved").iterdir()) == []
    TABLE.append((fault, "rolled back, same bits", "", rms.rolled_back(job)[0]))


def test_a_corrupted_checkpoint(run: Run, mpdata_run: Mpirun, tmp_path: Path) -> None:
    saving = ["--checkpoint-dir", str(tmp_path / "saved"), "--checkpoint-every", "10"]
    wanted = [*SMALL, "--steps", "30"]
    whole = mpdata_run(1, *wanted, *saving)
    newest = tmp_path / "saved" / "checkpoint-0000000020.h5"
    assert newest.exists()
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    again = run(MPIEXEC, "-n", "2", *MPDATA, "run", *wanted, *saving, "--restart")
    assert "is not whole" in again.stdout and "trying the one before it" in again.stdout
    assert "at step 10" in again.stdout and whole["sha256"] in again.stdout
    TABLE.append(("corrupted checkpoint", "older whole one taken, same bits", "", "is not whole"))


def test_two_runs_in_one_checkpoint_folder(rms: Rms) -> None:
    saving = ["--checkpoint-dir", "saved", "--checkpoint-every", "100"]
    words = ["mpirun", *MPDATA, "run", *SMALL, "--steps", "3000", *saving]
    first = rms.submit(" ".join(words))
    rms.running(first)
    second = rms.submit(" ".join([*words, "--restart"]))
    assert rms.over(second) == ["FAILED"]
    assert "another run writes checkpoints there" in rms.row(second)["reason"]
    rms.ask("cancel", first)
    assert rms.over(first) == ["CANCELLED"]
