"""Comparisons with a tolerance, for ``dmr check --tolerance``.

Numbers are close if they differ by no more than the tolerance times the larger of the two; arrays,
if no items differ by more than the tolerance times the largest item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmr.state.values import ValuesError, decode_values

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b[-+]?(?:nan|inf)\b")

PART_ITEMS = 1 << 20
"""Items of an array that are compared at a time."""


def close_lines(lines: Sequence[str], others: Sequence[str], tolerance: float) -> list[str]:
    """Return the lines that are not among others, each once; numbers may differ a little."""
    present = set(others)
    missing = [line for line in dict.fromkeys(lines) if line not in present]
    if not tolerance or not missing:
        return missing
    alike: dict[str, list[npt.NDArray[np.float64]]] = {}
    for line in present:
        alike.setdefault(NUMBER.sub("#", line), []).append(_numbers(line))
    return [
        line
        for line in missing
        if not any(
            _each_close(_numbers(line), other, tolerance)
            for other in alike.get(NUMBER.sub("#", line), ())
        )
    ]


def close_texts(one: bytes, other: bytes, tolerance: float) -> bool:
    """Return whether two files are texts of the same lines, in order, or arrays (``.npy``)."""
    try:
        pairs = list(zip(one.decode().splitlines(), other.decode().splitlines(), strict=True))
    except UnicodeDecodeError:
        return False
    except ValueError:  # of another number of lines
        return False
    return all(
        mine == theirs or not close_lines([mine], [theirs], tolerance) for mine, theirs in pairs
    )


def close_arrays(one: Path, other: Path, tolerance: float) -> bool:
    """Return whether two files of NumPy hold about the same array."""
    mine, theirs = (np.load(path, mmap_mode="r", allow_pickle=False) for path in (one, other))
    return _close(mine, theirs, tolerance)


def close_values(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two encoded values of the state are about the same."""
    try:
        pair = [decode_values(*encoded, trusted=True) for encoded in (one, other)]
    except (TypeError, ValuesError):
        return False
    return _values_close(pair[0], pair[1], tolerance)


def _numbers(line: str) -> npt.NDArray[np.float64]:
    return np.array([float(number) for number in NUMBER.findall(line)])


def _each_close(
    one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], tolerance: float
) -> bool:
    return all(_close(*pair, tolerance) for pair in zip(one, other, strict=True))


def _values_close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _values_close(one[key], other[key], tolerance) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            _values_close(*pair, tolerance) for pair in zip(one, other, strict=True)
        )
    kinds = int | float | complex | np.generic | np.ndarray
    if isinstance(one, kinds) and isinstance(other, kinds):
        return _close(np.asarray(one), np.asarray(other), tolerance)
    return type(one) is type(other) and bool(one == other)


def _close(one: Any, other: Any, tolerance: float) -> bool:
    mine, theirs = np.asanyarray(one), np.asanyarray(other)
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if mine.dtype.names is not None:
        return all(_close(mine[name], theirs[name], tolerance) for name in mine.dtype.names)
    if mine.dtype.kind not in "biufc":
        return bool(np.array_equal(mine, theirs))
    largest, difference = 0.0, 0.0
    mine, theirs = mine.reshape(-1), theirs.reshape(-1)
    for at in range(0, mine.size, PART_ITEMS):
        parts = [part[at : at + PART_ITEMS] for part in (mine, theirs)]
        finite = np.isfinite(parts[0])
        mine_else, theirs_else = (part[~finite] for part in parts)
        if not np.array_equal(mine_else, theirs_else, equal_nan=True):
            return False
        if not np.isfinite(parts[1][finite]).all():
            return False
        kind = np.result_type(mine.dtype, np.float64)
        a, b = (part[finite].astype(kind) for part in parts)
        if a.size:
            largest = max(largest, float(np.abs(a).max()), float(np.abs(b).max()))
            difference = max(difference, float(np.abs(a - b).max()))
    return difference <= tolerance * largest
