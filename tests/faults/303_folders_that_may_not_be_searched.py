"""An output in a folder that its user may not search was answered 503, as if to be tried again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from routed import SCRIPT, Routed


def denied(true: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith("/secret/"):
            raise PermissionError(13, "Permission denied", str(path))
        return true(path, *args, **options)

    return call


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, denied(getattr(os, name)))


@pytest.mark.parametrize("option", ["output", "error"])
def test_such_an_output_is_refused(server: Routed, option: str) -> None:
    sent = SCRIPT | {"options": {option: "/secret/here/x.out"}}
    expected = f"expected an existing folder for --{option}, got /secret/here/x.out"
    assert server.ask("POST", "/jobs", sent) == (400, {"error": expected})


def test_a_report_there_is_refused(refusal: Callable[[str], str]) -> None:
    said = refusal("rms report /secret/here")
    assert said == "rms: error: expected a folder that can be written, got /secret/here\n"
