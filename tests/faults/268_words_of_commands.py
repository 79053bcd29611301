"""Commands named jobs and values that no user had given, or did not report what they skipped."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from processes import called
from terminals import Terminal

from dmr.cli import main as dmr
from rms.core.model.events import Ended
from rms.core.model.jobs import JobId
from rms.daemon.jobs.scripts import end_words
from rms.formats.jobscript import ScriptError, read_option
from rms.wire.messages import ResizeReport
from rms.wire.users import ResizeRow


def resized(number: int, old: int, new: int) -> ResizeRow:
    values: dict[str, Any] = dict.fromkeys(ResizeReport.__struct_fields__, 0)
    values |= {"from_ranks": old, "to_ranks": new, "strategy": "warm"}
    return ResizeRow.of(0.0, ResizeReport(**values), number)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1, 2), (1, 2)], "2 resizes (1 to 2, 1 to 2 ranks)"),
        ([(1, 2), (2, 1), (2, 1)], "3 resizes (1 to 2 to 1, 2 to 1 ranks)"),
        ([(1, 2), (2, 1)], "2 resizes (1 to 2 to 1 ranks)"),
    ],
)
def test_resizes_before_and_after_a_requeue(
    terminal: Terminal, rows: list[tuple[int, int]], words: str
) -> None:
    terminal.run("submit", "good.sh")
    daemon, one = terminal.server.daemon, JobId("1")
    daemon.jobs[one].resizes = [resized(n, *row) for n, row in enumerate(rows, 1)]
    daemon.handle(Ended(daemon.time(), one, "COMPLETED"))
    assert words in end_words(daemon.context, daemon.context.state.ended[one], daemon.jobs[one])


def test_a_resize_names_what_is_wrong(terminal: Terminal) -> None:
    terminal.run("submit", "--hold", "good.sh")
    assert "expected the id of a job, got 99" in terminal.refused(2, "resize", "99", "2")
    assert "expected a running job, got 1, PENDING" in terminal.refused(2, "resize", "1", "2")
    assert "got '0'" in terminal.refused(2, "resize", "1", "0")
    for _ in range(2):
        terminal.run("submit", "--nodes", "1", "good.sh")
    assert "expected one running job, got 2 of 2,3" in terminal.refused(2, "resize", "2,3", "2")


def test_a_preferred_size_beyond_the_others(terminal: Terminal) -> None:
    words = ("submit", "--mode", "malleable", "--preferred", "9", "--nodes", "1-2", "good.sh")
    assert terminal.refused(2, *words) == (
        "rms: error: expected --preferred from 1 to 2, the job's fewest and most nodes, got 9"
    )


def test_memory_is_named_as_typed() -> None:
    with pytest.raises(ScriptError, match="got 'lots'"):
        read_option("mem", "lots")
    assert read_option("mem", "4g").memory_mib == read_option("mem", "4GB").memory_mib == 4096.0


def test_a_completion_record_that_is_missing(tmp_path: Path) -> None:
    done = called(dmr, "completion", str(tmp_path / "nofile"))
    assert done.returncode == 1
    assert done.stderr.endswith("has not ended, or was killed before it could write one\n")


def test_skipped_tasks_are_reported(terminal: Terminal) -> None:
    terminal.run("submit", "--nodes", "2", "good.sh")
    terminal.run("submit", "--array", "1-8", "good.sh")
    assert terminal.run("hold", "1", "2_[5-6]") == 0
    assert terminal.out.split() == ["HELD", "2_[5-6]"]
    assert terminal.err == "rms: job 1 is not held: RUNNING\n"
    assert terminal.run("release", "2_[5-8]") == 0
    assert terminal.out.split() == ["RELEASED", "2_[5-6]"]
    assert terminal.err == "rms: jobs 2_[7-8] are not released: PENDING\n"


def test_a_port_that_is_taken_is_named_once(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        message = terminal.refused(2, "web", "--port", at.partition(":")[2])
        assert message == f"rms: error: cannot listen on {at}: Address already in use"
