"""Routes of the daemon over HTTP: a typed message in, a typed message out, errors in a sentence."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request

from rms._version import __version__
from rms.core.model.events import HeldByUser, Reason, Suspended, Withdrawn
from rms.core.model.jobs import Job, JobId, JobState, Ran, sort_key
from rms.daemon.ask import views
from rms.daemon.ask.http import (
    METRICS_TYPE,
    Application,
    Endpoint,
    Flushes,
    RefusedError,
    has_bearer,
    is_signed,
    over_tcp,
)
from rms.daemon.ask.views import archived, selected
from rms.daemon.heart import Daemon
from rms.daemon.store.private import is_loopback, raise_open_files
from rms.daemon.store.record import REQUEUED
from rms.formats.prices import PricesAnswer
from rms.formats.values import expand
from rms.kernels.record import RecordEntry
from rms.kernels.served import GovernorRule
from rms.launch.base import LaunchCommand
from rms.wire.http import METER_TOKEN, USER_TOKEN, job_name
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
from rms.wire.users import (
    WAIT_PATH,
    AcctAnswer,
    BooksAnswer,
    ErrorAnswer,
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
ACCT_QUERY = ("id", "state", "name", "user")
RUN = "run"  # in requests of jobs: how often the job was requeued before
QUERIES = {"/jobs": JOB_QUERY, "/acct": ACCT_QUERY}
CANCELLED_AT_ONCE = 1000  # pending jobs that are cancelled before other requests get a turn
ROWS_AT_ONCE = 100  # rows of jobs that are built before other requests get a turn
MOST_WAIT_S = 20.0  # longest time to hold a request that waits for jobs to end
# Interval of the checks for that; a hundred waiting requests cost almost nothing.
WAIT_LOOK_S = 0.25
WATCH_S = 0.05  # interval at which the daemon checks its processes, and a launcher line its step
STEP_LOOKS = 100  # number of checks of a step before a launcher line gets an answer
FIRST_HOLD_S = 0.2  # time to hold the poll of a job before its first step, which is near
# Time to hold a job's poll: longer where many jobs poll, so that there are no more polls a second
# than this, but shorter than a job waits for an answer (10 s).
HOLD_S = 1.0
MOST_HOLD_S = 8.0
POLLS_PER_S = 200.0
_LIMIT = re.compile("[1-9][0-9]{0,3}")
_AFTER = re.compile("[0-9]{1,9}(_[0-9]{1,9})?")
_STEP = re.compile("[0-9]{1,9}")


class Routes:
    """The methods that answer requests, one per path.

    Args:
        stop: begins the shutdown of the daemon.
        token: signs users' requests over TCP, from this machine only.
        sockets: paths of Unix sockets that only their owner can open, and where users need no
            token. Routes of jobs and meters need their own tokens everywhere.
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

    def app(self) -> Application:
        """Return the application."""
        return Application(self.endpoints(), Flushes(self.daemon.journal), self._token)

    def endpoints(self) -> list[Endpoint]:
        """Return all routes with their access: users, a job about itself, or meters."""
        user = self._check_user

        def job(request: Request) -> None:
            job_id = _job_id(request)  # the error is the same for a job that does not exist
            self._check(request, job_name(job_id), f"job {job_id}")
            run, now = request.query_params.get(RUN), self.daemon.jobs[job_id].run
            if run is not None and run != str(now):
                raise RefusedError(
                    410,
                    f"expected run {now} of job {job_id}, which was requeued, got run {run[:9]}",
                )

        def meter(request: Request) -> None:
            self._check(request, METER_TOKEN, "this daemon's meters")

        return [
            Endpoint("GET", "/openapi.json", user, self.openapi),
            Endpoint("POST", "/jobs", user, self.submit, Submission),
            Endpoint("GET", "/jobs", user, self.jobs),
            Endpoint("POST", WAIT_PATH, user, self.wait, WaitQuery, "no"),
            Endpoint("POST", "/cancel", user, self.cancel, JobSelection),
            Endpoint("POST", "/hold", user, self.hold, JobSelection),
            Endpoint("POST", "/release", user, self.hold, JobSelection),
            Endpoint("POST", "/requeue", user, self.requeue, JobSelection),
            Endpoint("POST", "/suspend", user, self.suspend, JobSelection),
            Endpoint("POST", "/continue", user, self.suspend, JobSelection),
            Endpoint("POST", "/resize", user, self.resize, ResizeCommand),
            Endpoint("GET", "/history/{id}", user, self.history),
            Endpoint("GET", "/nodes", user, self.nodes),
            Endpoint("POST", "/drain", user, self.drain, NodePattern),
            Endpoint("POST", "/resume", user, self.drain, NodePattern),
            Endpoint("GET", "/tasks", user, self.tasks),
            Endpoint("GET", "/tasks/record", user, self.task_record),
            Endpoint("GET", "/books", user, self.books),
            Endpoint("GET", "/ran", user, self.ran),
            Endpoint("GET", "/metrics", self._check_metrics, self.metrics, flush="no"),
            Endpoint("POST", LIVE_PATH, user, self.live, LiveQuery, "may"),
            Endpoint("GET", "/acct", user, self.acct),
            Endpoint("GET", "/prices", user, self.prices),
            Endpoint("GET", "/policy", user, self.policy),
            Endpoint("POST", "/policy", user, self.set_policy, PolicyName),
            Endpoint("GET", "/power-cap", user, self.power_cap),
            Endpoint("POST", "/power-cap", user, self.set_power_cap, PowerCap),
            Endpoint("POST", "/shutdown", user, self.shutdown, Nothing),
            # The journal is flushed before the daemon carries out the decisions on a poll.
            Endpoint("POST", "/jobs/{id}/poll", job, self.poll, Poll, "no"),
            Endpoint("POST", "/jobs/{id}/report", job, self.report, Report, "may"),
            Endpoint("POST", "/jobs/{id}/steps", job, self.launch, LaunchRequest, "may"),
            Endpoint("GET", "/jobs/{id}/steps/{step}", job, self.step),
            # A killed daemon loses no report; after a power cut the next one repeats it.
            Endpoint("POST", CLOCKS_PATH, meter, self.clocks, ClockReport, "no"),
            Endpoint("POST", METER_PATH, meter, self.meter, Metered, "no"),
        ]

    # --- access ------------------------------------------------------------------------------

    def _token(self, name: str, host: str) -> str:
        """Return the token of a name at an address of this daemon, or ""."""
        if name == USER_TOKEN:
            return self._user_token if is_loopback(host) else ""
        if name == METER_TOKEN:
            return self.daemon.launcher.meter_token
        job_id = JobId(name.removeprefix(job_name("")))
        known = name == job_name(job_id) and job_id in self.daemon.jobs
        return self.daemon.context.private.token(job_id) if known else ""

    def _check_user(self, request: Request) -> None:
        """Require the owner: at one of the owner's Unix sockets, or by the token from here."""
        host, port = request.scope.get("server") or ("", 0)
        if (port is None and host in self._sockets) or is_signed(request, USER_TOKEN):
            return
        if not is_loopback(host):
            expected = "a user of this machine (another one's: ssh -L to the daemon's socket)"
            raise RefusedError(401, f"expected {expected}, got a request over the network")
        raise RefusedError(401, "expected a request signed with the server's token")

    def _check_metrics(self, request: Request) -> None:
        host, _ = request.scope.get("server") or ("", 0)
        if not (is_loopback(host) and has_bearer(request, self._metrics_token)):
            self._check_user(request)

    def _check(self, request: Request, name: str, whose: str) -> None:
        """Require a token: as a signature over TCP, as a bearer token at a Unix socket."""
        token = self._token(name, "")
        valid = is_signed(request, name) if over_tcp(request) else has_bearer(request, token)
        if not (token and valid):
            raise RefusedError(401, f"expected the token of {whose}")

    async def openapi(self, request: Request) -> dict[str, Any]:
        """Return this description."""
        return describe(self.endpoints())

    # --- jobs, on behalf of users -------------------------------------------------------------

    async def submit(self, request: Request, body: Submission) -> JobIds:
        """Submit a script; answer with the ids of its jobs."""
        return await self.daemon.submissions.submit(body)

    async def jobs(self, request: Request) -> list[JobRow]:
        """Return all jobs, or those that ids, states, names select; or a page of them."""
        options = {key: text for key, text in request.query_params.items() if key in JOB_QUERY}
        limit, after = options.pop("limit", None), options.pop("after", None)
        if after is not None and not _AFTER.fullmatch(after):
            raise ValueError(f"expected the id of a job, got {after!r}")
        if limit is not None and not _LIMIT.fullmatch(limit):
            raise ValueError(f"expected a limit of 1 to 9999 rows, got {limit!r}")
        context, query = self.daemon.context, JobSelection(**options)
        jobs = sorted(selected(context, query).values(), key=attrgetter("number"))  # by rising id
        old = views.by_id(archived(context, query))
        if after is not None:
            last = sort_key(JobId(after))
            jobs = jobs[bisect_right(jobs, last, key=lambda job: sort_key(job.spec.id)) :]
            old = old[bisect_right(old, last, key=lambda row: sort_key(JobId(row.id))) :]
        most = None if limit is None else int(limit)
        rows = await self._rows(jobs[:most])
        return views.by_id([*old, *rows])[:most] if old else rows

    async def _rows(self, jobs: Sequence[Job]) -> list[JobRow]:
        """Return the rows of jobs; other requests get a turn now and then."""
        context, rows = self.daemon.context, list[JobRow]()
        for first in range(0, len(jobs), ROWS_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            ids = [job.spec.id for job in jobs[first : first + ROWS_AT_ONCE]]
            present = (context.state.job(job_id) for job_id in ids)  # they may have changed
            rows += views.rows(context, filter(None, present))
            gone = [job_id for job_id in ids if context.state.job(job_id) is None]
            rows += [old.row for job_id in gone for old in context.journal.archived(job_id)]
        return rows

    async def wait(self, request: Request, body: WaitQuery) -> WaitAnswer:
        """Answer with the number of unfinished jobs: when there is none, or after a while."""
        left = list(selected(self.daemon.context, JobSelection(body.id)))
        until_s, ended = time.monotonic() + min(body.hold_s, MOST_WAIT_S), self._ended(body)
        while True:
            while left and ended(left[-1]):
                left.pop()
            if not left or time.monotonic() >= until_s:
                return WaitAnswer(len(left))
            await asyncio.sleep(min(WAIT_LOOK_S, body.hold_s))

    def _ended(self, body: WaitQuery) -> Callable[[JobId], bool]:
        """Return a test whether a job has ended and, with ``lines``, its last line is written."""
        ended, jobs = self.daemon.context.state.ended, self.daemon.jobs
        if not body.lines:
            return ended.__contains__
        return lambda job_id: job_id in ended and jobs[job_id].summary != ""

    async def cancel(self, request: Request, body: JobSelection) -> JobIds:
        """Cancel jobs; answer with the ids of those that had not ended."""
        state, daemon = self.daemon.context.state, self.daemon
        ids = [job_id for job_id in self._changed(body) if job_id not in state.ended]
        pending = [job_id for job_id in reversed(ids) if job_id not in state.running]
        for first in range(0, len(pending), CANCELLED_AT_ONCE):
            await asyncio.sleep(0)
            part, waiting = pending[first : first + CANCELLED_AT_ONCE], state.waiting
            gone = tuple(job_id for job_id in part if job_id in waiting)
            daemon.handle(Withdrawn(daemon.time(), gone))
        for job_id in ids:
            if job_id in state.running:
                daemon.scripts.cancel(daemon.jobs[job_id], if_journalled=True)
        return JobIds([str(job_id) for job_id in sorted(ids, key=sort_key)])

    async def hold(self, request: Request, body: JobSelection) -> JobIds:
        """Hold pending jobs, or release those on hold; answer with their ids."""
        state, hold = self.daemon.context.state, request.url.path == "/hold"
        if hold:
            ids = self._among(body, state.waiting, "a job that waits")
        else:
            held = {job_id for job_id, job in state.held.items() if job.held_by_user}
            ids = self._among(body, held, "a job that a user holds")
        self.daemon.handle(HeldByUser(self.daemon.time(), tuple(ids), hold))
        return JobIds([str(job_id) for job_id in ids])

    async def requeue(self, request: Request, body: JobSelection) -> JobIds:
        """Requeue running jobs, which end at checkpoints; answer with their ids."""
        jobs, running = self.daemon.jobs, self.daemon.context.state.running
        started = [job_id for job_id in running if jobs[job_id].script is not None]
        ids = self._among(body, started, "a running job")
        for job_id in ids:
            self.daemon.scripts.cancel(jobs[job_id], REQUEUED, if_journalled=True)
        return JobIds([str(job_id) for job_id in ids])

    async def suspend(self, request: Request, body: JobSelection) -> JobIds:
        """Stop the processes of running jobs, or let suspended jobs run again; answer with ids."""
        daemon, suspend = self.daemon, request.url.path == "/suspend"
        state, expected = JobState.SUSPENDED, "a suspended job"
        if suspend:
            state, expected = JobState.RUNNING, "a running job that is not being resized or ended"
        steady = [
            job_id
            for job_id, job in daemon.context.state.running.items()
            if job.state is state
            and job.requested_size is None
            and daemon.jobs[job_id].ending is None
        ]
        ids = self._among(body, steady, expected)
        for job_id in ids:
            daemon.handle(Suspended(daemon.time(), job_id, suspend))
            daemon.jobs[job_id].count = None  # of steps: this time says nothing of its speed
        daemon.journal.flush()
        for job_id in ids:
            number = signal.SIGSTOP if suspend else signal.SIGCONT
            daemon.launcher.signal_all(job_id, number)
        return JobIds([str(job_id) for job_id in ids])

    def _changed(self, selection: JobSelection) -> dict[JobId, Job]:
        """Return the jobs that a command changes; an empty selection is an error."""
        if selection == JobSelection():
            raise ValueError("expected ids, states, names or users of jobs, got none")
        return selected(self.daemon.context, selection)

    def _among(
        self, selection: JobSelection, candidates: Collection[JobId], expected: str
    ) -> list[JobId]:
        """Return the selected jobs among the candidates; refuse a request that selects none."""
        jobs = self._changed(selection)
        ids = [job_id for job_id in jobs if job_id in candidates]
        if not ids:
            got = next((f"{job_id}, {job.state}" for job_id, job in jobs.items()), "none")
            raise RefusedError(409, f"expected {expected}, got {got}")
        return ids

    async def resize(self, request: Request, body: ResizeCommand) -> ResizeAnswer:
        """Resize a job on a user's behalf; answer with the decision."""
        running = self.daemon.context.state.running
        job_id, *others = self._among(JobSelection(body.id), running, "a running job")
        if others:
            raise RefusedError(409, f"expected one running job, got {1 + len(others)} of {body.id}")
        if body.strategy not in (None, *STRATEGIES):
            expected = f"a strategy of {', '.join(STRATEGIES)}"
            raise ValueError(f"expected {expected}, got {body.strategy!r}")
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
        """Return the decisions about a job, in order."""
        job_id = _job_id(request)
        if job_id not in self.daemon.jobs and not self.daemon.journal.archived(job_id):
            raise RefusedError(404, f"expected the id of a job, got {job_id}")
        return views.history(self.daemon.context, job_id)

    # --- nodes, tasks, energy, policy ----------------------------------------------------------

    async def nodes(self, request: Request) -> list[NodeRow]:
        """Return the nodes and their jobs."""
        return views.nodes(self.daemon.context)

    async def drain(self, request: Request, body: NodePattern) -> NodeNames:
        """Drain or resume nodes; answer with their names."""
        names = expand(body.node)
        self.daemon.nodes.drain(names, drained=request.url.path == "/drain")
        return NodeNames(names)

    async def tasks(self, request: Request) -> list[TaskRow]:
        """Return the tasks of processes on this machine."""
        return self.daemon.tasks.rows()

    async def task_record(self, request: Request) -> list[RecordEntry]:
        """Return the record of tasks, for a simulation of other strategies."""
        return self.daemon.tasks.record()

    async def metrics(self, request: Request) -> str:
        """Return queue, waits, power, energy (also of jobs) and resizes for Prometheus."""
        context = self.daemon.context
        return context.metrics.text(context, context.time())

    async def books(self, request: Request) -> BooksAnswer:
        """Return the energy books and the spans in which jobs held nodes."""
        return views.books(self.daemon.context)

    async def ran(self, request: Request) -> Ran:
        """Return what the newest jobs did, for a replay on the virtual clock."""
        return views.ran(self.daemon.context)

    async def live(self, request: Request, body: LiveQuery) -> Live:
        """Return the present state for a page; wait a while for the next event."""
        journal = self.daemon.journal
        until_s = time.monotonic() + min(body.hold_s, LONGEST_HOLD_S)
        while journal.last <= body.after and time.monotonic() < until_s:
            await asyncio.sleep(WATCH_S)
        from rms.daemon.ask.live import live  # needs the charts

        return live(self.daemon.context, body)

    async def acct(self, request: Request) -> AcctAnswer:
        """Return all jobs, or the selected ones, and the energy rows of their owners."""
        filters = {key: text for key, text in request.query_params.items() if key in ACCT_QUERY}
        return views.acct(self.daemon.context, JobSelection(**filters) if filters else None)

    async def prices(self, request: Request) -> PricesAnswer:
        """Return the prices of electricity, if the daemon has them."""
        return PricesAnswer(self.daemon.context.settings.prices)

    async def policy(self, request: Request) -> PolicyName:
        """Return the policy, and the strategy of tasks."""
        return views.policy(self.daemon.context, self.daemon.tasks)

    async def set_policy(self, request: Request, body: PolicyName) -> PolicyName:
        """Set the policy, or the strategy of tasks."""
        tasks, name = self.daemon.tasks, body.strategy
        if name or body.governor:
            governor = GovernorRule.parse(body.governor) if body.governor else None
            load = tasks.strategies.load
            strategy = await asyncio.to_thread(load, name, body.text) if name else None
            tasks.use(strategy, governor)
        if body.name:
            self.daemon.set_policy(body.name)
        return views.policy(self.daemon.context, tasks)

    async def power_cap(self, request: Request) -> PowerCapRow:
        """Return the power cap."""
        return views.power_cap(self.daemon.context)

    async def set_power_cap(self, request: Request, body: PowerCap) -> PowerCapRow:
        """Set the power cap."""
        self.daemon.set_power_cap(body.cap_w)
        return views.power_cap(self.daemon.context)

    async def shutdown(self, request: Request, body: Nothing) -> Nothing:
        """End all jobs at checkpoints, then the daemon."""
        self.stop()
        return Nothing()

    # --- routes of jobs and meters -----------------------------------------------------------

    async def poll(self, request: Request, body: Poll) -> PollAnswer:
        """Answer rank 0 of a job with a resize request, held until there is one or for a while.

        With more jobs than half the open files of this process, the rest get an answer at once and
        poll again after the same time.
        """
        job = self.daemon.jobs[_job_id(request)]
        wanted = self.daemon.worlds.poll(job, body)
        if wanted is not None:
            return PollAnswer(wanted)
        hold_s = holding_s(len(self.daemon.context.state.running))
        if self._held >= self._most_held:
            return PollAnswer(None, hold_s)
        if not body.step and not job.adapter:
            hold_s = FIRST_HOLD_S
        self._held += 1
        try:
            async with asyncio.timeout(hold_s):
                await job.wakeup.wait()
        except TimeoutError:
            pass
        finally:
            self._held -= 1
        return PollAnswer(job.request_after(body.known))

    async def report(self, request: Request, body: Report) -> Nothing:
        """Take a job's report about a resize."""
        self.daemon.worlds.report(self.daemon.jobs[_job_id(request)], body)
        return Nothing()

    async def launch(self, request: Request, body: LaunchRequest) -> StepNumber:
        """Start the step of a launcher line of a job script."""
        job_id = _job_id(request)
        if job_id not in self.daemon.context.state.running:
            raise RefusedError(409, f"expected a running job, got {job_id}")
        job = self.daemon.jobs[job_id]
        if job.ending is not None:
            raise RefusedError(409, f"expected a job that goes on, got {job_id}, which ends")
        if job.adapter:
            expected = "a job that is notified of a new size by messages (--resize-by)"
            raise RefusedError(409, f"expected {expected}, got {job_id}, by {job.adapter}")
        output = body.output or str(job.files[0])
        errors = body.errors or str(job.files[1] or job.files[0])
        line = LaunchCommand(body.command, body.cwd, body.env, output, errors)
        return StepNumber(self.daemon.worlds.launch(job, line, body.key))

    async def step(self, request: Request) -> StepState:
        """Return the result of a step; wait a while for it."""
        steps, number = self.daemon.jobs[_job_id(request)].steps, request.path_params["step"]
        if not _STEP.fullmatch(number) or int(number) >= len(steps):
            raise RefusedError(404, f"expected a step below {len(steps)}, got {number}")
        step = int(number)
        for _ in range(STEP_LOOKS):
            if steps[step].exit_code is not None:
                break
            await asyncio.sleep(WATCH_S)
        return StepState(steps[step].exit_code, steps[step].message)

    async def clocks(self, request: Request, body: ClockReport) -> ClockOrders:
        """Take the frequencies of a node; answer with those that it is to set."""
        return self.daemon.frequencies.report(body)

    async def meter(self, request: Request, body: Metered) -> MeterAnswer:
        """Take the readings of a node's meters."""
        return self.daemon.meters.take_report(body)


def holding_s(jobs: int) -> float:
    """Return the time to hold a poll if this many jobs poll."""
    return min(MOST_HOLD_S, max(HOLD_S, jobs / POLLS_PER_S))


def _job_id(request: Request) -> JobId:
    return JobId(request.path_params["id"])


# --- description of the routes (OpenAPI 3.1) ----------------------------------------------------

REFUSALS = {
    400: "The message is malformed, or its values are impossible.",
    401: "The token is missing, wrong, or that of another connection.",
    404: "The job, node, step or path does not exist.",
    409: "The state of the job does not permit this.",
    410: "The job was requeued, and the request is one of its earlier run.",
    413: "The request is too long.",
    503: "The journal cannot be written now: the disk is full, or its files are missing.",
}

SECURITY = (
    "At a Unix socket jobs and meters show their token. Over TCP requests are signed as "
    "rms/wire/http.py describes; GET /metrics alone accepts the token of the file metrics-token."
)


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description of endpoints, made of the types of their messages."""
    answers = [get_type_hints(endpoint.call)["return"] for endpoint in endpoints]
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    types = [*answers, *bodies, ErrorAnswer]
    references, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(str, types), references, strict=True))
    refused = {
        str(status): {"description": words, "content": _json(schemas[str(ErrorAnswer)])}
        for status, words in REFUSALS.items()
    }
    paths: dict[str, Any] = {}
    for endpoint, answer in zip(endpoints, answers, strict=True):
        schema = schemas[str(answer)]
        content = {METRICS_TYPE: {"schema": schema}} if answer is str else _json(schema)
        done = {"description": "It was done.", "content": content}
        of_job = (RUN,) if endpoint.path.startswith("/jobs/") else ()
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", endpoint.path)
        ] + [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in QUERIES.get(endpoint.path, of_job)
        ]
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = {
            "summary": (endpoint.call.__doc__ or "").partition("\n")[0],
            "parameters": parameters,
            "responses": {"200": done, **refused},
        } | (
            {}
            if endpoint.body is None
            else {"requestBody": {"content": _json(schemas[str(endpoint.body)])}}
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "rms", "version": __version__},
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": SECURITY}
            },
        },
    }


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
