"""Meters of power on nodes of Slurm: steps that run :mod:`rms.power.agent` on each node."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rms.launch.agent import agent_command
from rms.launch.base import LaunchError
from rms.launch.slurm.steps import step_on_each
from rms.power.choice import AUTO, MeterChoice

StartMeter = Callable[[Sequence[str]], subprocess.Popen[bytes]]
"""Starts a command on the daemon's machine, with what the agents need in its environment."""

UNTIL_DONE = 'until "$@"; do [ $? -gt 128 ] || exit 1; sleep 5; done'
"""Shell around an agent: starts it again where it was killed."""

EVERY_S = 2.0
"""Time between readings of a job's nodes."""

READINGS_PER_S = 50.0
"""Readings of power that the daemon takes from all nodes of an allocation together."""

NOTHING_TO_READ_S = 5.0
"""A meter that ends well so soon, while its job goes on, found nothing to read."""

FORGET_S = 600.0
"""How long such nodes are not asked again."""

RESTART_S = 30.0
"""Time between two starts of an allocation's meters that died."""


@dataclass(frozen=True)
class _JobMeter:
    job: int
    hosts: Sequence[str]
    begun_s: float
    process: subprocess.Popen[bytes]


@dataclass
class JobMeters:
    """Meters in the jobs of Slurm's: one step for each time that a job comes to hold nodes.

    Slurm ends them with their jobs.

    Attributes:
        launch: starts a step.
        options: srun's for every step.
        meters: which are read.
        unreadable: nodes that have nothing to read, and until when they are not asked again.
    """

    launch: StartMeter
    options: Sequence[str]
    meters: MeterChoice = AUTO
    unreadable: dict[str, float] = field(default_factory=dict)
    _running: list[_JobMeter] = field(default_factory=list)

    def start(self, number: int, hosts: Iterable[str]) -> None:
        """Have the power of these nodes of a running job of Slurm's read."""
        now = time.monotonic()
        chosen = sorted(host for host in hosts if self.unreadable.get(host, 0.0) < now)
        step = _step(number, chosen, self.options) if chosen else None
        if step is not None:
            command = [*step, *_agent(self.meters, EVERY_S)]
            with contextlib.suppress(LaunchError):
                self._running.append(_JobMeter(number, chosen, now, self.launch(command)))

    def watch(self, held: set[int]) -> None:
        """Take in which have ended: where a job is still ``held``, because nothing can be read."""
        now = time.monotonic()
        for meter in self._running:
            # One that reads ends with 0 too, when its job does; mostly that is later.
            early = meter.job in held and now < meter.begun_s + NOTHING_TO_READ_S
            if meter.process.poll() == 0 and early:
                self.unreadable.update(dict.fromkeys(meter.hosts, now + FORGET_S))
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


@dataclass
class AllocationMeters:
    """Meters on all nodes of one allocation: one step, started again where it dies.

    Attributes:
        launch: starts the step.
        options: srun's for it.
        may_start: whether that can work now.
        meters: which are read.
        agent: what is run on each node instead of what reads meters.
    """

    launch: StartMeter
    allocation: int
    hosts: Sequence[str]
    options: Sequence[str]
    may_start: Callable[[], bool]
    meters: MeterChoice = AUTO
    agent: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0

    @property
    def started(self) -> bool:
        """Whether they were started."""
        return self._process is not None

    def start(self) -> None:
        """Start a meter on every node, if there is an srun."""
        every_s = max(1.0, len(self.hosts) / READINGS_PER_S)
        step = _step(self.allocation, self.hosts, self.options)
        if step is not None:
            self._started_s = time.monotonic()
            with contextlib.suppress(LaunchError):
                command = self.agent or _agent(self.meters, every_s)
                self._process = self.launch([*step, *command])

    def poll(self) -> None:
        """Start them again where they died; they end well where there is nothing to read."""
        if self._process is None or self._process.poll() in (None, 0):
            return
        if time.monotonic() > self._started_s + RESTART_S and self.may_start():
            self.start()

    def close(self) -> bool:
        """End their srun; return whether it ran, so that its step has to be ended too."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        return True


def _step(allocation: int, hosts: Sequence[str], options: Sequence[str]) -> list[str] | None:
    """Return the command of a step on nodes, but for what it runs; None where there is no srun."""
    srun = shutil.which("srun")
    if srun is None:
        return None
    return step_on_each(srun, allocation, hosts, ["--quiet", *options])


def _agent(meters: MeterChoice, every_s: float) -> list[str]:
    """Return what such a step runs on each node."""
    return until_done(agent_command(["--every", f"{every_s:g}", *meters.arguments]))


def until_done(command: Sequence[str]) -> list[str]:
    """Return what runs a command, and again where it was killed."""
    return ["/bin/sh", "-c", UNTIL_DONE, "meter", *command]
