"""``mpdata run --backend cupy`` with a stand-in for CuPy (tests/stand_in)."""

from __future__ import annotations

import os

from processes import ROOT

STAND_IN = ROOT / "tests" / "stand_in"
RANDOM = ["--case", "random", "--seed", "7", "--grid", "24", "20", "6", "--steps", "12"]
CUPY = ["--backend", "cupy"]


def environment(gpus: int, **more: str) -> dict[str, str]:
    """Return variables for a machine with so many GPUs."""
    paths = [str(STAND_IN), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN_GPUS": str(gpus), **more}
