"""Noticing that a program swaps two arrays and has declared only one of them.

Such an array changes in every second step, and after an odd number of them the other one holds the
answer, so that a resize would take the wrong one. It is looked for in the first steps of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from mpi4py import MPI

from dmr.data.wrapped import WrappedSpec

if TYPE_CHECKING:
    from dmr.data.field import Field

STEPS = 3
"""Steps that are looked at."""

MOST_BYTES = 16 << 20
"""Larger arrays are not hashed."""


class SwapWatch:
    """Looks at the program's own arrays between the first steps of its first loop.

    Args:
        fields: of the run.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = {
            name: block for name, block in fields.items() if isinstance(block.spec, WrappedSpec)
        }
        self._hashes: list[list[int]] = []

    @property
    def done(self) -> bool:
        """Whether there is nothing more to look at."""
        return not self._fields or len(self._hashes) > STEPS

    def look(self, comm: MPI.Intracomm) -> list[str]:
        """Look between two steps; return the names of arrays that must be swapped (collective)."""
        self._hashes.append([_hash(block) for block in self._fields.values()])
        if len(self._hashes) <= STEPS:
            return []
        seen = np.array(self._hashes, np.uint64)
        changed = (seen[1:] != seen[:-1]).astype(np.int8)
        comm.Allreduce(MPI.IN_PLACE, changed, MPI.MAX)
        alternates = (changed[1:] != changed[:-1]).all(axis=0)
        return [name for name, found in zip(self._fields, alternates, strict=True) if found]


def _hash(block: Field) -> int:
    if not block.in_host or block.storage.nbytes > MOST_BYTES:
        return 0
    return int(xxhash.xxh3_64_intdigest(block.storage.reshape(-1).view(np.uint8).data))
