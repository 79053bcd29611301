"""The user's own arrays instead of a case: ``--input FILE.npz|FILE.h5``."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpdata.cases.setup import Array, Index, Setup, fingerprint, unit_density
from mpdata.errors import InputError
from mpdata.options import Boundaries

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

NAMES = ("psi", "c1", "c2", "c3", "h")


def array_case(path: Path, boundaries: Boundaries, steps: int | None) -> Setup:
    """Return the case held in a file with psi, c1, c2, c3 and, if wanted, h.

    Shapes: psi and h (N, M, L), c1 (N+1, M, L), c2 (N, M+1, L), c3 (N, M, L+1); the face values
    of an axis of one cell may be missing. HDF5 is read block by block, .npz by the whole array.

    Raises:
        InputError: not such a file, or arrays that do not fit together.
    """
    data = _open(path)
    if "psi" not in data:
        raise InputError(f"expected psi in {path}, got {', '.join(data) or 'nothing'}")
    grid = tuple(data["psi"].shape)
    if len(grid) != 3:
        raise InputError(f"expected psi of shape (N, M, L), got {grid} in {path}")
    if min(grid) < 1:
        raise InputError(f"expected at least 1 cell on every axis, got {grid} in {path}")
    n, m, el = grid
    wanted = {"h": (n, m, el), "c1": (n + 1, m, el), "c2": (n, m + 1, el), "c3": (n, m, el + 1)}
    for name, shape in wanted.items():
        if name in data and tuple(data[name].shape) != shape:
            raise InputError(
                f"expected {name} of shape {shape}, got {tuple(data[name].shape)} in {path}"
            )
        if name not in data and name != "h" and grid[int(name[1]) - 1] > 1:
            raise InputError(f"expected {name} of shape {shape}, got none in {path}")
    for name in data:
        if np.dtype(data[name].dtype).kind not in "fiu":
            raise InputError(f"expected numbers in {name}, got {data[name].dtype} in {path}")

    def cells(name: str, i: Index, j: Index, k: Index) -> Array:
        try:
            values = _pick(data[name], i.ravel(), j.ravel(), k.ravel())
        except OSError as error:
            raise InputError(f"expected arrays in {path}, which cannot be read: {error}") from None
        wrong = ~np.isfinite(values)
        if name == "h":
            wrong |= values <= 0
        if wrong.any():
            at = np.argwhere(wrong)[0]
            where = tuple(int(x.ravel()[a]) for x, a in zip((i, j, k), at, strict=True))
            kind = "positive numbers" if name == "h" else "finite numbers"
            raise InputError(f"expected {kind} in {name}, got {values[tuple(at)]:g} at {where}")
        return values

    return Setup(
        f"input:{path.name}",
        (n, m, el),
        boundaries,
        initial=lambda i, j, k: cells("psi", i, j, k),
        density=(lambda i, j, k: cells("h", i, j, k)) if "h" in data else unit_density,
        face=lambda axis, i, j, k: cells(f"c{axis + 1}", i, j, k),
        extends=False,
        steps=steps,
        identity=(("input", fingerprint(path)),),
    )


def _open(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InputError(f"expected an input file, got {path}, which does not exist")
    try:
        if path.suffix == ".npz":
            with path.open("rb") as stream:
                archive = np.load(stream, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("a single array")
                return {name: archive[name] for name in NAMES if name in archive}
        if path.suffix in (".h5", ".hdf5"):
            file = h5py.File(path, "r", locking=False)
            return {name: file[name] for name in NAMES if isinstance(file.get(name), h5py.Dataset)}
    except UNREADABLE as error:
        raise InputError(f"expected arrays in {path}, which cannot be read: {error}") from None
    raise InputError(f"expected an input file ending in .npz or .h5, got {path}")


def _pick(source: Any, i: Index, j: Index, k: Index) -> Array:
    """Return ``source[i, j, k]`` on a mesh of index vectors, reading no more than it touches."""
    wanted = [np.unique(index, return_inverse=True) for index in (i, j, k)]
    values = np.empty([unique.size for unique, _ in wanted])
    for x, where_x in _runs(wanted[0][0]):
        for y, where_y in _runs(wanted[1][0]):
            for z, where_z in _runs(wanted[2][0]):
                values[where_x, where_y, where_z] = source[x, y, z]
    return values[np.ix_(*(inverse for _, inverse in wanted))]


def _runs(unique: Index) -> list[tuple[slice, slice]]:
    """Cut rising indices into runs of neighbours: (slice of the source, slice of the result)."""
    cuts = np.flatnonzero(np.diff(unique) > 1) + 1
    runs, at = [], 0
    for part in np.split(unique, cuts):
        runs.append((slice(int(part[0]), int(part[-1]) + 1), slice(at, at + part.size)))
        at += part.size
    return runs
