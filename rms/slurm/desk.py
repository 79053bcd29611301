"""Slurm's commands for a daemon that must not wait: asked for on threads, looked at later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from rms.local import Errand
from rms.slurm.cli import Slurm, SlurmError

THREADS = 4
"""A grow takes 0.4 s, nearly all of it in the controller, which does such things one by one."""

Answer = TypeVar("Answer")


class Desk:
    """Commands under way; several at once."""

    def __init__(self, slurm: Slurm, threads: int = THREADS) -> None:
        self.slurm = slurm
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="slurm")

    def ask(self, what: Callable[[], Answer]) -> Future[Answer]:
        """Have something done; it raises :class:`SlurmError` when its result is looked at."""
        return self._threads.submit(what)

    def errand(self, what: Callable[[], object]) -> Errand:
        """Have something done of which only matters whether it could be."""
        asked = self.ask(what)

        def answer() -> str | None:
            if not asked.done():
                return None
            try:
                asked.result()
            except SlurmError as error:
                return str(error)
            return ""

        return answer

    def close(self) -> None:
        """Let what is under way end; take nothing more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
