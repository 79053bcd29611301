"""Jobs that are hit by faults of hosts and networks, and rows of what becomes of them."""

from __future__ import annotations

import json
import time
from typing import Any

from cluster_hosts import Cluster
from daemon import Rms
from processes import ROOT, program

CASE = "--case random --seed 7 --grid 24 20 8 --every 2"
STEPS = 400
BEGUN = 12  # steps after which a fault comes; there is a checkpoint by then
DEADLINE_S = 240.0  # of waits, on a busy machine
CHECKPOINTS = "--checkpoint-dir ck --restart --checkpoint-every 5"
PACED = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])


class Faulty:
    """A job in a folder of its own, which is hit by a fault; its script notes its runs.

    Attributes:
        hosts: of its first run.
        heard: every reason that ``rms show`` has given, without numbers that count.
    """

    def __init__(self, rms: Rms, name: str, nodes: int = 2, most: int = 0) -> None:
        self.rms, self.folder = rms, rms.work / name
        self.folder.mkdir()
        script = self.folder / "job.sh"
        script.write_text(
            f"#!/bin/sh\n#SBATCH --nodes={nodes}{f'-{most}' if most else ''} --requeue\n"
            f"#RMS --mode=malleable --preferred={nodes}\n"
            "echo begun >> runs\n"
            f"PACE_S=0.1 mpirun {PACED} run {CASE} --steps {STEPS} --json out.json {CHECKPOINTS}\n"
            "status=$?\necho ended $status >> runs\nexit $status\n"
        )
        done = rms.rms("submit", str(script), folder=self.folder)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()
        rms.until(lambda: rms.row(self.id)["step"] >= BEGUN, "steps before a fault", DEADLINE_S)
        self.hosts: list[str] = rms.row(self.id)["nodes"]
        self.since = time.monotonic()
        self.heard: list[str] = []

    @property
    def row(self) -> dict[str, Any]:
        found = self.rms.row(self.id)
        reason = found["reason"]
        if reason and (
            not self.heard or self.heard[-1].split(" for ")[0] != reason.split(" for ")[0]
        ):
            self.heard.append(reason)
        return found

    def hurry(self) -> None:
        """Let it run at full speed from now on."""
        (self.folder / "go").touch()

    def told(self, word: str, deadline_s: float = DEADLINE_S) -> float:
        """Wait for a reason with this word; return the time since the fault."""
        self.rms.until(lambda: word in self.row["reason"], f"reason {word}", deadline_s)
        return time.monotonic() - self.since

    def steps_after(self, step: int, deadline_s: float = DEADLINE_S) -> float:
        """Wait for a later step of this run or the next; return the time since the fault."""

        def stepped() -> bool:
            row = self.row
            return row["state"] == "RUNNING" and row["step"] > step

        self.rms.until(stepped, f"a step of job {self.id} after {step}", deadline_s)
        return time.monotonic() - self.since

    def runs_again(self, deadline_s: float = DEADLINE_S) -> float:
        """Wait until it computes in a second run; return the time since the fault."""

        def again() -> bool:
            row = self.row
            return len(self.runs) > 1 and row["state"] == "RUNNING" and row["step"] > 0

        self.rms.until(again, f"second run of job {self.id}", deadline_s)
        return time.monotonic() - self.since

    @property
    def runs(self) -> list[str]:
        """What its script has noted."""
        return (self.folder / "runs").read_text().splitlines()

    def ends(self, answer: str, runs: int, resizes: int = 0) -> None:
        """See that it completes with the right answer, after so many runs and resizes."""
        self.hurry()
        assert self.rms.over(self.id, deadline_s=DEADLINE_S) == ["COMPLETED"], self.rms.said()
        row = self.row
        assert row["answer"] == answer
        assert json.loads((self.folder / "out.json").read_text())["sha256"] == answer
        assert self.runs == ["begun"] * runs + ["ended 0"]
        assert len(row["resizes"]) == resizes, row["resizes"]
        assert not list(self.folder.glob("ck/.owner"))


def entered(fault: str, **columns: object) -> None:
    """Print a row of the table."""
    rounded = {k: round(v, 1) if isinstance(v, float) else v for k, v in columns.items()}
    print("\n" + json.dumps({"fault": fault, **rounded}), flush=True)


def nothing_on(cluster: Cluster, *hosts: str) -> None:
    """Wait until no rank and no proxy of one is left on hosts."""
    for host in hosts:
        line = "ps ax -o args | grep -c -e '[h]ydra_pmi_proxy' -e '[m]pdata/__main__' || :"
        until = time.monotonic() + DEADLINE_S
        while (count := cluster.on(host, line)) != "0":
            assert time.monotonic() < until, f"{host}: {count} processes"
            time.sleep(0.2)
