"""Loops that do nothing but operate on data in the first-level cache: what bounds a kernel."""

from __future__ import annotations

from mpdata.numerics.numba.inlined import Array, entry

CHAIN = 4
"""How often :func:`operate` adds, multiplies and takes the larger of every item."""


@entry
def operate(out: Array, a: Array, b: Array, times: int) -> None:
    """Add, multiply and take the larger, in turn."""
    for _ in range(times):
        for i in range(out.size):
            x = out[i]
            for _ in range(CHAIN):
                x = max((x + a[i]) * b[i], a[i])
            out[i] = x


@entry
def divide(out: Array, upper: Array, lower: Array, times: int) -> None:
    """Divide."""
    for _ in range(times):
        for i in range(out.size):
            out[i] = upper[i] / lower[i]
        upper[0] += out[0]
