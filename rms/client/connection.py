"""Address of the daemon, and a request to it; for compute nodes it imports nothing but ``wire``."""

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
    """The daemon refuses (exit status 2), or does not answer (1)."""


def server_address(option: str | None, env: Mapping[str, str]) -> str:
    """Return the address of the daemon: an option, the environment, or the user's own daemon."""
    return option or env.get(SERVER_VARIABLE) or f"unix:{state_folder(env) / 'socket'}"


def sendable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in UTF-8, which JSON can carry."""
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
    """Send a request; return the answer of this type.

    Raises:
        ServerError: the daemon does not answer, refuses, or its answer has another type.
    """
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
        status, content = request(server, method, path, data, token=token)
    except UnreachableError as error:
        raise ServerError(f"{error}; expected a running daemon (rms serve)", 1) from None
    except ValueError as error:
        raise ServerError(str(error)) from None
    if status != 200:
        # 503: the daemon cannot write its journal now. 410: an earlier run of a job, which has to
        # wait for its end rather than go on.
        raise ServerError(_refusal(content, status, path), 1 if status in (410, 503) else 2)
    try:
        return msgspec.json.decode(content, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"{path}: expected an answer of this version, got {error}") from None


def _refusal(content: bytes, status: int, path: str) -> str:
    try:
        answer = json.loads(content or b"null")
    except ValueError:
        answer = content.decode(errors="replace")
    if isinstance(answer, dict) and "error" in answer:
        return str(answer["error"])
    return f"status {status} for {path}: {answer}"


def _server_token(env: Mapping[str, str]) -> str:
    if TOKEN_VARIABLE in env:
        return env[TOKEN_VARIABLE]
    with contextlib.suppress(OSError):
        return (state_folder(env) / "token").read_text().strip()
    return ""
