"""One request to the daemon, over a Unix socket or TCP. Standard library only.

Every rank and every launcher line imports this, so it does without ``http.client``, whose import
(with ``email`` and ``ssl``) takes as long as all else that a launcher line needs.
"""

from __future__ import annotations

import socket
from typing import BinaryIO

MOST_HEADERS = 100
"""Header lines of an answer, at most; the daemon sends four."""


class UnreachableError(OSError):
    """Nobody answers at the server's address."""


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

    Raises:
        UnreachableError: no connection, it broke off, or what answers does not speak HTTP.
        ValueError: an address of another form.
    """
    where = _parse(server)
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")
    try:
        with _connect(where, timeout_s) as connection:
            connection.sendall(head + body)
            with connection.makefile("rb") as answer:
                return _read(answer)
    except OSError as error:
        raise UnreachableError(f"no answer from {server}: {error}") from None


def _read(answer: BinaryIO) -> tuple[int, bytes]:
    """Return status and body of an answer; one that is not whole is an OSError."""
    status = answer.readline(1000).split(b" ")
    if not status[0].startswith(b"HTTP/1.") or len(status) < 2 or not status[1].isdigit():
        raise OSError("it broke off" if status == [b""] else "what answers does not speak HTTP")
    length: int | None = None
    for _ in range(MOST_HEADERS):
        line = answer.readline(10_000)
        if not line:
            raise OSError("it broke off")
        name, _, value = line.strip().partition(b":")
        if not name:
            break
        if name.lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
    body = answer.read() if length is None else answer.read(length)
    if len(body) < (length or 0):
        raise OSError(f"it broke off after {len(body)} of {length} bytes")
    return int(status[1]), body


def _parse(server: str) -> str | tuple[str, int]:
    """Return the path of a Unix socket, or host and port."""
    if server.startswith("unix:"):
        return server.removeprefix("unix:")
    scheme, _, rest = server.partition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if scheme != "http" or not host or not port.isdigit():
        raise ValueError(f"expected unix:PATH or http://HOST:PORT, got {server!r}")
    return host.strip("[]"), int(port)


def _connect(where: str | tuple[str, int], timeout_s: float) -> socket.socket:
    if isinstance(where, tuple):
        return socket.create_connection(where, timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(where)
    except OSError:
        connection.close()
        raise
    return connection
