"""10 MB of pipelined requests without a token held the daemon for 46 s and took 0.9 GB."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path

from daemon import LocalRms

from rms.wire.http import request

DEADLINE_S = 120.0
CONNECTIONS, SIZE = 8, 120_000
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
MOST_KIB = 16 * 1024
"""Before: 1.6 kB for each request, 80 MB here."""


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def test_one_request_of_a_connection_is_read_at_a_time_and_a_stranger_has_no_second() -> None:
    with contextlib.closing(LocalRms(1, "--listen", "tcp:127.0.0.1:0")) as rms:
        (port,) = re.findall(r"serving at http://127.0.0.1:(\d+)", rms.said())
        token = (rms.state / "token").read_text()
        assert rms.process is not None
        before_kib = resident_kib(rms.process.pid)
        with contextlib.ExitStack() as stack:
            strangers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", int(port)), DEADLINE_S))
                for _ in range(CONNECTIONS)
            ]
            for each in strangers:
                with contextlib.suppress(ConnectionError):
                    each.sendall((REQUEST * (SIZE // len(REQUEST) + 1))[:SIZE])
            server = f"http://127.0.0.1:{port}"
            assert request(server, "GET", "/jobs", token=token, timeout_s=DEADLINE_S)[0] == 200
            for each in strangers:
                answers, until_s = b"", time.monotonic() + DEADLINE_S
                with contextlib.suppress(ConnectionError):
                    while part := each.recv(1 << 16):  # until the daemon closes it
                        answers += part
                        assert time.monotonic() < until_s
                assert answers.count(b"HTTP/1.1 ") <= 1
        assert resident_kib(rms.process.pid) - before_kib < MOST_KIB
