"""The test bed's own promises: it starts, it stays apart, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_bed import SCRIPT, Slurm, brought_up, call_script

one_select = pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)


def processes(folder: Path) -> list[str]:
    """Return the command lines of processes that have a folder there or in the environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if str(folder).encode() in command + (entry / "environ").read_bytes():
                found.append(command.decode().replace("\0", " "))
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not there yet, on a path short enough for sockets."""
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    yield place / "bed"
    shutil.rmtree(place)


@one_select
def test_up_twice_is_harmless(slurm: Slurm) -> None:
    again = call_script(
        *["up", "--folder", str(slurm.folder), "--json", "-"],
        *["--nodes", str(slurm.record["nodes"]), "--select", slurm.record["select"]],
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["running"] == slurm.record["running"]


@one_select
def test_up_differently_is_refused(slurm: Slurm) -> None:
    again = call_script("up", "--folder", str(slurm.folder), "--nodes", "2", "--select", "linear")
    assert again.returncode == 1
    assert "bring it down first" in again.stderr
    assert len(slurm.idle()) == slurm.record["nodes"]


@one_select
def test_status_names_what_runs(slurm: Slurm) -> None:
    said = call_script("status", "--folder", str(slurm.folder)).stdout
    for name in ("munged", "mariadbd", "slurmdbd", "slurmctld", "n1", "n4"):
        assert f"{name:9s} pid " in said
    assert "4 of 4" in said


@one_select
def test_what_up_prints_is_for_eval(slurm: Slurm) -> None:
    words = f"--nodes {slurm.record['nodes']} --select {slurm.record['select']}"
    shell = (
        f'eval "$({" ".join(SCRIPT)} up --folder {slurm.folder} {words})"; exec sinfo --noheader'
    )
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=300)
    assert done.stdout.split()[:2] == ["all*", "up"], done.stderr


@one_select
def test_two_at_once_and_nothing_left_of_one(slurm: Slurm) -> None:
    with brought_up("--nodes", "1") as other:
        assert other.idle() == {"n1"}
        assert other.record["cluster"] != slurm.record["cluster"]
        # Slurm loses sight of a process whose parent is gone; the test bed does not.
        job = other.submit(script="sh -c 'setsid sleep 600 &'; sleep 600")
        assert job in other("squeue", "--noheader")
        assert not slurm("squeue", "--noheader", "--states=PENDING,RUNNING")
        assert len(processes(other.folder)) >= 5
    assert not other.folder.exists()
    assert processes(other.folder) == []
    assert len(slurm.idle()) == slurm.record["nodes"]


@pytest.mark.usefixtures("asked")
def test_down_cleans_up_after_a_crash() -> None:
    with brought_up("--nodes", "1") as slurm:
        for name in ("slurmctld", "slurmdbd", "munged", "n1"):
            os.kill(slurm.record["running"][name], signal.SIGKILL)
        again = call_script("up", "--folder", str(slurm.folder), "--nodes", "1")
        assert again.returncode == 1
        assert "bring it down first" in again.stderr
    assert not slurm.folder.exists()
    assert processes(slurm.folder) == []


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_up_ended_midway(folder: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*SCRIPT, "up", "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as up:
        while up.poll() is None and not (folder / "log" / "mariadbd.out").exists():
            time.sleep(0.02)
        up.send_signal(number)
        up.communicate(timeout=300)
    assert folder.exists() == (number == signal.SIGKILL)
    assert call_script("down", "--folder", str(folder)).returncode == 0
    assert not folder.exists()
    assert processes(folder) == []


def test_down_when_nothing_runs(folder: Path) -> None:
    done = call_script("down", "--folder", str(folder))
    assert (done.returncode, done.stderr) == (0, "nothing was running\n")
    assert call_script("status", "--folder", str(folder)).stdout == f"no test bed in {folder}\n"
    assert not folder.exists()


@pytest.mark.parametrize("action", ["up", "down", "status"])
def test_a_folder_of_something_else_is_left_alone(folder: Path, action: str) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()
    done = call_script(action, "--folder", str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith("error: expected ")
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "words", [["--nodes", "0"], ["--folder", "/tmp/" + "x" * 90], ["--folder", "/tmp/a b"]]
)
def test_bad_words_are_refused(words: list[str]) -> None:
    done = call_script("up", *words)
    assert done.returncode == 2
    assert "expected" in done.stderr
    assert "Traceback" not in done.stderr
