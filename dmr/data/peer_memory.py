"""Memory of another rank on this node, read by the kernel (Linux: ``process_vm_readv``).

Messages take a handshake each, between ranks that may share a core. Here the receiver reads what
it needs by itself. Where the kernel does not allow it (another node, another user, Yama's
``ptrace_scope``, no Linux) an offer is declined, and the data goes by messages.
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

_token: Words = np.frombuffer(os.urandom(8), np.uint64)
"""Tells this process's memory from that of a process of the same number on another node."""


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
    """Reads a stretch of another rank's memory from its beginning on."""

    pid: int
    address: int

    def fill(self, into: Buffer) -> None:
        """Read as many bytes as a buffer has, and go on from there the next time.

        Raises:
            TransferError: the other rank is gone, or its memory is.
        """
        count = _read(self.pid, self.address, into)
        if count != into.nbytes:
            why = os.strerror(ctypes.get_errno()) if count < 0 else f"{count}"
            raise TransferError(f"expected {into.nbytes} bytes of process {self.pid}, got {why}")
        self.address += into.nbytes


def accept(offered: Words) -> Reader | None:
    """Return a reader, None if the memory that is offered cannot be read from here."""
    pid, at, token, address = map(int, offered)
    found = np.zeros(1, np.uint64)
    if _read(pid, at, found) != found.nbytes or int(found[0]) != token:
        return None
    return Reader(pid, address)
