"""Errors that all ranks of a world raise together."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from dmr.system.watch import WATCH

if TYPE_CHECKING:
    from mpi4py import MPI


class CollectiveError(Exception):
    """Raised by all ranks together, so that the world can end without MPI_Abort."""

    exit_code = 1


class UsageError(CollectiveError):
    """A request of the user cannot be met; one sentence, expected and got."""

    exit_code = 2


class LostRunError(CollectiveError):
    """The job of this run was requeued, and a later run of it has its files."""


class TransferError(Exception):
    """Data cannot be moved to its new rank; one sentence. Raised by one rank."""


class RolledBackError(Exception):
    """A resize has failed, for the reason in the message. Raised by all ranks of a world.

    The old world goes on as it was; the new one leaves.
    """


class Left(SystemExit):
    """Ends a rank that has no part in the job any more: of an old or a refused new world.

    Args:
        code: its exit status.
        wait: ends MPI in this rank, waits for the next world, and returns the exit status.
    """

    def __init__(self, code: int = 0, wait: Callable[[], int] | None = None) -> None:
        super().__init__(code)
        self._wait = wait

    def settle(self) -> None:
        """Wait for the next world, where its status is that of this rank."""
        wait, self._wait = self._wait, None
        if wait is not None:
            self.code = wait()


def raise_on_all(comm: MPI.Intracomm, error: str | None) -> None:
    """Raise :class:`UsageError` on all ranks if any rank has an error (collective).

    The message is that of the lowest such rank.
    """
    with WATCH.within("dmr.raise_on_all"):
        texts = comm.allgather(error)
    message = next((text for text in texts if text is not None), None)
    if message is not None:
        raise UsageError(message)


def outside_block(what: str) -> RuntimeError:
    """Return the error of a call that needs the ranks of a run, outside of its block."""
    return RuntimeError(
        f"expected {what} inside the block of dmr.malleable, where it may stand after the loop, "
        "got it outside: indent this line"
    )


def described(error: BaseException) -> str:
    """Return an exception's type and message; without a message, the line that raised it."""
    kind, words = type(error).__name__, str(error)
    if words:
        return f"{kind}: {words}"
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{kind} at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
        if frames
        else kind
    )


def print_line(text: str, file: TextIO) -> None:
    """Print a line about the run; a closed pipe or a full disk does not end the run."""
    with contextlib.suppress(OSError):
        print(text, file=file, flush=True)


def words_of(error: Exception) -> str:
    """Return the system's message of an error: HDF5 adds a page of its own state."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else " ".join(str(error).split())
