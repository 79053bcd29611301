"""``rms queue`` showed nothing of a resize; ``rms show`` gave its state in place of the job's."""

from __future__ import annotations

import msgspec
from terminals import Terminal

from rms.cli.queue import job_lines
from rms.cli.screen import cells
from rms.client.commands import jobs
from rms.wire.live import JobLine


def test_the_queue_shows_both_sizes(terminal: Terminal) -> None:
    submit = ("submit", "--nodes", "1-2", "--preferred", "1", "--mode", "flexible")
    assert terminal.run(*submit, "good.sh") == 0
    heads, row = terminal.lines("queue")
    assert row[heads.index("NODES")] == "1"
    assert terminal.run("resize", "1", "2") == 0
    heads, row = terminal.lines("queue")
    assert row[heads.index("NODES")] == "1->2" and row[heads.index("STATE")] == "RUNNING"
    assert ["state", "RUNNING,", "resize", "to", "2:", "pending"] in terminal.lines("show", "1")


def test_a_resize_under_way_leaves_the_state_running(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    (job,) = jobs("unix:in-process")
    job = msgspec.structs.replace(job, resize_to=2, resizing="leaving")
    (state,) = (line for line in job_lines(job) if line.startswith("state"))
    assert state.split() == ["state", "RUNNING,", "resize", "to", "2:", "leaving"]
    assert "Running" in cells(JobLine("1", 1, job), 0.0, nodes=2, width=8)[2]


def test_one_that_waits_shows_its_range(terminal: Terminal) -> None:
    terminal.run("submit", "--hold", "--nodes", "1-9", "good.sh")
    heads, row = terminal.lines("queue")
    assert row[heads.index("NODES")] == "1-9"
