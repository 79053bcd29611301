"""A program of dmr that takes its time until the file ``go`` is there: paced.py PROGRAM ..."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dmr import driver

true_loop = driver.loop


def slow_loop(*arguments: Any) -> Iterator[int]:
    for step in true_loop(*arguments):
        yield step
        if not Path("go").exists():
            time.sleep(float(os.environ.get("PACE_S", "0.02")))


driver.loop = slow_loop
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
