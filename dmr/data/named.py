"""Many fields at once, by the names of their dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dmr.data.distributed import Ranges
from dmr.data.field import FieldSpec, adapt, host_array

Cells = int | tuple[int, int]
"""Cells of halo on both sides of a dimension, or (below, above)."""


def adapt_all(
    arrays: Mapping[str, Any],
    cut: Collection[str],
    shape: Mapping[str, int],
    *,
    halo: int | Mapping[str, Cells] = 0,
    edge: int | Mapping[str, Cells] | None = None,
    ranges: Ranges | None = None,
    grid: Callable[[int], Sequence[int]] | None = None,
    row_major: bool = False,
) -> dict[str, FieldSpec]:
    """State fields by the names of their dimensions::

        fields = dmr.adapt_all(
            {"temp": (temp, ("x", "y", "z")), "depth": (depth, ("x", "y"))},
            cut={"x"}, shape={"x": 360, "y": 160}, halo={"x": 2, "y": 2},
        )

    Args:
        arrays: for each field ``(array, dimensions)``, or ``(get, set, dimensions)`` as of
            :func:`dmr.adapt`, or ``(holder, name, dimensions)`` for an attribute of an object that
            replaces its array, or an object with ``values`` and ``dims`` (``xarray.DataArray``).
        cut: dimensions that are cut over the ranks. An array without any is whole on every rank,
            and so is a scalar: an array of no dimensions, or what ``get`` returns, as one cell.
        shape: global extent in cells, without halo, of each dimension that is cut. That of others
            is by default the array's own.
        halo: cells of halo by dimension, 0 for those that are not named; a number for all of
            ``cut``.
        edge: cells beyond the edge of the domain, if not as many as ``halo``, stated alike.
        ranges, grid, row_major: as of :func:`dmr.adapt`.

    Raises:
        ValueError: a dimension of ``cut`` is in no array or not in ``shape``, an array has other
            dimensions than are named, or :func:`dmr.adapt` refuses it.
    """
    fields: dict[str, FieldSpec] = {}
    known: dict[str, None] = {}
    for name, stated in arrays.items():
        try:
            given, dims = _given(stated)
            array = host_array(given["array"] if "array" in given else given["get"]())
            if len(dims) != array.ndim:
                raise ValueError(f"expected names of {array.ndim} dimensions, got {dims}")
            known.update(dict.fromkeys(dims))
            if not dims:
                given, dims, array = _as_one_cell(given), ("",), array.reshape(1)
            halos = [_cells(halo, cut, dim) for dim in dims]
            edges = halos if edge is None else [_cells(edge, cut, dim) for dim in dims]
            extents = [
                shape[dim] if dim in shape else _own(dim, cut, shape, cells - sum(sides))
                for dim, cells, sides in zip(dims, array.shape, edges, strict=True)
            ]
            fields[name] = adapt(
                **given,
                shape=tuple(extents),
                halo=halos,
                edge=None if edge is None else edges,
                split=tuple(axis for axis, dim in enumerate(dims) if dim in cut),
                ranges=ranges,
                grid=grid if any(dim in cut for dim in dims) else None,
                row_major=row_major,
            )
        except ValueError as error:
            raise ValueError(f"field {name}: {error}") from None
    for what, names in (("cut", cut), ("halo", halo), ("edge", edge)):
        missing = [] if names is None or isinstance(names, int) else [*{*names} - {*known}]
        if missing:
            raise ValueError(
                f"expected {what} to name dimensions of the arrays ({', '.join(known)}), "
                f"got {', '.join(sorted(missing))}"
            )
    return fields


def _given(stated: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the data of a field as arguments of :func:`dmr.adapt`, and its dimensions."""
    if hasattr(stated, "dims") and hasattr(stated, "values"):
        return {"array": stated.values}, tuple(stated.dims)
    if isinstance(stated, tuple) and len(stated) in (2, 3):
        *given, dims = stated
        names = ("array",) if len(given) == 1 else ("get", "set")
        if len(given) == 2 and isinstance(given[1], str):
            if not hasattr(*given):
                kind = type(given[0]).__name__
                raise ValueError(f"expected an object with an attribute {given[1]}, got {kind}")
            given = [partial(access, *given) for access in (getattr, setattr)]
        return dict(zip(names, given, strict=True)), (dims,) if isinstance(dims, str) else (*dims,)
    raise ValueError(
        "expected (array, dimensions), (get, set, dimensions) or (holder, name, dimensions), got "
        f"{type(stated).__name__}"
    )


def _as_one_cell(given: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a field without dimensions as those of a field of one cell."""
    if "array" in given:
        if not isinstance(given["array"], np.ndarray):
            kind = type(given["array"]).__name__
            raise ValueError(f"expected an array, or get and set, for a scalar, got {kind}")
        return {"array": given["array"].reshape(1)}
    get, put = given["get"], given["set"]
    return {"get": lambda: host_array(get()).reshape(1), "set": lambda a: put(a.reshape(()))}


def _cells(stated: int | Mapping[str, Cells], cut: Collection[str], dim: str) -> tuple[int, int]:
    """Return the cells of halo below and above a dimension."""
    if isinstance(stated, int):
        sides: Cells = stated if dim in cut else 0
    else:
        sides = stated.get(dim, 0)
    return (sides, sides) if isinstance(sides, int) else sides


def _own(dim: str, cut: Collection[str], shape: Mapping[str, int], cells: int) -> int:
    """Return the extent of a dimension that is not stated: the array's own, if it is not cut."""
    if dim in cut:
        raise ValueError(
            f"expected the extent of {dim}, which is cut, in shape, got {', '.join(shape) or '{}'}"
        )
    return cells
