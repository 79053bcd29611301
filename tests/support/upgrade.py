"""The life of a daemon that a version records, and that a later version reads and repeats.

A :class:`Session` is a daemon in this process whose jobs are numbers (:mod:`killed`). Its steps are
requests of the command line client and of jobs, with their answers, and events of the machine.
:func:`live` makes them, ``tests/upgrade/record`` keeps them with the state folder, and
:meth:`Session.repeat` takes recorded ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from killed import NAMES, Machine, Outliving
from routed import Routed

from rms.cli.main import main
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId, NodePower
from rms.core.scheduler.snapshot import freeze
from rms.daemon.restart.recover import open_journal, resume
from rms.daemon.store.archive import retire
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.wire.messages import (
    Begun,
    CompletionRecord,
    DeviceEnergy,
    Done,
    LaunchRequest,
    Metered,
    Poll,
    Ready,
    ResizeReport,
    write_completion,
)

FOLDER = Path(__file__).parents[1] / "upgrade"
JOURNAL = "journal.sqlite"
POLICY = "backfill-share"
CLUSTER = Cluster(NAMES, tuple((f"cpu:{n}",) for n in range(4)), (NodePower(5.0, 10.0),) * 4)
USER = {"PATH": "/usr/bin:/bin", "HOME": "/", "LOGNAME": "ada", "USER": "ada"}
"""Environment of the client."""

KEY = "0123456789abcdef" * 2
"""The key of the jobs' tokens."""

SEEN = ("/jobs", "/nodes", "/acct", "/books")
"""Paths whose answers of the last moment are kept beside the state."""

SERVER = "unix:in-process"
Step = dict[str, Any]


def versions() -> list[str]:
    """Return the versions with a recorded state."""
    return sorted(path.parent.name for path in FOLDER.glob("*/session.json"))


def recorded(version: str) -> dict[str, Any]:
    """Return the recorded session of a version: its end, its processes, its steps."""
    read: dict[str, Any] = json.loads((FOLDER / version / "session.json").read_text("utf-8"))
    return read


def journal_format(path: Path) -> int:
    """Return the number of a journal's format, as SQLite keeps it."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        number: int = db.execute("PRAGMA user_version").fetchone()[0]
    return number


@dataclass
class Session:
    """A daemon of four nodes on a state folder.

    Attributes:
        now_s: the daemon's time.
        machine: the processes of its jobs.
        steps: that were taken.
    """

    state: Path
    now_s: float = 1000.0
    machine: Machine = field(default_factory=Machine)
    steps: list[Step] = field(default_factory=list)
    journal: Journal = field(init=False)
    server: Routed = field(init=False)

    def start(self) -> None:
        """Start the daemon where the journal ends."""
        self.journal = open_journal(self.state / JOURNAL)
        self.launcher = Outliving(self.state, "instance", "unix:none", machine=self.machine)
        self.launcher.meter_token = "of the meters"
        settings = Settings(policy=POLICY, now=lambda: self.now_s)
        daemon = resume(CLUSTER, self.journal, self.launcher, settings)
        self.server = Routed(daemon, [self.now_s])

    def close(self) -> None:
        """End the daemon; its jobs go on."""
        self.journal.flush()
        self.journal.close()
        self.server.loop.close()

    # --- steps, which are recorded ------------------------------------------------------------

    def time(self, now_s: float) -> None:
        """Let it be so late."""
        self._take({"do": "time", "now_s": now_s})

    def client(self, *words: str, wanted: int = 0) -> None:
        """Run ``rms`` with these words; its requests are the steps."""

        def send(where: str, method: str, path: str, body: bytes = b"", *, token: str = "") -> Any:
            text = json.loads(body) if body else None
            step = {"do": "request", "command": " ".join(["rms", *words])}
            return self._take(step | {"method": method, "path": path, "body": text})

        with (
            patch("rms.client.connection.request", send),
            patch.dict(os.environ, {**USER, "RMS_SERVER": SERVER}, clear=True),
            patch.object(sys, "stdin", io.StringIO("#!/bin/sh\nsleep 600\n")),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.chdir("/"),
        ):
            status = main(words)
        assert status == wanted, (words, self.steps[-1])

    def job(self, job: str, path: str, body: msgspec.Struct) -> Any:
        """Send a request of a job, or of a meter if ``job`` is ""; return the answer."""
        step = {"do": "request", "job": job, "method": "POST", "path": path}
        status, answer = self._take(step | {"body": msgspec.to_builtins(body)})
        assert status == 200, answer
        return json.loads(answer)

    def completion(self, job: str, record: CompletionRecord) -> None:
        """Write the record of a job's end, as its last rank does."""
        path = self.launcher.completion_file(job, 0)
        write_completion(path, record)
        text, where = path.read_text(), str(path.relative_to(self.state))
        self._take({"do": "file", "path": where, "text": text})

    def ends(self, job: str, launch: int | None, status: int = 0) -> None:
        """End a script (launch None) or a world."""
        self._take({"do": "end", "job": job, "launch": launch, "status": status})

    def snapshot(self) -> None:
        """Take a snapshot of the scheduler."""
        self._take({"do": "snapshot"})

    def archive(self) -> None:
        """Move the oldest job that has ended to the archive."""
        self._take({"do": "archive"})

    def _take(self, step: Step) -> tuple[int, bytes]:
        status, answer = self.do(step)
        if step["do"] == "request":
            step |= {"status": status, "answer": json.loads(answer)}
        self.steps.append(step)
        return status, answer

    # --- doing them -------------------------------------------------------------------------------

    def do(self, step: Step) -> tuple[int, bytes]:
        """Take a step; return status and answer of a request."""
        if step["do"] == "request":
            return self._send(step)
        if step["do"] == "file":
            (self.state / step["path"]).write_text(step["text"])
        elif step["do"] == "end":
            self.machine.end(step["job"], step["launch"], step["status"])
        elif step["do"] == "snapshot":
            self.journal.save(freeze(self.server.daemon.scheduler), None)
        elif step["do"] == "archive":
            kept = len(self.server.daemon.context.state.ended) - 1
            with patch.multiple("rms.daemon.store.archive", KEPT=kept, AT_ONCE=1):
                assert retire(self.server.daemon.context)
        else:
            self.now_s = step["now_s"]
            for _ in range(3):
                self.server.daemon.tick()
        return 200, b"null"

    def _send(self, step: Step) -> tuple[int, bytes]:
        body = b"" if step["body"] is None else json.dumps(step["body"]).encode()
        token = None
        if "job" in step:
            token = self.server.token(step["job"]) if step["job"] else self.launcher.meter_token
        with patch.multiple("rms.daemon.ask.routes", HOLD_S=0.01, FIRST_HOLD_S=0.01):
            return self.server.request(step["method"], step["path"], body, token=token)

    def get(self, path: str) -> Any:
        """Return the answer to a user's request, which changes nothing."""
        status, answer = self._send({"method": "GET", "path": path, "body": None})
        assert status == 200, answer
        return json.loads(answer)

    def processes(self) -> list[list[Any]]:
        """Return the processes that live: number, job, launch, file of the status."""
        return [
            [pid, job, launch, str(file.relative_to(self.state))]
            for pid, (job, launch, file) in self.machine.live.items()
        ]


@contextlib.contextmanager
def session(
    state: Path, now_s: float = 1000.0, processes: Sequence[Sequence[Any]] = ()
) -> Iterator[Session]:
    """Open a session; its numbers count as processes meanwhile, from those that live already."""
    found = Session(state, now_s)
    found.machine.live |= {pid: (job, launch, state / file) for pid, job, launch, file in processes}
    with (
        patch("rms.launch.base.alive", lambda pid: pid in found.machine.live),
        patch("os.fsync", lambda file: None),
        patch.dict(os.environ, USER),
    ):
        found.start()
        try:
            yield found
        finally:
            found.close()


def begin(state: Path) -> None:
    """Make a state folder with a key that is no secret."""
    state.mkdir(mode=0o700)
    (state / "key").write_text(KEY)
    (state / "key").chmod(0o600)


# --- the recorded life ----------------------------------------------------------------------------


def live(one: Session) -> None:
    """Let jobs end, fail, wait, be held and cancelled, and run with a resize and a meter."""
    job, client = one.job, one.client
    client("submit", "-J", "first", "-N", "1", "--time", "10:00", "-o", "/dev/null")
    client("submit", "-J", "second", "-N", "1", "--time", "10:00", "-o", "/dev/null")
    launched(one, "1")
    one.time(1030.0)
    one.completion("1", CompletionRecord("COMPLETED", 0, "", 100, 0, 1, "sum 42"))
    one.ends("1", 0)
    one.ends("1", None)
    one.ends("2", None, 3)
    one.time(1060.0)
    client("wait", "1")
    sizes = "-N", "1-3", "--mode", "malleable", "--time", "1:00:00"
    client("submit", "-J", "grows", *sizes, "-o", "/dev/null", "--account", "physics")
    client("submit", "-J", "beside", "-N", "1", "--time", "2:00:00", "-o", "/dev/null")
    one.snapshot()
    one.archive()
    for name, *more in (("waits", "-N", "4"), ("later", "-H"), ("array", "-a", "1-3", "-N", "4")):
        client("submit", "-J", name, "--time", "1:00:00", "-o", "/dev/null", *more)
    launched(one, "3")
    client("resize", "3", "2")
    resized(one, "3", 3, 2)
    for second in (0.0, 10.0, 20.0):
        devices = [DeviceEnergy("package-0", "rapl", 30.0 * second)] if second else []
        job("", "/meter", Metered("n1", "a", int(second), one.now_s, "boot", devices))
        one.time(one.now_s + 10.0)
    client("cancel", "7_3")
    client("hold", "7_2")
    client("release", "7_2")
    client("resize", "2", "2", wanted=2)  # it has ended
    client("explain", "5")
    client("show", "3")
    client("queue")
    client("queue", "-u", "ada", "-t", "PENDING,RUNNING")
    client("nodes")
    client("acct")
    client("acct", "--energy")


def launched(one: Session, job: str) -> None:
    """Let a job's launcher line start a world, which polls."""
    command = LaunchRequest(["./a.out"], "/", {"PATH": USER["PATH"]}, key="line")
    assert one.job(job, f"/jobs/{job}/steps", command) == {"step": 0}
    ranks = len(one.server.daemon.context.state.running[JobId(job)].nodes)
    one.job(job, f"/jobs/{job}/poll", Poll(1, 100, 0, "warm", ((0, ranks),), restartable=True))


def resized(one: Session, job: str, ranks: int, size: int) -> None:
    """Let a job carry out the resize that was requested."""
    resize = one.server.daemon.jobs[JobId(job)].resize
    assert resize is not None
    number = resize.number
    one.job(job, f"/jobs/{job}/report", Ready(number, 1, "127.0.0.1:4000", "port"))
    poll = Poll(5, 100, 0, "warm", ((0, ranks),), restartable=True)
    assert one.job(job, f"/jobs/{job}/poll", poll)["request"]["number"] == number
    one.time(one.now_s + 2.0)
    one.job(job, f"/jobs/{job}/report", Begun(number))
    row = ResizeReport(6, ranks, size, "warm", 1.5, 0.5, 0.1, 8_000_000, 0.08)
    one.job(job, f"/jobs/{job}/report", Done(number, row, (1,)))
    one.ends(job, 0)
    one.time(one.now_s + 1.0)
    one.job(job, f"/jobs/{job}/poll", Poll(30, 100, number, "warm", ((1, size),)))


# --- comparison -----------------------------------------------------------------------------------

MEANT = frozenset(("id", "ids", "state", "decision", "left", "step", "size", "nodes"))
"""Keys whose values decide what a client does next; of other values the type counts."""


FOLLOWS = frozenset(("steps", "step", "power_source", "power_w"))
"""Keys whose values a restarted daemon has from the next poll of a job or report of a meter on."""


def lacking(before: Any, now: Any, where: str = "answer", *, whole: bool = False) -> list[str]:
    """Return in sentences what a recorded answer has and the present one has not.

    Args:
        whole: all values are compared but those of :data:`FOLLOWS`, not only those of
            :data:`MEANT`.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        missing = [f"{where}: expected {key!r}, got none" for key in before if key not in now]
        return missing + [
            line
            for key, value in before.items()
            if key in now and not (whole and key in FOLLOWS)
            for line in lacking(value, now[key], f"{where}.{key}", whole=whole or key in MEANT)
        ]
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return [f"{where}: expected {len(before)} entries, got {len(now)}"]
        return [
            line
            for at, (old, new) in enumerate(zip(before, now, strict=True))
            for line in lacking(old, new, f"{where}[{at}]", whole=whole)
        ]
    kinds = [float if isinstance(v, int | float) else type(v) for v in (before, now)]
    if kinds[0] is not kinds[1] or (whole and before != now):
        return [f"{where}: expected {before!r}, got {now!r}"]
    return []


def changes(step: Step, command: str, status: int, answer: bytes, refused: str | None) -> list[str]:
    """Return in sentences what of a recorded answer is not so any more.

    Args:
        refused: words of the sentence with which this version refuses the request, None where it
            is to be answered as before.
    """
    now = json.loads(answer)
    if refused is not None:
        sentence = now.get("error", "") if isinstance(now, dict) else ""
        wanted = 400 <= status < 500 and refused in sentence and "\n" not in sentence
        return [] if wanted else [f"{command}: expected to be refused: {refused}, got {status}"]
    if status != step["status"]:
        return [f"{command}: expected status {step['status']}, got {status}: {answer.decode()}"]
    return lacking(step["answer"], now, command)
