"""A real daemon and what it should know: jobs that run until they are told to end, killed daemons.

A job is a shell that reads its exit status from a pipe. Where it is resized, the world is a real
mpiexec of ``sleep``, and the test says to the daemon what rank 0 would.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from daemon import LocalRms

from rms.launch.processes import INSTANCE_VARIABLE
from rms.wire.http import UnreachableError, request
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    JOIN_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_VARIABLE,
    Begun,
    CompletionRecord,
    Done,
    LaunchRequest,
    Poll,
    PollAnswer,
    Ready,
    Report,
    ResizeReport,
    write_completion,
)
from rms.wire.users import OVER

NODES = ("n1", "n2", "n3")
SCRIPT = 'read code < "$PIPES/$NAME-${SLURM_ARRAY_TASK_ID:-0}"; exit $code'
NO_INDEX = 0
WAIT_S = 180.0
KINDS = {
    "afterany": OVER,
    "afterok": ("COMPLETED",),
    "afternotok": ("FAILED", "CANCELLED", "TIMEOUT"),
}
"""Dependencies, and the ends of the other job that satisfy them."""


@dataclass
class Known:
    """What should be known of a job: its pipe, how it should end, and its world and size.

    Attributes:
        unsure: what was asked of it was refused, or the answer lost: it may end in any way.
        held: whether it may not start until it is released.
        after: the job that it waits for, and in which states of that it may start.
    """

    pipe: Path
    ends: tuple[str, ...] = ()
    launch: int | None = None
    size: int = 1
    unsure: bool = False
    held: bool = False
    after: tuple[str, tuple[str, ...]] | None = None


class Modelled:
    """A daemon of three nodes, killed and started again, and the jobs that it took in."""

    def __init__(self) -> None:
        self.rms = LocalRms(len(NODES), "--policy", "fifo", "--grace", "0.3")
        self.pipes = self.rms.folder / "p"
        self.pipes.mkdir()
        self.jobs: dict[str, Known] = {}
        self.drained: set[str] = set()
        self.given, self.full, self.cut, self.doubtful = 0, False, False, False
        self.asked_again: list[tuple[str, int, str, tuple[str, str]]] = []

    @property
    def up(self) -> bool:
        """Whether a daemon serves."""
        return self.rms.process is not None and self.rms.process.poll() is None

    @property
    def open(self) -> list[str]:
        """Jobs that are not told to end."""
        return sorted(job for job, known in self.jobs.items() if not known.ends)

    # --- what users do ------------------------------------------------------------------------

    def submit(self, tasks: int, nodes: str, kind: str = "", other: str = "") -> None:
        """Hand in a job or an array; what is refused for want of room is asked again later.

        Args:
            kind: ``hold``, or a dependency on the ``other`` job, or nothing.
        """
        self.given += 1
        self._submit(f"s{self.given}", tasks, nodes, (kind, other))

    def _submit(self, name: str, tasks: int, nodes: str, waits: tuple[str, str]) -> None:
        indices = list(range(1, tasks + 1)) if tasks > 1 else [NO_INDEX]
        for index in indices:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.pipes / f"{name}-{index}")
        script = self.rms.work / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{SCRIPT}\n")
        words = ["--nodes", nodes, "--mode", "flexible", "--idempotency-key", name]
        words += ["--array", f"1-{tasks}"] if tasks > 1 else []
        kind, other = waits
        words += ["--hold"] if kind == "hold" else []
        words += ["--dependency", f"{kind}:{other}"] if other else []
        env = {"PIPES": str(self.pipes), "NAME": name}
        done = self.rms.rms("submit", *words, str(script), "--json", "-", **env)
        if done.returncode:
            assert self.full and done.returncode == 1, done.stderr
            self.asked_again.append((name, tasks, nodes, waits))
            return
        found = msgspec.json.decode(done.stdout)["id"]
        ids = [found] if tasks == 1 else [f"{found}_{index}" for index in indices]
        assert not self.jobs.keys() & ids, (ids, self.rms.said())
        after = (other, KINDS[kind]) if other else None
        for job, index in zip(ids, indices, strict=True):
            pipe = self.pipes / f"{name}-{index}"
            self.jobs[job] = Known(pipe, held=kind == "hold", after=after)

    def hold(self, job: str) -> None:
        """Hold a job that waits, release one that is held; one that runs is left alone."""
        known = self.jobs[job]
        done = self.rms.rms("release" if known.held else "hold", job)
        if not done.returncode:
            known.held = not known.held
        elif self.full:  # it may be done all the same, once there is room
            known.held = False
        else:
            assert not known.held and self.rms.row(job)["state"] != "PENDING", done.stderr

    def end(self, job: str, code: int) -> None:
        """Let a job that runs come to its end; one that waits goes on waiting."""
        known = self.jobs[job]
        with contextlib.suppress(OSError):  # nobody reads yet
            pipe = os.open(known.pipe, os.O_WRONLY | os.O_NONBLOCK)
            if known.launch is not None:
                self._end_world(job, known.launch)
            os.write(pipe, f"{code}\n".encode())
            os.close(pipe)
            known.ends = ("FAILED" if code else "COMPLETED",)
            self.wait(job)

    def cancel(self, job: str) -> None:
        """Cancel a job; without room that is refused, as it cannot be kept, but may be done."""
        done = self.rms.rms("cancel", job)
        if done.returncode:
            assert self.full and done.returncode == 1, done.stderr
            self.jobs[job].unsure = True
        else:
            self.jobs[job].ends = ("CANCELLED",)
            self.wait(job)

    def drain(self, node: str) -> None:
        """Drain a node, or give it back."""
        done = self.rms.rms("resume" if node in self.drained else "drain", node)
        if done.returncode:
            assert self.full and done.returncode == 1, done.stderr
            return
        self.drained ^= {node}
        rows = {row["name"]: row["state"] for row in self.rms.get("/nodes")}
        assert (node in self.drained) == rows[node].startswith("drain"), rows

    def wait(self, job: str) -> None:
        """Wait until a job is over, if there is a daemon, and see how."""
        if self.up:
            self.rms.until(lambda: self.rms.row(job)["state"] in OVER, f"end of job {job}", WAIT_S)
            self.check()

    # --- what happens to the daemon ---------------------------------------------------------------

    def kill(self) -> None:
        """End the daemon at once; there is room then."""
        self.rms.end(signal.SIGKILL)
        self.doubtful, self.full = self.full, False

    def start(self) -> None:
        """Start a daemon again; what was not taken in is asked again."""
        self.rms.start()
        if self.doubtful:
            self.see()
        self.repeat()

    def see(self) -> None:
        """Take over what was asked without room: it was refused, and may be done all the same."""
        for row in self.rms.rows():
            self.jobs[row["id"]].held = row["reason"] == "JobHeldUser"
        states = {row["name"]: row["state"] for row in self.rms.get("/nodes")}
        self.drained = {name for name, state in states.items() if state.startswith("drain")}

    def repeat(self) -> None:
        """Ask again for what was not taken in."""
        waiting, self.asked_again = self.asked_again, []
        for one in waiting:
            self._submit(*one)

    def tear(self) -> None:
        """Leave half a record at the end of the log, as a kill of the machine may."""
        with (self.rms.state / "journal.sqlite-wal").open("ab") as log:
            log.write(os.urandom(700))

    def cut_off(self, size: int) -> None:
        """Cut the end of the log off: what was answered last may be lost."""
        path = self.rms.state / "journal.sqlite-wal"
        os.truncate(path, max(0, path.stat().st_size - size))
        self.rms.start()
        rows = {row["id"]: row["state"] for row in self.rms.rows()}
        if missing := self.jobs.keys() - rows.keys():
            assert "missing" in self.rms.said() or "not known" in self.rms.said(), missing
        assert rows.keys() <= self.jobs.keys()
        self.jobs = {job: self.jobs[job] for job in rows}
        for job, known in self.jobs.items():
            if rows[job] == "PENDING":  # also one whose cancel is lost, which waits again
                known.ends = ()
            else:
                known.ends = (rows[job],) if rows[job] in OVER else known.ends and OVER
            known.unsure = known.unsure or known.launch is not None
            known.launch, known.after = None, None
        self.cut = True
        self.see()
        self.repeat()

    def fill(self) -> None:
        """Leave the daemon no room for what it would write: no file of its own may grow."""
        assert self.rms.process is not None
        self.rms.until(lambda: not self._starting(), "start of all that can", WAIT_S)
        hard = resource.prlimit(self.rms.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.rms.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        self.full = True

    def _starting(self) -> bool:
        return any(row["state"] == "CONFIGURING" for row in self.rms.rows())

    def free(self) -> None:
        """Let there be room again."""
        assert self.rms.process is not None
        hard = resource.prlimit(self.rms.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.rms.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        self.full = False
        self.see()
        self.repeat()

    # --- resizes ----------------------------------------------------------------------------------

    def resize(self, job: str, size: int, kill_at: int) -> None:
        """Resize a job by all steps of it, its daemon being killed before one of them.

        Args:
            kill_at: before which step, none where there are not so many.
        """
        known = self.jobs[job]
        if known.size == size:
            return
        steps: list[Callable[[], None]] = []

        def step(act: Callable[[], None]) -> None:
            if len(steps) == kill_at:
                self.kill()
                self.start()
            steps.append(act)
            act()

        def runs() -> bool:
            return bool(self.rms.row(job)["state"] == "RUNNING")

        self.rms.until(lambda: self._token(job) or not runs(), "the job's script", WAIT_S)
        token = self._token(job)
        if not token:
            return
        if known.launch is None:
            step(lambda: self._launch(job, token))
        step(lambda: self._poll(job, token))
        done = self.rms.rms("resize", job, str(size), "--strategy", "warm")
        if done.returncode:
            assert "not resized" in done.stderr, done.stderr
            return
        self._move(job, token, size, step)

    def _move(
        self, job: str, token: str, size: int, step: Callable[[Callable[[], None]], None]
    ) -> None:
        known, new = self.jobs[job], dict[str, str]()
        old = known.launch
        self.rms.until(lambda: new.update(self._booted(job, old)) or new, "new world", WAIT_S)
        number, launch = int(new[JOIN_VARIABLE]), int(new[WORLD_VARIABLE])
        step(lambda: self._report(job, token, Ready(number, launch, "127.0.0.1:1:t", "port")))
        step(lambda: self._told(job, token, number))
        step(lambda: self._report(job, token, Begun(number)))
        row = ResizeReport(5, known.size, size, "warm", 0.5, 0.2, 0.1, 8, 1.0)
        step(lambda: self._report(job, token, Done(number, row, (launch,))))
        for pid in self._ranks(job, old) if old is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        known.launch, known.size = launch, size
        step(lambda: None)
        self.rms.until(lambda: not self.rms.row(job)["resizing"], "end of the resize", WAIT_S)
        found = self.rms.row(job)
        assert (found["size"], found["state"]) == (size, "RUNNING"), (found, self.rms.said())

    def _end_world(self, job: str, launch: int) -> None:
        """Let the world come to its end as a program of dmr does: with a record."""
        for pid, env in self._ranks(job, launch).items():
            record = CompletionRecord("COMPLETED", 0, "", 100, 1, 1)
            write_completion(Path(env[COMPLETION_VARIABLE]), record)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ranks(self, job: str, launch: int) -> dict[int, dict[str, str]]:
        """Return the ranks of a world with their environments, once mpiexec has started them all.

        The job's size is that of the world.
        """
        end = time.monotonic() + WAIT_S
        while True:
            ranks = {
                pid: env
                for pid, env in self.rms.processes().items()
                if env.get(WORLD_VARIABLE) == str(launch)
                and self._owner(env) == job
                and "PMI_RANK" in env
            }
            if len(ranks) == self.jobs[job].size:
                return ranks
            assert time.monotonic() < end, (ranks, self.jobs[job], self.rms.said())
            time.sleep(0.05)

    @staticmethod
    def _owner(env: dict[str, str]) -> str:
        return env.get(INSTANCE_VARIABLE, "").partition(":")[2]

    def _token(self, job: str) -> str:
        """Return the token that a running job's script was given, "" where none runs."""
        for env in self.rms.processes().values():
            if self._owner(env) == job and WORLD_VARIABLE not in env and TOKEN_VARIABLE in env:
                return env[TOKEN_VARIABLE]
        return ""

    def _booted(self, job: str, present: int | None) -> dict[str, str]:
        """Return the environment of a world that waits to take over from the present one."""
        for env in self.rms.processes().values():
            joins = self._owner(env) == job and JOIN_VARIABLE in env
            if joins and env[WORLD_VARIABLE] != str(present):
                return env
        return {}

    def _launch(self, job: str, token: str) -> None:
        env = {"PATH": os.environ["PATH"]}
        line = LaunchRequest(["sleep", "100000"], str(self.rms.work), env, key=f"line-{job}")
        self._post(job, "steps", line, token)
        known = self.jobs[job]
        known.launch, known.size = 0, self.rms.row(job)["size"]

    def _poll(self, job: str, token: str) -> None:
        """Say how far the job is; the daemon holds that back, which nobody waits for."""
        with contextlib.suppress(UnreachableError):
            self._ask(job, "poll", self._progress(job, 0), token, timeout_s=0.02)
        if self.rms.row(job)["step"] != 1:
            self._post(job, "poll", self._progress(job, 0), token)

    def _told(self, job: str, token: str, number: int) -> None:
        """Ask what is to be done until it is that resize."""
        end = time.monotonic() + WAIT_S
        while True:
            said = self._post(job, "poll", self._progress(job, number - 1), token)
            answer = msgspec.json.decode(said, type=PollAnswer).request
            if answer is not None and answer.number == number:
                return
            assert time.monotonic() < end, self.rms.said()

    def _progress(self, job: str, known: int) -> Poll:
        own = self.jobs[job]
        assert own.launch is not None
        return Poll(1, 100, known, "warm", ((own.launch, own.size),))

    def _report(self, job: str, token: str, report: Report) -> None:
        self._post(job, "report", report, token)

    def _post(self, job: str, what: str, body: object, token: str) -> bytes:
        """Say something as a job does: until it is answered."""
        end = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(UnreachableError):
                return self._ask(job, what, body, token)
            assert time.monotonic() < end, self.rms.said()
            time.sleep(0.05)

    def _ask(self, job: str, what: str, body: object, token: str, timeout_s: float = 30.0) -> bytes:
        sent, where = msgspec.json.encode(body), f"/jobs/{job}/{what}"
        server = self.rms.server
        status, said = request(server, "POST", where, sent, token=token, timeout_s=timeout_s)
        assert status == 200, (status, where, body, said, self.rms.said())
        return said

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """See that all that was acknowledged is known, as it should be, and nothing else."""
        rows = {row["id"]: row for row in self.rms.rows()}
        assert rows.keys() == self.jobs.keys(), (rows.keys() ^ self.jobs.keys(), self.rms.said())
        for job, known in self.jobs.items():
            state = rows[job]["state"]
            if known.unsure and state in OVER:
                known.ends = (state,)
            assert not known.ends or state not in OVER or state in known.ends, (
                rows[job],
                known,
                self.rms.said(),
            )
            assert known.ends or state not in OVER, (rows[job], self.rms.said())
            if state != "PENDING" and known.ends != ("CANCELLED",):
                assert not known.held, (rows[job], self.rms.said())
                other, states = known.after or (job, (state,))
                assert rows[other]["state"] in states, (rows[job], rows[other], self.rms.said())
        taken = [node for row in rows.values() for node in row["nodes"]]
        assert len(set(taken)) == len(taken), rows
        assert "Traceback" not in self.rms.said() and "Error" not in self.rms.said(), (
            self.rms.said()
        )

    def finish(self) -> None:
        """Let all come to its end; nothing is left, the books balance, and a replay agrees."""
        if not self.up:
            self.start()
        if self.full:
            self.free()
        for node in sorted(self.drained):
            self.drain(node)
        end = time.monotonic() + WAIT_S
        while self.open:
            for job in self.open:
                if self.jobs[job].held:
                    self.hold(job)
                if "NeverSatisfied" in self.rms.row(job)["reason"]:
                    self.cancel(job)
                else:
                    self.end(job, 0)
            self.check()
            assert time.monotonic() < end, (self.rms.rows(), self.rms.said())
            time.sleep(0.02)
        self.rms.over(*self.jobs)
        self.check()
        assert not {row["state"] for row in self.rms.rows()} - set(OVER)
        if self.jobs:
            self.rms.accounts_balance()
        assert self.rms.end() == 0
        self.rms.nothing_left()
        if not self.cut:
            self.rms.replays()
