"""A program whose ranks are interrupted by a timer a hundred times a second: ticking.py PROGRAM ...

SIGALRM comes in the middle of sends, waits and connections; the handler counts. A rank that ends
without having heard it says so and fails.
"""

from __future__ import annotations

import runpy
import signal
import sys
from types import FrameType

EVERY_S = 0.01
heard = 0


def hear(number: int, frame: FrameType | None) -> None:
    global heard
    heard += 1


signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if not heard:
        sys.exit("expected a timer that ticks, heard nothing of it")
