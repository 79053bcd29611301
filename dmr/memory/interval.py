"""How often to copy a job: the interval at which copies and the work that is lost cost least.

Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3),
2006, which extends Young, CACM 17(9), 1974. Failures are independent and exponentially distributed.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_BYTES = 256 << 20
"""Bytes of a measurement."""


def interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return the time between two copies, in seconds (Daly, equation 37).

    Args:
        cost_s: time for which a copy stops the job.
        mtbf_s: mean time between failures that the copy is for.
    """
    if cost_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2.0 * mtbf_s)
    return math.sqrt(2.0 * cost_s * mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def lost_share(every_s: float, cost_s: float, mtbf_s: float, back_s: float = 0.0) -> float:
    """Return the share of a job's time that copies, failures and restarts take (Daly, equation 20).

    Args:
        every_s: time of work between two copies.
        back_s: time from a failure until the job computes again.
    """
    interval = (every_s + cost_s) / mtbf_s
    if interval > 700.0:  # no interval without a failure
        return 1.0
    return 1.0 - every_s / mtbf_s / math.expm1(interval) * math.exp(-back_s / mtbf_s)


@dataclass(frozen=True)
class Site:
    """The job and its failures.

    Attributes:
        nodes, ranks: nodes of the job, and its ranks on each.
        bytes: of the fields of a rank.
        mtbf_s: mean time between failures of one node.
        partners: other nodes that have a copy of each piece.
        memory_bytes_s: rate of a rank's copy into shared memory.
        network_bytes_s: rate at which a node sends its copies.
        disk_bytes_s: rate of checkpoints of the whole job; None for no disk.
        memory_back_s, disk_back_s: from a failure until the job computes again.
    """

    nodes: int
    ranks: int
    bytes: float
    mtbf_s: float
    partners: int
    memory_bytes_s: float
    network_bytes_s: float
    disk_bytes_s: float | None
    memory_back_s: float
    disk_back_s: float


@dataclass(frozen=True)
class Level:
    """A kind of copy.

    Attributes:
        name: memory or disk.
        cost_s: time for which one stops the job.
        mtbf_s: mean time between failures that it is for.
        every_s: time between two.
        lost: share of the job's time, 0 to 1.
    """

    name: str
    cost_s: float
    mtbf_s: float
    every_s: float
    lost: float


def levels(site: Site) -> list[Level]:
    """Return how often to copy into memory and to disk.

    Copies in memory are for failures of any node. Checkpoints on disk are for those that take all
    copies of a piece: of a node and its ``partners``, the next ones in the ring, before the copies
    are complete again.
    """
    any_s = site.mtbf_s / site.nodes
    cost_s = site.bytes / site.memory_bytes_s
    found = []
    all_s = any_s
    if site.partners and site.nodes > 1:
        every_s = interval_s(cost_s, any_s)
        lost = lost_share(every_s, cost_s, any_s, site.memory_back_s)
        found.append(Level("memory", cost_s, any_s, every_s, lost))
        sent_s = site.partners * site.ranks * site.bytes / site.network_bytes_s
        open_s = site.memory_back_s + max(every_s, sent_s) + sent_s
        all_s = any_s / ((site.partners + 1) * min(1.0, open_s / site.mtbf_s) ** site.partners)
    if site.disk_bytes_s is not None:
        cost_s = site.nodes * site.ranks * site.bytes / site.disk_bytes_s
        every_s = interval_s(cost_s, all_s)
        lost = lost_share(every_s, cost_s, all_s, site.disk_back_s)
        found.append(Level("disk", cost_s, all_s, every_s, lost))
    return found


def table(site: Site, found: list[Level]) -> list[str]:
    """Return the levels as lines of text."""
    mib = site.bytes / 2**20
    lines = [
        f"{site.nodes} nodes with {site.ranks} ranks of {mib:g} MiB each; a node fails every "
        f"{site.mtbf_s / 3600:g} h in the mean",
        f"rates: memory {site.memory_bytes_s / 1e9:.3g} GB/s a rank, network "
        f"{site.network_bytes_s / 1e9:.3g} GB/s a node"
        + ("" if site.disk_bytes_s is None else f", disk {site.disk_bytes_s / 1e9:.3g} GB/s"),
        "",
        f"{'copies in':9s}  {'one takes':>10s}  {'failures apart':>14s}  {'copy every':>10s}  lost",
    ]
    for level in found:
        lines.append(
            f"{level.name:9s}  {_time(level.cost_s):>10s}  {_time(level.mtbf_s):>14s}  "
            f"{_time(level.every_s):>10s}  {100 * level.lost:.3g} %"
        )
    return lines


def _time(seconds: float) -> str:
    for limit, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    days = seconds / 86400.0
    return f"{days:.3g} d" if days < 730 else f"{days / 365:.3g} years"


def memory_rate(nbytes: float) -> float:
    """Return the rate of a copy into shared memory, in bytes per second, as it is measured here."""
    count = int(min(nbytes, MOST_BYTES)) // 8 * 8 or 8
    values, shared = np.ones(count // 8), Path("/dev/shm")
    folder = shared if shared.is_dir() else None
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, count)
        with mmap.mmap(file.fileno(), count) as memory:
            target = np.frombuffer(memory, np.float64)
            times = []
            for _ in range(4):
                begun = time.perf_counter()
                target[:] = values
                times.append(time.perf_counter() - begun)
            del target
    return count / min(times[1:])


def disk_rate(directory: Path, nbytes: float) -> float:
    """Return the rate of a file that is written and flushed, in bytes per second, measured here.

    Raises:
        OSError: it cannot be written.
    """
    count = int(min(nbytes, MOST_BYTES)) or 1
    with tempfile.TemporaryFile(dir=directory) as file:
        values = bytes(count)
        begun = time.perf_counter()
        file.write(values)
        file.flush()
        os.fsync(file.fileno())
        return count / (time.perf_counter() - begun)
