"""Jobs for engines and simulations, each stated in a line."""

from __future__ import annotations

from typing import Any

from rms.core.model.jobs import JobId, JobSpec, Mode


def job_spec(
    name: object,
    sizes: int | tuple[int, int, int] = 1,
    mode: Mode = Mode.FIXED,
    at_s: float = 0.0,
    **more: Any,
) -> JobSpec:
    """Return a job of one size, or of ``(min, preferred, max)`` nodes."""
    low, preferred, high = sizes if isinstance(sizes, tuple) else (sizes,) * 3
    return JobSpec(JobId(str(name)), at_s, low, high, preferred, mode, **more)
