"""Connections that say nothing: there are never too many of them, and none lasts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from faults import Fault
from http_servers import Application, Receive, Send, Stream, send_empty, serving

from rms.daemon.ask.http import MOST_HEAD_BYTES

DEADLINE_S = 120.0
LIMIT = 3
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def answering(ready: Callable[[], Awaitable[object]]) -> Application:
    """Return an application that answers once this is awaited, whatever the request."""

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await ready()
        await send_empty(send)

    return app


async def at_once() -> None:
    return


async def answered(stream: Stream) -> bytes:
    """Send a request; return the first line of the answer, nothing where it was cut off."""
    reader, writer = stream
    with contextlib.suppress(ConnectionError):
        writer.write(REQUEST)
        return await reader.readline()
    return b""


async def closed(stream: Stream) -> None:
    """Wait until the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        assert await stream[0].read() == b""


async def too_many() -> None:
    async with serving(answering(at_once), LIMIT, DEADLINE_S) as connect:
        silent = [await connect() for _ in range(LIMIT)]
        late = await connect()
        await closed(silent[0])
        assert await answered(late) == b"HTTP/1.1 200 OK\r\n"
        assert await answered(silent[1]) == b"HTTP/1.1 200 OK\r\n"


async def all_busy() -> None:
    release = asyncio.Event()
    began = asyncio.Semaphore(0)

    async def answer() -> None:
        began.release()
        await release.wait()

    async with serving(answering(answer), LIMIT, DEADLINE_S) as connect:
        busy = [asyncio.create_task(answered(await connect())) for _ in range(LIMIT)]
        for _ in busy:
            await began.acquire()
        await closed(await connect())
        release.set()
        assert await asyncio.gather(*busy) == [b"HTTP/1.1 200 OK\r\n"] * LIMIT


async def too_late() -> None:
    async with serving(answering(at_once), LIMIT, 0.01) as connect:
        first, half = await connect(), await connect()
        with contextlib.suppress(ConnectionError):
            half[1].write(REQUEST[:9])
        await closed(first)
        await closed(half)


async def too_long() -> None:
    async with serving(answering(at_once), LIMIT, DEADLINE_S) as connect:
        for before in (b"", REQUEST, REQUEST[:-2] + b"Content-Length: 3\r\n\r\nabc"):
            reader, writer = stream = await connect()
            with contextlib.suppress(ConnectionError):
                writer.write(before + b"GET / HTTP/1.1\r\nEndless: ")
                for _ in range(16):  # what is read at once is not cut off
                    writer.write(b"A" * MOST_HEAD_BYTES)
                    await writer.drain()
                rest = await reader.read()
                assert rest.count(b"200 OK") == bool(before)
            await closed(stream)
        reader, writer = await connect()
        size = 2 * MOST_HEAD_BYTES
        writer.write(REQUEST[:-2] + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_head_without_an_end_is_cut_off_and_a_long_body_is_not() -> None:
    asyncio.run(asyncio.wait_for(too_long(), DEADLINE_S))


@pytest.mark.promise("silent-clients")
def test_one_too_many_takes_the_place_of_the_longest_silent(fault: Fault) -> None:
    asyncio.run(asyncio.wait_for(too_many(), DEADLINE_S))
    fault("more silent connections than there are files for", "the longest silent is closed")


def test_where_all_are_served_one_more_is_closed() -> None:
    asyncio.run(asyncio.wait_for(all_busy(), DEADLINE_S))


def test_whoever_does_not_ask_in_time_is_cut_off() -> None:
    asyncio.run(asyncio.wait_for(too_late(), DEADLINE_S))
