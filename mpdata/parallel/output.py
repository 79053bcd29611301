"""Field output over time: one HDF5 file with psi (time, N, M, L) and its coordinates.

Further tracers are datasets psi2, psi3, ... of the same shape. The file is netCDF-4 by the CF
conventions; :func:`write_xdmf` says to ParaView what is in it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Coordinate, Setup
from mpdata.errors import InputError
from rms.wire.files import write_whole

SECONDS = {
    "units": "seconds since 2000-01-01 00:00:00",  # CF knows no time without a date
    "calendar": "proleptic_gregorian",
    "standard_name": "time",
    "axis": "T",
}
"""Attributes of time where it is in seconds."""

NAMES = {
    "longitude": {"standard_name": "longitude", "axis": "X"},
    "latitude": {"standard_name": "latitude", "axis": "Y"},
    "relative_height": {
        "long_name": "height over that of the channel",
        "axis": "Z",
        "positive": "up",  # CF asks it of heights
    },
}
"""Attributes of coordinates by the CF conventions, beside units."""

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
            file.attrs["source"] = "malleable-mpi, mpdata"
            for name in ("time", "step"):
                file.create_dataset(name, (0,), dtype="f8", maxshape=(None,))
                file[name].attrs.update(units="1", long_name=f"{name} since the start of the run")
            file["time"].make_scale("time")
            if setup.duration:
                file["time"].attrs.update(SECONDS)
            file["step"].dims[0].attach_scale(file["time"])
            coordinates = setup.coordinates or _cells(setup.grid)
            for coordinate in coordinates:
                scale = file.create_dataset(coordinate.name, data=coordinate.values)
                scale.attrs["units"] = coordinate.units
                scale.attrs.update(NAMES.get(coordinate.name, {"long_name": coordinate.name}))
                scale.make_scale(coordinate.name)
            for number, name in enumerate(setup.tracers, 1):
                psi = file.create_dataset(
                    name,
                    (0, n, m, el),
                    dtype=np.dtype(dtype),
                    maxshape=(None, n, m, el),
                    chunks=(1, n, m, el) if n * m * el < 1 << 20 else (1, 1, m, el),
                )
                psi.attrs.update(units="1", long_name=f"tracer {number}", coordinates="step")
                psi.dims[0].attach_scale(file["time"])
                for dimension, coordinate in enumerate(coordinates, 1):
                    psi.dims[dimension].attach_scale(file[coordinate.name])
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


def write_xdmf(path: Path) -> None:
    """Write an XDMF file (``.xmf``) beside an output file, for ParaView and VisIt.

    Fields are as they lie in the file, where the third axis varies fastest: XDMF calls that one X,
    and the first Z.

    Raises:
        OSError: one of the files cannot be read or written.
    """
    import h5py

    with h5py.File(path, "r", locking=False) as file:
        tracers = [name for name, dataset in file.items() if dataset.ndim == 4]
        shape = file[tracers[0]].shape
        axes = [file[tracers[0]].dims[axis][0] for axis in (3, 2, 1)]
        top = ElementTree.Element("Xdmf", Version="3.0")
        grids = _within(_within(top, "Domain"), "Grid", GridType="Collection")
        grids.attrib.update(Name="mpdata", CollectionType="Temporal")
        for frame, time in enumerate(file["time"][:]):
            grid = _within(grids, "Grid", Name=f"step {file['step'][frame]:.0f}")
            _within(grid, "Time", Value=f"{float(time)!r}")
            _within(grid, "Topology", TopologyType="3DRectMesh", Dimensions=_joined(shape[1:]))
            geometry = _within(grid, "Geometry", GeometryType="VXVYVZ")
            for axis in axes:
                _stored(geometry, path, axis)
            for name in tracers:
                field = _within(grid, "Attribute", Name=name, Center="Node")
                part = _within(field, "DataItem", ItemType="HyperSlab")
                part.attrib["Dimensions"] = _joined(shape[1:])
                slab = _within(part, "DataItem", Dimensions="3 4", Format="XML")
                slab.text = _joined((frame, 0, 0, 0, 1, 1, 1, 1, 1, *shape[1:]))
                _stored(part, path, file[name])
    ElementTree.indent(top)
    text = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    write_whole(path.with_suffix(".xmf"), text)


def _within(parent: ElementTree.Element, name: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, name, attributes)


def _stored(parent: ElementTree.Element, path: Path, dataset: Any) -> None:
    """Enter an array of the HDF5 file."""
    item = _within(parent, "DataItem", Format="HDF", NumberType="Float")
    item.attrib.update(Dimensions=_joined(dataset.shape), Precision=f"{dataset.dtype.itemsize}")
    item.text = f"{path.name}:{dataset.name}"


def _joined(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _cells(grid: tuple[int, int, int]) -> list[Coordinate]:
    """Return the numbers of cells, for a case that says nothing of where they are."""
    return [
        Coordinate(name, "1", np.arange(n, dtype="f8")) for name, n in zip("xyz", grid, strict=True)
    ]


def _name(place: Place) -> str:
    return str(place if isinstance(place, Path) else place.name)
