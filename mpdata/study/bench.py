"""``mpdata bench``: time per cell and step, beside the limits of this machine.

All variants and PyMPDATA take turns in each round, so that a busy minute of a shared machine slows
all of them. Medians compare with ``mpdata run``; the shortest round is printed as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.backends import array_module
from mpdata.cases import Request, make_setup
from mpdata.cases.setup import unit_density
from mpdata.errors import InputError
from mpdata.numerics.cuda.tuning import store_path
from mpdata.options import Scheme
from mpdata.solver import Solver

Array = npt.NDArray[Any]
Grid = tuple[int, int, int]
Say = Callable[[str], None]

PEER = "PyMPDATA"
DTYPES = ("f8", "f4")
AT_ONCE = {"numpy": 1, "numba": 1, "cupy": 20, PEER: 3}
"""Steps in one measurement: the wait for a device takes longer than a step."""

COPY_ITEMS = 1 << 24
"""128 MiB in float64, which is more than the caches of one core."""

CACHED_ITEMS, REPEATS = 1024, 1000
"""Items in the first-level cache, and repeats of a loop over them."""

SIX_ARRAYS = 6
"""Least traffic of a step: it reads psi, three face values and the density, and writes psi."""

RUN_CELL_STEPS, LEAST_STEPS, RUN_ROUNDS = 60_000_000, 20, 3
"""Length and number of the runs under mpiexec."""

VARIANTS: dict[str, tuple[Scheme, bool]] = {
    "limiter, density": (Scheme(2, True), True),
    "limiter": (Scheme(2, True), False),
    "density": (Scheme(2, False), True),
    "basic": (Scheme(2, False), False),
    "upwind, density": (Scheme(1), True),
    "infinite gauge, limiter": (Scheme(2, True, infinite_gauge=True), True),
    "third order, limiter": (Scheme(2, True, third_order=True), True),
    "three iterations, limiter": (Scheme(3, True), True),
}
"""Scheme and whether there is a density, by name."""


@dataclass
class Row:
    """A variant and its times, in ns per cell and step, one a round.

    Attributes:
        steps: the steps that a round times, and then the same arithmetic in memory that stays in
            the caches of a core (None where there is no such sweep, see Solver.in_cache).
        bytes_per_cell: held by fields, flow and scratch.
    """

    backend: str
    dtype: str
    variant: str
    cells: int
    steps: tuple[Callable[[], Any], Callable[[], Any] | None]
    bytes_per_cell: float | None = None
    ns: list[float] = field(default_factory=list)
    in_cache_ns: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "backend": self.backend,
            "dtype": self.dtype,
            "variant": self.variant,
            "ns_per_cell_step": median(self.ns),
            "best_ns": min(self.ns),
            "in_cache_ns": min(self.in_cache_ns, default=None),
            "bytes_per_cell": self.bytes_per_cell,
        }

    def line(self) -> str:
        """Return the row of the printed table."""
        digits = 4 if self.backend == "cupy" else 2
        cached = f"{min(self.in_cache_ns):.{digits}f}" if self.in_cache_ns else "-"
        return (
            f"{self.dtype}  {self.variant:26s} {median(self.ns):19.{digits}f} "
            f"{min(self.ns):8.{digits}f} {cached:>9s} {self.bytes_per_cell:15.1f}"
        )


def bench(
    grid: Grid,
    backend: str,
    env: Mapping[str, str],
    say: Say,
    *,
    threads: int = 1,
    rounds: int = 10,
    ranks: int = 1,
    mpiexec: str | None = None,
    peer: bool = True,
) -> dict[str, Any]:
    """Measure; print line by line and return the figures for JSON.

    Args:
        ranks: from 2 on, ``mpdata run`` is timed on 1 and on so many ranks, started by mpiexec.
        peer: PyMPDATA is timed, too, if it is installed.

    Raises:
        InputError: ``mpdata run`` failed, or there is no mpiexec for ``ranks``.
    """
    if ranks > 1 and mpiexec is None:
        raise InputError("expected mpiexec for --ranks, got none on PATH")
    say(f"{backend}, random {' x '.join(map(str, grid))} periodic, {threads} thread(s)")
    limits = machine_limits(backend, say)
    rows = list(variants(grid, backend, threads, env))
    peers = list(peer_variants(grid)) if peer else []
    measure([*rows, *peers], rounds)
    heads = f"{'best':>8s} {'in cache':>9s} {'bytes per cell':>15s}"
    say(f"{'':28s} {'ns per cell and step':>21s} {heads}")
    for row in rows:
        say(row.line())
    result: dict[str, Any] = {"grid": list(grid), "backend": backend, "threads": threads}
    result |= {"limits": limits, "rows": [row.summary() for row in rows]}
    if peer:
        result["pympdata"] = compare(rows, peers, say) if peers else None
    if peer and not peers:
        say("PyMPDATA is not installed; expected it for a comparison (pip install PyMPDATA)")
    del rows, peers
    if mpiexec is not None and ranks > 1:
        result["ranks"] = time_ranks(grid, ranks, mpiexec, env, say)
    return result


def machine_limits(backend: str, say: Say) -> dict[str, dict[str, Any]]:
    """Measure and print the limits of a step, on a CPU those of one core."""
    limits: dict[str, dict[str, Any]] = {}
    for dtype in DTYPES:
        copy = copy_bandwidth(backend, dtype) / 1e9
        six_ns = SIX_ARRAYS * int(dtype[1]) / copy
        limits[dtype] = {"copy_gb_per_s": copy, "six_arrays_ns": six_ns}
        if backend == "cupy":
            from mpdata.numerics.cuda.device import device_name

            limits[dtype]["device"] = device_name()
            words = f"on {device_name()}, so six arrays in {six_ns:.4f} ns a cell"
        else:
            division_ns = limits[dtype]["division_ns"] = division_s(dtype) * 1e9
            words = (
                f"on one core, so six arrays in {six_ns:.2f} ns a cell; a division "
                f"{division_ns:.3f} ns, four of them {4 * division_ns:.2f} ns"
            )
        say(f"limits {dtype}: copy {copy:.1f} GB/s {words}")
    return limits


def copy_bandwidth(backend: str, dtype: npt.DTypeLike) -> float:
    """Return bytes read and written per second by copies of an array."""
    xp, copies = array_module(backend), AT_ONCE[backend]
    source, target = xp.zeros(COPY_ITEMS, dtype), xp.zeros(COPY_ITEMS, dtype)
    source[...] = 1

    def copy() -> None:
        for _ in range(copies):
            xp.copyto(target, source)
        if xp is not np:
            xp.cuda.Device().synchronize()

    return copies * 2 * int(source.nbytes) / min(timed(copy) for _ in range(7))


def division_s(dtype: npt.DTypeLike) -> float:
    """Return seconds of one division in a long loop over items in the first-level cache."""

    def divide(out: Array, upper: Array, lower: Array, times: int) -> None:
        for _ in range(times):
            for i in range(out.size):
                out[i] = upper[i] / lower[i]
            upper[0] += out[0]

    return item_s(divide, (0.0, 1.5, 1.1), dtype)


def item_s(loop: Callable[..., None], values: tuple[float, ...], dtype: npt.DTypeLike) -> float:
    """Return the seconds of one item of a loop that is compiled as the kernels are.

    Args:
        loop: its arguments are an array for each of the values, and the number of repeats.
    """
    from mpdata.numerics.numba.inlined import entry

    compiled = entry(loop)
    arguments = (*(np.full(CACHED_ITEMS, value, dtype) for value in values), REPEATS)
    compiled(*arguments)
    return min(timed(lambda: compiled(*arguments)) for _ in range(7)) / REPEATS / CACHED_ITEMS


def variants(grid: Grid, backend: str, threads: int, env: Mapping[str, str]) -> Iterator[Row]:
    """Yield all variants in both types."""
    setup = make_setup("random", Request(grid=grid))
    cells = grid[0] * grid[1] * grid[2]
    for dtype in DTYPES:
        for name, (scheme, density) in VARIANTS.items():
            varied = setup if density else replace(setup, density=unit_density)
            solver = Solver(varied, scheme, dtype, backend, threads, store_path(env))
            solver.advance(1)
            steps = partial(_advance, solver, AT_ONCE[backend]), solver.in_cache()
            yield Row(backend, dtype, name, cells, steps, solver.nbytes / cells)


def _advance(solver: Solver, steps: int) -> None:
    solver.advance(steps)
    solver.wait()


def peer_variants(grid: Grid) -> Iterator[Row]:
    """Yield PyMPDATA with limiter, without and with a density; nothing if it is not installed.

    Its scheme in 3D has one of the two cross terms only, so it does less.
    """
    if find_spec(PEER) is None:
        return
    from PyMPDATA import Options, ScalarField, Stepper, VectorField
    from PyMPDATA import Solver as Peer
    from PyMPDATA.boundary_conditions import Periodic

    setup = make_setup("random", Request(grid=grid))
    solver = Solver(setup, Scheme(2, True), backend="numpy")
    edges = (Periodic(),) * 3
    for density in (False, True):
        options = Options(n_iters=2, nonoscillatory=True)
        stepper = Stepper(options=options, n_dims=3, n_threads=1, non_unit_g_factor=density)
        halo = options.n_halo
        faces = tuple(
            np.ascontiguousarray(solver.flow.C[axis][solver.geometry.cells(0, extra=axis)])
            for axis in range(3)
        )
        peer = Peer(
            stepper,
            ScalarField(solver.psi.copy(), halo, edges),
            VectorField(faces, halo, edges),
            ScalarField(solver.density.copy(), halo, edges) if density else None,
        )
        peer.advance(1)
        name = "limiter, density" if density else "limiter"
        steps = partial(peer.advance, AT_ONCE[PEER]), None
        yield Row(PEER, "f8", name, grid[0] * grid[1] * grid[2], steps)


def measure(rows: list[Row], rounds: int) -> None:
    """Time all variants by turns, once a round, after a round that does not count."""
    for row in rows:
        row.steps[0]()
    for _ in range(rounds):
        for row in rows:
            steps, in_cache = row.steps
            row.ns.append(timed(steps) * 1e9 / row.cells / AT_ONCE[row.backend])
            if in_cache is not None:
                row.in_cache_ns.append(timed(in_cache) * 1e9 / row.cells)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(rows: list[Row], peers: list[Row], say: Say) -> list[dict[str, Any]]:
    """Print and return PyMPDATA's rows beside ours."""
    ours = {row.variant: median(row.ns) for row in rows if row.dtype == "f8"}
    summaries = []
    for row in peers:
        ns = median(row.ns)
        summaries.append({**row.summary(), "times": ns / ours[row.variant]})
        say(
            f"PyMPDATA f8 {row.variant}: {ns:.1f} ns per cell and step by turns with ours, "
            f"{ns / ours[row.variant]:.1f} times as much"
        )
    return summaries


def time_ranks(
    grid: Grid, ranks: int, mpiexec: str, env: Mapping[str, str], say: Say
) -> list[dict[str, Any]]:
    """Print and return ns per cell and step of ``mpdata run`` on 1 and on more ranks, by turns."""
    steps = max(LEAST_STEPS, RUN_CELL_STEPS // (grid[0] * grid[1] * grid[2]))
    options = ["--grid", *map(str, grid), "--steps", str(steps), "--json", "-"]
    ways = [(dtype, count) for dtype in DTYPES for count in (1, ranks)]
    ns: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for _ in range(RUN_ROUNDS):
        for dtype, count in ways:
            command = [mpiexec, "-n", str(count), sys.executable, "-P", "-m", "mpdata", "run"]
            command += ["--case", "random", *options, "--dtype", dtype]
            done = subprocess.run(command, env=dict(env), capture_output=True, text=True)
            if done.returncode:
                raise InputError(f"expected mpdata run to run, got: {done.stderr.strip()}")
            ns[dtype, count].append(float(json.loads(done.stdout)["ns_per_cell_step"]))
    for dtype in DTYPES:
        one, more = median(ns[dtype, 1]), median(ns[dtype, ranks])
        say(
            f"mpdata run {dtype}: {one:.2f} ns on 1 rank, {more:.2f} on {ranks}: "
            f"{one / more:.2f} times"
        )
    return [
        {"dtype": dtype, "ranks": count, "ns_per_cell_step": median(values)}
        for (dtype, count), values in ns.items()
    ]
