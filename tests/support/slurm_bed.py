"""A real Slurm on this machine for tests: on the hosts of ``scripts/cluster``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT

SCRIPT = [sys.executable, str(ROOT / "scripts" / "cluster")]
DEADLINE_S = 180.0
UP_DEADLINE_S = 600.0  # packages may have to be installed first
LEAK_S = 60.0
"""Nodes that stay allocated for so long after the jobs were cancelled may be leaked."""
NODES = 4
VERSION = os.environ.get("SLURM_VERSION", "22.05")
"""The version that the tests of Slurm start; `scripts/cluster up --help` names all."""


def call_script(*words: str, deadline_s: float = UP_DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run the test bed's script to its end."""
    return subprocess.run(
        [*SCRIPT, *words], capture_output=True, text=True, timeout=deadline_s, check=False
    )


def shared_kernels() -> list[str]:
    """Return the options by which all hosts have the machine code that scripts/test keeps.

    A host compiles on its own disk otherwise; on a loaded machine that takes longer than a new
    world has to boot.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return ["--share", folder] if folder else []


@dataclass
class Slurm:
    """The commands of one test bed, each with a deadline."""

    folder: Path
    record: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self.environment = {**outside, **self.record["environment"]}

    def run(
        self, *command: str, deadline_s: float = DEADLINE_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command where Slurm's files may fall into the test bed's own folder."""
        return subprocess.run(
            command,
            env={**self.environment, **variables},
            cwd=self.folder / "tmp",
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )

    def __call__(self, *command: str, **options: Any) -> str:
        """Return what a command prints; it has to succeed."""
        done = self.run(*command, **options)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_until(
        self,
        ready: Callable[[], Any],
        what: str | Callable[[], str],
        deadline_s: float = DEADLINE_S,
    ) -> Any:
        """Return what ``ready`` returns once that is true; ``what`` may say it at the deadline."""
        deadline = time.monotonic() + deadline_s
        while not (found := ready()):
            if time.monotonic() > deadline:
                queue = self.run("squeue").stdout + self.run("sinfo", "--Node").stdout
                said = what if isinstance(what, str) else what()
                pytest.fail(f"not within {deadline_s:g} s: {said}\n{queue}")
            time.sleep(0.1)
        return found

    def idle(self) -> set[str]:
        """Return the names of the nodes that respond and have nothing to do."""
        lines = self("sinfo", "--Node", "--noheader", "--format=%N %T").splitlines()
        return {name for name, state in map(str.split, lines) if state == "idle"}

    def show(self, job: str) -> dict[str, str]:
        """Return what scontrol shows of a job."""
        text = self("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def hosts(self, job: str) -> list[str]:
        """Return the nodes a job has now."""
        listed = self.show(job)["NodeList"]
        return [] if listed == "(null)" else self("scontrol", "show", "hostnames", listed).split()

    def rows(self, job: str) -> list[tuple[str, str, str]]:
        """Return (id, state, nodes) of every record that accounting has of a job."""
        text = self(
            "sacct", "--duplicates", "--noheader", "--parsable2", "--jobs", job,
            "--format=JobID,State,NNodes",
        )  # fmt: skip
        return [tuple(line.split("|")) for line in text.splitlines()]  # type: ignore[misc]

    def submit(self, *options: str, script: str = "sleep 600") -> str:
        """Submit a batch job and return its id once it runs."""
        job = self("sbatch", "--parsable", "--exclusive", *options, "--wrap", script).strip()
        self.wait_until(lambda: self.show(job)["JobState"] == "RUNNING", f"job {job} runs")
        return job

    def allocate(self, *options: str) -> str:
        """Return the id of an allocation without a step, held until it is cancelled."""
        done = self.run("salloc", "--no-shell", "--exclusive", *options)
        assert done.returncode == 0, done.stderr
        return re.findall(r"Granted job allocation (\d+)", done.stderr)[0]

    def next_second(self) -> None:
        """Wait for a new second: accounting keeps one record of a job for each it starts in."""
        time.sleep(1.05 - time.time() % 1)

    def shrink(self, job: str, *hosts: str) -> None:
        """Leave a running job these nodes, in a record of their own."""
        self.next_second()
        self("scontrol", "update", f"jobid={job}", f"NodeList={','.join(hosts)}")

    def stop(self, name: str) -> None:
        """End one of the daemons (slurmctld, n1, ...).

        Not by SIGKILL: a slurmctld that could not write down its last seconds gives the ids of the
        jobs of that time anew.
        """
        os.kill(self.record["running"].pop(name), signal.SIGTERM)
        self.wait_until(lambda: name not in self.running(), f"{name} is gone")

    def repair(self) -> None:
        """Start again what was stopped, and wait for all nodes."""
        self._up("--repair")
        self.record["running"] = self.running()

    def _up(self, *words: str) -> str:
        """Call ``up`` with the options of this test bed; return what it prints."""
        options = [f"--{key}={self.record[key]}" for key in ("slurm", "select", "tokens")]
        options += [f"--hosts={self.record['nodes']}"]
        options += ["--no-expand"] if self.record["no_expand"] else []
        options += [f"--share={path}" for path in self.record["share"]]
        up = call_script("up", "--folder", str(self.folder), *options, *words)
        assert up.returncode == 0, up.stderr
        return up.stdout

    def running(self) -> dict[str, int]:
        """Return the pids of the daemons by name."""
        said = call_script("status", "--folder", str(self.folder), "--json", "-").stdout
        found: dict[str, int] = json.loads(said)["running"]
        return found

    def clear(self) -> None:
        """End all jobs; wait until no job holds a node and every node is idle again."""

        def ready() -> bool:
            for state in ("PENDING", "RUNNING"):  # also those that arrive while others end
                self.run("scancel", f"--state={state}")
            self.resume_drained()
            return not self.held() and len(self.idle()) == self.record["nodes"]

        leak_s = time.monotonic() + LEAK_S
        while not (cleared := ready()) and time.monotonic() < leak_s:
            time.sleep(0.1)
        if not cleared and self.leaks_nodes():
            self.renew()
        self.wait_until(ready, "all nodes idle")

    def held(self) -> str:
        """Return the nodes that jobs hold, "" for none."""
        return self("squeue", "--noheader", "--format=%N").strip()

    def leaks_nodes(self) -> bool:
        """Return whether Slurm has nodes allocated to no job, and no others that are not idle.

        slurmctld 22.05 may keep the nodes of a donor allocated permanently, if the job that the
        donor is merged into is cancelled.
        """
        states = self("sinfo", "--Node", "--noheader", "--format=%T").split()
        return not self.held() and set(states) <= {"idle", "allocated"}

    def renew(self) -> None:
        """Bring up a new test bed in the place of this one."""
        down = call_script("down", "--folder", str(self.folder))
        assert down.returncode == 0, down.stderr
        self.record = json.loads(self._up("--json", "-"))
        self.__post_init__()

    def resume_drained(self) -> None:
        """Take back nodes that Slurm has drained itself, as a site's administrator would.

        It drains a node with "Kill task failed" when a step that was cancelled while it was being
        launched has not ended within a minute.
        """
        for line in self("sinfo", "--Node", "--noheader", "--format=%N|%E").splitlines():
            name, _, reason = line.partition("|")
            if reason.strip() == "Kill task failed":
                self.run("scontrol", "update", f"nodename={name}", "state=resume")


@contextlib.contextmanager
def brought_up(*words: str) -> Iterator[Slurm]:
    """A cluster in a folder of its own; brought down at the end, whatever happened.

    Its hosts see the folder of temporary files of this machine, where the tests and their daemons
    are.
    """
    # Sockets lie in it, so pytest's long paths will not do.
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder = place / "bed"
    try:
        up = call_script(
            *("up", "--folder", str(folder), "--json", "-", "--share", tempfile.gettempdir()),
            *("--slurm", VERSION, *shared_kernels(), *words),
        )
        assert up.returncode == 0, up.stderr
        yield Slurm(folder, json.loads(up.stdout))
    finally:
        down = call_script("down", "--folder", str(folder))
        shutil.rmtree(place)
        assert down.returncode == 0, down.stderr
