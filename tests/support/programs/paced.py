"""A program of dmr that takes its time until the file ``go`` is there: paced.py PROGRAM ..."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dmr.driver import Driver

true_loop = Driver.loop


def slow_loop(driver: Driver, count: Callable[[], int], *, only: bool = False) -> Iterator[int]:
    for step in true_loop(driver, count, only=only):
        yield step
        if not Path("go").exists():
            time.sleep(float(os.environ.get("PACE_S", "0.02")))


Driver.loop = slow_loop  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
