"""Jobs that are no programs of dmr: resized by a signal, by a command, or rigid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Rms, served
from processes import BIN, ROOT

NODES = 3
MALLEABLE = ("--mode", "malleable", "--nodes", f"1-{NODES}", "--preferred=1")
POOL = f"exec {sys.executable} {ROOT / 'docs/rms/programs/pool.py'}"
TASK = 'echo "$1 $(taskset -cp $$ | sed s/.*:.//)" >> tasks; sleep 0.3'
BUSY_W = 5.0 + 7.0
"""Of a node of the tests' cluster (``daemon.POWER``) while a job has it."""
WAITS = "until [ -e go ]; do sleep 0.05; done"


@pytest.fixture
def rms(request: pytest.FixtureRequest) -> Iterator[Rms]:
    """Three nodes; resizes on request only, or what a test's parameter says."""
    with served(*getattr(request, "param", (NODES, "--policy", "fifo"))) as daemon:
        yield daemon


def ends(rms: Rms, job: str, resizes: list[tuple[int, int]], how: str) -> None:
    """The job completes after these resizes; books balance, and the journal replays."""
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert rms.resizes(job) == resizes
    rows = rms.row(job)["resizes"]
    assert {row["strategy"] for row in rows} == {how} and all(row["stall_s"] > 0 for row in rows)
    held = [span["end_s"] - span["start_s"] for span in rms.books()["spans"] if span["job"] == job]
    # A node that comes is idle from the decision until the job begins to use it.
    assert 0.9 * sum(held) <= rms.row(job)["energy_j"] / BUSY_W <= sum(held) * (1.0 + 1e-9)
    rms.ends_well()


# --- a signal and a file --------------------------------------------------------------------------


@pytest.mark.promise("other-jobs", "books", "replay")
def test_a_pool_of_processes_follows_a_signal(rms: Rms) -> None:
    (rms.work / "task.sh").write_text(TASK)
    body = f"#RMS --resize-by=signal\n{POOL} 60 task.sh"
    job = rms.submit(body, *MALLEABLE)
    for size in (3, 1, 2):
        rms.resized(job, size)
    assert rms.over(job) == ["COMPLETED"]
    assert [line.split()[0] for line in rms.output(job).splitlines()] == ["3", "1", "2"]
    done = [line.split() for line in (rms.work / "tasks").read_text().splitlines()]
    assert sorted(int(task) for task, _ in done) == list(range(60))
    ends(rms, job, [(1, 3), (3, 1), (1, 2)], "signal")


SIGNALLED = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["RMS_RESIZE"])
def put(name, text):
    (folder / "part").write_text(text); (folder / "part").rename(folder / name)
taken = 0
def take(*_):
    global taken
    (folder / "request").rename(folder / "taken")
    taken = json.loads((folder / "taken").read_text())["number"]
signal.signal(signal.SIGUSR1, take)
"""
"""The begin of a program that takes requests."""


def program(rms: Rms, rest: str) -> str:
    (rms.work / "signalled.py").write_text(SIGNALLED + rest)
    return f"#RMS --resize-by=signal\nexec {sys.executable} signalled.py"


def test_a_job_refuses_for_now_or_for_good(rms: Rms) -> None:
    reasons = ["later: between two epochs", "three do not fit"]
    body = f"""
reasons = {reasons}
put("pid", str(os.getpid()))
while not os.path.exists("go"):
    if taken and reasons:
        put("answer", json.dumps({{"number": taken, "refused": reasons.pop(0)}}))
        taken = 0
    elif taken:
        put("answer", json.dumps({{"number": taken}}))
        taken = 0
    time.sleep(0.02)
"""
    job = rms.submit(program(rms, body), *MALLEABLE)
    for number in (1, 2):
        rms.until(lambda: rms.rms("resize", job, "3").returncode == 0, "request")
        rms.until(lambda n=number: len(rms.rolled_back(job)) == n, f"refusal {number}")
    assert rms.rolled_back(job) == reasons and rms.resizes(job) == []
    rms.resized(job, 2)
    ends(rms, job, [(1, 2)], "signal")


def test_bad_files_are_named_in_the_output(rms: Rms) -> None:
    body = """
put("pid", "me")
time.sleep(0.5)
put("pid", str(os.getppid() if os.getppid() > 1 else 2) + "0000000")
put("pid", str(os.getpid()))
while not taken:
    time.sleep(0.02)
for answer in ("yes", '{"number": 99}', '{"number": "1"}', '{"number": %d}' % taken):
    put("answer", answer)
    time.sleep(0.5)
while not os.path.exists("go"):
    time.sleep(0.02)
"""
    job = rms.submit(program(rms, body), *MALLEABLE)
    rms.resized(job, 2)
    said = rms.output(job).splitlines()
    form = '{"number": 1} or {"number": 1, "refused": "WHY"}'
    got = [line.rpartition("got ")[2] for line in said if line.startswith(f"rms: expected {form}")]
    assert got == ["'yes'", "one to request 99", """'{"number": "1"}'"""], said
    assert said[0].endswith("/pid, got 'me'") and "expected a process id" in said[0]
    ends(rms, job, [(1, 2)], "signal")


def test_a_job_that_never_says_that_it_is_ready_keeps_its_size(rms: Rms) -> None:
    job = rms.submit(f"#RMS --resize-by=signal\n{WAITS}", *MALLEABLE)
    rms.until(lambda: rms.row(job)["state"] == "RUNNING", "running job")
    assert rms.ask("resize", job, "2")["decision"] == "Waits"
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"] and rms.resizes(job) == []
    rms.ends_well()


def test_a_job_ends_while_it_is_notified(rms: Rms) -> None:
    """It has taken the request and never answers; its nodes are free at once."""
    body = 'put("pid", str(os.getpid()))\nwhile not taken: time.sleep(0.02)\ntime.sleep(0.5)\n'
    job = rms.submit(program(rms, body), *MALLEABLE)
    rms.rms("resize", job, "3")
    assert rms.over(job) == ["COMPLETED"] and rms.resizes(job) == []
    assert {node["state"] for node in rms.ask("nodes")} == {"idle"}
    rms.ends_well()


# --- a command ------------------------------------------------------------------------------------


def commanded(rms: Rms, command: str) -> str:
    """Submit a job that waits, and is notified by a command."""
    (rms.work / "resize.sh").write_text(command)
    begin = 'echo "start $RMS_RANKS $RMS_HOSTS" >> lines'
    body = f"#RMS --resize-by='command:sh resize.sh'\n{begin}\n{WAITS}"
    job = rms.submit(body, *MALLEABLE)
    rms.until(lambda: (rms.work / "lines").exists(), "first line")
    return job


@pytest.mark.promise("other-jobs", "books", "replay")
def test_a_command_is_run_for_each_resize(rms: Rms) -> None:
    job = commanded(rms, 'echo "$RMS_RANKS_BEFORE $RMS_RANKS $RMS_SLOTS" >> lines')
    for size in (2, 3, 1):
        rms.resized(job, size)
    lines = [line.split() for line in (rms.work / "lines").read_text().splitlines()]
    assert lines[0] == ["start", "1", "localhost"]
    assert [line[:2] for line in lines[1:]] == [["1", "2"], ["2", "3"], ["3", "1"]]
    assert [len(line) - 2 for line in lines[1:]] == [2, 3, 1]
    ends(rms, job, [(1, 2), (2, 3), (3, 1)], "command")


def test_the_status_of_the_command_is_the_answer(rms: Rms) -> None:
    job = commanded(rms, "case $RMS_RANKS in 2) exit 3;; 3) exit 75;; esac")
    rms.ask("resize", job, "2")
    rms.until(lambda: len(rms.rolled_back(job)) == 1, "refusal")
    rms.until(lambda: rms.rms("resize", job, "3").returncode == 0, "request")
    rms.until(lambda: len(rms.rolled_back(job)) == 2, "second refusal")
    command = "command 'sh resize.sh' ended with"
    assert rms.rolled_back(job) == [f"{command} 3", f"later: {command} 75"]
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"] and rms.resizes(job) == []
    rms.ends_well()


@pytest.mark.promise("other-jobs")
def test_a_killed_daemon_neither_loses_nor_repeats_a_resize(rms: Rms) -> None:
    job = commanded(rms, "echo told >> lines; until [ -e on ]; do sleep 0.05; done")
    rms.ask("resize", job, "3")
    rms.until(lambda: "told" in (rms.work / "lines").read_text(), "command")
    rms.until(lambda: rms.row(job)["resizing"] == "moving", "resize under way")
    rms.end(signal.SIGKILL)
    rms.start()
    assert rms.row(job)["resizing"] == "moving"
    rms.end(signal.SIGKILL)
    (rms.work / "on").touch()  # the command ends while no daemon is there
    rms.start()
    rms.until(lambda: rms.resizes(job), "resize")
    assert (rms.work / "lines").read_text().count("told") == 1
    ends(rms, job, [(1, 3)], "command")


def test_a_cancelled_job_ends_with_its_command(rms: Rms) -> None:
    job = commanded(rms, "echo told >> lines; trap '' TERM; sleep 600")
    rms.ask("resize", job, "2")
    rms.until(lambda: "told" in (rms.work / "lines").read_text(), "command")
    rms.ask("cancel", job)
    assert rms.over(job) == ["CANCELLED"] and rms.resizes(job) == []
    rms.ends_well()


def test_a_cooldown_lies_between_resizes(rms: Rms) -> None:
    script = f"#RMS --resize-by=command:true --cooldown=3\ntouch lines\n{WAITS}"
    job = rms.submit(script, *MALLEABLE)
    for size in (2, 3):
        rms.resized(job, size)
    first, second = rms.row(job)["resizes"]
    assert second["at_s"] - first["at_s"] >= 3.0
    ends(rms, job, [(1, 2), (2, 3)], "command")


def test_launcher_lines_of_such_a_job_are_the_systems(rms: Rms) -> None:
    """Its ranks are the job's own; the daemon takes no launcher line of it."""
    body = f"""#RMS --resize-by=command:true
command -v mpirun > which
{sys.executable} -m rms launch -- true
echo "launch gave $?"
{BIN / "mpirun"} -n 2 sh -c 'echo rank'"""
    job = rms.submit(body, *MALLEABLE)
    assert rms.over(job) == ["COMPLETED"]
    assert str(rms.state) not in (rms.work / "which").read_text()
    output = rms.output(job)
    assert "expected a job that is notified of a new size by messages (--resize-by)" in output
    assert "launch gave 2" in output and output.count("rank\n") == 2


def test_signals_before_the_time_limit_reach_the_script(rms: Rms) -> None:
    script = "trap 'echo heard; exit 0' USR1\nwhile :; do sleep 0.1; done"
    head = "#RMS --resize-by=command:true --signal=B:USR1@57 --time=1"
    job = rms.submit(f"{head}\n{script}", *MALLEABLE)
    assert rms.over(job) == ["COMPLETED"] and rms.output(job) == "heard\n"


@pytest.mark.parametrize("mode", ["fixed", "moldable"])
def test_the_mode_permits_resizes_not_the_way(rms: Rms, mode: str) -> None:
    head = "#RMS --resize-by=command:true"
    job = rms.submit(f"{head}\n{WAITS}", "--mode", mode, "--nodes", "1-2")
    rms.until(lambda: rms.row(job)["state"] == "RUNNING", "running job")
    refused = rms.rms("resize", job, "1")
    assert refused.returncode == 2 and f"a {mode} job is not resized" in refused.stderr
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"] and rms.resizes(job) == []


# --- rigid jobs in C beside them ------------------------------------------------------------------


@pytest.fixture(scope="module")
def rigid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program ``rigid.c``, compiled by the mpicc of this environment."""
    mpicc, source = BIN / "mpicc", ROOT / "tests" / "support" / "programs" / "rigid.c"
    if not mpicc.exists() or shutil.which("cc") is None:
        pytest.skip("no mpicc beside Python, or no C compiler")
    target = tmp_path_factory.mktemp("rigid") / "rigid"
    env = {**os.environ, "MPICH_CC": "cc"}
    done = subprocess.run(
        [mpicc, "-o", target, source], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.promise("other-jobs", "modes")
@pytest.mark.parametrize("rms", [(NODES,)], indirect=True)
def test_a_rigid_program_in_c_gets_nodes_of_a_malleable_pool(rms: Rms, rigid: Path) -> None:
    """The default policy shrinks the pool for a job that waits, and widens it afterwards."""
    (rms.work / "task.sh").write_text(TASK)
    body = f"#RMS --resize-by=signal\n{POOL} 100 task.sh"
    pool = rms.submit(body, "--mode", "flexible", "--nodes", f"1-{NODES}", "--time", "3")
    rms.until(lambda: (rms.work / "tasks").exists(), "first task")
    assert rms.row(pool)["size"] == NODES
    job = rms.submit(f"mpirun {rigid} 20", "--nodes", "2", "--time", "1")
    assert rms.over(job) == ["COMPLETED"]
    assert rms.output(job) == "2 ranks, sum 1\n" and rms.resizes(job) == []
    assert rms.row(pool)["state"] == "RUNNING"
    rms.until(lambda: len(rms.resizes(pool)) == 2, "way back")
    ends(rms, pool, [(3, 1), (1, 3)], "signal")
