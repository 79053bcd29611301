"""What bash completes, by the functions that a completion script registers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function=$(complete -p "$1"); function=${function##*-F }; function=${function%% *}
$function "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completions(script: Path, line: str, path: str | None = None) -> list[str]:
    """Return the words that bash offers for the last word of a line; skip the test without bash.

    Args:
        script: the completion script.
        line: the command line.
        path: PATH of the shell; that of this process if None.
    """
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on PATH")
    done = subprocess.run(
        [bash, "-c", COMPLETE, "bash", str(script), *line.split()],
        capture_output=True,
        text=True,
        env=os.environ if path is None else {"PATH": path},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
