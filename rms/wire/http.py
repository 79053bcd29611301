"""Requests to the daemon, over a Unix socket or TCP.

Compute nodes import this: a thread of rank 0 polls for resize requests by it.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import urlsplit

from rms.wire.signing import ANSWER_HEADER, HELLO, HELLO_PATH, Session, digest, nonce, token_name

RETRY_S = 0.02  # time until the next attempt if the daemon's backlog is full
MOST_HELLO_BYTES = 1 << 10
MOST_HEAD_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})[ \r]")
_NOT_IN_PATHS = re.compile(r"[\x00-\x20\x7f]")
_LENGTH, _ENDLESS = re.compile(rb"\d{1,15}"), 1 << 62
_SIGNATURE = ANSWER_HEADER.lower().encode()
_HELLO = re.compile(rb"(?i)\r\n%s: ([0-9a-f]{32}) ([0-9a-f]{64})\r\n" % HELLO.encode())


class UnreachableError(OSError):
    """The server does not answer at its address."""


class Connection:
    """A connection to ``unix:PATH`` or ``http://HOST:PORT`` that is kept between requests.

    One thread may use it. It is opened again if the server has closed it; a request may then arrive
    twice. Over TCP both sides prove that they have the token (:mod:`rms.wire.signing`).

    Raises:
        ValueError: an address of another form.
    """

    def __init__(self, server: str, timeout_s: float = 30.0) -> None:
        self._server, self._address = server, _address(server)
        self._socket: socket.socket | None = None
        self._used, self._timeout_s = False, timeout_s
        self._session: Session | None = None
        self._token = ""

    def request(
        self, method: str, path: str, body: bytes = b"", token: str = ""
    ) -> tuple[int, bytes]:
        """Send a request; return status and body.

        Raises:
            UnreachableError: no connection, the connection broke, or the other side has not proven
                that it has the token.
        """
        used, self._used = self._used, False
        try:
            try:
                answer = self._exchange(method, path, body, token)
            except ConnectionError:
                if not used:
                    raise
                self.close()
                answer = self._exchange(method, path, body, token)
        except OSError as error:
            self.close()
            why = getattr(error, "strerror", None) or error
            raise UnreachableError(f"no answer from {self._server}: {why}") from None
        self._used = True
        return answer

    def _exchange(self, method: str, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        session, authorization = None, ""
        if not isinstance(self._address, str):
            session = self._authenticated(token, token_name(path))
            authorization = session.sign_request(method, path, digest(body))
        elif token:
            authorization = f"Bearer {token}"
        if _NOT_IN_PATHS.search(path):
            raise ValueError(f"expected a path without spaces and control characters, got {path!r}")
        words = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        words.append("Content-Type: application/json")
        if authorization:
            words.append(f"Authorization: {authorization}")
        self._send("\r\n".join((*words, "", "")).encode("ascii") + body)
        answer = _receive(self._opened())
        if session is not None:
            expected = session.sign_answer(answer.status, answer.content)
            if not compare_digest(answer.signature, expected.encode()):
                raise OSError("expected an answer signed with the daemon's token, got another one")
        if answer.closed:
            self.close()
        return answer.status, answer.content

    @property
    def _host(self) -> str:
        if isinstance(self._address, str):
            return "localhost"
        host, _ = self._address
        return f"[{host}]" if ":" in host else host

    def _send(self, data: bytes) -> None:
        self._opened().sendall(data)

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._socket = _open(self._address, self._timeout_s)
        return self._socket

    def _authenticated(self, token: str, name: str) -> Session:
        """Return the session of a token on the open connection, after a handshake where needed."""
        if not token:
            raise OSError("expected the daemon's token, got none")
        is_open, session = self._socket is not None, self._session
        if is_open and session is not None and (self._token, session.name) == (token, name):
            return session
        self.close()
        opened, client = self._opened(), nonce()
        server, proof = self._hello(opened, f"{HELLO} {name} {client}")
        session = Session.derive(token, name, opened.getpeername(), client, server)
        if not compare_digest(proof, session.proof):
            raise OSError("expected a daemon that has this token, got a process that has not")
        self._session, self._token = session, token
        return session

    def _hello(self, sock: socket.socket, authorization: str) -> tuple[str, str]:
        """Send a handshake; return nonce and proof of the answer, which is not trusted yet."""
        host, received = f"Host: {self._host}", b""
        until_s = time.monotonic() + self._timeout_s
        lines = f"GET {HELLO_PATH} HTTP/1.1", host, f"Authorization: {authorization}", "", ""
        self._send("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in received and len(received) < MOST_HELLO_BYTES:
            sock.settimeout(max(until_s - time.monotonic(), 1e-3))
            part = sock.recv(MOST_HELLO_BYTES)
            if not part:
                raise ConnectionResetError("the connection was closed")
            received += part
        sock.settimeout(self._timeout_s)
        match = _HELLO.search(received) if received.endswith(b"\r\n\r\n") else None
        return ("", "") if match is None else (match[1].decode(), match[2].decode())

    def close(self) -> None:
        """Close it; the next request opens another one."""
        self._session = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def request(
    server: str,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    token: str = "",
    timeout_s: float = 30.0,
) -> tuple[int, bytes]:
    """Send one request over a :class:`Connection`; return status and body."""
    connection = Connection(server, timeout_s)
    try:
        return connection.request(method, path, body, token)
    finally:
        connection.close()


Address = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""


def _address(server: str) -> Address:
    if server.startswith("unix:"):
        return server.removeprefix("unix:")
    parts = urlsplit(server)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"expected unix:PATH or http://HOST:PORT, got {server!r}")
    return parts.hostname, parts.port


def _open(address: Address, timeout_s: float) -> socket.socket:
    """Connect to a server; a Unix socket has to be of a process of this user."""
    if not isinstance(address, str):
        opened = socket.create_connection(address, timeout_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened
    opened, until_s = socket.socket(socket.AF_UNIX), time.monotonic() + timeout_s
    try:
        opened.settimeout(timeout_s)
        while True:
            try:
                opened.connect(address)
                break
            except BlockingIOError:  # the backlog is full: TCP would wait
                if time.monotonic() >= until_s:
                    raise
                time.sleep(RETRY_S)
        if hasattr(socket, "SO_PEERCRED"):
            size, own = struct.calcsize("3i"), os.geteuid()
            credentials = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            _, uid, _ = struct.unpack("3i", credentials)
            if uid != own:
                raise OSError(
                    f"expected a daemon of user {own} at {address}, got one of user {uid}"
                )
    except BaseException:
        opened.close()
        raise
    return opened


class _Answer(NamedTuple):
    status: int
    content: bytes
    signature: bytes
    closed: bool
    """Whether the server closes the connection after it."""


def _receive(sock: socket.socket) -> _Answer:
    """Receive an answer, of a stated length or up to the end of the connection.

    The standard library's client takes three times as long, for all that other servers may answer.

    Raises:
        OSError: the connection broke, or it is no such answer.
    """
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > MOST_HEAD_BYTES:
            raise OSError("expected an answer of HTTP, got none")
        part = sock.recv(MOST_HEAD_BYTES)
        if not part:
            if received:
                raise OSError("the connection was closed during an answer")
            raise ConnectionResetError("the connection was closed")
        received += part
    status = _STATUS.match(received)
    if status is None:
        raise OSError("expected an answer of HTTP, got another one")
    lines = received[:end].lower().split(b"\r\n")[1:]
    head = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if b"transfer-encoding" in head:
        raise OSError("expected an answer in one piece, got one in chunks")
    length, parts = head.get(b"content-length"), [received[end + 4 :]]
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise OSError("expected the length of the answer, got another one")
    stated = _ENDLESS if length is None else int(length)
    left = stated - len(parts[0])
    while left > 0:
        part = sock.recv(min(left, 1 << 20))
        if not part and length is not None:
            raise OSError("the connection was closed during an answer")
        if not part:
            break
        parts.append(part)
        left -= len(part)
    kept = length is not None and status[1] == b"1" and head.get(b"connection") != b"close"
    content = b"".join(parts)[:stated]
    return _Answer(int(status[2]), content, head.get(_SIGNATURE, b""), not kept or left < 0)
