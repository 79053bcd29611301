"""The halo that a field fills against the halo cut out of the whole array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import stand_in
from mpi4py import MPI
from mpi_runs import Counts, runtime_on

import dmr
from dmr.data.exchange import Boundary, ExchangeError

pytestmark = pytest.mark.mpi

Boundaries = Boundary | tuple[Boundary, ...]

ROWS: list[tuple[tuple[int, ...], Any, tuple[int, ...], Boundaries]] = [
    ((23,), 2, (0,), "periodic"),
    ((19, 17), 1, (0, 1), "periodic"),
    ((19, 17), ((1, 2), (0, 1)), (1, 0), ("edge", 7.0)),
    ((14, 4, 15), ((2, 1), (3, 3), (0, 2)), (0, 2), ("periodic", "edge", -1)),
    ((13, 12, 12), 1, (0, 1, 2), (None, "periodic", "edge")),
]


def whole_padded(whole: np.ndarray[Any, Any], halo: Any, boundary: Boundaries) -> Any:
    """Return the array with its halo, axis by axis; NaN where nothing is said."""
    for axis in reversed(range(whole.ndim)):
        kind = boundary[axis] if isinstance(boundary, tuple) else boundary
        sides = (halo, halo) if isinstance(halo, int) else halo[axis]
        width = [(0, 0)] * whole.ndim
        width[axis] = sides
        if kind in ("periodic", "edge"):
            whole = np.pad(whole, width, mode="wrap" if kind == "periodic" else "edge")  # type: ignore[call-overload]
        else:
            whole = np.pad(whole, width, constant_values=np.nan if kind is None else kind)
    return whole


@contextmanager
def some_of(world: MPI.Intracomm, ranks: int) -> Iterator[MPI.Intracomm | None]:
    """Give the first ranks of the world a communicator of theirs."""
    part = world.Split(0 if world.rank < ranks else MPI.UNDEFINED, world.rank)
    yield None if part == MPI.COMM_NULL else part
    if part != MPI.COMM_NULL:
        part.Free()


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("module", ["numpy", "device"])
def test_halos_are_what_the_whole_array_says(
    world: MPI.Intracomm, counts: Counts, together: Callable[..., None], row: int, module: str
) -> None:
    shape, halo, split, boundary = ROWS[row]
    xp = np if module == "numpy" else stand_in.DeviceModule()
    whole = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    expected = whole_padded(whole, halo, boundary)
    spec = dmr.FieldSpec(
        shape,
        "f8",
        lambda box: whole[box.slices((0,) * len(shape))],
        halo,
        split=split,
        xp=xp,
        row_major=row % 2 == 1,
    )
    for ranks in counts(row):
        good = True
        with some_of(world, ranks) as comm:
            if comm is not None:
                with dmr.malleable(runtime_on(comm), {"a": spec}) as run:
                    field = run.fields["a"]
                    for _ in range(2):  # the same requests once more
                        field.padded[...] = np.nan
                        field.initialise()
                        field.exchange(boundary)
                        found = field.padded
                        host = found if xp is np else xp.asnumpy(found)
                        begin = field.box.start
                        mine = tuple(
                            slice(a, a + n) for a, n in zip(begin, host.shape, strict=True)
                        )
                        good &= np.array_equal(host, expected[mine], equal_nan=True)
                    gathered = field.gather()
                    good &= gathered is None or np.array_equal(gathered, whole)
        together(good, f"{ranks} ranks, {shape}, {boundary}")


def test_what_cannot_be_filled_is_said(world: MPI.Intracomm) -> None:
    spec = dmr.FieldSpec((4 * world.size, 2), "f8", lambda box: 0.0, halo=3, thinnest=1, split=(0,))
    with dmr.malleable(runtime_on(world), {"a": spec}) as run:
        with pytest.raises(ExchangeError, match='expected a boundary of "periodic"'):
            run.fields["a"].exchange("wrapped")
        with pytest.raises(ExchangeError, match="as thick as their halo of 3 along axis 1"):
            run.fields["a"].exchange("periodic")


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
