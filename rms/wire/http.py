"""Requests to the daemon, over a Unix socket or TCP, by the standard library.

Compute nodes import this: a thread of rank 0 polls for resize requests by it.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import time
from urllib.parse import urlsplit

from rms.wire.signing import ANSWER_HEADER, answer_signature, signed

RETRY_S = 0.02
"""After which a daemon is tried again that has more to accept than it can hold."""


class UnreachableError(OSError):
    """Nobody answers at the server's address."""


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
            except BlockingIOError:  # too many others wait to be accepted: over TCP it would wait
                if time.monotonic() >= until:
                    raise
                time.sleep(RETRY_S)
        _check_owner(self.sock, self._path)


def _check_owner(connected: socket.socket, path: str) -> None:
    """See that whoever listens is this user, before anything is said: not all systems can tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid != os.geteuid():
        connected.close()
        raise OSError(f"expected a daemon of user {os.geteuid()} at {path}, got one of user {uid}")


class Connection:
    """A connection to ``unix:PATH`` or ``http://HOST:PORT`` that is kept between requests.

    For one thread. It is opened when something is asked, and again where the server has closed it
    meanwhile: what is asked may then arrive twice.

    Raises:
        ValueError: an address of another form.
    """

    def __init__(self, server: str, timeout_s: float = 30.0) -> None:
        self._server, self._connection = server, _connect(server, timeout_s)
        self._used = False

    def request(
        self, method: str, path: str, body: bytes = b"", token: str = ""
    ) -> tuple[int, bytes]:
        """Send a request; return status and body, as :func:`request` does.

        Raises:
            UnreachableError: no connection, it broke off, or who answers does not know the token.
        """
        used, self._used = self._used, False
        try:
            try:
                found = self._exchange(method, path, body, token)
            except ConnectionError:
                if not used:
                    raise
                self._connection.close()
                found = self._exchange(method, path, body, token)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnreachableError(f"no answer from {self._server}: {error}") from None
        self._used = True
        return found

    def _exchange(self, method: str, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        headers, nonce = {"Content-Type": "application/json"}, ""
        if token and self._server.startswith("unix:"):
            headers["Authorization"] = f"Bearer {token}"
        elif token:
            nonce = os.urandom(16).hex()
            headers["Authorization"] = signed(token, method, path, nonce, body)
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if nonce and answer.status == 200:
            given = answer.headers.get(ANSWER_HEADER, "")
            if given != answer_signature(token, nonce, answer.status, said):
                raise OSError("expected an answer of this daemon, got one that it has not signed")
        return answer.status, said

    def close(self) -> None:
        """Close it; the next request opens another one."""
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
    """Send a request to ``unix:PATH`` or ``http://HOST:PORT``; return status and body.

    Over TCP the token is not sent: what is said is signed by it, and so is what is answered.

    Raises:
        UnreachableError: no connection, it broke off, or who answers does not know the token.
        ValueError: an address of another form.
    """
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
