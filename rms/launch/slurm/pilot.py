"""Engine ``slurm-pilot``: jobs as steps of the one allocation in which the daemon runs.

The allocation and its nodes are polled on a thread. Slurm notices a dead node after minutes, but a
step there fails at once: so scripts and worlds that die without a record are diagnosed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from rms.launch.base import (
    LaunchError,
    ManagedProcess,
    NodeClocks,
    PendingCall,
    ScriptLaunch,
    cores_of,
    hosts_of,
)
from rms.launch.local import MOST_WAIT_S, AgentProcess, LocalLauncher
from rms.launch.slurm.commands import (
    SITE_VARIABLES,
    Executor,
    Meaning,
    Slurm,
    SlurmError,
    inner_environment,
    plain_environment,
)
from rms.launch.slurm.launcher import (
    PROBE_S,
    ScriptStep,
    SlurmLauncher,
    SlurmNodes,
    agent_step,
    end_steps,
    failing_nodes,
    is_part_of,
)
from rms.launch.slurm.output import DEAD
from rms.launch.slurm.site import UNFIT
from rms.power.frequency import Shares
from rms.wire.messages import ClockOrders

POLL_S = 3.0  # time between two snapshots of the allocation
PATIENCE_S = 90.0
"""A failure is not blamed on the nodes if the controller was silent for so long."""

ASK_AGAIN_S = 0.5
ACCOUNTING_DELAY_S = 2.0

OVER = (
    *("COMPLETED", "COMPLETING", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
)

READINGS_PER_S = 50.0
"""Readings of power that the daemon takes from all nodes of an allocation together."""

MOST_STARTS = 5

JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES")
"""Variables that srun would set for a script's step, and that the script has of the RMS."""

MARK_BEGUN = 'touch "$0"; exec "$@"'


# --- an allocation and its agents ------------------------------------------------------------


@dataclass(frozen=True)
class AllocationSnapshot:
    """Slurm's report of an allocation at one time.

    Attributes:
        over: the state in which it has ended, "" before.
        end_s: when its time is up, by the wall clock; None without a limit.
        unfit: its nodes that cannot be used now.
        lost: those that are down, or that Slurm has removed from it.
    """

    over: str
    end_s: float | None
    unfit: frozenset[str]
    lost: frozenset[str] = frozenset()


@dataclass
class Allocation:
    """An allocation, its last snapshot, and the agents on its nodes.

    Attributes:
        probe_options: srun's for a step that only tests whether nodes answer.
        suspects: nodes that jobs were lost on, until a step can be started there again.
        killed: names of steps that this daemon has killed itself.
    """

    slurm: Slurm
    number: int
    hosts: tuple[str, ...]
    probe_options: Sequence[str]
    meters: AgentProcess
    clocks: AgentProcess
    snapshot: AllocationSnapshot | None = None
    suspects: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    silent: bool = False
    _query: Future[AllocationSnapshot] | None = None
    _next_s: float = 0.0

    def __post_init__(self) -> None:
        self._executor = Executor(self.slurm, 1)

    def poll(self) -> None:
        """Read the last snapshot, and request the next when it is time; poll the agents."""
        if self._query is not None and self._query.done():
            query, self._query = self._query, None
            try:
                self.snapshot, self.silent = query.result(), False
            except Exception:  # of Slurm, or of its output: the next query follows in any case
                self.silent = True
        now = time.monotonic()
        if self._query is None and now >= self._next_s:
            self._next_s = now + POLL_S
            self._query = self._executor.ask(self._take_snapshot)
        self.meters.poll()
        self.clocks.poll()

    def close(self) -> bool:
        """End the agents, wait for a query under way; return whether steps of agents remain."""
        ran = [self.meters.close(), self.clocks.close()]
        self._executor.close()
        return any(ran)

    @property
    def unfit(self) -> frozenset[str]:
        """Its nodes that cannot be used now, or that jobs were lost on."""
        unfit = frozenset[str]() if self.snapshot is None else self.snapshot.unfit
        return unfit | self.suspects

    def _take_snapshot(self) -> AllocationSnapshot:
        if not self.slurm.ping():
            raise SlurmError("the controller does not answer", Meaning.UNREACHABLE)
        try:
            details = self.slurm.job(self.number)
        except SlurmError as error:
            if error.meaning is Meaning.GONE:
                return AllocationSnapshot("gone", None, frozenset())
            raise
        if self.suspects:
            self.suspects.intersection_update(self._failing(sorted(self.suspects)))
        over = details.state if details.state in OVER else ""
        own = [node for node in self.slurm.nodes() if node.name in self.hosts]
        lost = {n.name for n in own if n.state in DEAD} | set(self.hosts).difference(details.hosts)
        unfit = lost | {n.name for n in own if n.state in UNFIT or not n.responds}
        return AllocationSnapshot(over, details.end_s, frozenset(unfit), frozenset(lost))

    def diagnose(self, name: str, hosts: Sequence[str]) -> str:
        """Return how the steps of a job lost their nodes or were cancelled, "" if they were not.

        It waits for the controller, so it is called on a thread.
        """
        until = time.monotonic() + PATIENCE_S
        while not self.slurm.ping():
            if time.monotonic() > until or self._executor.closing.wait(ASK_AGAIN_S):
                return ""
        try:
            details = self.slurm.job(self.number)
            if details.state in OVER:
                return f"its allocation {self.number} has ended ({details.state.lower()})"
            down = {node.name for node in self.slurm.nodes() if node.state in DEAD}
        except SlurmError as error:
            over = error.meaning is Meaning.GONE
            return f"its allocation {self.number} has ended" if over else ""
        # Slurm takes minutes to notice a dead node, and one that is silent may be back at once.
        held = set(details.hosts) - down
        lost = [host for host in hosts if host not in held] or self._failing(hosts)
        if lost:
            self.suspects.update(lost)
            return f"lost its nodes: {', '.join(lost)}"
        return "its step was cancelled" if self._cancelled(name) else ""

    def _failing(self, hosts: Sequence[str]) -> list[str]:
        """Return the nodes on which a step cannot be started."""
        return failing_nodes(self.slurm, self.number, hosts, self.probe_options)

    def _cancelled(self, name: str) -> bool:
        """Return whether another user or Slurm has cancelled a step of a job, by accounting."""
        time.sleep(ACCOUNTING_DELAY_S)  # it is a second or two late
        try:
            accounting = self.slurm.call(
                *["sacct", f"--jobs={self.number}", "--noheader", "--parsable2"],
                "--format=State,JobName",
            )
        except SlurmError:
            return False
        for line in accounting.out.splitlines():
            state, _, step = line.partition("|")
            cancelled = state.startswith(("CANCELLED", "NODE_FAIL"))
            if cancelled and is_part_of(step, name) and step not in self.killed:
                self.killed.add(step)  # it is reported once
                return True
        return False


@dataclass
class PilotClocks(NodeClocks):
    """Frequencies of a pilot's nodes, set and restored by an agent on every node."""

    held: Mapping[int, Allocation]
    _orders: dict[str, ClockOrders] = field(default_factory=dict)

    def orders(self, node: str) -> ClockOrders:
        """Return the frequencies of a node."""
        return self._orders.get(node, ClockOrders())

    def set(self, shares: Shares, highest_mhz: float | None) -> None:
        """Let the agents of the nodes set their frequencies."""
        by_host: dict[str, dict[str, float | None]] = {}
        for slot, share in shares.items():
            host, _, device = slot.partition("/")
            by_host.setdefault(host, {})[device] = share
        self._orders = {host: ClockOrders(own, highest_mhz or 0.0) for host, own in by_host.items()}
        for allocation in self.held.values():
            if self._orders and not allocation.clocks.started:
                allocation.clocks.start()


# --- nodes and scripts -----------------------------------------------------------------------


class PilotNodes(SlurmNodes):
    """The nodes of a pilot's allocations, agents on them, and job scripts as steps there.

    Attributes:
        first: the nodes on which scripts of an earlier daemon may run.
    """

    requeue_on_shutdown = True
    requeue_by_default = True
    first: Sequence[str] = ()

    def __init__(self, launcher: SlurmLauncher) -> None:
        self.launcher, self.executor = launcher, launcher.executor
        self.held: dict[int, Allocation] = {}
        self._starts: dict[str, int] = {}
        self._scripts: dict[str, ScriptStep] = {}
        launcher.clocks = PilotClocks(self.held)

    def open(self) -> None:
        """Start an agent on every node; end those of an earlier daemon."""
        for allocation in self.held.values():
            self.start_meters(allocation)

    def poll(self) -> None:
        """Poll all allocations and their agents."""
        for allocation in self.held.values():
            allocation.poll()

    def close(self) -> None:
        """End the agents and their steps."""
        ran = [number for number, held in list(self.held.items()) if held.close()]
        if ran:
            executor, name = self.executor, self.launcher.name(self._agent_name)
            executor.ask(lambda: end_steps(executor, ran, name, PROBE_S))

    def hold(self, number: int, hosts: tuple[str, ...]) -> Allocation:
        """Add an allocation, on whose nodes jobs may run."""
        launcher, env = self.launcher, plain_environment(self.executor.slurm.outer)

        def agents(arguments: Sequence[str]) -> AgentProcess:
            return AgentProcess(
                lambda command: launcher.start_agent(command, env, self._agent_name),
                lambda: self._agent_step(number, arguments),
                may_start=self.controller_answers,
                wait_s=MOST_WAIT_S,
            )

        self.held[number] = Allocation(
            self.executor.slurm,
            number,
            hosts,
            launcher.step_options(launcher.name("probe")),
            meters=agents(launcher.meters.arguments),
            clocks=agents(["--clocks"]),
        )
        return self.held[number]

    def start_meters(self, allocation: Allocation) -> None:
        """Read the meters of an allocation's nodes; end the agents of an earlier daemon."""
        if not self.launcher.meters.none:
            allocation.meters.start()
        slurm, number = self.executor.slurm, allocation.number
        prefix, own = self.launcher.name("meter-"), self.launcher.name(self._agent_name)

        def end_others() -> None:
            with contextlib.suppress(SlurmError):
                steps = slurm.steps(number)
                old = [step for step, name in steps if name.startswith(prefix) and name != own]
                if old:
                    slurm.end_steps(old)

        self.executor.ask(end_others)

    @property
    def _agent_name(self) -> str:
        return f"meter-{self.launcher.meter_token[:6]}"

    def _agent_step(self, number: int, arguments: Sequence[str]) -> list[str] | None:
        held = self.held[number]
        lost = frozenset() if held.snapshot is None else held.snapshot.lost
        hosts = [host for host in held.hosts if host not in lost]
        every_s = max(1.0, len(hosts) / READINGS_PER_S)
        options = self.launcher.step_options(self.launcher.name(self._agent_name))
        return agent_step(number, hosts, options, ["--every", f"{every_s:g}", *arguments])

    @property
    def current(self) -> bool:
        """Whether Slurm has no other allocations of this pilot than those."""
        return True

    def controller_answers(self) -> bool:
        """Return whether the controller has answered the last queries."""
        return not any(allocation.silent for allocation in self.held.values())

    def lost(self) -> frozenset[str]:
        """Return nodes that are down, or that Slurm has removed from their allocation."""
        snapshots = [held.snapshot for held in self.held.values()]
        return frozenset().union(*(own.lost for own in snapshots if own is not None))

    def allocations(self, job: str) -> list[int]:
        """Return all allocations: a job may have nodes of several."""
        return list(self.held)

    def allocation_of(self, job: str, host: str) -> int | None:
        """Return the allocation of a node, None if it has none."""
        return next((n for n, held in self.held.items() if host in held.hosts), None)

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall:
        """Return how a job has lost its nodes or allocations, or that its steps were cancelled."""
        queries: list[Future[str]] = []

        def answer() -> str | None:
            if not queries:
                if not self.current:
                    return None
                name = self.launcher.name(job)
                queries.append(self.executor.ask(lambda: self._diagnose(name, hosts)))
            if not queries[0].done():
                return None
            return "" if queries[0].exception() is not None else queries[0].result()

        return answer

    def _diagnose(self, name: str, hosts: Sequence[str]) -> str:
        lost = set(hosts)
        for allocation in list(self.held.values()):
            own = [host for host in hosts if host in allocation.hosts]
            lost.difference_update(own)
            if own and (reason := allocation.diagnose(name, own)):
                return reason
        return f"its allocation of {', '.join(sorted(lost))} has ended" if lost else ""

    def start(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once, on its first node; it waits while the controller is away."""
        launcher, begun = self.launcher, self._begun_file(job)
        status, slots = launcher.status_file(job), launch.nodes[0]
        if begun.exists():
            self._starts.pop(job, None)
        self._starts[job] = self._starts.get(job, 0) + 1
        if self._starts[job] > MOST_STARTS:
            raise LaunchError(f"its script could not be started, {MOST_STARTS} times")
        status.unlink(missing_ok=True)
        begun.unlink(missing_ok=True)
        command, env = self._step(job, launch)

        def begin() -> subprocess.Popen[bytes]:
            cores = cores_of(slots)
            return launcher.start(command, launch.cwd, env, launch.output, cores, launch.errors)

        diagnose = partial(self.diagnose_failure, job, hosts_of(slots))
        own = 0, None, status, begin, diagnose, self.controller_answers, begun
        return self._watched(job, ScriptStep(*own))

    def find(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None without a trace of it."""
        left = LocalLauncher.find_script(self.launcher, job, pid)
        if left is None:
            return None
        diagnose = partial(self.diagnose_failure, job, self.first)
        begun = self._begun_file(job)
        own = left.pid, None, left.status_file, None, diagnose
        return self._watched(job, ScriptStep(*own, begun_file=begun))

    def terminate(self, job: str, *, has_worlds: bool) -> None:
        """Ask a script to end if its job has no worlds; one that waits is not started."""
        if has_worlds:
            return
        script = self._scripts.get(job)
        if script is not None and not script.started:
            script.abandoned = True
            return
        self._signal_steps(self.launcher.name(job).__eq__, "TERM")

    def send_signal(self, job: str, name: str) -> None:
        """Send a signal to the steps of a job."""
        whole = self.launcher.name(job)
        self._signal_steps(lambda step: is_part_of(step, whole), name)

    def _signal_steps(self, is_own: Callable[[str], bool], name: str) -> None:
        slurm, allocations = self.executor.slurm, list(self.held)

        def signal_steps() -> None:
            with contextlib.suppress(SlurmError):  # a job that is to end is killed later anyway
                steps = [step for number in allocations for step in slurm.steps(number)]
                own = [step for step, step_name in steps if is_own(step_name)]
                if own:
                    slurm.call("scancel", f"--signal={name}", *own)

        self.executor.ask(signal_steps)

    def kill(self, job: str, launch: int | None) -> None:
        """Note that this daemon ends the steps itself."""
        for allocation in self.held.values():
            allocation.killed.add(self.launcher.name(job, launch))

    def _watched(self, job: str, script: ScriptStep) -> ScriptStep:
        self._scripts[job] = script
        self.launcher.watch_process(script)
        script.poll()
        return script

    def _begun_file(self, job: str) -> Path:
        return self.launcher.status_file(job).with_name("begun")

    def _step(self, job: str, launch: ScriptLaunch) -> tuple[list[str], dict[str, str]]:
        """Return the command and environment of the step that runs a job's script."""
        srun = shutil.which("srun")  # on the daemon's own PATH: the script's has another one first
        if srun is None:
            raise LaunchError("expected Slurm's srun on PATH, got none")
        launcher, outer = self.launcher, self.executor.slurm.outer
        site = {key: outer[key] for key in SITE_VARIABLES if key in outer}
        path, host = launch.env.get("PATH", os.defpath), hosts_of(launch.nodes[0])[0]
        env = {**site, **launch.env, **launcher.script_env(job, path)}
        number = self.allocation_of(job, host)
        if number is None:
            raise LaunchError(f"expected a node that is held, got {host}")
        # srun describes the allocation to its step; to the script, its job is the RMS's.
        own = [f"{key}={env[key]}" for key in JOB_VARIABLES if key in env]
        command = [
            *[srun, f"--jobid={number}", "--nodes=1", "--ntasks=1"],
            *["--input=none", f"--nodelist={host}", "--quiet"],
            *[*launcher.step_options(launcher.name(job)), "env", *own],
            *["/bin/sh", "-c", MARK_BEGUN, str(self._begun_file(job))],
            *launcher.script_command(launch),
        ]
        return command, inner_environment(env)


class OneAllocation(PilotNodes):
    """The nodes of the one allocation in which the daemon runs.

    Args:
        margin_s: time between the end of its jobs and its own.
    """

    def __init__(
        self, launcher: SlurmLauncher, number: int, hosts: tuple[str, ...], margin_s: float = 40.0
    ) -> None:
        super().__init__(launcher)
        self.first, self._margin_s = hosts[:1], margin_s
        self._allocation = self.hold(number, hosts)

    def reach(self, job: str, env: dict[str, str]) -> list[str]:
        """Return mpiexec's option; srun finds the allocation in the environment."""
        env["SLURM_JOB_ID"] = str(self._allocation.number)
        return ["-launcher", self.launcher.reach]

    def shutdown_reason(self) -> str:
        """Return that the allocation is over or ends soon."""
        number, snapshot = self._allocation.number, self._allocation.snapshot
        if snapshot is None:
            return ""
        if snapshot.over:
            return f"the allocation {number} has ended ({snapshot.over.lower()})"
        left_s = inf if snapshot.end_s is None else snapshot.end_s - time.time()
        if left_s <= self._margin_s:
            return f"the allocation {number} ends in {left_s:.0f} s"
        return ""

    def unavailable(self) -> frozenset[str] | None:
        """Return the allocation's nodes that are down, drained or silent."""
        return None if self._allocation.snapshot is None else self._allocation.unfit
