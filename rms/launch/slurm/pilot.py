"""Engine ``slurm-pilot``: jobs as steps of the one allocation that the daemon was given.

Where a script or world dies without a record, it is diagnosed before its job counts as failed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
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
from rms.launch.processes import INSTANCE_VARIABLE
from rms.launch.slurm.allocation import PROBE_S, Allocation
from rms.launch.slurm.commands import SlurmError
from rms.launch.slurm.held import HeldAllocation
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.meters import AllocationMeters, until_done
from rms.launch.slurm.steps import ScriptStep, end_steps
from rms.power.clocks import Shares
from rms.wire.messages import ClockOrders

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
                agent=until_done([sys.executable, "-P", "-m", "rms.power.clock_agent"]),
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
