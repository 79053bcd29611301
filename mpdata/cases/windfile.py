"""Reading monthly winds from a pair of CF NetCDF-4 files (HDF5 inside) with h5py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mpdata.errors import InputError

Array = npt.NDArray[np.floating[Any]]

COMPONENTS = {
    "eastward": ("eastward_wind", ("uwnd", "u", "ua", "u200", "U")),
    "northward": ("northward_wind", ("vwnd", "v", "va", "v200", "V")),
}
"""For each component the CF standard name and the usual variable names."""


@dataclass(frozen=True)
class Winds:
    """One month of winds on a global latitude-longitude grid.

    Attributes:
        latitude: degrees north, rising, shape (ny,).
        longitude: degrees east in [0, 360), rising, shape (nx,).
        u, v: eastward and northward wind in m/s, shape (nx, ny).
    """

    latitude: Array
    longitude: Array
    u: Array
    v: Array


def read_winds(u_path: Path, v_path: Path, month: int) -> Winds:
    """Read month 1, 2, ... of a wind file pair.

    Raises:
        InputError: a file is missing, damaged, on another grid, or lacks what is needed.
    """
    latitude, longitude, u = _read(u_path, "eastward", month)
    latitude_v, longitude_v, v = _read(v_path, "northward", month)
    if u.shape != v.shape or (latitude != latitude_v).any() or (longitude != longitude_v).any():
        raise InputError(
            f"expected both wind files on one grid, got {u.shape} in {u_path} and "
            f"{v.shape} in {v_path} (longitudes, latitudes)"
        )
    return Winds(latitude, longitude, u, v)


def _read(path: Path, component: str, month: int) -> tuple[Array, Array, Array]:
    if not path.is_file():
        raise InputError(f"expected a wind file, got {path}, which does not exist")
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _decode(file, path, component, month)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"expected a whole NetCDF-4 file (HDF5), got {path}: {error}") from None


def _decode(file: h5py.File, path: Path, component: str, month: int) -> tuple[Array, Array, Array]:
    standard, names = COMPONENTS[component]
    wind = _variable(file, standard, names)
    if wind is None:
        raise InputError(
            f"expected the {component} wind ({', '.join(names)} or standard name {standard}), "
            f"got {path} with {', '.join(sorted(file)) or 'no variables'}"
        )
    lat = _variable(file, "latitude", ("latitude", "lat"))
    lon = _variable(file, "longitude", ("longitude", "lon"))
    if lat is None or lon is None:
        raise InputError(f"expected latitude and longitude, got {path} without them")
    if wind.ndim != 3 or wind.shape[1:] != (lat.size, lon.size):
        raise InputError(
            f"expected winds of shape (time, {lat.size}, {lon.size}), got {wind.shape} in {path}"
        )
    if not 1 <= month <= wind.shape[0]:
        raise InputError(f"expected a month from 1 to {wind.shape[0]}, got {month}")
    units = _text(wind.attrs.get("units", "m/s"))
    if units.replace(" ", "") not in ("m/s", "ms-1", "ms**-1", "ms^-1"):
        raise InputError(f"expected winds in m/s, got {units!r} in {path}")
    values = _unpack(wind, month - 1, path)
    return _oriented(np.asarray(lat[:], np.float64), np.asarray(lon[:], np.float64), values, path)


def _variable(file: h5py.File, standard: str, names: tuple[str, ...]) -> Any:
    for item in file.values():
        if isinstance(item, h5py.Dataset) and _text(item.attrs.get("standard_name")) == standard:
            return item
    for name in names:
        if isinstance(file.get(name), h5py.Dataset):
            return file[name]
    return None


def _unpack(wind: h5py.Dataset, index: int, path: Path) -> Array:
    """Return one month in m/s; CF packing and missing values are seen to."""
    stored = wind[index]
    values = np.asarray(stored, np.float64)
    missing = [wind.attrs[n] for n in ("_FillValue", "missing_value") if n in wind.attrs]
    holes = ~np.isfinite(values)
    for value in missing:
        holes |= stored == np.asarray(value).ravel()[0]
    if holes.any():
        raise InputError(f"expected winds everywhere, got {int(holes.sum())} gaps in {path}")
    factor = float(np.ravel(wind.attrs.get("scale_factor", 1.0))[0])
    offset = float(np.ravel(wind.attrs.get("add_offset", 0.0))[0])
    values = values * factor + offset
    if not np.isfinite(values).all():
        raise InputError(
            f"expected finite winds, got scale_factor {factor:g}, add_offset {offset:g} in {path}"
        )
    return values


def _oriented(lat: Array, lon: Array, values: Array, path: Path) -> tuple[Array, Array, Array]:
    """Return latitudes and longitudes rising, longitudes in [0, 360), values (lon, lat)."""
    lon = lon % 360.0
    rows, columns = np.argsort(lat), np.argsort(lon)
    lat, lon = lat[rows], lon[columns]
    if (np.diff(lat) <= 0).any() or (np.diff(lon) <= 0).any():
        raise InputError(f"expected distinct latitudes and longitudes, got repeats in {path}")
    if lat.size < 2:
        raise InputError(f"expected 2 latitudes or more, got {lat.size} in {path}")
    if lon.size < 2 or 360 - lon[-1] + lon[0] > 2 * np.diff(lon).max():
        raise InputError(f"expected longitudes all around the globe, got gaps in {path}")
    return lat, lon, np.ascontiguousarray(values[np.ix_(rows, columns)].T)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
