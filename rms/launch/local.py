"""Engine ``local``: this machine's cores and GPUs as nodes, and jobs as its processes."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import IO

from rms.core.model.cluster import Cluster
from rms.core.model.contention import Processors
from rms.core.model.jobs import NodePower
from rms.formats.config import ClusterFile, FileError, read_cluster
from rms.formats.profiles import Machine
from rms.launch.base import (
    EngineNodes,
    LaunchCommand,
    LaunchError,
    ManagedProcess,
    NodeClocks,
    ScriptLaunch,
    WorldLaunch,
    cores_of,
)
from rms.launch.processes import (
    GENTLE_S,
    INSTANCE_VARIABLE,
    KEEP_STATUS,
    KEEP_WORLD_STATUS,
    Groups,
    Processes,
    alive,
    check_output,
    check_path,
    children,
    find_delegated,
    hold_orphans,
    is_shell,
    join,
    runs_shell,
    send_signal,
)
from rms.power.choice import AUTO, NONE, POWERCAP_VARIABLE, MeterChoice
from rms.power.frequency import CPUFREQ_VARIABLE, Clocks, FrequencyError, available
from rms.wire.marks import KEEPERS, METER, environment
from rms.wire.messages import (
    COMPLETION_VARIABLE,
    JOIN_VARIABLE,
    LAUNCHES_VARIABLE,
    LISTENER_VARIABLE,
    PROCESSORS_VARIABLE,
    RUN_VARIABLE,
    SERVER_VARIABLE,
    SLOTS_VARIABLE,
    TOKEN_VARIABLE,
    WORLD_VARIABLE,
)
from rms.wire.mpiexec import LAUNCHERS, find_mpiexec, is_open_mpi, mpiexec_command

FIRST_WAIT_S = 1.0
MOST_WAIT_S = 30.0
"""Pause before an agent that died is started again; it doubles after every short run."""


def agent_command(options: Sequence[str]) -> list[str]:
    """Return the command of an agent."""
    return [sys.executable, "-P", "-m", "rms.power.agent", *options]


@dataclass
class AgentProcess:
    """Runs agents, and starts them again if they die; on nodes without meters they end with 0.

    Attributes:
        command: returns the command, None if it cannot be run here.
        clean: ends the processes of a dead agent, or of an earlier daemon's.
        may_start: whether a start can succeed now.
    """

    launch: Callable[[Sequence[str]], subprocess.Popen[bytes]]
    command: Callable[[], Sequence[str] | None]
    clean: Callable[[], None] = lambda: None
    may_start: Callable[[], bool] = lambda: True
    wait_s: float = FIRST_WAIT_S
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float | None = None
    _again_s: float | None = None

    @property
    def started(self) -> bool:
        """Whether they were started."""
        return self._started_s is not None

    def start(self) -> None:
        """Start them, after the end of those of an earlier daemon, which have its token."""
        self.clean()
        command = self.command()
        if command is not None:
            self._started_s, self._again_s = time.monotonic(), None
            with contextlib.suppress(LaunchError):
                self._process = self.launch(command)

    def poll(self) -> None:
        """Start them again if they have died."""
        now_s = time.monotonic()
        if self._again_s is not None and now_s >= self._again_s and self.may_start():
            self.start()
        if self._process is not None and self._process.poll() is not None:
            died, self._process = self._process.returncode != 0, None
            if died:
                if now_s > (self._started_s or 0.0) + MOST_WAIT_S:
                    self.wait_s = min(self.wait_s, FIRST_WAIT_S)
                self._again_s = now_s + self.wait_s
                self.wait_s = min(2 * self.wait_s, MOST_WAIT_S)

    def close(self) -> bool:
        """End them; return whether they ran."""
        self._again_s = None
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return False
        process.kill()
        process.wait()
        self.clean()
        return True


def adapter_command(resize_by: str, shims: Path) -> list[str]:
    """Return the words before the script of a job with ``--resize-by`` signal or command."""
    return [sys.executable, "-P", "-m", "rms.client.adapter", resize_by, str(shims)]


SHIM = """#!/bin/sh
set -- -P -m rms launch --as {name} -- "$@"
case ":$PYTHONPATH:" in
::) ;;
*:[!/]*) set -- -E "$@" ;;  # an empty or relative entry is in the working folder
esac
exec {python} "$@"
"""
"""Launcher on the PATH of a job's script; it imports nothing from the working folder."""

FOR_TESTS = (POWERCAP_VARIABLE, CPUFREQ_VARIABLE)
"""Variables that name other folders than the kernel's for meters and frequencies."""

NO_MEMORY_HOOKS = ("UCX_MEM_MMAP_HOOK_MODE", "none")
"""Keeps UCX from patching functions that map memory, which takes a rank without GPU 20 ms."""

PER_WORLD = (JOIN_VARIABLE, LISTENER_VARIABLE)

LOOPBACK = "127.0.0.1"
KEEPER_ALONE_S = 86400.0
"""A keeper that was not ended with its job ends itself once no rank has run there for so long."""


def keepers_of(job: str) -> str:
    """Return the name of the owner of a job's keepers, in place of the job's id."""
    return f"{job}{KEEPERS}"


def keeper_words(host: str) -> list[str]:
    """Return the words of Python that run a keeper on a host."""
    return ["-m", "dmr.memory.keeper", host, "--alone", f"{KEEPER_ALONE_S:g}"]


class LocalClocks(Clocks, NodeClocks):
    """The frequencies of this machine, set by the daemon itself."""


@dataclass
class LocalLauncher:
    """Starts, watches and ends the processes of jobs, here on this machine.

    Queries only read. :meth:`poll` is called in every round of the daemon's loop and never blocks.

    Attributes:
        meter_token: the token of agents that report energy; "" without agents.
        shared_filesystem: whether jobs run on other machines, whose files may appear late.
        watches_processes: whether it reads the memory of all processes of a job, and can send them
            any signal.
        run_of: how often a job was requeued. Each run has files of its own for its ends, so that no
            process of an earlier run, on a host that comes back, writes into them.
    """

    state: Path
    instance_id: str
    server: str
    meters: MeterChoice = field(default=NONE, kw_only=True)
    shims: Path = field(init=False)
    _processes: Processes = field(init=False, repr=False)
    _groups: Groups = field(init=False, repr=False)
    _agent: AgentProcess | None = field(default=None, init=False, repr=False)
    nodes: EngineNodes = field(default_factory=EngineNodes, init=False, repr=False)
    clocks: NodeClocks = field(default_factory=LocalClocks, init=False, repr=False)
    meter_token: str = field(default="", init=False, repr=False)
    run_of: Callable[[str], int] = field(
        default_factory=lambda: lambda _: 0, init=False, repr=False
    )

    _terminated_s: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    shared_filesystem = False
    watches_processes = True

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

    def open(self) -> None:
        """Start the agent of the meters."""
        if self.meters.worth_starting(os.environ):
            self.meter_token = secrets.token_hex(16)
            groups = [] if self._groups.folder is None else [str(self._groups.folder)]
            command = agent_command(["--node", "", *self.meters.arguments, "--activity", *groups])
            end_others = partial(self.kill, METER)
            self._agent = AgentProcess(self.start_agent, lambda: command, end_others)
            self._agent.start()

    def poll(self) -> None:
        """Start the agent again if it has died."""
        if self._agent is not None:
            self._agent.poll()

    def close(self) -> None:
        """End the agent, and restore the frequencies."""
        if self._agent is not None:
            self._agent.close()
        with contextlib.suppress(FrequencyError):  # its guard has printed it
            self.clocks.close()
        self._groups.close()

    def start_agent(
        self, command: Sequence[str], env: Mapping[str, str] = os.environ, mark: str = METER
    ) -> subprocess.Popen[bytes]:
        """Start an agent with the address and the token of the daemon."""
        env = {
            **env,
            INSTANCE_VARIABLE: f"{self.instance_id}:{mark}",
            **{key: os.environ[key] for key in FOR_TESTS if key in os.environ},
            SERVER_VARIABLE: self.server,
            TOKEN_VARIABLE: self.meter_token,
        }
        return self.start(command, str(self.state), env, self.state / "meter.log", [])

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once, on its first node."""
        status = self.status_file(job)
        status.unlink(missing_ok=True)
        env = {**launch.env, **self.script_env(job, launch.env.get("PATH", os.defpath))}
        command = self.script_command(launch)
        cores = cores_of(launch.nodes[0])
        process = self.start(command, launch.cwd, env, launch.output, cores, launch.errors)
        return ManagedProcess(process.pid, process, status)

    def status_file(self, job: str) -> Path:
        """Return the file of a script's exit status."""
        return self._file(job, "status")

    def _file(self, job: str, name: str) -> Path:
        """Return a file of the present run of a job."""
        run = self.run_of(job)
        return self.state / "jobs" / job / (f"{name}.{run}" if run else name)

    def script_env(self, job: str, path: str) -> dict[str, str]:
        """Return the variables of a job's script that its launcher sets."""
        return {
            "PATH": f"{self.shims}{os.pathsep}{path}",
            "RMS_SERVER": self.server,
            "RMS_STATUS": str(self.status_file(job)),
            RUN_VARIABLE: str(self.run_of(job)),
            INSTANCE_VARIABLE: f"{self.instance_id}:{job}",
        }

    def script_command(self, launch: ScriptLaunch) -> list[str]:
        """Return the command that runs a job script and keeps its status."""
        return ["/bin/sh", "-c", KEEP_STATUS, "job", *launch.words]

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart, by its processes here or its exit status."""
        members, status = self.members(job), self.status_file(job)
        if not members and not status.exists():
            return None
        own = min(members, default=0) if pid is None else pid
        return ManagedProcess(own if own in members else 0, status_file=status)

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world: one rank per slot, by a mpiexec of its own."""
        command, slots = launch.command, launch.slots
        path = self._path(command)
        mpiexec = find_mpiexec(path)
        if mpiexec is None:
            raise LaunchError("expected mpiexec on PATH or beside python, got none")
        env = self._world_env(job, launch, path)
        where = self.world_options(job, launch.launch, slots, env)
        full = mpiexec_command(mpiexec, len(slots), command.command, where)
        cores, output = launch.cores or cores_of(slots), Path(command.output)
        kept = self.world_status_file(job, launch.launch)
        full = self.keeping_status(full, kept)
        process = self.start(full, command.cwd, env, output, cores, Path(command.errors))
        return ManagedProcess(process.pid, process, kept)

    def _path(self, command: LaunchCommand) -> str:
        """Return the search path of a launcher line, without the daemon's own launchers."""
        parts = command.env.get("PATH", os.defpath).split(os.pathsep)
        return os.pathsep.join(part for part in parts if part and Path(part) != self.shims)

    def joins_launches(self, command: LaunchCommand) -> bool:
        """Return whether the ranks of several launches can become one world, with its MPI."""
        mpiexec = find_mpiexec(self._path(command))
        return mpiexec is not None and not is_open_mpi(mpiexec)

    def world_status_file(self, job: str, launch: int) -> Path:
        """Return the file of a world's exit status."""
        return self.state / "jobs" / job / f"world-{launch}"

    def keeping_status(self, command: list[str], file: Path) -> list[str]:
        """Return the command that runs a world and keeps its status for a later daemon."""
        file.unlink(missing_ok=True)
        return ["/bin/sh", "-c", KEEP_WORLD_STATUS, str(file), *command]

    def _world_env(self, job: str, launch: WorldLaunch, path: str) -> dict[str, str]:
        """Return the environment of a world's ranks; remove the record of an earlier end."""
        record = self.completion_file(job, launch.step)
        env = {
            # Errors of UCX that follow from the death of another rank are not reported.
            "UCX_LOG_LEVEL": "error",
            **{key: value for key, value in launch.command.env.items() if key not in PER_WORLD},
            "PATH": path,
            SLOTS_VARIABLE: " ".join(launch.slots),
            COMPLETION_VARIABLE: str(record),
            WORLD_VARIABLE: str(launch.launch),
            RUN_VARIABLE: str(self.run_of(job)),
            "RMS_SERVER": self.server,
            INSTANCE_VARIABLE: f"{self.instance_id}:{job}",
            **launch.env,
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
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # dmr gives every rank one of them
        return env

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for the slots; may change the environment."""
        if not any(slot.startswith("gpu:") for slot in slots):
            env.setdefault(*NO_MEMORY_HOOKS)
        return []

    def start_keeper(self, job: str, number: int, host: str) -> None:
        """Start a keeper of copies of a job's data on one of its hosts ("" for this machine).

        Its processes are those of :func:`keepers_of`, which the job's own end does not affect.
        """
        file = self.keeper_file(job, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)  # its address has a token
        env = {
            **self.keeper_env(),
            INSTANCE_VARIABLE: f"{self.instance_id}:{keepers_of(job)}",
            WORLD_VARIABLE: str(number),
        }
        command = self.keeper_command(host or LOOPBACK, number, job)
        self.start(command, str(self.state), env, file, [], file.with_suffix(".log"))

    def keeper_env(self) -> Mapping[str, str]:
        """Return the environment of a keeper, without its marks."""
        return os.environ

    def keeper_command(self, host: str, number: int, job: str) -> list[str]:
        """Return the command that runs a keeper."""
        return [sys.executable, "-P", *keeper_words(host)]

    def keeper_file(self, job: str, number: int) -> Path:
        """Return the file with the line of a keeper, which is empty until it serves."""
        return self.state / "jobs" / job / f"keeper-{number}.txt"

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        """Limit a job's memory; return the number of processes ended for it, None if impossible."""
        return self._groups.limit_memory(job, most_mib)

    def completion_file(self, job: str, step: int) -> Path:
        """Return the file of the completion record of a step."""
        return self._file(job, f"completion-{step}.json")

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the live processes of a launch, of a job, or of all jobs of this daemon."""
        pids = self._processes.of(job, None if launch is None else str(launch))
        if job is None or launch is not None:
            return pids
        return list(dict.fromkeys([*pids, *self._groups.members(job)]))

    def jobs(self) -> Collection[str]:
        """Return the jobs with live processes, and the names of agents."""
        return self._processes.jobs()

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end.

        MPICH's mpiexec passes SIGTERM on to its ranks and waits for them. Open MPI's ends them
        half a second later, so its ranks are signalled themselves.
        """
        ranks = [pid for pid in self.members(job) if worlds and _is_rank(pid, OPEN_MPI_RANK)]
        for pid in ranks or [world.pid for world in worlds] or self.members(job):
            send_signal(pid, signal.SIGTERM)
        self.resume(job)

    def resume(self, job: str) -> None:
        """Let the processes of a job go on that are stopped, as these receive no SIGTERM."""
        self.signal_all(job, signal.SIGCONT)

    def signal_all(self, job: str, number: int) -> None:
        """Send a signal to all processes of a job, also to those that it starts meanwhile."""
        signalled = set[int]()
        while new := set(self.members(job)) - signalled:
            for pid in new:
                send_signal(pid, number)
            signalled |= new

    def send_signal(self, job: str, number: int, script: int = 0) -> None:
        """Send a signal to the processes of a job's worlds, as ranks or started by them.

        Args:
            script: the shell around the job's script, if the script gets it instead.
        """
        members = self.members(job)
        if script:
            members = [pid for pid in members if pid in children(script)]
        else:
            members = [pid for pid in members if _is_rank(pid)]
        for pid in members:
            send_signal(pid, number)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End all processes of a job, or of one of its launches, at once.

        The shells around scripts and worlds end themselves, after their escaped children. Keepers
        free the memory of their node before they end.
        """
        end = self.end_gently if job.endswith(KEEPERS) else self.end_process
        for pid in self.members(job, launch):
            end(pid)

    def end_gently(self, pid: int) -> None:
        """End a process by SIGTERM; by SIGKILL if it is there after a while."""
        now = time.monotonic()
        if pid not in self._terminated_s:
            self._terminated_s = {own: at for own, at in self._terminated_s.items() if alive(own)}
            self._terminated_s[pid] = now
            send_signal(pid, signal.SIGTERM)
        elif now >= self._terminated_s[pid] + GENTLE_S:
            send_signal(pid, signal.SIGKILL)

    def end_leftovers(self, job: str) -> None:
        """End what a run without processes here may have left on hosts, before these are used."""

    def end_process(self, pid: int) -> None:
        """End a process at once; the daemon repeats this until the process is gone."""
        send_signal(pid, signal.SIGCONT if runs_shell(pid) else signal.SIGKILL)

    def start(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        output: Path,
        cores: Sequence[int],
        errors: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, in the control group of its job."""
        shell, job = is_shell(command), env[INSTANCE_VARIABLE].partition(":")[2]
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
    """Open an output to be appended to; never waits, as for the reader of a pipe."""
    check_path(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
    except OSError:
        check_output(path)  # its error says more than that of a pipe without a reader
        raise
    try:
        check_output(file.fileno(), path)
        os.set_blocking(file.fileno(), True)  # for the job, which shares it
    except BaseException:
        file.close()
        raise
    return file


OPEN_MPI_RANK = b"OMPI_COMM_WORLD_RANK="
RANK_VARIABLES = (b"PMI_RANK=", b"PMIX_RANK=", OPEN_MPI_RANK)


def _is_rank(pid: int, variables: bytes | tuple[bytes, ...] = RANK_VARIABLES) -> bool:
    """Return whether a process is a rank, or was started by one."""
    return any(variable.startswith(variables) for variable in environment(pid) or [])


# --- this machine as a cluster -----------------------------------------------------------------

CORE_POWER = NodePower(idle_w=2.0, static_w=2.0, dynamic_w=8.0)
"""Model of one core where nothing is measured: round numbers of a server's order of magnitude."""


def this_machine(nodes: int | None = None) -> Cluster:
    """Return this machine's cores as nodes of one slot (the first ``nodes`` of them)."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    chosen = cores if nodes is None else cores[:nodes]
    return Cluster(
        tuple(f"core{n}" for n in chosen),
        tuple((f"cpu:{n}",) for n in chosen),
        (CORE_POWER,) * len(chosen),
    )


@cache
def hardware() -> Machine:
    """Return this machine's processor model, cores and GPUs (by nvidia-smi, once)."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
                break
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    gpus: list[str] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
        gpus = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return Machine(model, os.cpu_count() or 1, tuple(gpus))


def from_file(path: Path, *, shared: bool = False) -> Cluster:
    """Return a cluster file's nodes: their slots are this machine's devices, else cores in turn.

    Args:
        shared: whether jobs get slots one by one: then a node has the slots and cores of the file,
            else it is one core, or its GPUs.
    """
    cluster = read_cluster(path)
    cores = [slot for (slot,) in this_machine().slots]
    devices = count()
    slots: list[tuple[str, ...]] = []
    first = 0
    for n, gpus in enumerate(cluster.gpus):
        if gpus:
            slots.append(tuple(f"gpu:{next(devices)}" for _ in range(gpus)))
            continue
        width, of_node = (cluster.slots[n], cluster.cores[n]) if shared else (1, 1)
        own = [cores[(first + core) % len(cores)] for core in range(of_node)]
        slots.append(tuple(own[slot % of_node] for slot in range(width)))
        first += of_node
    columns = cluster.power, cluster.bandwidth_gb_s, (), cluster.levels, cluster.processors
    return Cluster(cluster.nodes, tuple(slots), *columns)


def host_cluster(
    hosts: tuple[str, ...], slots: tuple[tuple[str, ...], ...] | None, file: ClusterFile | None
) -> Cluster:
    """Return nodes with their slots (for None those of the file) and the power of the file."""
    gb_s: tuple[float, ...] = ()
    kinds: tuple[tuple[Processors, ...], ...] = ()
    levels = () if file is None else file.levels
    if file is None:
        slots = slots or ()
        core, cores = CORE_POWER, [len(own) for own in slots]
        power = tuple(
            NodePower(core.idle_w * n, core.static_w * n, core.dynamic_w * n) for n in cores
        )
    else:
        at = [file.nodes.index(host) for host in hosts]
        power = tuple(file.power[n] for n in at)
        gb_s = tuple(file.bandwidth_gb_s[n] for n in at) if file.bandwidth_gb_s else ()
        kinds = tuple(file.processors[n] for n in at) if file.processors else ()
        if slots is None:
            slots = tuple(numbered(file.slots[n], gpus=bool(file.gpus[n])) for n in at)
        for host, kind, own in zip(hosts, kinds, slots, strict=False):
            if (number := sum(processors.number for processors in kind)) != len(own):
                expected = f"as many processors of {host} in the cluster file as slots, {len(own)}"
                raise FileError(f"expected {expected}, got {number}")
    placed = tuple(
        tuple(f"{host}/{slot}" for slot in own) for host, own in zip(hosts, slots, strict=True)
    )
    return Cluster(hosts, placed, power, gb_s, levels=levels, processors=kinds)


def numbered(number: int, *, gpus: bool) -> tuple[str, ...]:
    """Return the names of so many slots of a host."""
    return tuple(f"{'gpu' if gpus else 'core'}:{n}" for n in range(number))


def with_levels(cluster: Cluster, env: Mapping[str, str]) -> Cluster:
    """Return nodes with the frequencies of their devices, and voltages proportional to these."""
    gpus = any(slot.startswith("gpu:") for slot in cluster.slots[0])
    devices = [d for d in available(env) if d.name.startswith("gpu" if gpus else "cpu") and d.mhz]
    if cluster.levels or not devices:
        return cluster
    mhz = devices[0].mhz
    return replace(cluster, levels=tuple((step / 1000.0, step / mhz[-1]) for step in mhz))


@dataclass(frozen=True)
class JobEngine:
    """An engine of ``rms serve``: its cluster, and the launcher of its processes.

    Attributes:
        launcher: makes a launcher of the daemon's folder, its instance id and its address for jobs.
        remote: whether jobs run on other machines, so that they need TCP.
        where: identifies these nodes, if a daemon may restart on others; "" if it may not.
    """

    cluster: Cluster
    launcher: Callable[[Path, str, str], LocalLauncher]
    remote: bool = False
    where: str = ""

    def first(self, nodes: int | None) -> JobEngine:
        """Return the engine with only the first nodes, all for None; FileError if too few."""
        names = self.cluster.names
        if nodes is not None and not 1 <= nodes <= len(names):
            raise FileError(f"expected 1 to {len(names)} nodes, got {nodes}")
        return replace(self, cluster=self.cluster.first(len(names) if nodes is None else nodes))

    def sharing(self) -> JobEngine:
        """Return the engine with nodes whose slots jobs get one by one."""
        return replace(self, cluster=self.cluster.split())


def local_engine(cluster: Cluster, meters: MeterChoice = AUTO) -> JobEngine:
    """Return the engine that runs jobs as processes of this machine."""
    return JobEngine(cluster, partial(LocalLauncher, meters=meters))
