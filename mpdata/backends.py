"""Backends: a small value chosen once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mpdata.errors import InputError
from mpdata.geometry import Geometry
from mpdata.numerics.step import Kernels, NumpyKernels

BACKENDS = ("numpy", "numba")


def choose_backend(name: str) -> str:
    """Return the backend meant by ``name``, loaded: a new world should do that while it boots.

    Raises:
        InputError: no such backend in this version.
    """
    if name == "auto":
        name = "numba"
    if name == "cupy":
        raise InputError("backend cupy is not in this version; expected auto, numpy or numba")
    if name not in BACKENDS:
        raise InputError(f"expected a backend of auto, {', '.join(BACKENDS)}, got {name!r}")
    if name == "numba":
        import_module("mpdata.numerics.numba_backend")
    return name


def make_kernels(name: str, geometry: Geometry, like: Any, threads: int) -> Kernels:
    """Return a backend's formulas for one block whose arrays are laid out as ``like``."""
    if name == "numpy" or not geometry.active:
        return NumpyKernels(geometry)
    # Imported where chosen: who uses NumPy should not pay half a second for Numba.
    from mpdata.numerics.numba_backend import NumbaKernels

    n, m, el = (stride // like.itemsize for stride in like.strides)
    return NumbaKernels(geometry, (n, m, el), threads)
