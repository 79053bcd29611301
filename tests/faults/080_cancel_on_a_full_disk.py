"""A cancel or requeue answered with 503 on a full disk ended the job at once, unrecorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from killed import Bench, bench
from submissions import filler

from rms.core.model.jobs import JobId, JobState, Mode
from rms.daemon.store.record import REQUEUED

ONE = JobId("1")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Bench]:
    """Yield a daemon with a running job, whose journal has no room."""
    with bench(tmp_path) as opened:
        opened.submit("1", (1, 1, 1), Mode.FIXED)
        opened.journal._db.execute("PRAGMA max_page_count = 1")
        numbers = count()
        while opened.journal.caught_up():
            opened.journal.note(filler(next(numbers)))
        yield opened


def signals(opened: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which the daemon's launcher adds each job that it asks to end."""
    sent: list[str] = []
    monkeypatch.setattr(opened.launcher, "terminate", lambda job, worlds: sent.append(job))
    return sent


def watch(opened: Bench) -> None:
    """Let the daemon look at its jobs after a time longer than the grace period."""
    opened.now_s += 30.0
    for _ in range(3):
        opened.daemon.tick()


def make_room(opened: Bench) -> None:
    """Let the journal grow again, so that it writes what it holds."""
    opened.journal._db.execute("PRAGMA max_page_count = 100000")
    opened.daemon.tick()


REQUESTS: list[Callable[[Bench], None]] = [
    lambda opened: opened.daemon.scripts.cancel(opened.daemon.jobs[ONE], if_journalled=True),
    lambda opened: opened.daemon.scripts.cancel(
        opened.daemon.jobs[ONE], REQUEUED, if_journalled=True
    ),
]


@pytest.mark.parametrize("request_end", REQUESTS, ids=["cancel", "requeue"])
def test_a_daemon_killed_before_there_is_room_leaves_the_job_running(
    full: Bench, monkeypatch: pytest.MonkeyPatch, request_end: Callable[[Bench], None]
) -> None:
    sent = signals(full, monkeypatch)
    request_end(full)
    watch(full)
    assert sent == [] and full.machine.of("1")
    full.start()
    watch(full)
    assert full.daemon.context.state.running[ONE].state is JobState.RUNNING
    full.machine.end("1", None)
    watch(full)
    assert full.daemon.context.state.ended[ONE].state is JobState.COMPLETED


@pytest.mark.parametrize(
    ("ends_first", "sent", "state"),
    [(False, ["1"], JobState.CANCELLED), (True, [], JobState.COMPLETED)],
    ids=["cancelled", "ended before"],
)
def test_the_cancel_is_carried_out_once_there_is_room_unless_the_job_has_ended(
    full: Bench,
    monkeypatch: pytest.MonkeyPatch,
    ends_first: bool,
    sent: list[str],
    state: JobState,
) -> None:
    signalled = signals(full, monkeypatch)
    full.daemon.scripts.cancel(full.daemon.jobs[ONE], if_journalled=True)
    if ends_first:
        full.machine.end("1", None)
    watch(full)
    assert signalled == []
    make_room(full)
    assert signalled == sent
    full.machine.end("1", None, 143)
    watch(full)
    assert signalled == sent and full.daemon.context.state.ended[ONE].state is state


@pytest.mark.parametrize("if_journalled", [True, False], ids=["requested", "its nodes go"])
def test_a_requeue_does_not_replace_a_cancel(
    full: Bench, monkeypatch: pytest.MonkeyPatch, if_journalled: bool
) -> None:
    sent, job = signals(full, monkeypatch), full.daemon.jobs[ONE]
    full.daemon.scripts.cancel(full.daemon.jobs[ONE], if_journalled=True)
    full.daemon.scripts.cancel(job, REQUEUED, if_journalled=if_journalled)
    make_room(full)
    assert sent == ["1"]
    full.machine.end("1", None, 143)
    watch(full)
    assert full.daemon.context.state.ended[ONE].state is JobState.CANCELLED
