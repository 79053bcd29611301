"""3D MPDATA advection: NumPy reference, Numba on CPUs, malleable under MPI."""

from mpdata.cases import Request, Setup, array_case, make_setup
from mpdata.errors import InputError
from mpdata.options import Boundary, Scheme, parse_boundaries
from mpdata.solver import Solver
from rms._version import __version__

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
