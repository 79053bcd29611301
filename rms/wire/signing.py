"""Mutual authentication of a client and the daemon over TCP.

A connection begins with a handshake::

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
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rms.wire.messages import CLOCKS_PATH, METER_PATH

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
