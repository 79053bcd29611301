"""Hypothesis strategies for arrays cut over process grids."""

from __future__ import annotations

from hypothesis import strategies as st

from dmr.data.decomposition import Box, Decomposition

Shape = tuple[int, ...]


@st.composite
def arrays(draw: st.DrawFn, most: int = 7) -> tuple[Shape, Shape]:
    """Return a shape of 1 to 4 axes and the one or two axes, in either order, that are cut."""
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=4)))
    axes = draw(st.permutations(range(len(shape))))
    return shape, tuple(axes[: draw(st.integers(1, min(2, len(shape))))])


def grids(axes: int, most: int = 5) -> st.SearchStrategy[Shape]:
    """Process grids over ``axes`` axes, with more parts than an axis may have cells."""
    return st.tuples(*[st.integers(1, most)] * axes)


@st.composite
def decompositions(draw: st.DrawFn) -> Decomposition:
    """Return an array cut over a process grid."""
    shape, split = draw(arrays())
    return Decomposition(shape, split, draw(grids(len(split))))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Decomposition, Decomposition]:
    """Return one array cut over two process grids."""
    shape, split = draw(arrays())
    old, new = draw(grids(len(split))), draw(grids(len(split)))
    return Decomposition(shape, split, old), Decomposition(shape, split, new)


@st.composite
def halos(draw: st.DrawFn, axes: int, most: int = 3) -> tuple[tuple[int, int], ...]:
    """Return cells below and above for every axis."""
    sides = st.integers(0, most)
    return tuple((draw(sides), draw(sides)) for _ in range(axes))


def everything(shape: Shape) -> Box:
    """Return the box of a whole array."""
    return Box((0,) * len(shape), shape)
