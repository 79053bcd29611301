"""Frequencies that a policy decides, set by a real daemon on files like the kernel's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cpufreq import CPUFREQ_VARIABLE, MHZ, found_again, limits, profile_of, tree
from daemon import LocalRms, closing

POLICY = """admission = { part = "easy" }
frequency = { part = "optimal-operating-point" }
"""
FOUND = (800, 2000)


class Clocked(LocalRms):
    """All cores have one frequency together."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "clocked.toml").write_text(POLICY)
        for mhz in MHZ:
            profile_of(self.folder / f"best-{mhz}.json", mhz)
        cores = tuple(range(os.cpu_count() or 1))
        self.cpufreq = tree(self.folder / "cpufreq", {0: cores})

    def serve_command(self) -> list[str]:
        return [*super().serve_command(), "--policy", str(self.folder / "clocked.toml")]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), CPUFREQ_VARIABLE: str(self.cpufreq)}

    def held(self, best: int) -> tuple[str, Path]:
        """Submit a job that runs as long as there is a file; return both.

        Args:
            best: the frequency at which it needs least energy, MHz.
        """
        file, known = self.work / f"holds-{best}", self.folder / f"best-{best}.json"
        file.touch()
        body = f"while test -e {file}; do sleep 0.05; done"
        return self.submit(body, "--nodes", "1", "--profile", str(known)), file

    def set_to(self, mhz: tuple[int, int]) -> None:
        self.until(lambda: limits(self.cpufreq) == [mhz], f"cores at {mhz} MHz")


@pytest.mark.wide
@pytest.mark.promise("frequency-live")
def test_cores_follow_their_jobs_and_are_left_as_found_whatever_happens() -> None:
    with closing(Clocked(2)) as rms:
        first, first_runs = rms.held(1000)
        rms.set_to((1000, 1000))
        assert rms.row(first)["frequency"] == 0.5
        assert [row["frequency"] for row in rms.get("/nodes")] == [0.5, None]
        assert "  50 %  " in rms.rms("nodes").stdout
        second, second_runs = rms.held(1500)
        rms.set_to((1500, 1500))  # the higher of both
        second_runs.unlink()
        rms.over(second)
        rms.set_to((1000, 1000))
        rms.end(signal.SIGKILL)
        rms.process = None
        found_again(rms.cpufreq)
        rms.start()
        rms.set_to((1000, 1000))  # the job still runs
        first_runs.unlink()
        assert rms.over(first) == ["COMPLETED"]
        rms.set_to(FOUND)
        rms.held(800)
        rms.set_to((800, 800))
        rms.end()
        assert limits(rms.cpufreq) == [FOUND]
        rms.replays()


@pytest.mark.wide
@pytest.mark.promise("frequency-live")
def test_where_they_cannot_be_set_that_is_said_once_and_decided_with() -> None:
    with closing(Clocked(2, "--set-frequencies", "no")) as rms:
        job, runs = rms.held(1000)
        rms.until(
            lambda: "frequencies are not set here: --set-frequencies no" in rms.said(), "word"
        )
        rms.until(lambda: rms.row(job)["frequency"] is None, "a job at the highest frequency")
        other, other_runs = rms.held(1500)
        rms.until(lambda: rms.row(other)["state"] == "RUNNING", "another job")
        assert rms.row(other)["frequency"] is None and limits(rms.cpufreq) == [FOUND]
        for file in (runs, other_runs):
            file.unlink()
        assert rms.over(job, other) == ["COMPLETED"] * 2
        assert rms.said().count("frequencies are not set here") == 1
        rms.end()
        rms.replays()
