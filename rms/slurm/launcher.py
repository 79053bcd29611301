"""Scripts and worlds on nodes of Slurm: steps of an allocation, started and ended from here.

Each world is an mpiexec on the daemon's machine which reaches the nodes through one srun, so each
is one step, named after the job and its launch. While mpiexec and srun run, its ranks do; where
they had to be killed, the step is ended by its name and asked after until it is gone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby

from rms.local import LaunchError, LocalLauncher, hosts_of
from rms.slurm.cli import Slurm, SlurmError
from rms.slurm.desk import Desk

GONE_S = 60.0
AGAIN_S = 0.5
TOLD = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES")
KEPT = ("SLURM_CONF", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass
class SlurmLauncher(LocalLauncher):
    """Starts worlds within allocations.

    Attributes:
        desk: for commands that take their time.
        reach: how mpiexec starts its proxies on nodes (its option ``-launcher``).
        binds: whether steps of this site are bound to CPUs unless told otherwise.
    """

    desk: Desk
    reach: str = "slurm"
    binds: bool = False
    _ending: dict[str, Future[None]] = field(default_factory=dict)

    def allocation(self, job: str) -> int | None:
        """Return the Slurm job that an RMS job's nodes belong to, None while it has none."""
        raise NotImplementedError

    def name(self, job: str, launch: int | None = None) -> str:
        """Return what a job's script is called in Slurm, or one of its launches."""
        return f"rms.{self.mark[:8]}.{job}" + ("" if launch is None else f".{launch}")

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return mpiexec's options for one rank on each slot, and set what srun is to know."""
        for key in [key for key in env if key.startswith("SLURM_") and key not in KEPT]:
            del env[key]  # what an outer allocation or step was told says nothing here
        env["SLURM_JOB_ID"] = str(self.allocation(job))
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
        super().kill(job, launch)
        if allocation is not None and name not in self._ending:
            self._ending[name] = self.desk.ask(
                lambda: end_steps(self.desk.slurm, allocation, name, GONE_S)
            )


@dataclass
class PilotLauncher(SlurmLauncher):
    """Runs jobs as steps of the one allocation that the daemon was given."""

    within: int = 0

    def allocation(self, job: str) -> int:
        """Return the pilot's own job."""
        return self.within

    def script_prefix(self, job: str, slots: Sequence[str], env: dict[str, str]) -> list[str]:
        """Return the step that runs a job's script on its first node."""
        srun = shutil.which("srun")  # on the daemon's own PATH: the script's has another one first
        if srun is None:
            raise LaunchError("expected Slurm's srun on PATH, got none")
        # srun tells its step of the allocation; to the script, its job is the RMS's.
        told = [f"{key}={env[key]}" for key in TOLD if key in env]
        for key in [key for key in env if key.startswith("SLURM_") and key not in KEPT]:
            del env[key]
        return [
            *[srun, f"--jobid={self.within}", "--nodes=1", "--ntasks=1", "--input=none"],
            *[f"--nodelist={hosts_of(slots)[0]}", "--quiet", *self.step_options(self.name(job))],
            *["env", *told],
        ]


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


def _of(called: str, name: str) -> bool:
    return called == name or called.startswith(f"{name}.")
