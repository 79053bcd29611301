"""Daemons on a test bed: engine ``slurm``, and engine ``slurm-pilot`` inside an allocation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from daemon import Rms, closing
from processes import BIN, MPIEXEC, RMS, ROOT, program
from slurm_bed import Slurm

MPDATA = str(ROOT / "mpdata" / "__main__.py")
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")
CASE = "--case random --seed 7 --grid 24 20 8 --every 2"
STEPS = 900


class SlurmRms(Rms):
    """A daemon of engine ``slurm``.

    Jobs work in ``work``, where ``mpdata`` is a slow one until there is a file ``go``.
    """

    def __init__(self, bed: Slurm, *options: str) -> None:
        self.bed = bed
        super().__init__(*options)

    def prepare(self) -> None:
        slow = self.folder / "bin" / "mpdata"
        slow.parent.mkdir(exist_ok=True)
        paced = " ".join(program("paced"))
        slow.write_text(f'#!/bin/sh\nPACE_S=0.1 exec {paced} {MPDATA} "$@"\n')
        slow.chmod(0o755)

    def serve_command(self) -> list[str]:
        options = ["--engine", "slurm", "--ntasks-per-node", "1", *self._options]
        return [*RMS, "serve", "--state", str(self.state), *options]

    def environment(self) -> dict[str, str]:
        path = (self.folder / "bin", BIN, self.bed.environment["PATH"])
        return {**self.bed.environment, "PATH": os.pathsep.join(map(str, path))}

    def surroundings(self) -> str:
        queue = self.bed.run("squeue", "--states=all").stdout
        queue += self.bed.run("sinfo", "--Node", "--long").stdout
        with contextlib.suppress(Exception):  # of a daemon that is gone
            for row in self.rows():
                queue += "".join(f"job {row['id']}: {why}\n" for why in self.rolled_back(row["id"]))
        return queue

    def close(self) -> None:
        """End the daemon in order, so that it cancels its jobs in Slurm; then all the rest."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        super().close()

    def submit_file(
        self, *options: str, script: Path | None = None, folder: Path | None = None, **more: str
    ) -> str:
        """Submit a script from a folder, with more variables; return the job's id."""
        words = ("submit", *options, str(script or "job.sh"))
        done = self.rms(*words, folder=folder, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit_now(self) -> str:
        """Submit the script without the time that a command takes to start."""
        text, cwd = (self.work / "job.sh").read_text(), str(self.work)
        body = {"text": text, "name": "job.sh", "cwd": cwd, "env": self.env(), "options": {}}
        number: str = self.post("/jobs", body)["ids"][0]
        return number

    def resize(self, job: str, nodes: int) -> None:
        """Ask for a resize as soon as the job may be asked."""

        waited = False

        def taken() -> bool:
            nonlocal waited
            answer = self.post("/resize", {"id": job, "nodes": nodes})
            assert answer["decision"] != "Never", answer
            waited |= answer["decision"] == "Waits"
            row = self.row(job)
            begun = waited and (row["resizing"] or row["size"] == nodes)
            return bool(begun or answer["decision"] == "Resize")

        self.until(taken, f"resize of job {job} to {nodes}")

    def settled(self, job: str, times: int) -> None:
        """Wait until a job has so many resizes behind it."""
        self.until(
            lambda: len(self.row(job)["resizes"]) == times and not self.row(job)["resizing"],
            f"resize {times} of job {job}",
        )

    @contextlib.contextmanager
    def without_a_look(self) -> Iterator[None]:
        """Let the daemon have no answer of squeue: it decides by what it knew of Slurm before."""
        with self.shims.held("squeue") as waits:
            waits()
            yield

    def number(self, job: str) -> int:
        """Return a job's number in Slurm."""
        found: int = self.row(job)["slurm"]["slurm_job"]
        return found

    def name(self, job: str) -> str:
        """Return what a job is called in Slurm."""
        which = f"--jobs={self.number(job)}"
        return self.bed("squeue", "--noheader", "--states=all", which, "--format=%j").strip()

    def nothing_left(self) -> None:
        """Wait until Slurm has no job and no donor any more, and all its nodes are idle."""

        def left() -> list[str]:
            # The name last: it may hold any character.
            said = self.bed("squeue", "--noheader", "--states=all", "--format=%T|%N|%j")
            found = (row.split("|", 2) for row in said.splitlines())
            # Slurm 22.05 may keep a merged donor COMPLETING for long; it has no nodes any more.
            return [
                name
                for state, nodes, name in found
                if state in LIVE and name.startswith("rms") and (nodes or state != "COMPLETING")
            ]

        nodes = self.bed.record["nodes"]
        self.until(lambda: not left(), "empty queue")
        self.until(lambda: len(self.bed.idle()) == nodes, "idle nodes")


def write_script(rms: Rms, *lines: str, steps: int = STEPS, more: str = "") -> None:
    """Write a job script of one launcher line, with these ``#SBATCH`` and ``#RMS`` lines."""
    run = f"srun mpdata run {CASE} --steps {steps} --json out.json {more}"
    (rms.work / "job.sh").write_text("\n".join(["#!/bin/sh", *lines, run, ""]))


class Pilot(Rms):
    """A daemon of engine ``slurm-pilot``, and the allocation there is."""

    def __init__(self, slurm: Slurm, nodes: int, *options: str) -> None:
        self.slurm, self.nodes, self.allocation = slurm, nodes, ""
        super().__init__(*options)

    def prepare(self) -> None:
        self.allocate(self.nodes)

    def allocate(self, nodes: int, *options: str) -> None:
        """Take nodes; a node that fails leaves the others."""
        self.allocation = self.slurm.allocate("--no-kill", f"--nodes={nodes}", *options)

    def serve_command(self) -> list[str]:
        options = ["--engine", "slurm-pilot", "--ntasks-per-node", "1", *self._options]
        return [*RMS, "serve", "--state", str(self.state), *options]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(self.folder / "bin"), self.slurm.environment["PATH"]))
        return {**self.slurm.environment, "PATH": path, "SLURM_JOB_ID": self.allocation}

    def env(self) -> dict[str, str]:
        """Clients are outside the allocation."""
        return {key: value for key, value in super().env().items() if key != "SLURM_JOB_ID"}

    def surroundings(self) -> str:
        return self.slurm.run("squeue", "--steps").stdout

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.allocation:
            self.slurm.run("scancel", self.allocation)
        super().close()

    def steps(self) -> dict[str, tuple[str, set[str]]]:
        """Return the steps that Slurm runs in the allocation: id and nodes by name."""
        said = self.slurm("squeue", "--steps", "--noheader", "--format=%i|%N|%j")
        found = {}
        for line in filter(None, said.splitlines()):
            step, nodes, name = line.split("|")
            if step.startswith(f"{self.allocation}."):
                found[name] = step, self.named(nodes)
        return found

    def named(self, nodes: str) -> set[str]:
        """Return the names in a list of nodes as Slurm writes it."""
        return set(self.slurm("scontrol", "show", "hostnames", nodes).split()) if nodes else set()

    def world(self, job: str, launch: int) -> str:
        """Return what Slurm calls the step of one of a job's launches."""
        mark = next(name for name in self.steps() if name.startswith("rms.")).split(".")[1]
        return f"rms.{mark}.{job}.{launch}"

    def recorded(self, job: str) -> list[set[str]]:
        """Return the nodes of a job's worlds as accounting has them, in order of their launch."""
        said = self.slurm(
            *["sacct", "--noheader", "--parsable2", "--jobs", self.allocation],
            "--format=JobName,NodeList",
        )
        found = {}
        for line in said.splitlines():
            name, _, nodes = line.partition("|")
            parts = name.split(".")
            if len(parts) == 4 and parts[2] == job:
                found[int(parts[3])] = self.named(nodes)
        return [found[launch] for launch in sorted(found)]

    def nothing_left(self, but: str = "") -> None:
        """No process of a job, and no step of one, is left, but a step whose name ends so."""
        self.slurm.wait_until(lambda: not self.processes(), "no process left")

        def left() -> list[str]:
            steps = [name for name in self.steps() if ".meter-" not in name]
            return [name for name in steps if not but or not name.endswith(but)]

        self.slurm.wait_until(
            lambda: not left(), lambda: f"no step left, got {left()}\n{self.said()}"
        )


def bare(folder: Path, *options: str) -> str:
    """Return the hash of a run on one rank without any RMS."""
    command = [MPIEXEC, "-n", "1", sys.executable, "-m", "mpdata", "run", *options]
    subprocess.run(
        [*command, "--json", "bare.json"], cwd=folder, check=True, capture_output=True, timeout=300
    )
    found: str = json.loads((folder / "bare.json").read_text())["sha256"]
    return found


@contextlib.contextmanager
def serving(bed: Slurm, *options: str) -> Iterator[SlurmRms]:
    """Serve a test bed; at the end nothing is left."""
    with closing(SlurmRms(bed, *options)) as rms:
        yield rms


@contextlib.contextmanager
def piloted(slurm: Slurm, nodes: int, *options: str) -> Iterator[Pilot]:
    """Serve in an allocation of so many nodes; at the end nothing is left of it."""
    with closing(Pilot(slurm, nodes, *options)) as pilot:
        yield pilot
