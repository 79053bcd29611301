"""The daemon on the wire: HTTP over a Unix socket that only its owner can open, or over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rms.core.model import JobId
from rms.core.policies import PolicyError
from rms.daemon import views
from rms.daemon.daemon import Daemon
from rms.daemon.submit import Submission, admit
from rms.formats.jobscript import ScriptError, parse_ids
from rms.formats.nodelist import expand
from rms.launch.base import LaunchCommand
from rms.wire.messages import METER_PATH, STRATEGIES, Metered, Poll, PollAnswer, Report

WATCH_S = 0.05
FIRST_HOLD_S = 0.2
"""How long the question of a job is held that has not stepped yet: that it does is soon known."""

HOLD_S = 1.0
MOST_HOLD_S = 8.0
POLLS_PER_S = 200.0
"""How long a job's question is held: longer where many jobs ask, so that there are no more a second
than this, but not as long as a job waits for an answer (10 s)."""

MOST_FILES = 16384
"""A question that is held is an open file."""

LONGEST_UNIX_PATH = 100
"""Systems allow 104 to 108 bytes; a clear word beats the kernel's."""


class ServeError(Exception):
    """The daemon cannot be started here; one sentence."""


class Launch(msgspec.Struct, forbid_unknown_fields=True):
    """A launcher line of a job script."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    output: str | None = None
    errors: str | None = None
    key: str = ""


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        self.status, self.sentence = status, sentence


Handler = Callable[[Request], Awaitable[Any]]


class Routes:
    """One method per path; each returns what becomes JSON."""

    def __init__(self, daemon: Daemon, stop: Callable[[], None], token: str) -> None:
        self.daemon, self.stop, self._token = daemon, stop, token
        self._held, self._most_held = 0, _raised_files() // 2

    def app(self) -> Starlette:
        """Return the application."""

        def own(path: str) -> bool:
            """Tell the routes that ask for a token of their own."""
            return "{id}/" in path or path == METER_PATH

        table: list[tuple[str, str, Handler]] = [
            ("POST", "/jobs", self.submit),
            ("GET", "/jobs", self.jobs),
            ("POST", "/cancel", self.cancel),
            ("POST", "/resize", self.resize),
            ("GET", "/history/{id}", self.history),
            ("GET", "/nodes", self.nodes),
            ("POST", "/drain", self.drain),
            ("POST", "/resume", self.drain),
            ("POST", METER_PATH, self.meter),
            ("GET", "/books", self.books),
            ("GET", "/policy", self.policy),
            ("POST", "/policy", self.policy),
            ("POST", "/shutdown", self.shutdown),
            ("POST", "/jobs/{id}/poll", self.poll),
            ("POST", "/jobs/{id}/report", self.report),
            ("POST", "/jobs/{id}/steps", self.launch),
            ("GET", "/jobs/{id}/steps/{step:int}", self.step),
        ]
        return Starlette(
            routes=[
                Route(
                    path,
                    _answer(self._kept(call), None if own(path) else self._token),
                    methods=[verb],
                )
                for verb, path, call in table
            ]
        )

    def _kept(self, call: Handler) -> Handler:
        """Wrap a handler: what it has entered is on disk before anybody is answered."""

        async def keep(request: Request) -> Any:
            answer = await call(request)
            self.daemon.journal.flush()
            return answer

        return keep

    async def submit(self, request: Request) -> Any:
        """Take in a script; answer with the ids of its jobs."""
        body = msgspec.json.decode(await request.body(), type=Submission)
        return {"ids": admit(self.daemon, body)}

    async def jobs(self, request: Request) -> Any:
        """Return all jobs, or those an id selects."""
        rows = views.rows(self.daemon)
        wanted = request.query_params.get("id")
        if wanted is None:
            return rows
        selection = parse_ids(wanted)
        found = [row for row in rows if selection.matches(row["id"])]
        if not found:
            raise _RefusedError(404, f"expected the id of a job, got {wanted}, which is not known")
        return found

    async def cancel(self, request: Request) -> Any:
        """Cancel jobs; answer with the ids of those that were not over yet."""
        body = msgspec.json.decode(await request.body(), type=dict[str, str])
        state = self.daemon.engine.state
        wanted = parse_ids(body["id"])
        open_jobs = (*state.pending, *state.too_wide, *state.running)
        ids = [job for job in open_jobs if wanted.matches(job)]
        if not ids and not any(wanted.matches(job) for job in state.ended):
            raise _RefusedError(404, f"expected the id of a job, got {body['id']}")
        for job_id in ids:
            self.daemon.cancel(job_id)
        return {"ids": ids}

    async def resize(self, request: Request) -> Any:
        """Resize a job on a user's word; answer with what was decided."""
        body = msgspec.json.decode(await request.body(), type=dict[str, Any])
        job_id = JobId(str(body["id"]))
        if job_id not in self.daemon.engine.state.running:
            raise _RefusedError(404, f"expected a running job, got {job_id}")
        strategy = body.get("strategy")
        if strategy not in (None, *STRATEGIES):
            raise ValueError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}")
        on = [name for name in str(body.get("on") or "").split(",") if name]
        decision = self.daemon.resize(job_id, int(body["nodes"]), strategy, on)
        return {"decision": type(decision).__name__, "reason": getattr(decision, "reason", "")}

    async def history(self, request: Request) -> Any:
        """Return what was decided about a job, in order."""
        job_id = JobId(request.path_params["id"])
        if job_id not in self.daemon.live:
            raise _RefusedError(404, f"expected the id of a job, got {job_id}")
        return views.history(self.daemon, job_id)

    async def nodes(self, request: Request) -> Any:
        """Return the nodes and who is on them."""
        return views.nodes(self.daemon)

    async def drain(self, request: Request) -> Any:
        """Give nodes to no more jobs, or to jobs again; answer with the nodes' names."""
        body = msgspec.json.decode(await request.body(), type=dict[str, str])
        names = expand(body["node"])
        self.daemon.drain(names, drained=request.url.path == "/drain")
        return {"nodes": names}

    async def meter(self, request: Request) -> Any:
        """Take a node's reading of its power."""
        token = self.daemon.launcher.meter_token
        given = request.headers.get("authorization", "")
        if not token or not compare_digest(given, f"Bearer {token}"):
            raise _RefusedError(403, "expected the token of this daemon's meters")
        self.daemon.meters.node(msgspec.json.decode(await request.body(), type=Metered))
        return {}

    async def books(self, request: Request) -> Any:
        """Return the energy books and who held which node when."""
        return {
            "energy": self.daemon.scheduler.books(self.daemon.time()),
            "spans": self.daemon.scheduler.timeline.spans,
            "nodes": self.daemon.cluster.names,
            "now_s": self.daemon.time(),
            "policy": self.daemon.engine.policy.name,
            "power_w": self.daemon.scheduler.timeline.power_w,
            "closed": self.daemon.scheduler.closed,
        }

    async def policy(self, request: Request) -> Any:
        """Show the policy, or swap it."""
        if request.method == "POST":
            body = msgspec.json.decode(await request.body(), type=dict[str, str])
            self.daemon.set_policy(body["name"])
        return {"name": self.daemon.engine.policy.name}

    async def shutdown(self, request: Request) -> Any:
        """End all jobs at checkpoints, then the daemon."""
        self.stop()
        return {}

    async def poll(self, request: Request) -> Any:
        """A job's rank 0 asks for wishes: held until there is one, or for a while.

        Where there are more jobs than this process may have open files, the rest are answered at
        once, and ask again after as long.
        """
        job_id = self._own(request)
        poll = msgspec.json.decode(await request.body(), type=Poll)
        wish = self.daemon.poll(job_id, poll)
        if wish is not None:
            return PollAnswer(wish)
        hold_s = holding_s(len(self.daemon.engine.state.running))
        if self._held >= self._most_held:
            return PollAnswer(None, hold_s)
        if not poll.step:
            hold_s = FIRST_HOLD_S
        self._held += 1
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.daemon.live[job_id].news.wait(), hold_s)
        finally:
            self._held -= 1
        return PollAnswer(self.daemon.wish(job_id, poll.known))

    async def report(self, request: Request) -> Any:
        """A job tells how a resize goes."""
        job_id = self._own(request)
        self.daemon.report(job_id, msgspec.json.decode(await request.body(), type=Report))
        return {}

    async def launch(self, request: Request) -> Any:
        """A launcher line of a job script has been reached."""
        job_id = self._own(request)
        if job_id not in self.daemon.engine.state.running:
            raise _RefusedError(409, f"expected a running job, got {job_id}")
        if self.daemon.live[job_id].ending is not None:
            raise _RefusedError(409, f"expected a job that goes on, got {job_id}, told to end")
        body = msgspec.json.decode(await request.body(), type=Launch)
        output = self.daemon.live[job_id].note["output"]
        line = LaunchCommand(
            body.command, body.cwd, body.env, body.output or output, body.errors or output
        )
        number = self.daemon.launch(job_id, line, body.key)
        return {"step": number}

    async def step(self, request: Request) -> Any:
        """Return how a step ended; wait a while for it."""
        job_id = self._own(request)
        steps = self.daemon.live[job_id].steps
        number = request.path_params["step"]
        if number >= len(steps):
            raise _RefusedError(404, f"expected a step below {len(steps)}, got {number}")
        for _ in range(100):
            if steps[number].exit_code is not None:
                break
            await asyncio.sleep(WATCH_S)
        return {"exit_code": steps[number].exit_code, "message": steps[number].message}

    def _own(self, request: Request) -> JobId:
        """Return the job of a request that carries that job's token."""
        job_id = JobId(request.path_params["id"])
        live = self.daemon.live.get(job_id)
        if live is None:
            raise _RefusedError(404, f"expected the id of a job, got {job_id}")
        given = request.headers.get("authorization", "")
        if not compare_digest(given, f"Bearer {live.note['token']}"):
            raise _RefusedError(403, f"expected the token of job {job_id}")
        return job_id


def holding_s(jobs: int) -> float:
    """Return how long to hold the question of each of so many jobs."""
    return min(MOST_HOLD_S, max(HOLD_S, jobs / POLLS_PER_S))


def _raised_files() -> int:
    """Return how many files this process may have open, having raised that as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if wanted > soft != resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def _answer(call: Handler, token: str | None) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a handler: errors become sentences; a token, where there is one, is asked for on TCP.

    A Unix socket needs none, since only its owner can open it; jobs' own routes ask for theirs.
    """

    async def answer(request: Request) -> Response:
        try:
            on_tcp = (request.scope.get("server") or ("", None))[1] is not None
            given = request.headers.get("authorization", "")
            if token is not None and on_tcp and not compare_digest(given, f"Bearer {token}"):
                raise _RefusedError(403, "expected the server's token (RMS_TOKEN, or its file)")
            return Response(msgspec.json.encode(await call(request)), media_type="application/json")
        except _RefusedError as error:
            status, sentence = error.status, error.sentence
        except (ScriptError, PolicyError, msgspec.DecodeError, KeyError, ValueError) as error:
            status, sentence = 400, str(error)
        return Response(
            msgspec.json.encode({"error": sentence}), status, media_type="application/json"
        )

    return answer


def bind(listen: str) -> tuple[socket.socket, str]:
    """Open the listening socket; return it and the address clients use.

    Raises:
        ServeError: the path is too long, in use, or another owner's.
    """
    if listen.startswith("unix:"):
        path = Path(listen.removeprefix("unix:"))
        if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
            raise ServeError(
                f"expected a socket path of at most {LONGEST_UNIX_PATH} bytes, got {path}"
            )
        return _bind_unix(path), listen
    kind, _, rest = listen.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdigit():
        raise ServeError(f"expected unix:PATH or tcp:HOST:PORT, got {listen!r}")
    try:
        server = socket.create_server((host, int(port)))
    except OSError as error:
        raise ServeError(f"cannot listen on {listen}: {error}") from None
    return server, f"http://{host}:{server.getsockname()[1]}"


def _bind_unix(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() or path.is_symlink():
        if not path.is_socket():
            raise ServeError(f"expected a path for a socket, got {path}, which is something else")
        if path.stat().st_uid != os.getuid():
            raise ServeError(f"expected a socket of one's own, got {path} of another owner")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink()  # of a daemon that was killed
            else:
                raise ServeError(f"another daemon answers at {path}; expected a socket not in use")
    server = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServeError(f"cannot make the socket {path}: {error}") from None
    finally:
        os.umask(before)
    server.listen(128)
    return server


async def serve(
    daemon: Daemon,
    sockets: list[socket.socket],
    ready: Callable[[], None],
    parent: int | None = None,
    token: str = "",
) -> None:
    """Serve until told to stop, or the ``parent`` is gone; then end all jobs at checkpoints."""
    stopping = asyncio.Event()
    config = uvicorn.Config(
        Routes(daemon, stopping.set, token).app(),
        log_level="critical",
        lifespan="off",
        access_log=False,
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    # uvicorn would take SIGINT and SIGTERM for itself and leave the jobs alone.
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    # The last two are what users have Slurm send before the end (--signal).
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, stopping.set)
    serving = loop.create_task(server.serve(sockets=sockets))
    ready()
    told = False
    while not (told and daemon.idle):
        daemon.watch()
        if parent is not None and os.getppid() != parent:
            stopping.set()
        why = "" if told else daemon.launcher.shutdown_reason()
        if why:
            daemon.say(why)
            stopping.set()
        if stopping.is_set() and not told:
            told = True
            daemon.stop()
        await asyncio.sleep(WATCH_S)
    server.should_exit = server.force_exit = True
    await serving
