"""``rms serve``: this machine, or a cluster file, as an RMS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from rms.core.cluster import Cluster
from rms.core.ledger import NodePower
from rms.daemon.daemon import GRACE_S, Daemon
from rms.daemon.journal import Journal
from rms.daemon.resize import BOOT_S
from rms.daemon.server import bind, serve
from rms.formats.config import FileError, read_cluster
from rms.launch.local import LocalLauncher
from rms.power.samplers import NvidiaSmi, Reading

CORE_POWER = NodePower(idle_w=2.0, static_w=2.0, dynamic_w=8.0)
"""Model of one core where nothing is measured: round numbers of a server's order of magnitude."""


def this_machine(nodes: int | None = None) -> Cluster:
    """Return this machine's cores as nodes of one slot each (the first ``nodes`` of them)."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    chosen = cores if nodes is None else cores[:nodes]
    return Cluster(
        tuple(f"core{n}" for n in chosen),
        tuple((f"cpu:{n}",) for n in chosen),
        (CORE_POWER,) * len(chosen),
    )


def from_file(path: Path) -> Cluster:
    """Return a cluster file's nodes: their slots are this machine's devices, else cores in turn."""
    cluster = read_cluster(path)
    cores = this_machine().slots
    devices = count()
    slots = tuple(
        tuple(f"gpu:{next(devices)}" for _ in range(gpus)) if gpus else cores[n % len(cores)]
        for n, gpus in enumerate(cluster.gpus)
    )
    return Cluster(cluster.nodes, slots, cluster.power)


@contextlib.contextmanager
def metered(daemon: Daemon, say: Callable[[str], None]) -> Iterator[None]:
    """Have nvidia-smi's readings booked while the daemon runs, if it has devices to read."""
    if not any(slot.startswith("gpu:") for slots in daemon.cluster.slots for slot in slots):
        yield
        return
    loop = asyncio.get_running_loop()

    def book(reading: Reading) -> None:
        loop.call_soon_threadsafe(daemon.measured, reading.at_s, reading.gpu, reading.power_w)

    with NvidiaSmi() as sampler:
        sampler.start(book)
        if sampler.error is not None:
            say(f"power of devices is the model's: {sampler.error}")
        yield


@dataclass(frozen=True)
class ServeEngine:
    """Where jobs run: the nodes, and who starts processes on them.

    Attributes:
        launcher: makes one of the daemon's folder, its mark and the address that jobs talk to.
        remote: whether jobs are on other machines, so that they need TCP.
        where: what tells these nodes from others that a daemon may go on with, "" where it may not.
    """

    cluster: Cluster
    launcher: Callable[[Path, str, str], LocalLauncher] = LocalLauncher
    remote: bool = False
    where: str = ""

    def first(self, nodes: int | None) -> ServeEngine:
        """Return the same with only the first nodes there are, all of them for None.

        Raises:
            FileError: there are fewer.
        """
        names = self.cluster.names
        if nodes is not None and not 1 <= nodes <= len(names):
            raise FileError(f"expected 1 to {len(names)} nodes, got {nodes}")
        less = Cluster(names[:nodes], self.cluster.slots[:nodes], self.cluster.power[:nodes])
        return replace(self, cluster=less)


def run_daemon(
    state: Path,
    ground: ServeEngine,
    policy: str,
    listen: str,
    say: Callable[[str], None],
    *,
    grace_s: float = GRACE_S,
    parent: int | None = None,
    boot_s: float = BOOT_S,
) -> None:
    """Run a daemon until it is told to stop (or its ``parent`` process is gone)."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        Journal.open(state / "journal.sqlite") as journal,
        contextlib.ExitStack() as stack,
    ):
        sockets, address = [], ""
        for where in _addresses(state, listen, journal, remote=ground.remote):
            sock, address = bind(where)
            stack.callback(_unbind, sock, where)
            sockets.append(sock)
        if ground.remote:
            journal.note("port", {"port": sockets[-1].getsockname()[1]})
        mark = journal.notes("mark").get("mark")
        if mark is None:
            mark = {"mark": secrets.token_hex(8)}
            journal.note("mark", mark)
        launcher = ground.launcher(state, mark["mark"], address)
        stack.callback(launcher.close)
        daemon = Daemon(
            *(ground.cluster, policy, journal, launcher, time.time, say, grace_s, boot_s),
            ground.where,
        )
        token = _token(state / "token")

        def ready() -> None:
            say(f"serving at {address}")
            launcher.open()

        async def main() -> None:
            with metered(daemon, say):
                await serve(daemon, sockets, ready, parent, token)

        asyncio.run(main())


def _addresses(state: Path, listen: str, journal: Journal, *, remote: bool) -> list[str]:
    """Return where to listen; jobs are told the last.

    Jobs on other machines need TCP: a port that stays the same when a daemon is started again.
    """
    if not remote or not listen.startswith("unix:"):
        return [listen]
    port = journal.notes("port").get("port", {"port": 0})["port"]
    return [listen, f"tcp:{socket.gethostname()}:{port}"]


def _unbind(sock: socket.socket, where: str) -> None:
    sock.close()
    if where.startswith("unix:"):
        Path(where.removeprefix("unix:")).unlink(missing_ok=True)


def _token(path: Path) -> str:
    """Return the token that clients over TCP must show, from a file only its owner can read."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16))
    return path.read_text()


def to_stderr(text: str) -> None:
    """Tell the operator."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
