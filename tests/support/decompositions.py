"""Hypothesis strategies for arrays cut over process grids."""

from __future__ import annotations

from hypothesis import strategies as st

from dmr.data.decomposition import Box, Decomposition

Shape = tuple[int, ...]


@st.composite
def arrays(draw: st.DrawFn, most: int = 7) -> tuple[Shape, Shape]:
    """Return a shape of 1 to 4 axes and the axes, in any order, that are cut."""
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=4)))
    axes = draw(st.permutations(range(len(shape))))
    return shape, tuple(axes[: draw(st.integers(1, min(3, len(shape))))])


def grids(axes: int, most: int = 5) -> st.SearchStrategy[Shape]:
    """Process grids over ``axes`` axes, with more parts than an axis may have cells."""
    return st.tuples(*[st.integers(1, most if axes < 3 else 2)] * axes)


@st.composite
def cuts(draw: st.DrawFn, shape: Shape, split: Shape, *, row_major: bool) -> Decomposition:
    """Return an array cut evenly, or at places of its own, over a process grid."""
    grid = draw(grids(len(split)))
    bounds = None
    if draw(st.booleans()):
        bounds = tuple(
            (
                0,
                *sorted(draw(st.lists(st.integers(0, cells), min_size=n - 1, max_size=n - 1))),
                cells,
            )
            for n, cells in zip(grid, (shape[axis] for axis in split), strict=True)
        )
    return Decomposition(shape, split, grid, row_major, bounds=bounds)


@st.composite
def decompositions(draw: st.DrawFn) -> Decomposition:
    """Return an array cut over a process grid."""
    return draw(cuts(*draw(arrays()), row_major=draw(st.booleans())))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Decomposition, Decomposition]:
    """Return one array cut over two process grids."""
    shape, split = draw(arrays())
    row_major = draw(st.booleans())
    old = draw(cuts(shape, split, row_major=row_major))
    return old, draw(cuts(shape, split, row_major=row_major))


@st.composite
def halos(draw: st.DrawFn, axes: int, most: int = 3) -> tuple[tuple[int, int], ...]:
    """Return cells below and above for every axis."""
    sides = st.integers(0, most)
    return tuple((draw(sides), draw(sides)) for _ in range(axes))


def everything(shape: Shape) -> Box:
    """Return the box of a whole array."""
    return Box((0,) * len(shape), shape)
