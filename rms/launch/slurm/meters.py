"""Meters of power on the nodes that jobs hold: steps of those jobs, ended by Slurm with them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rms.launch.base import LaunchError

EVERY_S = 2.0
SOON_S = 5.0
AGAIN_S = 600.0
NAME = "meter"
"""What their processes are marked with, instead of a job."""


@dataclass(frozen=True)
class _Meter:
    job: int
    hosts: Sequence[str]
    begun_s: float
    process: subprocess.Popen[bytes]


@dataclass
class Meters:
    """One srun for each time that a job comes to hold nodes.

    Attributes:
        start: starts a command on the daemon's machine.
        options: srun's for every step.
        without: nodes that have nothing to read, and until when they are not asked again.
    """

    start: Callable[[Sequence[str]], subprocess.Popen[bytes]]
    options: Sequence[str]
    without: dict[str, float] = field(default_factory=dict)
    _running: list[_Meter] = field(default_factory=list)

    def on(self, number: int, hosts: Iterable[str]) -> None:
        """Have the power of these nodes of a running job of Slurm's read."""
        now, srun = time.monotonic(), shutil.which("srun")
        chosen = sorted(host for host in hosts if self.without.get(host, 0.0) < now)
        if not chosen or srun is None:
            return
        command = [
            *[srun, f"--jobid={number}", f"--nodes={len(chosen)}", f"--ntasks={len(chosen)}"],
            *["--ntasks-per-node=1", f"--nodelist={','.join(chosen)}", "--input=none", "--quiet"],
            *[*self.options, sys.executable, "-m", "rms.power.agent", "--every", f"{EVERY_S:g}"],
        ]
        with contextlib.suppress(LaunchError):
            self._running.append(_Meter(number, chosen, now, self.start(command)))

    def watch(self, held: set[int]) -> None:
        """Take in which have ended: where a job is still ``held``, because nothing can be read."""
        now = time.monotonic()
        for meter in self._running:
            # One that reads ends with 0 too, when its job does; mostly that is later.
            if meter.process.poll() == 0 and meter.job in held and now < meter.begun_s + SOON_S:
                self.without.update(dict.fromkeys(meter.hosts, now + AGAIN_S))
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
