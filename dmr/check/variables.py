"""Variables of a program that it has not declared, for ``dmr check`` to name what was forgotten."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from dmr.state.values import ValuesError, digest

NUMBERS = bool | int | float | complex | np.number | np.bool_
GENERATORS = np.random.Generator | np.random.RandomState | random.Random

MOST_BYTES = 256 << 20
"""Larger arrays are not hashed."""

MOST_ITEMS, MOST_DEPTH = 10_000, 4
"""Larger lists and dictionaries are not hashed."""


LIBRARY = str(Path(__file__).parents[1]) + os.sep


def calling_frame() -> FrameType | None:
    """Return the frame of the program that has called the library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY) and file != contextlib.__file__:
            break
        frame = frame.f_back
    return frame


def variables_of(frame: FrameType, declared: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of every variable of a function, or of a module, that is not declared.

    Of objects of the program's own classes these are the attributes.

    Args:
        declared: fields and values of the state by name.
    """
    module = str(frame.f_globals.get("__name__", ""))
    return digests_of_names(frame.f_locals, declared, module)


def digests_of_names(
    names: Mapping[str, Any], declared: Mapping[str, Any], module: str
) -> dict[str, str]:
    """Return the hash of every named value that is not declared; see :func:`variables_of`."""
    arrays = [one for value in declared.values() for one in _arrays(value)]
    values = {id(value) for value in declared.values()}
    digests = {}
    for name, value in _named(names, module):
        if name in declared or id(value) in values or not _is_data(value):
            continue
        if any(np.may_share_memory(*pair) for pair in _pairs(value, arrays)):
            continue
        with contextlib.suppress(ValuesError, RecursionError):
            digests[name] = digest(name, value)
    return digests


def _named(names: Mapping[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values, of objects of a module's classes those of the attributes."""
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue
        yield name, value
        if type(value).__module__ == module and not isinstance(value, type):
            for own, attribute in list(getattr(value, "__dict__", {}).items()):
                yield f"{name}.{own}", attribute


def _is_data(value: Any, depth: int = 0) -> bool:
    """Return whether a value is numbers, arrays and random generators only."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and value.nbytes <= MOST_BYTES
    if isinstance(value, list | tuple | dict):
        parts = list(value.values() if isinstance(value, dict) else value)
        small = len(parts) <= MOST_ITEMS and depth < MOST_DEPTH
        return small and all(isinstance(one, str) or _is_data(one, depth + 1) for one in parts)
    return isinstance(value, NUMBERS | GENERATORS)


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays of a field, or within a value of the state."""
    storage = getattr(value, "storage", value)
    if isinstance(storage, np.ndarray):
        yield storage
    elif isinstance(storage, list | tuple | dict):
        for one in storage.values() if isinstance(storage, dict) else storage:
            yield from _arrays(one) if one is not value else ()


def _pairs(value: Any, arrays: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, np.ndarray):
        for array in arrays:
            yield value, array
