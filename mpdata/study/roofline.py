"""A roofline of the fused sweep: bytes and operations of a cell and step, counted and measured.

Counted: the stages of :mod:`mpdata.numerics.numba.fused_kernel` run once as plain Python on
numbers that count what is done with them, in a process where Numba compiles nothing. Rows and
planes that tiles compute twice are left out. Bytes are those that must move: psi, three face
values and, where there is a density, its inverse are read, psi is written.

The bound on arithmetic takes every product to be fused with a sum, though the formulas fuse some
only, and all else at the measured rate of additions, products and maxima; divisions come on top.

Measured: the difference of two runs of ``mpdata run`` under ``perf stat``, where perf is installed
and the machine lets it count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpdata.numerics.numba.kernel_cache import kernel
from mpdata.numerics.numba.limits import CHAIN

KINDS = ("add", "multiply", "compare", "divide")
"""Kinds of operations; ``add`` has differences, ``compare`` minima, choices and absolute values."""

CASES = {
    "limiter, density": (True, True),
    "limiter": (True, False),
    "density": (False, True),
    "basic": (False, False),
}
"""Of every variant that is counted: whether it has the limiter, and a density."""

EVENTS = ("instructions", "cycles", "cache-misses")
LINE_BYTES = 64
SPARE_STEPS = 4
"""Steps of the shorter run, so that what every run does once falls out of the difference."""

CELL_STEPS = 60_000_000
TIMES = 1000


class Counted:
    """A number that counts the operations it takes part in, by kind, in ``counts``."""

    counts: ClassVar[Counter[str]] = Counter()
    __slots__ = ("value",)

    def __init__(self, value: Any = 0.0) -> None:
        self.value = float(getattr(value, "value", value))

    def _done(self, kind: str, value: float) -> Counted:
        Counted.counts[kind] += 1
        return Counted(value)

    def __add__(self, other: Any) -> Counted:
        return self._done("add", self.value + Counted(other).value)

    def __sub__(self, other: Any) -> Counted:
        return self._done("add", self.value - Counted(other).value)

    def __mul__(self, other: Any) -> Counted:
        return self._done("multiply", self.value * Counted(other).value)

    def __truediv__(self, other: Any) -> Counted:
        return self._done("divide", self.value / Counted(other).value)

    def __neg__(self) -> Counted:
        return Counted(-self.value)

    def __abs__(self) -> Counted:
        return self._done("compare", abs(self.value))

    def __lt__(self, other: Counted) -> bool:
        Counted.counts["compare"] += 1
        return self.value < other.value

    def __gt__(self, other: Counted) -> bool:
        Counted.counts["compare"] += 1
        return self.value > other.value


class Numbers:
    """Stands for an array: whatever is asked for is one number, and nothing is kept."""

    dtype = SimpleNamespace(type=Counted)

    def __init__(self, value: float) -> None:
        self._value = Counted(value)

    def __getitem__(self, index: Any) -> Counted:
        return self._value

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


def count(limiter: bool, density: bool) -> dict[str, int]:
    """Return the operations of a cell and step, by kind; only where Numba compiles nothing."""
    from mpdata.numerics.numba import fused_kernel, inlined
    from mpdata.numerics.numba.kernel_arguments import KernelTerms, flag

    P, U, D, Q, G, psi = (Numbers(value) for value in (1.1, 0.5, 0.6, 1.2, 0.1, 1.0))
    cc, cm, cs, Fc, Fm, Fs = (Numbers(value) for value in (0.1, 0.2, 0.1, 0.01, 0.02, 0.01))
    r = Numbers(0.9) if density else None
    limits = flag(limiter)
    terms = KernelTerms(Counted(1e-15), None, None, None, None)
    nothing = (0, False, 1)
    at, step = np.uint64(99), np.uint64(3)  # every index is like any other, but not below 0
    inlined.NAMES["fma"] = lambda a, b, c: a * b + c
    Counted.counts.clear()
    fused_kernel.donor_row(P, at, psi, at, 1, cc, cm, cs, r, step, step, nothing, None)
    fused_kernel.slow_row(
        *(Fs, None, at, P, at, at, at, at, step, cc, cm, cs, r, at, 1, step, step, terms),
        *(nothing, step, None),
    )
    fused_kernel.plane_row(
        *(Fc, Fm, None, None, at, P, at, at, at, step, cc, cm, cs, r, at, 1, step, step, terms),
        *(nothing, None),
    )
    if limiter:
        fused_kernel.betas_row(
            *(U, D, at, psi, at, step, step, P, at, at, at, step, Fc, Fm, at, at, Fs, at, at),
            *(r, 1, terms.eps, None),
        )
    fused_kernel.update_row(
        *(psi, at, Q, at, G, P, at, step, Fc, Fm, at, at, Fs, at, U, D, at, at, r),
        *(None, None, None, None, None, None, at, at, 1, step, step, limits, nothing, None),
    )
    return {kind: Counted.counts[kind] for kind in KINDS}


def counted(env: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the operations of a cell and step by variant and kind, counted in another process."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        env={**env, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def operation_s(dtype: npt.DTypeLike, timed: Callable[[Callable[[], Any]], float]) -> float:
    """Return seconds of one addition, product or maximum, in turn, in the first-level cache."""
    return _item_s("limits.operate", (1.0, 1.0, 0.5), dtype, timed) / (3 * CHAIN)


def division_s(dtype: npt.DTypeLike, timed: Callable[[Callable[[], Any]], float]) -> float:
    """Return seconds of one division in a long loop over data in the first-level cache."""
    return _item_s("limits.divide", (0.0, 1.5, 1.1), dtype, timed)


def _item_s(
    name: str,
    values: tuple[float, ...],
    dtype: npt.DTypeLike,
    timed: Callable[[Callable[[], Any]], float],
) -> float:
    """Return seconds that a loop takes for an item, compiled as the kernels are."""
    arguments = (*(np.full(1024, value, dtype) for value in values), TIMES)
    loop = kernel(name, arguments)
    loop(*arguments)
    best = min(timed(lambda: loop(*arguments)) for _ in range(7))
    return best / TIMES / 1024


def bound(
    dtype: str, variant: str, operations: Mapping[str, int], limit: Mapping[str, float]
) -> dict[str, Any]:
    """Return what bounds a variant: bytes over the copy's rate, operations over theirs.

    Args:
        limit: ``copy_gb_per_s``, ``division_ns`` and ``operation_ns`` of this machine and type.
    """
    moved = (6 if CASES[variant][1] else 5) * int(dtype[1])
    plain = max(operations["add"], operations["multiply"]) + operations["compare"]
    memory_ns = moved / limit["copy_gb_per_s"]
    arithmetic_ns = plain * limit["operation_ns"] + operations["divide"] * limit["division_ns"]
    return {
        "dtype": dtype,
        "variant": variant,
        "bytes_moved": moved,
        "operations": dict(operations),
        "memory_ns": memory_ns,
        "arithmetic_ns": arithmetic_ns,
    }


def line(found: Mapping[str, Any], best_ns: float, in_cache_ns: float) -> str:
    """Return a variant's place under the roofline as it is printed."""
    operations = found["operations"]
    each = ", ".join(f"{operations[kind]} {kind}" for kind in KINDS)
    bound_ns = max(found["memory_ns"], found["arithmetic_ns"])
    return (
        f"roofline {found['dtype']} {found['variant']}: {found['bytes_moved']} bytes and "
        f"{sum(operations.values())} operations a cell ({each}): memory {found['memory_ns']:.2f} "
        f"ns, arithmetic {found['arithmetic_ns']:.2f} ns; in cache {in_cache_ns / bound_ns:.2f}, "
        f"whole {best_ns / bound_ns:.2f} times the larger"
    )


def measured(grid: tuple[int, int, int], env: Mapping[str, str]) -> dict[str, float] | str:
    """Return what ``perf stat`` counts of a cell and step, or one sentence why it does not."""
    cells = grid[0] * grid[1] * grid[2]
    more = max(1, CELL_STEPS // cells)
    few = perf(grid, SPARE_STEPS, env)
    if isinstance(few, str):
        return few
    many = perf(grid, SPARE_STEPS + more, env)
    if isinstance(many, str):
        return many
    return {event: (many[event] - few[event]) / (cells * more) for event in EVENTS}


def perf(grid: tuple[int, int, int], steps: int, env: Mapping[str, str]) -> dict[str, float] | str:
    """Return what perf counts of a run of ``mpdata run`` in float64, or why it counts nothing."""
    run = [sys.executable, "-P", "-m", "mpdata", "run", "--case", "random"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "perf.csv"
        command = ["perf", "stat", "-x,", "-o", str(out), "-e", ",".join(f"{e}:u" for e in EVENTS)]
        command += ["--", *run, "--grid", *map(str, grid)]
        command += ["--steps", str(steps), "--json", os.devnull]
        try:
            done = subprocess.run(command, env=dict(env), capture_output=True, text=True)
        except FileNotFoundError:
            return "perf is not installed"
        if done.returncode or not out.exists():
            why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return f"perf stat counts nothing here: {why}"
        found = {}
        for fields in (text.split(",") for text in out.read_text().splitlines()):
            if len(fields) > 2 and (event := fields[2].partition(":")[0]) in EVENTS:
                if not fields[0].isdigit():
                    return f"perf stat cannot count {event} here: {fields[0].strip('<>')}"
                found[event] = float(fields[0])
    missing = [event for event in EVENTS if event not in found]
    return f"perf stat did not report {missing[0]}" if missing else found


def measured_line(found: Mapping[str, float] | str) -> str:
    """Return what was measured, or why not, as it is printed."""
    if isinstance(found, str):
        return f"roofline, measured: {found}"
    return (
        f"roofline, measured, f8 limiter, density: {found['instructions']:.1f} instructions, "
        f"{found['cycles']:.1f} cycles and {LINE_BYTES * found['cache-misses']:.1f} bytes by cache "
        f"misses that waited for memory, a cell and step"
    )


if __name__ == "__main__":
    print(json.dumps({name: count(*case) for name, case in CASES.items()}))
