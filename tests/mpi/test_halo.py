"""The halo of any rank against the halo cut out of the whole grid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from dmr.layout import Decomposition, choose_grid
from mpdata.geometry import Geometry
from mpdata.halo import HaloExchange
from mpdata.options import parse_boundaries

pytestmark = pytest.mark.mpi


def filled(
    comm: MPI.Intracomm, grid: tuple[int, int, int], halo: int, kind: str
) -> tuple[Geometry, np.ndarray]:
    boundaries = parse_boundaries(kind)
    cut = list(grid[:2])
    layout = Decomposition(grid, (0, 1), choose_grid(comm.size, cut, (halo, halo)))
    box = layout.box(comm.rank)
    start, stop = tuple(box.start), tuple(box.stop)
    geo = Geometry(grid, start, stop, halo, boundaries)
    array = np.full(geo.shape, np.nan)
    whole = np.arange(np.prod(grid), dtype=float).reshape(grid)
    array[geo.cells(0)] = whole[box.slices((0, 0, 0))]
    neighbours = {
        axis: tuple(
            layout.neighbour(comm.rank, axis, way, periodic=boundaries[axis].kind == "periodic")
            for way in (-1, 1)
        )
        for axis in (0, 1)
        if layout.parts_along(axis) > 1
    }
    HaloExchange(comm, geo, neighbours, array).fill(array)
    return geo, array


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
