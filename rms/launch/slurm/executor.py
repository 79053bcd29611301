"""Slurm's commands for a daemon that must not wait: run on threads, their results taken later."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import TypeVar

from rms.launch.slurm.commands import Slurm

THREADS = 8
"""Most of them wait: for an answer, or for a second to be over."""

SHARE = 0.5
"""Of the time in which the controller may be kept busy with changes of running jobs."""

Answer = TypeVar("Answer")


class RateLimiter:
    """Lets one change of a running job at a time through, with pauses in between.

    Slurm's controller does these one by one, 0.2 to 0.4 s each, and answers nobody meanwhile: no
    sbatch and no scontrol of any user of the site.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._next_s = share, 0.0
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._begun_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        now = time.monotonic()
        self._next_s = now + (now - self._begun_s) * (1 / self._share - 1)
        self._lock.release()


class Executor:
    """Commands under way; several at once.

    Attributes:
        closing: set when the daemon ends: who waits for a controller that is away waits no longer.
    """

    def __init__(self, slurm: Slurm, threads: int = THREADS) -> None:
        self.slurm, self.rate_limiter, self.closing = slurm, RateLimiter(), Event()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="slurm")

    def ask(self, what: Callable[[], Answer]) -> Future[Answer]:
        """Have something done; it raises :class:`SlurmError` when its result is taken."""
        return self._threads.submit(what)

    def close(self) -> None:
        """Let commands that are under way end; take nothing more, and try nothing again."""
        self.closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
