"""Requests over TCP that show that their sender knows a token, without saying it.

Whoever listens on the network, or has taken the port of a daemon that is gone, learns nothing to
ask a daemon by; and the answer shows that it is from one that knows the token too. What is said is
not encrypted. A request that is sent again asks for what was asked already.
"""

from __future__ import annotations

import hashlib
import hmac

SCHEME = "RMS-HMAC"
"""Of the header ``Authorization: RMS-HMAC NONCE DIGEST SIGNATURE``."""

ANSWER_HEADER = "RMS-Signature"


def digest(body: bytes) -> str:
    """Return the SHA-256 of what is sent."""
    return hashlib.sha256(body).hexdigest()


def signature(token: str, *words: str) -> str:
    """Return the HMAC-SHA256 of words that hold no line ends, by a token."""
    return hmac.new(token.encode(), "\n".join(words).encode(), "sha256").hexdigest()


def signed(token: str, method: str, target: str, nonce: str, body: bytes) -> str:
    """Return the header ``Authorization`` of a request."""
    sent = digest(body)
    return f"{SCHEME} {nonce} {sent} {signature(token, method, target, nonce, sent)}"


def verified(token: str, method: str, target: str, header: str) -> tuple[str, str] | None:
    """Return nonce and digest of a request that is signed by a token, None of any other."""
    words = header.split(" ")
    if len(words) != 4 or words[0] != SCHEME:
        return None
    _, nonce, sent, given = words
    wanted = signature(token, method, target, nonce, sent)
    return (nonce, sent) if hmac.compare_digest(given.encode(), wanted.encode()) else None


def answer_signature(token: str, nonce: str, status: int, body: bytes) -> str:
    """Return what stands in the header ``RMS-Signature`` of an answer."""
    return signature(token, "answer", nonce, str(status), digest(body))
