"""Slurm's controller as a model, and the engine ``slurm`` on top of it.

The engine is the real one, down to the function that runs a command
(:data:`rms.launch.slurm.commands.Run`): the controller answers that with Slurm's own texts, as
recorded in ``tests/unit/rms/slurm_samples``. Scripts of Slurm's jobs and the launches on their
nodes are processes of :class:`virtual.machine.Machine`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch, hosts_of
from rms.launch.slurm.commands import CommandResult, Executor, RateLimiter, Run, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.wire.messages import RUN_VARIABLE
from virtual.acts import Controller as Fault
from virtual.loop import Life, Thread, VirtualLoop
from virtual.machine import ABORTED, KILLED, Machine, Process
from virtual.server import Launcher, Server

T = TypeVar("T")

USER = "user"
LATENCY_S = (0.005, 0.01, 0.1, 0.7)
KEPT_S = 300.0
"""Time for which Slurm shows a job that has ended (MinJobAge)."""

AWAY = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
NO_JOB = "Invalid job id specified"
PREFIX = {
    "squeue": "slurm_load_jobs error: ",
    "sinfo": "slurm_load_partitions: ",
    "sbatch": "sbatch: error: Batch job submission failed: ",
    "salloc": "salloc: error: Job submit/allocate failed: ",
    "scontrol": "slurm_load_jobs error: ",
    "scancel": "scancel: error: Kill job error: ",
}


class RefusalError(Exception):
    """What a command prints as it fails."""


@dataclass(eq=False)
class Job:
    """A job of Slurm's.

    Attributes:
        wanted: its nodes by name.
        final: the state in which it has ended; COMPLETING comes before that.
        expands: the number of the job to which this one will give its nodes.
        env: of its script; None without one.
    """

    number: int
    name: str
    user: str
    wanted: tuple[str, ...]
    submit_s: float
    limit: int | None = None
    expands: int | None = None
    env: Mapping[str, str] | None = None
    state: str = "PENDING"
    reason: str = "None"
    hosts: tuple[str, ...] = ()
    batch_host: str = ""
    start_s: float | None = None
    end_s: float | None = None
    resized_s: float | None = None
    final: str = ""
    process: Process | None = None

    @property
    def own(self) -> str:
        """The job of the RMS."""
        return self.name.rpartition(".")[2]

    @property
    def holds(self) -> bool:
        return self.state in ("RUNNING", "COMPLETING")


class Controller:
    """The controller, its nodes and its queue.

    Attributes:
        lost_s: nodes that are down, and since when.
        fault: chances that a command fails; None while it answers.
        wall: the time of day.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        machine: Machine,
        slots: Mapping[str, Sequence[str]],
        wall: Callable[[], float],
        counted: Counter[str],
    ) -> None:
        self.loop, self.rng, self.machine, self.slots, self.wall = loop, rng, machine, slots, wall
        self.counted, self.jobs, self.lost_s = counted, dict[int, Job](), dict[str, float]()
        self.fault: Fault | None = None
        self._numbers = 0

    # --- commands ---------------------------------------------------------------------------------

    def runs(self, life: Life) -> Run:
        """Return the function by which a process runs Slurm's commands."""

        def run(words: Sequence[str], env: Mapping[str, str], deadline_s: float) -> CommandResult:
            life.point("before a command")
            thread, rng, fault = Thread.running, self.rng, self.fault
            assert thread is not None
            found, name = list[CommandResult](), PurePath(words[0]).name
            delay_s = rng.choice(LATENCY_S)
            if fault is not None and rng.random() < fault.hangs:
                self.counted[f"{name} hangs"] += 1
                if rng.random() < 0.5:
                    self.loop.call_later(delay_s, self._answer, name, words[1:], env)
                thread.wait(deadline_s)
                return CommandResult(None, "", "")
            self.loop.call_later(delay_s, lambda: found.append(self._answer(name, words[1:], env)))
            thread.wait(2 * delay_s)
            if fault is not None and rng.random() < fault.mute:
                self.counted[f"{name} is not answered"] += 1
                thread.wait(min(deadline_s, 10.0))
                return CommandResult(1, "", PREFIX[name] + TIMED_OUT)
            return found[0]

        return run

    def _answer(self, name: str, words: Sequence[str], env: Mapping[str, str]) -> CommandResult:
        fault = self.fault
        if fault is not None and self.rng.random() < fault.refuses:
            self.counted[f"{name} finds no controller"] += 1
            return CommandResult(1, "", PREFIX[name] + AWAY)
        commands: dict[str, Callable[[_Words], str | CommandResult]] = {
            "squeue": self._squeue,
            "sinfo": self._sinfo,
            "sbatch": lambda own: self._sbatch(own, env),
            "salloc": self._salloc,
            "scontrol": self._scontrol,
            "scancel": self._scancel,
        }
        try:
            answer = commands[name](_Words(words))
        except RefusalError as error:
            return CommandResult(1, "", str(error))
        return answer if isinstance(answer, CommandResult) else CommandResult(0, answer, "")

    def _squeue(self, words: _Words) -> str:
        if "--steps" in words.flags:
            number = int(words.options["jobs"])
            job = self.jobs.get(number)
            if job is None or not job.holds:
                return ""
            if words.options["format"] == "%i|%N":
                return _text(
                    f"{number}.{one.pid}|{','.join(job.hosts)}" for one in self._steps(job)
                )
            steps = [f"{number}.{one.pid}|{job.name}.{one.launch}" for one in self._steps(job)]
            return _text([*steps, *([f"{number}.batch|batch"] if job.process else [])])
        states = words.options.get("states", "all").split(",")
        rows = [job for job in self.jobs.values() if "all" in states or job.state in states]
        if "user" in words.options:
            rows = [job for job in rows if job.user == words.options["user"]]
        if words.options["format"] == "%A|%N":
            return _text(f"{job.number}|{','.join(job.hosts)}" for job in rows)
        return _text(map(self._row, rows))

    def _row(self, job: Job) -> str:
        limit = "UNLIMITED" if job.limit is None else f"{job.limit}:00"
        start = "N/A" if job.start_s is None else f"{job.start_s:.0f}"
        hosts = ",".join(job.hosts)
        return (
            f"{job.number}|{job.number}|N/A|{job.state}|{len(job.hosts or job.wanted)}|{hosts}|"
            f"{job.reason}|{limit}|{job.submit_s:.0f}|{start}|{job.user}|{job.name}"
        )

    def _sinfo(self, words: _Words) -> str:
        holders = {host: job.state for job in self.jobs.values() if job.holds for host in job.hosts}
        states = {"RUNNING": "allocated", "COMPLETING": "completing"}
        return _text(
            f"{host}|all*|down*|1|(null)|Not responding"
            if host in self.lost_s
            else f"{host}|all*|{states.get(holders.get(host, ''), 'idle')}|1|(null)|none"
            for host in self.slots
        )

    def _sbatch(self, words: _Words, env: Mapping[str, str]) -> str:
        options = words.options
        limit = int(options["time"]) if "time" in options else None
        wanted = tuple(options["nodelist"].split(","))
        return f"{self._submit(options['job-name'], USER, wanted, limit, env).number}\n"

    def _submit(
        self,
        name: str,
        user: str,
        wanted: tuple[str, ...],
        limit: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        self._numbers += 1
        job = Job(self._numbers, name, user, wanted, self._second(), limit, env=env)
        self.jobs[job.number] = job
        self.loop.call_later(self.rng.uniform(0.01, 1.0), self._schedule)
        return job

    def _salloc(self, words: _Words) -> CommandResult:
        options = words.options
        target = self.jobs.get(int(options["dependency"].removeprefix("expand:")))
        if target is None or target.state != "RUNNING":
            raise RefusalError(PREFIX["salloc"] + "Job dependency problem")
        wanted = tuple(options["nodelist"].split(","))
        if not self._free(wanted):
            words_of_it = "salloc: error: Unable to allocate resources: Requested nodes are busy"
            raise RefusalError(words_of_it)
        donor = self._submit(options["job-name"], USER, wanted)
        donor.expands = target.number
        self._start(donor)
        self.counted["donor"] += 1
        granted = f"salloc: Granted job allocation {donor.number}\n"
        return CommandResult(
            0, "", f"{granted}salloc: Nodes {','.join(wanted)} are ready for job\n"
        )

    def _scontrol(self, words: _Words) -> str:
        if words.flags[0] == "show":
            job = self.jobs.get(int(words.flags[2]))
            if job is None:
                raise RefusalError(PREFIX["scontrol"] + NO_JOB)
            return self._details(job)
        number = int(words.flags[1].partition("=")[2])
        what, _, value = words.flags[2].partition("=")
        job = self.jobs.get(number)
        if job is None:
            where = f"Could not load state information for job {number}"
            raise RefusalError(f"scontrol: error: {where}: {NO_JOB}")
        if job.state != "RUNNING":
            raise RefusalError(f"Job has already finished for job {number}")
        if what == "NumNodes":
            self._merge(job)
        else:
            kept = tuple(value.split(","))
            if not set(kept) <= set(job.hosts):
                raise RefusalError(f"Invalid node name specified for job {number}")
            self._shrink(job, kept)
        return ""

    def _details(self, job: Job) -> str:
        limit_s = 365 * 86_400.0 if job.limit is None else 60.0 * job.limit
        end_s = job.end_s if job.start_s is None or job.end_s else job.start_s + limit_s
        resized = "" if job.resized_s is None else f"   ResizeTime={job.resized_s:.0f}\n"
        hosts = ",".join(job.hosts) or "(null)"
        return (
            f"JobId={job.number} JobName={job.name}\n"
            f"   JobState={job.state} Reason={job.reason} Dependency=(null)\n{resized}"
            f"   StartTime={_whole(job.start_s)} EndTime={_whole(end_s)} Deadline=N/A\n"
            f"   NodeList={hosts}\n"
            + (f"   BatchHost={job.batch_host}\n" if job.batch_host else "")
            + "   JOB_GRES=(null)\n\n"
        )

    def _scancel(self, words: _Words) -> str:
        options, names = words.options, words.flags
        if "name" in options:
            for job in list(self.jobs.values()):
                if job.name == options["name"] and job.user == options["user"]:
                    self.cancel(job)
        elif "signal" in options:
            for name in names:
                number, _, step = name.partition(".")
                job = self.jobs.get(int(number))
                if not step and (job is None or not job.holds):
                    raise RefusalError(
                        f"scancel: error: Kill job error on job id {number}: {NO_JOB}"
                    )
                own = [] if job is None else self._steps(job)
                if step:
                    own = [one for one in own if f"{one.pid}" == step]
                elif job is not None and job.process is not None:
                    own = [*own, job.process]
                for process in own:
                    self._signal(process, options["signal"])
        else:
            for name in names:
                job = self.jobs.get(int(name))
                if job is not None and (job.state == "PENDING" or "state" not in options):
                    self.cancel(job)
        return ""

    def _signal(self, process: Process, name: str) -> None:
        if name == "KILL":
            self.machine.exit(process, KILLED)
        elif name == "STOP":
            process.going.clear()
        else:
            process.going.set()
            if name == "TERM":
                process.asked_to_end = True
                process.terminated.set()

    # --- jobs -------------------------------------------------------------------------------------

    def _second(self) -> float:
        return float(int(self.wall()))

    def _free(self, hosts: Iterable[str]) -> bool:
        taken = {host for job in self.jobs.values() if job.holds for host in job.hosts}
        return taken.isdisjoint(hosts) and self.lost_s.keys().isdisjoint(hosts)

    def _schedule(self) -> None:
        """Start the pending jobs whose nodes are free, the oldest first."""
        for job in list(self.jobs.values()):
            if job.state != "PENDING":
                continue
            if self._free(job.wanted):
                self._start(job)
            elif self.lost_s.keys().isdisjoint(job.wanted):
                job.reason = "Resources"
            else:
                gone = ",".join(self._in_order(self.lost_s.keys() & set(job.wanted)))
                job.reason = f"ReqNodeNotAvail, UnavailableNodes:{gone}"

    def _start(self, job: Job) -> None:
        job.state, job.reason, job.start_s = "RUNNING", "None", self._second()
        job.hosts, job.batch_host = self._in_order(job.wanted), ""
        if job.limit is not None:
            self.loop.call_later(60.0 * job.limit, self.end, job, "TIMEOUT")
        if job.env is None:
            return
        job.batch_host, env, machine = job.hosts[0], job.env, self.machine
        launch = ScriptLaunch(
            Path(env["RMS_SCRIPT"]), "/", env, Path("/dev/null"), [self.slots[h] for h in job.hosts]
        )
        refusal, machine.refusal = machine.refusal, ""  # of the daemon's machine
        run, status = int(env[RUN_VARIABLE]), Path(env["RMS_STATUS"])
        process = job.process = machine.start_script(job.own, run, launch, status)
        machine.refusal = refusal
        process.on_exit = lambda: self.end(job, "FAILED" if process.status else "COMPLETED")

    def _in_order(self, hosts: Iterable[str]) -> tuple[str, ...]:
        return tuple(host for host in self.slots if host in set(hosts))

    def _steps(self, job: Job, hosts: Iterable[str] = ()) -> list[Process]:
        """Return the launches with ranks on the nodes of a job, or on some of them."""
        at = set(hosts or job.hosts)
        if job.env is None:
            return []
        return [
            one
            for one in self.machine.of(job.own)
            if one.launch is not None and at.intersection(hosts_of(one.slots))
        ]

    def look_at(self, pid: int) -> None:
        """Let a launch end that begins on nodes that its job does not hold."""
        self.loop.call_later(self.rng.uniform(0.0, 0.1), self._admit, pid)

    def _admit(self, pid: int) -> None:
        process = self.machine.live.get(pid)
        if process is None:
            return
        at = set(hosts_of(process.slots))
        if not any(
            job.state == "RUNNING"
            and job.process
            and job.own == process.job
            and at <= set(job.hosts)
            for job in self.jobs.values()
        ):
            self.counted["launch on other nodes"] += 1
            self.machine.exit(process, 1)

    def cancel(self, job: Job) -> None:
        """End a job as scancel does."""
        if job.state == "PENDING":
            job.state = job.final = "CANCELLED"
            job.end_s = self._second()
            self.loop.call_later(KEPT_S, self.jobs.pop, job.number, None)
        elif job.state == "RUNNING":
            for process in self._steps(job):
                self._signal(process, "TERM")
            self.end(job, "CANCELLED", kill_s=self.rng.choice((0.0, 0.5, 5.0)))

    def end(self, job: Job, state: str, kill_s: float = 0.0) -> None:
        """End a job that runs: its processes are killed, and then its nodes are free."""
        if job.state != "RUNNING":
            return
        job.state, job.final = "COMPLETING", state
        self.loop.call_later(kill_s, self._kill, job)
        self.loop.call_later(kill_s + self.rng.choice((0.0, 0.1, 2.0)), self._over, job)

    def _kill(self, job: Job) -> None:
        for process in self._steps(job):
            self.machine.exit(process, KILLED)
        if job.process is not None:
            self.machine.exit(job.process, None)

    def _over(self, job: Job) -> None:
        job.state, job.end_s = job.final, self._second()
        self.loop.call_later(KEPT_S, self.jobs.pop, job.number, None)
        self._schedule()
        self.machine.changed()

    def _merge(self, donor: Job) -> None:
        """Give the nodes of a donor to the job that it is for."""
        target = self.jobs.get(donor.expands or 0)
        donor.state = donor.final = "COMPLETED"
        hosts, donor.hosts, donor.end_s = donor.hosts, (), self._second()
        self.loop.call_later(KEPT_S, self.jobs.pop, donor.number, None)
        if target is not None and target.state == "RUNNING":
            target.hosts = self._in_order((*target.hosts, *hosts))
            target.resized_s = self._second()
            self.counted["grown"] += 1
        self._schedule()

    def _shrink(self, job: Job, kept: tuple[str, ...]) -> None:
        gone = [host for host in job.hosts if host not in kept]
        for process in self._steps(job, gone) if gone else ():
            self.machine.exit(process, KILLED)
        job.hosts, job.resized_s = self._in_order(kept), self._second()
        self.counted["shrunk"] += bool(gone)
        if job.batch_host in gone and job.process is not None:
            self.machine.exit(job.process, None)
        self._schedule()

    # --- faults -----------------------------------------------------------------------------------

    def lose(self, host: str, for_s: float) -> None:
        """Take the power from a node; Slurm notices it later."""
        if host in self.lost_s:
            return
        jobs = [job for job in self.jobs.values() if job.state == "RUNNING" and host in job.hosts]
        for job in jobs:
            for process in self._steps(job, [host]):
                self.machine.exit(process, ABORTED)
            if job.batch_host == host and job.process is not None:
                job.process.on_exit = lambda: None
                self.machine.exit(job.process, None)
        self.loop.call_later(min(for_s, self.rng.uniform(0.0, 60.0)), self._miss, host, jobs)
        self.loop.call_later(for_s + 1.0, self._back, host)

    def _miss(self, host: str, jobs: Iterable[Job]) -> None:
        self.lost_s[host] = self.loop.now_s
        for job in jobs:
            self.end(job, "NODE_FAIL")

    def _back(self, host: str) -> None:
        self.lost_s.pop(host, None)
        self._schedule()

    def take(self, host: str, for_s: float) -> None:
        """Let a job of another user have a node as soon as it is free."""
        other = self._submit("simulation", "other", (host,))
        self.loop.call_later(for_s, self.cancel, other)

    def left(self) -> list[str]:
        """Return the jobs of the RMS that wait or have nodes."""
        return [
            f"{job.name} ({job.state})"
            for job in self.jobs.values()
            if job.user == USER and job.state in ("PENDING", "RUNNING")
        ]


@dataclass
class _Words:
    """The options of a command, and its other words."""

    words: Sequence[str]
    options: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for word in self.words:
            name, equals, value = word.partition("=")
            if word.startswith("--") and equals:
                self.options[name[2:]] = value
            elif not word.startswith("--") or word == "--steps":
                self.flags.append(word)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _whole(at_s: float | None) -> str:
    return "Unknown" if at_s is None else f"{at_s:.0f}"


# --- the engine on the virtual loop ---------------------------------------------------------------


class Threads(Executor):
    """Commands on threads that wait on the virtual clock."""

    def __init__(
        self, slurm: Slurm, loop: VirtualLoop, life: Life, done: Callable[[], None]
    ) -> None:
        self.slurm, self._loop, self._life, self._done = slurm, loop, life, done
        self.closing = _Event()  # type: ignore[assignment]
        self.rate_limiter = RateLimiter()
        self.rate_limiter._lock = _Lock()  # type: ignore[assignment]
        self._waits, self._live = deque[Callable[[], None]](), list[Thread]()

    def ask(self, what: Callable[[], T]) -> Future[T]:
        future = Future[T]()

        def work() -> None:
            try:
                future.set_result(what())
            except Exception as error:
                future.set_exception(error)
            self._loop.call_soon(self._next)
            self._done()

        self._waits.append(work)
        self._loop.call_soon(self._next)
        return future

    def _next(self) -> None:
        self._live = [thread for thread in self._live if not thread.over]
        while self._waits and len(self._live) < MOST_THREADS and not self._life.dead:
            thread = Thread(self._loop, self._life, self._waits.popleft())
            self._live.append(thread)
            self._loop.call_soon(thread.step)

    def bury(self) -> None:
        """End the threads of a process that is gone."""
        for thread in self._live:
            while not thread.over:
                thread.step()


MOST_THREADS = 8


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            assert Thread.running is not None
            Thread.running.wait(seconds)
        return self._is_set


class _Lock:
    """A lock of threads that take turns."""

    held = False

    def acquire(self) -> None:
        assert Thread.running is not None
        while self.held:
            Thread.running.wait(0.05)
        self.held = True

    def release(self) -> None:
        self.held = False


class Clock:
    """In place of the module ``time``."""

    def __init__(self, loop: VirtualLoop, wall: Callable[[], float]) -> None:
        self.monotonic, self.time = loop.time, wall

    def sleep(self, seconds: float) -> None:
        assert Thread.running is not None
        Thread.running.wait(seconds)


class Child:
    """An mpiexec, as its parent sees it, in place of a Popen."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine, self._process, self.pid = machine, process, process.pid

    def poll(self) -> int | None:
        return self._process.status

    @property
    def returncode(self) -> int | None:
        return self._process.status

    def kill(self) -> None:
        self._machine.exit(self._process, KILLED)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._process.status


@dataclass
class Mpiexecs(Launcher):
    """The processes on the daemon's machine: each mpiexec, but no script."""

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        self.life.point("before a fork")
        kept = self.world_status_file(job, launch.launch)
        record = self.completion_file(job, launch.step)
        unread = kept.with_name(f"unread-{launch.launch}")  # mpiexec has no shell around it
        process = self.machine.start_launch(job, launch, self.run_of(job), unread, record)
        self.life.point("after a fork")
        child: Any = Child(self.machine, process)
        return ManagedProcess(process.pid, child, kept)

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        here = self.machine.of(job, launch)
        return [process.pid for process in here if process.launch is not None]

    def jobs(self) -> list[str]:
        here = self.machine.live.values()
        return list(dict.fromkeys(one.job for one in here if one.launch is not None))

    def kill(self, job: str, launch: int | None = None) -> None:
        self.life.point("before a kill")
        for process in self.machine.of(job, launch):
            if process.launch is not None:
                self.machine.exit(process, KILLED)


@dataclass
class VirtualSlurmLauncher(SlurmLauncher, Mpiexecs):
    """The launcher of engine ``slurm``, whose scripts and worlds are coroutines."""

    controller: Controller = field(kw_only=True)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        world = super().boot_world(job, launch)
        self.controller.look_at(world.pid)
        return world

    def bury(self) -> None:
        assert isinstance(self.executor, Threads)
        self.executor.bury()


def slurm_launcher(
    controller: Controller, server: Server, mark: str, grace_s: float
) -> VirtualSlurmLauncher:
    """Return the launcher of a daemon."""
    slurm = Slurm({}, USER, controller.runs(server.life))
    threads = Threads(slurm, server.loop, server.life, server.kick)
    launcher = VirtualSlurmLauncher(
        server.folder,
        mark,
        "unix:none",
        threads,
        machine=server.machine,
        life=server.life,
        controller=controller,
    )
    launcher.nodes = SlurmJobs(launcher, default="all", grace_s=grace_s)
    return launcher


def patches(clock: Clock) -> Iterator[Any]:
    """Yield what is in place of the clock and of processes in the modules of the engine."""
    for name in ("commands", "queue", "jobs", "launcher"):
        yield patch(f"rms.launch.slurm.{name}.time", clock)
    threading = SimpleNamespace(get_ident=lambda: id(Thread.running))
    yield patch("rms.launch.slurm.commands.threading", threading)
    yield patch("rms.launch.slurm.launcher.has_live_children", lambda _: True)
