"""Engine ``slurm`` on a real Slurm: resizes of running jobs, other users, faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import NODES, ROOT, Slurm, brought_up
from served import Rms, serving

from rms.slurm.output import Record, records_from_text

BIN = Path(sys.executable).parent
CASE = "--case random --seed 7 --grid 24 20 8 --every 2"
STEPS = 400
GRACE = ("--grace", "5")


@pytest.fixture
def rms(slurm: Slurm) -> Iterator[Rms]:
    with serving(slurm, *GRACE) as found:
        yield found


def script(rms: Rms, *lines: str, steps: int = STEPS, more: str = "") -> None:
    """Write a job script of one launcher line, with these ``#SBATCH`` and ``#RMS`` lines."""
    head = "\n".join(lines)
    run = f"srun mpdata run {CASE} --steps {steps} --json out-$RMS_JOB_ID.json {more}"
    (rms.work / "job.sh").write_text(f"#!/bin/sh\n{head}\n{run}\n")


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job of ``script`` has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


def bare(folder: Path, *options: str) -> str:
    """Return the hash of a run without any RMS."""
    command = [str(BIN / "mpiexec"), "-n", "1", str(BIN / "mpdata"), "run", *options]
    subprocess.run(
        [*command, "--json", "bare.json"], cwd=folder, check=True, capture_output=True, timeout=120
    )
    found: str = json.loads((folder / "bare.json").read_text())["sha256"]
    return found


def books(bed: Slurm, number: int) -> list[Record]:
    """Return what accounting has of a job."""
    said = bed(
        *["sacct", "--duplicates", "--noheader", "--parsable2", f"--jobs={number}"],
        "--format=JobIDRaw,JobID,State,NNodes,NodeList,Submit,Start,End,JobName",
        SLURM_TIME_FORMAT="%s",
    )
    return records_from_text(said)


def agree(rms: Rms, job: str) -> list[Record]:
    """Wait until accounting has a job whole; it must say of its nodes and times what rms does."""
    row = rms.row(job)

    def same() -> list[Record]:
        found = books(rms.bed, row["slurm"]["slurm_job"])
        held = rms.row(job)["slurm"]["held"][:-1]
        theirs = [(record.start_s, set(record.hosts)) for record in found]
        return found if theirs == [(h["at_s"], set(h["nodes"])) for h in held] else []

    found: list[Record] = rms.until(f"agreement on job {job}: {row}", same, 20)
    assert {record.state for record in found[:-1]} <= {"RESIZING"}
    assert found[-1].end_s
    # Changes are entered at Slurm's own time, a start and an end when they were seen.
    assert abs(row["start_s"] - (found[0].start_s or 0)) < 5
    assert abs(row["end_s"] - found[-1].end_s) < 5
    return found


# --- an array ----------------------------------------------------------------------------------


def test_the_winds_array(rms: Rms, tmp_path: Path) -> None:
    """Flexible jobs under array-share: grown and shrunk while they run, the same bits as ever."""
    winds = os.environ.get("MPDATA_WINDS") or str(ROOT / "demo" / "winds")
    if not Path(winds, "uwnd_mean.nc").exists():
        pytest.skip("needs the wind files: MPDATA_WINDS, or ./scripts/demo once")
    given = {"MPDATA_WINDS": winds, "WINDS_DAYS": "8"}
    winds_sh = ROOT / "jobs" / "winds.sh"
    first = rms.submit("--array=1", "--nodes=1-4", script=winds_sh, **given)
    rms.computing(f"{first}_1")
    others = rms.submit("--array=2-4", script=winds_sh, **given)
    jobs = [f"{first}_1", *(f"{others}_{n}" for n in (2, 3, 4))]
    rms.until("a shrink", lambda: any(r["to"] < r["from"] for r in rms.row(jobs[0])["resizes"]))
    rms.computing(jobs[-1])
    rms.hurry()
    assert rms.over(*jobs) == ["COMPLETED"] * 4

    records = {job: agree(rms, job) for job in jobs}
    steps = [(r["from"], r["to"]) for job in jobs for r in rms.row(job)["resizes"]]
    assert any(new > old for old, new in steps), steps
    assert any(new < old for old, new in steps), steps
    sizes = [(a.nodes, b.nodes) for r in records.values() for a, b in zip(r, r[1:], strict=False)]
    assert set(steps) <= set(sizes)
    for job in jobs:
        assert records[job][-1].state == "COMPLETED"
        month = job.rpartition("_")[2]
        files = [f"{winds}/{name}_mean.nc" for name in ("uwnd", "vwnd")]
        same = bare(
            tmp_path,
            *["--winds", *files, "--month", month, "--grid", "144", "60", "16"],
            *["--days", "8", "--every", "5"],
        )
        assert rms.row(job)["answer"] == same
    rms.nothing_left()


def test_other_users_are_worked_around(rms: Rms, answer: str) -> None:
    bed = rms.bed
    by_hand = bed.allocate("--nodes=1", "--nodelist=n2", "--job-name=byhand")
    rms.until("word of it", lambda: node(rms, "n2") != "idle")
    script(rms, "#SBATCH --nodes=1-4", "#RMS --mode=flexible")
    job = rms.submit()
    rms.computing(job)
    assert rms.row(job)["nodes"] == ["n1", "n3", "n4"]
    bed("scancel", by_hand)
    rms.until("its node too", lambda: len(rms.row(job)["nodes"]) == 4)
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    assert [record.nodes for record in agree(rms, job)] == [3, 4]
    assert rms.row(job)["answer"] == answer
    rms.nothing_left()


def node(rms: Rms, name: str) -> str:
    """Return the state of a node as ``rms nodes`` has it."""
    from rms.clientside import call

    found: str = next(n["state"] for n in call(rms.server, "GET", "/nodes") if n["name"] == name)
    return found


def test_options_of_slurms_own_are_passed_on(rms: Rms, answer: str) -> None:
    script(
        *[rms, "#SBATCH --nodes=2", "#SBATCH --mem=77 -p all", "#SBATCH --comment 'for sbatch'"],
        *["#SBATCH --time=10", "#SBATCH --ntasks=99"],
    )
    job = rms.submit()
    rms.computing(job)
    shown = rms.bed.show(str(rms.number(job)))
    assert shown["MinMemoryNode"] == "77M"
    assert shown["Partition"] == "all"
    assert shown["NumNodes"] == "2"
    assert shown["TimeLimit"] == "00:12:00"  # with the grace, and a minute
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    assert rms.row(job)["answer"] == answer


def test_the_end_of_the_daemon_leaves_nothing(rms: Rms) -> None:
    script(rms, "#SBATCH --nodes=3")
    running, waiting = rms.submit(), rms.submit()
    rms.computing(running)
    assert rms.end() == 0
    rms.process = None
    queue = rms.bed("squeue", "--noheader")
    rms.bed.wait_until("all nodes idle", lambda: len(rms.bed.idle()) == NODES)
    assert "RUNNING" not in queue and waiting != running
