"""A shell completed commands and options only: no ids, policies, modes, states or nodes."""

from __future__ import annotations

from pathlib import Path

from bash_completion import completions
from processes import called

from rms.cli.main import main

FAKE = """#!/bin/sh
case $1 in
queue) printf '7\\n8_1\\n8_[2-4]\\n' ;;
nodes) printf 'NODE STATE\\nn1 idle\\nn2 down\\n' ;;
esac
"""


def test_it_completes_names_that_the_daemon_knows(tmp_path: Path) -> None:
    script, fake = tmp_path / "script", tmp_path / "rms"
    script.write_text(called(main, "--print-completion", "bash").stdout)
    fake.write_text(FAKE)
    fake.chmod(0o700)
    expected = {
        "cancel 8": {"8_1", "8_[2-4]"},
        "show 7": {"7"},
        "drain n": {"n1", "n2"},
        "submit --mode mal": {"malleable"},
        "policy array": {"array-share", "array-share-paper"},
        "serve --policy eas": {"easy", "easy-share"},
        "queue --state RUN": {"RUNNING"},
        "resize 7 2 --strategy war": {"warm"},
    }
    for line, names in expected.items():
        words = completions(script, f"rms {line}", f"{tmp_path}:/usr/bin:/bin")
        assert names <= set(words), (line, words)
        start = line.split()[-1]
        assert all(word.startswith(start) for word in words), (line, words)
