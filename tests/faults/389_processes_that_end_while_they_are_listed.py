"""``dmr check`` died of any process that ended while it looked for its own."""

from __future__ import annotations

import os
from typing import Any

import pytest
from processes import marked

from dmr.check.check import _end_marked


def test_processes_may_end_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def stat_of_one_that_ends(path: Any, *options: Any, **named: Any) -> os.stat_result:
        if str(path).endswith("/environ"):
            raise ProcessLookupError(3, "No such process", str(path))
        return stat(path, *options, **named)

    monkeypatch.setattr(os, "stat", stat_of_one_that_ends)
    _end_marked("MALLEABLE_TEST_NONE=1")
    assert marked("none") == []
