"""The daemon's routes over HTTP: a typed message in, a typed message out, errors in a sentence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from typing import TypeVar

import msgspec
from msgspec.json import Decoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rms.core.model import JobId
from rms.core.policies import PolicyError
from rms.core.tasks import Governor
from rms.daemon import views
from rms.daemon.daemon import Daemon
from rms.daemon.sockets import raise_open_files
from rms.daemon.submit import admit
from rms.formats.jobscript import ScriptError, parse_ids
from rms.formats.nodelist import expand
from rms.formats.prices import PricesAnswer
from rms.launch.base import LaunchCommand
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
    Accounts,
    BooksAnswer,
    ErrorAnswer,
    HistoryEntry,
    IdPattern,
    JobIds,
    JobRow,
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
)

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

UNKNOWN = "expected the id of a job, got {}, which is not known"

B = TypeVar("B")


class RefusedError(Exception):
    """A request that is not fulfilled: an HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Routes:
    """One method per path: takes what was sent, returns what is answered.

    Args:
        daemon: what the routes ask and change.
        stop: begins the end of the daemon.
        token: what users must show over TCP. A Unix socket needs none, since only its owner can
            open it; routes of jobs and meters ask for their own tokens.
    """

    def __init__(self, daemon: Daemon, stop: Callable[[], None], token: str) -> None:
        self.daemon, self.stop, self._token = daemon, stop, token
        self._held, self._most_held = 0, raise_open_files() // 2

    def app(self) -> Starlette:
        """Return the application."""
        get, post = self._get, self._post
        user, job, meter = self._check_user, self._check_job, self._check_meter
        return Starlette(
            routes=[
                post("/jobs", user, Decoder(Submission), self.submit),
                get("/jobs", user, self.jobs),
                post("/cancel", user, Decoder(IdPattern), self.cancel),
                post("/resize", user, Decoder(ResizeCommand), self.resize),
                get("/history/{id}", user, self.history),
                get("/nodes", user, self.nodes),
                post("/drain", user, Decoder(NodePattern), self.drain),
                post("/resume", user, Decoder(NodePattern), self.drain),
                get("/tasks", user, self.tasks),
                get("/books", user, self.books),
                get("/acct", user, self.acct),
                get("/prices", user, self.prices),
                get("/policy", user, self.policy),
                post("/policy", user, Decoder(PolicyName), self.set_policy),
                get("/power-cap", user, self.power_cap),
                post("/power-cap", user, Decoder(PowerCap), self.set_power_cap),
                post("/shutdown", user, Decoder(Nothing), self.shutdown),
                post("/jobs/{id}/poll", job, Decoder(Poll), self.poll),
                post("/jobs/{id}/report", job, Decoder(Report), self.report),
                post("/jobs/{id}/steps", job, Decoder(LaunchRequest), self.launch),
                get("/jobs/{id}/steps/{step:int}", job, self.step),
                # A killed daemon loses none; after a power cut the next report tells it again.
                post(CLOCKS_PATH, meter, Decoder(ClockReport), self.clocks, flush=False),
                post(METER_PATH, meter, Decoder(Metered), self.meter, flush=False),
            ]
        )

    # --- how a request is answered -----------------------------------------------------------

    def _get(
        self,
        path: str,
        check: Callable[[Request], None],
        call: Callable[[Request], Awaitable[object]],
    ) -> Route:
        async def work(request: Request) -> object:
            check(request)
            return await call(request)

        return Route(path, self._answering(work), methods=["GET"])

    def _post(
        self,
        path: str,
        check: Callable[[Request], None],
        body: Decoder[B],
        call: Callable[[Request, B], Awaitable[object]],
        *,
        flush: bool = True,
    ) -> Route:
        async def work(request: Request) -> object:
            check(request)
            return await call(request, body.decode(await request.body() or b"{}"))

        return Route(path, self._answering(work, flush=flush), methods=["POST"])

    def _answering(
        self, work: Callable[[Request], Awaitable[object]], *, flush: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap what a route does.

        Args:
            flush: what it has entered is on disk before anybody is answered.
        """

        async def answer(request: Request) -> Response:
            try:
                found, status = await work(request), 200
                if flush:
                    self.daemon.journal.flush()
            except RefusedError as error:
                found, status = ErrorAnswer(str(error)), error.status
            except (ScriptError, PolicyError, msgspec.DecodeError, ValueError) as error:
                found, status = ErrorAnswer(str(error)), 400
            return Response(msgspec.json.encode(found), status, media_type="application/json")

        return answer

    def _check_user(self, request: Request) -> None:
        over_tcp = (request.scope.get("server") or ("", None))[1] is not None
        if over_tcp:
            _check_token(request, self._token, "the server's token (RMS_TOKEN, or its file)")

    def _check_meter(self, request: Request) -> None:
        _check_token(request, self.daemon.launcher.meter_token, "the token of this daemon's meters")

    def _check_job(self, request: Request) -> None:
        job_id = _job_id(request)
        job = self.daemon.jobs.get(job_id)
        if job is None:
            raise RefusedError(404, f"expected the id of a job, got {job_id}")
        _check_token(request, job.note["token"], f"the token of job {job_id}")

    # --- users' routes -----------------------------------------------------------------------

    async def submit(self, request: Request, body: Submission) -> JobIds:
        """Take in a script; answer with the ids of its jobs."""
        return JobIds(admit(self.daemon, body))

    async def jobs(self, request: Request) -> list[JobRow]:
        """Return all jobs, or those an id selects."""
        wanted = request.query_params.get("id")
        if wanted is None:
            return views.jobs(self.daemon.context)
        found = views.jobs(self.daemon.context, parse_ids(wanted).matches)
        if not found:
            raise RefusedError(404, UNKNOWN.format(wanted))
        return found

    async def cancel(self, request: Request, body: IdPattern) -> JobIds:
        """Cancel jobs; answer with the ids of those that were not over yet."""
        state = self.daemon.context.state
        wanted = parse_ids(body.id)
        open_jobs = (*state.pending, *state.too_wide, *state.running)
        ids = [job for job in open_jobs if wanted.matches(job)]
        if not ids and not any(wanted.matches(job) for job in state.ended):
            raise RefusedError(404, f"expected the id of a job, got {body.id}")
        for job_id in ids:
            self.daemon.cancel(job_id)
        return JobIds([str(job_id) for job_id in ids])

    async def resize(self, request: Request, body: ResizeCommand) -> ResizeAnswer:
        """Resize a job on a user's behalf; answer with what was decided."""
        job_id = JobId(body.id)
        if job_id not in self.daemon.context.state.running:
            raise RefusedError(404, f"expected a running job, got {job_id}")
        if body.strategy not in (None, *STRATEGIES):
            known = ", ".join(STRATEGIES)
            raise ValueError(f"expected a strategy of {known}, got {body.strategy!r}")
        on = [name for name in (body.on or "").split(",") if name]
        decision = self.daemon.resize(job_id, body.nodes, body.strategy, on)
        return ResizeAnswer(type(decision).__name__, decision.reason)

    async def history(self, request: Request) -> list[HistoryEntry]:
        """Return what was decided about a job, in order."""
        job_id = _job_id(request)
        if job_id not in self.daemon.jobs:
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

    async def books(self, request: Request) -> BooksAnswer:
        """Return the energy books and who held which node when."""
        return views.books(self.daemon.context)

    async def acct(self, request: Request) -> Accounts:
        """Return all jobs, or those an id selects, and what energy was booked to whom."""
        wanted = request.query_params.get("id")
        if wanted is None:
            return views.acct(self.daemon.context)
        found = views.acct(self.daemon.context, parse_ids(wanted).matches)
        if not found.jobs:
            raise RefusedError(404, UNKNOWN.format(wanted))
        return found

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
            governor = Governor(body.governor) if body.governor else None
            tasks.use(await asyncio.to_thread(tasks.load, name) if name else None, governor)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.daemon.jobs[job_id].news.wait(), hold_s)
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
        output = job.note["output"]
        line = LaunchCommand(
            body.command, body.cwd, body.env, body.output or output, body.errors or output
        )
        return StepNumber(self.daemon.launch(job_id, line, body.key))

    async def step(self, request: Request) -> StepState:
        """Return how a step ended; wait a while for it."""
        steps, number = self.daemon.jobs[_job_id(request)].steps, request.path_params["step"]
        if number >= len(steps):
            raise RefusedError(404, f"expected a step below {len(steps)}, got {number}")
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


def _check_token(request: Request, token: str, whose: str) -> None:
    given = request.headers.get("authorization", "")
    if not token or not compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise RefusedError(403, f"expected {whose}")
