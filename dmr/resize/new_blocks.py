"""Strategy merge: the blocks of a rank that stays, whose pages exist before anything stops."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from dmr.data import pages
from dmr.data.field import Field
from dmr.world import layouts_for


class NewBlocks:
    """A rank's zeroed blocks in a world of another size; a thread touches what is large.

    Args:
        fields: of now.
        ranks: of the world to come.
        request: number of the resize request that it is for, 0 for none.

    Raises:
        UsageError: no process grid of so many ranks fits.
        MemoryError: there is no room for them.
    """

    def __init__(self, fields: Mapping[str, Field], ranks: int, request: int = 0) -> None:
        self.ranks, self.request = ranks, request
        layouts = layouts_for(ranks, {name: block.spec for name, block in fields.items()})
        self._blocks = {
            name: block.spec.block(layouts[name], block.rank)
            for name, block in fields.items()
            if block.rank < ranks
        }
        self._large = [
            block.storage.reshape(-1)
            for block in self._blocks.values()
            if block.in_host and block.storage.nbytes >= pages.LEAST_BYTES
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="dmr-pages", daemon=True)
        if self._large:
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all pages are there."""
        return not self._thread.is_alive()

    def take(self) -> dict[str, Field]:
        """Return the blocks, by name, once their pages are there."""
        if self._large:
            self._thread.join()
        self._large = []
        found, self._blocks = self._blocks, {}
        return found

    def drop(self) -> None:
        """Let go of the blocks: the resize does not come."""
        self._stop.set()
        self.take()

    def _touch(self) -> None:
        for cells in self._large:
            step = max(1, pages.TOUCHED_BYTES // cells.itemsize)
            for at in range(0, cells.size, step):
                if self._stop.is_set():
                    return
                cells[at : at + step] = np.zeros((), cells.dtype)
