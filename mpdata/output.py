"""Field output over time: one HDF5 file with psi (time, N, M, L) and its coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Setup
from mpdata.errors import InputError


def create(path: Path, setup: Setup, dtype: npt.DTypeLike) -> None:
    """Start an output file, in place of any there was.

    Raises:
        InputError: the place cannot be written.
    """
    n, m, el = setup.grid
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file.attrs["Conventions"] = "CF-1.10"
            file.attrs["title"] = f"MPDATA, case {setup.case}"
            psi = file.create_dataset(
                "psi",
                (0, n, m, el),
                dtype=np.dtype(dtype),
                maxshape=(None, n, m, el),
                chunks=(1, n, m, el) if n * m * el < 1 << 20 else (1, 1, m, el),
            )
            psi.attrs["units"] = "1"
            for name, unit in (("step", "1"), ("time", "s" if setup.duration else "1")):
                file.create_dataset(name, (0,), dtype="f8", maxshape=(None,))
                file[name].attrs["units"] = unit
                file[name].make_scale(name)
            psi.dims[0].attach_scale(file["time"])
            for axis, coordinate in enumerate(setup.coordinates or ()):
                scale = file.create_dataset(coordinate.name, data=coordinate.values)
                scale.attrs["units"] = coordinate.units
                scale.make_scale(coordinate.name)
                psi.dims[axis + 1].attach_scale(scale)
    except OSError as error:
        raise InputError(f"expected to write {path}, got: {error}") from None


class Frame:
    """One frame while it is written, slab by slab; frames of an interrupted run are replaced."""

    def __init__(self, path: Path, step: int, time: float) -> None:
        try:
            self._file = h5py.File(path, "r+", locking=False)
        except OSError as error:
            raise InputError(f"expected to add a frame to {path}, got: {error}") from None
        number = self._number = int((self._file["step"][:] < step).sum())
        for name in ("psi", "step", "time"):
            self._file[name].resize(number + 1, axis=0)
        self._file["step"][number] = step
        self._file["time"][number] = time

    def close(self) -> None:
        """Close the file: the frame is whole."""
        self._file.close()

    def add(self, start: int, values: npt.NDArray[Any]) -> None:
        """Take the slab of rows ``start`` and following."""
        self._file["psi"][self._number, start : start + len(values)] = values
