"""A daemon of a test's own in a short folder (socket paths are limited), and what one asks of it.

``Rms`` is what all daemons of tests have in common; ``LocalRms`` serves nodes of this machine.
Those on a real Slurm are in ``slurm_daemon``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from processes import MARK, RMS, called, started
from shims import Shims

from rms.cli.main import main
from rms.client.connection import ServerError, ask
from rms.formats.energy import check_energies, owner_energies
from rms.wire.users import OVER, AcctAnswer

POWER = "{ idle_w = 3.0, static_w = 5.0, dynamic_w = 7.0 }"
DEADLINE_S = 180.0

COLUMNS = ("id", "state", "size", "resizing", "resize_to", "step", "reason", "nodes")


def stacks_of(pid: int) -> str:
    """Return the stacks of a process of ``paced.py``, of any other nothing."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(file.readlink()).startswith("/memfd:stacks"):
                os.kill(pid, signal.SIGUSR2)
                time.sleep(0.1)
                return file.read_text()
    return ""


class Rms:
    """One state folder, and whichever daemon serves it at the moment."""

    def __init__(self, *options: str) -> None:
        self._stack = contextlib.ExitStack()
        self._options = options
        self.folder = Path(tempfile.mkdtemp(prefix="rms-", dir="/tmp"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.state, self.work = self.folder / "s", self.folder / "w"
        self.work.mkdir()
        self.log = self.folder / "log"
        self.server = f"unix:{self.state / 'socket'}"
        self.process: subprocess.Popen[str] | None = None
        self.mark = ""
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    @cached_property
    def shims(self) -> Shims:
        """Shims before the commands of the batch system, from the first use on.

        On a test bed their folder comes first on the daemon's PATH.
        """
        return Shims(self.folder)

    # --- the daemon itself ----------------------------------------------------------------------

    def prepare(self) -> None:
        """Make what the daemon needs before it starts."""

    def serve_command(self) -> list[str]:
        """Return the command that serves."""
        return [*RMS, "serve", "--state", str(self.state), *self._options]

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon and of its clients: no profile of the user's."""
        return {"RMS_PROFILES": "", **os.environ}

    def start(self, *options: str) -> None:
        """Start a daemon and wait until it serves."""
        served = self.said().count("serving at")
        with self.log.open("a") as log:
            self.process = self._stack.enter_context(
                started(
                    [*self.serve_command(), *options],
                    cwd=self.work,
                    env=self.environment(),
                    stdout=log,
                    stderr=log,
                )
            )
        self.mark = self.process.mark  # type: ignore[attr-defined]
        self.until(lambda: self.said().count("serving at") > served, "a serving daemon")

    def said(self) -> str:
        """Return what the daemons have printed."""
        return self.log.read_text() if self.log.exists() else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the daemon a signal; return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End everything, however the test has gone."""
        left = self.processes()
        self._stack.close()
        for pid in [*left, *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- what one asks of it --------------------------------------------------------------------

    def env(self) -> dict[str, str]:
        """Return the environment of a client: what it starts is killed with the daemon."""
        return {**self.environment(), "RMS_SERVER": self.server, MARK: self.mark}

    def rms(
        self, *words: str, folder: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a client command in this process: to start one takes longer than all else.

        Args:
            words: the command and its arguments.
            folder: where it runs; None for the jobs' own.
            variables: more of the environment.
        """
        with (
            patch.dict(os.environ, {**self.env(), **variables}, clear=True),
            contextlib.chdir(folder or self.work),
        ):
            return called(main, *words)

    def ask(self, *words: str, **variables: str) -> Any:
        """Run a client command that must succeed, and return its JSON."""
        done = self.rms(*words, "--json", "-", **variables)
        assert done.returncode == 0, done.stderr + self.said()
        return json.loads(done.stdout)

    def get(self, path: str) -> Any:
        """Ask the daemon directly."""
        try:
            return ask(Any, self.server, "GET", path)
        except ServerError as error:
            raise AssertionError(f"{error}; the daemon:\n{self.said()}") from None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Tell the daemon directly."""
        return ask(Any, self.server, "POST", path, body)

    def submit(self, body: str, *options: str, **variables: str) -> str:
        """Submit a script with these options and commands; return the id."""
        script = self.work / "script.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        number: str = self.ask("submit", *options, str(script), **variables)["id"]
        return number

    def rows(self, wanted: str | None = None) -> list[dict[str, Any]]:
        """Return what is known of jobs."""
        found: list[dict[str, Any]] = self.get("/jobs" if wanted is None else f"/jobs?id={wanted}")
        return found

    def row(self, job: str) -> dict[str, Any]:
        """Return what is known of a job."""
        (found,) = self.rows(job)
        return found

    def output(self, job: str) -> str:
        """Return what a job has printed, without the line that the daemon adds at its end."""
        return re.sub(r"rms: job [^\n]*\n\Z", "", Path(self.row(job)["output"]).read_text())

    def resizes(self, job: str) -> list[tuple[int, int]]:
        """Return the sizes before and after each resize of a job."""
        return [(row["from"], row["to"]) for row in self.row(job)["resizes"]]

    def rolled_back(self, job: str) -> list[str]:
        """Return why resizes of a job were rolled back."""
        found = self.get(f"/history/{job}")
        return [entry["reason"] for entry in found if entry["kind"] == "rolledback"]

    # --- waits ----------------------------------------------------------------------------------

    def until(
        self,
        happens: Callable[[], Any],
        what: str,
        deadline_s: float = DEADLINE_S,
        every_s: float = 0.05,
    ) -> Any:
        """Wait for something; return what it gave."""
        end = time.monotonic() + deadline_s
        while not (found := happens()):
            assert self.process is not None
            if self.process.poll() is not None:
                why = "the daemon has ended"
            elif time.monotonic() > end:
                why = f"not within {deadline_s:g} s; the daemon"
            else:
                time.sleep(every_s)
                continue
            words = (self.said(), self.job_lines(), self.surroundings())
            raise AssertionError("\n".join([f"no {what}; {why}:", *words]))
        return found

    def job_lines(self) -> str:
        """Return a line for each job, and for each of its ranks that can be seen from here."""
        lines = list[str]()
        with contextlib.suppress(Exception):  # of a daemon that is gone
            for row in self.rows():
                if row["state"] not in OVER:
                    lines.append(" ".join(f"{name}={row[name]}" for name in COLUMNS))
            for pid, env in sorted(self.processes().items()):
                with contextlib.suppress(OSError):
                    waits = Path(f"/proc/{pid}/wchan").read_text()
                    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    ids = [env.get(name) for name in ("DMR_WORLD", "DMR_JOIN", "PMI_RANK")]
                    lines.append(f"pid {pid} world, request, rank {ids}: {times[0]} {waits}")
                    lines.append(stacks_of(pid))
        return "\n".join(lines)

    def surroundings(self) -> str:
        """Return what else a failed wait tells of."""
        return ""

    def running(self, job: str, at_least: int = 1) -> dict[str, Any]:
        """Wait until a job has made so many steps."""
        self.until(lambda: self.row(job)["step"] >= at_least, f"step of job {job}")
        return self.row(job)

    def resized(self, job: str, size: int, *options: str) -> None:
        """Have a job resized as soon as it may be, and wait until all of it is done."""

        def done() -> bool:
            if self.row(job)["size"] == size:
                return True
            self.rms("resize", job, str(size), *options)  # refused while nodes are not free yet
            return False

        self.until(done, f"size {size} of job {job}")

    def hurry(self) -> None:
        """Let paced jobs run at full speed from now on."""
        (self.work / "go").touch()

    def over(self, *jobs: str, deadline_s: float = DEADLINE_S) -> list[str]:
        """Wait until jobs are over; return their states."""
        for job in jobs:
            self.until(
                lambda job=job: all(row["state"] in OVER for row in self.rows(job)),
                f"end of job {job}",
                deadline_s,
            )
        return [row["state"] for job in jobs for row in self.rows(job)]

    # --- what must hold -------------------------------------------------------------------------

    def books(self) -> dict[str, Any]:
        """Return the energy books."""
        found: dict[str, Any] = self.get("/books")
        return found

    def books_balance(self, *, jobs: bool = True) -> None:
        """Energy of jobs is the busy energy, and the parts are the cluster's.

        Args:
            jobs: there were any.
        """
        energy = self.books()["energy"]
        owned = sum(row["energy_j"] for row in self.rows())
        parts = sum(energy[f"{part}_j"] for part in ("busy", "tasks", "idle", "off", "boot"))
        assert abs(owned - energy["busy_j"]) <= 1e-9 * owned and (owned > 0) == jobs
        assert abs(parts - energy["cluster_j"]) <= 1e-9 * parts

    def accounts_balance(self) -> None:
        """All rows are the jobs' energies and the cluster's, to 1e-9; if a daemon runs."""
        if self.process is not None and self.process.poll() is None:
            found = ask(AcctAnswer, self.server, "GET", "/acct")
            check_energies(found, owner_energies(found.rows), whole=True)

    def replays(self) -> None:
        """The journal leads to the same decisions again; the daemon has ended."""
        done = self.rms("replay", str(self.state / "journal.sqlite"))
        said = done.stdout + done.stderr
        assert done.returncode == 0 and " 0 decided otherwise" in done.stdout, said

    def ends_well(self) -> None:
        """The books balance, the daemon ends in order, leaves nothing, and its journal replays."""
        self.books_balance()
        assert self.end() == 0
        self.nothing_left()
        self.replays()

    def processes(self) -> dict[int, dict[str, str]]:
        """Return the live processes of jobs with their environments."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                items = (place / "environ").read_bytes().decode(errors="replace").split("\0")
                env = dict(item.split("=", 1) for item in items if "=" in item)
                if "RMS_MARK" not in env:
                    continue
                files = env.get("RMS_STATUS", "") + env.get("DMR_COMPLETION", "")
                if env.get("RMS_SERVER") == self.server or str(self.state) in files:
                    found[int(place.name)] = env
        return found

    def ranks(self) -> list[int]:
        """Return the processes that are MPI ranks."""
        return [
            pid
            for pid, env in self.processes().items()
            if "PMI_RANK" in env or "OMPI_COMM_WORLD_RANK" in env
        ]

    def nothing_left(self) -> None:
        """Wait until no process of a job is left; the agent of meters is the daemon's."""
        end = time.monotonic() + DEADLINE_S
        while found := {
            pid: env
            for pid, env in self.processes().items()
            if not env["RMS_MARK"].endswith(":meter")
        }:
            assert time.monotonic() < end, found
            time.sleep(0.05)


class LocalRms(Rms):
    """A daemon that serves nodes of one core each, or those of ``nodes_text`` of a subclass."""

    nodes_text = f'[[nodes]]\nname = "n[1-{{}}]"\ncores = 1\npower = {POWER}\n'

    def __init__(self, nodes: int, *options: str) -> None:
        self.nodes = nodes
        super().__init__(*options)

    def prepare(self) -> None:
        self.cluster = self.folder / "cluster.toml"
        self.cluster.write_text(f'name = "test"\n{self.nodes_text.replace("{}", str(self.nodes))}')

    def serve_command(self) -> list[str]:
        where = ["--state", str(self.state), "--cluster", str(self.cluster)]
        return [*RMS, "serve", *where, *self._options]


def short_job_beside_array(rms: Rms, script: str, most: int) -> tuple[str, str]:
    """Submit an array of two flexible tasks, then a job of a moment; return the tasks.

    The first holds all ``most`` nodes, the second waits for all but one, and one is given back for
    as long as the job runs. The default policy is to decide so.
    """

    def idle() -> int:
        return [node["state"] for node in rms.get("/nodes")].count("idle")

    rms.until(lambda: idle() == most, f"{most} idle nodes")
    array = rms.submit(script)
    first, second = f"{array}_1", f"{array}_2"
    assert rms.running(first)["size"] == most, rms.get(f"/history/{first}")
    short = rms.submit("sleep 0.5", "--mode", "fixed", "--nodes", "1", "--time", "1")
    assert rms.over(short) == ["COMPLETED"], rms.row(short)
    assert rms.resizes(first) == [(most, most - 1)]
    assert rms.row(first)["state"] == "RUNNING" and rms.row(second)["state"] == "PENDING"
    rms.until(lambda: len(rms.resizes(first)) == 2, "the node's way back")
    assert rms.resizes(first)[1] == (most - 1, most)
    return first, second


@contextlib.contextmanager
def closing(rms: Any) -> Iterator[Any]:
    """Use a daemon, whose books must balance then; at the end everything of it is killed."""
    try:
        yield rms
        rms.accounts_balance()
    finally:
        rms.close()


@contextlib.contextmanager
def lent(rms: Rms) -> Iterator[Rms]:
    """Lend a daemon to one test of several: a folder of its own, and no job of it is left."""
    if rms.process is None or rms.process.poll() is not None:
        rms.start()
    rms.work = rms.folder / f"w{len(list(rms.folder.glob('w*')))}"
    rms.work.mkdir()
    try:
        yield rms
    finally:
        rms.hurry()
        if rms.process is not None and rms.process.poll() is None:
            left = [row["id"] for row in rms.rows() if row["state"] not in OVER]
            for job in left:
                rms.rms("cancel", job)
            rms.over(*left)
            rms.accounts_balance()


@contextlib.contextmanager
def served(nodes: int, *options: str) -> Iterator[Rms]:
    """Serve a cluster of this many nodes; at the end everything is killed."""
    with closing(LocalRms(nodes, *options)) as rms:
        yield rms
