"""A process that a job started while it was signalled got no signal, and ran on in a pause."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rms.launch import local
from rms.launch.local import LocalLauncher


class Forking(LocalLauncher):
    """A job that starts a process for each of its first two that are signalled."""

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return list(range(100, 101 + min(len(signalled), 2)))


signalled: list[int] = []


def test_they_are_signalled_too_and_all_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled.clear()
    monkeypatch.setattr(local, "send_signal", lambda pid, _: signalled.append(pid))
    Forking(tmp_path, "instance", "unix:none").signal_all("1", signal.SIGSTOP)
    assert signalled == [100, 101, 102]
