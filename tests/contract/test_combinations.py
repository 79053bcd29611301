"""Backends against the reference on rough fields, for rows that cover all pairs of options.

``pytest tests/contract/test_combinations.py --all-combinations`` runs every combination.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from combinations import Combination, rough
from cuda_on_host import build_in, compiler, kept

from mpdata.cases import Setup
from mpdata.numerics.cuda.job import GpuTile
from mpdata.numerics.cuda.stepper import CudaStepper
from mpdata.options import Scheme
from mpdata.solver import Solver, padded_zeros

Array = npt.NDArray[Any]
Answer = Callable[[Setup, Scheme, str, int], Array]

EXTENTS = (7, 6, 5)
STEPS = 3


def by_solver(backend: str) -> Answer:
    """Return what the public solver gives with a backend."""

    def answer(setup: Setup, scheme: Scheme, dtype: str, steps: int) -> Array:
        solver = Solver(setup, scheme, dtype, backend)
        solver.advance(steps)
        return solver.psi

    return answer


def by_cuda_source(setup: Setup, scheme: Scheme, dtype: str, steps: int) -> Array:
    """Return what the CUDA source gives that is built for the host."""
    if compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    solver = Solver(setup, scheme, dtype, "numpy")
    geo, h = solver.geometry, solver.flow.h
    allocate, build = partial(padded_zeros, geo, h.dtype), build_in(kept(os.environ))
    stepper = CudaStepper(geo, scheme, h, allocate, build, tile=GpuTile(8, 7, chunk=3))
    vars(solver)["_stepper"] = stepper
    solver.advance(steps)
    return solver.psi


reference = by_solver("numpy")
ANSWERS: dict[str, Answer] = {"numba": by_solver("numba"), "cuda-on-host": by_cuda_source}
"""Every other way to compute a step; whoever adds a backend adds a line."""


@pytest.mark.parametrize("backend", ANSWERS)
@pytest.mark.promise("backends")
def test_a_backend_gives_the_bits_of_the_reference(combination: Combination, backend: str) -> None:
    scheme, dtype = combination.scheme, combination.dtype
    for signs in (False, True) if scheme.any_sign else (False,):
        setup = rough(combination, EXTENTS, signs=signs)
        wanted = reference(setup, scheme, dtype, STEPS)
        found = ANSWERS[backend](setup, scheme, dtype, STEPS)
        assert found.dtype == wanted.dtype == np.dtype(dtype)
        assert np.isfinite(wanted).all()
        assert found.tobytes() == wanted.tobytes()
