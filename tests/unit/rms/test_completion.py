"""What a shell completes of the three commands, asked of a real bash."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function=$(complete -p "$1"); function=${function##*-F }; function=${function%% *}
$function "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.promise("shell-completion")
@pytest.mark.parametrize(
    ("main", "asked"),
    [
        (rms, {"rms sub": "submit", "rms report d --jo": "--journal", "rms top --se": "--server"}),
        (dmr, {"dmr comp": "completion", "dmr check --re": "--resize"}),
        (mpdata, {"mpdata ve": "verify", "mpdata run --ste": "--steps"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    main: Callable[[list[str]], int],
    asked: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bash, script = shutil.which("bash"), tmp_path / "script"
    for shell in ("zsh", "fish", "bash"):
        with pytest.raises(SystemExit) as left:
            main(["--print-completion", shell])
        assert left.value.code == 0
        text = capsys.readouterr().out
        assert all(found.split()[-1].lstrip("-") in text for found in asked.values()), shell
    script.write_text(text)
    if bash is None:
        pytest.skip("no bash here")
    for line, found in asked.items():
        words = [bash, "-c", ASK, "bash", str(script), *line.split()]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.split() == [found], line


def test_no_other_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        rms(["--print-completion", "powershell"])
    assert left.value.code == 2 and "choose from" in capsys.readouterr().err
