"""Processes that have the daemon's memory as it is at one moment, do one thing with it, and end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import warnings
from collections.abc import Callable

FIRST_OPEN = 3
"""Files before this are standard input, output and error."""

MOST_OPEN = 1 << 16
"""So many may be open at least where the system says that there is no limit."""


def fork(work: Callable[[], object], only: int | None = None) -> int:
    """Start a process that does this and nothing else; return its number.

    Its status is 0 if the work returned, 1 if it raised, -N if signal N ended it. Other threads are
    not there in it: the work must need none, nor a lock that one may have held.

    Args:
        only: the one open file that it keeps, besides standard input, output and error; None to
            keep all. Where others are kept, what is listened at stays open until it ends, even if
            the daemon is killed.

    Raises:
        OSError: there is no room for it.
    """
    with warnings.catch_warnings():  # that other threads are not there in a fork: none is asked
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        gc.disable()  # it would copy memory that is gone in a moment
        with contextlib.suppress(ValueError):  # the daemon's loop is not to hear of our signals
            signal.set_wakeup_fd(-1)
        if only is not None:
            os.closerange(FIRST_OPEN, only)
            os.closerange(only + 1, max(MOST_OPEN, os.sysconf("SC_OPEN_MAX")))
        work()
        status = 0
    finally:
        os._exit(status)
