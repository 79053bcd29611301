"""Scripts and worlds on nodes of Slurm: steps of an allocation, started and ended from here.

Each world is an mpiexec on the daemon's machine which reaches the nodes through one srun, so each
is one step, named after the job and its launch. While mpiexec and srun run, its ranks do; where
they had to be killed, the step is ended by its name and asked after until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from rms.launch.base import LaunchError, ManagedProcess, WorldLaunch, hosts_of
from rms.launch.local import LocalLauncher
from rms.launch.processes import has_live_children
from rms.launch.slurm.commands import Slurm, SlurmError
from rms.launch.slurm.executor import Executor

GONE_S = 60.0
AGAIN_S = 0.5
HUNG_S = 3.0
"""How long mpiexec may be without what it reaches the nodes by before it never will."""

MOST_BOOTS = 5
KEPT = ("SLURM_CONF", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass(eq=False)
class World(ManagedProcess):
    """A mpiexec. Where its srun fails, which never happens later, it would wait for good.

    Attributes:
        boot: starts it anew, None where a failure is to be told.
        may_boot: whether that can work now.
    """

    boot: Callable[[], ManagedProcess] | None = None
    may_boot: Callable[[], bool] = bool
    given_up: bool = False
    _boots: int = 1
    _looked_s: float = 0.0
    _alone_s: float | None = None

    def status(self) -> int | None:
        """Return the exit status, None while it runs or waits for being started anew."""
        if self.process is None and self.boot is not None:
            return 1 if self.given_up else self._again(self.boot)
        code = super().status()
        if code is None and self.process is not None and self._hangs():
            self.process.kill()
            self.process.wait()
            if self.boot is None or self._boots >= MOST_BOOTS:
                return 1
            self.process, self.pid = None, 0
        return code

    @property
    def over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self.process is not None and self.process.poll() is not None

    def _hangs(self) -> bool:
        """Return whether mpiexec has had no process to reach nodes by for a while."""
        now = time.monotonic()
        if now < self._looked_s + AGAIN_S:
            return False
        self._looked_s = now
        children = has_live_children(self.pid)
        if children is None:
            return False
        if children:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = now
        return self._alone_s is not None and now > self._alone_s + HUNG_S

    def _again(self, boot: Callable[[], ManagedProcess]) -> int | None:
        if not self.may_boot():
            return None
        self._boots, self._alone_s = self._boots + 1, None
        try:
            child = boot()
        except LaunchError:
            return 1
        self.pid, self.process = child.pid, child.process
        return None


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

    shared_filesystem = True

    def answers(self) -> bool:
        """Return whether Slurm answered when it was asked last."""
        return True

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world; a job's first is started anew where Slurm could not be asked for it."""
        boot = partial(super().boot_world, job, launch)
        child = boot()
        again = None if launch.resize else boot
        world = World(child.pid, child.process, None, again, self.answers)
        self._worlds = {name: w for name, w in self._worlds.items() if not w.over}
        self._worlds[self.name(job, launch.launch)] = world
        return world

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end; one that never began is over."""
        for world in worlds:
            if isinstance(world, World) and not world.pid:
                world.given_up = True
        super().terminate(job, worlds)

    def allocation(self, job: str) -> int | None:
        """Return the Slurm job that an RMS job's nodes belong to, None while it has none."""
        raise NotImplementedError

    def name(self, job: str, launch: int | None = None) -> str:
        """Return what a job's script is called in Slurm, or one of its launches."""
        return f"rms.{self.instance_id[:8]}.{job}" + ("" if launch is None else f".{launch}")

    def completion_file(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes, having looked there anew."""
        found = super().completion_file(job, step)
        look_anew(found.parent)
        return found

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for one rank on each slot, and set what srun is to know."""
        for key in [key for key in env if key.startswith("SLURM_") and key not in KEPT]:
            del env[key]  # what an outer allocation or step was told says nothing here
        env["SLURM_JOB_ID"] = str(self.allocation(job))
        if self.reach == "slurm":
            env["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(self.step_options(self.name(job, launch)))
        per_host = [(h, len(list(each))) for h, each in groupby(slots, lambda s: hosts_of([s])[0])]
        return ["-launcher", self.reach, "-hosts", ",".join(f"{h}:{n}" for h, n in per_host)]

    def step_options(self, name: str) -> list[str]:
        """Return what every step is started with: a name, and leave to share its nodes."""
        return ["--overlap", f"--job-name={name}", *(["--cpu-bind=none"] if self.binds else [])]

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return what is left here of a launch or a job; 0 for a step that is being ended."""
        here = super().members(job, launch)
        for name, ending in list(self._ending.items()):
            if ending.done():
                del self._ending[name]
            elif job is None or _of(name, self.name(job, launch)):
                here.append(0)
        return here

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job or launch at once, here and on its nodes."""
        name, allocation = self.name(job, launch), self.allocation(job)
        asked = name in self._ending
        for known in [known for known in self._worlds if _of(known, name)]:
            self._worlds.pop(known).given_up = True
        super().kill(job, launch)
        if allocation is not None and not asked:
            self._ending[name] = self.executor.ask(
                lambda: end_steps(self.executor.slurm, allocation, name, GONE_S)
            )


def end_steps(slurm: Slurm, allocation: int, name: str, patience_s: float) -> None:
    """End all steps of an allocation that are called so, and wait until they are gone."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        try:
            left = [step for step, called in slurm.steps(allocation) if _of(called, name)]
            if not left:
                return
            slurm.end_steps(left)
        except SlurmError:
            pass  # the controller is away; the step's own srun is dead in any case
        time.sleep(AGAIN_S)


def look_anew(folder: Path) -> None:
    """Open a folder: over NFS, a file that was not there before may else stay unseen for long."""
    with contextlib.suppress(OSError):
        os.scandir(folder).close()


def _of(called: str, name: str) -> bool:
    return called == name or called.startswith(f"{name}.")
