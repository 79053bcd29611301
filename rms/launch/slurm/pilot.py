"""The one allocation that a pilot was given: what Slurm knows of it, and what jobs there died of.

Its end (which may be changed), its nodes and how they are: asked for every few seconds on a thread.
Slurm notices a dead node only after minutes (``SlurmdTimeout``), but a step there fails at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from rms.launch.base import (
    LaunchError,
    ManagedProcess,
    PendingCall,
    ScriptLaunch,
    cores_of,
    hosts_of,
)
from rms.launch.local import agent_command
from rms.launch.processes import INSTANCE_VARIABLE
from rms.launch.slurm.commands import Executor, Meaning, Slurm, SlurmError
from rms.launch.slurm.launcher import (
    AllocationMeters,
    ScriptStep,
    SlurmLauncher,
    end_steps,
    is_part_of,
    step_on_each,
    until_done,
)
from rms.launch.slurm.output import OutputError
from rms.launch.slurm.site import UNFIT
from rms.power.frequency import Shares
from rms.wire.messages import ClockOrders

POLL_S = 3.0
"""Time between two snapshots of the allocation."""

PATIENCE_S = 90.0
"""How long the controller may be silent before a failure is not blamed on the nodes."""

ASK_AGAIN_S = 0.5
PROBE_S = 20.0
ACCOUNTING_DELAY_S = 2.0

OVER = (
    *("COMPLETED", "COMPLETING", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
)
DEAD = ("down", "fail", "failing", "error")


@dataclass(frozen=True)
class AllocationSnapshot:
    """What Slurm has reported of the allocation at one time.

    Attributes:
        over: how it has ended, "" while it has not.
        end_s: when its time is up, by the wall clock; None where there is no limit.
        unfit: its nodes that are not to be used now.
    """

    over: str
    end_s: float | None
    unfit: frozenset[str]


@dataclass
class Allocation:
    """The allocation, as it was seen last.

    Attributes:
        hosts: its nodes.
        probe_options: srun's for a step that only tries whether nodes answer.
        snapshot: what was seen last, None before that.
        suspects: nodes that jobs were lost on, until a step can be started there again.
        killed: names of steps that this daemon has killed itself.
    """

    slurm: Slurm
    number: int
    hosts: tuple[str, ...]
    probe_options: Sequence[str]
    snapshot: AllocationSnapshot | None = None
    suspects: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    silent: bool = False
    _asked: Future[AllocationSnapshot] | None = None
    _next_s: float = 0.0

    def __post_init__(self) -> None:
        self._executor = Executor(self.slurm, 1)

    def poll(self) -> None:
        """Take in an answer that has come; ask for the next when it is time."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self.snapshot, self.silent = asked.result(), False
            except Exception:  # of Slurm, or of what it prints: asked again in any case
                self.silent = True
        now = time.monotonic()
        if self._asked is None and now >= self._next_s:
            self._next_s = now + POLL_S
            self._asked = self._executor.ask(self._take_snapshot)

    def close(self) -> None:
        """Wait for the question that is under way."""
        self._executor.close()

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
        return AllocationSnapshot(over, details.end_s, self._unfit(details.hosts))

    def _unfit(self, held: Sequence[str]) -> frozenset[str]:
        unfit = {n.name for n in self.slurm.nodes() if n.state in UNFIT or not n.responds}
        return frozenset(unfit.intersection(self.hosts) | set(self.hosts).difference(held))

    # --- what a job died of ------------------------------------------------------------------

    def diagnose(self, name: str, hosts: Sequence[str]) -> str:
        """Return how the steps of a job lost their nodes or were cancelled, "" if they were not.

        To be called on a thread: it waits for the controller.
        """
        until = time.monotonic() + PATIENCE_S
        while not self.slurm.ping():
            if time.monotonic() > until or self._executor.closing.wait(ASK_AGAIN_S):
                return ""
        try:
            details = self.slurm.job(self.number)
            if details.state in OVER:
                return f"its allocation {self.number} is over ({details.state.lower()})"
            down = {node.name for node in self.slurm.nodes() if node.state in DEAD}
        except SlurmError as error:
            over = error.meaning is Meaning.GONE
            return f"its allocation {self.number} is over" if over else ""
        except OutputError:
            return ""
        # Slurm takes minutes to notice a dead node, and one that is silent may be back at once.
        held = set(details.hosts) - down
        lost = [host for host in hosts if host not in held] or self._failing(hosts)
        if lost:
            self.suspects.update(lost)
            return f"lost its nodes: {', '.join(lost)}"
        return "its step was cancelled" if self._cancelled(name) else ""

    def _failing(self, hosts: Sequence[str]) -> list[str]:
        """Return the nodes on which a step cannot be started."""
        try:
            step = step_on_each("srun", self.number, hosts, self.probe_options)
            self.slurm.call(*step, "true", deadline_s=PROBE_S)
        except SlurmError as error:
            if len(hosts) == 1:
                return list(hosts)
            named = set(re.findall(r"node (\S+?):", str(error))).intersection(hosts)
            return sorted(named) or [host for host in hosts if self._failing([host])]
        return []

    def _cancelled(self, name: str) -> bool:
        """Return whether somebody else has cancelled a step of a job, as far as accounting says."""
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


# FUSED rms.launch.slurm.pilot: An allocation that a pilot holds: what is known of it, and what runs on all its nodes.


@dataclass
class HeldAllocation:
    """One allocation of a pilot.

    Attributes:
        seen: what Slurm says of it, as it was asked last.
        meters, clocks: what reads meters on its nodes, and what sets their frequencies.
    """

    seen: Allocation
    meters: AllocationMeters
    clocks: AllocationMeters

    @property
    def number(self) -> int:
        """Its number in Slurm."""
        return self.seen.number

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its nodes."""
        return self.seen.hosts

    def poll(self) -> None:
        """Do what is due now."""
        self.seen.poll()
        self.meters.poll()
        self.clocks.poll()

    def narrow(self, hosts: tuple[str, ...]) -> None:
        """Go on with fewer nodes."""
        self.seen.hosts = self.meters.hosts = self.clocks.hosts = hosts

    def close(self) -> bool:
        """End what runs on its nodes; return whether there are steps of that yet."""
        ran = [self.meters.close(), self.clocks.close()]
        self.seen.close()
        return any(ran)


# FUSED rms.launch.slurm.pilot: Engine ``slurm-pilot``: jobs as steps of the one allocation that the daemon was given.
#
# Where a script or world dies without a record, it is diagnosed before its job counts as failed.

MOST_STARTS = 5

JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES")
"""What srun would set for a script's step, and the script is to have of the RMS."""

SITE_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
KEPT_VARIABLES = (*SITE_VARIABLES, "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
MARK_BEGUN = 'touch "$0"; exec "$@"'


@dataclass
class PilotLauncher(SlurmLauncher):
    """Runs jobs as steps of the one allocation that the daemon was given.

    Attributes:
        within: the allocation's number.
        hosts: its nodes.
        margin_s: how long before its end its jobs are told to end.
        environment: what the daemon's own commands get.
    """

    within: int = 0
    hosts: tuple[str, ...] = ()
    margin_s: float = 40.0
    environment: Mapping[str, str] = field(default_factory=dict)
    meter_token: str = field(default_factory=lambda: secrets.token_hex(16))
    _orders: dict[str, ClockOrders] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)
    _scripts: dict[str, ScriptStep] = field(default_factory=dict)

    requeue_on_shutdown = True
    requeue_by_default = True
    starts_steps = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: dict[int, HeldAllocation] = {}
        if self.within:
            self.hold(self.within, self.hosts)

    def hold(self, number: int, hosts: tuple[str, ...]) -> HeldAllocation:
        """Run jobs on the nodes of an allocation, too, from now on."""
        probe = self.step_options(self.name("probe"))
        given = number, hosts, self.step_options(self.name(self._meter_name))
        self._held[number] = HeldAllocation(
            Allocation(self.executor.slurm, number, hosts, probe),
            AllocationMeters(self._start_meter, *given, self.controller_answers, self.meters),
            AllocationMeters(
                self._start_meter,
                *given,
                self.controller_answers,
                agent=until_done(agent_command(["--clocks"])),
            ),
        )
        return self._held[number]

    def allocation(self, job: str) -> int:
        """Return the pilot's own job."""
        return self.within

    def holder(self, host: str) -> int:
        """Return the allocation that a node belongs to."""
        return self.within

    # --- what runs beside the jobs -----------------------------------------------------------

    def open(self) -> None:
        """Start a meter on every node; end those of a daemon that was killed."""
        for each in self._held.values():
            self._meter(each)

    def _meter(self, held: HeldAllocation) -> None:
        """Read the meters of an allocation's nodes; end those of a daemon that was killed."""
        if not self.meters.none:
            held.meters.start()
        own, prefix = self.name(self._meter_name), self.name("meter-")
        self.executor.ask(lambda: self._end_meters(held.number, prefix, own))

    def poll(self) -> None:
        """Look at the allocations, the meters and all processes when it is time."""
        super().poll()
        for each in self._held.values():
            each.poll()

    def close(self) -> None:
        """End the meters; wait for what was asked of Slurm."""
        ran = [each.number for each in list(self._held.values()) if each.close()]
        if ran:
            executor, name = self.executor, self.name(self._meter_name)
            executor.ask(lambda: end_steps(executor, ran, name, PROBE_S))
        self.executor.close()

    @property
    def _meter_name(self) -> str:
        return f"meter-{self.meter_token[:6]}"

    def meter_env(self) -> dict[str, str]:
        """Return the environment of the step that reads meters."""
        mark = f"{self.instance_id}:{self._meter_name}"
        return {**self.environment, INSTANCE_VARIABLE: mark}

    def _end_meters(self, number: int, prefix: str, own: str) -> None:
        slurm = self.executor.slurm
        with contextlib.suppress(SlurmError):
            steps = slurm.steps(number)
            old = [step for step, name in steps if name.startswith(prefix) and name != own]
            if old:
                slurm.end_steps(old)

    # --- frequencies -------------------------------------------------------------------------

    def frequency_refusal(self, slots: Sequence[str]) -> str:
        """Return why frequencies cannot be set: the nodes themselves tell, once they are to."""
        return ""

    def clock_orders(self, node: str) -> ClockOrders:
        """Return what a node is to be set to."""
        return self._orders.get(node, ClockOrders())

    def set_frequencies(self, shares: Shares, highest_mhz: float | None) -> None:
        """Let each node's own process set its frequencies."""
        by_host: dict[str, dict[str, float | None]] = {}
        for slot, share in shares.items():
            host, _, device = slot.partition("/")
            by_host.setdefault(host, {})[device] = share
        self._orders = {host: ClockOrders(own, highest_mhz or 0.0) for host, own in by_host.items()}
        for held in self._held.values():
            if self._orders and not held.clocks.started:
                held.clocks.start()

    # --- what is known -----------------------------------------------------------------------

    def controller_answers(self) -> bool:
        """Return whether the controller answered when it was asked last."""
        return not any(each.seen.silent for each in self._held.values())

    def shutdown_reason(self) -> str:
        """Return why the daemon has to end: its allocation does, or has."""
        seen = self._held[self.within].seen.snapshot
        if seen is None:
            return ""
        if seen.over:
            return f"the allocation {self.within} is over ({seen.over.lower()})"
        left_s = float("inf") if seen.end_s is None else seen.end_s - time.time()
        if left_s <= self.margin_s:
            return f"the allocation {self.within} ends in {left_s:.0f} s"
        return ""

    def unavailable(self) -> frozenset[str] | None:
        """Return the allocation's nodes that are down, drained or silent."""
        seen = self._held[self.within].seen
        return None if seen.snapshot is None else seen.snapshot.unfit | seen.suspects

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall:
        """Ask whether a job died of its nodes, or its steps were cancelled by a user."""
        name, diagnose = self.name(job), self._held[self.within].seen.diagnose
        asked = self.executor.ask(lambda: diagnose(name, hosts))
        return lambda: told(asked) if asked.done() else None

    # --- scripts -----------------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> ScriptStep:
        """Run a job script once, on its first node; it waits while the controller is away.

        Raises:
            LaunchError: it was tried too often, or there is no srun.
        """
        status, begun = self.status_file(job), self._begun_file(job)
        if begun.exists():
            self._starts.pop(job, None)
        self._starts[job] = self._starts.get(job, 0) + 1
        if self._starts[job] > MOST_STARTS:
            raise LaunchError(f"its script could not be started, {MOST_STARTS} times")
        status.unlink(missing_ok=True)
        begun.unlink(missing_ok=True)
        slots = launch.nodes[0]
        command, env = self._script_step(job, launch)

        def begin() -> subprocess.Popen[bytes]:
            cores = cores_of(slots)
            return self._start(command, launch.cwd, env, launch.output, cores, launch.errors)

        found = ScriptStep(
            0,
            None,
            status,
            begin,
            lambda: self.diagnose_failure(job, hosts_of(slots)),
            self.controller_answers,
            begun,
        )
        return self._polled_script(job, found)

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None where nothing is left of it."""
        left = super().find_script(job, pid)
        if left is None:
            return None
        found = ScriptStep(
            left.pid,
            None,
            left.status_file,
            None,
            lambda: self.diagnose_failure(job, self.hosts[:1]),
            begun_file=self._begun_file(job),
        )
        return self._polled_script(job, found)

    def _polled_script(self, job: str, script: ScriptStep) -> ScriptStep:
        """Return a script that is polled from now on."""
        self._scripts[job] = script
        self._polled.append(script)
        script.poll()
        return script

    def _begun_file(self, job: str) -> Path:
        return self.status_file(job).with_name("begun")

    def _script_step(self, job: str, launch: ScriptLaunch) -> tuple[list[str], dict[str, str]]:
        """Return the command and environment of the step that runs a job's script."""
        srun = shutil.which("srun")  # on the daemon's own PATH: the script's has another one first
        if srun is None:
            raise LaunchError("expected Slurm's srun on PATH, got none")
        site = {key: self.environment[key] for key in SITE_VARIABLES if key in self.environment}
        path, host = launch.env.get("PATH", os.defpath), hosts_of(launch.nodes[0])[0]
        env = {**site, **launch.env, **self.script_env(job, path)}
        # srun describes the allocation to its step; to the script, its job is the RMS's.
        own = [f"{key}={env[key]}" for key in JOB_VARIABLES if key in env]
        for key in [k for k in env if k.startswith("SLURM_") and k not in KEPT_VARIABLES]:
            del env[key]
        command = [
            *[srun, f"--jobid={self.holder(host)}", "--nodes=1", "--ntasks=1", "--input=none"],
            *[f"--nodelist={host}", "--quiet"],
            *[*self.step_options(self.name(job)), "env", *own],
            *["/bin/sh", "-c", MARK_BEGUN, str(self._begun_file(job))],
            *self.script_command(launch),
        ]
        return command, env

    # --- ending them -------------------------------------------------------------------------

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end, else its script, where it runs."""
        if worlds:
            super().terminate(job, worlds)
            return
        script = self._scripts.get(job)
        if script is not None and not script.started:
            script.abandoned = True
            return
        name, allocations = self.name(job), self.allocations(job)
        self.executor.ask(lambda: self._signal_step(allocations, name))

    def _signal_step(self, allocations: Sequence[int], name: str) -> None:
        slurm = self.executor.slurm
        with contextlib.suppress(SlurmError):  # it is killed later in any case
            steps = [each for number in allocations for each in slurm.steps(number)]
            found = [step for step, called in steps if called == name]
            if found:
                slurm.call("scancel", "--signal=TERM", *found)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job or launch at once, here and on its nodes."""
        for held in self._held.values():
            held.seen.killed.add(self.name(job, launch))
        super().kill(job, launch)


def told(asked: Future[str]) -> str:
    """Return a diagnosis, "" where none could be made."""
    return "" if asked.exception() is not None else asked.result()
