"""Programs, and this process, with stand-ins for CuPy and pynvml (tests/stand_in)."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import pytest
from processes import ROOT

STAND_IN = ROOT / "tests" / "stand_in"
RANDOM = ["--case", "random", "--seed", "7", "--grid", "24", "20", "6", "--steps", "12"]
CUPY = ["--backend", "cupy"]


def environment(gpus: int, **more: str) -> dict[str, str]:
    """Return variables for a machine with so many GPUs."""
    paths = [str(STAND_IN), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN_GPUS": str(gpus), **more}


def stand_in_nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the stand-in for pynvml, as this process imports it until the test is over."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # so that it is taken away at the end
    monkeypatch.delitem(sys.modules, "pynvml")
    return importlib.import_module("pynvml")
