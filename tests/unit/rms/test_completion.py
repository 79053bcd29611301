"""What a shell completes of the three commands, as a real bash does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bash_completion import completions

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms


@pytest.mark.promise("shell-completion")
@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (rms, {"rms sub": "submit", "rms report d --jo": "--journal", "rms top --se": "--server"}),
        (dmr, {"dmr comp": "completion", "dmr check --re": "--resize"}),
        (mpdata, {"mpdata ve": "verify", "mpdata run --ste": "--steps"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    main: Callable[[list[str]], int],
    expected: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "script"
    for shell in ("zsh", "fish", "bash"):
        with pytest.raises(SystemExit) as left:
            main(["--print-completion", shell])
        assert left.value.code == 0
        text = capsys.readouterr().out
        assert all(word.lstrip("-") in text for word in expected.values()), shell
    script.write_text(text)
    for line, word in expected.items():
        assert completions(script, line) == [word], line


def test_no_other_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        rms(["--print-completion", "powershell"])
    assert left.value.code == 2 and "expected bash, zsh, fish, got" in capsys.readouterr().err
