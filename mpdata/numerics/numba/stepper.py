"""A step on one block in Numba: one fused sweep where the options allow it, else cell loops."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from typing import Any, Protocol

from mpdata.grid import Geometry
from mpdata.numerics.numba.kernel_arguments import Array, BlockMemory
from mpdata.numerics.numba.kernel_cache import kernel
from mpdata.numerics.step import Layers, inverse
from mpdata.options import Scheme

Call = Callable[[int, int, int], tuple[Any, ...]]
"""Returns a kernel's arguments for a worker and its planes, first and last + 1."""


def is_fusable(scheme: Scheme, axes: int) -> bool:
    """Return whether the fused sweep serves a scheme on so many axes."""
    return axes == 3 and scheme.passes > 1


class Workers:
    """Threads that share the planes of a block, each a range of its own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def run(self, name: str, planes: Layers, arguments: Call) -> None:
        """Run a kernel on planes from first to last, and wait."""
        first, last = planes
        if self._pool is None or last - first < 2:
            given = arguments(0, first, last)
            kernel(name, given)(*given)
            return
        cuts = [first + (last - first) * part // self.threads for part in range(self.threads + 1)]
        waiting = []
        for worker, (low, high) in enumerate(pairwise(cuts)):
            if low < high:
                given = arguments(worker, low, high)
                waiting.append(self._pool.submit(kernel(name, given), *given))
        for future in waiting:
            future.result()


class StepMethod(Protocol):
    """How a step is computed."""

    @property
    def arrays(self) -> list[Array]:
        """All scratch."""
        ...

    def advance(
        self, psi: Array, out: Array, C: list[Array], planes: Layers, workers: Workers
    ) -> None:
        """Advance the planes of the slowest axis from first to last."""
        ...


class NumbaStepper:
    """Advances one block.

    Args:
        geometry: the block.
        scheme: passes and options.
        h: density.
        allocate: returns a zeroed array of the block's shape in its memory order.
        threads: how many threads share a step, each with planes of its own.
    """

    def __init__(
        self,
        geometry: Geometry,
        scheme: Scheme,
        h: Array,
        allocate: Callable[[], Array],
        threads: int = 1,
    ) -> None:
        self._layout, self._passes = BlockMemory.of(geometry, h), scheme.passes
        self._allocate, self._workers = allocate, Workers(threads)
        self._r = None if (h == 1).all() else inverse(h, allocate)
        if is_fusable(scheme, len(geometry.active)):
            from mpdata.numerics.numba.fused_stepper import FusedSteps

            self._method: StepMethod = FusedSteps(
                self._layout, scheme, self._r, h.dtype, allocate, threads
            )
        else:
            from mpdata.numerics.numba.cell_stepper import CellPasses

            self._method = CellPasses(self._layout, scheme, self._r, h.dtype, allocate)

    @property
    def splits(self) -> bool:
        """Whether ``layers`` may be less than all: where axis 0 is the slowest, in two passes."""
        return self._layout.axes[2] == 0 and self._passes < 3

    @property
    def nbytes(self) -> int:
        """Bytes of scratch, rolling buffers included."""
        arrays = [*self._method.arrays, *([] if self._r is None else [self._r])]
        owned = {id(a.base if a.base is not None else a): a for a in arrays}
        return sum(int((a if a.base is None else a.base).nbytes) for a in owned.values())

    def warm(self) -> None:
        """Compile or load the kernels: run them on no planes at all."""
        spare = self._allocate()
        self._method.advance(spare, spare, [spare] * 3, (0, 0), Workers(1))

    def in_cache(self) -> NumbaStepper | None:
        """Return what does the same arithmetic in little memory, for timing; None without it."""
        from mpdata.numerics.numba.fused_stepper import FusedSteps

        if not isinstance(self._method, FusedSteps):
            return None
        twin = copy(self)
        twin._method = self._method.in_cache()
        return twin

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step."""
        whole = (0, self._layout.cells(self._layout.axes[2]))
        self._method.advance(psi, out, C, layers or whole, self._workers)
