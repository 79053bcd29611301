"""The control channel between rank 0 of two worlds: TCP, so that a death is noticed at once.

MPI cannot say that the other world has died; a socket can. What decides over a resize
(:mod:`dmr.wire.protocol`: header, acceptance, acknowledgement, commit) goes over this channel with
deadlines; MPI carries the fields.

The standard library's ``multiprocessing.connection`` is not used: its accept, its authentication
and its send have no deadline, and its handshake takes 44 ms (Nagle and delayed acknowledgements,
measured on loopback) where this one takes 0.1 to 0.3 ms of a resize's stall.
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

from dmr.wire.protocol import Message, decode, encode

LENGTH = struct.Struct("!Q")
LOOPBACK = "127.0.0.1"

AUTHENTICATE_S = 5.0
"""Time for a process that has connected to send the token."""

SEND_S = 5.0
"""Time for a message to be taken by the other side's socket."""


class ChannelError(Exception):
    """The other side is gone, or does not answer in time; one sentence."""


class PeerGoneError(ChannelError):
    """The other side is gone for certain: it has closed its end of the channel, or died."""


class ControlChannel:
    """One connection; closed by whoever opened it, in a ``with``."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poller = select.poll()  # not select: an application may have many open files
        self._poller.register(sock, select.POLLIN)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            PeerGoneError: the other side is gone.
        """
        body = encode(message)
        try:
            self._sock.settimeout(SEND_S)
            self._sock.sendall(LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise PeerGoneError(f"the other world is gone ({error})") from None

    def receive(self, deadline_s: float) -> Message:
        """Return the next message of the other side.

        Raises:
            PeerGoneError: it is gone.
            ChannelError: it sends nothing within ``deadline_s``.
        """
        until = time.monotonic() + deadline_s
        (length,) = LENGTH.unpack(self._read(LENGTH.size, until, deadline_s))
        return decode(self._read(length, until, deadline_s))

    @property
    def peer_gone(self) -> bool:
        """Whether the other side has closed its end, or died."""
        if not self.readable:
            return False
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True

    @property
    def readable(self) -> bool:
        """Whether there is something to receive, or the end of the connection."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def __enter__(self) -> ControlChannel:
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
                raise ChannelError(f"the other world did not answer within {deadline_s:g} s")
            try:
                self._sock.settimeout(left)
                part = self._sock.recv(count - len(found))
            except TimeoutError:
                continue
            except OSError as error:
                raise PeerGoneError(f"the other world is gone ({error})") from None
            if not part:
                raise PeerGoneError("the other world is gone")
            found += part
        return bytes(found)


class Listener:
    """A listening socket, and the token by which whoever connects authenticates itself.

    Attributes:
        address: ``host:port:token``, for :func:`connect`.
    """

    def __init__(self, host: str) -> None:
        self._sock = socket.create_server((host if host == LOOPBACK else "", 0))
        self._token = secrets.token_hex(16)
        self.address = f"{host}:{self._sock.getsockname()[1]}:{self._token}"

    def accept(self, deadline_s: float) -> ControlChannel:
        """Return the channel to the first process that has the token; sleeps meanwhile.

        Raises:
            ChannelError: none connected within ``deadline_s``.
        """
        until = time.monotonic() + deadline_s
        while (left := until - time.monotonic()) > 0:
            self._sock.settimeout(left)
            try:
                sock, _ = self._sock.accept()
            except TimeoutError:
                break
            if self._authenticate(sock):
                return ControlChannel(sock)
            sock.close()
        raise ChannelError(f"nobody connected within {deadline_s:g} s")

    def _authenticate(self, sock: socket.socket) -> bool:
        """Return whether the other side of a new connection sends the token."""
        with contextlib.suppress(OSError):
            sock.settimeout(AUTHENTICATE_S)
            sent = sock.recv(len(self._token), socket.MSG_WAITALL)
            return hmac.compare_digest(sent, self._token.encode())
        return False

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()


def connect(address: str, deadline_s: float) -> ControlChannel:
    """Return a channel to a :class:`Listener`.

    Raises:
        PeerGoneError: nobody listens there.
    """
    host, port, token = address.rsplit(":", 2)
    try:
        sock = socket.create_connection((host, int(port)), deadline_s)
        sock.sendall(token.encode())
    except OSError as error:
        raise PeerGoneError(f"the new world is gone ({error})") from None
    return ControlChannel(sock)
