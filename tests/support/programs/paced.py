"""A program of dmr that is slow until the file ``go`` exists: paced.py PROGRAM ...

Each step takes ``PACE_S`` longer, those of the second half of a loop a second: on a slow machine
too, the program still runs when a test has done its part. The messages to the daemon are entered in
the file ``SENT``, if that is set. On SIGUSR2 it writes the stacks of its
threads into a file in memory, which ``daemon.stacks_of`` reads.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dmr.loop.driver import Driver
from dmr.wire.rms import Manager

LATE_S = float(os.environ.get("PACE_LATE_S", "1"))

faulthandler.register(signal.SIGUSR2, os.memfd_create("stacks"), all_threads=True)

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


def entered_post(manager: Manager, path: str, body: bytes, *more: object) -> bytes:
    with Path(os.environ["SENT"]).open("ab") as file:
        file.write(path.encode() + b" " + body + b"\n")
    return true_post(manager, path, body, *more)  # type: ignore[arg-type]


true_post = Manager.post
if "SENT" in os.environ:
    Manager.post = entered_post  # type: ignore[assignment,method-assign]
Driver.loop = slow_loop  # type: ignore[method-assign]
Driver.resize_point = slow_point  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a program
runpy.run_path(sys.argv[0], run_name="__main__")
