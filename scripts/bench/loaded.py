"""A real daemon whose jobs have no processes, and the ranks that stand in for them, which ask.

The daemon is the whole of ``rms serve``: journal on disk, policy, loop, HTTP at a Unix socket. Only
its launcher starts nothing: scripts and worlds run until they are terminated. Their rank 0s are
persistent connections of another process, which polls as dmr does.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import common  # noqa: F401 - this checkout comes first
import msgspec
import uvloop

from rms.client.connection import ServerError
from rms.client.connection import ask as request
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.ask import routes
from rms.daemon.serve import run_daemon, start_log
from rms.daemon.store.archive import KEEP
from rms.daemon.store.context import Settings
from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import JobEngine, LocalLauncher
from rms.wire.http import RETRY_S
from rms.wire.messages import TOKEN_VARIABLE, LaunchRequest, Poll, PollAnswer
from rms.wire.users import JobIds, JobSelection, Options, PolicyName, Submission

LOADED = [sys.executable, __file__]
SCRIPT = "#!/bin/bash\ntrue\n"
PROBE_S = 0.01
DEADLINE_S = 300.0
IDLE_SHARE = 0.05
"""Share of a core below which a daemon has no backlog."""
STEADY_SHARE = 0.02
SETTLE_S = 60.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

POWER = NodePower(30.0, 100.0, 100.0)


class StoodIn(ManagedProcess):
    """A process that does not exist."""

    code: int | None = None
    is_child = True  # type: ignore[assignment]

    def status(self) -> int | None:
        """Return 143 once it was terminated."""
        return self.code


@dataclass
class Launcher(LocalLauncher):
    """Starts nothing; the lines of ``tokens`` have the jobs and the tokens of their ranks."""

    running: dict[str, list[StoodIn]] = field(default_factory=dict)

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Note that a job runs."""
        with (self.state / "tokens").open("a") as tokens:
            tokens.write(f"{job} {launch.env[TOKEN_VARIABLE]}\n")
        return self._new(job)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Note that a world runs."""
        return self._new(job)

    def _new(self, job: str) -> StoodIn:
        process = StoodIn(0)
        self.running.setdefault(job, []).append(process)
        return process

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return none."""
        return []

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """End a job at once."""
        for process in self.running.pop(job, []):
            process.code = 143
        os.kill(os.getpid(), signal.SIGCHLD)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End a job at once."""
        self.terminate(job, [])


def serve(
    state: Path, nodes: int, polls_per_s: float, policy: str, profile: str | None = None
) -> None:
    """Serve until terminated; polls are held so that all jobs together have this rate."""
    routes.HOLD_S, routes.POLLS_PER_S = 0.0, polls_per_s
    names = tuple(f"n{n}" for n in range(1, nodes + 1))
    cluster = Cluster(names, tuple((f"{name}/cpu:0",) for name in names), (POWER,) * nodes)
    start_log("info", {})
    settings = Settings(
        policy=policy,
        listen=f"unix:{state / 'socket'}",
        parent=os.getppid(),
        keep_entries=KEEP,
    )

    def run() -> None:
        run_daemon(state, JobEngine(cluster, Launcher), settings)

    run() if profile is None else cProfile.runctx("run()", {}, {"run": run}, profile)


class Ranks:
    """The rank 0s of all jobs, with persistent connections, until a time is up."""

    def __init__(self, path: str, hold_s: float) -> None:
        self._path, self._hold_s, self.until_s = path, hold_s, inf
        self.waited_s: list[float] = []
        self.failed = 0
        self._kept: dict[str, Stream | tuple[None, None]] = {}

    async def post(self, job: str, token: str, what: str, body: object) -> bytes:
        """Send a message as a job's rank 0, over its own connection; return the answer."""
        sent = msgspec.json.encode(body)
        head = (
            f"POST /jobs/{job}/{what} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n"
            f"Content-Length: {len(sent)}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        reader, writer = self._kept.pop(job, (None, None))
        if reader is None or writer is None or reader.at_eof() or writer.is_closing():
            reader, writer = await self._connected()
        try:
            writer.write(head.encode() + sent)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise OSError(head.partition(b"\r\n")[0].decode())
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            answer = await reader.readexactly(int(length))
        except BaseException:
            writer.close()
            raise
        self._kept[job] = reader, writer
        return answer

    async def _connected(self) -> Stream:
        """Return a new connection, as rms.wire.http does: once the backlog has room."""
        while True:
            try:
                return await asyncio.open_unix_connection(self._path)
            except BlockingIOError:
                await asyncio.sleep(RETRY_S)

    async def launch(self, job: str, token: str) -> None:
        """Reach a job's launcher line."""
        line = LaunchRequest(["program"], "/", {}, None, None, os.urandom(8).hex())
        await self.post(job, token, "steps", line)

    async def poll(self, job: str, token: str, first_s: float) -> None:
        """Poll until the end, for the first time after a while."""
        step = number = 0
        await asyncio.sleep(first_s)
        while (begun := time.monotonic()) < self.until_s:
            step += 1
            poll = Poll(step, 1_000_000, number, launches=((0, 1),))
            try:
                body = await self.post(job, token, "poll", poll)
            except (OSError, asyncio.IncompleteReadError):
                self.failed += 1
                continue
            answer = msgspec.json.decode(body, type=PollAnswer)
            if answer.request is not None:
                number = answer.request.number
            if answer.pause_s:
                await asyncio.sleep(answer.pause_s)
            self.waited_s.append(time.monotonic() - begun - self._hold_s)


async def ask(path: str, jobs: Sequence[tuple[str, str]], hold_s: float, for_s: float) -> None:
    """Be the ranks of these jobs for a time; print figures."""
    ranks = Ranks(path, hold_s)
    for first in range(0, len(jobs), 50):
        await asyncio.gather(*(ranks.launch(*job) for job in jobs[first : first + 50]))
    first_poll = Poll(1, 1_000_000, 0, launches=((0, 1),))  # its job is at a resize point by it
    await asyncio.gather(*(ranks.post(*job, "poll", first_poll) for job in jobs))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begun, cpu = time.monotonic(), time.process_time()
    ranks.until_s = begun + for_s
    spread = hold_s / max(1, len(jobs))
    polls = (ranks.poll(*job, first_s=n * spread) for n, job in enumerate(jobs))
    await asyncio.gather(*polls)
    figures = {
        "seconds": time.monotonic() - begun,
        "cpu_s": time.process_time() - cpu,
        "failed": ranks.failed,
        "waited_s": sorted(ranks.waited_s),
    }
    print(json.dumps(figures), flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # connections that end together ask nothing


# --- the side of a bench -------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Bench:
    """A loaded daemon and its clients."""

    def __init__(self, folder: Path, running: int, rate: float, serving: Sequence[str]) -> None:
        self.state, self.running, self.hold_s = folder / "state", running, running / rate
        self.state.mkdir(mode=0o700)
        self.server = f"unix:{self.state / 'socket'}"
        command = [*LOADED, "serve", str(self.state), str(running), str(rate), *serving]
        self.log = (folder / "log").open("w")
        self.daemon = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def ready(self) -> None:
        """Wait until it serves."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                request(PolicyName, self.server, "GET", "/policy")
                return
            except ServerError:
                if self.daemon.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def all_run(self) -> None:
        """Wait until all jobs run, without requests, which would delay that."""
        tokens, until = self.state / "tokens", time.monotonic() + DEADLINE_S
        while not tokens.exists() or tokens.read_bytes().count(b"\n") < self.running:
            if self.daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit("error: expected all jobs to run, got fewer")
            time.sleep(0.2)

    def submit(self, tasks: int, **options: Any) -> str:
        """Submit an array; return its id."""
        job_options = Options(array=f"1-{tasks}" if tasks else None, **options)
        body = Submission(SCRIPT, "load", "/tmp", {"PATH": os.defpath}, job_options)
        return request(JobIds, self.server, "POST", "/jobs", body).ids[0].partition("_")[0]

    def cancel(self, job: str) -> None:
        """Cancel a job or array."""
        request(JobIds, self.server, "POST", "/cancel", JobSelection(job))

    def used_s(self) -> float:
        """Return the processor time of the daemon."""
        return cpu_s(self.daemon.pid)

    @contextlib.contextmanager
    def ranks(self, for_s: float) -> Iterator[Callable[[], dict[str, Any]]]:
        """Start the ranks of all running jobs; yield a function that begins and returns figures."""
        command = [*LOADED, "ranks", str(self.state), str(self.hold_s), str(for_s)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin and process.stdout
            process.stdout.readline()

            def begin() -> dict[str, Any]:
                before = self.used_s()
                print(file=process.stdin, flush=True)
                figures: dict[str, Any] = json.loads(process.stdout.readline())
                return figures | {"daemon_s": self.used_s() - before}

            yield begin

    @contextlib.contextmanager
    def probed(self) -> Iterator[list[float]]:
        """Send a small query every 10 ms meanwhile; yield the latencies, s."""
        times_s: list[float] = []
        over = threading.Event()

        def probe() -> None:
            while not over.wait(PROBE_S):
                begun = time.monotonic()
                request(PolicyName, self.server, "GET", "/policy")
                times_s.append(time.monotonic() - begun)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            time.sleep(10 * PROBE_S)
            yield times_s
            time.sleep(10 * PROBE_S)
        finally:
            over.set()
            thread.join()

    def settle(self) -> None:
        """Wait until its share of a core is below :data:`IDLE_SHARE`, or stays the same."""
        until, used_s, last = time.monotonic() + SETTLE_S, self.used_s(), inf
        while time.monotonic() < until:
            time.sleep(2.0)
            before, used_s = used_s, self.used_s()
            now = (used_s - before) / 2.0
            if now < IDLE_SHARE or abs(now - last) < STEADY_SHARE:
                return
            last = now

    def close(self) -> None:
        """End it with its jobs; it writes a profile last."""
        self.daemon.terminate()
        try:
            self.daemon.wait(60.0)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        self.log.close()


def main() -> None:
    """Be the daemon, or the ranks."""
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    what, state, *rest = sys.argv[1:]
    if what == "serve":
        serve(Path(state), int(rest[0]), float(rest[1]), *rest[2:])
        return
    pairs = [line.split() for line in (Path(state) / "tokens").read_text().splitlines()]
    jobs = [(job, token) for job, token in pairs]
    gc.disable()  # its pauses would be taken for the daemon's
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask(str(Path(state) / "socket"), jobs, float(rest[0]), float(rest[1])))


if __name__ == "__main__":
    main()
