"""The daemon's HTTP protocol, with its bounds on connections, in front of an application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn

from rms.daemon.ask.http import ANSWER_S, bounded

Receive = Callable[[], Awaitable[dict[str, object]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send_empty(send: Send) -> None:
    """Send a response with status 200 and no content."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def serving(
    app: Application, most: int, request_s: float, answer_s: float = ANSWER_S
) -> AsyncIterator[Callable[[], Awaitable[Stream]]]:
    """Serve an ASGI application; yield a function that opens a connection to it.

    Args:
        app: the application.
        most: maximum number of connections.
        request_s: time limit of a request.
        answer_s: time limit of an answer.
    """
    protocol = bounded(most, request_s, answer_s)
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_level="critical", ws="none")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    streams: list[Stream] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))

        async def connect() -> Stream:
            streams.append(await asyncio.open_connection(*listening.getsockname()))
            return streams[-1]

        try:
            yield connect
        finally:
            for _, writer in streams:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            server.should_exit = server.force_exit = True
            await running
