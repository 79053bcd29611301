"""``mpdata run`` did not refuse a wrong DMR_RESIZE_AT in one sentence, as other programs do."""

from __future__ import annotations

import pytest
from processes import Refused


def test_a_wrong_script_is_one_sentence(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMR_RESIZE_AT", "abc")
    message = refused("run", "--case", "sphere")
    expected = "DMR_RESIZE_AT=abc: expected STEP:RANKS[@BACKEND][,...], got 'abc'"
    assert message == f"mpdata: error: {expected}\n"
