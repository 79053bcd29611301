"""A box of 1 in 0 had values below 0 after 50 steps, and mpdata refused its own result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpdata import Scheme, Setup, Solver, parse_boundaries
from mpdata.cases.arrays import array_case
from mpdata.errors import InputError
from mpdata.options import EPSILON
from mpdata.parallel.config import RunConfig

GRID = (16, 12, 32)
COURANT = (0.4, 0.3, 0.3)
PERIODIC = parse_boundaries("periodic")


def box(value: float, low: float = 0.0) -> Setup:
    psi = np.full(GRID, low)
    psi[4:9, 3:8, 8:20] = value

    def face(axis: int, *_: Any) -> float:
        return COURANT[axis]

    def one(*_: Any) -> float:
        return 1.0

    return Setup("box", GRID, PERIODIC, lambda *_: psi, one, face, True, None)


def refusal(setup: Setup, dtype: str, psi: np.ndarray[Any, Any]) -> str | None:
    config = RunConfig(setup, Scheme(), np.dtype(dtype), "numpy")
    return config.refusal("psi", float(psi.min()), float(psi.max()))


@pytest.mark.parametrize(("dtype", "value"), [("f4", 1.0), ("f8", 1000.0), ("f8", 1e30)])
def test_a_result_is_read_back(tmp_path: Path, dtype: str, value: float) -> None:
    solver = Solver(box(value), dtype=dtype, backend="numpy")
    solver.advance(50)
    psi = solver.psi
    size = np.dtype(dtype).itemsize
    assert -EPSILON[size] * value < psi.min() < 0.0  # what docs/mpdata/scheme.md states
    faces = {"c1": (17, 12, 32), "c2": (16, 13, 32), "c3": (16, 12, 33)}
    flow = {
        name: np.full(shape, c) for (name, shape), c in zip(faces.items(), COURANT, strict=True)
    }
    np.savez(tmp_path / "result.npz", psi=psi, **flow)
    again = array_case(tmp_path / "result.npz", PERIODIC, 50)
    for into in ("f4", "f8") if dtype == "f4" else ("f8",):
        assert refusal(again, into, psi) is None
        Solver(again, dtype=into, backend="numpy")


def test_what_is_left_of_psi_that_has_left_the_domain_is_read_back() -> None:
    setup = replace(box(1.0), boundaries=parse_boundaries("fixed:0"))
    solver = Solver(setup, dtype="f4", backend="numpy")
    solver.advance(60)
    tiny = np.finfo("f4").tiny
    assert -tiny < solver.psi.min() < 0.0 < solver.psi.max() < tiny
    assert refusal(setup, "f4", solver.psi) is None


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_negative_values_below_the_smallest_normal_number_are_read_back(dtype: str) -> None:
    half = np.finfo(dtype).tiny / 2
    assert refusal(box(1.0), dtype, np.array([-half, half], dtype)) is None
    assert refusal(box(1.0), dtype, 4 * np.array([-half, half], dtype)) is not None


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_field_of_both_signs_is_refused(dtype: str) -> None:
    setup = box(1.0, low=-1e-3)
    message = refusal(setup, dtype, np.asarray(setup.initial(*np.indices((1, 1, 1)))))
    assert message is not None and message.startswith("expected psi of one sign")
    with pytest.raises(InputError, match="expected psi of one sign"):
        Solver(setup, dtype=dtype, backend="numpy")
    if dtype == "f8":
        slight = box(1.0, low=-1e-6)  # round-off of float32, but not of float64
        Solver(replace(slight, single=True), dtype=dtype, backend="numpy")
        with pytest.raises(InputError, match="expected psi of one sign"):
            Solver(slight, dtype=dtype, backend="numpy")
