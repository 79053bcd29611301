"""What both engines of Slurm share: scripts and worlds within allocations, started from here."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path

from rms.launch.base import ManagedProcess, WorldLaunch, hosts_of
from rms.launch.local import LocalLauncher
from rms.launch.processes import alive, program_name, send_signal
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.steps import ScriptStep, World, end_steps, is_part_of, refresh_folder
from rms.power.clocks import Shares

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
