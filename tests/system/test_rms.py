"""A real daemon with real jobs: resized, killed, cancelled, out of time, restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon import Rms, served
from processes import MPDATA, RMS, ROOT, Mpirun, called, program
from selection import all_wide_but

from rms.cli.main import main

PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]


def mpdata(steps: int, *more: str) -> str:
    return " ".join(["mpirun", *MPDATA, "run", *SMALL, "--steps", str(steps), *more])


@pytest.fixture
def rms(request: pytest.FixtureRequest) -> Iterator[Rms]:
    """Two nodes and the default policy, or what a test's parameter says."""
    with served(*getattr(request, "param", (2,))) as found:
        yield found


def manual(nodes: int) -> pytest.MarkDecorator:
    """Let the daemon resize on a user's word only."""
    return pytest.mark.parametrize("rms", [(nodes, "--policy", "fifo")], indirect=True)


# --- resizes ------------------------------------------------------------------------------------


@pytest.mark.promise("bits-warm", "modes", "replay", "explain", "books")
def test_jobs_make_room_and_take_it_with_the_same_bits(rms: Rms, mpdata_run: Mpirun) -> None:
    words = [*SMALL, "--every", "1", "--steps", "240"]
    alone = mpdata_run(1, *words)
    job = f"mkdir -p $1; cd $1; PACE_S=0.25 mpirun {' '.join(PACED)} run {' '.join(words)}"
    options = ("--mode", "flexible", "--nodes", "1-2")
    first = rms.submit(job.replace("$1", "first"), *options)
    assert rms.running(first)["size"] == 2
    second = rms.submit(job.replace("$1", "second"), *options)
    rms.running(second)
    (rms.work / "first" / "go").touch()
    rms.until(lambda: rms.resizes(second), "a resize of the second")
    (rms.work / "second" / "go").touch()
    assert rms.over(first, second) == ["COMPLETED", "COMPLETED"]
    assert rms.resizes(first) == [(2, 1)] and rms.resizes(second) == [(1, 2)]
    for job in (first, second):
        row = rms.row(job)
        assert row["answer"] == alone["sha256"]
        assert all(r["bytes"] == 24 * 20 * 8 * 8 for r in row["resizes"])
        assert all(r["stall_s"] >= r["move_s"] > 0 for r in row["resizes"])
        decided = [r for r in rms.ask("explain", job) if r["kind"] == "resize"]
        assert len(decided) == len(row["resizes"])
    rms.ends_well()


@pytest.mark.promise("modes")
def test_fixed_and_moldable_jobs_are_never_resized(rms: Rms) -> None:
    fixed = rms.submit(mpdata(300), "--mode", "fixed", "--nodes", "1")
    moldable = rms.submit(mpdata(300), "--mode", "moldable", "--nodes", "1-2")
    assert rms.running(moldable)["size"] == 1
    waiting = rms.submit("true", "--mode", "flexible")
    assert rms.over(fixed, moldable, waiting) == ["COMPLETED"] * 3
    assert rms.resizes(fixed) == rms.resizes(moldable) == []
    for job in (fixed, moldable):
        assert not [r for r in rms.ask("explain", job) if r["kind"] == "resize"]


# --- arrays, steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("rms", [(3,)], indirect=True)
def test_array_runs_so_many_tasks_at_once(rms: Rms) -> None:
    body = "#SBATCH --array=0-3%2\n#SBATCH --output=out/%A_%a.txt\n"
    (rms.work / "out").mkdir()
    job = rms.submit(body + 'echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID"; sleep 0.5')
    assert rms.over(job) == ["COMPLETED"] * 4
    for index in range(4):
        lines = (rms.work / f"out/{job}_{index}.txt").read_text().splitlines()
        assert lines[0] == f"{job} {index}" and lines[1].startswith(f"rms: job {job}_{index} ")
        assert len(lines) == 2
    spans = rms.books()["spans"]
    assert {span["job"] for span in spans} == {f"{job}_{index}" for index in range(4)}
    for span in spans:
        at = span["start_s"]
        assert sum(other["start_s"] <= at < other["end_s"] for other in spans) <= 2


def test_steps_run_one_after_the_other(rms: Rms) -> None:
    body = f"""echo set-up >> lines
echo 'import sys; sys.exit(5)' > bad.py
{mpdata(4)} > first.txt || exit 8
echo between >> lines
{mpdata(6).replace("mpirun", "mpirun -n 7")}
{mpdata(4, "--no-such-flag")}
echo "bad step gave $?"
srun {sys.executable} bad.py
echo "other step gave $?"
{mpdata(4)} > /dev/null
exit 0"""
    job = rms.submit(body, "--nodes", "2", "--output", "out.txt")
    assert rms.over(job) == ["FAILED"]
    assert (rms.work / "lines").read_text() == "set-up\nbetween\n"
    first, out = (rms.work / "first.txt").read_text(), (rms.work / "out.txt").read_text()
    assert "step 4 of 4" in first and "step 4 of 4" not in out and "step 6 of 6" in out
    assert "mpirun -n 7 ignored" in out
    assert "bad step gave 2" in out and "other step gave 5" in out
    rms.nothing_left()


def test_a_program_without_resizes_is_completed_by_its_status(rms: Rms) -> None:
    job = rms.submit("srun sh -c 'echo rank $PMI_RANK'", "--nodes", "2")
    assert rms.over(job) == ["COMPLETED"]
    assert sorted(rms.output(job).split()) == ["0", "1", "rank", "rank"]


def test_a_redirected_line_keeps_standard_error_apart(rms: Rms) -> None:
    body = "srun sh -c 'echo out; echo err >&2'"
    job = rms.submit(f"{body} > one.txt\n{body} > both.txt 2>&1")
    assert rms.over(job) == ["COMPLETED"]
    assert (rms.work / "one.txt").read_text() == "out\n" and rms.output(job) == "err\n"
    assert sorted((rms.work / "both.txt").read_text().split()) == ["err", "out"]


def test_variables_that_are_no_text_stay_behind(rms: Rms) -> None:
    env = {key.encode(): value.encode() for key, value in rms.env().items()} | {b"ODD": b"\xff"}
    command = [*RMS, "submit", "--wait", "--", "true"]
    done = subprocess.run(command, cwd=rms.work, env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


# --- nodes --------------------------------------------------------------------------------------


@manual(2)
def test_a_drained_node_is_left_alone_until_it_is_resumed(rms: Rms) -> None:
    runs = rms.submit("until [ -e go ]; do sleep 0.1; done")
    rms.until(lambda: rms.row(runs)["state"] == "RUNNING", "start")
    assert rms.ask("drain", "n[1-2]")["nodes"] == ["n1", "n2"]
    waits = rms.submit("true")
    states = [node["state"] for node in rms.ask("nodes")]
    assert sorted(states) == ["drained", "draining"]
    (rms.work / "go").touch()
    assert rms.over(runs) == ["COMPLETED"]
    assert rms.row(waits)["state"] == "PENDING"
    rms.end(signal.SIGKILL)
    rms.start()
    assert {node["state"] for node in rms.ask("nodes")} == {"drained"}
    rms.ask("drain", "n1")
    rms.ask("resume", "n2")
    assert rms.over(waits) == ["COMPLETED"]
    assert [node["state"] for node in rms.ask("nodes")] == ["drained", "idle"]
    assert rms.end(signal.SIGTERM) == 0
    rms.replays()


# --- ends ---------------------------------------------------------------------------------------


@manual(2)
@pytest.mark.parametrize("resized", all_wide_but([False, True], True))
def test_a_killed_rank_is_a_failed_job(rms: Rms, resized: bool) -> None:
    run = f"mpirun {' '.join(PACED)} run {' '.join(SMALL)} --steps 600"
    job = rms.submit(run, "--mode", "malleable", "--nodes", "1-2")
    rms.running(job)
    rms.until(lambda: "step " in rms.output(job), "output")
    if resized:
        rms.ask("resize", job, "1")
        rms.until(lambda: rms.resizes(job) == [(2, 1)], "resize")
        rms.until(lambda: len(rms.ranks()) == 1, "end of the old ranks")
    ranks = rms.ranks()
    assert len(ranks) == 2 - resized
    os.kill(ranks[-1], signal.SIGKILL)
    assert rms.over(job) == ["FAILED"]
    assert rms.row(job)["reason"] in rms.rms("show", job).stdout
    assert rms.row(job)["reason"].startswith(("died without a completion record", "rank "))
    assert "step " in rms.output(job)
    assert [node["state"] for node in rms.ask("nodes")] == ["idle", "idle"]
    rms.nothing_left()


@pytest.mark.parametrize("rms", [(2, "--grace", "120")], indirect=True)
@pytest.mark.wide
def test_jobs_out_of_time(rms: Rms) -> None:
    trap = "trap 'echo heard > heard; exit 3' TERM; touch set; while :; do sleep 0.1; done"
    in_time(rms, trap, lambda job: (rms.work / "set").exists())
    assert (rms.work / "heard").exists()
    saving = mpdata(100_000, "--checkpoint-dir", "saved", "--checkpoint-every", "1000000")
    in_time(rms, saving, lambda job: rms.row(job)["step"] > 0)
    assert list((rms.work / "saved").glob("*.h5"))
    rms.nothing_left()


def in_time(rms: Rms, body: str, began: Callable[[str], bool]) -> None:
    """Run a job out of a time in which it began; a machine that is busy has it take longer."""
    for limit_s in (3, 10, 30, 90):
        job = rms.submit(body, "--time", f"0:{limit_s}")
        assert rms.over(job) == ["TIMEOUT"]
        if began(job):
            return
    raise AssertionError(f"nothing begun within {limit_s} s:\n{rms.said()}")


@pytest.mark.parametrize("rms", [(1, "--grace", "2")], indirect=True)
@pytest.mark.wide
def test_a_job_that_is_deaf_to_its_time_is_killed(rms: Rms) -> None:
    deaf = rms.submit("trap '' TERM; while :; do sleep 0.1; done", "--time", "0:02")
    assert rms.over(deaf) == ["TIMEOUT"]
    row = rms.row(deaf)
    assert row["end_s"] - row["start_s"] >= 4
    rms.nothing_left()


def test_cancel(rms: Rms) -> None:
    runs = rms.submit(f"{mpdata(5000)}\necho next >> next\n{mpdata(5000)}", "--nodes", "2")
    waits = rms.submit("echo started >> started", "--nodes", "2")
    array = rms.submit("echo $SLURM_ARRAY_TASK_ID >> tasks", "--array", "0-2")
    rms.running(runs)
    assert rms.ask("cancel", waits)["ids"] == [waits]
    assert rms.ask("cancel", f"{array}_[0-1]")["ids"] == [f"{array}_0", f"{array}_1"]
    assert rms.ask("cancel", runs)["ids"] == [runs]
    assert rms.over(runs, waits) == ["CANCELLED", "CANCELLED"]
    assert rms.over(array) == ["CANCELLED", "CANCELLED", "COMPLETED"]
    assert (rms.work / "tasks").read_text() == "2\n" and not (rms.work / "started").exists()
    assert rms.ask("cancel", array)["ids"] == []
    rms.nothing_left()


# --- the daemon ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("rms", [(2, "--grace", "120")], indirect=True)
def test_a_stopped_daemon_ends_jobs_at_checkpoints(rms: Rms) -> None:
    saving = mpdata(5000, "--checkpoint-dir", "saved", "--checkpoint-every", "100000")
    runs = rms.submit(saving, "--nodes", "2")
    waits = rms.submit("echo started >> started")
    rms.running(runs)
    assert rms.end(signal.SIGINT) == 0
    rms.nothing_left()
    assert list((rms.work / "saved").glob("*.h5"))
    assert not (rms.work / "started").exists()
    rms.start()
    assert rms.over(runs, waits) == ["CANCELLED", "COMPLETED"]
    assert (rms.work / "started").read_text() == "started\n"


@manual(3)
@pytest.mark.promise("daemon-killed")
def test_a_killed_daemon_loses_and_repeats_nothing(rms: Rms) -> None:
    note = 'echo "$SLURM_JOB_ID" >> starts\n'
    slow = f"mkdir long; cd long; PACE_S=0.1 mpirun {' '.join(PACED)} run {' '.join(SMALL)}"
    options = ("--mode", "malleable", "--nodes", "1-2", "--preferred=1")
    long = rms.submit(f"{note}{slow} --steps 300", *options)
    brief = rms.submit(f"{note}while [ ! -e go ]; do sleep 0.1; done; touch slept")
    waits = rms.submit(note, "--nodes", "3")
    rms.running(long)
    rms.end(signal.SIGKILL)
    (rms.work / "go").touch()
    status = rms.state / "jobs" / brief / "status"
    end = time.monotonic() + 30
    while not status.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (rms.work / "slept").exists()
    rms.start()
    assert f"job {long}: adopted" in rms.said()
    assert f"job {brief}: ended while the daemon was away" in rms.said()
    rms.running(long)
    rms.ask("resize", long, "2")
    rms.until(lambda: rms.resizes(long), "resize")
    (rms.work / "long" / "go").touch()
    assert rms.over(brief, long, waits) == ["COMPLETED"] * 3
    assert rms.resizes(long) == [(1, 2)]
    assert (rms.work / "starts").read_text().split() == [long, brief, waits]
    rms.ends_well()


@manual(2)
@pytest.mark.wide
def test_a_plain_program_that_ends_while_the_daemon_is_away_has_its_status(rms: Rms) -> None:
    """It leaves no record, as a program of dmr does; the world's own status is kept."""
    waits = "while ! test -e go; do sleep 0.05; done"
    jobs = [rms.submit(f"mpirun sh -c '{waits}; exit {code}'", "--nodes", "1") for code in (0, 3)]
    for job in jobs:
        rms.until(lambda job=job: rms.row(job)["state"] == "RUNNING", f"job {job}")
    rms.until(lambda: len(rms.ranks()) == 2, "two ranks")
    rms.end(signal.SIGKILL)
    rms.hurry()
    end = time.monotonic() + 120
    while rms.ranks():
        assert time.monotonic() < end, "ranks that end"
        time.sleep(0.05)
    rms.start()
    assert rms.over(*jobs) == ["COMPLETED", "FAILED"]


@manual(2)
@pytest.mark.wide
def test_jobs_whose_processes_died_with_the_daemon(rms: Rms) -> None:
    body = 'echo "$SLURM_JOB_ID" >> starts\nuntil [ -e go ]; do sleep 0.1; done'
    again, lost = rms.submit(f"#SBATCH --requeue\n{body}"), rms.submit(body)
    starts = rms.work / "starts"
    rms.until(lambda: starts.exists() and len(starts.read_text().split()) == 2, "two starts")
    rms.end(signal.SIGKILL)
    while found := rms.processes():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    rms.hurry()
    rms.start()
    assert rms.over(again, lost) == ["COMPLETED", "FAILED"]
    assert "its processes died" in rms.row(lost)["reason"]
    assert sorted(starts.read_text().split()) == [again, again, lost]
    assert rms.end(signal.SIGTERM) == 0
    rms.replays()


# --- bad input ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle() -> Iterator[Rms]:
    with served(2, "--policy", "fifo") as found:
        script = found.work / "good.sh"
        script.write_text("#!/bin/sh\nsleep 100\n")
        yield found


def one_sentence(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status, done.stderr + done.stdout
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert all(word in lines[0] for word in words), lines[0]


@pytest.mark.promise("cli")
def test_bad_request_is_answered_in_one_sentence(idle: Rms) -> None:
    """As a process; each bad request is in ``tests/unit/rms/test_rms_commands.py``."""
    before = len(idle.rows())
    one_sentence(idle.rms("submit", "--nodes", "4-2", "good.sh"), 2, "MIN-MAX")
    assert len(idle.rows()) == before


def serve(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return called(main, "serve", "--state", str(state), *options)


@pytest.mark.parametrize("text", ["colour = 1", "[[nodes]]\nname = 'n1'\ncoers = 2", "name = ["])
def test_bad_cluster_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text if "=" in text[:9] else f"name = 'x'\n{text}")
    one_sentence(serve(tmp_path / "s", "--cluster", str(file)), 2, str(file))


def test_daemon_that_can_not_be(idle: Rms, tmp_path: Path) -> None:
    one_sentence(serve(tmp_path / "s", "--policy", "nonsense"), 2, "nonsense", "array-share")
    one_sentence(serve(tmp_path / "s", "--meters", "rapl,watts"), 2, "names of rapl", "'watts'")
    shares = str(ROOT / "jobs" / "less-consume.toml")
    one_sentence(serve(tmp_path / "new", "--policy", shares), 2, "memory_bandwidth_gb_s", "none")
    assert not (tmp_path / "new").exists()
    one_sentence(serve(tmp_path / "s", "--engine", "pbs"), 2, "local, slurm-pilot, slurm", "pbs")
    one_sentence(serve(tmp_path / "s", "--engine", "slurm"), 2, "sinfo")
    one_sentence(serve(tmp_path / "s", "--engine", "slurm-pilot"), 2, "an allocation", "none")
    one_sentence(serve(tmp_path / "s", "--listen", "carrier:pigeon"), 2, "tcp:HOST:PORT")
    one_sentence(serve(tmp_path / "s", "--listen", idle.server), 2, "another daemon answers")
    one_sentence(serve(tmp_path / "s", "--listen", "tcp:0.0.0.0:0"), 2, "127.0.0.1", "ssh -L")
    one_sentence(serve(tmp_path / "s", "--policy-modules", "no.such"), 2, "--policy-modules")
    (tmp_path / "loose").mkdir(mode=0o755)
    one_sentence(serve(tmp_path / "loose"), 2, "chmod 700", "755")
    one_sentence(serve(tmp_path / ("s" * 120)), 2, "at most 100 bytes")
    one_sentence(serve(idle.state), 2, "in use")
    precious = tmp_path / "precious"
    precious.write_text("thesis")
    one_sentence(serve(precious), 2, str(precious))
    one_sentence(serve(tmp_path / "s", "--listen", f"unix:{precious}"), 2, str(precious))
    assert precious.read_text() == "thesis"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        one_sentence(serve(tmp_path / "s", "--listen", f"tcp:127.0.0.1:{port}"), 2, str(port))
    assert idle.rms("queue").returncode == 0


def test_socket_is_its_owners_alone(idle: Rms) -> None:
    found = (idle.state / "socket").stat()
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(idle.state.stat().st_mode) == 0o700
