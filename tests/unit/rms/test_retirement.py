"""Jobs that have been over for long: a row on disk is left of each, and nothing is lost of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from faults import Fault
from killed import Bench, KilledError
from killed import bench as opened
from routed import Routed

from rms.core.model.events import Ended
from rms.core.model.jobs import JobId, JobState, Mode
from rms.core.rules.transition import ANY, NOT_OK, OK, is_met
from rms.daemon.ask import views
from rms.daemon.ask.views import archived, past, selected
from rms.daemon.restart.recover import replayed
from rms.daemon.store.archive import retire
from rms.daemon.store.journal import JournalFullError, UnknownJobError
from rms.daemon.store.notes import SubmissionNote
from rms.wire.users import JobSelection

JOBS = 4
NAMES = [str(n) for n in range(1, JOBS + 1)]


def lives(bench: Bench, number: int) -> None:
    """Let a job come and go; each step may be taken again."""
    job_id = JobId(str(number))
    known = {each.id for each in views.acct(bench.daemon.context).jobs}
    if job_id not in known:
        bench.submit(job_id, (1, 2, 1), Mode.FIXED)
    for _ in range(3):
        bench.now_s += 1.0
        bench.daemon.tick()
        bench.machine.end(job_id, None)
    for _ in range(3):  # what there is to be said of it is said by then
        bench.now_s += 6.0
        bench.daemon.tick()


def told(folder: Path, at: int | None, *, after: bool = False) -> int:
    """Let jobs come and go, with a daemon killed at a write; return how many it made."""
    kept = patch("rms.daemon.store.archive.KEPT", 1), patch("rms.daemon.store.archive.AT_ONCE", 1)
    every = patch("rms.daemon.store.archive.EVERY", 7)
    with kept[0], kept[1], every, opened(folder, keep=20) as bench:
        try:
            bench.start(at, after=after)
        except KilledError:
            bench.start()
        db = bench.first
        for number in range(1, JOBS + 1):
            try:
                lives(bench, number)
            except KilledError:
                bench.start()
                lives(bench, number)
        where = f"{'after' if after else 'before'} write {at}: {bench.said}"
        context = bench.daemon.context
        state, journal = context.state, context.journal
        assert len(state.ended) == len(context.jobs) == 1, where
        assert len(journal.archived_ids()) == JOBS - 1, where
        rows = views.acct(context).jobs
        assert [each.id for each in rows] == NAMES, where
        assert {each.state for each in rows} == {"COMPLETED"}, where
        assert all(each.energy_j > 0.0 and each.summary for each in rows), where
        context.scheduler.energy.check(bench.now_s)
        books = context.scheduler.books(bench.now_s)
        busy_j = sum(each.energy_j for each in rows)
        assert books.busy_j == pytest.approx(busy_j, rel=1e-9), where
        assert journal.notes(SubmissionNote).keys() == set(context.jobs), where
        found = replayed(journal)
        assert (found.differing, found.refused) == ([], []), where
        return db.writes


@pytest.mark.promise("retired-jobs")
@pytest.mark.parametrize(
    "after",
    [None, *(pytest.param(after, marks=pytest.mark.wide) for after in (True, False))],
)
def test_jobs_that_are_long_over_are_rows_on_disk(
    tmp_path: Path, after: bool | None, fault: Fault
) -> None:
    (tmp_path / "whole").mkdir()
    writes = told(tmp_path / "whole", None)
    if after is None:
        return
    for at in range(1, writes + 1):
        (folder := tmp_path / str(at)).mkdir()
        told(folder, at, after=after)
    side = "after" if after else "before"
    fault(f"killed {side} each of {writes} writes, jobs being archived", "each is there, once")


@pytest.fixture
def retired(tmp_path: Path) -> Any:
    with (
        patch("rms.daemon.store.archive.KEPT", 1),
        patch("rms.daemon.store.archive.AT_ONCE", 1),
        opened(tmp_path) as bench,
    ):
        for number in (1, 2, 3):
            lives(bench, number)
        yield bench


def test_they_are_found_by_their_ids(retired: Bench) -> None:
    context = retired.daemon.context
    assert list(context.state.ended) == ["3"] and retired.journal.archived_ids() == {"1", "2"}

    def rows(**asked: str) -> list[str]:
        selection = JobSelection(**asked)
        selected(context, selection)
        return [each.id for each in archived(context, selection)]

    assert rows(id="1,2,3") == ["1", "2"] and rows(id="1", state="FAILED") == []
    assert rows() == [] and rows(id="2", name="a") == ["2"] and rows(id="2", name="b") == []
    with pytest.raises(UnknownJobError):
        rows(id="4")
    kinds = [each.kind for each in views.history(context, JobId("1"))]
    assert kinds == ["start"]
    retired.close()
    found = past(retired.folder / "journal")
    assert [each.id for each in found.jobs] == ["1", "2", "3"]
    cluster_j = found.books.energy.cluster_j
    assert sum(each.joules for each in found.rows) == pytest.approx(cluster_j)
    retired.start()


def test_without_room_for_their_rows_they_stay(retired: Bench) -> None:
    lives_on = retired.daemon.context
    with patch.object(retired.journal, "archive", side_effect=JournalFullError("full")):
        lives(retired, 4)
        assert len(lives_on.state.ended) == 2 == len(lives_on.jobs)
    retired.daemon.tick()
    assert len(lives_on.state.ended) == 1


@pytest.mark.parametrize(
    ("kind", "states", "met"),
    [
        (OK, ["COMPLETED", "COMPLETED"], True),
        (OK, ["COMPLETED", "FAILED"], False),
        (NOT_OK, ["COMPLETED", "TIMEOUT"], True),
        (NOT_OK, ["COMPLETED"], False),
        (ANY, ["CANCELLED"], True),
    ],
)
def test_what_waits_for_them_is_decided_by_how_they_ended(
    kind: str, states: list[str], met: bool
) -> None:
    assert is_met(kind, [JobState(state) for state in states]) is met


class Walked(dict[Any, Any]):
    """A dictionary that counts how many of its items were looked at."""

    seen = 0

    def items(self) -> Any:
        """Yield the items."""
        for item in super().items():
            self.seen += 1
            yield item


def test_of_many_jobs_that_are_over_a_few_are_looked_at_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as bench, patch("rms.daemon.store.archive.KEPT", 1):
        bench.start()
        for number in range(1, JOBS + 1):
            lives(bench, number)
        state = bench.daemon.context.state
        state.ended = walked = Walked(state.ended)
        with patch("rms.daemon.store.archive.AT_ONCE", 1):
            assert retire(bench.daemon.context)
        assert walked.seen <= 2 and len(state.ended) == JOBS - 1


def test_jobs_are_archived_once_a_hundred_too_many_are_over(server: Routed) -> None:
    """Two may stay. Of 101 that are over 99 are too many, which is not worth the while yet."""
    server.submit(array="1-102")
    context, state = server.daemon.context, server.daemon.context.state
    with patch("rms.daemon.store.archive.KEPT", 2):
        for number in range(1, 103):
            server.clock[0] += 10.0
            server.daemon.handle(Ended(server.clock[0], JobId(f"1_{number}"), "COMPLETED"))
            context.jobs[JobId(f"1_{number}")].summary = "said"
            server.daemon.meters.write_all()
            assert retire(context) == (number == 102)
    assert list(state.ended) == ["1_101", "1_102"] and context.journal.archived_number() == 100
