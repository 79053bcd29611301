"""Pictures of field output files: a map where there is longitude and latitude, else slices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpdata.cases.windfile import read_winds
from mpdata.errors import InputError


def plot_file(
    path: Path,
    out: Path,
    frames: Sequence[int] | None = None,
    winds: tuple[Path, Path] | None = None,
    month: int = 1,
) -> list[int]:
    """Draw frames of an output file into a PNG; return the frames drawn.

    Raises:
        InputError: not such a file, or no such frame.
    """
    if not path.is_file():
        raise InputError(f"expected an output file, got {path}, which does not exist")
    try:
        with h5py.File(path, "r", locking=False) as file:
            if not isinstance(file.get("psi"), h5py.Dataset) or file["psi"].ndim != 4:
                raise InputError(f"expected psi (time, N, M, L) in {path}, got none")
            chosen = _frames(file["psi"].shape[0], frames, path)
            _draw(file, out, chosen, winds, month)
    except InputError:
        raise
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"expected a field output file, got {path}: {error}") from None
    return chosen


def _frames(count: int, wanted: Sequence[int] | None, path: Path) -> list[int]:
    if count == 0:
        raise InputError(f"expected at least one frame, got none in {path}")
    chosen = list(wanted) if wanted is not None else sorted({0, count - 1})
    for frame in chosen:
        if not -count <= frame < count:
            raise InputError(f"expected a frame from 0 to {count - 1}, got {frame}")
    return [frame % count for frame in chosen]


def _draw(
    file: h5py.File, out: Path, frames: list[int], winds: tuple[Path, Path] | None, month: int
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mapped = "longitude" in file and "latitude" in file
    size = (9.0, 4.4 * len(frames)) if mapped else (5.4 * len(frames), 4.8)
    rows, columns = (len(frames), 1) if mapped else (1, len(frames))
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", sharex=True, sharey=True
    )
    try:
        wind = None if winds is None or not mapped else read_winds(*winds, month)
        label = "largest psi in the column" if file["psi"].shape[3] > 1 else "psi"
        for frame, panel in zip(frames, axes.ravel(), strict=True):
            image = _panel(file, panel, frame, wind, mapped)
            figure.colorbar(image, ax=panel, label=label)
        figure.savefig(out, dpi=130)
    finally:
        plt.close(figure)


def _panel(file: h5py.File, panel: Any, frame: int, wind: Any, mapped: bool) -> Any:
    """Draw one frame, the largest value over the third axis."""
    column = np.asarray(file["psi"][frame]).max(axis=2).T
    low = float(column.min())
    names = ("longitude", "latitude") if mapped else ("x", "y")
    x, y = (
        np.asarray(file[name]) if name in file else np.arange(n)
        for name, n in zip(names, column.shape[::-1], strict=True)
    )
    if wind is not None:
        speed = np.hypot(wind.u, wind.v)
        panel.streamplot(
            wind.longitude,
            wind.latitude,
            wind.u.T,
            wind.v.T,
            density=(2.4, 1.2),
            color="0.75",
            linewidth=0.3 + 1.2 * speed.T / speed.max(),
            arrowsize=0.6,
            zorder=0,
        )
    visible = np.ma.masked_less(column, low + 0.01 * (float(column.max()) - low))
    image = panel.pcolormesh(
        x, y, visible if mapped else column, shading="nearest", cmap="magma_r", zorder=1
    )
    panel.set_title(_title(file, frame), fontsize=10)
    panel.set_xlabel("degrees east" if mapped else "x")
    panel.set_ylabel("degrees north" if mapped else "y")
    if len(x) > 1:
        panel.set_xlim(float(x[0]), float(x[-1]))
    if len(y) > 1:
        panel.set_ylim(float(y[0]), float(y[-1]))
    panel.set_aspect("auto" if mapped or min(column.shape) < 4 else "equal")
    return image


def _title(file: h5py.File, frame: int) -> str:
    step, time = int(file["step"][frame]), float(file["time"][frame])
    if file["time"].attrs.get("units") == "s":
        return f"step {step}, day {time / 86400:.1f}"
    return f"step {step}"
