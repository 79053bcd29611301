"""An answer that took its reader more than 30 s was cut off, where 300 s are documented."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from http_servers import Receive, Send, serving

DEADLINE_S = 120.0
SHORT_S = 0.3
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SIZE, PART = 32 << 20, 1 << 20
BODY = bytes(SIZE)


async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer more than the kernel's buffers hold, at once, as the daemon does."""
    headers = [(b"content-length", b"%d" % SIZE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


async def received(request_s: float, answer_s: float, pause_s: float, part_s: float) -> int:
    """Return the length of what a client reads after a pause, in parts of a MiB."""
    async with serving(large, 3, request_s, answer_s) as connect:
        reader, writer = await connect()
        writer.write(REQUEST)
        await asyncio.sleep(pause_s)
        length = 0
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            while length < SIZE and (part := await reader.read(PART)):
                length += len(part)
                await asyncio.sleep(part_s)
        return length


def test_it_may_take_longer_than_a_request() -> None:
    call = received(SHORT_S, DEADLINE_S, 0.0, SHORT_S / 100)
    assert asyncio.run(asyncio.wait_for(call, DEADLINE_S)) == SIZE


def test_it_ends_with_the_time_for_an_answer() -> None:
    call = received(DEADLINE_S, SHORT_S, 4 * SHORT_S, 0.0)
    assert asyncio.run(asyncio.wait_for(call, DEADLINE_S)) < SIZE
