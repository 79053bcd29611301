"""A launcher line whose daemon does not answer waited without end and without a message."""

from __future__ import annotations

from typing import Any

import pytest

from rms.client import launch
from rms.client.connection import ServerError
from rms.wire.messages import StepNumber


@pytest.mark.parametrize(("note_s", "lines"), [(0.0, 1), (launch.NOTE_S, 0)])
def test_a_long_wait_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], note_s: float, lines: int
) -> None:
    failures = [ServerError("no answer from unix:none", 1)] * 3

    def ask(*_: Any, **__: Any) -> StepNumber:
        if failures:
            raise failures.pop()
        return StepNumber(4)

    monkeypatch.setattr(launch, "ask", ask)
    monkeypatch.setattr(launch, "RETRY_S", 0.01)
    monkeypatch.setattr(launch, "NOTE_S", note_s)
    assert launch.until_answered(StepNumber, "unix:none", "GET", "/", None, "t").step == 4
    note = "rms: waiting for the daemon: no answer from unix:none\n"
    assert capsys.readouterr().err == note * lines
