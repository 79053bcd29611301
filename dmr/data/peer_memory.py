"""Memory of another rank on this node, read by the kernel (Linux: ``process_vm_readv``).

MPI moves a large message within a node by the same call, but with a handshake for each message
between ranks that may share a core. Here the receiver reads what it needs by itself. Where the
kernel does not allow it (another node, another user, Yama's ``ptrace_scope``, no Linux) an offer is
declined, and the data goes by messages.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmr.errors import TransferError

Words = npt.NDArray[np.uint64]
Buffer = npt.NDArray[Any]

OFFER_WORDS = 4
ANSWER_WORDS = 2

_token: Words = np.frombuffer(os.urandom(8), np.uint64)
"""Tells this process's memory from that of a process of the same number on another node."""

_NEVER: Words = np.zeros(ANSWER_WORDS, np.uint64)


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _function() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (AttributeError, OSError):
        return None
    numbers, ranges = (ctypes.c_ulong,), (ctypes.POINTER(_Range), ctypes.c_ulong)
    found.argtypes, found.restype = (ctypes.c_int, *ranges, *ranges, *numbers), ctypes.c_ssize_t
    return found


_readv = _function()


def _read(pid: int, address: int, into: Buffer) -> int:
    """Fill a buffer from a process's memory; return how many bytes could be read, -1 for none."""
    if _readv is None:
        return -1
    here, there = _Range(into.ctypes.data, into.nbytes), _Range(address, into.nbytes)
    return int(_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def offer(first: Buffer) -> Words:
    """Return what another rank needs to read this one's memory from the start of ``first`` on."""
    words = (os.getpid(), _token.ctypes.data, int(_token[0]), first.ctypes.data)
    return np.array(words, np.uint64)


@dataclass
class Reader:
    """Reads a stretch of another rank's memory from its beginning on.

    Attributes:
        answer: for the rank whose memory it is.
    """

    pid: int
    address: int

    def __post_init__(self) -> None:
        self._read = np.zeros(1, np.uint64)
        """Bytes read so far; the other rank looks at them."""

    @property
    def answer(self) -> Words:
        """What the other rank needs to follow."""
        return np.array((os.getpid(), self._read.ctypes.data), np.uint64)

    def fill(self, into: Buffer) -> None:
        """Read as many bytes as a buffer has.

        Raises:
            TransferError: the other rank is gone, or its memory is.
        """
        done = int(self._read[0])
        count = _read(self.pid, self.address + done, into)
        if count != into.nbytes:
            why = os.strerror(ctypes.get_errno()) if count < 0 else f"{count}"
            raise TransferError(f"expected {into.nbytes} bytes of process {self.pid}, got {why}")
        self._read[0] = done + into.nbytes


def accept(offered: Words) -> Reader | None:
    """Return a reader, None if the memory that is offered cannot be read from here."""
    pid, at, token, address = map(int, offered)
    found = np.zeros(1, np.uint64)
    if _read(pid, at, found) != found.nbytes or int(found[0]) != token:
        return None
    return Reader(pid, address)


def declined() -> Words:
    """Return the answer of a rank that cannot read what it was offered."""
    return _NEVER.copy()


@dataclass
class Follower:
    """Looks how far the rank is that reads this one's memory."""

    pid: int
    address: int

    @classmethod
    def of(cls, answer: Words) -> Follower | None:
        """Return one for a reader's answer, None if it has declined."""
        pid, address = map(int, answer)
        return cls(pid, address) if pid else None

    def has_read(self, count: int) -> bool:
        """Return whether so many bytes have been read, or nobody can tell."""
        done = np.zeros(1, np.uint64)
        return _read(self.pid, self.address, done) != done.nbytes or int(done[0]) >= count
