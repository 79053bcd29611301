"""Another user of the machine can read, write, swap and call nothing of a daemon."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon import LocalRms, served

from rms.wire.http import request

NOBODY = 65534
SECRET = "swordfish-4711"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_another_user(tries: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Return what came of each try of another user: the error, or what was got."""
    back, there = os.pipe()
    child = os.fork()
    if child == 0:
        found = {}
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            for name, attempt in tries.items():
                try:
                    found[name] = f"got {attempt()!r}"
                except OSError as error:
                    found[name] = type(error).__name__
            os.write(there, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(back, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    outcome: dict[str, str] = json.loads(said)
    print("", *(f"{what:60s} {came}" for what, came in outcome.items()), sep="\n")
    return outcome


def connected(path: str) -> str:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as asking:
        asking.connect(path)
    return "a connection"


def asked(port: int, method: str, path: str, token: bytes | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {} if token is None else {"Authorization": b"Bearer " + token}
    connection.request(method, path, b"{}" if method == "POST" else b"", headers)
    return connection.getresponse().status


@as_root
@pytest.mark.wide
@pytest.mark.promise("no-one-in")
def test_another_user_can_read_write_swap_and_call_nothing() -> None:
    with served(1) as rms:
        rms.folder.chmod(0o755)  # its own mode is to keep others out
        job = rms.submit("sleep 1000", KEY=SECRET)
        rms.until(lambda: rms.row(job)["state"] == "RUNNING", "start")
        state, server = rms.state, rms.server.removeprefix("unix:")
        (pid, env), *_ = rms.processes().items()
        assert env["KEY"] == SECRET and rms.process is not None
        daemon = rms.process.pid
        files = [path for path in state.rglob("*") if path.is_file()]
        assert len(files) > 5
        tries: dict[str, Callable[[], object]] = {
            "list": lambda: os.listdir(state),  # noqa: PTH208
            "write": lambda: (state / "new").write_text("x"),
            "swap the folder": lambda: state.rename(state.with_name("mine")),
            "swap the socket": lambda: os.unlink(server),  # noqa: PTH108
            "call": lambda: connected(server),
            "call as a kernel": lambda: connected(f"{server}-tasks"),
            "signal": lambda: os.kill(daemon, signal.SIGTERM),
            "environment of the daemon": lambda: Path(f"/proc/{daemon}/environ").read_bytes(),
            "environment of a job": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        }
        tries |= {str(path): path.read_bytes for path in files}
        found = as_another_user(tries)
        assert set(found.values()) == {"PermissionError"}, found
        assert SECRET.encode() not in b"".join(p.read_bytes() for p in state.glob("journal*"))
        assert rms.row(job)["state"] == "RUNNING"
        rms.rms("cancel", job)


def serving_tcp() -> tuple[LocalRms, int]:
    """Return a daemon that listens on TCP, and its port."""
    rms = LocalRms(1, "--listen", "tcp:127.0.0.1:0")
    (port,) = re.findall(r"serving at http://127.0.0.1:(\d+)", rms.said())
    rms.server = f"http://127.0.0.1:{port}"
    return rms, int(port)


@as_root
@pytest.mark.wide
@pytest.mark.promise("no-one-in")
def test_another_user_can_call_nothing_over_tcp() -> None:
    rms, port = serving_tcp()
    with contextlib.closing(rms):
        token = (rms.state / "token").read_text()
        _, said = request(rms.server, "GET", "/openapi.json", token=token)
        paths = json.loads(said)["paths"]
        body = {"text": "#!/bin/sh\nsleep 1000\n", "name": "x", "cwd": str(rms.work), "env": {}}
        sent = json.dumps(body | {"options": {}}).encode()
        assert request(rms.server, "POST", "/jobs", sent, token=token)[0] == 200
        tries: dict[str, Callable[[], Any]] = {}
        for path in paths:
            for method in paths[path]:
                where = path.replace("{id}", "1").replace("{step}", "0")
                for shown in (None, b"", b"x", token[:-1].encode(), b"\xff\xfe"):
                    tries[f"{method} {path} {shown!r}"] = lambda m=method, w=where, t=shown: asked(
                        port, m.upper(), w, t
                    )
        found = as_another_user(tries)
        assert len(found) == len(tries) and set(found.values()) == {"got 401"}, found
        assert rms.process is not None and rms.process.poll() is None
