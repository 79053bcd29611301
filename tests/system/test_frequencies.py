"""Frequencies that a policy decides, set by a real daemon on files like the kernel's."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from cpufreq import CPUFREQ_VARIABLE, limits, tree
from daemon import LocalRms, closing

PART = """
from rms.core.events import Reason, Start

def as_powered(state, queue, plan, room):
    "Each job at so many percent of the highest frequency as it states watts."
    starts = []
    for job in queue:
        if room.fits(job, 1):
            nodes, share = room.place(job, 1), job.spec.power_w / 100
            starts.append(Start(job.spec.id, nodes, "Fits", Reason.FITS, 0, 1.0, (share,)))
    return starts
"""
POLICY = 'admission = { part = "as_asked_here:as_powered" }\n'
FOUND = (800, 2000)


class Clocked(LocalRms):
    """All cores have one frequency together."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "clocked.toml").write_text(POLICY)
        cores = tuple(range(os.cpu_count() or 1))
        self.cpufreq = tree(self.folder / "cpufreq", {0: cores})

    def serve_command(self) -> list[str]:
        return [*super().serve_command(), "--policy", str(self.folder / "clocked.toml")]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), CPUFREQ_VARIABLE: str(self.cpufreq)}

    def held(self, watts: int) -> tuple[str, Path]:
        """Submit a job that runs as long as there is a file; return both."""
        file = self.work / f"holds-{watts}"
        file.touch()
        body = f"while test -e {file}; do sleep 0.05; done"
        return self.submit(body, "--nodes", "1", "--power", str(watts)), file

    def set_to(self, mhz: tuple[int, int]) -> None:
        self.until(lambda: limits(self.cpufreq) == [mhz], f"cores at {mhz} MHz")


@pytest.fixture(autouse=True)
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "as_asked_here.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.wide
@pytest.mark.promise("frequency-live")
def test_cores_follow_their_jobs_and_are_left_as_found_whatever_happens() -> None:
    with closing(Clocked(2)) as rms:
        first, first_runs = rms.held(50)
        rms.set_to((1000, 1000))
        assert rms.row(first)["frequency"] == 0.5
        assert [row["frequency"] for row in rms.get("/nodes")] == [0.5, None]
        assert "FREQUENCY" in rms.rms("nodes").stdout and "50 %" in rms.rms("nodes").stdout
        second, second_runs = rms.held(75)
        rms.set_to((1500, 1500))  # the higher of both
        second_runs.unlink()
        rms.over(second)
        rms.set_to((1000, 1000))
        rms.end(signal.SIGKILL)
        rms.process = None
        assert_found(rms)
        rms.start()
        rms.set_to((1000, 1000))  # the job still runs
        first_runs.unlink()
        assert rms.over(first) == ["COMPLETED"]
        rms.set_to(FOUND)
        rms.held(40)
        rms.set_to((800, 800))
        rms.end()
        assert limits(rms.cpufreq) == [FOUND]
        rms.replays()


def assert_found(rms: Clocked) -> None:
    """A process of its own puts frequencies back, so a moment after the daemon's end."""
    deadline = time.monotonic() + 120.0
    while limits(rms.cpufreq) != [FOUND]:
        assert time.monotonic() < deadline, "not put back"
        time.sleep(0.02)


@pytest.mark.wide
@pytest.mark.promise("frequency-live")
def test_where_they_cannot_be_set_that_is_said_once_and_decided_with() -> None:
    with closing(Clocked(2, "--set-frequencies", "no")) as rms:
        job, runs = rms.held(50)
        rms.until(
            lambda: "frequencies are not set here: --set-frequencies no" in rms.said(), "word"
        )
        rms.until(lambda: rms.row(job)["frequency"] is None, "a job at the highest frequency")
        other, other_runs = rms.held(75)
        rms.until(lambda: rms.row(other)["state"] == "RUNNING", "another job")
        assert rms.row(other)["frequency"] is None and limits(rms.cpufreq) == [FOUND]
        for file in (runs, other_runs):
            file.unlink()
        assert rms.over(job, other) == ["COMPLETED"] * 2
        assert rms.said().count("frequencies are not set here") == 1
        rms.end()
        rms.replays()
