"""Requests to the daemon over a Unix socket or TCP, and their authentication over TCP.

Compute nodes import this: a thread of rank 0 polls for resize requests by it.

Over TCP client and daemon authenticate each other. A connection begins with a handshake::

    GET /hello                                  200
    Authorization: RMS-Hello NAME C             RMS-Hello: S PROOF

``NAME`` is the name of the client's token (``user``, ``meter``, ``job-7``); ``C`` and ``S`` are 16
random bytes in hexadecimal, new for every connection. Both sides derive a key from them, and the
daemon proves by it that it has the token::

    K = HMAC-SHA256(token, "connection" NAME HOST PORT C S)        PROOF = HMAC-SHA256(K, "daemon")

``HOST`` and ``PORT`` are the daemon's address as the sockets of both sides have it: a process at
another address cannot pass the messages on to the daemon. From then on the ``N``-th request of the
connection and its answer, whatever the status, are signed::

    Authorization: RMS-HMAC DIGEST HMAC-SHA256(K, "request" N METHOD TARGET DIGEST)
    RMS-Signature: HMAC-SHA256(K, "answer" N STATUS SHA-256(body))

``DIGEST`` is the SHA-256 of the request's body. A message that is repeated, reordered, changed, cut
or taken from another connection has another key, number or digest: the daemon answers 401 and
closes the connection, the client reports that the daemon does not answer. Messages are not
encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

from rms.wire.messages import CLOCKS_PATH, METER_PATH

# --- authentication -------------------------------------------------------------------------------

HELLO_PATH = "/hello"
HELLO = "RMS-Hello"
SCHEME = "RMS-HMAC"
ANSWER_HEADER = "RMS-Signature"

USER_TOKEN, METER_TOKEN = "user", "meter"  # names of the tokens of users and of meters


def job_name(job: str) -> str:
    """Return the name of a job's token."""
    return f"job-{job}"


def token_name(target: str) -> str:
    """Return the name of the token that signs requests of a path."""
    if target.startswith("/jobs/"):
        return job_name(target.split("/")[2])
    return METER_TOKEN if target in (METER_PATH, CLOCKS_PATH) else USER_TOKEN


def nonce() -> str:
    """Return 16 random bytes in hexadecimal."""
    return secrets.token_hex(16)


def digest(body: bytes) -> str:
    """Return the SHA-256 of a body."""
    return hashlib.sha256(body).hexdigest()


def signature(key: bytes, *words: object) -> str:
    """Return the HMAC-SHA256 of words that hold no line ends."""
    return hmac.digest(key, "\n".join(map(str, words)).encode(), "sha256").hex()


@dataclass
class Session:
    """One side's view of a connection after the handshake.

    Attributes:
        key: derived from the token for this connection.
    """

    name: str
    key: bytes
    number: int = 0

    @classmethod
    def derive(
        cls, token: str, name: str, address: Sequence[Any], client: str, server: str
    ) -> Session:
        """Return the session of a token, the daemon's address and the nonces of both sides."""
        host, port = address[0].partition("%")[0], address[1]  # without the zone of IPv6
        key = signature(token.encode(), "connection", name, host, port, client, server)
        return cls(name, bytes.fromhex(key))

    @property
    def proof(self) -> str:
        """Proof that the daemon has the token."""
        return signature(self.key, "daemon")

    def sign_request(self, method: str, target: str, body_digest: str) -> str:
        """Return the header ``Authorization`` of the next request."""
        self.number += 1
        made = signature(self.key, "request", self.number, method, target, body_digest)
        return f"{SCHEME} {body_digest} {made}"

    def sign_answer(self, status: int, body: bytes) -> str:
        """Return the header ``RMS-Signature`` of the answer to the newest request."""
        return signature(self.key, "answer", self.number, status, digest(body))


# --- requests -------------------------------------------------------------------------------------

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
    twice. Over TCP both sides prove that they have the token.

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
