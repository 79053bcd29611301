"""The halo that a field fills against the halo cut out of the whole array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import stand_in
from mpi4py import MPI
from mpi_runs import Counts, runtime_on

import dmr
from dmr.data.exchange import ExchangeError

pytestmark = pytest.mark.mpi

Boundaries = Any
"""Of all axes, or a tuple with one or a pair for each."""

ROWS: list[tuple[Any, ...]] = [
    ((23,), 2, (0,), "periodic"),
    ((19, 17), 1, (0, 1), "periodic"),
    ((19, 17), ((1, 2), (0, 1)), (1, 0), ("edge", 7.0)),
    ((14, 4, 15), ((2, 1), (3, 3), (0, 2)), (0, 2), ("periodic", "edge", -1)),
    ((13, 12, 12), 1, (0, 1, 2), (None, "periodic", "edge")),
    ((18, 14, 5), 3, (0, 1), (("edge", -3.0), (7.0, None), "periodic")),
    ((20, 18, 1), ((3, 3), (3, 3), (0, 0)), (0, 1), ((0.0, "edge"), "periodic", "edge")),
    ((1, 19, 1), ((0, 0), (2, 2), (0, 0)), (0, 1), "edge"),
    ((24, 2, 1), ((3, 3), (3, 5), (0, 0)), (0, 1), "periodic"),
    ((23,), 1, (0,), "periodic", 2),
    ((19, 17), (1, 2), (0, 1), (("edge", None), "periodic"), ((0, 2), (3, 1))),
    ((18, 14, 5), 1, (0, 1), (None, None, None), 0),
    ((16, 15, 3), (2, 1, 1), (0, 1), ("periodic", 4.0, "edge"), (1, (2, 0), 2)),
]
"""Shape, halo, axes that are cut, boundary; if it differs, the halo at the edge of the domain. Of
the ninth the halo is wider than a periodic axis."""


def whole_padded(whole: np.ndarray[Any, Any], halo: Any, boundary: Boundaries) -> Any:
    """Return the array with its halo, axis by axis; NaN where the boundary is None."""
    for axis in reversed(range(whole.ndim)):
        kind = boundary[axis] if isinstance(boundary, tuple) else boundary
        sides = halo if isinstance(halo, int) else halo[axis]
        sides = (sides, sides) if isinstance(sides, int) else sides
        if kind == "periodic":
            whole = np.pad(whole, _along(axis, whole.ndim, sides), mode="wrap")
            continue
        ends = kind if isinstance(kind, tuple) else (kind, kind)
        for end, width in zip(ends, ((sides[0], 0), (0, sides[1])), strict=True):
            widths = _along(axis, whole.ndim, width)
            if end == "edge":
                whole = np.pad(whole, widths, mode="edge")
            else:
                whole = np.pad(whole, widths, constant_values=np.nan if end is None else end)
    return whole


def _along(axis: int, axes: int, width: tuple[int, int]) -> list[tuple[int, int]]:
    return [width if other == axis else (0, 0) for other in range(axes)]


@contextmanager
def some_of(world: MPI.Intracomm, ranks: int) -> Iterator[MPI.Intracomm | None]:
    """Give the first ranks of the world a communicator of theirs."""
    part = world.Split(0 if world.rank < ranks else MPI.UNDEFINED, world.rank)
    yield None if part == MPI.COMM_NULL else part
    if part != MPI.COMM_NULL:
        part.Free()


class Whole:
    """A row of :data:`ROWS` as one array, and the field that has a block of it.

    ``module`` holds the blocks: numpy; a device whose copies are complete when they return; a
    stand-in for CuPy, whose streams are late.
    """

    def __init__(self, row: int, module: str) -> None:
        self.shape, self.halo, split, self.boundary, *edge = ROWS[row]
        self.xp: Any = np
        if module != "numpy":
            self.xp = stand_in.cupy() if module == "cupy" else stand_in.DeviceModule()
        self.extra = row % 2
        self.cells = np.arange(np.prod(self.shape), dtype="f8").reshape(self.shape)
        self.expected = whole_padded(self.cells, *(edge or [self.halo]), self.boundary)
        self.spec = dmr.FieldSpec(
            self.shape,
            "f8",
            lambda box: self.cells[box.slices()],
            self.halo,
            split=split,
            xp=self.xp,
            row_major=row % 2 == 1,
            extra=self.extra,
            edge=edge[0] if edge else False,
        )

    def fields(self, comm: MPI.Intracomm) -> AbstractContextManager[dmr.Run]:
        return dmr.malleable(runtime_on(comm), {"a": self.spec})

    def forget(self, field: dmr.Field) -> None:
        """Set the interior, and all else to NaN."""
        field.padded[...] = np.nan
        field.initialise()

    def host(self, field: dmr.Field) -> np.ndarray[Any, Any]:
        """Return what the stream of the computation has in the interior and the halo now."""
        padded = self.xp.asnumpy(field.padded) if self.xp is not np else field.padded
        return padded[self._within(field)].copy()

    def spared(self, field: dmr.Field) -> bool:
        """Return whether all memory above the halo is as it was."""
        padded = self.xp.asnumpy(field.padded) if self.xp is not np else field.padded.copy()
        padded[self._within(field)] = np.nan
        return bool(np.isnan(padded).all())

    def mine(self, field: dmr.Field) -> np.ndarray[Any, Any]:
        """Return the interior and the halo as the whole array has them."""
        extents = [part.stop for part in self._within(field)]
        sides = zip(self.spec.halos_of(field.box), self.spec.edge_halos, strict=True)
        wider = [edge[0] - own[0] for own, edge in sides]
        begin = [at + more for at, more in zip(field.box.start, wider, strict=True)]
        return self.expected[tuple(slice(a, a + n) for a, n in zip(begin, extents, strict=True))]

    def _within(self, field: dmr.Field) -> tuple[slice, ...]:
        cells = zip(field.box.shape, self.spec.halos_of(field.box), strict=True)
        return tuple(slice(0, n + low + high) for n, (low, high) in cells)


MODULES = ["numpy", "device", "cupy"]


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("module", MODULES)
def test_halos_are_what_the_whole_array_says(
    world: MPI.Intracomm, counts: Counts, together: Callable[..., None], row: int, module: str
) -> None:
    whole = Whole(row, module)
    for ranks in counts(row):
        good = True
        with some_of(world, ranks) as comm:
            if comm is not None:
                with whole.fields(comm) as run:
                    field = run.fields["a"]
                    for _ in range(2):  # the same requests once more
                        whole.forget(field)
                        field.exchange(whole.boundary)
                        host = whole.host(field)
                        good &= np.array_equal(host, whole.mine(field), equal_nan=True)
                        good &= whole.spared(field)
                    gathered = field.gather()
                    good &= gathered is None or np.array_equal(gathered, whole.cells)
        together(good, f"{ranks} ranks, {whole.shape}, {whole.boundary}")


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("module", MODULES)
def test_what_ready_layers_reach_is_there_before_the_messages(
    world: MPI.Intracomm, counts: Counts, together: Callable[..., None], row: int, module: str
) -> None:
    whole = Whole(row, module)
    for ranks in counts(row):
        problem = ""
        with some_of(world, ranks) as comm:
            if comm is not None:
                with whole.fields(comm) as run:
                    problem = _problem_of_ready(whole, run.fields["a"])
        together(not problem, f"{ranks} ranks, {whole.shape}, {whole.boundary}: {problem}")


def _problem_of_ready(whole: Whole, field: dmr.Field) -> str:
    whole.forget(field)
    low, high = field.ready(whole.boundary)
    field.start_exchange(whole.boundary)
    seen = whole.host(field)
    field.finish_exchange()
    field.finish_exchange()  # nothing is under way
    expected, reach, cells = (
        whole.mine(field),
        whole.spec.halos_of(field.box)[0],
        field.box.shape[0],
    )
    if not np.array_equal(whole.host(field), expected, equal_nan=True):
        return "not filled"
    if reach == (0, 0):
        return "" if low >= high else "ready without a halo along axis 0"
    reached = slice(low, high + sum(reach))
    if low < high and not np.array_equal(seen[reached], expected[reached], equal_nan=True):
        return f"layers {low} to {high} reach what is not there"
    periodic = whole.boundary == "periodic" or whole.boundary[0] == "periodic"
    peers = [peer not in (None, field.rank) for peer in field.neighbours(0, periodic=periodic)]
    wanted = (reach[0] * peers[0], cells - reach[1] * peers[1])
    return "" if (low, high) == wanted else f"ready {low} to {high}"


def test_bad_boundaries_and_thin_blocks_are_refused(world: MPI.Intracomm) -> None:
    spec = dmr.FieldSpec((2 * world.size, 5), "f8", lambda box: 0.0, halo=3, thinnest=1, split=(0,))
    with dmr.malleable(runtime_on(world), {"a": spec}) as run:
        field = run.fields["a"]
        bad: list[Any] = ["wrapped", ("edge",), (("edge", "edge", "edge"), "edge")]
        for boundary in bad:
            with pytest.raises(ExchangeError, match='expected a boundary of "periodic"'):
                field.exchange(boundary)
        with pytest.raises(ExchangeError, match='"periodic" at both ends of axis 1 or at none'):
            field.exchange(("edge", (0.0, "periodic")))
        if world.size > 1:
            with pytest.raises(ExchangeError, match="as thick as their halo of 3 along axis 0"):
                field.exchange("edge")


def test_arrays_that_come_and_go(world: MPI.Intracomm, together: Callable[..., None]) -> None:
    """More of them than requests are kept for, swapped, dropped, and one of before again."""
    shape, halo = (3 * world.size, 5), 1
    whole = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    rows = dmr.split_range(shape[0], world.size, world.rank)
    first = np.zeros((rows[1] - rows[0] + 2, 7))
    good, kept = True, [first]
    spec = dmr.adapt(first, shape, halo=halo, split=(0,))
    with dmr.malleable(runtime_on(world), {"a": spec}) as run:
        field = run.fields["a"]
        for number in range(14):
            if number % 3:
                array = kept[number % len(kept)]
            else:
                array = np.full_like(first, np.nan)
                kept = [*kept[-1:], array]
            array[1:-1, 1:-1] = number * whole[rows[0] : rows[1]]
            field.rebind(array)
            field.exchange("periodic")
            expected = whole_padded(number * whole, halo, "periodic")
            good &= np.array_equal(array, expected[rows[0] : rows[1] + 2])
    together(good, "arrays that come and go")


def test_a_cartesian_communicator_lies_as_the_field_does(
    world: MPI.Intracomm, counts: Counts, together: Callable[..., None]
) -> None:
    spec = dmr.FieldSpec((24, 5, 36), "f8", lambda box: 0.0, split=(0, 2), row_major=True)
    other = dmr.FieldSpec((24, 36), "f8", lambda box: 0.0)
    for ranks in counts(0):
        good = True
        with some_of(world, ranks) as comm:
            if comm is not None:
                with dmr.malleable(runtime_on(comm), {"a": spec, "b": other}) as run:
                    field = run.fields["a"]
                    cart = run.cart("a", periodic=(False, True))
                    good &= cart is run.cart("a", periodic=(False, True))
                    good &= tuple(cart.coords) == field.decomposition.coordinates(field.rank)
                    none = MPI.PROC_NULL
                    for at, axis in enumerate((0, 2)):
                        found = field.neighbours(axis, periodic=axis == 2)
                        good &= cart.Shift(at, 1) == tuple(none if r is None else r for r in found)
                    with pytest.raises(dmr.UsageError, match="row_major=True"):
                        run.cart("b")
                    with pytest.raises(dmr.UsageError, match=r"split \(a, b\), got 'c'"):
                        run.cart("c")
                    with pytest.raises(dmr.UsageError, match="2 dimensions, got 1"):
                        run.cart("a", periodic=[True])
        together(good, f"{ranks} ranks")
