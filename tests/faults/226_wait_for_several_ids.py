"""``rms wait`` took one id only."""

from __future__ import annotations

from terminals import Terminal

from rms.core.model.events import Ended
from rms.core.model.jobs import JobId


def test_it_takes_several(terminal: Terminal) -> None:
    daemon = terminal.server.daemon
    for job, state in (("1", "COMPLETED"), ("2", "COMPLETED"), ("3", "CANCELLED")):
        terminal.run("submit", "good.sh")
        daemon.handle(Ended(daemon.time(), JobId(job), state))
    assert terminal.run("wait", "1", "2") == 0
    assert terminal.run("wait", "1", "3") == 1 and "job 3 CANCELLED" in terminal.err
    assert "9, which is not known" in terminal.refused(2, "wait", "1", "9")
