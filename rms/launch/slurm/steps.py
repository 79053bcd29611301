"""Scripts and worlds as steps of an allocation: started by srun and mpiexec, ended by name.

Each world is an mpiexec on the daemon's machine which reaches the nodes through one srun, so each
is one step, named after the job and its launch. While mpiexec and srun run, its ranks do; where
they had to be killed, the step is ended by its name and asked after until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rms.launch.base import NODES_LOST, LaunchError, ManagedProcess, PendingCall
from rms.launch.processes import alive, has_live_children
from rms.launch.slurm.commands import SlurmError
from rms.launch.slurm.executor import Executor

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
