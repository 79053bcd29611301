"""The daemon read requests, headers and chunks without end from connections without a token."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from http_servers import Receive, Send, send_empty, serving

DEADLINE_S = 120.0
SHORT_S = 0.3
LINE = b"POST /x HTTP/1.1\r\nHost: x\r\n"


async def read_and_answer(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Read a whole request, then answer it."""
    while (await receive()).get("more_body"):
        pass
    await send_empty(send)


async def response(request_s: float, *pieces: bytes) -> bytes:
    """Send pieces over one connection; return all responses until the server closes it."""
    async with serving(read_and_answer, 100, request_s) as connect:
        reader, writer = await connect()
        received = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
            while part := await reader.read(1 << 16):
                received += part
        return received


@pytest.mark.parametrize(
    ("pieces", "responses"),
    [
        ((LINE + b"Content-Length: 2\r\n\r\nab" + LINE,), 1),
        ((LINE + b"\r\n" + b"nonsense\r\n\r\n",), 1),
        ((LINE + b"Long: ", b"x" * (1 << 15)), 0),
        ((LINE + b"a:\r\n" * 65 + b"\r\n",), 0),
        ((LINE + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 9 + b"0\r\n\r\n",), 0),
    ],
    ids=["pipelined", "nonsense after a request", "long line", "many headers", "chunks"],
)
def test_a_connection_without_a_token_is_closed(pieces: tuple[bytes, ...], responses: int) -> None:
    received = asyncio.run(asyncio.wait_for(response(DEADLINE_S, *pieces), DEADLINE_S))
    assert received.count(b"HTTP/1.1 200") == responses


@pytest.mark.parametrize("sent", [LINE[:9], LINE, LINE + b"Content-Length: 9\r\n\r\nab"])
def test_slow_lines_headers_and_bodies_end_with_the_time_for_a_request(sent: bytes) -> None:
    drops = [sent, *(b"a" for _ in range(6))]
    received = asyncio.run(asyncio.wait_for(response(SHORT_S, *drops), DEADLINE_S))
    assert b"200" not in received
