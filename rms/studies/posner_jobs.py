"""The jobs of Posner, Hupfeld, Finnerty 2023, from files that the project does not ship."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, Site, Speedup
from rms.formats.config import FileError
from rms.studies.external import read_rows

FOLDER = "posner_2023"
SOURCE = "the generator and the artifact of the paper (github ProjectWagomu/ArtefactPECS23)"
SITE = Site(128)
FLOPS = 1e12
"""Speed of a node in flop/s."""


class _JobRow(msgspec.Struct):
    id: int
    submit: float
    type: Literal["rigid", "malleable"]
    nodes_min: int
    nodes_pref: int
    nodes_max: int
    flops: float
    parallel: float
    iterations: int


def read_jobs(data: Path, mix: str, seed: str) -> list[JobSpec]:
    """Return the jobs of a mix, as ``50-0-50``: per cent rigid, moldable and malleable.

    A job of W flop, a share p of it parallel, takes W ((1 - p) + p / n) / 1e12 s on n nodes. A
    malleable one can be resized between two of its equal iterations, at no cost, and starts at any
    size. The time requested is the run time at the preferred size.

    Raises:
        FileError: no such file in ``data``, or not one of jobs.
    """
    path = data / FOLDER / f"{mix}_{seed}.csv.gz"
    specs = []
    for number, row in enumerate(read_rows(path, _JobRow, SOURCE), 1):
        try:
            specs.append(_spec(row))
        except ValueError as error:
            raise FileError(f"{path}, job {number}: {error}") from None
    return specs


def _spec(row: _JobRow) -> JobSpec:
    if not (row.flops > 0 and 0 <= row.parallel <= 1 and row.iterations >= 1 and row.submit >= 0):
        raise ValueError(
            "expected submit of at least 0, flops above 0, a parallel share of 0 to 1 and at "
            f"least one iteration, got {row.submit:g}, {row.flops:g}, {row.parallel:g} and "
            f"{row.iterations}"
        )
    if max(row.nodes_pref, row.nodes_max) > SITE.nodes:
        raise ValueError(f"expected at most {SITE.nodes} nodes, got {row.nodes_max}")
    work_s = row.flops / FLOPS
    speedup = Speedup(law=(work_s * row.parallel, work_s * (1.0 - row.parallel)))
    malleable = row.type == "malleable"
    return JobSpec(
        JobId(str(row.id)),
        row.submit,
        row.nodes_min if malleable else row.nodes_pref,
        row.nodes_max if malleable else row.nodes_pref,
        row.nodes_pref,
        Mode.FLEXIBLE if malleable else Mode.FIXED,
        speedup,
        limit_s=speedup.time(row.nodes_pref),
        resize_parts=row.iterations if malleable else None,
    )
