"""A process on the port of an absent daemon read submissions, and its refusals were shown."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from daemon import LocalRms
from processes import called

from rms.cli.main import main
from rms.wire.http import UnreachableError, request

DEADLINE_S = 120.0
SECRET, TOKEN = "the secret of my environment", "the token of my daemon"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRMS-Hello: %s %s\r\n\r\n{}" % (b"0" * 32, b"0" * 64)
NO = b'HTTP/1.1 404 x\r\nContent-Length: 31\r\n\r\n{"error":"come to my other door"}'

Answer = Callable[[bytes], bytes]


@contextlib.contextmanager
def stranger(answer: Answer) -> Iterator[tuple[int, list[bytes]]]:
    """Answer all data sent to a port; yield the port and the data."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client:
                        while part := client.recv(1 << 20):
                            received.append(part)
                            client.sendall(answer(part))

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], received
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "answer", [OK, NO, OK.replace(b"{}", b"{}" * 9), b"HTTP/1.1 200 OK\r\n\r\n"]
)
@pytest.mark.parametrize("command", ["submit", "queue"])
def test_a_process_at_the_port_receives_a_nonce_only_and_is_refused(
    tmp_path: Path, answer: bytes, command: str
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    words = [command, str(script)] if command == "submit" else [command]
    with stranger(lambda _: answer) as (port, received):
        own = {"MY_SECRET": SECRET, "RMS_TOKEN": TOKEN, "RMS_SERVER": f"http://127.0.0.1:{port}"}
        with patch.dict(os.environ, own):
            done = called(main, *words, deadline_s=DEADLINE_S)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"rms: error: no answer from .*has this token.*\n", done.stderr)
    assert "my other door" not in done.stderr
    (handshake,) = received
    assert re.fullmatch(
        rb"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        rb"Authorization: RMS-Hello user [0-9a-f]{32}\r\n\r\n",
        handshake,
    )


def test_a_handshake_ends_in_time_however_slowly_it_is_answered() -> None:
    begun_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            client, _ = listening.accept()
            with client, contextlib.suppress(OSError):
                while time.monotonic() < begun_s + DEADLINE_S:
                    client.sendall(b"x")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnreachableError, match="timed out"):
            request(server, "GET", "/jobs", token=TOKEN, timeout_s=0.4)
    assert time.monotonic() < begun_s + 20.0


def test_without_a_token_nothing_is_sent_over_tcp(tmp_path: Path) -> None:
    with stranger(lambda _: OK) as (port, received):
        server = f"http://127.0.0.1:{port}"
        own = {"RMS_STATE": str(tmp_path / "none"), "RMS_SERVER": server}
        with patch.dict(os.environ, own):
            os.environ.pop("RMS_TOKEN", None)
            done = called(main, "queue", deadline_s=DEADLINE_S)
        with pytest.raises(UnreachableError, match="expected the daemon's token"):
            request(server, "GET", "/jobs")
    assert (done.returncode, received) == (2, [])
    assert "expected the token of the daemon" in done.stderr and done.stderr.count("\n") == 1


def test_a_handshake_relayed_from_another_port_is_refused() -> None:
    with contextlib.closing(LocalRms(1, "--listen", "tcp:127.0.0.1:0")) as rms:
        (port,) = re.findall(r"serving at http://127.0.0.1:(\d+)", rms.said())
        token = (rms.state / "token").read_text()
        with socket.create_connection(("127.0.0.1", int(port)), DEADLINE_S) as daemon:

            def relay(message: bytes) -> bytes:
                daemon.sendall(message)
                return daemon.recv(1 << 16)

            with (
                stranger(relay) as (other, received),
                pytest.raises(UnreachableError, match="has this token"),
            ):
                request(f"http://127.0.0.1:{other}", "POST", "/shutdown", b"{}", token=token)
        assert len(received) == 1 and received[0].startswith(b"GET /hello")
        assert request(f"http://127.0.0.1:{port}", "GET", "/jobs", token=token)[0] == 200
        assert request(f"http://127.0.0.1:{port}", "GET", "/none", token=token)[0] == 404
