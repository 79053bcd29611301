"""When Python looks for cycles of objects that nothing else holds, which it cannot free at once.

Left to itself it looks whenever there are some hundred objects more than at the last time, first
through those that are new. Where thousands of ranks wait for an answer, each request for one that
is over, hardly any are more and hundreds of thousands are new: 0.2 s while everybody waits. A
daemon has hardly any such cycles, so it looks through all objects, and only when they have become
many more, or once in a long while.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 10.0
"""How often it is seen how many there are."""

GROWN = 2.0
"""So many times as much memory in use, and all objects are looked through."""

LEAST = 2_000_000
"""In blocks of memory: a growth by less than that is no reason, some 200 MB."""

ALL_S = 1_800.0
"""How often all objects are looked through at least."""


class Cycles:
    """Looks for cycles seldom."""

    def __init__(self, now_s: float) -> None:
        self._next_s = self._all_s = self._most = 0.0
        self._looked(now_s)

    def look(self, now_s: float) -> None:
        """Do what is due now; to be called again and again."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        grown = sys.getallocatedblocks() > self._most
        if grown or now_s >= self._all_s:
            gc.collect()
            self._looked(now_s)

    def _looked(self, now_s: float) -> None:
        blocks = sys.getallocatedblocks()
        self._most = max(GROWN * blocks, blocks + LEAST)
        self._next_s, self._all_s = now_s + EVERY_S, now_s + ALL_S


@contextmanager
def few_looks(now_s: float) -> Iterator[Cycles]:
    """Have no objects looked through meanwhile, but for what :meth:`Cycles.look` does."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield Cycles(now_s)
    finally:
        if before:
            gc.enable()
