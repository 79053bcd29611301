"""explain of an array, attach to a waiting job, and changes of no job printed nothing."""

from __future__ import annotations

import pytest
from terminals import Terminal

from rms.client import commands


def test_explain_of_an_array(terminal: Terminal) -> None:
    terminal.run("submit", "--nodes", "2", "good.sh")
    terminal.run("submit", "--array", "0-4", "good.sh")
    terminal.run("hold", "2_[3-4]")
    heads, *rows = terminal.lines("explain", "2")
    assert heads == ["JOBID", "STATE", "NODES", "REASON"]
    reasons = {row[0]: " ".join(row[1:]) for row in rows}
    assert reasons["2_[3-4]"] == "PENDING JobHeldUser"
    assert any("PENDING Resources" in reason for reason in reasons.values())
    assert "rms explain 2_0 shows all decisions" in terminal.err
    assert "TIME" in terminal.lines("explain", "2_0")[0]
    assert terminal.run("explain", "2_9") == 2
    refusal = terminal.refused(2, "explain", "abc")
    assert "expected a job id like 7, 7_3 or 7_[1-3,5], got 'abc'" in refusal


def test_attach_reports_that_a_job_waits(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfinished(server: str, wanted: str, hold_s: float, *, lines: bool = False) -> int:
        terminal.server.ask("POST", "/cancel", {"id": wanted})
        return 0

    monkeypatch.setattr(commands, "unfinished", unfinished)
    terminal.run("submit", "--hold", "good.sh")
    assert terminal.run("attach", "1") == 1
    assert terminal.err.startswith("rms: job 1 waits: JobHeldUser\n")
