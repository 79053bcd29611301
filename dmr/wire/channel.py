"""A line between the first ranks of two worlds: TCP, so that a death is heard at once.

MPI cannot say that the other world has died; a socket can. What decides over a resize (header,
acceptance, acknowledgement, commit) goes over this line with deadlines; MPI carries the fields.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import struct
import time
from types import TracebackType
from typing import Any

import msgspec

from dmr.progress import OpenResize, Progress

LENGTH = struct.Struct("!Q")
LOOPBACK = "127.0.0.1"
KNOCK_S = 5.0
"""Time for somebody who has connected to say the word."""


class LineError(Exception):
    """The other side is gone, or says nothing; one sentence."""


class LostError(LineError):
    """The other side is gone for certain: its end of the line is closed."""


class Header(msgspec.Struct, tag=True):
    """Old to new: what is to move, before anything does."""

    ranks: int
    grid: tuple[int, ...]
    strategy: str
    progress: Progress
    signature: dict[str, Any]
    options: dict[str, Any]
    in_host: bool
    """Whether all fields lie in host memory, so that blocks of one shape need no packing."""
    measure: bool
    """Whether plain sends of as many bytes are to be timed as well."""
    joined: tuple[tuple[int, int], ...] = ()
    """Launches that are to join (merge) and ranks of each, in order; none if spawned."""
    place: int = 0
    """Which of them is spoken to."""


class Accepted(msgspec.Struct, tag=True):
    """New to old: the fields and options are those it would have."""

    in_host: bool


class Refused(msgspec.Struct, tag=True):
    """Either way: no, and why."""

    why: str


class Stored(msgspec.Struct, tag=True):
    """Old to new: the fields are in this checkpoint."""

    folder: str
    step: int


class Arrived(msgspec.Struct, tag=True):
    """New to old (merge): every cell is here with its right hash."""

    move_s: float


class Build(msgspec.Struct, tag=True):
    """Old to new (merge): every cell is where it belongs, on all ranks; build with us."""


class Acknowledged(msgspec.Struct, tag=True):
    """New to old: every cell is here with its right hash, and ``build`` has run."""

    move_s: float
    raw_s: float
    aside_s: float
    build_s: float


class Committed(msgspec.Struct, tag=True):
    """Old to new: the job is yours."""

    cost: OpenResize


class Settled(msgspec.Struct, tag=True):
    """New to old: it is taken; leave."""


Message = (
    Header | Accepted | Refused | Stored | Arrived | Build | Acknowledged | Committed | Settled
)
_decoder = msgspec.json.Decoder(Message)


class Line:
    """One connection; closed by whoever opened it, in a ``with``."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Say something.

        Raises:
            LostError: nobody hears it any more.
        """
        body = msgspec.json.encode(message)
        try:
            self._sock.settimeout(KNOCK_S)
            self._sock.sendall(LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise LostError(f"the other world is gone ({error})") from None

    def receive(self, deadline_s: float) -> Message:
        """Return what the other side says next.

        Raises:
            LostError: it is gone.
            LineError: it says nothing within ``deadline_s``.
        """
        until = time.monotonic() + deadline_s
        (length,) = LENGTH.unpack(self._read(LENGTH.size, until, deadline_s))
        message: Message = _decoder.decode(self._read(length, until, deadline_s))
        return message

    @property
    def lost(self) -> bool:
        """Whether the other side has closed its end, or died."""
        if not select.select([self._sock], [], [], 0)[0]:
            return False
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True

    @property
    def spoke(self) -> bool:
        """Whether there is something to receive, or the end of the line."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, count: int, until: float, deadline_s: float) -> bytes:
        found = bytearray()
        while len(found) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise LineError(f"the other world did not answer within {deadline_s:g} s")
            try:
                self._sock.settimeout(left)
                part = self._sock.recv(count - len(found))
            except TimeoutError:
                continue
            except OSError as error:
                raise LostError(f"the other world is gone ({error})") from None
            if not part:
                raise LostError("the other world is gone")
            found += part
        return bytes(found)


class Door:
    """A listening socket with a word that a caller must know.

    Attributes:
        address: ``host:port:word``, for :func:`call`.
    """

    def __init__(self, host: str) -> None:
        self._sock = socket.create_server((host if host == LOOPBACK else "", 0))
        self._word = secrets.token_hex(16)
        self.address = f"{host}:{self._sock.getsockname()[1]}:{self._word}"

    def wait(self, deadline_s: float) -> Line:
        """Return the line of the first caller who knows the word; sleeps meanwhile.

        Raises:
            LineError: nobody came within ``deadline_s``.
        """
        until = time.monotonic() + deadline_s
        while (left := until - time.monotonic()) > 0:
            self._sock.settimeout(left)
            try:
                sock, _ = self._sock.accept()
            except TimeoutError:
                break
            with contextlib.suppress(OSError):
                sock.settimeout(KNOCK_S)
                said = sock.recv(len(self._word), socket.MSG_WAITALL)
                if hmac.compare_digest(said, self._word.encode()):
                    return Line(sock)
            sock.close()
        raise LineError(f"nobody called within {deadline_s:g} s")

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()


def call(address: str, deadline_s: float) -> Line:
    """Return a line to a :class:`Door`.

    Raises:
        LostError: nobody listens there.
    """
    host, port, word = address.rsplit(":", 2)
    try:
        sock = socket.create_connection((host, int(port)), deadline_s)
        sock.sendall(word.encode())
    except OSError as error:
        raise LostError(f"the new world is gone ({error})") from None
    return Line(sock)
