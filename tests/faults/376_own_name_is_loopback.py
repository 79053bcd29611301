"""A daemon whose machine's own name means 127.0.1.1 there was not reached from other hosts."""

from __future__ import annotations

import socket

import pytest

from rms.daemon.store import private


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.1.1"])
def test_a_name_with_a_loopback_address(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    name = socket.gethostname()
    monkeypatch.setattr(socket, "gethostbyname", {name: own}.__getitem__)
    server, address = private.bind(f"tcp:{name}:0")
    with server:
        assert server.getsockname()[0] == "0.0.0.0"
        assert address == f"http://{name}:{server.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loopback_address_stays_one(host: str) -> None:
    server, _ = private.bind(f"tcp:{host}:0")
    with server:
        assert server.getsockname()[0] == "127.0.0.1"
