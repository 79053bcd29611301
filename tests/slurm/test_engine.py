"""Engine ``slurm`` on a real Slurm: resizes of running jobs, other users, faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting import AccountingRecord, records_from_text
from processes import ROOT
from slurm_bed import NODES, Slurm
from slurm_daemon import CASE, STEPS, SlurmRms, bare, serving, write_script

GRACE = ("--grace", "5")
LATE_S = 120.0


@pytest.fixture
def rms(slurm: Slurm) -> Iterator[SlurmRms]:
    with serving(slurm, *GRACE) as found:
        yield found


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job of ``script`` has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


def books(bed: Slurm, number: int) -> list[AccountingRecord]:
    """Return what accounting has of a job."""
    said = bed(
        *["sacct", "--duplicates", "--noheader", "--parsable2", f"--jobs={number}"],
        "--format=JobIDRaw,JobID,State,NNodes,NodeList,Submit,Start,End,JobName",
        SLURM_TIME_FORMAT="%s",
    )
    return records_from_text(said)


def agree(rms: SlurmRms, job: str) -> list[AccountingRecord]:
    """Wait until accounting has a job whole; it must say of its nodes and times what rms does."""
    row = rms.row(job)

    def same() -> list[AccountingRecord]:
        found = books(rms.bed, row["slurm"]["slurm_job"])
        held = rms.row(job)["slurm"]["held"][:-1]
        theirs = [(record.start_s, set(record.hosts)) for record in found]
        agrees = theirs == [(h["at_s"], set(h["nodes"])) for h in held]
        return found if agrees and found[-1].state != "RESIZING" else []

    try:
        found: list[AccountingRecord] = rms.until(same, f"agreement on job {job}")
    except AssertionError as error:
        theirs = books(rms.bed, row["slurm"]["slurm_job"])
        raise AssertionError(f"{row['slurm']}, in accounting {theirs}") from error
    # The last but one ends as the job does, if that ends while its last resize is under way.
    assert {record.state for record in found[:-2]} <= {"RESIZING"}
    assert {record.state for record in found[-2:-1]} <= {"RESIZING", found[-1].state}
    assert found[-1].end_s
    # Changes are entered at Slurm's own time, ends when they were seen; and a job is over for the
    # RMS once nothing of it is left here, such as a world that was still booting.
    # How late depends on how long Slurm's commands take.
    assert abs(row["start_s"] - (found[0].start_s or 0)) < LATE_S
    assert 0 <= row["slurm"]["held"][-1]["at_s"] - found[-1].end_s < LATE_S
    assert row["end_s"] >= found[-1].end_s
    return found


# --- an array ----------------------------------------------------------------------------------


@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
@pytest.mark.promise("slurm-bits")
def test_the_winds_array(rms: SlurmRms, tmp_path: Path) -> None:
    """Flexible jobs, the default policy: grown and shrunk while they run, the same bits as ever."""
    winds = os.environ.get("MPDATA_WINDS") or str(ROOT / "demo" / "winds")
    if not Path(winds, "uwnd_mean.nc").exists():
        pytest.skip("needs the wind files: MPDATA_WINDS, or ./scripts/demo once")
    given = {"MPDATA_WINDS": winds, "WINDS_DAYS": "8"}
    winds_sh = ROOT / "jobs" / "winds.sh"
    first = rms.submit_file("--array=1", "--nodes=1-4", script=winds_sh, **given)
    rms.running(f"{first}_1")
    fast = rms.work / "fast"
    fast.mkdir()
    (fast / "go").touch()
    others = rms.submit_file("--array=2-4", script=winds_sh, folder=fast, **given)
    jobs = [f"{first}_1", *(f"{others}_{n}" for n in (2, 3, 4))]

    def both() -> bool:
        steps = [(r["from"], r["to"]) for r in rms.row(jobs[0])["resizes"]]
        return any(new < old for old, new in steps) and any(new > old for old, new in steps)

    rms.until(both, "a shrink and an expansion of the first")
    rms.hurry()
    assert rms.over(*jobs) == ["COMPLETED"] * 4

    records = {job: agree(rms, job) for job in jobs}
    steps = [(r["from"], r["to"]) for job in jobs for r in rms.row(job)["resizes"]]
    sizes = [(a.nodes, b.nodes) for r in records.values() for a, b in itertools.pairwise(r)]
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


@pytest.mark.promise("slurm-bits")
def test_other_users_are_worked_around(rms: SlurmRms, answer: str) -> None:
    bed = rms.bed
    by_hand = bed.allocate("--nodes=1", "--nodelist=n2", "--job-name=byhand")
    rms.until(lambda: node(rms, "n2") != "idle", "word of it")
    write_script(rms, "#SBATCH --nodes=1-4", "#RMS --mode=flexible")
    job = rms.submit_file()
    rms.running(job)
    assert rms.row(job)["nodes"] == ["n1", "n3", "n4"]
    bed("scancel", by_hand)
    rms.until(lambda: len(rms.row(job)["nodes"]) == 4, "its node too")
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    assert [record.nodes for record in agree(rms, job)] == [3, 4]
    assert rms.row(job)["answer"] == answer
    rms.nothing_left()


def node(rms: SlurmRms, name: str) -> str:
    """Return the state of a node as ``rms nodes`` has it."""
    found: str = next(n["state"] for n in rms.get("/nodes") if n["name"] == name)
    return found


def test_options_of_slurms_own_are_passed_on(rms: SlurmRms, answer: str) -> None:
    write_script(
        *[rms, "#SBATCH --nodes=2", "#SBATCH --mem=77 -p all", "#SBATCH --comment 'for sbatch'"],
        *["#SBATCH --time=10", "#SBATCH --ntasks=2"],
    )
    job = rms.submit_file()
    rms.running(job)
    shown = rms.bed.show(str(rms.number(job)))
    assert shown["MinMemoryNode"] == "77M"
    assert shown["Partition"] == "all"
    assert shown["NumNodes"] == "2"
    assert shown["TimeLimit"] == "00:12:00"  # with the grace, and a minute
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    assert rms.row(job)["answer"] == answer


def test_the_end_of_the_daemon_leaves_nothing(rms: SlurmRms) -> None:
    write_script(rms, "#SBATCH --nodes=3")
    running, waiting = rms.submit_file(), rms.submit_file()
    rms.running(running)
    assert rms.end() == 0
    rms.process = None
    queue = rms.bed("squeue", "--noheader")
    rms.bed.wait_until(lambda: len(rms.bed.idle()) == NODES, "all nodes idle")
    assert "RUNNING" not in queue and waiting != running
