"""A probe of memory bandwidth: ``python -m rms.studies.triad MIB FILE`` moves data until its end.

a = a + s b over two arrays beyond the caches, as STREAM's triad, in blocks that stay in a cache
with what lies between its two operations. The sum is written where it was read, so no line is
fetched only to be overwritten: 24 bytes an element are all that is moved. Ten times a second a line
in the file tells when it was, what processor time has been taken and how many bytes have been moved
until then: waiting for a processor is not waiting for memory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

BLOCK = 1 << 14
"""Elements of a block: 128 KiB of each array."""

TELL_S = 0.1
BYTES = 24
"""Moved for an element: two are read, one is written."""

LEAST_MIB = 32


def last_level_mib(cpus: Path = Path("/sys/devices/system/cpu")) -> float:
    """Return the size of all caches of the last level, MiB; 0 where the kernel does not say."""
    found: dict[str, tuple[int, float]] = {}
    for cache in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level = int((cache / "level").read_text())
            size = (cache / "size").read_text().strip()
            found[f"{level} {(cache / 'shared_cpu_list').read_text()}"] = level, _mib(size)
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in found.values()), default=0)
    return sum(mib for level, mib in found.values() if level == last)


def _mib(size: str) -> float:
    return float(size[:-1]) * {"K": 2.0**-10, "M": 1.0, "G": 2.0**10}[size[-1]]


def arrays_mib(probes: int) -> int:
    """Return how large the arrays of each of so many probes are, together four times the caches.

    No more than a quarter of the memory that is free is taken by all.
    """
    free_mib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    wanted = max(LEAST_MIB, 4.0 * last_level_mib() / probes)
    return max(1, int(min(wanted, free_mib / 4 / probes)))


def rate(lines: str, begin_s: float, end_s: float) -> tuple[float, float] | None:
    """Return what a probe moved in a span of time, GB/s of its processor's, and its share of that.

    None where it tells too little.

    Args:
        lines: what it has written so far; the last line may be half of one.
    """
    told = [[float(word) for word in line.split()] for line in lines.split("\n")[:-1]]
    inside = [line for line in told if begin_s <= line[0] <= end_s]
    if len(inside) < 2:
        return None
    span_s, taken_s, moved = (b - a for a, b in zip(inside[0], inside[-1], strict=True))
    return moved / taken_s / 1e9, taken_s / span_s


def main(argv: list[str]) -> int:
    """Move data until the process is ended."""
    mib, path = int(argv[0]), Path(argv[1])
    elements = max(BLOCK, mib * 2**20 // 16)
    a, b, between = np.ones(elements), np.ones(elements), np.empty(BLOCK)
    ends = range(BLOCK, elements + 1, BLOCK)
    blocks = [(a[end - BLOCK : end], b[end - BLOCK : end]) for end in ends]
    moved, due_s = 0, 0.0
    with path.open("w", buffering=1) as file:
        while True:
            for of_a, of_b in blocks:
                np.multiply(of_b, 0.5, out=between)
                np.add(of_a, between, out=of_a)
                moved += BLOCK * BYTES
                now_s = time.time()
                if now_s >= due_s:
                    file.write(f"{now_s:.6f} {time.process_time():.6f} {moved}\n")
                    due_s = now_s + TELL_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
