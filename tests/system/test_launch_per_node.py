"""A job that starts as a launch for each node lets go of nodes without a new world."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import DEADLINE_S, LocalRms, closing, served
from faulty_jobs import FAULTY, SMALL, STEPS
from processes import MPDATA, MPIEXEC, Refused, program

PER_NODE = {"DMR_LAUNCHES": "node"}
MALLEABLE = ["--mode", "malleable", "--nodes", "2"]


def alone(folder: Path) -> str:
    """Return the bits of a run that is left alone."""
    command = [MPIEXEC, "-n", "1", *MPDATA, "run", *SMALL, "--steps", STEPS, "--json", "out.json"]
    subprocess.run(command, check=True, timeout=300, capture_output=True, cwd=folder)
    bits: str = json.loads((folder / "out.json").read_text())["sha256"]
    return bits


@pytest.mark.promise("launch-per-node")
def test_nodes_are_let_go_and_taken_without_a_new_world(tmp_path: Path) -> None:
    with served(3, "--policy", "fifo") as rms:
        words = ["mpirun", *FAULTY, "none", "run", *SMALL, "--steps", STEPS]
        job = rms.submit(" ".join(words), "--mode", "malleable", "--nodes", "1-3", **PER_NODE)
        rms.running(job)
        assert len(rms.ranks()) == 3 and rms.row(job)["size"] == 3
        rms.resized(job, 2)
        assert rms.end(signal.SIGKILL) != 0
        rms.start("--policy", "fifo")  # which adopts both launches
        rms.resized(job, 1)
        rms.resized(job, 3)
        rms.resized(job, 1)
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
        row = rms.row(job)
        assert rms.resizes(job) == [(3, 2), (2, 1), (1, 3), (3, 1)]
        assert {each["strategy"] for each in row["resizes"]} == {"merge"}
        assert [each["boot_s"] > 0.0 for each in row["resizes"]] == [False, False, True, False]
        assert row["answer"] == alone(tmp_path)
        rms.nothing_left()
        assert rms.end() == 0
        rms.replays()


def test_another_value_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMR_LAUNCHES", "nodes")
    said = refused("run", "--case", "gaussian", "--steps", "1")
    assert "expected DMR_LAUNCHES=node, or none, got 'nodes'" in said


@pytest.mark.wide
def test_a_loop_of_ones_own_lets_go_of_nodes_too(tmp_path: Path) -> None:
    loops = program("any_loops")
    plain = subprocess.run(loops, cwd=tmp_path, check=True, capture_output=True, text=True)
    with served(3, "--policy", "fifo") as rms:
        words = ["export PACE_S=2; mpirun", *program("paced"), loops[1], "runtime"]
        options = ["--mode", "malleable", "--nodes", "1-3", "--preferred", "3"]
        job = rms.submit(" ".join(words), *options, **PER_NODE)
        for count, size in enumerate((2, 3, 1), 1):
            rms.running(job)
            rms.resized(job, size)
            rms.until(lambda count=count: len(rms.row(job)["resizes"]) == count, f"resize {count}")
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"], rms.output(job)
        assert rms.resizes(job) == [(3, 2), (2, 3), (3, 1)]
        assert {each["strategy"] for each in rms.row(job)["resizes"]} == {"merge"}
        assert f"in {plain.stdout.partition('in ')[2]}" in rms.output(job)
        rms.nothing_left()


class Dying(LocalRms):
    """A daemon that dies when it has started so many launches, the first time."""

    launches = 0

    def serve_command(self) -> list[str]:
        serve = super().serve_command()
        if not self.launches:
            return serve
        return [*program("faulty_launch"), str(self.launches), *serve[serve.index("serve") :]]


@pytest.mark.wide
@pytest.mark.parametrize("launches", [1, 2])
def test_a_daemon_killed_amid_the_launches_of_a_start(tmp_path: Path, launches: int) -> None:
    with closing(Dying(2, "--policy", "fifo")) as rms:
        assert rms.end() == 0
        rms.launches = launches
        rms.start()
        words = ["mpirun", *FAULTY, "none", "run", *SMALL, "--steps", STEPS]
        job = rms.submit(" ".join(words), *MALLEABLE, **PER_NODE)
        assert rms.process is not None and rms.process.wait(DEADLINE_S) == -signal.SIGKILL
        rms.launches = 0
        rms.start()
        rms.running(job)
        assert len(rms.ranks()) == 2
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
        assert rms.row(job)["answer"] == alone(tmp_path)
        rms.nothing_left()


@pytest.mark.wide
def test_what_cannot_start_so_is_told_or_starts_as_one_launch() -> None:
    with served(2, "--policy", "fifo") as rms:
        ported = Path(__file__).parents[2] / "jobs" / "ports" / "heat.py"
        own = rms.submit(f"mpirun {sys.executable} {ported}", *MALLEABLE, **PER_NODE)
        words = ["mpirun", *MPDATA, "run", *SMALL, "--steps", "20"]
        fixed = rms.submit(" ".join(words), "--mode", "fixed", "--nodes", "2", **PER_NODE)
        dies = f"test $DMR_WORLD = 1 && exit 7; exec {' '.join(words[1:])}"
        early = rms.submit(f"mpirun sh -c '{dies}'", *MALLEABLE, **PER_NODE)
        assert rms.over(own, fixed, early) == ["FAILED", "COMPLETED", "FAILED"]
        assert "expected all ranks in one launch, got 2" in rms.output(own)
        rms.nothing_left()
