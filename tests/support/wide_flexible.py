"""A job of all nodes amid a stream of short ones, all flexible, on a daemon of two nodes.

Short jobs run until the test lets them end, so the queue is as long as the test wants it to be.
Each job requests a minute more than the one before. So none is sure to end before an older one, and
EASY would start no later job before the wide one: neither may the policy.
"""

from __future__ import annotations

from daemon import Rms
from processes import ROOT, program

NODES = 2
LONGER = 3
"""How many short jobs are submitted behind the wide one at first."""
PACED = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])
CASE = "--case random --seed 7 --grid 24 20 8 --backend numpy --every 1 --steps 60"


class Stream:
    """The jobs of a test, by the order of their submission.

    Attributes:
        jobs: ids of all jobs.
        over: ids of those that the test has let end.
    """

    def __init__(self, rms: Rms) -> None:
        self.rms = rms
        self.jobs: list[str] = []
        self.over: list[str] = []
        rms.until(lambda: len(rms.get("/nodes")) == NODES, f"{NODES} nodes")

    def submit(self, nodes: str = "1-2", *, resizable: bool = True) -> str:
        """Submit a job that runs until it is let go; one of 1 to 2 nodes prefers one.

        Args:
            resizable: it comes to resize points before it is let go.
        """
        folder = self.rms.work / f"job-{len(self.jobs)}"
        folder.mkdir()
        run = f"PACE_S=0.1 PACE_LATE_S=600 mpirun {PACED} run {CASE}"
        if not resizable:
            run = f"until [ -e go ]; do sleep 0.05; done\n{run}"
        prefers = ("--preferred", "1") if "-" in nodes else ()
        limit = ("--time", str(10 + len(self.jobs)))
        words = ("--nodes", nodes, *prefers, "--mode", "flexible", *limit)
        job = self.rms.submit(f"cd {folder}\n{run}", *words)
        self.jobs.append(job)
        return job

    def running(self) -> list[str]:
        """Return the jobs that have started and are not over, by their starts."""
        states = ("CONFIGURING", "RUNNING")
        rows = [row for row in self.rms.rows() if row["state"] in states and row["start_s"]]
        return [row["id"] for row in sorted(rows, key=lambda row: row["start_s"])]

    def waits(self, job: str) -> bool:
        """Return whether a job has not started."""
        state: str = self.rms.row(job)["state"]
        return state == "PENDING"

    def why(self, job: str) -> str:
        """Return what ``rms explain`` says last of a job that waits."""
        reason: str = self.rms.ask("explain", job)[-1]["reason"]
        return reason

    def end(self, job: str) -> None:
        """Let a running job go on to its end."""
        (self.rms.work / f"job-{self.jobs.index(job)}" / "go").touch()
        assert self.rms.over(job) == ["COMPLETED"], self.rms.row(job)["reason"]
        self.over.append(job)

    def until_started(self, job: str) -> list[str]:
        """End the job that has run longest, submit another one, and so on until a job starts.

        Returns the jobs that were submitted after it and have started before it.
        """
        for _ in range(2 * len(self.jobs)):
            self.rms.until(lambda: self.running() or not self.waits(job), "running job")
            if not self.waits(job):
                break
            self.end(self.running()[0])
            self.submit()
        assert not self.waits(job), self.why(job)
        later = self.jobs[self.jobs.index(job) + 1 :]
        return [each for each in later if not self.waits(each)]

    def drain(self) -> None:
        """End all jobs, one after the other."""
        while left := [job for job in self.jobs if job not in self.over]:
            self.rms.until(self.running, "running job")
            self.end(next(job for job in self.running() if job in left))
