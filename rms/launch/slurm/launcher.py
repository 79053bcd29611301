"""Scripts and worlds as steps of an allocation: started by srun and mpiexec, ended by name.

Each world is an mpiexec on the daemon's machine which reaches the nodes through one srun, so each
is one step, named after the job and its launch. While mpiexec and srun run, its ranks do; where
they had to be killed, the step is ended by its name and asked after until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path

from rms.launch.base import (
    NODES_LOST,
    LaunchError,
    ManagedProcess,
    PendingCall,
    WorldLaunch,
    hosts_of,
)
from rms.launch.local import LocalLauncher, agent_command
from rms.launch.processes import alive, has_live_children, program_name, send_signal
from rms.launch.slurm.commands import Executor, SlurmError
from rms.power.choice import AUTO, MeterChoice
from rms.power.frequency import Shares

POLL_S = 0.5
"""Time between two checks of a process, or of a step that is being ended."""

STUCK_S = 3.0
"""How long mpiexec may be without the srun that it reaches its nodes by before it never will."""

MOST_BOOTS = 5

STATUS_POLL_S = 3.0
"""Time between two checks for the status of a script whose srun still runs."""

STATUS_DELAY_S = 10.0
"""How long a script may be over before its status must be seen in a shared folder."""


@dataclass(eq=False)
class World(ManagedProcess):
    """A mpiexec. Where its srun fails, which never happens later, it would wait for good.

    Attributes:
        boot: starts it anew, None where a failure is to be reported.
        may_boot: whether that can work now.
        abandoned: it is not to be started anew.
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
        """End a mpiexec that has lost its srun; start one that was ended so anew."""
        if self.process is None:
            if self.boot is not None and not self.abandoned and not self._failed:
                self._boot_again(self.boot)
        elif self.process.poll() is None and self._stuck():
            self.process.kill()
            self.process.wait()
            if self.boot is None or self._boots >= MOST_BOOTS:
                self._failed = True
            else:
                self.process, self.pid = None, 0

    @property
    def over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.process is not None and self.process.poll() is not None

    def _stuck(self) -> bool:
        """Return whether mpiexec has had no process to reach nodes by for a while."""
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

    def _boot_again(self, boot: Callable[[], ManagedProcess]) -> None:
        if not self.may_boot():
            return
        self._boots, self._childless_since_s = self._boots + 1, None
        try:
            started = boot()
        except LaunchError:
            self._failed = True
            return
        self.pid, self.process = started.pid, started.process


@dataclass
class ScriptStep(ManagedProcess):
    """A job's script, which srun runs on a node.

    Attributes:
        begin: starts it, None once it was; it waits while the controller is away.
        diagnose: asks why srun has ended although the script has left no status.
        may_begin: whether it can be started now.
        begun_file: the script creates it as soon as it runs.
        abandoned: it is not to be started any more.
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
        """Return the script's own status; ``end_reason`` tells why there is none."""
        return self._code

    def poll(self) -> None:
        """Start it when it can be; see whether it has ended; diagnose an end without a status."""
        if self._code is not None:
            return
        if self.begin is not None:
            self._try_to_begin(self.begin)
        elif alive(self.pid) if self.process is None else self.process.poll() is None:
            self._code = self._status_of_running()
        else:
            self._code = self._status_of_ended()

    def _try_to_begin(self, begin: Callable[[], subprocess.Popen[bytes]]) -> None:
        if self.abandoned:
            self.end_state, self._code = NODES_LOST, 1
        elif self.may_begin():
            try:
                self.process, self.begin = begin(), None
            except LaunchError as error:
                self.end_reason, self._code = str(error), 1
                return
            self.pid = self.process.pid

    def _status_of_running(self) -> int | None:
        """Return what the script has left, a while after, although srun has not ended."""
        now = time.monotonic()
        if now < self._polled_s + STATUS_POLL_S:
            return None
        self._polled_s, code = now, self.written_status()
        self._over_since_s = 0.0 if code is None else self._over_since_s or now
        return code if now > self._over_since_s + STATUS_DELAY_S else None

    def _status_of_ended(self) -> int | None:
        """Return what the script has left; if nothing, that of srun, once it is known why."""
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
        """Return what the script left in its status file, None while nothing is seen there."""
        if self.status_file is not None:
            refresh_folder(self.status_file.parent)
        return super().written_status()


def step_on_each(
    srun: str, allocation: int, hosts: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Return the command of a step with one task on each of these nodes, but for what it runs."""
    n = len(hosts)
    return [
        *[srun, f"--jobid={allocation}", f"--nodes={n}", f"--ntasks={n}", "--ntasks-per-node=1"],
        *[f"--nodelist={','.join(hosts)}", "--input=none", *options],
    ]


def end_steps(executor: Executor, allocations: Sequence[int], name: str, patience_s: float) -> None:
    """End all steps of allocations that are called so, and wait until they are gone.

    Where the daemon ends meanwhile they are told to, and no more is waited.
    """
    slurm, until = executor.slurm, time.monotonic() + patience_s
    while time.monotonic() < until:
        try:
            steps = [each for number in allocations for each in slurm.steps(number)]
            left = [step for step, called in steps if is_part_of(called, name)]
            if not left:
                return
            slurm.end_steps(left)
        except SlurmError:
            pass  # the controller is away; the step's own srun is dead in any case
        if executor.closing.wait(POLL_S):
            return


def is_part_of(step: str, name: str) -> bool:
    """Return whether a step is called so, or belongs to the job that is."""
    return step == name or step.startswith(f"{name}.")


def refresh_folder(folder: Path) -> None:
    """Open a folder: over NFS, a file that was not there before may else stay unseen for long."""
    with contextlib.suppress(OSError):
        os.scandir(folder).close()


# FUSED rms.launch.slurm.launcher: Meters of power on nodes of Slurm: steps that run :mod:`rms.power.agent` on each node.

StartMeter = Callable[[Sequence[str]], subprocess.Popen[bytes]]
"""Starts a command on the daemon's machine, with what the agents need in its environment."""

UNTIL_DONE = 'until "$@"; do [ $? -gt 128 ] || exit 1; sleep 5; done'
"""Shell around an agent: starts it again where it was killed."""

EVERY_S = 2.0
"""Time between readings of a job's nodes."""

READINGS_PER_S = 50.0
"""Readings of power that the daemon takes from all nodes of an allocation together."""

NOTHING_TO_READ_S = 5.0
"""A meter that ends well so soon, while its job goes on, found nothing to read."""

FORGET_S = 600.0
"""How long such nodes are not asked again."""

RESTART_S = 30.0
"""Time between two starts of an allocation's meters that died."""


@dataclass(frozen=True)
class _JobMeter:
    job: int
    hosts: Sequence[str]
    begun_s: float
    process: subprocess.Popen[bytes]


@dataclass
class JobMeters:
    """Meters in the jobs of Slurm's: one step for each time that a job comes to hold nodes.

    Slurm ends them with their jobs.

    Attributes:
        launch: starts a step.
        options: srun's for every step.
        meters: which are read.
        unreadable: nodes that have nothing to read, and until when they are not asked again.
    """

    launch: StartMeter
    options: Sequence[str]
    meters: MeterChoice = AUTO
    unreadable: dict[str, float] = field(default_factory=dict)
    _running: list[_JobMeter] = field(default_factory=list)

    def start(self, number: int, hosts: Iterable[str]) -> None:
        """Have the power of these nodes of a running job of Slurm's read."""
        now = time.monotonic()
        chosen = sorted(host for host in hosts if self.unreadable.get(host, 0.0) < now)
        step = _step(number, chosen, self.options) if chosen else None
        if step is not None:
            command = [*step, *_agent(self.meters, EVERY_S)]
            with contextlib.suppress(LaunchError):
                self._running.append(_JobMeter(number, chosen, now, self.launch(command)))

    def watch(self, held: set[int]) -> None:
        """Take in which have ended: where a job is still ``held``, because nothing can be read."""
        now = time.monotonic()
        for meter in self._running:
            # One that reads ends with 0 too, when its job does; mostly that is later.
            early = meter.job in held and now < meter.begun_s + NOTHING_TO_READ_S
            if meter.process.poll() == 0 and early:
                self.unreadable.update(dict.fromkeys(meter.hosts, now + FORGET_S))
        self._running = [meter for meter in self._running if meter.process.poll() is None]

    def close(self) -> None:
        """End them all."""
        for meter in self._running:
            meter.process.terminate()
        for meter in self._running:
            try:
                meter.process.wait(5)
            except subprocess.TimeoutExpired:
                meter.process.kill()
                meter.process.wait()
        self._running = []


@dataclass
class AllocationMeters:
    """Meters on all nodes of one allocation: one step, started again where it dies.

    Attributes:
        launch: starts the step.
        options: srun's for it.
        may_start: whether that can work now.
        meters: which are read.
        agent: what is run on each node instead of what reads meters.
    """

    launch: StartMeter
    allocation: int
    hosts: Sequence[str]
    options: Sequence[str]
    may_start: Callable[[], bool]
    meters: MeterChoice = AUTO
    agent: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0

    @property
    def started(self) -> bool:
        """Whether they were started."""
        return self._process is not None

    def start(self) -> None:
        """Start a meter on every node, if there is an srun."""
        every_s = max(1.0, len(self.hosts) / READINGS_PER_S)
        step = _step(self.allocation, self.hosts, self.options)
        if step is not None:
            self._started_s = time.monotonic()
            with contextlib.suppress(LaunchError):
                command = self.agent or _agent(self.meters, every_s)
                self._process = self.launch([*step, *command])

    def poll(self) -> None:
        """Start them again where they died; they end well where there is nothing to read."""
        if self._process is None or self._process.poll() in (None, 0):
            return
        if time.monotonic() > self._started_s + RESTART_S and self.may_start():
            self.start()

    def close(self) -> bool:
        """End their srun; return whether it ran, so that its step has to be ended too."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        return True


def _step(allocation: int, hosts: Sequence[str], options: Sequence[str]) -> list[str] | None:
    """Return the command of a step on nodes, but for what it runs; None where there is no srun."""
    srun = shutil.which("srun")
    if srun is None:
        return None
    return step_on_each(srun, allocation, hosts, ["--quiet", *options])


def _agent(meters: MeterChoice, every_s: float) -> list[str]:
    """Return what such a step runs on each node."""
    return until_done(agent_command(["--every", f"{every_s:g}", *meters.arguments]))


def until_done(command: Sequence[str]) -> list[str]:
    """Return what runs a command, and again where it was killed."""
    return ["/bin/sh", "-c", UNTIL_DONE, "meter", *command]


# FUSED rms.launch.slurm.launcher: What both engines of Slurm share: scripts and worlds within allocations, started from here.

END_PATIENCE_S = 60.0
"""How long a step that was ended is asked after."""

SRUN_S = 10.0
"""How long an srun that is to end has for ending its step. Slurm keeps a step for good whose srun
was killed between its creation and the start of its tasks: whoever is told to kill it finds none.
"""

POLL_BUDGET_S = 0.1
"""How long one call may poll processes."""

KEPT_VARIABLES = ("SLURM_CONF", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass
class SlurmLauncher(LocalLauncher):
    """Starts worlds within allocations.

    Attributes:
        executor: for commands that take their time.
        reach: how mpiexec starts its proxies on nodes (its option ``-launcher``).
        binds: whether steps of this site are bound to CPUs unless told otherwise.
    """

    executor: Executor
    reach: str = "slurm"
    binds: bool = False
    _ending: dict[str, Future[None]] = field(default_factory=dict)
    _worlds: dict[str, World] = field(default_factory=dict)
    _polled: deque[World | ScriptStep] = field(default_factory=deque)
    _told_s: dict[int, float] = field(default_factory=dict)

    shared_filesystem = True
    starts_steps = False
    watches_processes = False

    def poll(self) -> None:
        """Poll the processes that were started here, for a short while; the rest next time."""
        until = time.monotonic() + POLL_BUDGET_S
        for _ in range(len(self._polled)):
            process = self._polled.popleft()
            try:
                process.poll()
            finally:  # one that fails is looked at again
                if process.status() is None:
                    self._polled.append(process)
            if time.monotonic() > until:
                break

    def silent_s(self) -> float:
        """Return the time without an answer of the controller, 0 while it answers."""
        return self.executor.slurm.silent_s()

    def controller_answers(self) -> bool:
        """Return whether Slurm answered when it was asked last."""
        return True

    def allocation(self, job: str) -> int | None:
        """Return the Slurm job that an RMS job's nodes belong to, None while it has none."""
        raise NotImplementedError

    def allocations(self, job: str) -> list[int]:
        """Return all jobs of Slurm's in which steps of an RMS job may run."""
        found = self.allocation(job)
        return [] if found is None else [found]

    def name(self, job: str, launch: int | None = None) -> str:
        """Return what a job's script is called in Slurm, or one of its launches."""
        return f"rms.{self.instance_id[:8]}.{job}" + ("" if launch is None else f".{launch}")

    def completion_file(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes, having read that folder anew."""
        found = super().completion_file(job, step)
        refresh_folder(found.parent)
        return found

    # --- worlds ------------------------------------------------------------------------------

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world; a job's first is started anew where Slurm could not be asked for it."""
        boot = partial(super().boot_world, job, launch)
        started = boot()
        again = None if launch.resize else boot
        world = World(started.pid, started.process, None, again, self.controller_answers)
        self._worlds = {name: known for name, known in self._worlds.items() if not known.over}
        self._worlds[self.name(job, launch.launch)] = world
        self._polled.append(world)
        return world

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for one rank on each slot, and set what srun is to know."""
        for key in [k for k in env if k.startswith("SLURM_") and k not in KEPT_VARIABLES]:
            del env[key]  # they describe an outer allocation or step, not this one
        env["SLURM_JOB_ID"] = str(self.allocation(job))
        if self.reach == "slurm":
            env["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(self.step_options(self.name(job, launch)))
        per_host = [(h, len(list(each))) for h, each in groupby(slots, lambda s: hosts_of([s])[0])]
        return ["-launcher", self.reach, "-hosts", ",".join(f"{h}:{n}" for h, n in per_host)]

    def step_options(self, name: str) -> list[str]:
        """Return what every step is started with: a name, and leave to share its nodes."""
        return ["--overlap", f"--job-name={name}", *(["--cpu-bind=none"] if self.binds else [])]

    def keeping_status(self, command: list[str], file: Path) -> list[str]:
        """Return what runs a world: mpiexec itself, whose own children are looked at."""
        file.unlink(missing_ok=True)
        return command

    # --- frequencies -------------------------------------------------------------------------

    def frequency_refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of nodes cannot be set."""
        return "nodes of Slurm's jobs are set by Slurm itself (srun --cpu-freq)"

    def set_frequencies(self, shares: Shares, highest_mhz: float | None) -> None:
        """Set none: no policy asks for any here."""

    # --- ending them -------------------------------------------------------------------------

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end; one that never began is over."""
        for world in worlds:
            if isinstance(world, World) and not world.pid:
                world.abandoned = True
        super().terminate(job, worlds)

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return what is left here of a launch or a job; 0 for a step that is being ended."""
        here = super().members(job, launch)
        for name, ending in list(self._ending.items()):
            if ending.done():
                del self._ending[name]
            elif job is None or is_part_of(name, self.name(job, launch)):
                here.append(0)
        return here

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job or launch at once, here and on its nodes."""
        name, allocations = self.name(job, launch), self.allocations(job)
        asked = name in self._ending
        for known in [known for known in self._worlds if is_part_of(known, name)]:
            self._worlds.pop(known).abandoned = True
        super().kill(job, launch)
        if allocations and not asked:
            executor = self.executor
            self._ending[name] = executor.ask(
                lambda: end_steps(executor, allocations, name, END_PATIENCE_S)
            )

    def end_process(self, pid: int) -> None:
        """Kill a process, but tell an srun, which ends its step, and kill it only if it stays."""
        now = time.monotonic()
        if pid not in self._told_s and program_name(pid) == "srun":
            self._told_s = {known: at for known, at in self._told_s.items() if alive(known)}
            self._told_s[pid] = now
            send_signal(pid, signal.SIGTERM)
        elif now >= self._told_s.get(pid, -inf) + SRUN_S:
            send_signal(pid, signal.SIGKILL)
