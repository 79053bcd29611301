"""Field output over time: one HDF5 file with psi (time, N, M, L) and its coordinates.

Further tracers are datasets psi2, psi3, ... of the same shape.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Setup
from mpdata.errors import InputError

Place = Path | io.FileIO
"""A path, or a file open for reading and writing."""


def create(place: Place, setup: Setup, dtype: npt.DTypeLike) -> None:
    """Start an output file, in place of any there was.

    Raises:
        InputError: the place cannot be written.
    """
    import h5py  # not before it is needed: every world that boots would pay for it

    n, m, el = setup.grid
    try:
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(place, "w") as file:
            file.attrs["Conventions"] = "CF-1.10"
            file.attrs["title"] = f"MPDATA, case {setup.case}"
            for name, unit in (("step", "1"), ("time", "s" if setup.duration else "1")):
                file.create_dataset(name, (0,), dtype="f8", maxshape=(None,))
                file[name].attrs["units"] = unit
                file[name].make_scale(name)
            for coordinate in setup.coordinates or ():
                scale = file.create_dataset(coordinate.name, data=coordinate.values)
                scale.attrs["units"] = coordinate.units
                scale.make_scale(coordinate.name)
            for name in setup.tracers:
                psi = file.create_dataset(
                    name,
                    (0, n, m, el),
                    dtype=np.dtype(dtype),
                    maxshape=(None, n, m, el),
                    chunks=(1, n, m, el) if n * m * el < 1 << 20 else (1, 1, m, el),
                )
                psi.attrs["units"] = "1"
                psi.dims[0].attach_scale(file["time"])
                for axis, coordinate in enumerate(setup.coordinates or ()):
                    psi.dims[axis + 1].attach_scale(file[coordinate.name])
    except OSError as error:
        raise InputError(f"expected to write {_name(place)}, got: {error}") from None


class Frame:
    """One frame while it is written, slab by slab; frames of an interrupted run are replaced."""

    def __init__(self, place: Place, step: int, time: float) -> None:
        import h5py

        try:
            self._file = h5py.File(place, "r+", locking=False)
        except OSError as error:
            raise InputError(f"expected to add a frame to {_name(place)}, got: {error}") from None
        number = self._number = int((self._file["step"][:] < step).sum())
        for dataset in self._file.values():
            if dataset.maxshape[0] is None:  # the coordinates have their size
                dataset.resize(number + 1, axis=0)
        self._file["step"][number] = step
        self._file["time"][number] = time

    def close(self) -> None:
        """Close the file: the frame is whole."""
        self._file.close()

    def add(self, start: int, values: npt.NDArray[Any], tracer: str = "psi") -> None:
        """Take a tracer's slab of rows ``start`` and following."""
        self._file[tracer][self._number, start : start + len(values)] = values


def _name(place: Place) -> str:
    return str(place if isinstance(place, Path) else place.name)
