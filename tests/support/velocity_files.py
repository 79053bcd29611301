"""Flows that change in time, as functions and as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mpdata.cases import Setup
from mpdata.cases.setup import open_mesh

Array = npt.NDArray[Any]
Function = Callable[..., Any]


def shape_of(grid: Sequence[int], axis: int) -> list[int]:
    return [n + (a == axis) for a, n in enumerate(grid)]


def levels_of(grid: Sequence[int], times: Sequence[float], face_at: Function) -> dict[str, Array]:
    """Return the arrays of a velocity file: time, c1, c2, c3."""
    arrays = {"time": np.array(times, float)}
    for axis in range(3):
        shape = shape_of(grid, axis)
        mesh = open_mesh(*(np.arange(n) for n in shape))
        values = [np.broadcast_to(face_at(axis, time, *mesh), shape) for time in times]
        arrays[f"c{axis + 1}"] = np.array(values, float)
    return arrays


def write_levels(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


def swinging(setup: Setup) -> Function:
    """Return a little of the case's flow, growing and falling in time, rough in space."""

    def face_at(axis: int, time: float, i: Any, j: Any, k: Any) -> Any:
        return (0.02 + 0.004 * time * (axis - 1)) * setup.face(axis, i, j, k)

    return face_at
