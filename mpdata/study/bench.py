"""``mpdata bench``: time per cell and step beside this machine's limits, all in one run.

Machines are shared: the rounds of all variants, PyMPDATA's among them, take turns, so that a busy
minute falls on all of them. Medians compare with ``mpdata run``; the best is told as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases import Request, Setup, make_setup
from mpdata.cases.setup import unit_density
from mpdata.errors import InputError
from mpdata.numerics.cuda.tuning import store_path
from mpdata.options import Scheme
from mpdata.solver import Solver
from mpdata.study import roofline
from mpdata.study.scaling import expected, expected_line, measured, over_ranks

Clock = Callable[[], float]

PEER = "PyMPDATA"
AT_ONCE = {"numpy": 1, "numba": 1, "cupy": 20, PEER: 3}
"""Steps timed together: on a device one by itself would be timed with the wait for it."""

COPY_ITEMS = 1 << 24
"""128 MiB in float64: more than any cache here."""

SIX_ARRAYS = 6
"""What a step must move: psi, three face values and the (inverse) density read, psi written."""

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
    """One variant's times.

    Attributes:
        ns: per cell and step, one a round.
        in_cache_ns: the same arithmetic in memory that stays in a core's caches; empty where
            there is no such way to compute it (Solver.in_cache).
        bytes_per_cell: held by fields, flow and scratch.
    """

    backend: str
    dtype: str
    variant: str
    cells: int
    bytes_per_cell: float | None = None
    ns: list[float] = field(default_factory=list)
    in_cache_ns: list[float] = field(default_factory=list)

    @property
    def median_ns(self) -> float:
        """Return the median of its rounds."""
        return float(np.median(self.ns))

    def summary(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "backend": self.backend,
            "dtype": self.dtype,
            "variant": self.variant,
            "ns_per_cell_step": self.median_ns,
            "best_ns": min(self.ns),
            "in_cache_ns": min(self.in_cache_ns, default=None),
            "bytes_per_cell": self.bytes_per_cell,
        }

    def line(self) -> str:
        """Return the row as it is printed."""
        digits = 4 if self.backend == "cupy" else 2
        cached = f"{min(self.in_cache_ns):.{digits}f}" if self.in_cache_ns else "-"
        return (
            f"{self.dtype}  {self.variant:26s} {self.median_ns:19.{digits}f} "
            f"{min(self.ns):8.{digits}f} {cached:>9s} {self.bytes_per_cell:15.1f}"
        )


Timed = tuple[Row, Callable[[], Any], Callable[[], Any] | None]
"""A row, what advances it, and what does the same arithmetic in cache where there is that."""


def copy_bandwidth(dtype: npt.DTypeLike, clock: Clock) -> float:
    """Return bytes read and written per second by copying an array on one core."""
    source = np.ones(COPY_ITEMS, dtype)
    target = np.zeros_like(source)
    best = min(_timed(lambda: np.copyto(target, source), clock) for _ in range(7))
    return 2 * source.nbytes / best


def variants(
    grid: tuple[int, int, int], backend: str, threads: int, tuned: Path | None = None
) -> Iterator[Timed]:
    """Yield every variant's row, what advances it by ``AT_ONCE`` steps, what does so in cache."""
    setup = make_setup("random", Request(grid=grid))
    cells = grid[0] * grid[1] * grid[2]
    for dtype in ("f8", "f4"):
        for name, (scheme, density) in VARIANTS.items():
            varied = _with_density(setup, density)
            solver = Solver(varied, scheme, dtype, backend, threads, tuned)
            solver.advance(1)
            advance = partial(_steps, solver, AT_ONCE[backend])
            row = Row(backend, dtype, name, cells, solver.nbytes / cells)
            yield row, advance, solver.in_cache()


def _steps(solver: Solver, steps: int) -> None:
    """Advance by some steps, halos filled as in a run; wait for those that are under way."""
    solver.advance(steps)
    solver.wait()


def measure(rows: list[Timed], rounds: int, clock: Clock) -> Iterator[None]:
    """Time every row once a round; yields after each round."""
    for _, step, _ in rows:
        step()
    for _ in range(rounds):
        for row, step, in_cache in rows:
            row.ns.append(_timed(step, clock) * 1e9 / row.cells / AT_ONCE[row.backend])
            if in_cache is not None:
                row.in_cache_ns.append(_timed(in_cache, clock) * 1e9 / row.cells)
        yield


def _with_density(setup: Setup, density: bool) -> Setup:
    return setup if density else replace(setup, density=unit_density)


def _timed(work: Callable[[], Any], clock: Clock) -> float:
    begun = clock()
    work()
    return clock() - begun


def pympdata(grid: tuple[int, int, int]) -> Iterator[Timed]:
    """Yield PyMPDATA's rows with limiter, unit density and with one, and what advances them.

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
        row = Row(PEER, "f8", name, grid[0] * grid[1] * grid[2])
        yield row, partial(peer.advance, AT_ONCE[PEER]), None


def first_steps(env: Mapping[str, str], clock: Clock) -> dict[str, float]:
    """Return the wall time of a process that makes one step, cold and warm compile cache."""
    command = [sys.executable, "-P", "-m", "mpdata", "run", "--case", "random", "--steps", "1"]
    with tempfile.TemporaryDirectory() as folder:
        fresh = {**env, "NUMBA_CACHE_DIR": folder}
        return {
            name: _timed(lambda: _run([*command, "--json", os.devnull], fresh), clock)
            for name in ("cold_s", "warm_s")
        }


def _run(command: list[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"expected {' '.join(command[1:5])} to run, got: {done.stderr.strip()}")
    return done.stdout


def host_limits(clock: Clock, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Measure what bounds a step on one core, and say it."""
    limits, timed = {}, partial(_timed, clock=clock)
    for dtype in ("f8", "f4"):
        copy = copy_bandwidth(dtype, clock) / 1e9
        traffic = SIX_ARRAYS * int(dtype[1]) / copy
        limits[dtype] = {
            "copy_gb_per_s": copy,
            "division_ns": roofline.division_s(dtype, timed) * 1e9,
            "operation_ns": roofline.operation_s(dtype, timed) * 1e9,
            "six_arrays_ns": traffic,
        }
    for dtype, limit in limits.items():
        say(
            f"limits {dtype}: copy {limit['copy_gb_per_s']:.1f} GB/s on one core, so six arrays in "
            f"{limit['six_arrays_ns']:.2f} ns a cell; a division {limit['division_ns']:.3f} ns, "
            f"four of them {4 * limit['division_ns']:.2f} ns; another operation "
            f"{limit['operation_ns']:.4f} ns"
        )
    return limits


def device_limits(say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Measure what bounds a step on the GPU in use, and say it."""
    from mpdata.numerics.cuda.device import device_name, load_cupy
    from mpdata.study.gpu import copy_gb_s

    copy, limits = copy_gb_s(load_cupy()), {}
    for dtype in ("f8", "f4"):
        traffic = SIX_ARRAYS * int(dtype[1]) / copy
        limits[dtype] = {
            "device": device_name(),
            "copy_gb_per_s": copy,
            "six_arrays_ns": traffic,
        }
        say(
            f"limits {dtype}: copy {copy:.1f} GB/s on {device_name()}, so six arrays in "
            f"{traffic:.4f} ns a cell"
        )
    return limits


@dataclass(frozen=True)
class BenchRequest:
    """What ``mpdata bench`` was asked for.

    Attributes:
        rounds: the best of so many counts.
        ranks: also ``mpdata run`` on so many, if more than 1.
        peer: also PyMPDATA where it is installed.
        start: also a process of one step, with a cold and with a warm compile cache.
    """

    grid: tuple[int, int, int]
    backend: str
    threads: int = 1
    rounds: int = 10
    ranks: int = 1
    peer: bool = True
    start: bool = False


def bench(
    asked: BenchRequest,
    env: Mapping[str, str],
    say: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Run everything; say it line by line and return it for JSON."""
    grid, backend, threads = asked.grid, asked.backend, asked.threads
    say(f"{backend}, random {' x '.join(map(str, grid))} periodic, {threads} thread(s)")
    limits = device_limits(say) if backend == "cupy" else host_limits(clock, say)
    found = list(variants(grid, backend, threads, store_path(env)))
    peers = list(pympdata(grid)) if asked.peer else []
    for _ in measure([*found, *peers], asked.rounds, clock):
        pass
    heads = f"{'best':>8s} {'in cache':>9s} {'bytes per cell':>15s}"
    say(f"{'':28s} {'ns per cell and step':>21s} {heads}")
    for row, _, _ in found:
        say(row.line())
    result: dict[str, Any] = {
        "grid": list(grid),
        "backend": backend,
        "threads": threads,
        "limits": limits,
        "rows": [row.summary() for row, _, _ in found],
    }
    if asked.peer:
        result["pympdata"] = _compared(
            [row for row, _, _ in found], [row for row, *_ in peers], say
        )
    rows = [row for row, *_ in found]
    del found, peers
    if backend == "numba":
        result["roofline"] = _under_roofline(rows, grid, limits, env, say)
    _bench_processes(asked, result, env, say, clock)
    return result


def _compared(
    rows: list[Row], peers: list[Row], say: Callable[[str], None]
) -> list[dict[str, Any]] | None:
    """Return PyMPDATA's rows beside ours, and say them; None where it is not installed."""
    if not peers:
        say("PyMPDATA is not installed; expected it for a comparison (pip install PyMPDATA)")
        return None
    ours = {row.variant: row.median_ns for row in rows if row.dtype == "f8"}
    found = []
    for row in peers:
        times = row.median_ns / ours[row.variant]
        found.append({**row.summary(), "times": times})
        say(
            f"PyMPDATA f8 {row.variant}: {row.median_ns:.1f} ns per cell and step by turns with "
            f"ours, {times:.1f} times as much"
        )
    return found


def _under_roofline(
    rows: list[Row],
    grid: tuple[int, int, int],
    limits: Mapping[str, Mapping[str, float]],
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return what bounds the variants whose operations are counted, and say it."""
    operations, found = roofline.counted(env), []
    for row in rows:
        if row.variant in operations and row.in_cache_ns:
            bound = roofline.bound(
                row.dtype, row.variant, operations[row.variant], limits[row.dtype]
            )
            found.append(bound)
            say(roofline.line(bound, min(row.ns), min(row.in_cache_ns)))
    measured = roofline.measured(grid, env)
    say(roofline.measured_line(measured))
    return {"rows": found, "measured": measured}


def _bench_processes(
    asked: BenchRequest,
    result: dict[str, Any],
    env: Mapping[str, str],
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """Add what is measured on other programs and processes."""
    grid, ranks = asked.grid, asked.ranks
    if ranks > 1:
        result["ranks"] = over_ranks(grid, ranks, env)
        for dtype in ("f8", "f4"):
            one, more = (r["ns_per_cell_step"] for r in result["ranks"] if r["dtype"] == dtype)
            say(
                f"mpdata run {dtype}: {one:.2f} ns on 1 rank, {more:.2f} on {ranks}: "
                f"{one / more:.2f} times"
            )
        costs = measured(grid, env)
        say("too few cells to tell what to expect of ranks" if costs is None else costs.line())
        result["expected"] = [] if costs is None else expected(grid, costs)
        for row in result["expected"]:
            say("expected, not measured, of f8: " + expected_line(row))
    if asked.start:
        result["first_step"] = first_steps(env, clock)
        say(
            "a process that makes one step: {cold_s:.1f} s with an empty compile cache, "
            "{warm_s:.1f} s with a full one".format(**result["first_step"])
        )
