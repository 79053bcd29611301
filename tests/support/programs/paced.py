"""A program of dmr that takes its time until the file ``go`` is there: paced.py PROGRAM ..."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dmr.driver import Driver

true_loop, true_point = Driver.loop, Driver.point


def slow_loop(driver: Driver, count: Callable[[], int], *, only: bool = False) -> Iterator[int]:
    for step in true_loop(driver, count, only=only):
        yield step
        pause()


def slow_point(driver: Driver) -> None:
    true_point(driver)
    pause()


def pause() -> None:
    if not Path("go").exists():
        time.sleep(float(os.environ.get("PACE_S", "0.02")))


Driver.loop = slow_loop  # type: ignore[method-assign]
Driver.point = slow_point  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a program
runpy.run_path(sys.argv[0], run_name="__main__")
