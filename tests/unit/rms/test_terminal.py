"""What the three commands share: errors in one sentence, exit statuses, JSON and tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rms.wire.terminal import (
    RANK_VARIABLES,
    CommandError,
    columns,
    parser,
    publish,
    refuse_on,
    run_command,
)


def run(call: Callable[[argparse.Namespace], int], target: str | None = None) -> int:
    return run_command("tool", argparse.Namespace(json=target), call)


def refuse(_: argparse.Namespace) -> int:
    raise CommandError("expected this, got that", 1)


def refuse_value(_: argparse.Namespace) -> int:
    with refuse_on(ValueError):
        raise ValueError("expected a number")


def test_a_status_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: 7) == 7
    assert capsys.readouterr() == ("", "")


def test_a_refusal_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert (run(refuse), run(refuse_value)) == (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert said == ["tool: error: expected this, got that", "tool: error: expected a number"]


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(KeyError), refuse_on(ValueError):
        raise KeyError("a defect of ours")


@pytest.mark.parametrize("variable", RANK_VARIABLES)
def test_of_many_ranks_one_speaks(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "1")
    assert run(refuse) == 1
    with pytest.raises(SystemExit) as bad_usage:
        parser("tool", "").parse_args(["--odd"])
    assert bad_usage.value.code == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(variable, "0")
    assert run(refuse) == 1
    assert capsys.readouterr().err.count("error:") == 1


def test_a_target_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_: argparse.Namespace) -> int:
        raise AssertionError

    assert run(work, str(tmp_path)) == 2
    assert run(work, str(tmp_path / "no" / "x.json")) == 2
    assert capsys.readouterr().err.count("for --json") == 2


@pytest.mark.parametrize(
    ("target", "out"), [(None, "line\nmore\n"), ("-", '{\n  "a": 1\n}\n'), ("x", "line\nmore\n")]
)
def test_json_or_lines_or_both(
    target: str | None,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(target, {"a": 1}, ["line", "more"])
    assert capsys.readouterr().out == out
    assert [json.loads(path.read_text()) for path in tmp_path.iterdir()] == [{"a": 1}] * (
        target == "x"
    )


def test_columns_are_as_wide_as_their_widest_cells() -> None:
    assert columns(["A", "LONG", "C"], [["1", "2", ""], ["wide", "3", "x"]]) == [
        "A     LONG  C",
        "1     2",
        "wide  3     x",
    ]
    assert columns(["A", "B"], []) == ["A  B"]


def test_who_reads_may_have_seen_enough() -> None:
    code = (
        "import argparse, sys\n"
        "from rms.wire.terminal import publish, run_command\n"
        "def work(_):\n"
        "    for _ in range(20000):\n"
        "        publish(None, {}, ['a line'])\n"
        "    return 1\n"
        "sys.exit(run_command('tool', argparse.Namespace(json=None), work))\n"
    )
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, "")
