"""Options, and the index arithmetic of one block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

from mpdata.errors import InputError
from mpdata.grid import Geometry, copy_layers, edge_copies, fill_edges, wrap_copies
from mpdata.options import Boundaries, Boundary, BoundaryPair, Scheme, parse_boundaries

Triple = tuple[int, int, int]

PERIODIC, OPEN, WALL, FIXED, _ = PAIRS = [
    BoundaryPair(end, end)
    for end in (
        *map(Boundary, ("periodic", "open", "wall")),
        *(Boundary("fixed", 9.5), Boundary("fixed", -3.5)),
    )
]
KINDS = st.sampled_from(
    [*PAIRS, *(BoundaryPair(a.low, b.low) for a in PAIRS[1:] for b in PAIRS[1:] if a != b)]
)


@pytest.mark.parametrize(
    ("iterations", "limiter", "halo"),
    [(1, False, 1), (1, True, 1), (2, False, 2), (2, True, 3), (3, False, 3), (3, True, 5)],
)
def test_halo_width_follows_from_the_scheme(iterations: int, limiter: bool, halo: int) -> None:
    assert Scheme(iterations, limiter).halo == halo


@pytest.mark.parametrize("iterations", [0, 4, -1])
def test_other_numbers_of_iterations_are_refused(iterations: int) -> None:
    with one_sentence(InputError, f"got {iterations}"):
        Scheme(iterations)


@pytest.mark.parametrize(
    ("text", "boundaries"),
    [
        ("open", (OPEN, OPEN, OPEN)),
        ("periodic,wall,open", (PERIODIC, WALL, OPEN)),
        (" wall , open,periodic ", (WALL, OPEN, PERIODIC)),
        ("fixed:9.5", (FIXED, FIXED, FIXED)),
        ("open,fixed:-3.5,wall", (OPEN, PAIRS[-1], WALL)),
        ("open,wall/fixed:9.5,wall", (OPEN, BoundaryPair(WALL.low, FIXED.low), WALL)),
        ("open / wall", (BoundaryPair(OPEN.low, WALL.low),) * 3),
    ],
)
def test_boundaries_are_read(text: str, boundaries: Boundaries) -> None:
    assert parse_boundaries(text) == boundaries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "walls",
        "Open",
        "open,wall",
        "open,wall,open,wall",
        "open,,wall",
        "wall:1",
        "fixed",
        "fixed:",
        "fixed:warm",
        "fixed:nan",
        "fixed:inf",
        "fixed:1:2",
        "periodic/open",
        "wall/periodic",
        "open/open/open",
        "open/",
        "open|wall",
    ],
)
def test_bad_boundaries_are_refused_in_one_sentence(text: str) -> None:
    with one_sentence(InputError):
        parse_boundaries(text)


@pytest.mark.parametrize("text", ["open", "wall", "periodic", "fixed:0.25", "pole/fixed:-1.5"])
def test_boundaries_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_boundaries(text)[0]) == text


@st.composite
def geometries(draw: st.DrawFn, kinds: st.SearchStrategy[BoundaryPair] = KINDS) -> Geometry:
    """Return any block of any grid."""
    axes = [
        draw(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))) for _ in range(3)
    ]
    below, inside, _ = (tuple(axis[at] for axis in axes) for at in range(3))
    grid = tuple(map(sum, axes))
    stop = tuple(b + n for b, n in zip(below, inside, strict=True))
    boundaries = draw(st.tuples(kinds, kinds, kinds))
    return Geometry(grid, below, stop, draw(st.integers(1, 5)), boundaries)  # type: ignore[arg-type]


def whole(grid: Triple, halo: int, boundaries: Boundaries) -> Geometry:
    return Geometry(grid, (0, 0, 0), grid, halo, boundaries)


def test_arrays_have_room_for_halo_and_last_face_but_not_on_single_cells() -> None:
    geo = Geometry((8, 1, 6), (2, 0, 0), (5, 1, 6), 3, (OPEN, OPEN, OPEN))
    assert geo.active == (0, 2)
    assert geo.shape == (3 + 7, 1, 6 + 7)


@given(geometries(), st.integers(0, 1))
def test_regions_are_the_interior_widened_by_a_depth(geo: Geometry, depth: int) -> None:
    region = np.zeros(geo.shape)[geo.cells(depth)]
    wanted = [n + 2 * depth if a in geo.active else 1 for a, n in enumerate(geo.interior)]
    assert list(region.shape) == wanted
    assert all(geo.cells(depth)[a].start == geo.halo - depth for a in geo.active)


def test_regions_shift_and_grow_along_an_axis() -> None:
    geo = whole((8, 7, 6), 2, (OPEN, OPEN, OPEN))
    assert geo.cells(1, (0, -1), 0, (2, 1)) == (slice(0, 11), slice(1, 10), slice(2, 10))


@given(geometries())
def test_cells_outside_wrap_or_repeat_the_nearest(geo: Geometry) -> None:
    for axis, found in enumerate(geo.global_cells()):
        n = geo.grid[axis]
        true = [geo.start[axis] - geo.halo + at for at in range(geo.shape[axis])]
        if axis not in geo.active:
            assert found.tolist() == [0]
        elif geo.boundaries[axis].periodic:
            assert found.tolist() == [at % n for at in true]
        else:
            assert found.tolist() == [min(max(at, 0), n - 1) for at in true]


@given(geometries(), st.integers(0, 2))
def test_faces_outside_repeat_the_nearest_of_one_face_more(geo: Geometry, normal: int) -> None:
    for axis, found in enumerate(geo.global_faces(normal, extends=False)):
        last = geo.grid[axis] - (axis != normal)
        true = [geo.start[axis] - geo.halo + at for at in range(geo.shape[axis])]
        if axis in geo.active and not geo.boundaries[axis].periodic:
            assert found.tolist() == [min(max(at, 0), last) for at in true]


@given(geometries(), st.integers(0, 2))
def test_a_case_defined_outside_is_asked_there_except_beyond_walls(
    geo: Geometry, normal: int
) -> None:
    extended = geo.global_faces(normal, extends=True)
    clipped = geo.global_faces(normal, extends=False)
    for axis in geo.active:
        low = geo.start[axis] - geo.halo
        true = list(range(low, low + geo.shape[axis]))
        last = geo.grid[axis] - (axis != normal)
        for at, index in enumerate(true):
            end = geo.boundaries[axis][index > last]
            asked = end.kind in ("open", "fixed") and not 0 <= index <= last
            assert extended[axis][at] == (index if asked else clipped[axis][at])


@given(geometries())
def test_blocks_touch_the_domain_only_at_its_edges(geo: Geometry) -> None:
    for axis in range(3):
        edges = (geo.start[axis] == 0, geo.stop[axis] == geo.grid[axis])
        closed = geo.boundaries[axis] != PERIODIC and geo.grid[axis] > 1
        assert geo.touches(axis) == (edges if closed else (False, False))


def numbered(geo: Geometry) -> npt.NDArray[np.float64]:
    return 1.0 + np.arange(np.prod(geo.shape)).reshape(geo.shape)


def padded(array: npt.NDArray[np.float64], geo: Geometry, axis: int) -> npt.NDArray[np.float64]:
    """Return one axis' edges as numpy.pad makes them."""
    inside = np.moveaxis(array, axis, 0)[geo.halo : geo.halo + geo.interior[axis]]
    sides = [(geo.halo, geo.halo + 1), (0, 0), (0, 0)]
    outside = np.pad(inside, sides, mode="edge")
    ends = (slice(0, geo.halo), slice(geo.halo + geo.interior[axis], None))
    for boundary, where in zip(geo.boundaries[axis], ends, strict=True):
        if boundary.kind == "fixed":
            outside[where] = boundary.value
    return np.moveaxis(outside, 0, axis)


@given(st.tuples(KINDS, KINDS, KINDS), st.tuples(*[st.integers(1, 4)] * 3), st.integers(1, 5))
def test_edges_are_filled_from_the_last_axis_to_the_first(
    boundaries: Boundaries, grid: Triple, halo: int
) -> None:
    geo = whole(grid, halo, boundaries)
    found, wanted = numbered(geo), numbered(geo)
    fill_edges(found, geo)
    for axis in reversed(geo.active):
        if boundaries[axis] != PERIODIC:
            wanted = padded(wanted, geo, axis)
    assert found.tolist() == wanted.tolist()


@given(geometries(), st.integers(0, 2))
def test_only_sides_on_the_edge_of_the_domain_are_filled(geo: Geometry, axis: int) -> None:
    found, before = numbered(geo), numbered(geo)
    copy_layers(found, axis, edge_copies(geo, axis))
    low, high = geo.touches(axis)
    changed = np.moveaxis(found != before, axis, 0)
    inside = slice(geo.halo, geo.halo + geo.interior[axis])
    assert not changed[inside].any()
    assert changed[: geo.halo].any() == low
    assert changed[inside.stop :].any() == high


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("cells", [2, 3, 8])
@pytest.mark.parametrize("halo", [1, 3, 5])
def test_a_periodic_halo_may_be_wider_than_the_axis(axis: int, cells: int, halo: int) -> None:
    grid = tuple(cells if a == axis else 2 for a in range(3))
    geo = whole(grid, halo, (PERIODIC, PERIODIC, PERIODIC))  # type: ignore[arg-type]
    found, before = numbered(geo), numbered(geo)
    copy_layers(found, axis, wrap_copies(geo, axis))
    layers, source = np.moveaxis(found, axis, 0), np.moveaxis(before, axis, 0)
    for layer in range(2 * halo + cells):
        assert layers[layer].tolist() == source[halo + (layer - halo) % cells].tolist()
