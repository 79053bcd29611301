"""Books of a real run on a metered machine: resized, its agent and its daemon killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import defaultdict
from contextlib import closing as closed
from typing import Any

import pytest
from daemon import closing
from metered import MeteredRms
from powercap import last_known
from processes import ROOT, program

PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
JOB = f"PACE_S=0.1 mpirun {' '.join([*PACED, 'run', *SMALL])} --steps 400"


@pytest.mark.promise("books-measured", "meters")
def test_no_joule_is_lost_or_counted_twice_though_daemon_and_agent_are_killed() -> None:
    """The packages' counters wrap around on the way; the device's power is integrated."""
    begun_s = time.time()
    with closing(MeteredRms(3, "--policy", "fifo")) as rms:
        rms.until(lambda: rms.sources() == ["rapl", "rapl", "nvidia-smi"], "readings of all nodes")
        read_s = time.time()
        first = rms.submit("true", "--mode", "fixed")
        rms.until(lambda: rms.row(first)["summary"], "a report of the time after the books' begin")
        with rms.counters:  # they stood still until then
            job = rms.submit(JOB, "--mode", "malleable", "--nodes", "1-2", "--preferred=1")
            rms.running(job)
            rms.resized(job, 2)
            killed = rms.agent()
            os.kill(killed, signal.SIGKILL)
            rms.until(lambda: rms.agent() != killed, "another agent")
            rms.end(signal.SIGKILL)
            rms.start()
            again_s = time.time()  # the last reading may be of any time after this
            assert f"job {job}: adopted" in rms.said()
            rms.resized(job, 1)
            rms.hurry()
            assert rms.over(job) == ["COMPLETED"]
        # Readings say whole seconds: the last one is of after that once two more have passed.
        rms.until(lambda: time.time() > again_s + 2.0, "a later reading")
        known = last_known(rms, rms.agent())
        found, row = rms.get("/acct"), rms.row(job)
        rms.ends_well()
        rows_j = by_device(found["rows"])
        for n, counted_uj in enumerate(rms.counters.counted_uj):
            device = f"package-{n}"
            assert known[device].joules == pytest.approx(counted_uj * 1e-6, rel=1e-12)
            assert known[device].unseen_s == 0.0
            assert counted_uj > 60_000_000  # more than was left until it wrapped around
            assert rows_j[device] == pytest.approx(counted_uj * 1e-6, rel=1e-9)
        gpu = known["gpu-0"]
        assert gpu.unseen_s > 0.0  # from the kill to the next reading
        measured_s = gpu.joules / 75.0
        assert again_s - read_s < measured_s + gpu.unseen_s < time.time() - begun_s
        measured_j = sum(r["joules"] for r in found["rows"] if r["source"] != "model")
        assert measured_j == pytest.approx(sum(rows_j.values()), rel=1e-9) and measured_j > 0
        sources = {part["source"] for part in row["energy"]}
        assert "rapl by cpu time" in sources and sources <= {"rapl", "rapl by cpu time"}
        # A resize's joules are those of its rows; at both, both worlds' nodes were the job's.
        assert [(r["from"], r["to"]) for r in row["resizes"]] == [(1, 2), (2, 1)]
        for resize in row["resizes"]:
            own = [r for r in found["rows"] if r["resize"] == resize["number"]]
            assert {r["owner"] for r in own} == {job} and {r["node"] for r in own} == {"n1", "n2"}
            total_j = sum(r["joules"] for r in own)
            assert total_j == pytest.approx(resize["energy_j"], rel=1e-9) and total_j > 0.0
        worlds = {r["world"] for r in found["rows"] if r["owner"] == job}
        assert {0, 1, 2} <= worlds
        with closed(sqlite3.connect(rms.state / "journal.sqlite")) as db:
            whose = dict(db.execute("SELECT owner, sum(joules) FROM energy GROUP BY owner"))
        assert whose[job] == pytest.approx(row["energy_j"], rel=1e-9)


def by_device(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return what was measured of each device."""
    found: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["source"] != "model":
            found[row["device"]] += row["joules"]
    return found


def test_a_job_that_computes_has_more_than_one_that_waits_beside_it() -> None:
    """Each holds a core of the same packages, whose counters begin to count then."""
    with closing(MeteredRms(3, "--policy", "fifo")) as rms:
        rms.until(lambda: "rapl" in rms.sources(), "readings")
        waits = rms.submit("sleep 8", "--mode", "fixed")
        computes = rms.submit("timeout 8 sh -c 'while :; do :; done'", "--mode", "fixed")
        rms.until(lambda: rms.row(computes)["state"] == "RUNNING", "both jobs")
        with rms.counters:
            assert rms.over(waits) == ["COMPLETED"]
            assert rms.over(computes) == ["FAILED"]  # by its time
            rms.until(lambda: rms.row(computes)["summary"], "a report of its end")
        rows = {job: rms.row(job) for job in (waits, computes)}
        rms.ends_well()
    for row in rows.values():
        (part,) = (part for part in row["energy"] if part["source"].startswith("rapl by"))
        assert part["source"] == "rapl by cpu time" and part["estimate"]
        assert 0.0 < part["uncertainty_j"] < row["energy_j"]
    # By how much depends on what else the machine does: no core is idle to have the energy of that.
    assert rows[computes]["energy_j"] > rows[waits]["energy_j"]
