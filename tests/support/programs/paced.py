"""A program of dmr that is slow until the file ``go`` exists: paced.py PROGRAM ...

Each step takes ``PACE_S`` longer, those of the second half of a loop a second: on a slow machine
too, the program still runs when a test has done its part.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dmr.loop.driver import Driver

LATE_S = float(os.environ.get("PACE_LATE_S", "1"))

true_loop, true_point = Driver.loop, Driver.resize_point


def slow_loop(driver: Driver, count: Callable[[], int], *, single: bool = False) -> Iterator[int]:
    for step in true_loop(driver, count, single=single):
        yield step
        pause(late=step >= count() // 2)


def slow_point(driver: Driver) -> None:
    true_point(driver)
    pause()


def pause(*, late: bool = False) -> None:
    until = time.monotonic() + max(float(os.environ.get("PACE_S", "0.02")), late * LATE_S)
    while not Path("go").exists() and (left_s := until - time.monotonic()) > 0.0:
        time.sleep(min(left_s, 0.05))


Driver.loop = slow_loop  # type: ignore[method-assign]
Driver.resize_point = slow_point  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a program
runpy.run_path(sys.argv[0], run_name="__main__")
