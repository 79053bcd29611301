"""When Python looks for cycles of objects that nothing else holds, which it cannot free at once.

Left to itself it looks through all objects now and then, 0.1 s and more for 10,000 jobs, while
everybody waits. A daemon has hardly any such cycles and most of its objects live for long: those
are set aside (:func:`gc.freeze`), so that only new ones are looked through, a few thousand at a
time; all of them are once in a long while.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW = 1_000
"""So many more objects made than freed, and the new ones are looked through."""

SET_ASIDE = 5
"""So many times that, and what is left of them is set aside."""

ALL_S = 1_800.0
"""How often all objects are looked through, those set aside too."""


class Cycles:
    """Sets aside what lives for long."""

    def __init__(self, now_s: float) -> None:
        self._all_s = now_s + ALL_S

    def look(self, now_s: float) -> None:
        """Do what is due now; to be called again and again."""
        if now_s >= self._all_s:
            self._all_s = now_s + ALL_S
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif gc.get_count()[2]:
            gc.freeze()


@contextmanager
def few_looks(now_s: float) -> Iterator[Cycles]:
    """Have only new objects looked through meanwhile, but for what :meth:`Cycles.look` does."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW, SET_ASIDE, 1_000_000)
    try:
        yield Cycles(now_s)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
