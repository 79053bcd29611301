"""The published cases, computed again, and the orders of convergence of all options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import floor, fsum, log10
from typing import Any

import numpy as np

from mpdata.cases import Request, make_setup
from mpdata.cases.setup import Array, Setup, Sums, open_mesh
from mpdata.errors import InputError
from mpdata.options import Scheme
from mpdata.solver import Solver, count_steps
from mpdata.study.convergence import Order, orders

VARIANTS = {"upwind": Scheme(1, False), "basic": Scheme(2, False), "limiter": Scheme(2, True)}

SPHERE_NORMS = ("max", "min", "linf", "l2", "l1")
SPHERE = {
    "upwind": (1.72131033, 0.0, 3.38441916, 0.00567238, 0.00128141),
    "basic": (4.94170863, 0.0, 2.92022414, 0.00367407, 0.00065310),
    "limiter": (3.99999989, 0.0, 2.90357355, 0.00365567, 0.00064920),
}
CONE = {
    "basic": {"min": 0.86381076, "max": 3.54697914, "rms": 0.00037726},
    "limiter": {"min": 1.0, "max": 3.52544410, "rms": 0.00036731},
}
CONVERGENCE = (6.7177e-4, 1.8046e-4, 4.5640e-5, 1.1357e-5)
POLES = {"emax": -0.12406172, "err0": 0.07387930}
"""Of libmpdata++, tests/paper_2015_GMD/5_over_the_pole_2d, refdata/stats_default.txt: two passes in
the infinite gauge with the limiter."""

PERIODIC = {
    "periodic-3x3": {(0, 2): 0.0921, (2, 0): 0.5011, (2, 2): 0.4068},
    "periodic-3x3-b": {(1, 1): 0.64, (1, 2): 0.18, (2, 1): 0.18},
}


@dataclass(frozen=True)
class Check:
    """One published figure beside ours; ``tolerance`` is absolute."""

    case: str
    quantity: str
    computed: float
    published: float
    tolerance: float

    @property
    def deviation(self) -> float:
        """Computed minus published."""
        return self.computed - self.published

    @property
    def ok(self) -> bool:
        """Whether the deviation is within the tolerance."""
        return abs(self.deviation) <= self.tolerance

    @property
    def heading(self) -> str:
        """The names of a table's columns."""
        return (
            f"{'case':15s} {'quantity':26s} {'computed':>15s} {'published':>13s} "
            f"{'deviation':>10s} {'allowed':>8s}"
        )

    def line(self) -> str:
        """Return the table's row."""
        return (
            f"{self.case:15s} {self.quantity:26s} {self.computed:15.8g} {self.published:13.8g} "
            f"{self.deviation:10.1e} {self.tolerance:8.1e} {'ok' if self.ok else 'NOT MET'}"
        )

    def record(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "case": self.case,
            "quantity": self.quantity,
            "computed": self.computed,
            "published": self.published,
            "deviation": self.deviation,
            "tolerance": self.tolerance,
            "ok": self.ok,
        }


def difference_sums(setup: Setup, psi: Array) -> Sums:
    """Return the sums from which a case makes its error norms (float64)."""
    if setup.exact is None:
        raise InputError(f"the answer of case {setup.case} is not known")
    mesh = open_mesh(*(np.arange(n) for n in setup.grid))
    exact = np.broadcast_to(np.asarray(setup.exact(*mesh), np.float64), psi.shape)
    gap = np.abs(psi.astype(np.float64) - exact)
    weighted = np.asarray(setup.density(*mesh), np.float64) * gap
    return Sums(
        gap.size,
        fsum(gap.ravel()),
        fsum((gap * gap).ravel()),
        float(gap.max()),
        fsum(weighted.ravel()),
        fsum((weighted * gap).ravel()),
    )


def run_case(setup: Setup, scheme: Scheme, backend: str = "auto") -> dict[str, float]:
    """Run a case to its end; return min, max and the error norms its source defines."""
    solver = Solver(setup, scheme, backend=backend)
    solver.advance(count_steps(setup))
    norms = {"min": float(solver.psi.min()), "max": float(solver.psi.max())}
    if setup.norms is not None:
        norms |= setup.norms(difference_sums(setup, solver.psi))
    return norms


def _sphere(backend: str) -> Iterator[Check]:
    # The source's treatment of the open boundary differs slightly, which the norms feel.
    relative = {"max": 5e-6, "linf": 5e-6, "l2": 1e-4, "l1": 3e-3}
    for variant, published in SPHERE.items():
        norms = run_case(make_setup("sphere", Request()), VARIANTS[variant], backend)
        for name, value in zip(SPHERE_NORMS, published, strict=True):
            tolerance = 1e-12 if name == "min" else relative[name] * abs(value)
            yield Check("sphere", f"{variant} {name}", norms[name], value, tolerance)


def _cone(backend: str) -> Iterator[Check]:
    for variant, published in CONE.items():
        norms = run_case(make_setup("cone", Request()), VARIANTS[variant], backend)
        for name, value in published.items():
            tolerance = 2e-8 if name == "rms" else 1e-7
            yield Check("cone", f"{variant} {name}", norms[name], value, tolerance)


def _poles(backend: str) -> Iterator[Check]:
    setup = make_setup("cone-over-poles", Request())
    norms = run_case(setup, Scheme(2, True, infinite_gauge=True), backend)
    highest = float(np.max(setup.initial(*open_mesh(*(np.arange(n) for n in setup.grid)))))
    computed = {"emax": norms["max"] / highest - 1, "err0": norms["l2"]}
    # The steps are shorter than the source's, which are beyond the stability limit.
    for name, value in POLES.items():
        yield Check("cone-over-poles", f"infinite gauge {name}", computed[name], value, 2e-4)


def _convergence(backend: str) -> Iterator[Check]:
    for level, value in enumerate(CONVERGENCE):
        setup = make_setup("convergence-1d", Request(grid=(440 * 2**level, 1, 1)))
        norms = run_case(setup, VARIANTS["basic"], backend)
        digit = 10.0 ** (floor(log10(value)) - 4)
        yield Check("convergence-1d", f"basic dx = 1/{2**level} l2", norms["l2"], value, digit / 2)


def _periodic(case: str) -> Callable[[str], Iterator[Check]]:
    def checks(backend: str) -> Iterator[Check]:
        solver = Solver(make_setup(case, Request()), VARIANTS["basic"], backend=backend)
        solver.advance(1)
        for (i, j), value in PERIODIC[case].items():
            computed = float(solver.psi[i, j, 0])
            yield Check(case, f"psi[{i},{j}] after one step", computed, value, 5e-5)

    return checks


ORDERS = "orders"
"""The name that stands for the orders of convergence."""

CHECKS: dict[str, Callable[[str], Iterable[Check]]] = {
    "periodic-3x3": _periodic("periodic-3x3"),
    "periodic-3x3-b": _periodic("periodic-3x3-b"),
    "convergence-1d": _convergence,
    "cone": _cone,
    "sphere": _sphere,
    "cone-over-poles": _poles,
}


def verify(case: str | None = None, backend: str = "auto") -> Iterator[Check | Order]:
    """Yield the checks of one case, or of all and the orders.

    Raises:
        InputError: no published figures for this case.
    """
    if case is not None and case not in (*CHECKS, ORDERS):
        raise InputError(
            f"expected a case with published figures of {', '.join(CHECKS)}, or {ORDERS}, got "
            f"{case!r}"
        )
    for name, checks in CHECKS.items():
        if case in (None, name):
            yield from checks(backend)
    if case in (None, ORDERS):
        yield from orders(backend)
