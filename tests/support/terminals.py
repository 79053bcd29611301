"""The command ``rms`` against a daemon in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from routed import Routed, routed

from rms.cli.main import main
from rms.client import connection
from rms.core.model.cluster import Cluster
from rms.wire.http import request

HERE = "unix:in-process"


class Terminal:
    """Runs commands, and keeps what they print."""

    def __init__(self, server: Routed, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self._capsys = server, capsys
        self.out = self.err = ""

    def run(self, *words: str) -> int:
        """Run a command; return its exit status."""
        try:
            status = main(words)
        except SystemExit as left:
            status = int(left.code or 0)
        self.out, self.err = self._capsys.readouterr()
        return status

    def lines(self, *words: str) -> list[list[str]]:
        """Run a command that must succeed; return the words of its lines."""
        assert self.run(*words) == 0, self.err
        return [line.split() for line in self.out.splitlines()]

    def refused(self, status: int, *words: str) -> str:
        """Run a command that must not succeed; return its sentence."""
        assert self.run(*words) == status, self.out + self.err
        (line,) = self.err.splitlines()
        assert not self.out
        return line


@contextlib.contextmanager
def terminals(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cluster: Cluster | None = None,
    policy: str = "fifo",
) -> Iterator[Terminal]:
    """Run commands in a folder that has a script, ``good.sh``."""
    with routed(folder / "state", cluster, policy) as server:

        def send(
            where: str, method: str, path: str, body: bytes = b"", *, token: str = ""
        ) -> tuple[int, bytes]:
            if where != HERE:
                return request(where, method, path, body, token=token)
            return server.request(method, path, body, token=token or None)

        monkeypatch.setattr(connection, "request", send)
        monkeypatch.setenv("RMS_SERVER", HERE)
        monkeypatch.delenv("RMS_JOB_ID", raising=False)
        monkeypatch.chdir(folder)
        (folder / "good.sh").write_text("#!/bin/sh\nsleep 100\n")
        yield Terminal(server, capsys)
