"""``rms cancel`` of jobs that had ended did not report their states."""

from __future__ import annotations

from terminals import Terminal

from rms.core.model.events import Ended
from rms.core.model.jobs import JobId


def end(terminal: Terminal, *jobs: str) -> None:
    daemon = terminal.server.daemon
    for job in jobs:
        daemon.handle(Ended(daemon.time(), JobId(job), "COMPLETED"))


def test_it_reports_their_states(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    end(terminal, "1")
    assert terminal.run("cancel", "1") == 0 and not terminal.out
    assert terminal.err == "rms: job 1 has ended: COMPLETED\n"
    terminal.run("submit", "--array", "0-1", "good.sh")
    end(terminal, "2_1", "2_0")
    assert terminal.run("cancel", "2", "1") == 0 and not terminal.out
    assert terminal.err == "rms: jobs 1, 2_[0-1] have ended: COMPLETED\n"


def test_no_job_at_all(terminal: Terminal) -> None:
    assert terminal.run("cancel", "--name", "none") == 0
    assert terminal.err == "rms: no job cancelled: no job matches\n"


def test_ids_are_folded_and_in_order(terminal: Terminal) -> None:
    for options in (["--array", "0-3"], [], ["--hold"]):
        terminal.run("submit", *options, "good.sh")
    assert terminal.lines("cancel", "3", "2", "1") == [["CANCELLED"], ["1_[0-3]"], ["2"], ["3"]]
