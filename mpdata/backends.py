"""Backends: a small value chosen once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mpdata.errors import InputError
from mpdata.flow import Flow
from mpdata.geometry import Geometry
from mpdata.numerics.step import ReferenceStepper, Stepper
from mpdata.options import Scheme

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


def make_stepper(
    name: str,
    geometry: Geometry,
    scheme: Scheme,
    flow: Flow,
    allocate: Callable[[], Any],
    threads: int = 1,
) -> Stepper:
    """Return a backend's scheme on one block whose arrays are laid out as ``allocate`` does."""
    if name == "numpy" or not geometry.active:
        return ReferenceStepper(geometry, scheme, flow.h, allocate)
    # Imported where chosen: who uses NumPy should not pay half a second for Numba.
    from mpdata.numerics.numba_backend import NumbaStepper

    return NumbaStepper(geometry, scheme, flow.h, allocate, threads)
