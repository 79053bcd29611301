"""Synthetic CF wind files, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Pair = tuple[Path, Path]

MONTHS = 2
LATITUDES = np.linspace(90.0, -90.0, 13)
LONGITUDES = np.arange(0.0, 360.0, 30.0)
NAMES = {"eastward": "uwnd", "northward": "vwnd"}


def wind(component: str, month: int, longitude: Array, latitude: Array) -> Array:
    """Return a smooth wind in m/s at every (longitude, latitude) of a mesh, month 1 or 2."""
    lon, lat = np.radians(longitude)[:, None], np.radians(latitude)[None, :]
    if component == "eastward":
        return 30.0 * np.cos(lat) + month * 5.0 * np.sin(2 * lon) * np.cos(lat)
    return month * 8.0 * np.cos(3 * lon + 0.3) * np.cos(lat) ** 2


def write_winds(
    folder: Path,
    latitudes: Array = LATITUDES,
    longitudes: Array = LONGITUDES,
    *,
    packed: bool = False,
) -> Pair:
    """Write both files as a climate archive would, latitudes from north to south."""
    paths = tuple(folder / f"{name}.nc" for name in NAMES.values())
    for path, component in zip(paths, NAMES, strict=True):
        months = [wind(component, k + 1, longitudes, latitudes).T for k in range(MONTHS)]
        _write(path, component, np.stack(months), latitudes, longitudes, packed=packed)
    return paths[0], paths[1]


def _write(
    path: Path, component: str, values: Array, latitudes: Array, longitudes: Array, *, packed: bool
) -> None:
    with h5py.File(path, "w") as file:
        stored = np.round((values - 12.5) / 0.01).astype("i2") if packed else values
        data = file.create_dataset(NAMES[component], data=stored)
        data.attrs["standard_name"] = f"{component}_wind"
        data.attrs["units"] = "m s-1"
        if packed:
            data.attrs["scale_factor"], data.attrs["add_offset"] = 0.01, 12.5
            data.attrs["_FillValue"] = np.array([-32768], "i2")
        for name, along, units in (
            ("time", np.arange(MONTHS), "days since 1800-1-1"),
            ("lat", latitudes, "degrees_north"),
            ("lon", longitudes, "degrees_east"),
        ):
            file[name] = along
            file[name].attrs["units"] = units
            file[name].make_scale(name)
        for axis, name in enumerate(("time", "lat", "lon")):
            data.dims[axis].attach_scale(file[name])


def edited(change: Callable[[h5py.File], None]) -> Callable[[Pair], None]:
    """Return a spoiler that changes the eastward file from inside."""

    def spoil(pair: Pair) -> None:
        with h5py.File(pair[0], "r+") as file:
            change(file)

    return spoil


def without(*names: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        for name in names:
            del file[name]

    return change


def attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file["uwnd"].attrs[name] = value

    return change


def replaced(name: str, values: Any) -> Callable[[h5py.File], None]:
    """Replace a variable, keeping its attributes."""

    def change(file: h5py.File) -> None:
        attributes = {k: v for k, v in file[name].attrs.items() if k in ("standard_name", "units")}
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return change


def one_value(value: float) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file["uwnd"][0, 3, 4] = value

    return change
