"""Case ``random``: rough fields and a divergence-free flow from a seed, on any block."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpdata.cases.setup import Array, CellFunction, Index, Setup
from mpdata.options import Boundaries, BoundaryPair

MODES = 4
CACHED_CELLS = 1 << 15
"""Cells that are evaluated together, so that they stay in the cache of a core."""

MARGIN = 8
"""Tables reach this far outside the grid, more than any halo."""

PSI, DENSITY, PHASES = 1, 2, 3
"""Streams of the counter-based generator."""


def random_case(
    grid: tuple[int, int, int], boundaries: Boundaries, seed: int, courant: float = 0.9
) -> Setup:
    """psi uniform in [0.5, 2), h in [0.8, 1.2), c the discrete curl of sines on cell edges."""
    potential = _Potential(grid, boundaries, seed)

    def density(i: Index, j: Index, k: Index) -> Any:
        return 0.8 + 0.4 * _uniform(grid, seed, DENSITY, i, j, k)

    return Setup(
        "random",
        grid,
        boundaries,
        random_field(grid, seed),
        density,
        potential.face,
        extends=True,
        steps=100,
        courant=courant,
    )


def random_field(grid: tuple[int, int, int], seed: int) -> CellFunction:
    """Return a tracer uniform in [0.5, 2) from a seed."""
    return lambda i, j, k: 0.5 + 1.5 * _uniform(grid, seed, PSI, i, j, k)


def _uniform(
    grid: tuple[int, int, int], seed: int, stream: int, i: Index, j: Index, k: Index
) -> Array:
    """Return uniform numbers in [0, 1) that depend on seed and global cell alone.

    Philox is counter-based: plane i starts at its own counter, so a block draws only the planes
    it lies in.
    """
    columns, levels = j.ravel(), k.ravel()
    per_plane = grid[1] * grid[2]
    blocks = -(-per_plane // 4)  # the generator makes four numbers a count
    out = np.empty((i.size, columns.size, levels.size))
    for at, plane in enumerate(i.ravel()):
        bits = np.random.Philox(key=[seed, stream], counter=[int(plane) * blocks, 0, 0, 0])
        numbers = np.random.Generator(bits).random(per_plane).reshape(grid[1], grid[2])
        out[at] = numbers[np.ix_(columns, levels)]
    return out


class _Potential:
    """Vector potential on cell edges: sums of products of sines, zero on wall edges.

    A pole is as a wall: no flux goes through it. Component a lies on the edges along axis a, at
    cell centres along a and at faces along the other axes. Its curl is divergence-free to round-off
    because the same values are added and taken away.
    """

    def __init__(self, grid: tuple[int, int, int], boundaries: Boundaries, seed: int) -> None:
        self.grid = grid
        self.closed = any(any(_closed(b)) for b, n in zip(boundaries, grid, strict=True) if n > 1)
        rng = np.random.Generator(np.random.Philox(key=[seed, PHASES]))
        self.amplitude = rng.uniform(0.5, 1.0, (3, MODES))
        waves = rng.integers(1, 4, (3, MODES, 3))
        phase = rng.uniform(0, 2 * np.pi, (3, MODES, 3))
        # tables[component][mode][axis]: values at faces (other axes) or centres (own axis)
        self.tables = [
            [
                [
                    _table(
                        grid[axis],
                        boundaries[axis],
                        int(waves[a, m, axis]),
                        float(phase[a, m, axis]),
                        centred=axis == a,
                    )
                    for axis in range(3)
                ]
                for m in range(MODES)
            ]
            for a in range(3)
        ]

    def component(self, a: int, index: list[Index]) -> Array:
        """Return component ``a`` on an open mesh of global indices."""
        rows, columns, levels = (part.size for part in index)
        total = np.zeros((rows, columns, levels))
        modes = [
            [self.tables[a][m][axis][index[axis] + MARGIN] for axis in range(3)]
            for m in range(MODES)
        ]
        thick = max(1, CACHED_CELLS // (columns * levels))
        term = np.empty((thick, columns, levels))
        for low in range(0, rows, thick):
            into = total[low : low + thick]
            part = term[: len(into)]
            for m, (x, y, z) in enumerate(modes):
                np.multiply(x[low : low + thick] * y, z, out=part)
                part *= self.amplitude[a, m]
                into += part
        return total

    def face(self, axis: int, i: Index, j: Index, k: Index) -> Any:
        """Return the curl's component normal to ``axis`` at faces."""
        index = [i, j, k]
        # In 1D the only divergence-free flow is a uniform one.
        if sum(n > 1 for n in self.grid) == 1:
            return np.full((1, 1, 1), 0.0 if self.closed else 1.0)
        one, two = (axis + 1) % 3, (axis + 2) % 3
        total: Any = 0.0
        if self.grid[one] > 1:
            total = self._rise(two, index, one)
            total += 0.0  # so that -0.0 is 0.0
        if self.grid[two] > 1:
            total = total - self._rise(one, index, two)
        return np.reshape(total, (1, 1, 1)) if np.ndim(total) == 0 else total

    def _rise(self, a: int, index: list[Index], along: int) -> Array:
        """Return component ``a`` one further along an axis, less what it is at the index."""
        flat = index[along].ravel()
        rising = bool((np.diff(flat) == 1).all())
        both = np.append(flat, flat[-1:] + 1) if rising else np.concatenate((flat, flat + 1))
        shape = [1, 1, 1]
        shape[along] = both.size
        wider = list(index)
        wider[along] = both.reshape(shape)
        layers = self.component(a, wider).swapaxes(0, along)
        first = 1 if rising else flat.size
        above, here = layers[first:], layers[: flat.size]
        return (above - here).swapaxes(0, along)


def _closed(pair: BoundaryPair) -> tuple[bool, bool]:
    """Return whether no flux goes through the lower and the upper end of an axis."""
    low, high = (end.kind in ("wall", "pole") for end in pair)
    return low, high


def _table(cells: int, pair: BoundaryPair, wave: int, phase: float, *, centred: bool) -> Array:
    index = np.arange(-MARGIN, cells + MARGIN + 2)
    if cells == 1:
        return np.ones(index.size)
    if pair.periodic:
        index = index % cells
    low, high = _closed(pair)
    if (low or high) and not centred:
        # As many half waves, or a quarter of one less where one end is open.
        distance, waves = index if low else cells - index, wave if low and high else wave - 0.5
        values = np.sin(np.pi * waves * distance / cells)
        values[(distance == 0) | ((index % cells == 0) & low & high)] = 0.0
        return np.asarray(values, np.float64)
    shift = 0.5 if centred else 0.0
    return np.asarray(np.sin(2 * np.pi * wave * (index + shift) / cells + phase), np.float64)
