"""The halo of any rank against the halo cut out of the whole grid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from dmr.data.decomposition import Decomposition, choose_grid
from mpdata.grid import Geometry
from mpdata.options import parse_boundaries
from mpdata.parallel.halo import HaloExchange

pytestmark = pytest.mark.mpi


def prepared(
    comm: MPI.Intracomm, grid: tuple[int, int, int], halo: int, kind: str
) -> tuple[HaloExchange, np.ndarray]:
    boundaries = parse_boundaries(kind)
    cut = list(grid[:2])
    decomposition = Decomposition(grid, (0, 1), choose_grid(comm.size, cut, (halo, halo)))
    box = decomposition.box(comm.rank)
    start, stop = tuple(box.start), tuple(box.stop)
    geo = Geometry(grid, start, stop, halo, boundaries)
    array = np.full(geo.shape, np.nan)
    whole = np.arange(np.prod(grid), dtype=float).reshape(grid)
    array[geo.cells(0)] = whole[box.slices((0, 0, 0))]
    neighbours = {
        axis: tuple(
            decomposition.neighbour(comm.rank, axis, way, periodic=boundaries[axis].periodic)
            for way in (-1, 1)
        )
        for axis in (0, 1)
        if decomposition.parts_along(axis) > 1
    }
    return HaloExchange(comm, geo, neighbours, array), array


def filled(
    comm: MPI.Intracomm, grid: tuple[int, int, int], halo: int, kind: str
) -> tuple[Geometry, np.ndarray]:
    exchange, array = prepared(comm, grid, halo, kind)
    exchange.fill(array)
    return exchange.geo, array


@pytest.mark.parametrize(
    "kind",
    [
        "periodic",
        "open",
        "wall",
        "fixed:-3",
        "periodic,open,fixed:7",
        "wall,periodic,periodic",
    ],
)
@pytest.mark.parametrize("grid", [(18, 14, 5), (20, 18, 1), (18, 1, 4), (1, 19, 1)])
@pytest.mark.parametrize("halo", [1, 3])
def test_halo_is_what_the_whole_grid_says(
    world: MPI.Intracomm,
    together: Callable[..., None],
    kind: str,
    grid: tuple[int, int, int],
    halo: int,
) -> None:
    geo, array = filled(world, grid, halo, kind)
    # The whole grid, on this rank alone.
    alone, reference = filled(MPI.COMM_SELF, grid, halo, kind)
    region = []
    for axis in range(3):
        if axis in geo.active:
            low = geo.start[axis]
            region.append(slice(low, low + geo.interior[axis] + 2 * halo))
        else:
            region.append(slice(0, 1))
    inner = geo.cells(halo)
    together(np.array_equal(array[inner], reference[tuple(region)]), f"{kind} {grid} halo {halo}")
    together(not np.isnan(reference[alone.cells(halo)]).any(), "every halo cell is set")


@pytest.mark.parametrize("kind", ["periodic", "open", "fixed:-3,periodic,wall"])
@pytest.mark.parametrize("grid", [(18, 14, 5), (18, 1, 4), (1, 19, 1)])
@pytest.mark.parametrize("halo", [1, 3])
def test_started_and_finished_is_filled(
    world: MPI.Intracomm,
    together: Callable[..., None],
    kind: str,
    grid: tuple[int, int, int],
    halo: int,
) -> None:
    geo, expected = filled(world, grid, halo, kind)
    exchange, array = prepared(world, grid, halo, kind)
    inner = geo.cells(halo)
    exchange.start(array)
    low, high = exchange.ready
    seen = array.copy()
    exchange.finish()
    exchange.finish()  # nothing under way: nothing happens
    together(np.array_equal(array[inner], expected[inner]), "the same halo")
    # What the layers that are ready reach is there before the messages are.
    reached = list(inner)
    if 0 in geo.active:
        reached[0] = slice(low, high + 2 * halo)
    there = tuple(reached)
    together(low >= high or np.array_equal(seen[there], expected[there]), f"{low} to {high}")
    cut = 0 in exchange.neighbours
    together(cut or (low, high) == (0, geo.interior[0]), "all layers where the axis is not cut")
    sides = [peer is not None for peer in exchange.neighbours.get(0, (None, None))]
    waiting = np.isnan(seen[inner]).reshape(seen[inner].shape[0], -1).any(axis=1).sum()
    together(waiting == halo * sum(sides), f"{waiting} layers wait for messages")
