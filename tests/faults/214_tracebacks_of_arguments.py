"""Deep TOML, words that are not UTF-8, long paths and ports beyond 65535 ended with a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import called

from rms.cli.main import main

DEADLINE_S = 120.0
LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "deep.toml"],
        ["simulate", "--workload", "deep.toml"],
        ["serve", "--state", "s", "--cluster", "deep.toml"],
        ["report", "--from", "deep.json", "r"],
        ["show", "\udcff"],
        ["queue", "--json", LONG],
        ["replay", LONG],
        ["report", "--journal", LONG, "r"],
        ["serve", "--state", "s", "--listen", "tcp:127.0.0.1:²"],
        ["serve", "--state", "s", "--listen", "tcp:127.0.0.1:65536"],
    ],
    ids=" ".join,
)
def test_one_sentence_and_status_2(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMS_STATE", "none")
    monkeypatch.delenv("RMS_SERVER", raising=False)
    (tmp_path / "deep.toml").write_text("a=" + "[" * 100_000)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    done = called(main, *words, deadline_s=DEADLINE_S)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert re.fullmatch(r"rms[^\n]*: error: [^\n]{1,600}\n", done.stderr), done.stderr
    assert "expected" in done.stderr
