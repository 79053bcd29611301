"""A script could not be piped into ``rms submit``; a command without ``--`` got no hint."""

from __future__ import annotations

import io

import pytest
from terminals import Terminal


def test_a_script_is_read_from_standard_input(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/bash\n#SBATCH -N 2\necho a\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert terminal.lines("submit", "-t", "1") == [["1"]]
    script = terminal.server.daemon.launcher.state / "jobs" / "1" / "script"
    assert script.read_text() == text
    assert terminal.lines("queue", "--noheader", "--format", "%j %D") == [["stdin", "2"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a SCRIPT, -- COMMAND or a script in standard input, got none"),
        ("echo a\n", "standard input: expected a first line like #!/bin/sh, got 'echo a'"),
    ],
)
def test_what_is_no_script(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert terminal.refused(2, "submit", "-t", "1") == f"rms: error: {sentence}"


def test_a_terminal_is_not_read(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.StringIO("#!/bin/sh\ntrue\n")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    assert "SCRIPT or -- COMMAND, got neither" in terminal.refused(2, "submit")


def test_a_command_without_dashes(terminal: Terminal) -> None:
    sentence = "expected a job script, got sleep, which does not exist; for a command: "
    words = ("submit", "-t", "1", "sleep", "9")
    assert terminal.refused(2, *words) == f"rms: error: {sentence}rms submit -- sleep 9"
    assert terminal.refused(2, "submit", "none.sh").endswith("none.sh, which does not exist")
