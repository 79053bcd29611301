"""``rms serve`` started with a ``--meter-command`` that does not exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes import called

from rms.cli.main import main
from rms.power.choice import MeterChoice


@pytest.mark.parametrize("command", ["nosuch", "/no/such/meter", "./job.sh"])
def test_serve_refuses_them(refusal: Callable[[str], str], command: str) -> None:
    message = refusal(f"rms serve --check --meter-command {command} --state state")
    expected = "a --meter-command that can be started"
    assert message == f"rms: error: expected {expected}, got {command!r}: no {command}\n"
    assert expected in refusal(f"rms profile --meter-command {command} -- true")


def test_the_program_of_a_longer_command_is_named() -> None:
    done = called(main, "serve", "--check", "--meter-command", "nosuch --every 1 | head")
    assert done.returncode == 2 and done.stderr.endswith(": no nosuch\n")


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1",
        "while true; do echo node 1 W; done",
        "A=1 nosuch",
        "(cat x)",
        "/bin/sh x",
        "'a b'",
    ],
)
def test_what_the_shell_may_start_is_accepted(command: str) -> None:
    MeterChoice.parse("none", command).check_command()
