"""The engine ``slurm`` at a size that no test bed has: real daemon, stood-in controller and ranks.

Real are the daemon with its journal on disk, the policy, the launcher, its threads and watcher, the
text that commands print and its parsing, and a process for every command. Stood in are the
controller (:mod:`standin`) and the ranks: a world is ready after the time that a real one took on
the test bed, polls and reports as rank 0 does (by the same methods of the daemon, not over HTTP),
and steps until its work is done.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standin import Controller
from standin import Job as SlurmsJob

from rms.core.books.ledger import NodePower
from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event, Resize, ResizeRolledBack, Start
from rms.core.model.jobs import JobId
from rms.daemon.ask.routes import WATCH_S, holding_s
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Context, Settings
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import Note
from rms.launch.base import LaunchCommand, ManagedProcess, WorldLaunch
from rms.launch.slurm import commands
from rms.launch.slurm.commands import Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.wire.messages import (
    Begun,
    CompletionRecord,
    Done,
    Poll,
    Ready,
    ResizeReport,
    write_completion,
)
from rms.wire.users import Options, Submission

BOOT_S, MOVE_S, LEAVE_S, SCRIPT_S = 0.9, 0.03, 0.3, 0.2
"""A world's boot, its move, the end of an old one; a script up to its line: as on the test bed."""

WIDEST, SPREAD_S = 32, 240.0
"""Nodes of a job at most; mean time that it would take on eight of them."""

SERIAL = 0.01
WAVE_S = 5.0


class World(ManagedProcess):
    """Ranks that do not exist."""

    def __init__(self, launch: int, ranks: int) -> None:
        super().__init__(0)
        self.launch, self.ranks, self.code = launch, ranks, None

    code: int | None

    def status(self) -> int | None:
        """Return 0 once they have left."""
        return self.code


@dataclass
class StoodIn(SlurmLauncher):
    """Engine ``slurm`` without processes, and without meters."""

    booted: list[tuple[str, int, World]] = field(default_factory=list)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Note that a world boots."""
        world = World(launch.launch, len(launch.slots))
        self.booted.append((job, launch.resize, world))
        return world

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return none."""
        return []


class Counted(Daemon):
    """A daemon that records its decisions."""

    def __init__(self, context: Context) -> None:
        self.decided: dict[str, tuple[float, str]] = {}
        self.events: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        super().__init__(context)

    def _enter(self, event: Event, notes: Sequence[Note], number: int | None) -> list[Decision]:
        self.events[type(event).__name__] += 1
        if isinstance(event, ResizeRolledBack):
            self.refused[event.reason[:60]] += 1
        return super()._enter(event, notes, number)

    def _act(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self.decided[decision.job] = (time.perf_counter(), "start")
        elif isinstance(decision, Resize):
            wider = decision.size > self.context.state.running[decision.job].size
            self.decided[decision.job] = (time.perf_counter(), "grow" if wider else "shrink")
        super()._act(decision)


@dataclass
class Ranks:
    """Rank 0 of a job, and the work left."""

    job: str
    number: int
    status: Path
    work: float
    world: World | None = None
    since_s: float = 0.0
    request: int = 0
    question: int = 0
    over: bool = False

    def progress(self, now: float) -> None:
        """Subtract the work since the last call."""
        if self.world is not None:
            self.work -= (now - self.since_s) * speed(self.world.ranks)
        self.since_s = now

    def end_s(self) -> float:
        """Return the time of its end at this size."""
        assert self.world is not None
        return self.since_s + self.work / speed(self.world.ranks)


def speed(ranks: int) -> float:
    """Return the speedup over one rank (Amdahl)."""
    return 1 / (SERIAL + (1 - SERIAL) / ranks)


class Site(logging.Handler):
    """Everything together, driven as the server's loop drives the daemon."""

    def __init__(self, nodes: int, folder: Path, seed: int = 1) -> None:
        super().__init__()
        logging.getLogger("rms").addHandler(self)
        logging.getLogger("rms").setLevel(logging.INFO)
        names = tuple(f"n{n}" for n in range(1, nodes + 1))
        self.controller = Controller(names)
        slurm = Slurm({"PATH": os.environ["PATH"]}, os.environ.get("USER", "root"), self._run)
        self.own_s = 0.0  # of the stand-in's threads, not the engine's
        self.launcher = StoodIn(folder, "feedfacefeedface", "unix:none", Executor(slurm))
        self.launcher.nodes = SlurmJobs(self.launcher, default="all")
        cluster = Cluster(
            names, tuple((f"{n}/core:0",) for n in names), (NodePower(2.0, 2.0, 8.0),) * nodes
        )
        self.messages: Counter[str] = Counter()
        settings = Settings(policy="array-share", now=time.time)
        journal = Journal.open(folder / "journal.sqlite")
        self.daemon = resume(cluster, journal, self.launcher, settings, Counted)
        self.folder, self._draw = folder, random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        self.ranks: dict[str, Ranks] = {}
        self._unborn: list[SlurmsJob] = []
        self.took: dict[str, list[float]] = {"start": [], "grow": [], "shrink": []}
        self.calls: dict[str, list[float]] = {}
        self.cpu_s = 0.0
        self.ended = 0

    def _run(
        self, command: Sequence[str], env: Mapping[str, str], deadline_s: float
    ) -> commands.CommandResult:
        """Answer a command; like a real one, it starts a process."""
        commands.run_command(["true"], {"PATH": os.environ["PATH"]}, deadline_s)
        begun = time.thread_time()
        try:
            return self.controller(command, env, deadline_s)
        finally:
            self.own_s += time.thread_time() - begun

    def emit(self, record: logging.LogRecord) -> None:
        """Count a message of the daemon."""
        words = record.getMessage()
        self.messages[words.partition(": ")[2][:60] or words[:60]] += 1

    def ask(self, what: str, method: Callable[..., Any], *words: Any) -> Any:
        """Call a method of the daemon; record its time."""
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            return method(*words)
        finally:
            self.calls.setdefault(what, []).append(time.perf_counter() - begun)
            self.cpu_s += time.thread_time() - cpu

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule a call."""
        heapq.heappush(self._due, (time.perf_counter() + seconds, next(self._tie), what))

    def submit(self, tasks: int) -> None:
        """Hand in an array of flexible jobs."""
        options = Options(
            array=f"1-{tasks}", nodes=(1, WIDEST), preferred=8, mode="flexible", output="/dev/null"
        )
        body = Submission("#!/bin/sh\nmpiexec x\n", "wide", str(self.folder), {}, options)
        self.ask("submit", asyncio.run, self.daemon.submissions.submit(body))

    def drive(self, run_s: float, wave: int) -> None:
        """Run the site; submit more jobs every few seconds."""
        begun = time.perf_counter()
        next_wave_s = WAVE_S
        while (now := time.perf_counter()) < begun + run_s:
            self.ask("watch", self.daemon.tick)
            if now - begun > next_wave_s:
                next_wave_s += WAVE_S
                self.submit(wave)
            self._unborn += self.controller.advance()
            self._bear()
            for job, request, world in self.launcher.booted:
                self.later(BOOT_S, lambda j=job, w=request, o=world: self._booted(j, w, o))  # type: ignore[misc]
            self.launcher.booted.clear()
            until = time.perf_counter() + WATCH_S
            while self._due and self._due[0][0] <= until:
                at_s, _, what = heapq.heappop(self._due)
                time.sleep(max(0.0, at_s - time.perf_counter()))
                what()
            time.sleep(max(0.0, until - time.perf_counter()))

    def _bear(self) -> None:
        """Let the scripts of jobs that Slurm has started come to their launcher line."""
        for job in self._unborn:
            name = job.environment["RMS_MARK"].rpartition(":")[2]
            work = self._draw.expovariate(1 / SPREAD_S) * speed(8)
            ranks = Ranks(name, job.number, Path(job.environment["RMS_STATUS"]), work)
            self.ranks[name] = ranks
            self.later(SCRIPT_S, lambda r=ranks: self._line(r))  # type: ignore[misc]
        self._unborn.clear()

    def _line(self, ranks: Ranks) -> None:
        line = LaunchCommand(["x"], str(self.folder), {}, str(self.folder / "out"), "")
        job = self.daemon.jobs[JobId(ranks.job)]
        self.ask("launch", self.daemon.worlds.launch, job, line, f"key-{ranks.number}")

    def _booted(self, job: str, request: int, world: World) -> None:
        ranks = self.ranks[job]
        if world.code is not None or ranks.over:
            return
        if request:
            word = Ready(request, world.launch, "host:1:word", "port")
            self.ask("report", self.daemon.worlds.report, self.daemon.jobs[JobId(job)], word)
            if ranks.world is not None:
                self._poll(ranks)
            return
        ranks.world, ranks.since_s = world, time.perf_counter()
        self._running(job, "start")
        self._poll(ranks)

    def _running(self, job: str, expected: str) -> None:
        at_s, kind = self.daemon.decided.pop(job)
        if (kind == "start") != (expected == "start"):
            raise RuntimeError(f"expected {expected} of job {job}, got {kind}")
        self.took[kind].append(time.perf_counter() - at_s)

    def _poll(self, ranks: Ranks, question: int | None = None) -> None:
        """Ask for resize requests: once there is one, or the last poll was held long enough."""
        if question not in (None, ranks.question):
            return
        ranks.question += 1
        question = ranks.question
        now = time.perf_counter()
        ranks.progress(now)
        world = ranks.world
        assert world is not None
        if ranks.over:
            return
        if ranks.work <= 1e-6:
            self._end(ranks)
            return
        groups = ((world.launch, world.ranks),)
        poll = Poll(int(1e6 - ranks.work), 10**6, ranks.request, "warm", groups)
        job = self.daemon.jobs[JobId(ranks.job)]
        request = self.ask("poll", self.daemon.worlds.poll, job, poll)
        if request is None:
            hold_s = holding_s(len(self.daemon.context.state.running))
            left_s = max(0.0, ranks.end_s() - now)
            self.later(min(hold_s, left_s), lambda: self._poll(ranks, question))
            return
        ranks.request = request.number
        self.ask("report", self.daemon.worlds.report, job, Begun(request.number))
        self.later(MOVE_S, lambda: self._moved(ranks, request.number, request.worlds[0].launch))

    def _moved(self, ranks: Ranks, number: int, launch: int) -> None:
        old = ranks.world
        assert old is not None
        job = self.daemon.jobs[JobId(ranks.job)]
        if ranks.over or job.running_step is None:
            return
        new = job.running_step.worlds[launch]
        assert isinstance(new, World)
        ranks.world, ranks.since_s = new, time.perf_counter()
        moved = ResizeReport(1, old.ranks, new.ranks, "warm", BOOT_S, MOVE_S, MOVE_S, 1, 1.0)
        self._running(ranks.job, "resize")
        self.ask("report", self.daemon.worlds.report, job, Done(number, moved, (launch,)))
        self.later(LEAVE_S, lambda: setattr(old, "code", 0))
        self._poll(ranks)

    def _end(self, ranks: Ranks) -> None:
        ranks.over, world = True, ranks.world
        assert world is not None
        record = CompletionRecord("COMPLETED", 0, "", 10**6, 0, world.ranks)
        write_completion(self.launcher.completion_file(ranks.job, 0), record)
        world.code = 0
        self.ended += 1
        self.later(0.1, lambda: self._script_over(ranks))

    def _script_over(self, ranks: Ranks) -> None:
        ranks.status.write_text("0\n")
        self.controller.finish(ranks.number)


def scale(nodes: int, run_s: float, folder: Path) -> dict[str, Any]:
    """Run the site at one size; return its figures."""
    site = Site(nodes, folder)
    site.submit(nodes // 8)
    begun, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
    site.drive(run_s, max(1, nodes // 250))
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    thread_s = time.thread_time() - thread
    controller, daemon = site.controller, site.daemon
    figures: dict[str, Any] = {
        "nodes": nodes,
        "seconds": wall_s,
        "jobs": len(site.ranks),
        "running": len(daemon.context.state.running),
        "ended": site.ended,
        "free_nodes": daemon.context.state.free_count,
        "calls_per_s": {k: n / wall_s for k, n in controller.calls.most_common()},
        "call_s": {k: controller.busy_s[k] / n for k, n in controller.calls.items()},
        "rows_per_listing": statistics.mean(controller.listed or [0]),
        "most_at_once": controller.most_at_once,
        "controller_held": controller.held_s / wall_s,
        "donors": len(controller.donors),
        "busy": {
            "loop": site.cpu_s / wall_s,
            "threads": (cpu_s - thread_s - site.own_s) / wall_s,
        },
        "events_per_s": sum(daemon.events.values()) / wall_s,
        "events": dict(daemon.events),
        "rolled_back": dict(daemon.refused),
        "said": dict(site.messages.most_common(8)),
        "took": {
            kind: {
                "count": len(values),
                "median_s": statistics.median(values) if values else None,
                "p95_s": percentile(values, 0.95),
            }
            for kind, values in site.took.items()
        },
        "longest_s": {what: max(values) for what, values in site.calls.items()},
        "median_s": {what: statistics.median(values) for what, values in site.calls.items()},
        "share": {what: sum(values) / wall_s for what, values in site.calls.items()},
        "count": {what: len(values) for what, values in site.calls.items()},
    }
    site.launcher.executor.close()
    daemon.journal.close()
    return figures


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile, None without values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
