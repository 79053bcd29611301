"""What systemd is told of a daemon (``Type=notify``, sd_notify(3)): a datagram to its socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from rms.core.policies import modules_of, placing
from rms.core.rules.powercap import check_cap
from rms.daemon.ask.http import BACKLOG, REQUEST_S, bounded
from rms.daemon.ask.routes import WATCH_S, Routes
from rms.daemon.heart import Daemon
from rms.daemon.jobs.machine import BOOT_S, GRACE_S
from rms.daemon.jobs.watch import JobWatch
from rms.daemon.kernels import GovernorRule, Link, Tasks
from rms.daemon.nodes.nodes import check_placement
from rms.daemon.restart import recover
from rms.daemon.restart.recover import resume
from rms.daemon.store import private
from rms.daemon.store.context import Clock, Log, Settings, warning
from rms.daemon.store.journal import Journal
from rms.daemon.store.private import ServeError, check_folder, make_folder, owner_only, secret
from rms.daemon.store.snapshots import KEEP
from rms.formats.prices import Prices
from rms.launch.base import Engine, PowerCommands
from rms.launch.processes import escapes, uncontained
from rms.wire.users import PowerCap

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"


class Notifier:
    """Tells the service manager how a daemon is; where there is none, nobody.

    Args:
        env: where the manager has said how it is reached, and how often it wants to hear.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        where = env.get(SOCKET_VARIABLE, "")
        self._address = f"\0{where[1:]}" if where.startswith("@") else where
        self._alive_s, self._told_s = _watchdog_s(env) / 2, -math.inf

    def tell(self, *lines: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ``STATUS=...``; what cannot be sent is not."""
        if not self._address.startswith(("/", "\0")):
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending,
        ):
            sending.sendto("\n".join(lines).encode(), self._address)

    def alive(self, now_s: float) -> None:
        """Say that the daemon goes on, twice in the time in which that is to be heard.

        Args:
            now_s: a monotonic clock's time.
        """
        if now_s >= self._told_s + self._alive_s:
            self._told_s = now_s
            self.tell("WATCHDOG=1")


def _watchdog_s(env: Mapping[str, str]) -> float:
    """Return within which time the manager wants to hear of this process, else infinity."""
    if env.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) != str(os.getpid()):
        return math.inf
    try:
        return int(env.get(WATCHDOG_VARIABLE, "")) / 1e6
    except ValueError:
        return math.inf


# FUSED rms.daemon.serve: When Python looks for cycles of objects that nothing else holds, which it cannot free at once.
#
# Left to itself it looks whenever there are some hundred objects more than at the last time, first
# through those that are new. Where thousands of ranks wait for an answer, each request for one that
# is over, hardly any are more and hundreds of thousands are new: 0.2 s while everybody waits. A
# daemon has hardly any such cycles, so it looks through all objects, and only when they have become
# many more, or once in a long while.

EVERY_S = 10.0
"""How often it is seen how many there are."""

GROWN = 2.0
"""So many times as much memory in use, and all objects are looked through."""

LEAST = 2_000_000
"""In blocks of memory: a growth by less than that is no reason, some 200 MB."""

ALL_S = 1_800.0
"""How often all objects are looked through at least."""


class Cycles:
    """Looks for cycles seldom."""

    def __init__(self, now_s: float) -> None:
        self._next_s = self._all_s = self._most = 0.0
        self._looked(now_s)

    def look(self, now_s: float) -> None:
        """Do what is due now; to be called again and again."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        grown = sys.getallocatedblocks() > self._most
        if grown or now_s >= self._all_s:
            gc.collect()
            self._looked(now_s)

    def _looked(self, now_s: float) -> None:
        blocks = sys.getallocatedblocks()
        self._most = max(GROWN * blocks, blocks + LEAST)
        self._next_s, self._all_s = now_s + EVERY_S, now_s + ALL_S


@contextmanager
def few_looks(now_s: float) -> Iterator[Cycles]:
    """Have no objects looked through meanwhile, but for what :meth:`Cycles.look` does."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield Cycles(now_s)
    finally:
        if before:
            gc.enable()


# FUSED rms.daemon.serve: A daemon from its start to its end: journal, sockets, HTTP server, and the loop that watches.

HURRY_S = 5.0
"""How long a daemon that is told twice to stop waits for jobs that it has killed."""


@dataclass(frozen=True)
class ServeOptions:
    """How a daemon is run.

    Attributes:
        listen: ``unix:PATH`` or ``tcp:HOST:PORT``.
        grace_s: from SIGTERM to SIGKILL of a job.
        boot_s: deadline for a world that boots beside a running one.
        parent: process whose end is the daemon's too, or None.
        prices: of electricity, None where they are not known.
        profiles: folder of measured profiles, or None.
        power_commands: what powers nodes off and on; None where that is in the books only.
        power_cap: what the cluster is to draw at most; None as before a restart, if there was one.
        set_frequencies: whether frequencies are set that a policy decides.
        policy_modules: of users' own, beside those of the policy that it is started with.
        governor: what the governor of tasks is set by; None as before a restart.
        keep_entries: how many of the journal's entries are kept at least, None for all.
        assumed_s: run time to plan with for jobs without a limit; None: unlimited.
        meter_limit_w: bound of the power of a device, None for the default.
    """

    policy: str
    listen: str
    grace_s: float = GRACE_S
    boot_s: float = BOOT_S
    parent: int | None = None
    prices: Prices | None = None
    profiles: Path | None = None
    power_cap: PowerCap | None = None
    power_commands: PowerCommands | None = None
    set_frequencies: bool = True
    policy_modules: frozenset[str] = frozenset()
    governor: GovernorRule | None = None
    keep_entries: int | None = KEEP
    assumed_s: float | None = None
    meter_limit_w: float | None = None


def check_start(state: Path, engine: Engine, options: ServeOptions) -> None:
    """See what can be seen before a daemon is started; nothing is written.

    Raises:
        PolicyError, ServeError: it could not be started.
    """
    if options.power_cap is not None:
        try:
            check_cap(options.power_cap.cap_w, sum(model.idle_w for model in engine.cluster.power))
        except ValueError as error:
            raise ServeError(str(error)) from None
    check_placement(placing(options.policy), engine.cluster)
    if not engine.remote:
        private.check_loopback(options.listen)
    private.check_address(options.listen)
    check_folder(state)


def run_daemon(state: Path, engine: Engine, options: ServeOptions, say: Log) -> None:
    """Run a daemon until it is told to stop (or its ``parent`` process is gone).

    Raises:
        JournalError, PolicyError, ServeError, OSError: it cannot be started.
    """
    check_start(state, engine, options)
    make_folder(state)
    with owner_only():
        opened = recover.open_journal(state / "journal.sqlite", say)
    with opened as journal, contextlib.ExitStack() as stack:
        recover.restore_notes(journal, state / "jobs")
        instance_id = recover.own_mark(journal, state)
        listening, address = [], ""
        for where in _addresses(state, options.listen, journal, remote=engine.remote):
            sock, address = private.bind(where)
            stack.callback(private.close, sock, where)
            listening.append(sock)
        own = [sock.getsockname() for sock in listening if sock.family == socket.AF_UNIX]
        if engine.remote:
            journal.note("port", {"port": listening[-1].getsockname()[1]})
        launcher = engine.launcher(state, instance_id, address)
        stack.callback(launcher.close)
        deadlines = options.grace_s, options.boot_s
        clock = Clock(journal, say)
        settings = Settings(
            options.policy,
            clock,
            say,
            *deadlines,
            engine.where,
            options.prices,
            options.profiles,
            options.power_commands,
            options.set_frequencies,
            options.policy_modules | modules_of(placing(options.policy)),
            clock,
            options.keep_entries,
            say.level == "debug",
            options.assumed_s,
        )
        daemon = resume(engine.cluster, journal, launcher, settings)
        if options.meter_limit_w is not None:
            daemon.context.scheduler.energy.measured.most_w = options.meter_limit_w
        recover.settle(daemon)
        daemon.frequencies.begin()
        _begin(daemon, options, "" if engine.remote else escapes(os.environ))
        token, metrics_token = secret(state / "token"), secret(state / "metrics-token")
        tasks = daemon.tasks
        tasks_socket = _tasks_socket(tasks, options.listen, stack)
        notifier = Notifier(os.environ)

        async def main() -> None:
            stopping = _stop_on_signals()
            _tell_of_children(daemon.job_watch)
            server = _server(Routes(daemon, stopping.set, token, own, metrics_token))
            # First: whoever is answered finds this one too. uvloop closes one that nobody keeps.
            kept = tasks_socket and await _serve_tasks(tasks, tasks_socket, options.governor)
            serving = asyncio.create_task(server.serve(sockets=listening))
            say(f"serving at {address}")
            launcher.open()
            notifier.tell("READY=1", f"STATUS=serving at {address}")
            with few_looks(time.monotonic()) as cycles:
                await _watch(daemon, stopping, options.parent, notifier, cycles)
            daemon.endings.close()
            daemon.meters.write_all()
            server.should_exit = server.force_exit = True
            await serving
            del kept

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


def _begin(daemon: Daemon, options: ServeOptions, escaping: str) -> None:
    """Set what was asked for, and say what does not go without saying."""
    say = daemon.say
    if escaping:
        words = f"what a job starts may outlive it: {escaping}"
        say(warning(words) if uncontained() else words)
    if not placing(options.policy).always_on and options.power_commands is None:
        say("nodes go off in the books only: no --power-off and --power-on are given")
    if options.power_cap is not None:
        daemon.set_power_cap(options.power_cap.cap_w)
    elif (cap_w := daemon.context.state.power_cap_w) is not None:
        say(f"power cap: {cap_w:g} W, as before (--power-cap none lifts it)")


def _tasks_socket(tasks: Tasks, listen: str, stack: contextlib.ExitStack) -> socket.socket | None:
    """Return the socket for processes with tasks, None where they cannot be served."""
    if not tasks.scheduler.state.devices or not listen.startswith("unix:"):
        return None
    try:
        found, _ = private.bind(f"{listen}-tasks")
    except ServeError as error:  # paths have a longest length
        tasks.context.say(f"no tasks with kernels: {error}")
        return None
    stack.callback(private.close, found, f"{listen}-tasks")
    stack.callback(tasks.close)
    return found


async def _serve_tasks(
    tasks: Tasks, listening: socket.socket, governor: GovernorRule | None
) -> asyncio.Server:
    """Listen to processes that have tasks, as long as what is returned is kept."""
    tasks.restore()
    if governor is not None:
        tasks.use(None, governor)
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: Link(tasks), sock=listening)


def _server(routes: Routes) -> uvicorn.Server:
    """Return the HTTP server, signals left alone: the jobs are to end before it does."""
    config = uvicorn.Config(
        routes.app(),
        http=bounded(private.raise_open_files() * 3 // 4),  # the rest is for files of jobs
        ws="none",
        timeout_keep_alive=int(REQUEST_S),
        backlog=BACKLOG,
        proxy_headers=False,
        date_header=False,
        server_header=False,
        log_level="critical",
        lifespan="off",
        access_log=False,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server


@dataclass
class _Stopping:
    """Whether the daemon is told to stop, and whether by a second signal: then it ends soon."""

    told: bool = False
    again: bool = False
    _signalled: bool = False

    def signal(self) -> None:
        self.told, self.again, self._signalled = True, self._signalled, True

    def set(self) -> None:
        self.told = True


def _stop_on_signals() -> _Stopping:
    """Return what knows when the daemon is told to stop.

    The last two signals are what users have Slurm send before the end (--signal).
    """
    stopping, loop = _Stopping(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.signal)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _tell_of_children(watch: JobWatch) -> None:
    """Have it told when a child of this process has ended, at the next look at the latest.

    The loop's own handlers are not for this signal: uvloop keeps it for itself.
    """
    signal.signal(signal.SIGCHLD, lambda number, frame: watch.child_ended())
    signal.siginterrupt(signal.SIGCHLD, False)
    watch.told = True


async def _watch(
    daemon: Daemon, stopping: _Stopping, parent: int | None, notifier: Notifier, cycles: Cycles
) -> None:
    """Let the daemon look at its processes until it is told to stop and all jobs are over.

    Told again, it kills what is left, and does not wait for what cannot be killed: jobs of a Slurm
    that does not answer are left to the next daemon.
    """
    ending, until_s, trouble = False, math.inf, ""
    while not (ending and daemon.idle):
        notifier.alive(time.monotonic())
        cycles.look(time.monotonic())
        try:
            daemon.watch()
            await daemon.flush()
        except Exception as error:  # what is wrong with one look is not wrong with the next
            if trouble != (trouble := f"{type(error).__name__}: {error}"):
                daemon.say(warning(f"looking at processes: {trouble}"))
        if parent is not None and os.getppid() != parent:
            stopping.set()
        reason = "" if ending else daemon.launcher.nodes.shutdown_reason()
        if reason:
            daemon.say(reason)
            stopping.set()
        if stopping.told and not ending:
            ending = True
            notifier.tell("STOPPING=1", "STATUS=waits for jobs to end")
            daemon.stop()
        if stopping.again and until_s == math.inf:
            until_s = time.monotonic() + HURRY_S
            daemon.hurry()
        if time.monotonic() > until_s:
            left = ", ".join(daemon.context.state.running)
            daemon.say(warning(f"told to stop again: left to the next daemon: {left}"))
            break
        await asyncio.sleep(0.0 if daemon.scripts.starting else WATCH_S)


def _addresses(state: Path, listen: str, journal: Journal, *, remote: bool) -> list[str]:
    """Return where to listen; jobs are told the last.

    Jobs on other machines need TCP: a port that stays the same when a daemon is started again.
    Users' requests are answered over the Unix socket alone there.
    """
    if not remote:
        return [listen]
    if not listen.startswith("unix:"):
        return [f"unix:{state / 'socket'}", listen]
    port = journal.notes("port").get("port", {"port": 0})["port"]
    return [listen, f"tcp:{socket.gethostname()}:{port}"]
