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
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec
import uvloop

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.ask import routes
from rms.daemon.serve import run_daemon, start_log
from rms.daemon.store.context import Settings
from rms.daemon.store.snapshots import KEEP
from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import JobEngine, LocalLauncher
from rms.wire.http import RETRY_S
from rms.wire.messages import TOKEN_VARIABLE, LaunchRequest, Poll, PollAnswer

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
