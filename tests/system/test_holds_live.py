"""A real daemon with jobs that may not start yet: held, too early, waiting for others, requeued."""

from __future__ import annotations

import signal

import pytest
from daemon import served


@pytest.mark.promise("holds")
def test_jobs_that_may_not_start_yet_are_kept_over_a_kill() -> None:
    until_go = "echo >> starts; until [ -e go ]; do sleep 0.05; done"
    with served(2) as rms:
        first = rms.submit(until_go)
        then = rms.submit("true", "--dependency", f"afterok:{first}")
        never = rms.submit("true", "--dependency", f"afternotok:{first}")
        held, early = rms.submit("true", "--hold"), rms.submit("true", "--begin", "now+1hour")
        starts = rms.work / "starts"
        rms.until(lambda: starts.exists() and starts.read_text() == "\n", "first start")
        assert rms.ask("requeue", first)["ids"] == [first]
        rms.until(lambda: starts.read_text() == "\n\n", "second start")
        rms.end(signal.SIGKILL)
        rms.start()
        reasons = [rms.row(job)["reason"].partition(":")[0] for job in (then, never, held, early)]
        assert reasons == ["Dependency", "Dependency", "JobHeldUser", "BeginTime"]
        assert rms.ask("release", held, early)["ids"] == [held]  # no user holds the other
        rms.hurry()
        assert rms.over(first, then, held) == ["COMPLETED"] * 3
        rms.until(lambda: "NeverSatisfied" in rms.row(never)["reason"], "end of the hope")
        assert rms.row(early)["reason"].startswith("BeginTime")
        assert rms.ask("cancel", "--state", "PENDING")["ids"] == [never, early]
        assert starts.read_text() == "\n\n"
        rms.ends_well()
