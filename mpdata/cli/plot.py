"""Pictures of field output files: a map where there is longitude and latitude, else slices."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpdata.cases.windfile import Winds, read_winds
from mpdata.errors import InputError
from rms.wire.files import OutputError, write_output

COASTLINE = Path(__file__).with_name("coastline.json")
"""Lines of (longitude from -180 to 180, latitude): Natural Earth, 1:110m, public domain."""
FRAMES_A_SECOND = 10
VISIBLE = 0.01
"""On a map nothing is drawn where there is less than this part of the range."""


@dataclass(frozen=True)
class Underlay:
    """Winds to draw under a map: files of both components, and the month (from 1)."""

    files: tuple[Path, Path]
    month: int = 1


def plot_file(
    path: Path,
    out: Path,
    frames: Sequence[int] | None = None,
    winds: Underlay | None = None,
    *,
    animate: bool = False,
) -> list[int]:
    """Draw frames of an output file into a picture, or one after the other; return those drawn.

    Args:
        path: what ``mpdata run --output`` has written.
        out: a picture of any kind that matplotlib knows; if ``animate``, ``.gif``, or ``.mp4``
            (with ffmpeg).
        frames: by number, negative ones from the end; None for the first and last, if ``animate``
            for all.
        winds: what to draw under a map.
        animate: one after the other.

    Raises:
        InputError: not such a file, no such frame, or such a picture cannot be made here.
    """
    if not path.is_file():
        raise InputError(f"expected an output file, got {path}, which does not exist")
    try:
        with h5py.File(path, "r", locking=False) as file:
            if not isinstance(file.get("psi"), h5py.Dataset) or file["psi"].ndim != 4:
                raise InputError(f"expected psi (time, N, M, L) in {path}, got none")
            count = file["psi"].shape[0]
            chosen = _frames(count, range(count) if animate and frames is None else frames, path)
            drawing = _Drawing(file, chosen, winds)
            (_animate if animate else _draw)(drawing, out)
    except (InputError, OutputError):
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


@dataclass
class _Drawing:
    """What is drawn: frames of a file, the largest value over the third axis of each."""

    file: h5py.File
    frames: Sequence[int]
    winds: Underlay | None

    @cached_property
    def mapped(self) -> bool:
        return "longitude" in self.file and "latitude" in self.file

    @cached_property
    def wind(self) -> Winds | None:
        if self.winds is None or not self.mapped:
            return None
        return read_winds(*self.winds.files, self.winds.month)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Least and largest value in all frames: one colour scale for all of them."""
        columns = [self.column(frame) for frame in self.frames]
        return min(float(c.min()) for c in columns), max(float(c.max()) for c in columns)

    def column(self, frame: int) -> Any:
        """Return the values (M, N) of a frame."""
        return np.asarray(self.file["psi"][frame]).max(axis=2).T

    def axis(self, number: int) -> tuple[Any, str]:
        """Return the places along the first or second axis, and what to call them."""
        name = (("longitude", "latitude") if self.mapped else ("x", "y"))[number]
        if name not in self.file:
            return np.arange(self.file["psi"].shape[1 + number]), name
        units = self.file[name].attrs.get("units", "1")
        label = {"degrees_east": "degrees east", "degrees_north": "degrees north"}.get(units)
        return np.asarray(self.file[name]), label or (name if units == "1" else f"{name} ({units})")

    @property
    def title(self) -> str:
        """The case, and what is shown of it."""
        what = "largest psi in each column" if self.file["psi"].shape[3] > 1 else "psi"
        return f"{self.file.attrs.get('title', 'MPDATA')}: {what}"

    def when(self, frame: int) -> str:
        """Return the step, and the day where time is in seconds."""
        step, time = int(self.file["step"][frame]), float(self.file["time"][frame])
        seconds = str(self.file["time"].attrs.get("units", "")).startswith("s")
        return f"step {step:,}, day {time / 86400:.1f}" if seconds else f"step {step:,}"

    def shown(self, frame: int) -> Any:
        """Return what is coloured of a frame: on a map, what is visible above the least."""
        column, (low, high) = self.column(frame), self.range
        return np.ma.masked_less(column, low + VISIBLE * (high - low)) if self.mapped else column


def _draw(drawing: _Drawing, out: Path) -> None:
    """Draw frames beside each other, or maps below each other."""
    count = len(drawing.frames)
    figure, axes, _ = _figure(drawing, (count, 1) if drawing.mapped else (1, count))
    try:
        for frame, panel in zip(drawing.frames, axes, strict=True):
            _panel(drawing, panel, frame)
        picture = io.BytesIO()
        figure.savefig(picture, dpi=130, format=out.suffix[1:] or None)
        write_output(out, picture.getvalue())
    finally:
        _close(figure)


def _animate(drawing: _Drawing, out: Path) -> None:
    """Draw frames one after the other."""
    import matplotlib as mpl
    from matplotlib import animation

    mpl.rcdefaults()  # ignore a matplotlibrc in the working folder, which can name programs to run
    if out.suffix not in (".gif", ".mp4"):
        raise InputError(f"expected an animation .gif or .mp4, got {out.name}")
    if out.suffix == ".mp4" and not animation.FFMpegWriter.isAvailable():
        raise InputError(f"{out.name} needs ffmpeg on PATH, got none; .gif does not")
    figure, (panel,), _ = _figure(drawing, (1, 1))
    kind = animation.PillowWriter if out.suffix == ".gif" else animation.FFMpegWriter
    try:
        image = _panel(drawing, panel, drawing.frames[0])

        def update(frame: int) -> list[Any]:
            image.set_array(drawing.shown(frame))
            panel.set_title(drawing.when(frame), fontsize=10)
            return [image]

        film = animation.FuncAnimation(figure, update, drawing.frames, cache_frame_data=False)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / out.name
            film.save(str(made), writer=kind(fps=FRAMES_A_SECOND), dpi=100)
            write_output(out, made.read_bytes())
    finally:
        _close(figure)


def _figure(drawing: _Drawing, shape: tuple[int, int]) -> tuple[Any, list[Any], Any]:
    """Return a figure with panels and one colour scale for all."""
    import matplotlib as mpl

    mpl.rcdefaults()
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.cm import ScalarMappable

    rows, columns = shape
    size = (9.0, 0.8 + 3.4 * rows) if drawing.mapped else (0.9 + 4.7 * columns, 5.0)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", sharex=True, sharey=True
    )
    panels = list(axes.ravel())
    figure.suptitle(drawing.title, fontsize=11)
    scale = ScalarMappable(_norm(drawing), "magma_r" if drawing.mapped else "viridis")
    label = "psi, on a square-root scale" if drawing.mapped else "psi"
    figure.colorbar(scale, ax=panels, label=label, shrink=0.8)
    for panel in panels[-columns:]:
        panel.set_xlabel(drawing.axis(0)[1])
    for panel in panels[::columns]:
        panel.set_ylabel(drawing.axis(1)[1])
    return figure, panels, scale


def _norm(drawing: _Drawing) -> Any:
    """Return the colour scale: a plume thins out, so on a map low values get more of it."""
    from matplotlib.colors import Normalize, PowerNorm

    low, high = drawing.range
    return PowerNorm(0.5, low, high) if drawing.mapped and high > low else Normalize(low, high)


def _close(figure: Any) -> None:
    import matplotlib.pyplot as plt

    plt.close(figure)


def _panel(drawing: _Drawing, panel: Any, frame: int) -> Any:
    """Draw one frame."""
    (x, _), (y, _) = drawing.axis(0), drawing.axis(1)
    if drawing.wind is not None:
        _streamlines(panel, drawing.wind)
    image = panel.pcolormesh(
        x,
        y,
        drawing.shown(frame),
        shading="nearest",
        cmap="magma_r" if drawing.mapped else "viridis",
        norm=_norm(drawing),
        zorder=1,
    )
    if drawing.mapped:
        _coastline(panel)
    panel.set_title(drawing.when(frame), fontsize=10)
    if len(x) > 1:
        panel.set_xlim(float(x[0]), float(x[-1]))
    if len(y) > 1:
        panel.set_ylim(float(y[0]), float(y[-1]))
    panel.set_aspect("equal" if drawing.mapped or min(len(x), len(y)) >= 4 else "auto")
    return image


def _streamlines(panel: Any, wind: Winds) -> None:
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


def _coastline(panel: Any) -> None:
    """Draw coasts, for maps from 0 to 360 degrees east as well as from -180 to 180."""
    from matplotlib.collections import LineCollection

    lines = [np.array(line) for line in json.loads(COASTLINE.read_text())["lines"]]
    around = [line + np.array([turn, 0.0]) for turn in (0.0, 360.0) for line in lines]
    panel.add_collection(LineCollection(around, colors="0.35", linewidths=0.5, zorder=2))
