"""A job started on the first nodes of several that came back together, and not on all of them."""

from __future__ import annotations

import signal

from daemon import served


def test_a_job_starts_on_all_nodes_that_come_back_together() -> None:
    with served(3) as rms:
        rms.ask("drain", "n[1-3],n2")
        job = rms.submit("sleep 1000", "--mode", "flexible", "--nodes", "2-3")
        assert rms.row(job)["state"] == "PENDING"
        rms.ask("resume", "n1,n[1-3]")
        rms.until(lambda: rms.row(job)["state"] == "RUNNING", "start of the job")
        assert [row["size"] for row in rms.get(f"/history/{job}") if row["kind"] == "start"] == [3]
        rms.ask("cancel", job)
        rms.over(job)
        assert rms.end(signal.SIGTERM) == 0
        rms.replays()
