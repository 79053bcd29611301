"""The agent of a host, and the runner of a script there.

``python -m rms.launch.hosts.agent INSTANCE FENCE_S`` takes a JSON line per message of the daemon's
on standard input and answers each by one. It ends the processes of the daemon's jobs on its host:
on request, and also when no message has confirmed for so long that the daemon receives its answers.
By then the daemon is about to give these jobs other hosts, whose processes write the same files.

``python -m rms.launch.hosts.agent --run`` reads a :class:`Start` and runs a script.

Hosts import this module, so it needs only :mod:`rms.launch.processes`, :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from rms.launch.hosts.relay import Relay
from rms.launch.processes import (
    GENTLE_S,
    Processes,
    alive,
    children,
    descendants,
    hold_orphans,
    runs_shell,
    send_signal,
)
from rms.wire.marks import AGENT, KEEPERS, environment
from rms.wire.messages import WORLD_VARIABLE

KILL_S = 0.05  # interval between two rounds of SIGKILL
RANKS = (b"PMI_RANK=", b"PMIX_RANK=", b"OMPI_COMM_WORLD_RANK=")


class Order(msgspec.Struct, omit_defaults=True):
    """A message of the daemon's.

    Attributes:
        number: of this message; its answer has the same.
        seen: the number of the last answer that the daemon has received.
        kill: jobs, or a job and one of its launches, to be ended at once.
        sends: a signal for a job's processes, as (job, signal, ``all``, ``ranks`` or ``script``).
        fence: end everything of this daemon's first.
        looks: a file to be read.
        key: of a relay that the agent opens; "" for none.
        ends: the daemon ends.
    """

    number: int
    seen: int = 0
    kill: list[tuple[str, str]] = []
    sends: list[tuple[str, int, str]] = []
    fence: bool = False
    looks: str = ""
    key: str = ""
    ends: bool = False


class Answer(msgspec.Struct, omit_defaults=True):
    """The answer of an agent.

    Attributes:
        live: the jobs and launches with live processes on this host.
        ending: those that are killed and have live processes yet.
        text: contents of the file; None if it cannot be read.
        port: of its relay, 0 without one.
    """

    number: int
    live: list[tuple[str, str]] = []
    ending: list[tuple[str, str]] = []
    text: str | None = None
    port: int = 0


class Start(msgspec.Struct):
    """A script to be run on a host.

    Attributes:
        script: its path, ``text`` its contents, for hosts that have no such file.
        errors: file of its standard error, "" for that of the runner.
        adapter: words before those of the script.
    """

    script: str
    text: bytes
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    errors: str = ""
    adapter: list[str] = []


class Agent:
    """Answers the daemon, and ends processes."""

    def __init__(self, instance_id: str, fence_s: float) -> None:
        self._processes, self._fence_s = Processes(instance_id), fence_s
        self._killing: dict[tuple[str, str], float] = {}
        self._sent_s = {0: time.monotonic()}
        self._confirmed_s = time.monotonic()
        self._left = b""
        self._open = True
        self._relay: Relay | None = None
        self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Answer until the daemon ends, or is not heard of for too long."""
        os.set_blocking(0, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._woken[1], warn_on_full_buffer=False)
        waits = False
        while True:
            due_s = self._confirmed_s + self._fence_s - time.monotonic()
            wait_s = min(due_s, KILL_S if self._killing or waits else due_s)
            reads: list[socket.socket | int] = [self._woken[0], *([0] if self._open else [])]
            if self._relay is not None:
                reads += self._relay.sockets()
            ready, _, _ = select.select(reads, [], [], max(wait_s, 0.0))
            if self._woken[0] in ready:
                os.read(self._woken[0], 1 << 10)
            # Before anything is read: the messages of a paused host are old ones.
            if time.monotonic() > self._confirmed_s + self._fence_s:
                if not self._newer():
                    self.end_all()
                return 0
            if self._open:
                for line in self._lines():
                    if self._obey(msgspec.json.decode(line, type=Order)):
                        return 0
            if self._killing:
                self._kill()
            if self._relay is not None:
                waits = self._relay.poll(ready)

    def _lines(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            read = os.read(0, 1 << 16)
            self._open = bool(read)
            self._left += read
        *lines, self._left = self._left.split(b"\n")
        return lines

    def _obey(self, order: Order) -> bool:
        """Do what the daemon requests; return whether it ends."""
        if order.seen in self._sent_s:
            self._confirmed_s = self._sent_s[order.seen]
            self._sent_s = {n: at for n, at in self._sent_s.items() if n >= order.seen}
        if order.fence or order.ends:
            self.end_all()
        for owner in order.kill:
            self._killing.setdefault(owner, time.monotonic())
        if self._killing:
            self._kill()
        for job, number, whom in order.sends:
            # A script gets it before the programs that it waits for.
            for pid in sorted(self._chosen(job, whom), key=lambda pid: (_started(pid), pid)):
                send_signal(pid, number)
        if order.key and self._relay is None:
            self._relay = Relay(order.key)
        text = None
        if order.looks:
            with contextlib.suppress(OSError):
                text = Path(order.looks).read_text()
        port = 0 if self._relay is None else self._relay.port
        answer = Answer(order.number, self._live(), sorted(self._killing), text, port)
        self._sent_s[order.number] = time.monotonic()
        try:
            os.write(1, msgspec.json.encode(answer) + b"\n")
        except OSError:
            self._open = False
        return order.ends

    def _live(self) -> list[tuple[str, str]]:
        return [owner for owner in self._processes.owners() if owner[0] != AGENT]

    def _of(self, job: str, launch: str = "") -> list[int]:
        return self._processes.of(job, launch or None)

    def _kill(self) -> None:
        now = time.monotonic()
        for job, launch in list(self._killing):
            pids = self._of(job, launch)
            gently = job.endswith(KEEPERS) and now < self._killing[job, launch] + GENTLE_S
            for pid in pids:
                send_signal(pid, signal.SIGTERM if gently else signal.SIGKILL)
            if not pids:
                del self._killing[job, launch]

    def end_all(self) -> None:
        """End all processes of jobs, and wait until they are gone."""
        while pids := [pid for job, launch in self._live() for pid in self._of(job, launch)]:
            for pid in pids:
                send_signal(pid, signal.SIGKILL)
            time.sleep(KILL_S)

    def _chosen(self, job: str, whom: str) -> list[int]:
        pids = self._of(job)
        ranks = [pid for pid in pids if _has(pid, *RANKS)]
        if whom == "ranks":
            return ranks
        shells = [pid for pid in pids if runs_shell(pid)]  # of a daemon on this host
        local = {*shells, *descendants(shells)}.difference(ranks)
        pids = [pid for pid in pids if pid not in local]
        if whom == "script":
            world = f"{WORLD_VARIABLE}=".encode()
            below = {child for pid in pids for child in children(pid)}
            return [pid for pid in pids if pid not in below and not _has(pid, world)]
        return pids

    def _newer(self) -> bool:
        """Return whether an agent that was started later has taken over."""
        below = {os.getpid(), *descendants([os.getpid()])}
        others = [pid for pid in self._of(AGENT) if pid not in below]
        return any(_started(pid) > _started(os.getpid()) for pid in others)


def _has(pid: int, *variables: bytes) -> bool:
    return any(variable.startswith(variables) for variable in environment(pid) or [])


def _started(pid: int) -> int:
    """Return when a process was started, in ticks since the boot; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def run_script() -> int:
    """Run a script; its own processes end before this one does."""
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    hold_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.ExitStack() as stack:
        script = start.script
        if not os.access(script, os.X_OK):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rms-"))
            script = f"{folder}/{Path(script).name}"
            Path(script).write_bytes(start.text)
            Path(script).chmod(0o700)
        try:
            errors = stack.enter_context(Path(start.errors).open("ab")) if start.errors else None
            process = subprocess.Popen(
                [*start.adapter, script, *start.arguments],
                cwd=start.cwd,
                env=start.env,
                stdin=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            print(f"could not start {start.script}: {error}", file=sys.stderr)
            return 126
        code = process.wait()
        while left := [pid for pid in descendants([os.getpid()]) if alive(pid)]:
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            time.sleep(KILL_S)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run an agent or a script."""
    if sys.argv[1:] == ["--run"]:
        return run_script()
    instance_id, fence_s = sys.argv[1:]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it ends when the daemon does, or is away
    return Agent(instance_id, float(fence_s)).run()


if __name__ == "__main__":
    sys.exit(main())
