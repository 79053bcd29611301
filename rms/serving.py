"""``rms serve``: this machine, or a cluster file, as an RMS."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rms.daemon import GRACE_S, Daemon, LiveCluster
from rms.files import read_cluster
from rms.journal import Journal
from rms.ledger import NodePower
from rms.local import LocalLauncher
from rms.server import bind, serve

CORE_POWER = NodePower(idle_w=2.0, static_w=2.0, dynamic_w=8.0)
"""Model of one core where nothing is measured: round numbers of a server's order of magnitude."""


def this_machine(nodes: int | None = None) -> LiveCluster:
    """Return this machine's cores as nodes of one slot each (the first ``nodes`` of them)."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    chosen = cores if nodes is None else cores[:nodes]
    return LiveCluster(
        tuple(f"core{n}" for n in chosen),
        tuple((f"cpu:{n}",) for n in chosen),
        (CORE_POWER,) * len(chosen),
    )


def from_file(path: Path) -> LiveCluster:
    """Return a cluster file's nodes, laid over this machine's cores in turn."""
    cluster = read_cluster(path)
    cores = this_machine().slots
    return LiveCluster(
        cluster.nodes,
        tuple(cores[n % len(cores)] for n in range(len(cluster.nodes))),
        cluster.power,
    )


def run_daemon(
    state: Path,
    cluster: LiveCluster,
    policy: str,
    listen: str,
    say: Callable[[str], None],
    *,
    grace_s: float = GRACE_S,
    parent: int | None = None,
) -> None:
    """Run a daemon until it is told to stop (or its ``parent`` process is gone)."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Journal.open(state / "journal.sqlite") as journal:
        sock, address = bind(listen)
        try:
            mark = journal.notes("mark").get("mark")
            if mark is None:
                mark = {"mark": secrets.token_hex(8)}
                journal.note("mark", mark)
            launcher = LocalLauncher(state, mark["mark"], address)
            daemon = Daemon(cluster, policy, journal, launcher, time.time, say, grace_s)
            asyncio.run(serve(daemon, sock, lambda: say(f"serving at {address}"), parent))
        finally:
            sock.close()
            if listen.startswith("unix:"):
                Path(listen.removeprefix("unix:")).unlink(missing_ok=True)


def to_stderr(text: str) -> None:
    """Tell the operator."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
