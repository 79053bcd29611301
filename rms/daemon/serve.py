"""A daemon's process from its start to its end: log, journal, sockets, HTTP server, rounds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
import uvloop

from rms.core.policies import modules_of, placing
from rms.core.rules.powercap import check_cap
from rms.daemon.ask.http import BACKLOG, REQUEST_S, bounded
from rms.daemon.ask.routes import WATCH_S, Routes
from rms.daemon.heart import Daemon
from rms.daemon.jobs.watch import JobWatch
from rms.daemon.nodes.nodes import check_placement
from rms.daemon.restart import recover
from rms.daemon.restart.recover import uncollected
from rms.daemon.store import private
from rms.daemon.store.context import BootClock, Settings, log
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import PortNote
from rms.daemon.store.private import ServeError, check_folder, make_folder, owner_only, secret
from rms.kernels.served import GovernorRule, TaskLink, Tasks
from rms.launch.local import JobEngine
from rms.launch.processes import escapes, uncontained
from rms.wire.terminal import printable

HURRY_S = 5.0  # time that a daemon with two stop signals waits for jobs that it has killed


# --- the log -------------------------------------------------------------------------------------

LEVELS = {"debug": 7, "info": 6, "warning": 4}  # numbers of syslog(3)


class LogFormatter(logging.Formatter):
    """Formats a message with its time; for systemd's journal with its level, as ``<4>``."""

    def __init__(self, *, for_journal: bool) -> None:
        super().__init__(datefmt="%Y-%m-%d %H:%M:%S")
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message, without control characters."""
        text, level = printable(record.getMessage()), record.levelname.lower()
        if self._for_journal:
            return f"<{LEVELS.get(level, 3)}>{text}"
        named = "" if level == "info" else f"{level}: "
        return f"{self.formatTime(record, self.datefmt)} {named}{text}"


def start_log(level: str, env: Mapping[str, str]) -> None:
    """Write messages of a level or more urgent to standard error.

    No file is opened, so none has to be opened again: a journal, a pipe or the shell's ``2>>FILE``
    keeps the log. If standard error is systemd's journal (``JOURNAL_STREAM``, systemd.exec(5)), a
    line begins with its level (sd-daemon(3)) and has no time, which the journal adds. A message
    that cannot be written, on a full disk, is lost.
    """
    for_journal, handler = False, logging.StreamHandler(sys.stderr)
    with contextlib.suppress(OSError):
        stat = os.fstat(2)
        for_journal = env.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
    handler.setFormatter(LogFormatter(for_journal=for_journal))
    log.handlers, log.propagate, logging.raiseExceptions = [handler], False, False
    log.setLevel(level.upper())


# --- the start -----------------------------------------------------------------------------------


def check_start(state: Path, engine: JobEngine, settings: Settings) -> None:
    """Check what can be checked without writing; raise a PolicyError or ServeError."""
    if settings.power_cap is not None:
        try:
            check_cap(settings.power_cap.cap_w, sum(model.idle_w for model in engine.cluster.power))
        except ValueError as error:
            raise ServeError(str(error)) from None
    check_placement(placing(settings.policy), engine.cluster)
    if not engine.remote:
        private.check_loopback(settings.listen)
    private.check_address(settings.listen)
    check_folder(state)


def run_daemon(state: Path, engine: JobEngine, settings: Settings) -> None:
    """Run a daemon until a signal or a request stops it (or its ``parent`` process is gone)."""
    check_start(state, engine, settings)
    make_folder(state)
    with owner_only():
        opened = recover.open_journal(state / "journal.sqlite")
    with opened as journal, contextlib.ExitStack() as stack:
        recover.restore_notes(journal, state / "jobs")
        instance_id = recover.own_mark(journal, state)
        listening, address = [], ""
        for where in _addresses(state, settings.listen, journal, remote=engine.remote):
            sock, address = private.bind(where)
            stack.callback(private.close, sock, where)
            listening.append(sock)
        own = [sock.getsockname() for sock in listening if sock.family == socket.AF_UNIX]
        if engine.remote:
            journal.note(PortNote(port=listening[-1].getsockname()[1]))
        launcher = engine.launcher(state, instance_id, address)
        stack.callback(launcher.close)
        clock = BootClock(journal)
        modules = settings.policy_modules | modules_of(placing(settings.policy))
        settings = replace(
            settings, now=clock, clock=clock, where=engine.where, policy_modules=modules
        )
        daemon = recover.resume(engine.cluster, journal, launcher, settings)
        if settings.meter_limit_w is not None:
            daemon.context.scheduler.energy.measured.most_w = settings.meter_limit_w
        recover.settle(daemon)
        daemon.frequencies.begin()
        _begin(daemon, settings, "" if engine.remote else escapes(os.environ))
        token, metrics_token = secret(state / "token"), secret(state / "metrics-token")
        tasks = daemon.tasks
        tasks_socket = _tasks_socket(tasks, settings.listen, stack)
        notifier = Notifier(os.environ)

        async def main() -> None:
            stopping = _handle_signals(daemon.job_watch)
            server = _server(Routes(daemon, stopping.set, token, own, metrics_token))
            # First, so that a client of the daemon finds this socket too. The reference is kept,
            # as uvloop closes a server without one.
            kept = None
            if tasks_socket is not None:
                tasks.restore()
                if settings.governor:
                    tasks.use(None, GovernorRule.parse(settings.governor))
                loop = asyncio.get_running_loop()
                kept = await loop.create_unix_server(lambda: TaskLink(tasks), sock=tasks_socket)
            serving = asyncio.create_task(server.serve(sockets=listening))
            log.info(f"serving at {address}")
            launcher.open()
            notifier.send("READY=1", f"STATUS=serving at {address}")
            with gc_paused(time.monotonic()) as collector:
                await _run(daemon, stopping, settings.parent, notifier, collector)
            daemon.endings.close()
            daemon.meters.write_all()
            server.should_exit = server.force_exit = True
            await serving
            del kept

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


def _addresses(state: Path, listen: str, journal: Journal, *, remote: bool) -> list[str]:
    """Return the addresses to listen at; jobs get the last.

    Jobs on other machines need TCP, at a port that stays the same after a restart. Users' requests
    are answered at the Unix socket only then.
    """
    if not remote:
        return [listen]
    if not listen.startswith("unix:"):
        return [f"unix:{state / 'socket'}", listen]
    port = journal.noted(PortNote).port
    return [listen, f"tcp:{socket.gethostname()}:{port}"]


def _begin(daemon: Daemon, settings: Settings, escaping: str) -> None:
    """Set the power cap, and log the limitations of the daemon on this machine."""
    if escaping:
        words = f"processes of a job may outlive it: {escaping}"
        log.log(logging.WARNING if uncontained() else logging.INFO, words)
    if not placing(settings.policy).always_on and settings.power_commands is None:
        log.info("nodes go off in the books only, without --power-off and --power-on")
    daemon.tell_prices()
    if settings.power_cap is not None:
        daemon.set_power_cap(settings.power_cap.cap_w)
    elif (cap_w := daemon.context.state.power_cap_w) is not None:
        log.info(f"power cap: {cap_w:g} W, as before (--power-cap none lifts it)")


def _tasks_socket(tasks: Tasks, listen: str, stack: contextlib.ExitStack) -> socket.socket | None:
    """Return the socket for processes with tasks, None if they cannot be served."""
    if not tasks.scheduler.state.devices or not listen.startswith("unix:"):
        return None
    try:
        sock, _ = private.bind(f"{listen}-tasks")
    except ServeError as error:  # paths have a longest length
        log.info(f"no tasks with kernels: {error}")
        return None
    stack.callback(private.close, sock, f"{listen}-tasks")
    stack.callback(tasks.close)
    return sock


def _server(routes: Routes) -> uvicorn.Server:
    """Return the HTTP server. It handles no signals, as the jobs are to end before it does."""
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


# --- signals and the service manager -------------------------------------------------------------


@dataclass
class _Stopping:
    """Whether the daemon is to stop, and whether soon, after a second signal."""

    stops: bool = False
    hurries: bool = False
    _signalled: bool = False

    def signal(self) -> None:
        self.stops, self.hurries, self._signalled = True, self._signalled, True

    def set(self) -> None:
        self.stops = True


def _handle_signals(watch: JobWatch) -> _Stopping:
    """Return the flags that signals set; let the watch hear of ended children.

    SIGUSR1 and SIGUSR2 are signals that users let Slurm send before the end (--signal). SIGCHLD is
    not handled by the loop, as uvloop keeps it for itself.
    """
    signal.signal(signal.SIGCHLD, lambda number, frame: watch.child_ended())
    signal.siginterrupt(signal.SIGCHLD, False)
    watch.has_signals = True
    stopping, loop = _Stopping(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.signal)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, stopping.set)
    return stopping


class Notifier:
    """Sends the daemon's state to systemd (``Type=notify``, sd_notify(3)), if that runs it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        where = env.get("NOTIFY_SOCKET", "")
        self._address = f"\0{where[1:]}" if where.startswith("@") else where
        self._alive_s, self._sent_s = math.inf, -math.inf
        if env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            with contextlib.suppress(ValueError):
                self._alive_s = int(env.get("WATCHDOG_USEC", "")) / 2e6

    def send(self, *lines: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ``STATUS=...`` as a datagram; errors are ignored."""
        if not self._address.startswith(("/", "\0")):
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending,
        ):
            sending.sendto("\n".join(lines).encode(), self._address)

    def tick(self, now_s: float) -> None:
        """Send ``WATCHDOG=1`` twice per watchdog interval."""
        if now_s >= self._sent_s + self._alive_s:
            self._sent_s = now_s
            self.send("WATCHDOG=1")


# --- the garbage collector -----------------------------------------------------------------------
#
# Python's collector runs whenever there are some hundred objects more than after its last run, and
# goes through the new ones first. With thousands of pending polls hundreds of thousands of objects
# are new in every run, though their number is constant: the daemon stands still for 0.2 s. It makes
# hardly any cycles, so the collector runs only after a large growth of memory, or rarely.

EVERY_S = 10.0  # interval between two looks at the memory in use
GROWN = 2.0  # growth of the memory in use that starts a collection
LEAST = 2_000_000  # least such growth in blocks of memory, some 200 MB
ALL_S = 1_800.0  # longest time between two collections


class Collector:
    """Runs the garbage collector rarely."""

    def __init__(self, now_s: float) -> None:
        self._next_s = self._all_s = self._most = 0.0
        self._collected(now_s)

    def tick(self, now_s: float) -> None:
        """Collect if that is due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        if sys.getallocatedblocks() > self._most or now_s >= self._all_s:
            gc.collect()
            self._collected(now_s)

    def _collected(self, now_s: float) -> None:
        blocks = sys.getallocatedblocks()
        self._most = max(GROWN * blocks, blocks + LEAST)
        self._next_s, self._all_s = now_s + EVERY_S, now_s + ALL_S


@contextmanager
def gc_paused(now_s: float) -> Iterator[Collector]:
    """Disable automatic garbage collection; :meth:`Collector.tick` collects instead."""
    gc.collect()
    with uncollected():
        yield Collector(now_s)


async def _run(
    daemon: Daemon,
    stopping: _Stopping,
    parent: int | None,
    notifier: Notifier,
    collector: Collector,
) -> None:
    """Call the daemon in rounds until it is to stop and all jobs have ended.

    A second signal kills the remaining jobs. Jobs that cannot be killed, of a Slurm that does not
    answer, are left to the next daemon.
    """
    ending, until_s, trouble = False, math.inf, ""
    while not (ending and daemon.idle):
        notifier.tick(time.monotonic())
        collector.tick(time.monotonic())
        try:
            daemon.tick()
            await daemon.flush()
        except Exception as error:  # an error of one round does not affect the next
            if trouble != (trouble := f"{type(error).__name__}: {error}"):
                log.warning(f"looking at processes: {trouble}")
        if parent is not None and os.getppid() != parent:
            stopping.set()
        reason = "" if ending else daemon.launcher.nodes.shutdown_reason()
        if reason:
            log.info(reason)
            stopping.set()
        if stopping.stops and not ending:
            ending = True
            notifier.send("STOPPING=1", "STATUS=waits for jobs to end")
            daemon.stop()
        if stopping.hurries and until_s == math.inf:
            until_s = time.monotonic() + HURRY_S
            daemon.hurry()
        if time.monotonic() > until_s:
            left = ", ".join(daemon.context.state.running)
            log.warning(f"second stop signal: left to the next daemon: {left}")
            break
        await asyncio.sleep(0.0 if daemon.scripts.starting else WATCH_S)
