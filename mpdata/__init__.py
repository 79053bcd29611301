"""3D MPDATA advection: NumPy reference, Numba on CPUs, malleable under MPI.

Names are loaded when first used: a rank of ``mpdata run`` needs few of them, and boots sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rms._version import __version__

if TYPE_CHECKING:
    from mpdata.cases import Request, Setup, array_case, make_setup
    from mpdata.errors import InputError
    from mpdata.options import Boundary, Scheme, parse_boundaries
    from mpdata.solver import Solver

_HOMES = {
    "Boundary": "options",
    "InputError": "errors",
    "Request": "cases",
    "Scheme": "options",
    "Setup": "cases",
    "Solver": "solver",
    "array_case": "cases",
    "make_setup": "cases",
    "parse_boundaries": "options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpdata' has no attribute {name!r}")
    return getattr(import_module(f"mpdata.{_HOMES[name]}"), name)


__all__ = [
    "Boundary",
    "InputError",
    "Request",
    "Scheme",
    "Setup",
    "Solver",
    "__version__",
    "array_case",
    "make_setup",
    "parse_boundaries",
]
