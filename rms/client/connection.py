"""Where the daemon is, and one request to it. Compute nodes import this, and with it only wire."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rms.wire.files import state_folder
from rms.wire.http import UnreachableError, request
from rms.wire.messages import SERVER_VARIABLE, TOKEN_VARIABLE
from rms.wire.terminal import CommandError

T = TypeVar("T")


class ServerError(CommandError):
    """The daemon refused (exit status 2), or is not there (1)."""


def server_address(given: str | None, env: Mapping[str, str]) -> str:
    """Return the address of the daemon to talk to."""
    return given or env.get(SERVER_VARIABLE) or f"unix:{state_folder(env) / 'socket'}"


def sendable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that JSON can carry: those in UTF-8."""
    return {
        key: value
        for key, value in env.items()
        if os.fsencode(key + value).decode(errors="replace") == key + value
    }


def ask(
    answer: type[T],
    server: str,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str = "",
) -> T:
    """Send a request and return the answer, of this type.

    Raises:
        ServerError: the daemon is not there, said no, or answers something else.
    """
    said = _exchange(server, method, path, body, token)
    try:
        return msgspec.json.decode(said, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"{path}: expected an answer of this version, got {error}") from None


def _exchange(server: str, method: str, path: str, body: object, token: str) -> bytes:
    if not token and not server.startswith("unix:"):
        token = _server_token(os.environ)
        if not token:
            where = f"{TOKEN_VARIABLE}, or {state_folder(os.environ) / 'token'}"
            raise ServerError(f"expected the token of the daemon at {server} ({where}), got none")
    try:
        data = b"" if body is None else msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise ServerError(f"expected text in UTF-8, got {error.object[:60]!r}") from None
    try:
        status, said = request(server, method, path, data, token=token)
    except UnreachableError as error:
        raise ServerError(f"{error}; expected a running daemon (rms serve)", 1) from None
    except ValueError as error:
        raise ServerError(str(error)) from None
    if status != 200:
        # 503: it cannot keep anything now, and may later.
        raise ServerError(_refusal(said, status, path), 1 if status == 503 else 2)
    return said


def _refusal(said: bytes, status: int, path: str) -> str:
    """Return the daemon's sentence, or what was answered if that is not a daemon."""
    try:
        found = json.loads(said or b"null")
    except ValueError:
        found = said.decode(errors="replace")
    if isinstance(found, dict) and "error" in found:
        return str(found["error"])
    return f"status {status} for {path}: {found}"


def _server_token(env: Mapping[str, str]) -> str:
    """Return the token for a server on TCP: RMS_TOKEN, or the file in the state folder."""
    if TOKEN_VARIABLE in env:
        return env[TOKEN_VARIABLE]
    with contextlib.suppress(OSError):
        return (state_folder(env) / "token").read_text().strip()
    return ""
