"""Steps of a rank: a small file in the folder of its keeper, from which the supervisor learns how
far a world has come.

A rank writes the file at its resize points, by stores into shared memory; the keeper of the host
reads the files of all its ranks with each heartbeat of the supervisor.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

SUFFIX = ".steps"
NUMBERS = struct.Struct("@dddd")
"""Time of the first step of the loop, of the end of that step (0: not yet), newest step, time at
which the state was restored (0: it was not)."""


class Steps(msgspec.Struct, frozen=True):
    """How far a world has come.

    Attributes:
        step: the newest one that is begun.
        begun_s: seconds since its first step began.
        done_s: seconds since its first step ended; None if it has not.
        restored_s: seconds since its state was restored from copies; None if it was not.
    """

    step: int
    begun_s: float
    done_s: float | None
    restored_s: float | None = None


class StepsFile:
    """The file of one rank.

    Args:
        folder: of the keeper.
        life: of :class:`~dmr.memory.piece.Generation`.
        clock: seconds of the host's monotonic clock.

    Raises:
        OSError: the folder is gone, or full.
    """

    def __init__(
        self, folder: Path, life: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._first = clock, -1
        path = folder / f"{life}-{os.getpid()}{SUFFIX}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(handle, 0, NUMBERS.size)
            self._memory = mmap.mmap(handle, NUMBERS.size)
        finally:
            os.close(handle)
        self._numbers = memoryview(self._memory).cast("d")

    def restored(self) -> None:
        """Take note that the state is that of the copies."""
        self._numbers[3] = self._clock()

    def begins(self, step: int) -> None:
        """Take note that a step begins."""
        numbers = self._numbers
        if self._first < 0:
            self._first = step
            numbers[0] = self._clock()
        elif not numbers[1] and step > self._first:
            numbers[1] = self._clock()
        numbers[2] = step


def steps_of(folder: Path, life: int, clock: Callable[[], float] = time.monotonic) -> Steps | None:
    """Return how far the ranks of a life on this host have come; None before their first step."""
    newest = None
    now = clock()
    for path in folder.glob(f"{life}-*{SUFFIX}"):
        with contextlib.suppress(OSError, struct.error):
            begun, done, step, restored = NUMBERS.unpack(path.read_bytes())
            if begun and (newest is None or step > newest.step):
                ends = [now - at if at else None for at in (done, restored)]
                newest = Steps(int(step), now - begun, *ends)
    return newest


def forget(folder: Path, life: int) -> None:
    """Remove the files of lives before this one."""
    for path in folder.glob(f"*{SUFFIX}"):
        if int(path.name.partition("-")[0]) < life:
            path.unlink(missing_ok=True)
