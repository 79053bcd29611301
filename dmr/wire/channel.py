"""The control channel between rank 0 of two worlds, and the messages of a resize.

It is TCP with deadlines, which reports the death of the other world at once; MPI does not. MPI
carries the fields.

Both sides authenticate each other by the listener's token, which is not sent: the listener sends
a nonce; the connector a nonce of its own and an HMAC of both nonces and of the listener's address;
the listener another HMAC of these. The address prevents relay attacks. Unauthenticated connections
do not delay others.

The standard library's ``multiprocessing.connection`` has no deadline for accept, authentication
and send, and Nagle's algorithm and delayed acknowledgements slow its handshake.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dmr.state.progress import OpenResize

# --- the messages ---------------------------------------------------------------------------------


class Header(msgspec.Struct, tag=True):
    """Old to new: the job, before any of its data moves."""

    ranks: int
    from_ranks: int
    strategy: str
    progress: msgspec.Raw
    """A result of :func:`dmr.state.progress.encode`."""
    signature: dict[str, Any]
    options: dict[str, Any]
    on_host: bool
    """Whether all fields are in host memory, so that blocks of one shape need no packing."""
    joined: tuple[tuple[int, int], ...] = ()
    """Launches that are to join (merge) and ranks of each, in order; none if spawned."""
    place: int = 0
    """Index in ``joined`` of the launch that this header is sent to."""


class Accepted(msgspec.Struct, tag=True):
    """New to old: it has the same fields and options.

    Attributes:
        on_host: whether its blocks are in host memory.
        receivers: one rank of each of its nodes, which share fields that every rank has whole.
    """

    on_host: bool
    receivers: tuple[int, ...] = ()


class Refused(msgspec.Struct, tag=True):
    """Either way: the resize is refused, and why."""

    why: str


class Stored(msgspec.Struct, tag=True):
    """Old to new: the fields are in this checkpoint."""

    folder: str
    step: int


class Arrived(msgspec.Struct, tag=True):
    """New to old (merge): every cell is here with its right hash."""

    move_s: float


class Build(msgspec.Struct, tag=True):
    """Old to new (merge): every cell is on its rank; build with the old world."""


class Acknowledged(msgspec.Struct, tag=True):
    """New to old: every cell is here with its right hash, and ``build`` has run."""

    move_s: float
    build_s: float


class Committed(msgspec.Struct, tag=True):
    """Old to new: the job is yours."""

    cost: OpenResize


class TakenOver(msgspec.Struct, tag=True):
    """New to old: this world has taken the job over; leave."""


Message = (
    Header | Accepted | Refused | Stored | Arrived | Build | Acknowledged | Committed | TakenOver
)
_decoder = msgspec.json.Decoder(Message)


# --- the channel that carries them --------------------------------------------------------------

LENGTH = struct.Struct("!Q")
LOOPBACK = "127.0.0.1"

NONCE_BYTES = 16
PROOF_BYTES = 32

MAX_UNAUTHENTICATED = 64
"""Maximum number of open unauthenticated connections; a further one replaces the oldest."""

WAKE_BYTES = 1 << 20
"""Bytes that a receiver of many waits for: it takes the core from a rank less often."""

SEND_S = 5.0
"""Timeout of sending a message."""


class ChannelError(Exception):
    """The other side is gone, or does not answer in time; the message is one sentence."""


class PeerGoneError(ChannelError):
    """The other side has closed its end of the channel, or died."""


class SilentError(ChannelError):
    """The other side does not answer in time, or cannot be reached: it may live, and go on."""


class ControlChannel:
    """One connection, a context manager that closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poller = select.poll()  # not select: an application may have many open files
        self._poller.register(sock, select.POLLIN)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message."""
        body = msgspec.json.encode(message)
        self.write(LENGTH.pack(len(body)) + body)

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes, as :meth:`send` does."""
        try:
            self._sock.settimeout(SEND_S)
            self._sock.sendall(data)
        except OSError as error:
            raise _lost(error) from None

    def receive(self, deadline_s: float) -> Message:
        """Return the next message of the other side.

        Raises:
            PeerGoneError: the other side is gone.
            SilentError: it sends nothing within ``deadline_s``, or cannot be reached.
        """
        until = time.monotonic() + deadline_s
        (length,) = LENGTH.unpack(self.read(LENGTH.size, until, deadline_s))
        message: Message = _decoder.decode(self.read(length, until, deadline_s))
        return message

    @property
    def readable(self) -> bool:
        """Whether there is something to receive, or the end of the connection."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, count: int, until: float, deadline_s: float) -> bytes:
        """Return ``count`` bytes, received before the time ``until`` of the monotonic clock."""
        received = bytearray()
        while len(received) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise SilentError(f"the other world did not answer within {deadline_s:g} s")
            try:
                self._sock.settimeout(left)
                part = self._sock.recv(count - len(received))
            except TimeoutError:
                continue
            except OSError as error:
                raise _lost(error) from None
            if not part:
                raise PeerGoneError("the other world is gone")
            received += part
        return bytes(received)

    def read_into(self, buffer: memoryview, silent_s: float) -> None:
        """Fill a buffer with the next bytes of the other side.

        Raises:
            PeerGoneError: the other side is gone.
            SilentError: fewer than :data:`WAKE_BYTES` come within ``silent_s``, or it cannot be
                reached.
        """
        self._sock.settimeout(silent_s)
        at = 0
        try:
            while at < len(buffer):
                self._wake_at(min(WAKE_BYTES, len(buffer) - at))
                count = self._sock.recv_into(buffer[at:])
                if not count:
                    raise PeerGoneError("the other side is gone")
                at += count
            self._wake_at(1)
        except TimeoutError:
            raise SilentError(f"the other side sent too little within {silent_s:g} s") from None
        except OSError as error:
            raise _lost(error) from None

    def _wake_at(self, count: int) -> None:
        """Let a receiver sleep until so many bytes have come, or the end of the connection."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def readable_within(self, wait_s: float | None) -> bool:
        """Wait until there is something to receive, or the end of the connection.

        Args:
            wait_s: for so long; None for as long as it takes.
        """
        return bool(self._poller.poll(None if wait_s is None else 1000 * wait_s))

    def end_sending(self) -> None:
        """Let the other side see the end of the connection; it may still send."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def shut(self) -> None:
        """End the connection for both sides, also while another thread reads from it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def _lost(error: OSError) -> ChannelError:
    """Return the error of a connection that failed; it was reset only where its process ended."""
    if isinstance(error, ConnectionError):
        return PeerGoneError(f"the other world is gone ({error})")
    return SilentError(f"the other world cannot be reached ({error})")


def _proof(token: str, side: str, address: Sequence[Any], nonces: bytes) -> bytes:
    """Return the HMAC by which a side authenticates itself."""
    host, port = address[:2]
    return hmac.digest(token.encode(), f"{side} {host} {port} ".encode() + nonces, "sha256")


class Listener:
    """A listening socket, and the token by which both sides of a connection authenticate.

    Attributes:
        address: ``host:port:token``, for :func:`connect`.
    """

    def __init__(self, host: str) -> None:
        self._sock = socket.create_server((host if host == LOOPBACK else "", 0))
        self._sock.setblocking(False)
        self._token, port = secrets.token_hex(16), self._sock.getsockname()[1]
        self._unauthenticated: dict[int, tuple[socket.socket, bytes, bytearray]] = {}
        self.address = f"{host}:{port}:{self._token}"

    def accept(self, deadline_s: float) -> ControlChannel:
        """Return the channel to the first process that has the token; sleeps meanwhile."""
        until = time.monotonic() + deadline_s
        while (left := until - time.monotonic()) > 0:
            poller = select.poll()
            for number in (self._sock.fileno(), *self._unauthenticated):
                poller.register(number, select.POLLIN)
            for number, _ in poller.poll(1000 * left):
                if number == self._sock.fileno():
                    self._greet()
                elif (channel := self._authenticated(number)) is not None:
                    return channel
        raise ChannelError(f"no connection within {deadline_s:g} s")

    def _greet(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._sock.accept()
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._unauthenticated[sock.fileno()] = sock, nonce, bytearray()
            sock.setblocking(False)
            sock.send(nonce)
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            self._unauthenticated.pop(next(iter(self._unauthenticated)))[0].close()

    def _authenticated(self, number: int) -> ControlChannel | None:
        """Return the channel of an authenticated connection, None of any other."""
        if number not in self._unauthenticated:  # closed in the meantime
            return None
        sock, nonce, received = self._unauthenticated[number]
        part = b""
        with contextlib.suppress(OSError):
            part = sock.recv(NONCE_BYTES + PROOF_BYTES - len(received))
        received += part
        if part and len(received) < NONCE_BYTES + PROOF_BYTES:
            return None
        del self._unauthenticated[number]
        nonces, proof = nonce + received[:NONCE_BYTES], received[NONCE_BYTES:]
        with contextlib.suppress(OSError):
            address = sock.getsockname()
            if hmac.compare_digest(proof, _proof(self._token, "connector", address, nonces)):
                sock.send(_proof(self._token, "listener", address, nonces))
                return ControlChannel(sock)
        sock.close()
        return None

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()
        for sock, _, _ in self._unauthenticated.values():
            sock.close()
        self._unauthenticated.clear()


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of a listener's address: the loopback address for this host's own.

    A host's own name need not resolve there.
    """
    host, port, _ = address.rsplit(":", 2)
    return (LOOPBACK if host == socket.gethostname() else host), int(port)


def connect(address: str, deadline_s: float) -> ControlChannel:
    """Return a channel to a :class:`Listener`.

    Raises:
        PeerGoneError: nobody listens there.
        ChannelError: the listener does not authenticate itself in time.
    """
    (host, port), token = place_of(address), address.rpartition(":")[2]
    until = time.monotonic() + deadline_s
    try:
        sock = socket.create_connection((host, port), deadline_s)
        channel, peer = ControlChannel(sock), sock.getpeername()
    except OSError as error:
        raise PeerGoneError(f"the new world is gone ({error})") from None
    try:
        mine = secrets.token_bytes(NONCE_BYTES)
        nonces = channel.read(NONCE_BYTES, until, deadline_s) + mine
        channel.write(mine + _proof(token, "connector", peer, nonces))
        proof = channel.read(PROOF_BYTES, until, deadline_s)
        if not hmac.compare_digest(proof, _proof(token, "listener", peer, nonces)):
            raise ChannelError(f"expected the other world at {host}:{port}, got another process")
    except ChannelError:
        channel.close()
        raise
    return channel
