"""A job of Slurm's with a line break in its name kept a daemon from reading the queue for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rms.launch.slurm import output
from rms.launch.slurm.commands import CommandResult, Slurm
from rms.launch.slurm.queue import take_snapshot

ROW = "{0}|{0}|N/A|RUNNING|1|n{0}|None|1:00|1|1|me|{1}\n"


@pytest.mark.parametrize("name", ["a\nb", "a\n\nb", "a\n1|2|3", "\nx|" + 20 * "|", "a\x0bb\x85c"])
def test_a_job_of_the_same_user(name: str) -> None:
    rows = output.queue_from_text(ROW.format(3, name) + ROW.format(4, "rms.x.1"))
    assert [(row.job_id, row.name) for row in rows] == [(3, name), (4, "rms.x.1")]


def test_names_of_other_users_are_not_asked_for() -> None:
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(" ".join(command))
        if command[0] == "sinfo":
            return CommandResult(0, "", "")
        own = "--user=me" in command
        return CommandResult(0, ROW.format(4, "rms.x.1") if own else "3|n3\n4|n4\n", "")

    snapshot = take_snapshot(Slurm({}, "me", run), bool, {4: "rms.x.1"})
    assert snapshot.unavailable == {"n3"} and snapshot.own.keys() == {4}
    assert [command for command in commands if "%j" in command and "--user=me" not in command] == []


def test_a_step_whose_name_has_a_line_break() -> None:
    assert output.steps_from_text("7.0|a\nb\n7.1|c\n") == [("7.0", "a"), ("7.1", "c")]
