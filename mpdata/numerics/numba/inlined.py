"""The formulas of :mod:`mpdata.numerics.formulas`, compiled into whatever calls them.

Their text is compiled as it stands; the operations that it begins with are exchanged for those of
single values below. LLVM may neither contract nor reorder floating-point operations. A processor
without fused multiply-adds computes the same bits: there LLVM calls libm's ``fma``, which makes a
step some ten times slower.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numba
from numba.core import types
from numba.core.compiler import Compiler
from numba.extending import intrinsic, overload

from mpdata.numerics import formulas

Array = Any


class NoAlias(Compiler):
    """Tells LLVM that array arguments do not overlap, which saves checks at every row."""

    def define_pipelines(self) -> Any:
        """Return the usual pipelines, with the flag where this Numba has it."""
        if hasattr(self.state.flags, "noalias"):
            self.state.flags.noalias = True
        return super().define_pipelines()


OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "fastmath": False,
    "pipeline_class": NoAlias,
}


def entry(function: Any) -> Any:
    """Compile a kernel; kernel_cache.py keeps it on disk."""
    njit: Any = numba.njit
    return njit(**OPTIONS)(function)


def inline(function: Any) -> Any:
    """Compile into whatever calls it: loops are too short for calls with many arguments."""
    njit: Any = numba.njit
    return njit(forceinline=True, **OPTIONS)(function)


def optional(function: Any) -> Any:
    """Compile into whatever calls it; with an argument that is None the function returns None.

    Chosen by types: a branch would make a value of it that may be None.
    """
    config: Any = numba.config
    if config.DISABLE_JIT:
        return lambda *given: None if any(one is None for one in given) else function(*given)

    def chosen(*given: Any) -> Any:
        absent = any(isinstance(one, types.NoneType) for one in given)
        return (lambda *given: None) if absent else function

    options: Any = {name: OPTIONS[name] for name in ("error_model", "boundscheck", "fastmath")}
    options["forceinline"] = True
    overload(function, jit_options=options, strict=False)(chosen)
    return function


# --- Operations on single values --------------------------------------------------------------


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once."""
    if not (isinstance(a, types.Float) and a == b == c):
        raise TypeError(f"expected three numbers of one type, got {a}, {b}, {c}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


@inline
def real(number: Any, like: Any) -> Any:
    """Return a constant in the type of another value."""
    return type(like)(number)


@inline
def select(condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two values."""
    return yes if condition else no


@inline
def largest(a: Any, b: Any) -> Any:
    """Return the larger value; of two zeros the second."""
    return a if a > b else b


@inline
def least(a: Any, b: Any) -> Any:
    """Return the smaller value; of two zeros the second."""
    return a if a < b else b


@entry
def fma_of_items(out: Array, a: Array, b: Array, c: Array) -> None:
    """Set ``out`` to a b + c, item by item: NumPy's way to the instruction."""
    for item in range(out.size):
        out[item] = fma(a[item], b[item], c[item])


# --- The formulas -----------------------------------------------------------------------------

NAMES: dict[str, Any] = {
    **vars(formulas),
    **{f.__name__: f for f in (real, select, largest, least)},
    "fma": fma,
}
"""What the formulas' text refers to when it is compiled."""


def compiled(function: Any, by: Any = inline) -> Any:
    """Return a formula that refers to compiled ones."""
    twin = FunctionType(function.__code__, NAMES, function.__name__)
    NAMES[function.__name__] = by(twin)
    return NAMES[function.__name__]


for _name in ("upwind", "total", "above", "below", "per_density", "per_psi", "mixed"):
    compiled(getattr(formulas, _name))
for _name in ("basic_velocity", "third_order", "divergent_flow"):
    compiled(getattr(formulas, _name))

donor_cell_outflow = compiled(formulas.donor_cell_outflow)
updated = compiled(formulas.updated)
density_at_face = compiled(formulas.density_at_face, optional)
pseudo_velocity = compiled(formulas.pseudo_velocity)
advective_flux = compiled(formulas.advective_flux)
outflow = compiled(formulas.outflow)
into = compiled(formulas.into)
out_of = compiled(formulas.out_of)
betas = compiled(formulas.betas)
allowed = compiled(formulas.allowed)
