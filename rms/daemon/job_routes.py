"""Routes of users about jobs: submitted, shown, waited for, cancelled, held, requeued."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from starlette.requests import Request

from rms.core.model.jobs import Job, JobId, sort_key
from rms.daemon import views
from rms.daemon.daemon import Daemon
from rms.daemon.endpoints import RefusedError
from rms.daemon.jobs import REQUEUED
from rms.daemon.selection import UnknownJobError, archived, selected
from rms.daemon.submit import admit
from rms.wire.users import JobIds, JobRow, JobSelection, Submission, WaitAnswer, WaitQuery

JOB_QUERY = ("id", "state", "name", "user", "after", "limit")

CANCELLED_AT_ONCE = 1000
"""Of so many jobs that wait, others have their turn before the next are cancelled."""

ROWS_AT_ONCE = 100
"""So many rows of jobs are made, and others have their turn before the next."""

MOST_WAIT_S = 20.0
"""How long a question is held whether jobs are over."""

WAIT_LOOK_S = 0.25
"""How often it is looked whether they are: a hundred who wait cost next to nothing."""

_LIMIT = re.compile("[1-9][0-9]{0,3}")
_AFTER = re.compile("[0-9]{1,9}(_[0-9]{1,9})?")


class JobRoutes:
    """One method per path, as in :class:`rms.daemon.server.Routes`."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self._admitting = daemon, asyncio.Lock()

    async def submit(self, request: Request, body: Submission) -> JobIds:
        """Take in a script; answer with the ids of its jobs."""
        async with self._admitting:  # the next number is taken once its jobs are
            return await admit(self.daemon, body)

    async def jobs(self, request: Request) -> list[JobRow]:
        """Return all jobs, or those an id, states, names select; or a page of them."""
        asked = {key: text for key, text in request.query_params.items() if key in JOB_QUERY}
        limit, after = asked.pop("limit", None), asked.pop("after", None)
        if after is not None and not _AFTER.fullmatch(after):
            raise ValueError(f"expected the id of a job, got {after!r}")
        if limit is not None and not _LIMIT.fullmatch(limit):
            raise ValueError(f"expected a limit of 1 to 9999 rows, got {limit!r}")
        context, query = self.daemon.context, JobSelection(**asked)
        found = sorted(self._selected(query).values(), key=attrgetter("number"))  # by rising id
        old = views.by_id(archived(context, query))
        if after is not None:
            last = sort_key(JobId(after))
            found = found[bisect_right(found, last, key=lambda job: sort_key(job.spec.id)) :]
            old = old[bisect_right(old, last, key=lambda row: sort_key(JobId(row.id))) :]
        most = None if limit is None else int(limit)
        rows = await self._rows(found[:most])
        return views.by_id([*old, *rows])[:most] if old else rows

    async def _rows(self, found: Sequence[Job]) -> list[JobRow]:
        """Return a row for each of these jobs; others have their turn now and then."""
        context, rows = self.daemon.context, list[JobRow]()
        for first in range(0, len(found), ROWS_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            part = found[first : first + ROWS_AT_ONCE]
            jobs = (context.state.job(job.spec.id) for job in part)  # they may have gone on
            rows += views.rows(context, filter(None, jobs))
            gone = [job.spec.id for job in part if context.state.job(job.spec.id) is None]
            rows += [each.row for job_id in gone for each in context.journal.archived(job_id)]
        return rows

    async def wait(self, request: Request, body: WaitQuery) -> WaitAnswer:
        """Answer how many jobs are not over yet: when none is, or after a while."""
        left = list(self._selected(JobSelection(body.id)))
        until_s, ended = time.monotonic() + min(body.hold_s, MOST_WAIT_S), self._ended(body)
        while True:
            while left and ended(left[-1]):
                left.pop()
            if not left or time.monotonic() >= until_s:
                return WaitAnswer(len(left))
            await asyncio.sleep(min(WAIT_LOOK_S, body.hold_s))

    def _ended(self, body: WaitQuery) -> Callable[[JobId], bool]:
        """Return what tells whether a job is over, and where that is asked its line written."""
        ended, jobs = self.daemon.context.state.ended, self.daemon.jobs
        if not body.lines:
            return ended.__contains__
        return lambda job_id: job_id in ended and jobs[job_id].summary != ""

    def _selected(self, asked: JobSelection) -> dict[JobId, Job]:
        try:
            return selected(self.daemon.context, asked)
        except UnknownJobError as error:
            raise RefusedError(404, str(error)) from None

    async def cancel(self, request: Request, body: JobSelection) -> JobIds:
        """Cancel jobs; answer with the ids of those that were not over yet."""
        ended = self.daemon.context.state.ended
        ids = [job_id for job_id in self._changed(body) if job_id not in ended]
        state, daemon = self.daemon.context.state, self.daemon
        waiting = [job_id for job_id in reversed(ids) if job_id not in state.running]
        for first in range(0, len(waiting), CANCELLED_AT_ONCE):
            await asyncio.sleep(0)
            here = state.waiting
            daemon.holds.withdraw(
                [i for i in waiting[first : first + CANCELLED_AT_ONCE] if i in here]
            )
        for job_id in ids:
            if job_id in state.running:
                daemon.cancel(job_id)
        return JobIds([str(job_id) for job_id in sorted(ids, key=sort_key)])

    async def hold(self, request: Request, body: JobSelection) -> JobIds:
        """Hold waiting jobs, or release those that a user holds; answer with their ids."""
        state, holds = self.daemon.context.state, self.daemon.holds
        if request.url.path == "/hold":
            ids = self.among(body, state.waiting, "a job that waits")
            holds.hold(ids)
        else:
            held = {job_id for job_id, job in state.held.items() if job.held_by_user}
            ids = self.among(body, held, "a job that a user holds")
            holds.release(ids)
        return JobIds([str(job_id) for job_id in ids])

    async def requeue(self, request: Request, body: JobSelection) -> JobIds:
        """Let running jobs end at checkpoints and wait again; answer with their ids."""
        jobs, running = self.daemon.jobs, self.daemon.context.state.running
        started = [job_id for job_id in running if jobs[job_id].script is not None]
        ids = self.among(body, started, "a running job")
        for job_id in ids:
            self.daemon.scripts.cancel(jobs[job_id], REQUEUED, if_journalled=True)
        return JobIds([str(job_id) for job_id in ids])

    def _changed(self, asked: JobSelection) -> dict[JobId, Job]:
        """Return the jobs that a command is to change: never all for want of a word."""
        if asked == JobSelection():
            raise ValueError("expected ids, states, names or users of jobs, got none")
        return self._selected(asked)

    def among(self, asked: JobSelection, these: Collection[JobId], expected: str) -> list[JobId]:
        """Return which of these jobs are meant.

        Raises:
            RefusedError: there are none.
        """
        found = self._changed(asked)
        ids = [job_id for job_id in found if job_id in these]
        if not ids:
            got = next((f"{job_id}, {job.state}" for job_id, job in found.items()), "none")
            raise RefusedError(409, f"expected {expected}, got {got}")
        return ids
