"""Strangers that hold all connections of a daemon took the place of the owner's kept connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from http_servers import Receive, Send, send_empty, serving

from rms.daemon.ask.http import PEER

DEADLINE_S = 120.0
MOST = 3
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def survives(*, verified: bool) -> bool:
    """Return whether a connection that has sent a request outlives twice as many silent ones."""

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        scope["state"][PEER].verified = verified
        await send_empty(send)

    async with serving(app, MOST, DEADLINE_S) as connect:
        reader, writer = await connect()
        writer.write(REQUEST)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        silent = [await connect() for _ in range(2 * MOST)]
        with contextlib.suppress(ConnectionError):
            assert await silent[MOST - 2][0].read() == b""  # closed also if the first one stays
        with contextlib.suppress(ConnectionError):
            writer.write(REQUEST)
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
        return False


@pytest.mark.parametrize("verified", [True, False])
def test_a_connection_that_has_signed_a_request_outlives_silent_strangers(
    *, verified: bool
) -> None:
    assert asyncio.run(asyncio.wait_for(survives(verified=verified), DEADLINE_S)) == verified
