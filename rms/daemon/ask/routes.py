"""Routes of users about jobs: submitted, shown, waited for, cancelled, held, requeued."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from starlette.requests import Request

from rms.core.model.events import Reason
from rms.core.model.jobs import Job, JobId, sort_key
from rms.daemon.ask import views
from rms.daemon.ask.exposition import exposition
from rms.daemon.ask.http import (
    Application,
    Endpoint,
    Flushes,
    RefusedError,
    is_signed,
    over_tcp,
    shows,
)
from rms.daemon.ask.live import live
from rms.daemon.ask.openapi import describe
from rms.daemon.ask.views import UnknownJobError, archived, selected
from rms.daemon.heart import Daemon
from rms.daemon.jobs.submit import admit
from rms.daemon.store.private import is_loopback, raise_open_files
from rms.daemon.store.record import REQUEUED
from rms.formats.prices import PricesAnswer
from rms.formats.values import expand
from rms.kernels.record import RecordEntry
from rms.kernels.served import GovernorRule
from rms.launch.base import LaunchCommand
from rms.wire.live import LIVE_PATH, LONGEST_HOLD_S, Live, LiveQuery
from rms.wire.messages import (
    CLOCKS_PATH,
    METER_PATH,
    STRATEGIES,
    ClockOrders,
    ClockReport,
    LaunchRequest,
    MeterAnswer,
    Metered,
    Poll,
    PollAnswer,
    Report,
    StepNumber,
    StepState,
)
from rms.wire.signing import METER, USER, job_name
from rms.wire.users import (
    WAIT_PATH,
    Accounts,
    BooksAnswer,
    HistoryEntry,
    JobIds,
    JobRow,
    JobSelection,
    NodeNames,
    NodePattern,
    NodeRow,
    Nothing,
    PolicyName,
    PowerCap,
    PowerCapRow,
    ResizeAnswer,
    ResizeCommand,
    Submission,
    TaskRow,
    WaitAnswer,
    WaitQuery,
)

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
    """One method per path, as in :class:`rms.daemon.ask.routes.Routes`."""

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


# FUSED rms.daemon.ask.routes: The daemon's routes over HTTP: a typed message in, a typed message out, errors in a sentence.

WATCH_S = 0.05
"""How often the daemon looks at its processes, and a launcher line at its step."""

STEP_LOOKS = 100
"""How often a launcher line's question looks at its step before it is answered."""

FIRST_HOLD_S = 0.2
"""How long the poll of a job is held that has not stepped yet: that it does is soon known."""

HOLD_S = 1.0
MOST_HOLD_S = 8.0
POLLS_PER_S = 200.0
"""How long a job's poll is held: longer where many jobs poll, so that there are no more a second
than this, but not as long as a job waits for an answer (10 s)."""

_STEP = re.compile("[0-9]{1,9}")

ACCT_QUERY = ("id", "state", "name", "user")

QUERIES = {"/jobs": JOB_QUERY, "/acct": ACCT_QUERY}


class Routes:
    """One method per path: takes what was sent, returns what is answered.

    Args:
        daemon: what the routes ask and change.
        stop: begins the end of the daemon.
        token: signs users' requests over TCP, from this machine only.
        sockets: paths of Unix sockets that only their owner can open, who shows no token there.
            Routes of jobs and meters ask for their own tokens everywhere.
        metrics_token: bearer token of Prometheus over TCP, which cannot sign requests.
    """

    def __init__(
        self,
        daemon: Daemon,
        stop: Callable[[], None],
        token: str,
        sockets: Collection[str],
        metrics_token: str = "",
    ) -> None:
        self.daemon, self.stop, self._user_token = daemon, stop, token
        self._metrics_token = metrics_token
        self._sockets = frozenset(sockets)
        self._held, self._most_held = 0, raise_open_files() // 2
        self._of_jobs = JobRoutes(daemon)

    def app(self) -> Application:
        """Return the application."""
        return Application(self.endpoints(), Flushes(self.daemon.journal), self._token)

    def endpoints(self) -> list[Endpoint]:
        """Return all that can be asked, and who may: users, a job about itself, meters."""
        user, job, meter = self._check_user, self._check_job, self._check_meter
        of_jobs = self._of_jobs
        return [
            Endpoint("GET", "/openapi.json", user, self.openapi),
            Endpoint("POST", "/jobs", user, of_jobs.submit, Submission),
            Endpoint("GET", "/jobs", user, of_jobs.jobs),
            Endpoint("POST", WAIT_PATH, user, of_jobs.wait, WaitQuery, "no"),
            Endpoint("POST", "/cancel", user, of_jobs.cancel, JobSelection),
            Endpoint("POST", "/hold", user, of_jobs.hold, JobSelection),
            Endpoint("POST", "/release", user, of_jobs.hold, JobSelection),
            Endpoint("POST", "/requeue", user, of_jobs.requeue, JobSelection),
            Endpoint("POST", "/resize", user, self.resize, ResizeCommand),
            Endpoint("GET", "/history/{id}", user, self.history),
            Endpoint("GET", "/nodes", user, self.nodes),
            Endpoint("POST", "/drain", user, self.drain, NodePattern),
            Endpoint("POST", "/resume", user, self.drain, NodePattern),
            Endpoint("GET", "/tasks", user, self.tasks),
            Endpoint("GET", "/tasks/record", user, self.task_record),
            Endpoint("GET", "/books", user, self.books),
            Endpoint("GET", "/metrics", self._check_metrics, self.metrics, flush="no"),
            Endpoint("POST", LIVE_PATH, user, self.live, LiveQuery, "may"),
            Endpoint("GET", "/acct", user, self.acct),
            Endpoint("GET", "/prices", user, self.prices),
            Endpoint("GET", "/policy", user, self.policy),
            Endpoint("POST", "/policy", user, self.set_policy, PolicyName),
            Endpoint("GET", "/power-cap", user, self.power_cap),
            Endpoint("POST", "/power-cap", user, self.set_power_cap, PowerCap),
            Endpoint("POST", "/shutdown", user, self.shutdown, Nothing),
            # Whatever it leads to is on disk before it is done.
            Endpoint("POST", "/jobs/{id}/poll", job, self.poll, Poll, "no"),
            Endpoint("POST", "/jobs/{id}/report", job, self.report, Report, "may"),
            Endpoint("POST", "/jobs/{id}/steps", job, self.launch, LaunchRequest, "may"),
            Endpoint("GET", "/jobs/{id}/steps/{step}", job, self.step),
            # A killed daemon loses none; after a power cut the next report tells it again.
            Endpoint("POST", CLOCKS_PATH, meter, self.clocks, ClockReport, "no"),
            Endpoint("POST", METER_PATH, meter, self.meter, Metered, "no"),
        ]

    # --- who may ask -------------------------------------------------------------------------

    def _token(self, name: str, host: str) -> str:
        """Return the token of a name at an address of this daemon, or ""."""
        if name == USER:
            return self._user_token if is_loopback(host) else ""
        if name == METER:
            return self.daemon.launcher.meter_token
        job_id = JobId(name.removeprefix(job_name("")))
        return self._job_token(job_id) if name == job_name(job_id) else ""

    def _job_token(self, job_id: JobId) -> str:
        job = self.daemon.jobs.get(job_id)
        return "" if job is None else self.daemon.context.private.token(job_id)

    def _check_user(self, request: Request) -> None:
        """Let the owner in: at a Unix socket that is the owner's, or by the token from here."""
        host, port = request.scope.get("server") or ("", 0)
        if (port is None and host in self._sockets) or is_signed(request, USER):
            return
        if not is_loopback(host):
            expected = "a user of this machine (another one's: ssh -L to the daemon's socket)"
            raise RefusedError(401, f"expected {expected}, got a request over the network")
        raise RefusedError(401, "expected a request signed with the server's token")

    def _check_metrics(self, request: Request) -> None:
        host, _ = request.scope.get("server") or ("", 0)
        if not (is_loopback(host) and shows(request, self._metrics_token)):
            self._check_user(request)

    def _check_meter(self, request: Request) -> None:
        self._check(request, METER, self.daemon.launcher.meter_token, "this daemon's meters")

    def _check_job(self, request: Request) -> None:
        job_id = _job_id(request)  # the error is the same for a job that does not exist
        self._check(request, job_name(job_id), self._job_token(job_id), f"job {job_id}")

    def _check(self, request: Request, name: str, token: str, whose: str) -> None:
        """Require a token: as a signature over TCP, as a bearer token at a Unix socket."""
        valid = is_signed(request, name) if over_tcp(request) else shows(request, token)
        if not (token and valid):
            raise RefusedError(401, f"expected the token of {whose}")

    async def openapi(self, request: Request) -> dict[str, Any]:
        """Return this description."""
        return describe(self.endpoints(), QUERIES)

    # --- users' routes -----------------------------------------------------------------------

    async def resize(self, request: Request, body: ResizeCommand) -> ResizeAnswer:
        """Resize a job on a user's behalf; answer with what was decided."""
        running = self.daemon.context.state.running
        job_id, *others = self._of_jobs.among(JobSelection(body.id), running, "a running job")
        if others:
            raise RefusedError(409, f"expected one running job, got {1 + len(others)} of {body.id}")
        if body.strategy not in (None, *STRATEGIES):
            known = ", ".join(STRATEGIES)
            raise ValueError(f"expected a strategy of {known}, got {body.strategy!r}")
        on = [name for name in (body.on or "").split(",") if name]
        if body.nodes is None and (on or body.strategy):
            raise ValueError("expected auto alone, got a strategy or nodes with it")
        decision = self.daemon.resize(job_id, body.nodes, body.strategy, on)
        names = {
            Reason.RESIZE_POINT: "Waits",
            Reason.BY_POLICY: "ByPolicy",
            Reason.IMPOSSIBLE: "Never",
        }
        name = names.get(decision.code, type(decision).__name__)
        return ResizeAnswer(name, decision.reason)

    async def history(self, request: Request) -> list[HistoryEntry]:
        """Return what was decided about a job, in order."""
        job_id = _job_id(request)
        if job_id not in self.daemon.jobs and not self.daemon.journal.archived(job_id):
            raise RefusedError(404, f"expected the id of a job, got {job_id}")
        return views.history(self.daemon.context, job_id)

    async def nodes(self, request: Request) -> list[NodeRow]:
        """Return the nodes and who is on them."""
        return views.nodes(self.daemon.context)

    async def drain(self, request: Request, body: NodePattern) -> NodeNames:
        """Give nodes to no more jobs, or to jobs again; answer with the nodes' names."""
        names = expand(body.node)
        self.daemon.nodes.drain(names, drained=request.url.path == "/drain")
        return NodeNames(names)

    async def tasks(self, request: Request) -> list[TaskRow]:
        """Return the tasks of processes on this machine."""
        return self.daemon.tasks.rows()

    async def task_record(self, request: Request) -> list[RecordEntry]:
        """Return what happened to tasks, for other strategies to be tried on."""
        return self.daemon.tasks.record.read()

    async def metrics(self, request: Request) -> str:
        """Return queue, waits, power, energy and resizes for Prometheus."""
        return exposition(self.daemon.context)

    async def books(self, request: Request) -> BooksAnswer:
        """Return the energy books and who held which node when."""
        return views.books(self.daemon.context)

    async def live(self, request: Request, body: LiveQuery) -> Live:
        """Return the present for a page; wait a while until something new has happened."""
        journal = self.daemon.journal
        until_s = time.monotonic() + min(body.hold_s, LONGEST_HOLD_S)
        while journal.last <= body.after and time.monotonic() < until_s:
            await asyncio.sleep(WATCH_S)
        return live(self.daemon.context, body)

    async def acct(self, request: Request) -> Accounts:
        """Return all jobs, or the selected ones, and the energy rows of each owner."""
        filters = {key: text for key, text in request.query_params.items() if key in ACCT_QUERY}
        try:
            return views.acct(self.daemon.context, JobSelection(**filters) if filters else None)
        except UnknownJobError as error:
            raise RefusedError(404, str(error)) from None

    async def prices(self, request: Request) -> PricesAnswer:
        """Return what electricity costs, if the daemon was told."""
        return PricesAnswer(self.daemon.context.settings.prices)

    async def policy(self, request: Request) -> PolicyName:
        """Show the policy, and the strategy of tasks."""
        return views.policy(self.daemon.context, self.daemon.tasks)

    async def set_policy(self, request: Request, body: PolicyName) -> PolicyName:
        """Let another policy decide from now on, or another strategy on tasks."""
        tasks, name = self.daemon.tasks, body.strategy
        if name or body.governor:
            governor = GovernorRule.parse(body.governor) if body.governor else None
            found = (
                await asyncio.to_thread(tasks.strategies.load, name, body.text) if name else None
            )
            tasks.use(found, governor)
        if body.name:
            self.daemon.set_policy(body.name)
        return views.policy(self.daemon.context, tasks)

    async def power_cap(self, request: Request) -> PowerCapRow:
        """Show the power cap."""
        return views.power_cap(self.daemon.context)

    async def set_power_cap(self, request: Request, body: PowerCap) -> PowerCapRow:
        """Let another power cap hold from now on."""
        self.daemon.set_power_cap(body.cap_w)
        return views.power_cap(self.daemon.context)

    async def shutdown(self, request: Request, body: Nothing) -> Nothing:
        """End all jobs at checkpoints, then the daemon."""
        self.stop()
        return Nothing()

    # --- routes of jobs and meters -----------------------------------------------------------

    async def poll(self, request: Request, body: Poll) -> PollAnswer:
        """A job's rank 0 asks for resize requests: held until there is one, or for a while.

        Where there are more jobs than this process may have open files, the rest are answered at
        once, and ask again after as long.
        """
        job_id = _job_id(request)
        wanted = self.daemon.poll(job_id, body)
        if wanted is not None:
            return PollAnswer(wanted)
        hold_s = holding_s(len(self.daemon.context.state.running))
        if self._held >= self._most_held:
            return PollAnswer(None, hold_s)
        if not body.step:
            hold_s = FIRST_HOLD_S
        self._held += 1
        try:
            await self.daemon.jobs[job_id].news.wait(hold_s)
        finally:
            self._held -= 1
        return PollAnswer(self.daemon.request(job_id, body.known))

    async def report(self, request: Request, body: Report) -> Nothing:
        """A job tells how a resize goes."""
        self.daemon.report(_job_id(request), body)
        return Nothing()

    async def launch(self, request: Request, body: LaunchRequest) -> StepNumber:
        """A launcher line of a job script has been reached."""
        job_id = _job_id(request)
        if job_id not in self.daemon.context.state.running:
            raise RefusedError(409, f"expected a running job, got {job_id}")
        job = self.daemon.jobs[job_id]
        if job.ending is not None:
            raise RefusedError(409, f"expected a job that goes on, got {job_id}, told to end")
        output = body.output or str(job.files[0])
        errors = body.errors or str(job.files[1] or job.files[0])
        line = LaunchCommand(body.command, body.cwd, body.env, output, errors)
        return StepNumber(self.daemon.launch(job_id, line, body.key))

    async def step(self, request: Request) -> StepState:
        """Return how a step ended; wait a while for it."""
        steps, asked = self.daemon.jobs[_job_id(request)].steps, request.path_params["step"]
        if not _STEP.fullmatch(asked) or int(asked) >= len(steps):
            raise RefusedError(404, f"expected a step below {len(steps)}, got {asked}")
        number = int(asked)
        for _ in range(STEP_LOOKS):
            if steps[number].exit_code is not None:
                break
            await asyncio.sleep(WATCH_S)
        return StepState(steps[number].exit_code, steps[number].message)

    async def clocks(self, request: Request, body: ClockReport) -> ClockOrders:
        """Take what a node's frequencies are; answer with what they are to be."""
        return self.daemon.frequencies.report(body)

    async def meter(self, request: Request, body: Metered) -> MeterAnswer:
        """Take what a node's meters have read."""
        return self.daemon.metered(body)


def holding_s(jobs: int) -> float:
    """Return how long to hold the poll of each of so many jobs."""
    return min(MOST_HOLD_S, max(HOLD_S, jobs / POLLS_PER_S))


def _job_id(request: Request) -> JobId:
    return JobId(request.path_params["id"])
