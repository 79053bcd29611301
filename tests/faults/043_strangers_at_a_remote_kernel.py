"""After two bytes from another process an application waited without end for its remote kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection

import pytest

from rms.kernels import remote

DEADLINE_S = 60.0
KEY = "of this run"


@pytest.mark.parametrize("room", [remote.MOST_UNVERIFIED, 2])
def test_silent_and_partial_connections_delay_no_kernel(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Where there is no room for more connections, the kernel waits until one is closed."""
    monkeypatch.setattr(remote, "START_S", DEADLINE_S)
    monkeypatch.setattr(remote, "MOST_UNVERIFIED", room)
    monkeypatch.setattr(remote, "PROOF_S", 10.0 if room > 3 else 1.0)
    before = threading.enumerate()
    with contextlib.ExitStack() as stack:
        listener, address = stack.enter_context(remote._listening(local=False))
        port = int(address.rpartition(":")[2])
        others = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)
        ]
        others[0].sendall(b"\0\0")
        others[1].sendall(b"\0\0\0\x20" + bytes(32))

        def kernel() -> None:
            with socket.create_connection(("127.0.0.1", port)) as client:
                connection = Connection(os.dup(client.fileno()))
            with connection:
                assert remote._proven(connection, KEY, b"kernel", b"application")
                connection.send_bytes(b"done")

        thread = threading.Thread(target=kernel)
        thread.start()
        waiting = threading.Timer(DEADLINE_S / 2, lambda: [other.close() for other in others])
        waiting.start()
        with remote._accepted(listener, KEY, lambda: "") as connection:
            assert connection.poll(DEADLINE_S) and connection.recv_bytes() == b"done"
        in_time = waiting.is_alive()
        waiting.cancel()
        thread.join(DEADLINE_S)
    assert in_time
    for reader in set(threading.enumerate()) - set(before):  # threads that read from strangers
        reader.join(DEADLINE_S)
        assert not reader.is_alive()
