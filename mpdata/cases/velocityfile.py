"""Face values that change in time, from an HDF5 file: ``--velocities FILE.h5``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mpdata.cases.arrays import checked, pick
from mpdata.cases.setup import Array, Index, Setup, TimeLevels, fingerprint
from mpdata.errors import InputError

READING = (OSError, ValueError, KeyError, TypeError, RuntimeError)
"""What HDF5 raises for files that are not its own, cut off or damaged."""


def with_velocities(setup: Setup, path: Path) -> Setup:
    """Return a case with the flow of a file in place of its own.

    The file holds c1 (T, N+1, M, L), c2 (T, N, M+1, L), c3 (T, N, M, L+1), of which those of an
    axis of one cell may be missing, and time (T,), rising, in steps. Between two times the flow
    is linear; the step from n to n + 1 takes it at n + 1/2. One time makes a steady flow. It is
    read block by block, one time after the other.

    Raises:
        InputError: not such a file, or one that does not fit the case's grid and steps.
    """
    if setup.steps is None:
        raise InputError(f"expected --steps K with velocities for case {setup.case}, got none")
    data = _open(path)
    times = _times(data, path)
    _check_shapes(data, setup.grid, len(times), path)
    if len(times) > 1 and not (times[0] <= 0.5 and times[-1] >= setup.steps - 0.5):
        raise InputError(
            f"expected times covering 0.5 to {setup.steps - 0.5:g}, the middles of the steps, "
            f"got {times[0]:g} to {times[-1]:g} in {path}"
        )

    def face(axis: int, level: int, i: Index, j: Index, k: Index) -> Array:
        name = f"c{axis + 1}"
        try:
            values = pick(data[name], i.ravel(), j.ravel(), k.ravel(), (level,))
        except OSError as error:
            raise InputError(
                f"expected velocities in {path}, which cannot be read: {error}"
            ) from None
        return checked(values, f"{name} at time {times[level]:g}", (i, j, k))

    identity = [entry for entry in setup.identity if entry[0] != "courant"]
    return replace(
        setup,
        face=lambda axis, i, j, k: face(axis, 0, i, j, k),
        time_levels=TimeLevels(times, face) if len(times) > 1 else None,
        face_at=None,
        extends=False,
        courant=None,
        duration=None,
        exact=None,
        norms=None,
        identity=(*identity, ("velocities", fingerprint(path))),
    )


def _open(path: Path) -> dict[str, Any]:
    import h5py  # not before it is needed: every world that boots would pay for it

    if not path.is_file():
        raise InputError(f"expected a velocity file, got {path}, which does not exist")
    if path.suffix not in (".h5", ".hdf5"):
        raise InputError(f"expected a velocity file ending in .h5, got {path}")
    try:
        file = h5py.File(path, "r", locking=False)
        found = {name: file.get(name) for name in ("time", "c1", "c2", "c3")}
    except READING as error:
        raise InputError(f"expected velocities in {path}, which cannot be read: {error}") from None
    data = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
    for name, item in data.items():
        if np.dtype(item.dtype).kind not in "fiu":
            raise InputError(f"expected numbers in {name}, got {item.dtype} in {path}")
    return data


def _times(data: dict[str, Any], path: Path) -> tuple[float, ...]:
    if "time" not in data:
        raise InputError(f"expected time in {path}, got {', '.join(data) or 'nothing'}")
    if data["time"].ndim != 1 or data["time"].size < 1:
        raise InputError(
            f"expected time of shape (T,), T at least 1, got {data['time'].shape} in {path}"
        )
    try:
        times = np.asarray(data["time"][:], np.float64)
    except READING as error:
        raise InputError(f"expected time in {path}, which cannot be read: {error}") from None
    if not np.isfinite(times).all():
        raise InputError(f"expected finite times, got {times[~np.isfinite(times)][0]} in {path}")
    falls = np.flatnonzero(np.diff(times) <= 0)
    if falls.size:
        first, then = times[falls[0] : falls[0] + 2]
        raise InputError(f"expected times strictly rising, got {then:g} after {first:g} in {path}")
    return tuple(float(time) for time in times)


def _check_shapes(
    data: dict[str, Any], grid: tuple[int, int, int], levels: int, path: Path
) -> None:
    for axis, cells in enumerate(grid):
        name = f"c{axis + 1}"
        shape = (levels, *(n + (a == axis) for a, n in enumerate(grid)))
        if name not in data:
            if cells > 1:
                raise InputError(f"expected {name} of shape {shape}, got none in {path}")
        elif tuple(data[name].shape) != shape:
            raise InputError(
                f"expected {name} of shape {shape}, got {tuple(data[name].shape)} in {path}"
            )
