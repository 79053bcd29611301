"""Races between a resize and another change of its job, held open by a shim of mpiexec."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from daemon import Rms, served
from processes import BIN, ROOT, program
from shims import Shims

PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = "--case random --grid 24 20 8 --backend numpy --every 2 --steps 300"


@pytest.fixture
def rms() -> Iterator[Rms]:
    with served(4, "--policy", "fifo") as found:
        yield found


@pytest.fixture
def shims(rms: Rms) -> Shims:
    return Shims(rms.folder, ("mpiexec",))


def started(rms: Rms, shims: Shims) -> str:
    """Have a malleable job compute on two nodes, by mpiexec behind a shim."""
    line = f"PACE_S=0.05 mpirun {' '.join(PACED)} run {SMALL}"
    path = os.pathsep.join(map(str, (shims.bin, BIN, os.environ["PATH"])))
    options = ("--mode", "malleable", "--nodes", "1-4", "--preferred", "2")
    job = rms.submit(f"echo $SLURM_JOB_ID >> runs\n{line}", *options, PATH=path)
    rms.running(job)
    return job


def ends(rms: Rms, job: str, resizes: list[tuple[int, int]]) -> None:
    """The job completes after these resizes; it ran once, and has ended once."""
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"]
    assert rms.resizes(job) == resizes
    assert (rms.work / "runs").read_text().split() == [job]
    assert rms.said().count(f"job {job} COMPLETED") == 1
    assert [node["state"] for node in rms.get("/nodes")].count("idle") == 4
    rms.ends_well()


def test_a_shrink_is_begun_while_a_grow_is_under_way(rms: Rms, shims: Shims) -> None:
    job = started(rms, shims)
    with shims.held("mpiexec") as reached:
        assert rms.post("/resize", {"id": job, "nodes": 4})["decision"] == "Resize"
        reached()
        assert rms.post("/resize", {"id": job, "nodes": 1})["decision"] != "Resize"
        assert rms.row(job)["resizing"] == "booting"
    rms.until(lambda: rms.resizes(job)[:1] == [(2, 4)], "the grow")
    rms.resized(job, 1)
    ends(rms, job, [(2, 4), (4, 1)])


def test_a_job_ends_while_its_grow_is_under_way(rms: Rms, shims: Shims) -> None:
    """Its new world, which is not there yet, is not kept."""
    job = started(rms, shims)
    with shims.held("mpiexec") as reached:
        rms.post("/resize", {"id": job, "nodes": 4})
        reached()
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        rms.nothing_left()
        ends(rms, job, [])


def test_a_job_that_completed_dies_too(rms: Rms, shims: Shims) -> None:
    """Its completion was acknowledged, and then its processes are gone: it has ended once."""
    job = started(rms, shims)
    rms.hurry()
    rms.over(job)
    rms.end(signal.SIGKILL)
    rms.start()
    ends(rms, job, [])
