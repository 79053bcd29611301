"""Where traces of the Parallel Workloads Archive are: RMS_TRACES, else a folder beside this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "traces"


def trace(name: str) -> Path:
    """Return a trace, or skip the test."""
    folder = Path(os.environ.get("RMS_TRACES", BESIDE))
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no {name} in {folder}: set RMS_TRACES to a folder that has it")
    return path
