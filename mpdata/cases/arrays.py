"""The user's own arrays instead of a case: from memory, or ``--input FILE.npz|FILE.h5``."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import (
    Array,
    CellFunction,
    Index,
    Setup,
    fingerprint,
    tracer_names,
    unit_density,
)
from mpdata.errors import InputError
from mpdata.options import Boundaries, BoundaryPair, parse_boundaries

UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What NumPy and HDF5 raise for files that are not theirs, cut off or damaged."""

FLOW = ("c1", "c2", "c3", "h")


def memory_case(
    psi: npt.ArrayLike,
    face_values: Sequence[npt.ArrayLike | None],
    h: npt.ArrayLike | None = None,
    boundaries: str | Sequence[str | BoundaryPair] = "periodic",
) -> Setup:
    """Return the case of arrays of 1 to 3 axes; the parameters are those of ``Solver.of``.

    Raises:
        InputError: arrays that do not fit together, or boundaries that they cannot have.
    """
    field = _numbers(psi, "psi")
    if not 1 <= field.ndim <= 3 or field.size == 0:
        raise InputError(f"expected psi of 1 to 3 axes of at least 1 cell, got shape {field.shape}")
    text = boundaries if isinstance(boundaries, str) else ",".join(map(str, boundaries))
    pairs = parse_boundaries(text, field.ndim)
    number = len(face_values) if isinstance(face_values, Sequence) else "no sequence"
    if number != field.ndim:
        raise InputError(
            f"expected a sequence of face values, one for each axis of psi ({field.ndim}), got "
            f"{number}"
        )
    flat = (1,) * (3 - field.ndim)
    faces = [
        _faces(values, axis, field.shape, pairs[axis]) for axis, values in enumerate(face_values)
    ]
    data = {f"c{axis + 1}": array for axis, array in enumerate(faces)}
    data |= {"psi": field, "h": _numbers(1.0 if h is None else h, "h")}
    if data["h"].ndim and data["h"].shape != field.shape:
        raise InputError(f"expected h of shape {field.shape}, got {data['h'].shape}")
    data["h"] = np.broadcast_to(data["h"], field.shape)
    data = {name: array.reshape(*array.shape, *flat) for name, array in data.items()}

    def cells(name: str, i: Index, j: Index, k: Index) -> Array:
        return checked(data[name][i, j, k], name, (i, j, k), positive=name == "h")

    n, m, el = data["psi"].shape
    return Setup(
        "arrays",
        (n, m, el),
        pairs,
        initial=lambda i, j, k: cells("psi", i, j, k),
        density=unit_density if h is None else lambda i, j, k: cells("h", i, j, k),
        face=lambda axis, i, j, k: cells(f"c{axis + 1}", i, j, k),
        extends=False,
        steps=None,
        single=field.dtype == np.float32,
    )


def _numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"expected an array of numbers in {name}, got rows that differ") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"expected numbers in {name}, got {array.dtype}")
    return array


def _faces(
    values: npt.ArrayLike | None, axis: int, shape: tuple[int, ...], pair: BoundaryPair
) -> npt.NDArray[Any]:
    """Return the face values normal to an axis, first and last face included."""
    name = f"c{axis + 1}"
    full = tuple(n + (a == axis) for a, n in enumerate(shape))
    also = f" or, since axis {axis} is periodic, {shape}" if pair.periodic else ""
    expected = f"expected {name} of shape {full}{also}, got"
    if values is None:
        if shape[axis] > 1:
            raise InputError(f"{expected} none")
        return np.zeros(full)
    array = _numbers(values, name)
    if array.ndim == 0:
        return np.full(full, array)
    if pair.periodic and array.shape == shape:
        return np.concatenate([array, array.take([0], axis)], axis)
    if array.shape != full:
        raise InputError(f"{expected} {array.shape}")
    return array


def array_case(
    path: Path, boundaries: Boundaries, steps: int | None, tracers: int = 1, *, flow: bool = True
) -> Setup:
    """Return the case held in a file with psi, c1, c2, c3 and, if wanted, h.

    Shapes: psi and h (N, M, L), c1 (N+1, M, L), c2 (N, M+1, L), c3 (N, M, L+1); the face values
    of an axis of one cell may be missing, and all where ``flow`` is False since they come from
    elsewhere. Further tracers are psi2, psi3, ... HDF5 is read block by block, .npz by the
    whole array.

    Raises:
        InputError: not such a file, or arrays that do not fit together.
    """
    if tracers < 1:
        raise InputError(f"expected at least 1 tracer, got {tracers}")
    names = tracer_names(tracers)
    data = _open(path, (*names, *FLOW))
    for name in names:
        if name not in data:
            raise InputError(f"expected {name} in {path}, got {', '.join(data) or 'nothing'}")
    n, m, el = _fitting(data, names, path, flow=flow)

    def cells(name: str, i: Index, j: Index, k: Index) -> Array:
        try:
            values = pick(data[name], i.ravel(), j.ravel(), k.ravel())
        except OSError as error:
            raise InputError(f"expected arrays in {path}, which cannot be read: {error}") from None
        return checked(values, name, (i, j, k), positive=name == "h")

    def field(name: str) -> CellFunction:
        return lambda i, j, k: cells(name, i, j, k)

    return Setup(
        f"input:{path.name}",
        (n, m, el),
        boundaries,
        initial=field("psi"),
        density=field("h") if "h" in data else unit_density,
        face=lambda axis, i, j, k: cells(f"c{axis + 1}", i, j, k),
        extends=False,
        steps=steps,
        identity=(("input", fingerprint(path)),),
        further_tracers=tuple(field(name) for name in names[1:]),
        single=any(np.dtype(data[name].dtype) == np.float32 for name in names),
    )


def _fitting(
    data: Mapping[str, Any], names: list[str], path: Path, *, flow: bool
) -> tuple[int, int, int]:
    """Return the grid of arrays that fit together.

    Raises:
        InputError: they do not; it says which.
    """
    grid = tuple(data["psi"].shape)
    if len(grid) != 3:
        raise InputError(f"expected psi of shape (N, M, L), got {grid} in {path}")
    if min(grid) < 1:
        raise InputError(f"expected at least 1 cell on every axis, got {grid} in {path}")
    n, m, el = grid
    wanted = dict.fromkeys((*names[1:], "h"), (n, m, el))
    wanted |= {"c1": (n + 1, m, el), "c2": (n, m + 1, el), "c3": (n, m, el + 1)}
    for name, shape in wanted.items():
        if name in data and tuple(data[name].shape) != shape:
            raise InputError(
                f"expected {name} of shape {shape}, got {tuple(data[name].shape)} in {path}"
            )
        face = name in ("c1", "c2", "c3")
        if name not in data and face and flow and grid[int(name[1]) - 1] > 1:
            raise InputError(f"expected {name} of shape {shape}, got none in {path}")
    for name in data:
        if np.dtype(data[name].dtype).kind not in "fiu":
            raise InputError(f"expected numbers in {name}, got {data[name].dtype} in {path}")
    return n, m, el


def checked(
    values: Array, name: str, mesh: tuple[Index, Index, Index], *, positive: bool = False
) -> Array:
    """Return values picked on an open mesh, if they are all finite (and positive).

    Raises:
        InputError: one is not; it says where.
    """
    wrong = ~np.isfinite(values)
    if positive:
        wrong |= values <= 0
    if wrong.any():
        at = np.argwhere(wrong)[0]
        where = tuple(int(x.ravel()[a]) for x, a in zip(mesh, at, strict=True))
        kind = "positive numbers" if positive else "finite numbers"
        raise InputError(f"expected {kind} in {name}, got {values[tuple(at)]:g} at {where}")
    return values


def _open(path: Path, names: tuple[str, ...]) -> Mapping[str, Any]:
    import h5py  # not before it is needed: every world that boots would pay for it

    if not path.is_file():
        raise InputError(f"expected an input file, got {path}, which does not exist")
    try:
        if path.suffix == ".npz":
            with path.open("rb") as stream:
                archive = np.load(stream, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("a single array")
                return {name: archive[name] for name in names if name in archive}
        if path.suffix in (".h5", ".hdf5"):
            file = h5py.File(path, "r", locking=False)
            return {name: file[name] for name in names if isinstance(file.get(name), h5py.Dataset)}
    except UNREADABLE as error:
        raise InputError(f"expected arrays in {path}, which cannot be read: {error}") from None
    raise InputError(f"expected an input file ending in .npz or .h5, got {path}")


def pick(source: Any, i: Index, j: Index, k: Index, first: tuple[int, ...] = ()) -> Array:
    """Return ``source[*first, i, j, k]`` on a mesh of index vectors, reading only what it needs.

    Raises:
        OSError: the file cannot be read there.
    """
    wanted = [np.unique(index, return_inverse=True) for index in (i, j, k)]
    values = np.empty([unique.size for unique, _ in wanted])
    for x, where_x in _runs(wanted[0][0]):
        for y, where_y in _runs(wanted[1][0]):
            for z, where_z in _runs(wanted[2][0]):
                values[where_x, where_y, where_z] = source[(*first, x, y, z)]
    return values[np.ix_(*(inverse for _, inverse in wanted))]


def _runs(unique: Index) -> list[tuple[slice, slice]]:
    """Cut rising indices into runs of neighbours: (slice of the source, slice of the result)."""
    cuts = np.flatnonzero(np.diff(unique) > 1) + 1
    runs, at = [], 0
    for part in np.split(unique, cuts):
        runs.append((slice(int(part[0]), int(part[-1]) + 1), slice(at, at + part.size)))
        at += part.size
    return runs
