"""What ``mpdata run`` was asked for, checked, and what is refused of it before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpdata.cases import Setup
from mpdata.options import Scheme, with_outside

OVERLAP = ("auto", "on", "off")

UNDER_WAY = 100
"""Steps that a device may be behind."""


@dataclass(frozen=True)
class RunConfig:
    """What ``mpdata run`` was asked for, checked.

    Attributes:
        overlap: whether the layers that need no message along axis 0 are advanced while those
            are under way (``auto``: on a device only; the same bits either way).
        every: steps between resize points.
        resizes: steps of scripted ones.
        tuned: the file of tuned tiles of GPUs.
    """

    setup: Setup
    scheme: Scheme
    dtype: np.dtype[Any]
    backend: str
    threads: int = 1
    final: Path | None = None
    output: Path | None = None
    output_every: int = 0
    json: str | None = None
    terminal: IO[str] | None = None
    overlap: str = "auto"
    every: int = 10
    resizes: frozenset[int] = frozenset()
    tuned: Path | None = None

    def pauses(self, done: int, steps: int) -> bool:
        """Return whether to wait, ``done`` steps of ``steps`` done, for what is under way.

        So that times are true: before whatever may come at a resize point, and at the end. The
        first steps are timed one by one, and no more than some hundred are ever under way.
        """
        often = done % min(self.every, UNDER_WAY) == 0
        return often or done <= 3 or done in self.resizes or done == steps

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the answer, for reports and for checkpoints.

        Not the backend: all have the same bits.
        """
        return {
            "case": self.setup.case,
            "iterations": self.scheme.iterations,
            "limiter": self.scheme.limiter,
            "gauge": "infinite" if self.scheme.infinite_gauge else "standard",
            "third_order": self.scheme.third_order,
            "divergent_flow": self.scheme.divergent_flow,
            "boundary": ",".join(str(b) for b in self.setup.boundaries),
            "tracers": len(self.setup.tracers),
            "velocities": None,
            **dict(self.setup.identity),
        }

    def refusal(self, name: str, low: float, high: float) -> str | None:
        """Return a sentence if the scheme cannot advance a tracer of this range.

        Ranges are those of its initial interior; values outside the grid are added here.
        """
        low, high = with_outside(self.setup.boundaries, low, high)
        single = self.setup.single
        return self.scheme.range_error(name, low, high, self.dtype.itemsize, single=single)
