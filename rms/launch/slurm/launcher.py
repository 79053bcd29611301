"""The common part of Slurm's engines: worlds, scripts and agents as steps of allocations.

A world is an mpiexec on the daemon's machine that reaches the nodes through one srun: a step named
after the job and its launch, which is ended by its name if mpiexec and srun had to be killed.

An engine is a :class:`SlurmLauncher` with :class:`SlurmNodes` of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from rms.launch.base import (
    NODES_LOST,
    EngineNodes,
    LaunchError,
    ManagedProcess,
    NodeClocks,
    PendingCall,
    ScriptLaunch,
    WorldLaunch,
)
from rms.launch.local import (
    LocalLauncher,
    agent_command,
    keeper_words,
    keepers_of,
)
from rms.launch.processes import (
    GENTLE_S,
    alive,
    has_live_children,
    program_name,
    send_signal,
)
from rms.launch.slurm.commands import (
    Executor,
    Slurm,
    SlurmError,
    inner_environment,
    plain_environment,
)
from rms.power.choice import AUTO, MeterChoice
from rms.wire.marks import KEEPERS

POLL_S = 0.5  # time between two checks of a process, or of a step that is being ended
STUCK_S = 3.0
"""Time without an srun after which mpiexec does not reach its nodes any more."""

MOST_BOOTS = 5

STATUS_POLL_S = 3.0
"""Time between two checks for the status of a script whose srun still runs."""

PROBE_S = 20.0
"""Timeout of a step that only tests whether nodes answer."""

STATUS_DELAY_S = 10.0
"""Time from the end of a script until its status appears in a shared folder."""


@dataclass(eq=False)
class World(ManagedProcess):
    """An mpiexec, which would wait forever if its srun fails at the start.

    Attributes:
        boot: starts it anew, None if a failure is reported instead.
    """

    boot: Callable[[], ManagedProcess] | None = None
    may_boot: Callable[[], bool] = bool
    abandoned: bool = False
    _boots: int = 1
    _failed: bool = False
    _polled_s: float = 0.0
    _childless_since_s: float | None = None

    def status(self) -> int | None:
        """Return the exit status, None while it runs or waits for being started anew."""
        if self._failed:
            return 1
        if self.process is None and self.boot is not None:
            return 1 if self.abandoned else None
        return super().status()

    def poll(self) -> None:
        """End a mpiexec that has lost its srun, and start it anew."""
        if self.process is None:
            over = self.boot is None or self.abandoned or self._failed
            if self.boot is not None and not over and self.may_boot():
                self._boots, self._childless_since_s = self._boots + 1, None
                try:
                    started = self.boot()
                    self.pid, self.process = started.pid, started.process
                except LaunchError:
                    self._failed = True
        elif self.process.poll() is None and self._stuck():
            self.process.kill()
            self.process.wait()
            if self.boot is None or self._boots >= MOST_BOOTS:
                self._failed = True
            else:
                self.process, self.pid = None, 0

    def _stuck(self) -> bool:
        """Return whether mpiexec has had no child, and so no connection to nodes, for a while."""
        now = time.monotonic()
        if now < self._polled_s + POLL_S:
            return False
        self._polled_s = now
        children = has_live_children(self.pid)
        if children is None:
            return False
        if children:
            self._childless_since_s = None
        elif self._childless_since_s is None:
            self._childless_since_s = now
        return self._childless_since_s is not None and now > self._childless_since_s + STUCK_S


@dataclass
class ScriptStep(ManagedProcess):
    """A job's script, which srun runs on a node.

    Attributes:
        begin: starts it, None after the start; it waits while the controller is away.
        diagnose: requests the reason why srun has ended without a status of the script.
        begun_file: the script creates it as soon as it runs.
    """

    begin: Callable[[], subprocess.Popen[bytes]] | None = None
    diagnose: Callable[[], PendingCall] | None = None
    may_begin: Callable[[], bool] = bool
    begun_file: Path | None = None
    abandoned: bool = False
    _code: int | None = None
    _diagnosis: PendingCall | None = None
    _over_since_s: float = 0.0
    _polled_s: float = 0.0

    @property
    def started(self) -> bool:  # type: ignore[override]
        """Whether srun was started."""
        return self.begin is None

    def status(self) -> int | None:
        """Return the script's own status; without one, ``end_reason`` is the reason."""
        return self._code

    def poll(self) -> None:
        """Start it if possible; check for its end; diagnose an end without a status."""
        if self._code is not None:
            return
        if self.begin is not None:
            if self.abandoned:
                self.end_state, self._code = NODES_LOST, 1
            elif self.may_begin():
                try:
                    self.process = self.begin()
                    self.pid, self.begin = self.process.pid, None
                except LaunchError as error:
                    self.end_reason, self._code = str(error), 1
        elif alive(self.pid) if self.process is None else self.process.poll() is None:
            self._code = self._status_of_running()
        else:
            self._code = self._status_of_ended()

    def _status_of_running(self) -> int | None:
        """Return the script's status a while after its end, although srun still runs."""
        now = time.monotonic()
        if now < self._polled_s + STATUS_POLL_S:
            return None
        self._polled_s, code = now, self.written_status()
        self._over_since_s = 0.0 if code is None else self._over_since_s or now
        return code if now > self._over_since_s + STATUS_DELAY_S else None

    def _status_of_ended(self) -> int | None:
        """Return the script's status; without one that of srun, after the diagnosis."""
        code = self.written_status()
        if code is not None:
            return code
        if self._diagnosis is None:
            self._over_since_s = time.monotonic()
            self._diagnosis = (lambda: "") if self.diagnose is None else self.diagnose()
        reason = self._diagnosis()
        if reason is None or time.monotonic() < self._over_since_s + STATUS_DELAY_S:
            return None
        code = self.written_status()
        if code is not None:
            return code
        if not reason and self.begun_file is not None and not self.begun_file.exists():
            reason = "its script could not be started"
        self.end_state, self.end_reason = (NODES_LOST, reason) if reason else ("", "")
        return 1 if self.process is None else self.process.poll() or 1

    def written_status(self) -> int | None:
        """Return the exit status in its status file, None without one."""
        if self.status_file is not None:
            refresh_folder(self.status_file.parent)
        return super().written_status()


def step_on_each(
    srun: str, allocation: int, hosts: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Return the command of a step with one task per node, without its program."""
    n = len(hosts)
    return [
        *[srun, f"--jobid={allocation}", f"--nodes={n}", f"--ntasks={n}", "--ntasks-per-node=1"],
        *[f"--nodelist={','.join(hosts)}", "--input=none", *options],
    ]


def end_steps(
    executor: Executor,
    allocations: Sequence[int],
    name: str,
    patience_s: float,
    gentle_s: float = 0.0,
) -> None:
    """End all steps of a name in allocations, and wait until they are gone or the daemon ends.

    Those on nodes that have failed are not waited for.

    Args:
        gentle_s: time that they have to end after SIGTERM.
    """
    slurm, begun_s = executor.slurm, time.monotonic()
    requested = False
    while (now := time.monotonic()) < begun_s + patience_s:
        try:
            left: list[str] = []
            for number in allocations:
                own = [step for step, given in slurm.steps(number) if is_part_of(given, name)]
                if own and requested:
                    own = sorted(set(own) - slurm.stranded(number))
                left += own
            if not left:
                return
            if now < begun_s + gentle_s:
                slurm.terminate_steps(left)
            else:
                slurm.end_steps(left)
            requested = True
        except SlurmError:
            pass  # the controller is away; the step's own srun is dead in any case
        if executor.closing.wait(POLL_S):
            return


def is_part_of(step: str, name: str) -> bool:
    """Return whether a step has this name, or belongs to the job of this name."""
    return step == name or step.startswith(f"{name}.")


def failing_nodes(
    slurm: Slurm, allocation: int, hosts: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Return the nodes on which a step cannot be started."""
    try:
        step = step_on_each("srun", allocation, hosts, options)
        slurm.call(*step, "true", deadline_s=PROBE_S)
    except SlurmError as error:
        if len(hosts) == 1:
            return list(hosts)
        named = set(re.findall(r"node (\S+?):", str(error))).intersection(hosts)
        return sorted(named) or [
            host for host in hosts if failing_nodes(slurm, allocation, [host], options)
        ]
    return []


def refresh_folder(folder: Path) -> None:
    """Open a folder: over NFS, new files in it may otherwise stay unseen for long."""
    with contextlib.suppress(OSError):
        os.scandir(folder).close()


# --- agents on nodes -------------------------------------------------------------------------

StartAgent = Callable[[Sequence[str]], subprocess.Popen[bytes]]
"""Starts a command on the daemon's machine, with the environment of agents."""

UNTIL_DONE = 'until "$@"; do [ $? -gt 128 ] || exit 1; sleep 5; done'
"""Shell around an agent: starts it again if it was killed."""

EVERY_S = 2.0  # time between readings of a job's nodes
NO_METERS_S = 5.0
"""An agent that ends with status 0 so soon, while its job runs, is on a node without meters."""

FORGET_S = 600.0  # time until such nodes are tried again


@dataclass(frozen=True)
class _JobMeter:
    job: int
    hosts: Sequence[str]
    begun_s: float
    process: subprocess.Popen[bytes]


@dataclass
class JobMeters:
    """Agents of meters in the jobs of Slurm's, which end them: one step whenever a job gets nodes.

    Attributes:
        unreadable: nodes without meters, and when they are tried again.
    """

    launch: StartAgent
    options: Sequence[str]
    meters: MeterChoice = AUTO
    unreadable: dict[str, float] = field(default_factory=dict)
    _running: list[_JobMeter] = field(default_factory=list)

    def start(self, number: int, hosts: Iterable[str]) -> None:
        """Read the power of these nodes of a running job of Slurm's."""
        now = time.monotonic()
        chosen = sorted(host for host in hosts if self.unreadable.get(host, 0.0) < now)
        arguments = ["--every", f"{EVERY_S:g}", *self.meters.arguments]
        step = agent_step(number, chosen, self.options, arguments) if chosen else None
        if step is not None:
            with contextlib.suppress(LaunchError):
                self._running.append(_JobMeter(number, chosen, now, self.launch(step)))

    def watch(self, held: set[int]) -> None:
        """Drop ended agents; one that ended early, while its job is ``held``, has no meters."""
        now = time.monotonic()
        for meter in self._running:
            # An agent ends with 0 at the end of its job too; mostly that is later.
            early = meter.job in held and now < meter.begun_s + NO_METERS_S
            if meter.process.poll() == 0 and early:
                self.unreadable.update(dict.fromkeys(meter.hosts, now + FORGET_S))
        self._running = [meter for meter in self._running if meter.process.poll() is None]

    def close(self) -> None:
        """End all agents."""
        for meter in self._running:
            meter.process.terminate()
        for meter in self._running:
            try:
                meter.process.wait(5)
            except subprocess.TimeoutExpired:
                meter.process.kill()
                meter.process.wait()
        self._running = []


def agent_step(
    allocation: int, hosts: Sequence[str], options: Sequence[str], arguments: Sequence[str]
) -> list[str] | None:
    """Return the command of a step that runs an agent on every node; None without an srun."""
    srun = shutil.which("srun")
    if srun is None:
        return None
    step = step_on_each(srun, allocation, hosts, ["--quiet", "--no-kill", *options])
    return [*step, "/bin/sh", "-c", UNTIL_DONE, "meter", *agent_command(arguments)]


# --- the launcher and its parts --------------------------------------------------------------

END_PATIENCE_S = 60.0  # time for which a step that was ended is polled
POLL_BUDGET_S = 0.1  # time limit for polling processes in one call


class SlurmNodes(EngineNodes):
    """Nodes in allocations of Slurm's, and job scripts that Slurm starts."""

    executor: Executor

    def controller_answers(self) -> bool:
        """Return whether Slurm has answered the last query."""
        return True

    def allocations(self, job: str) -> list[int]:
        """Return all jobs of Slurm's in which steps of an RMS job may run."""
        raise NotImplementedError

    def allocation_of(self, job: str, host: str) -> int | None:
        """Return the job of Slurm's in which a job of the RMS has a node, None if it has not."""
        raise NotImplementedError

    def reach(self, job: str, env: dict[str, str]) -> list[str]:
        """Return the options by which mpiexec reaches a job's nodes; may change its environment."""
        raise NotImplementedError

    def silent_s(self) -> float:
        """Return the time without an answer of the controller, 0 while it answers."""
        return self.executor.slurm.silent_s()

    def complaints(self) -> list[str]:
        """Return lines for the log on answers of Slurm that cannot be used, each once."""
        found = self.executor.slurm.complaints
        return [found.pop(0) for _ in range(len(found))]

    def start(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once."""
        raise NotImplementedError

    def find(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None without a trace of it."""
        raise NotImplementedError

    def terminate(self, job: str, *, has_worlds: bool) -> None:
        """Ask a script to end, unless its job has worlds, which end instead."""

    def send_signal(self, job: str, name: str) -> None:
        """Send a signal (``STOP``) to all processes of a job."""

    def kill(self, job: str, launch: int | None) -> None:
        """Note that a job, or one of its launches, is killed."""


class SlurmClocks(NodeClocks):
    """Frequencies that the RMS does not set."""

    def refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of nodes cannot be set."""
        return "nodes of Slurm's jobs are set by Slurm itself (srun --cpu-freq)"


@dataclass
class SlurmLauncher(LocalLauncher):
    """Starts worlds as steps of allocations.

    Attributes:
        reach: the way in which mpiexec starts its proxies on nodes (its option ``-launcher``).
        binds: whether this site binds steps to CPUs by default.
    """

    executor: Executor
    reach: str = "slurm"
    binds: bool = False
    nodes: SlurmNodes = field(init=False, repr=False)
    clocks: NodeClocks = field(default_factory=SlurmClocks, init=False, repr=False)
    meter_token: str = field(default_factory=lambda: secrets.token_hex(16), init=False, repr=False)
    _ending: dict[str, Future[None]] = field(default_factory=dict, init=False)
    _worlds: dict[str, World] = field(default_factory=dict, init=False)
    _polled: deque[World | ScriptStep] = field(default_factory=deque, init=False)

    shared_filesystem = True
    watches_processes = False

    def open(self) -> None:
        """Open the nodes."""
        self.nodes.open()

    def poll(self) -> None:
        """Poll the processes that were started here, for a short while; the rest next time."""
        until = time.monotonic() + POLL_BUDGET_S
        for _ in range(len(self._polled)):
            process = self._polled.popleft()
            try:
                process.poll()
            finally:  # a failed poll is repeated
                if process.status() is None:
                    self._polled.append(process)
            if time.monotonic() > until:
                break
        self.nodes.poll()

    def close(self) -> None:
        """End: wait for the commands under way."""
        self.nodes.close()
        self.executor.close()

    def watch_process(self, process: World | ScriptStep) -> None:
        """Poll a process from now on."""
        self._polled.append(process)

    def name(self, job: str, launch: int | None = None) -> str:
        """Return the name in Slurm of a job's script, or of one of its launches.

        The name of its keepers is not part of its own, so that they outlive its worlds.
        """
        owner = job.removesuffix(KEEPERS)
        own = owner if owner == job else f"{KEEPERS[1:]}.{owner}"
        return f"rms.{self.instance_id[:8]}.{own}" + ("" if launch is None else f".{launch}")

    def step_options(self, name: str) -> list[str]:
        """Return srun's options for every step: a name, and leave to share its nodes."""
        return ["--overlap", f"--job-name={name}", *(["--cpu-bind=none"] if self.binds else [])]

    def keeper_env(self) -> Mapping[str, str]:
        """Return the environment of a keeper, without its marks."""
        return plain_environment(self.executor.slurm.outer)

    def keeper_command(self, host: str, number: int, job: str) -> list[str]:
        """Return the command that runs a keeper: a step of its own on one node."""
        srun, allocation = shutil.which("srun"), self.nodes.allocation_of(job, host)
        if srun is None or allocation is None:
            expected = "Slurm's srun on PATH" if srun is None else f"{host} to be held by job {job}"
            raise LaunchError(f"expected {expected}, got none")
        options = ["--quiet", *self.step_options(self.name(keepers_of(job), number))]
        step = step_on_each(srun, allocation, [host], options)
        return [*step, sys.executable, "-P", *keeper_words(host)]

    def completion_file(self, job: str, step: int) -> Path:
        """Return the file of the completion record of a step, in a folder that is read anew."""
        file = super().completion_file(job, step)
        refresh_folder(file.parent)
        return file

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once, on its first node."""
        return self.nodes.start(job, launch)

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None without a trace of it."""
        return self.nodes.find(job, pid)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world; a job's first is started anew if Slurm did not answer meanwhile."""
        boot = partial(super().boot_world, job, launch)
        started = boot()
        again = None if launch.resize else boot
        world = World(started.pid, started.process, None, again, self.nodes.controller_answers)
        self._worlds = {
            name: own
            for name, own in self._worlds.items()
            if own.process is None or own.process.poll() is None
        }
        self._worlds[self.name(job, launch.launch)] = world
        self.watch_process(world)
        return world

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for one rank per slot, and set the variables of srun."""
        kept = inner_environment(env)
        env.clear()
        env.update(kept)
        if self.reach == "slurm":
            env["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(self.step_options(self.name(job, launch)))
        by_host = groupby(slots, lambda slot: slot.partition("/")[0])
        places = ",".join(f"{host}:{len(list(own))}" for host, own in by_host)
        return [*self.nodes.reach(job, env), "-hosts", places]

    def keeping_status(self, command: list[str], file: Path) -> list[str]:
        """Return the command of a world: mpiexec itself, whose children :class:`World` polls."""
        file.unlink(missing_ok=True)
        return command

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds, or else its script, to end; a world that never began is over."""
        self.nodes.terminate(job, has_worlds=bool(worlds))
        for world in worlds:
            if isinstance(world, World) and not world.pid:
                world.abandoned = True
        if worlds:
            super().terminate(job, worlds)
        else:
            self.resume(job)

    def resume(self, job: str) -> None:
        """Let the processes of a job go on if a signal has stopped them."""
        if self._stopped(job).exists():
            self.signal_all(job, signal.SIGCONT)

    def signal_all(self, job: str, number: int) -> None:
        """Send a signal to all processes of a job on its nodes; the stop of a job is saved."""
        if number == signal.SIGSTOP:
            self._stopped(job).touch()
        elif number == signal.SIGCONT:
            self._stopped(job).unlink(missing_ok=True)
        self.nodes.send_signal(job, signal.Signals(number).name.removeprefix("SIG"))

    def _stopped(self, job: str) -> Path:
        return self.status_file(job).with_name("stopped")

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the processes here of a launch or a job; 0 for a step that is being ended."""
        here = super().members(job, launch)
        for name, ending in list(self._ending.items()):
            if ending.done():
                del self._ending[name]
            elif job is None or is_part_of(name, self.name(job, launch)):
                here.append(0)
        return here

    def kill(self, job: str, launch: int | None = None) -> None:
        """End all processes of a job or launch at once, here and on its nodes."""
        self.nodes.kill(job, launch)
        owner, name = job.removesuffix(KEEPERS), self.name(job, launch)
        allocations, gentle_s = self.nodes.allocations(owner), 0.0 if owner == job else GENTLE_S
        ending = name in self._ending
        for key in [key for key in self._worlds if is_part_of(key, name)]:
            self._worlds.pop(key).abandoned = True
        super().kill(job, launch)
        if allocations and not ending:
            executor = self.executor
            self._ending[name] = executor.ask(
                lambda: end_steps(executor, allocations, name, END_PATIENCE_S, gentle_s)
            )

    def end_process(self, pid: int) -> None:
        """Kill a process; an srun, which ends its step, gets SIGTERM and some time before.

        If srun is killed between the creation of a step and the start of its tasks, Slurm keeps the
        step, and a later scancel does not end it.
        """
        if pid in self._terminated_s or program_name(pid) == "srun":
            self.end_gently(pid)
        else:
            send_signal(pid, signal.SIGKILL)
