"""Every fault of a resize, injected into real jobs: what came of it, as a table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import LocalRms, Rms, closing, lent, served
from faulty_jobs import SMALL, STEPS, faulty
from processes import MPDATA, MPIEXEC, RMS, Mpirun, Run, program
from selection import all_wide_but

FAULTY_SERVE = program("faulty_serve")
DISK_BYTES = 98304
"""Room for two checkpoints (30720 bytes of field each) and not for three."""
BOOT_S = "120"
"""Many times what a boot takes on a machine that has other things to do."""
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
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    bits: str = json.loads(out.read_text())["sha256"]
    return bits


@pytest.fixture(scope="module")
def daemon() -> Iterator[Rms]:
    with served(2, "--policy", "fifo", "--boot-deadline", BOOT_S) as found:
        yield found


@pytest.fixture
def rms(daemon: Rms) -> Iterator[Rms]:
    with lent(daemon) as found:
        yield found


def completed(rms: Rms, job: str, alone: str) -> None:
    (rms.work / "go").touch()
    assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
    assert rms.row(job)["answer"] == alone
    rms.nothing_left()
    assert [node["state"] for node in rms.ask("nodes")] == ["idle", "idle"]


MERGING = {
    "new rank killed at boot": "the new world",
    "new rank killed at connect": "",
    "new rank killed in the middle of the move": "world is gone",
    "new rank killed before acknowledging": "world is gone",
    "new rank killed after acknowledging": "world is gone",
    "new rank cannot build": "no velocities on rank 1",
    "old rank cannot build": "no velocities on rank 0",
    "old rank short of memory": "not enough memory to move the data",
    "new rank short of memory": "not enough memory to move the data",
}


@pytest.mark.parametrize(
    "fault",
    all_wide_but(MERGING, "new rank killed in the middle of the move", "old rank cannot build"),
)
@pytest.mark.promise("rollback")
def test_the_ranks_that_stay_go_on(rms: Rms, alone: str, fault: str) -> None:
    job = faulty(rms, fault, "--strategy", "merge")
    rms.running(job)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    why = rms.rolled_back(job)[0]
    assert MERGING[fault] in why and why
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.resizes(job) == [(1, 2)], "a resize after it")
    (later,) = [row["strategy"] for row in rms.row(job)["resizes"]]
    # A connect that has timed out is the last of its process: then only restart is left.
    assert later == "merge" or (later == "restart" and fault.endswith("connect"))
    completed(rms, job, alone)
    TABLE.append((f"merge: {fault}", "rolled back, same bits", f"{later} later", why))


ROLLED_BACK = {
    "new rank killed at boot": "the new world",
    "new rank killed at connect": "",
    "new rank killed in the middle of the move": "world is gone",
    "new rank killed before acknowledging": "world is gone",
    "new rank killed after acknowledging": "world is gone",
    "new rank killed when it has the job": "world is gone",
    "new world cannot build": "world",
    "old rank short of memory": "not enough memory to move the data",
    "new rank short of memory": "not enough memory to move the data",
}


@pytest.mark.parametrize("fault", ROLLED_BACK)
@pytest.mark.promise("rollback")
@pytest.mark.promise("bits-warm")
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
    rms.until(lambda: rms.resizes(job) == [(1, 2)], "a resize after it")
    completed(rms, job, alone)
    TABLE.append((fault, "rolled back, same bits", "resized later", why))


@pytest.mark.parametrize(
    ("strategy", "script", "at", "resizes"),
    [
        ("spawn", "10:2,20:2", 10, "[[20, 1, 2]]"),
        ("merge", "10:2,20:2", 10, "[[20, 1, 2]]"),
        ("merge", "10:2,20:1,30:1", 20, "[[10, 1, 2], [30, 2, 1]]"),
    ],
    ids=["spawn", "merge grows", "merge shrinks"],
)
@pytest.mark.promise("rollback")
def test_wrong_bytes_roll_back_and_the_next_resize_moves_all(
    run: Run, strategy: str, script: str, at: int, resizes: str
) -> None:
    """By merge, ranks that stay then have their share of lists that differ from rank to rank."""
    env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
    done = run(MPIEXEC, "-n", "1", *program("wrong_bytes"), str(at), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (why,) = [line for line in done.stdout.splitlines() if "rolled back" in line]
    assert "data did not arrive whole" in why
    assert f"{resizes} cells True, items True" in done.stdout.splitlines()
    TABLE.append((f"{strategy}: wrong bytes", "rolled back, same answer", f"{strategy} later", why))


@pytest.mark.promise("rollback")
def test_a_new_world_that_says_no_word(alone: str) -> None:
    """The deadline is so short that another daemon has to allow the resize after it."""
    with served(2, "--policy", "fifo", "--boot-deadline", "2") as rms:
        job = faulty(rms, "new world says no word")
        rms.running(job)
        rms.ask("resize", job, "2")
        rms.until(lambda: rms.rolled_back(job), "rollback")
        why = rms.rolled_back(job)[0]
        assert "was not ready within 2 s" in why
        rms.end(signal.SIGKILL)
        rms.start("--boot-deadline", BOOT_S)
        rms.ask("resize", job, "2")
        rms.until(lambda: rms.resizes(job) == [(1, 2)], "a resize after it")
        completed(rms, job, alone)
    TABLE.append(("new world says no word", "rolled back, same bits", "resized later", why))


@pytest.mark.wide
def test_a_launcher_that_never_answers(alone: str) -> None:
    with served(2, "--policy", "fifo", "--boot-deadline", "3") as rms:
        launcher_that_never_answers(rms, alone)


def launcher_that_never_answers(rms: Rms, alone: str) -> None:
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
    assert "was not ready within 3 s" in rms.rolled_back(job)[0]
    rms.end(signal.SIGKILL)
    rms.start("--boot-deadline", BOOT_S)
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.resizes(job) == [(1, 2)], "a resize after it")
    completed(rms, job, alone)
    row = "launcher that never answers", "rolled back, same bits", "resized later"
    TABLE.append((*row, "was not ready within 3 s"))


@pytest.mark.parametrize(
    "when",
    all_wide_but(
        ["while the new world boots", "in the middle of the move"], "in the middle of the move"
    ),
)
@pytest.mark.promise("old-rank")
def test_an_old_rank_that_dies_takes_the_job_and_nothing_else(rms: Rms, when: str) -> None:
    fault = f"old rank killed {when}"
    job = faulty(rms, fault)
    rms.running(job)
    rms.ask("resize", job, "2")
    assert rms.over(job) == ["FAILED"]
    rms.nothing_left()
    assert [node["state"] for node in rms.ask("nodes")] == ["idle", "idle"]
    TABLE.append((fault, "failed, nothing left", "", rms.row(job)["reason"]))


@pytest.mark.parametrize(
    "state", all_wide_but(["booting", "ready", "moving", "leaving"], "booting", "leaving")
)
@pytest.mark.promise("daemon-killed")
def test_a_killed_rms_comes_back_to_the_same_resize(rms: Rms, alone: str, state: str) -> None:
    more = ["--every", "25"] if state == "ready" else []
    fault = f"RMS killed while {state}"
    job = faulty(rms, fault, *more)
    rms.running(job)
    rms.ask("resize", job, "2")
    if state == "leaving":
        rms.until(lambda: rms.resizes(job), "commit")
    else:
        rms.until(lambda: rms.row(job)["resizing"] == state, state)
    rms.end(signal.SIGKILL)
    rms.start()
    rms.until(lambda: rms.row(job)["size"] == 2, "resize")
    assert rms.resizes(job) == [(1, 2)]
    completed(rms, job, alone)
    TABLE.append((fault, "resized once, same bits", "", ""))


class FaultyRms(LocalRms):
    """A daemon that is killed once, in a state."""

    def __init__(self, state_of_death: str, *options: str) -> None:
        self.state_of_death = state_of_death
        super().__init__(2, *options)

    def serve_command(self) -> list[str]:
        words = super().serve_command()[len(RMS) :]
        return [*FAULTY_SERVE, self.state_of_death, str(self.folder / "died"), *words]


@pytest.mark.parametrize(
    "state",
    all_wide_but(
        ["requested", "booting", "ready", "moving", "leaving", "releasing", "closing"],
        "requested",
        "moving",
    ),
)
def test_an_rms_killed_with_its_last_word_written(alone: str, state: str) -> None:
    """In each state, right after it is in the journal: what it wanted to do is not done yet."""
    options = ("--policy", "fifo", "--boot-deadline", BOOT_S)
    with closing(FaultyRms(state, *options)) as rms:
        job = faulty(rms, "new rank killed at boot" if state == "closing" else "none")
        rms.running(job)
        rms.rms("resize", job, "2")  # who asks may not hear what became of it
        rms.process.wait(180)
        assert (rms.folder / "died").exists()
        rms.start()
        rms.until(lambda: rms.resizes(job) or rms.rolled_back(job), "end of the resize")
        why = "".join(rms.rolled_back(job))
        done = rms.resizes(job)
        if not done:
            rms.until(lambda: rms.rms("resize", job, "2").returncode == 0, "grant")
        rms.until(lambda: rms.resizes(job) == [(1, 2)], "a resize after it")
        assert bool(why) == (state == "closing") and bool(done) != bool(why)
        completed(rms, job, alone)
    ending = ("rolled back, same bits", "resized later") if why else ("resized once, same bits", "")
    TABLE.append((f"RMS killed with {state} in its journal", *ending, why))


@pytest.fixture(params=all_wide_but(["device full", "files limited"], "files limited"))
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A folder that two checkpoints of the job fit into and no third; and the fault for it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "files limited":
        yield "files limited at a checkpoint", folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        yield "disk full at a checkpoint", folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_at_a_checkpoint(
    rms: Rms, run: Run, alone: str, small_disk: tuple[str, Path]
) -> None:
    fault, disk = small_disk
    saved = disk / "saved"
    saving = ["--checkpoint-dir", str(saved)]
    job = faulty(rms, fault, *saving, "--checkpoint-every", "10", "--strategy", "restart")
    rms.running(job)
    rms.until(lambda: "not written" in rms.output(job), "a full disk")
    rms.ask("resize", job, "2")
    rms.until(lambda: rms.rolled_back(job), "rollback")
    assert "the checkpoint could not be written" in rms.rolled_back(job)[0]
    completed(rms, job, alone)
    told = [line for line in rms.output(job).splitlines() if "not written" in line]
    why = "File too large" if "limited" in fault else "No space left on device"
    assert all(line.endswith(f" not written: {why}") for line in told)
    kept = sorted(path.name for path in saved.glob("*.h5"))
    assert kept == ["checkpoint-0000000010.h5", "checkpoint-0000000020.h5"]
    assert len(list(saved.iterdir())) == 4  # each with its parts, and no others
    again = run(MPIEXEC, "-n", "2", *MPDATA, "run", *SMALL, "--steps", STEPS, *saving, "--restart")
    assert "at step 20" in again.stdout and alone in again.stdout
    TABLE.append((fault, "rolled back, same bits", "older one kept, whole", why))


def test_a_corrupted_checkpoint(run: Run, mpdata_run: Mpirun, tmp_path: Path) -> None:
    saving = ["--checkpoint-dir", str(tmp_path / "saved"), "--checkpoint-every", "10"]
    wanted = [*SMALL, "--steps", "30"]
    whole = mpdata_run(1, *wanted, *saving)
    (newest,) = (tmp_path / "saved").glob("checkpoint-0000000020-*.parts/0.h5")
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
