"""The agent that reads this machine's meters, as a child of the daemon."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rms.formats.jobscript import WATCHED
from rms.launch.base import (
    Demand,
    LaunchCommand,
    LaunchError,
    Leases,
    ManagedProcess,
    PendingCall,
    ScriptLaunch,
    WorldLaunch,
    cores_of,
)
from rms.launch.processes import (
    INSTANCE_VARIABLE,
    KEEP_STATUS,
    KEEP_WORLD_STATUS,
    Groups,
    Processes,
    check_output,
    check_path,
    children,
    environment,
    find_delegated,
    hold_orphans,
    is_shell,
    join,
    runs_shell,
    send_signal,
)
from rms.power.choice import NONE, POWERCAP_VARIABLE, MeterChoice
from rms.power.frequency import CPUFREQ_VARIABLE, Clocks, FrequencyError, Shares
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    JOIN_VARIABLE,
    LAUNCHES_VARIABLE,
    LISTENER_VARIABLE,
    PROCESSORS_VARIABLE,
    SERVER_VARIABLE,
    SLOTS_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_VARIABLE,
    ClockOrders,
)
from rms.wire.mpiexec import find_mpiexec, is_open_mpi, mpiexec_command
from rms.wire.users import SlurmRow

FIRST_WAIT_S = 1.0
MOST_WAIT_S = 30.0
"""Before an agent that died is started again: doubled each time that it had not run so long."""


def agent_command(options: Sequence[str]) -> list[str]:
    """Return the command of an agent."""
    return [sys.executable, "-P", "-m", "rms.power.agent", *options]


@dataclass
class MeterAgent:
    """Runs the agent, and again where it dies; one that ends well found nothing to read.

    Attributes:
        launch: starts a command.
        clean: ends what an agent that died has left.
    """

    launch: Callable[[Sequence[str]], subprocess.Popen[bytes]]
    clean: Callable[[], None]
    options: Sequence[str]
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0
    _again_s: float | None = None
    _wait_s: float = FIRST_WAIT_S

    def start(self) -> None:
        """Start it, once those of an earlier daemon are ended: their token is not this one's."""
        self.clean()
        self._started_s, self._again_s = time.monotonic(), None
        with contextlib.suppress(LaunchError):
            self._process = self.launch(agent_command(self.options))

    def poll(self) -> None:
        """Start it again where it has died."""
        if self._again_s is not None and time.monotonic() >= self._again_s:
            self.start()
        if self._process is not None and self._process.poll() is not None:
            died, self._process = self._process.returncode != 0, None
            now_s = time.monotonic()
            if died:
                if now_s > self._started_s + MOST_WAIT_S:
                    self._wait_s = min(self._wait_s, FIRST_WAIT_S)
                self._again_s = now_s + self._wait_s
                self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)

    def close(self) -> None:
        """End it and what it has started."""
        self._again_s = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.clean()
            self._process = None


# FUSED rms.launch.local: The local launcher: scripts and worlds as processes of this machine.

LAUNCHERS = ("srun", "mpirun", "mpiexec")
SHIM = """#!/bin/sh
set -- -P -m rms launch --as {name} -- "$@"
case ":$PYTHONPATH:" in
::) ;;
*:[!/]*) set -- -E "$@" ;;  # an empty or relative entry is in the working folder
esac
exec {python} "$@"
"""
"""Launcher on the PATH of a job's script; it imports nothing from the working folder."""

METER = "meter"
"""What meters carry in their environment instead of a job's id."""

FOR_TESTS = (POWERCAP_VARIABLE, CPUFREQ_VARIABLE)
"""Where meters and frequencies are elsewhere than the kernel has them."""

NO_MEMORY_HOOKS = ("UCX_MEM_MMAP_HOOK_MODE", "none")
"""Has UCX patch no function that maps memory, which takes a rank 20 ms of processor time to boot.

It does so to know what network cards have registered; ranks on one machine use none. Ranks on GPUs
keep it: by it UCX tells their memory.
"""

PER_WORLD = (JOIN_VARIABLE, LISTENER_VARIABLE)


@dataclass
class LocalLauncher:
    """Starts and ends processes. Launchers for other engines override what differs.

    Attributes:
        state: the daemon's folder.
        instance_id: tells this daemon's processes from those of all others.
        server: address that jobs talk to.
        meters: which of the nodes' meters are read.
    """

    state: Path
    instance_id: str
    server: str
    meters: MeterChoice = field(default=NONE, kw_only=True)
    shims: Path = field(init=False)
    _processes: Processes = field(init=False, repr=False)
    _groups: Groups = field(init=False, repr=False)
    _agent: MeterAgent | None = field(default=None, init=False, repr=False)
    _clocks: Clocks = field(default_factory=Clocks, init=False, repr=False)

    requeue_on_shutdown = False
    requeue_by_default = False
    shared_filesystem = False
    starts_steps = True
    watches_processes = True
    max_concurrent_resizes = 0
    unavailable_label = "down"
    meter_token = ""

    def __post_init__(self) -> None:
        self._processes = Processes(self.instance_id)
        above = find_delegated(os.environ)
        self._groups = Groups(above, self.instance_id, self.state / "jobs")
        self.shims = self.state / "bin"
        self.shims.mkdir(parents=True, exist_ok=True)
        for name in LAUNCHERS:
            shim = self.shims / name
            shim.write_text(SHIM.format(name=name, python=shlex.quote(sys.executable)))
            shim.chmod(0o755)

    # --- what runs beside the jobs -----------------------------------------------------------

    def open(self) -> None:
        """Begin what runs beside the jobs; called once the daemon serves."""
        if self.meters.worth_starting(os.environ):
            self.meter_token = secrets.token_hex(16)
            options = ["--node", "", *self.meters.arguments]
            self._agent = MeterAgent(self._start_meter, lambda: self.kill(METER), options)
            self._agent.start()

    def poll(self) -> None:
        """Do what is due now."""
        if self._agent is not None:
            self._agent.poll()

    def close(self) -> None:
        """End what runs beside the jobs; called when the daemon ends."""
        if self._agent is not None:
            self._agent.close()
        with contextlib.suppress(FrequencyError):  # its process has said so
            self._clocks.close()
        self._groups.close()

    def _start_meter(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start what reads meters, with what it needs to reach the daemon."""
        env = {
            **self.meter_env(),
            **{key: os.environ[key] for key in FOR_TESTS if key in os.environ},
            SERVER_VARIABLE: self.server,
            TOKEN_VARIABLE: self.meter_token,
        }
        return self._start(command, str(self.state), env, self.state / "meter.log", [])

    def meter_env(self) -> dict[str, str]:
        """Return the environment of what reads meters, but for how it reaches the daemon."""
        return {**os.environ, INSTANCE_VARIABLE: f"{self.instance_id}:{METER}"}

    # --- scripts and worlds ------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once, on its first node."""
        status = self.status_file(job)
        status.unlink(missing_ok=True)
        env = {**launch.env, **self.script_env(job, launch.env.get("PATH", os.defpath))}
        command = self.script_command(launch)
        cores = cores_of(launch.nodes[0])
        process = self._start(command, launch.cwd, env, launch.output, cores, launch.errors)
        return ManagedProcess(process.pid, process, status)

    def status_file(self, job: str) -> Path:
        """Return where a job's script leaves its exit status."""
        return self.state / "jobs" / job / "status"

    def script_env(self, job: str, path: str) -> dict[str, str]:
        """Return what the environment of a job's script has from its launcher."""
        return {
            "PATH": f"{self.shims}{os.pathsep}{path}",
            "RMS_SERVER": self.server,
            "RMS_STATUS": str(self.status_file(job)),
            INSTANCE_VARIABLE: f"{self.instance_id}:{job}",
        }

    def script_command(self, launch: ScriptLaunch) -> list[str]:
        """Return what runs a job script and keeps its status."""
        return ["/bin/sh", "-c", KEEP_STATUS, "job", str(launch.script), *launch.arguments]

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None where nothing is left of it."""
        members, status = self.members(job), self.status_file(job)
        if not members and not status.exists():
            return None
        own = min(members, default=0) if pid is None else pid
        return ManagedProcess(own if own in members else 0, status_file=status)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world: one rank on each slot, by a mpiexec of its own."""
        command, slots = launch.command, launch.slots
        path = self._path(command)
        mpiexec = find_mpiexec(path)
        if mpiexec is None:
            raise LaunchError("no mpiexec found; expected one on PATH or beside python")
        env = self._world_env(job, launch, path)
        where = self.world_options(job, launch.launch, slots, env)
        full = mpiexec_command(mpiexec, len(slots), command.command, where)
        cores, output = launch.cores or cores_of(slots), Path(command.output)
        kept = self.world_status_file(job, launch.launch)
        full = self.keeping_status(full, kept)
        process = self._start(full, command.cwd, env, output, cores, Path(command.errors))
        return ManagedProcess(process.pid, process, kept)

    def _path(self, command: LaunchCommand) -> str:
        """Return the search path of a launcher line, without what stands for launchers here."""
        parts = command.env.get("PATH", os.defpath).split(os.pathsep)
        return os.pathsep.join(part for part in parts if part and Path(part) != self.shims)

    def joins_launches(self, command: LaunchCommand) -> bool:
        """Return whether the ranks of several launches can become one world here."""
        mpiexec = find_mpiexec(self._path(command))
        return mpiexec is not None and not is_open_mpi(mpiexec)

    def world_status_file(self, job: str, launch: int) -> Path:
        """Return where a world leaves its exit status."""
        return self.state / "jobs" / job / f"world-{launch}"

    def keeping_status(self, command: list[str], file: Path) -> list[str]:
        """Return what runs a world and keeps its status for a daemon that was away at its end."""
        file.unlink(missing_ok=True)
        return ["/bin/sh", "-c", KEEP_WORLD_STATUS, str(file), *command]

    def _world_env(self, job: str, launch: WorldLaunch, path: str) -> dict[str, str]:
        """Return the environment of a world's ranks; forgets an earlier end of its step."""
        record = self.completion_file(job, launch.step)
        env = {
            # What a rank that has died leaves behind in its peers need not be reported to the user.
            "UCX_LOG_LEVEL": "error",
            **{key: value for key, value in launch.command.env.items() if key not in PER_WORLD},
            "PATH": path,
            SLOTS_VARIABLE: " ".join(launch.slots),
            COMPLETION_VARIABLE: str(record),
            WORLD_VARIABLE: str(launch.launch),
            "RMS_SERVER": self.server,
            INSTANCE_VARIABLE: f"{self.instance_id}:{job}",
        }
        if launch.processors:
            env[PROCESSORS_VARIABLE] = " ".join(launch.processors)
        if launch.resize:
            env[JOIN_VARIABLE] = str(launch.resize)
        else:
            record.unlink(missing_ok=True)
        if launch.launches:
            for left in record.parent.glob(f"port-{launch.launch}-*"):  # by one that died early
                left.unlink(missing_ok=True)
            env[LAUNCHES_VARIABLE] = " ".join(f"{n}:{ranks}" for n, ranks in launch.launches)
        gpus = [slot.removeprefix("gpu:") for slot in launch.slots if slot.startswith("gpu:")]
        if gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # dmr gives each rank its own of them
        return env

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return how mpiexec is to reach the slots; may change the environment it is given."""
        if not any(slot.startswith("gpu:") for slot in slots):
            env.setdefault(*NO_MEMORY_HOOKS)
        return []

    def unheeded(self, own: Sequence[str]) -> list[str]:
        """Return which of a script's options for sbatch have no effect here."""
        return [word for word in own if word.partition("=")[0].removeprefix("--") not in WATCHED]

    def longest_s(self, own: Sequence[str], env: Mapping[str, str]) -> float:
        """Return the maximum time limit of a job: none on this machine."""
        return math.inf

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        """Hold a job to so much memory, by its control group where it has one."""
        return self._groups.limit_memory(job, most_mib)

    # --- nodes that a resource manager gives and takes: here there is none ----------------------

    def resize_refusal(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why a running job cannot go over to other nodes: here it always can."""
        return ""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Have a job hold the nodes it has and those it is to have."""
        return None

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Have a job hold these nodes only."""
        return None

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Ask whether a job died of its nodes."""
        return None

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that are not to be had now; here that is never known."""
        return None

    def silent_s(self) -> float:
        """Return 0: there is no resource manager to wait for."""
        return 0.0

    def leases(self) -> Leases | None:
        """Return until when nodes are held: here they are there for good."""
        return None

    def follow(self, demand: Demand) -> Sequence[str]:
        """Ask for no nodes: they are there."""
        return ()

    def job_details(self, job: str) -> SlurmRow:
        """Return what else is to be said of a job: here nothing."""
        return SlurmRow()

    def shutdown_reason(self) -> str:
        """Return why the daemon has to end now: here it never has."""
        return ""

    # --- frequencies -----------------------------------------------------------------------------

    def frequency_refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of slots cannot be set, "" where they can."""
        return self._clocks.refusal(slots)

    def clock_orders(self, node: str) -> ClockOrders:
        """Return what a node, whose own process asks, is to be set to: here there is none."""
        return ClockOrders()

    def set_frequencies(self, shares: Shares, highest_mhz: float | None) -> None:
        """Set the frequencies of this machine's cores and GPUs."""
        self._clocks.set(shares, highest_mhz)

    # --- what is left of a job ---------------------------------------------------------------

    def completion_file(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes."""
        return self.state / "jobs" / job / f"completion-{step}.json"

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the live processes of a launch, of a job, or of all jobs of this daemon."""
        found = self._processes.of(job, None if launch is None else str(launch))
        if job is None or launch is not None:
            return found
        return list(dict.fromkeys([*found, *self._groups.members(job)]))

    def jobs(self) -> Collection[str]:
        """Return the jobs of which processes are there, and the names of what reads meters."""
        return self._processes.jobs()

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end.

        MPICH's mpiexec passes SIGTERM on to its ranks and waits for them. Open MPI's ends them
        half a second later, so its ranks are signalled themselves.
        """
        ranks = [pid for pid in self.members(job) if worlds and _of_open_mpi(pid)]
        for pid in ranks or [world.pid for world in worlds] or self.members(job):
            send_signal(pid, signal.SIGTERM)

    def send_signal(self, job: str, number: int, script: int = 0) -> None:
        """Send a signal to the processes of a job's worlds, as ranks or started by them.

        Args:
            script: the shell around the job's script, where that is to get it instead.
        """
        members = self.members(job)
        if script:
            members = [pid for pid in members if pid in children(script)]
        else:
            members = [pid for pid in members if _is_rank(pid)]
        for pid in members:
            send_signal(pid, number)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job, or of one of its launches, at once.

        The shells around scripts and worlds are left to end themselves, with what escaped.
        """
        for pid in self.members(job, launch):
            self.end_process(pid)

    def end_process(self, pid: int) -> None:
        """End a process at once; it is asked for again and again until the process is gone."""
        send_signal(pid, signal.SIGCONT if runs_shell(pid) else signal.SIGKILL)

    def _start(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        output: Path,
        cores: Sequence[int],
        errors: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        shell, job = is_shell(list(command)), env[INSTANCE_VARIABLE].partition(":")[2]
        group = self._groups.joined(job) if shell else None

        def bind() -> None:
            if shell:
                hold_orphans()
            join(group)
            if cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, set(cores))

        try:
            if not Path(cwd).is_dir():
                raise FileNotFoundError(f"expected a folder to run in, got {cwd}")
            with _open_output(output) as out, _open_output(errors or output) as err:
                return subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=bind,
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise LaunchError(f"could not start {command[0]}: {error}") from None


def _open_output(path: Path) -> IO[bytes]:
    """Open an output to be appended to; never waits, as for the reader of a pipe.

    Raises:
        OSError, ValueError: it cannot be opened, or is no file.
    """
    check_path(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
    except OSError:
        check_output(path)  # a pipe without a reader says less
        raise
    try:
        check_output(file.fileno(), path)
        os.set_blocking(file.fileno(), True)  # for the job, which shares it
    except BaseException:
        file.close()
        raise
    return file


RANK_VARIABLES = (b"PMI_RANK=", b"PMIX_RANK=", b"OMPI_COMM_WORLD_RANK=")


def _is_rank(pid: int) -> bool:
    """Return whether a process is a rank, or was started by one."""
    return any(variable.startswith(RANK_VARIABLES) for variable in environment(pid) or [])


def _of_open_mpi(pid: int) -> bool:
    """Return whether a process is a rank, or a rank's, that Open MPI's mpiexec started."""
    variables = environment(pid) or []
    return any(variable.startswith(b"OMPI_COMM_WORLD_RANK=") for variable in variables)
