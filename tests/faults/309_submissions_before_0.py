"""A job submitted before 0, of a workload file or a trace, ended in a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FILES = {
    "--workload": (
        "w.toml",
        "[[jobs]]\nnodes = [1, 1]\nsubmit_s = -5.0\nspeedup = { t1_s = 9.0, tc_s = 1.0 }\n",
        "expected submit_s of at least 0, got -5",
    ),
    "--trace": (
        "t.swf",
        "1 -5 0 10 1 -1 -1 1 10 -1 1 1 1 1 1 1 1 1\n",
        "expected a submission at 0 or later in line 1, got -5",
    ),
}


@pytest.mark.parametrize("option", FILES)
def test_submissions_are_at_0_or_later(
    tmp_path: Path, refusal: Callable[[str], str], option: str
) -> None:
    name, text, expected = FILES[option]
    (tmp_path / name).write_text(text)
    message = refusal(f"rms simulate --processors 1 {option} {tmp_path / name}")
    assert expected in message and message.count("\n") == 1
