"""Jobs that share nodes, with a real daemon: virtual nodes of this machine, of two slots each."""

from __future__ import annotations

import signal

import pytest
from daemon import LocalRms, Rms, closing
from processes import ROOT, program

PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
WAITS = "grep Cpus_allowed_list /proc/self/status; while ! test -e go; do sleep 0.05; done"
POWER = "{ idle_w = 10.0, static_w = 30.0, dynamic_w = 20.0 }"


class Shared(LocalRms):
    """Two nodes of one core and two slots, 10 GB/s each, under LessConsume."""

    def prepare(self) -> None:
        super().prepare()
        self.cluster.write_text(
            'name = "test"\n[[nodes]]\nname = "n[1-2]"\ncores = 1\nslots = 2\n'
            f"memory_bandwidth_gb_s = 10.0\npower = {POWER}\n"
        )

    def serve_command(self) -> list[str]:
        return [*super().serve_command(), "--policy", str(ROOT / "jobs" / "less-consume.toml")]


def share(rms: Rms, *gb_s: float) -> list[str]:
    """Submit jobs of one process each, by their bandwidths; they run until told to end."""
    jobs = [rms.submit(WAITS, "--memory-bandwidth", str(each)) for each in gb_s]
    for job in jobs:
        rms.until(lambda job=job: rms.row(job)["state"] == "RUNNING", f"job {job} that runs")
    return jobs


@pytest.mark.promise("shared-nodes")
def test_jobs_share_nodes_by_their_bandwidth_and_outlive_the_daemon() -> None:
    with closing(Shared(2)) as rms:
        jobs = share(rms, 9.0, 9.0, 0.5)
        assert [rms.row(job)["nodes"] for job in jobs] == [["n1/0"], ["n2/0"], ["n1/1"]]
        cores = [rms.until(lambda job=job: rms.output(job), "a word of it") for job in jobs]
        assert cores[0] == cores[2] and cores[0].split()[1].isdecimal()
        states = {row["name"]: (row["state"], row["job"]) for row in rms.ask("nodes")}
        assert states == {"n1": ("allocated", "1,3"), "n2": ("mixed", "2")}
        refused = rms.rms("policy", "easy")
        assert refused.returncode == 2 and "expected a policy whose jobs share" in refused.stderr
        rms.end(signal.SIGKILL)
        rms.start()
        assert [rms.row(job)["nodes"] for job in jobs] == [["n1/0"], ["n2/0"], ["n1/1"]]
        (rms.work / "go").touch()
        assert rms.over(*jobs) == ["COMPLETED"] * 3
        rms.books_balance()
        assert rms.end() == 0
        rms.nothing_left()
        rms.replays()


@pytest.mark.wide
@pytest.mark.promise("shared-nodes")
def test_a_malleable_job_goes_over_to_slots_beside_others() -> None:
    with closing(Shared(2)) as rms:
        (greedy,) = share(rms, 9.0)
        words = [*SMALL, "--steps", "400"]
        run = f"mkdir a; cd a; PACE_S=0.25 mpirun {' '.join(PACED)} run {' '.join(words)}"
        job = rms.submit(run, *("--mode", "malleable", "--nodes", "1-3", "--preferred", "1"))
        rms.running(job)
        assert rms.row(job)["nodes"] == ["n1/1"]
        rms.resized(job, 3)
        assert rms.row(job)["nodes"] == ["n1/1", "n2/0", "n2/1"]
        rms.resized(job, 2, "--on", "n2")
        assert rms.row(job)["nodes"] == ["n2/0", "n2/1"]
        (rms.work / "a" / "go").touch()
        rms.hurry()
        assert rms.over(job, greedy) == ["COMPLETED"] * 2
        rms.books_balance()
        assert rms.end() == 0
        rms.replays()
