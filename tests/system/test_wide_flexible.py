"""A flexible job of all nodes in a stream of short ones starts in its turn, after a kill too."""

from __future__ import annotations

import re
import signal

import pytest
from daemon import served
from wide_flexible import LONGER, NODES, Stream


def untimed(reason: str) -> str:
    """Return why a job waits without its two times: until it is reserved, and since it is due."""
    return re.sub(r"(reserved in|due for) \d+ s", r"\1", reason)


@pytest.mark.promise("wide-flexible")
def test_no_later_job_overtakes_a_wide_flexible_one() -> None:
    """Three short jobs are before it; behind it the queue is never empty."""
    with served(NODES) as rms:
        stream = Stream(rms)
        before = [stream.submit() for _ in range(3)]
        rms.running(before[0])
        wide = stream.submit("2")
        for _ in range(LONGER):
            stream.submit()
        rms.until(lambda: "reserved in" in stream.why(wide), "reservation")
        assert stream.until_started(wide) == []
        assert sorted(stream.over) == sorted(before)
        assert rms.running(wide)["size"] == NODES
        assert len(stream.jobs) > len(stream.over) + LONGER  # the stream has gone on
        stream.drain()
        rms.ends_well()


@pytest.mark.promise("due-kept")
def test_a_daemon_that_is_killed_knows_who_is_due() -> None:
    """One job holds both nodes, one of which EASY would have given to the second job by now."""
    with served(NODES) as rms:
        stream = Stream(rms)
        first = stream.submit(resizable=False)
        rms.until(lambda: rms.row(first)["state"] == "RUNNING", "the first job")
        assert rms.row(first)["size"] == NODES
        due = stream.submit()
        wide = stream.submit("2")
        later = [stream.submit() for _ in range(LONGER)]
        waits = {job: stream.why(job) for job in (due, wide, *later)}
        assert "waits for 1 node, 0 can be had, reserved in" in waits[due]
        assert f"waits for 2 nodes, 0 can be had; {due} is first, reserved in" in waits[wide]
        rms.end(signal.SIGKILL)
        rms.start()
        rms.until(lambda: stream.running() == [first], "the job that ran")
        told = {job: stream.why(job) for job in waits}
        assert list(map(untimed, told.values())) == list(map(untimed, waits.values()))
        assert stream.until_started(wide) == []
        assert stream.over == [first, due]
        stream.drain()
        assert rms.end(signal.SIGTERM) == 0
        rms.nothing_left()
        rms.replays()
