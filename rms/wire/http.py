"""Requests to the daemon, over a Unix socket or TCP, by the standard library.

Compute nodes import this: a thread of rank 0 polls for resize requests by it.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import time
from hmac import compare_digest
from urllib.parse import urlsplit

from rms.wire.signing import ANSWER_HEADER, HELLO, HELLO_PATH, Session, digest, nonce, token_name

RETRY_S = 0.02  # time until the next attempt if the daemon's backlog is full
MOST_HELLO_BYTES = 1 << 10
_HELLO = re.compile(rb"(?i)\r\n%s: ([0-9a-f]{32}) ([0-9a-f]{64})\r\n" % HELLO.encode())


class UnreachableError(OSError):
    """The server does not answer at its address."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        until = time.monotonic() + (self.timeout or 0.0)
        while True:
            try:
                self.sock.connect(self._path)
                break
            except BlockingIOError:  # the backlog is full: TCP would wait
                if time.monotonic() >= until:
                    raise
                time.sleep(RETRY_S)
        if not hasattr(socket, "SO_PEERCRED"):
            return
        size, own = struct.calcsize("3i"), os.geteuid()
        credentials = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, _ = struct.unpack("3i", credentials)
        if uid != own:
            self.sock.close()
            raise OSError(f"expected a daemon of user {own} at {self._path}, got one of user {uid}")


class Connection:
    """A connection to ``unix:PATH`` or ``http://HOST:PORT`` that is kept between requests.

    One thread may use it. It is opened again if the server has closed it; a request may then arrive
    twice. Over TCP both sides prove that they have the token (:mod:`rms.wire.signing`).

    Raises:
        ValueError: an address of another form.
    """

    def __init__(self, server: str, timeout_s: float = 30.0) -> None:
        self._server, self._connection = server, _connect(server, timeout_s)
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
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = getattr(error, "strerror", None) or error
            raise UnreachableError(f"no answer from {self._server}: {why}") from None
        self._used = True
        return answer

    def _exchange(self, method: str, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        session = None
        if not self._server.startswith("unix:"):
            session = self._authenticated(token, token_name(path))
            headers["Authorization"] = session.sign_request(method, path, digest(body))
        elif token:
            headers["Authorization"] = f"Bearer {token}"
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if session is not None:
            signed = answer.headers.get(ANSWER_HEADER, "")
            expected = session.sign_answer(answer.status, content)
            if not compare_digest(signed.encode(), expected.encode()):
                raise OSError("expected an answer signed with the daemon's token, got another one")
        return answer.status, content

    def _authenticated(self, token: str, name: str) -> Session:
        """Return the session of a token on the open connection, after a handshake where needed."""
        if not token:
            raise OSError("expected the daemon's token, got none")
        is_open, session = self._connection.sock is not None, self._session
        if is_open and session is not None and (self._token, session.name) == (token, name):
            return session
        self.close()
        self._connection.auto_open = 0  # no silent reconnection after the handshake
        self._connection.connect()
        client = nonce()
        server, proof = self._hello(f"{HELLO} {name} {client}")
        session = Session.derive(token, name, self._connection.sock.getpeername(), client, server)
        if not compare_digest(proof, session.proof):
            raise OSError("expected a daemon that has this token, got a process that has not")
        self._session, self._token = session, token
        return session

    def _hello(self, authorization: str) -> tuple[str, str]:
        """Send a handshake; return nonce and proof of the answer, which is not trusted yet."""
        sock, until_s = self._connection.sock, time.monotonic() + self._timeout_s
        host, received = f"Host: {self._connection.host}", b""
        lines = f"GET {HELLO_PATH} HTTP/1.1", host, f"Authorization: {authorization}", "", ""
        self._connection.send("\r\n".join(lines).encode())
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
        self._connection.close()


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


def _connect(server: str, timeout_s: float) -> http.client.HTTPConnection:
    if server.startswith("unix:"):
        return _UnixConnection(server.removeprefix("unix:"), timeout_s)
    parts = urlsplit(server)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"expected unix:PATH or http://HOST:PORT, got {server!r}")
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
