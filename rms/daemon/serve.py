"""``rms serve``: this machine, or a cluster file, as an RMS."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rms.daemon.daemon import GRACE_S, Daemon
from rms.daemon.journal import Journal
from rms.daemon.resize import BOOT_S
from rms.daemon.server import bind, serve
from rms.launch.base import Engine
from rms.power.nvidia_smi import NvidiaSmi, Reading


@contextlib.contextmanager
def metered(daemon: Daemon, say: Callable[[str], None]) -> Iterator[None]:
    """Have nvidia-smi's readings booked while the daemon runs, if it has devices to read."""
    if not any(slot.startswith("gpu:") for slots in daemon.cluster.slots for slot in slots):
        yield
        return
    loop = asyncio.get_running_loop()

    def book(reading: Reading) -> None:
        loop.call_soon_threadsafe(daemon.meters.device, reading.at_s, reading.gpu, reading.power_w)

    with NvidiaSmi() as sampler:
        sampler.start(book)
        if sampler.error is not None:
            say(f"power of devices is the model's: {sampler.error}")
        yield


def run_daemon(
    state: Path,
    engine: Engine,
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
        for where in _addresses(state, listen, journal, remote=engine.remote):
            sock, address = bind(where)
            stack.callback(_unbind, sock, where)
            sockets.append(sock)
        if engine.remote:
            journal.note("port", {"port": sockets[-1].getsockname()[1]})
        launcher = engine.launcher(state, _instance_id(journal), address)
        stack.callback(launcher.close)
        daemon = Daemon(
            *(engine.cluster, policy, journal, launcher, time.time, say, grace_s, boot_s),
            engine.where,
        )
        token = _token(state / "token")

        def ready() -> None:
            say(f"serving at {address}")
            launcher.open()

        async def main() -> None:
            with metered(daemon, say):
                await serve(daemon, sockets, ready, parent, token)

        asyncio.run(main())


def _instance_id(journal: Journal) -> str:
    """Return what tells a daemon's processes from those of others, the same after a restart."""
    known = journal.notes("mark").get("mark")
    if known is None:
        known = {"mark": secrets.token_hex(8)}
        journal.note("mark", known)
    return str(known["mark"])


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
