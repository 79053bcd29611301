"""Engine ``slurm-pilot``: jobs as steps of the one allocation that the daemon was given.

What Slurm knows of the allocation (its end, which may be changed, its nodes and how they are) is
asked for every few seconds on a thread. A script or world that dies without a word is looked into
before its job is called failed: Slurm notices a dead node only after minutes (``SlurmdTimeout``),
but a step there fails at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from rms.launch.base import (
    NODES_LOST,
    LaunchError,
    ManagedProcess,
    PendingCall,
    ScriptLaunch,
    cores_of,
    hosts_of,
)
from rms.launch.processes import INSTANCE_VARIABLE, alive
from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.output import OutputError
from rms.launch.slurm.site import UNFIT
from rms.launch.slurm.steps import AGAIN_S, SlurmLauncher, end_steps, look_anew

LOOK_S = 3.0
"""Time between looks at the allocation."""

PATIENCE_S = 90.0
"""How long an answer of the controller is waited for before a death is nobody's fault."""

LATE_S = 10.0
"""How long a script may be over before its status must be seen in a shared folder."""

PROBE_S = 20.0
METER_AGAIN_S = 30.0
MOST_STARTS = 5
READINGS_PER_S = 50.0
"""Readings of power that the daemon takes from all nodes together."""

OVER = (
    *("COMPLETED", "COMPLETING", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
)
DEAD = ("down", "fail", "failing", "error")
TOLD = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES")
CONFIGURED = ("SLURM_CONF", "SLURM_CONF_SERVER")
KEPT = (*CONFIGURED, "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
BEGIN = 'touch "$0"; exec "$@"'


@dataclass(frozen=True)
class Seen:
    """One look at the allocation.

    Attributes:
        over: how it has ended, "" while it has not.
        end_s: when its time is up, by the wall clock; None where there is no limit.
        away: its nodes that are not to be used now.
    """

    over: str
    end_s: float | None
    away: frozenset[str]


@dataclass
class Script(ManagedProcess):
    """A job's script, which srun runs on a node.

    Attributes:
        begin: starts it, None once it was; it waits while the controller is away.
        look_into: asks why srun has ended although the script has left no status.
        begun: where it leaves a mark as soon as it runs.
    """

    begin: Callable[[], subprocess.Popen[bytes]] | None = None
    look_into: Callable[[], PendingCall] | None = None
    may_begin: Callable[[], bool] = bool
    begun: Path | None = None
    given_up: bool = False
    _answer: PendingCall | None = None
    _over_s: float = 0.0
    _looked_s: float = 0.0

    @property
    def started(self) -> bool:  # type: ignore[override]
        """Whether srun was started."""
        return self.begin is None

    def status(self) -> int | None:
        """Return the script's own status; why there is none, ``end_state`` and ``words`` say."""
        if self.begin is not None:
            return self._try()
        now = time.monotonic()
        if alive(self.pid) if self.process is None else self.process.poll() is None:
            if now < self._looked_s + LOOK_S:
                return None
            self._looked_s, known = now, self._known()
            self._over_s = 0.0 if known is None else self._over_s or now
            return known if now > self._over_s + LATE_S else None  # srun lingers
        known = self._known()
        if known is not None:
            return known
        if self._answer is None:
            self._over_s = time.monotonic()
            self._answer = (lambda: "") if self.look_into is None else self.look_into()
        answer = self._answer()
        if answer is None or time.monotonic() < self._over_s + LATE_S:
            return None
        known = self._known()
        if known is not None:
            return known
        if not answer and self.begun is not None and not self.begun.exists():
            answer = "its script could not be started"
        self.end_state, self.end_reason = (NODES_LOST, answer) if answer else ("", "")
        return 1 if self.process is None else self.process.poll() or 1

    def _known(self) -> int | None:
        if self.status_file is not None:
            look_anew(self.status_file.parent)
            with contextlib.suppress(OSError, ValueError):
                return int(self.status_file.read_text())
        return None

    def _try(self) -> int | None:
        if self.given_up:
            self.end_state = NODES_LOST
            return 1
        if self.begin is not None and self.may_begin():
            self.process, self.begin = self.begin(), None
            self.pid = self.process.pid
        return None


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
    seen: Seen | None = None
    suspects: set[str] = field(default_factory=set)
    _eye: Executor = field(init=False)
    _asked: Future[Seen] | None = None
    _next_s: float = 0.0
    _silent: bool = False
    _begins: dict[str, int] = field(default_factory=dict)
    _scripts: dict[str, Script] = field(default_factory=dict)
    _killed: set[str] = field(default_factory=set)
    _meter: subprocess.Popen[bytes] | None = None
    _meter_s: float = 0.0

    requeue_on_shutdown = True
    requeue_by_default = True
    shared_filesystem = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._eye = Executor(self.executor.slurm, 1)

    def allocation(self, job: str) -> int:
        """Return the pilot's own job."""
        return self.within

    # --- the allocation ----------------------------------------------------------------------

    def _poll(self) -> None:
        """Take in a look that is done; ask for the next when it is time."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self.seen, self._silent = asked.result(), False
            except (SlurmError, OutputError):
                self._silent = True
        now = time.monotonic()
        if self._asked is None and now >= self._next_s:
            self._next_s = now + LOOK_S
            self._asked = self._eye.ask(self._look)

    def _look(self) -> Seen:
        slurm = self.executor.slurm
        if not slurm.answers():
            raise SlurmError("the controller does not answer", Meaning.UNREACHABLE)
        try:
            details = slurm.job(self.within)
        except SlurmError as error:
            if error.meaning is Meaning.GONE:
                return Seen("gone", None, frozenset())
            raise
        if self.suspects:
            self.suspects.intersection_update(self._failing(sorted(self.suspects)))
        over = details.state if details.state in OVER else ""
        return Seen(over, details.end_s, self._unfit(details.hosts))

    def _unfit(self, held: Sequence[str]) -> frozenset[str]:
        unfit = {n.name for n in self.executor.slurm.nodes() if n.state in UNFIT or not n.responds}
        return frozenset(unfit.intersection(self.hosts) | set(self.hosts).difference(held))

    def shutdown_reason(self) -> str:
        """Return why the daemon has to end: its allocation does, or has."""
        self._poll()
        self._watch_meter()
        seen = self.seen
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
        self._poll()
        return None if self.seen is None else self.seen.away | self.suspects

    def answers(self) -> bool:
        """Return whether the controller answered when it was asked last."""
        return not self._silent

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall:
        """Ask whether a job died of its nodes, or its steps were cancelled by somebody."""
        return _words(self.executor.ask(lambda: self._diagnose(job, hosts)))

    def _diagnose(self, job: str, hosts: Sequence[str]) -> str:
        slurm, until = self.executor.slurm, time.monotonic() + PATIENCE_S
        while not slurm.answers():
            if time.monotonic() > until:
                return ""
            time.sleep(AGAIN_S)
        try:
            details = slurm.job(self.within)
            if details.state in OVER:
                return f"its allocation {self.within} is over ({details.state.lower()})"
            down = {node.name for node in slurm.nodes() if node.state in DEAD}
        except SlurmError as error:
            over = error.meaning is Meaning.GONE
            return f"its allocation {self.within} is over" if over else ""
        except OutputError:
            return ""
        # Slurm takes minutes to notice a dead node, and one that is silent may be back at once.
        held = set(details.hosts) - down
        lost = [host for host in hosts if host not in held] or self._failing(hosts)
        if lost:
            self.suspects.update(lost)
            return f"lost its nodes: {', '.join(lost)}"
        return "its step was cancelled" if self._cancelled(job) else ""

    def _failing(self, hosts: Sequence[str]) -> list[str]:
        """Return the nodes on which a step cannot be started."""
        n = str(len(hosts))
        try:
            self.executor.slurm.call(
                *["srun", f"--jobid={self.within}", f"--nodes={n}", f"--ntasks={n}"],
                *["--ntasks-per-node=1", f"--nodelist={','.join(hosts)}", "--input=none"],
                *[*self.step_options(self.name("probe")), "true"],
                deadline_s=PROBE_S,
            )
        except SlurmError as error:
            if len(hosts) == 1:
                return list(hosts)
            named = set(re.findall(r"node (\S+?):", str(error))).intersection(hosts)
            return sorted(named) or [host for host in hosts if self._failing([host])]
        return []

    def _cancelled(self, job: str) -> bool:
        """Return whether somebody else has cancelled a step of a job, as far as accounting says."""
        time.sleep(2.0)  # it is a second or two late
        try:
            said = self.executor.slurm.call(
                *["sacct", f"--jobs={self.within}", "--noheader", "--parsable2"],
                "--format=State,JobName",
            )
        except SlurmError:
            return False
        own = self.name(job)
        for line in said.out.splitlines():
            state, _, name = line.partition("|")
            mine = name == own or name.startswith(f"{own}.")
            if mine and name not in self._killed and state.startswith(("CANCELLED", "NODE_FAIL")):
                self._killed.add(name)  # it is told once
                return True
        return False

    # --- scripts -----------------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> Script:
        """Run a job script once, on its first node; it waits while the controller is away.

        Raises:
            LaunchError: it was tried too often, or there is no srun.
        """
        status, begun = self.status_file(job), self._begun_file(job)
        if begun.exists():
            self._begins.pop(job, None)
        self._begins[job] = self._begins.get(job, 0) + 1
        if self._begins[job] > MOST_STARTS:
            raise LaunchError(f"its script could not be started, {MOST_STARTS} times")
        status.unlink(missing_ok=True)
        begun.unlink(missing_ok=True)
        site = {key: self.environment[key] for key in CONFIGURED if key in self.environment}
        path = launch.env.get("PATH", os.defpath)
        own = {**site, **launch.env, **self.script_env(job, path)}
        prefix = self.script_prefix(job, launch.nodes[0], own)
        run = self.script_command(launch.script)
        command = [*prefix, "/bin/sh", "-c", BEGIN, str(begun), *run]

        def begin() -> subprocess.Popen[bytes]:
            return self._start(command, launch.cwd, own, launch.output, cores_of(launch.nodes[0]))

        found = Script(
            0,
            None,
            status,
            begin,
            lambda: self.diagnose_failure(job, hosts_of(launch.nodes[0])),
            self.answers,
            begun,
        )
        self._scripts[job] = found
        found.status()
        return found

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None where nothing is left of it."""
        found = super().find_script(job, pid)
        if found is None:
            return None
        return Script(
            found.pid,
            None,
            found.status_file,
            None,
            lambda: self.diagnose_failure(job, self.hosts[:1]),
            begun=self._begun_file(job),
        )

    def _begun_file(self, job: str) -> Path:
        return self.status_file(job).with_name("begun")

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

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end, else its script, where it runs."""
        if worlds:
            super().terminate(job, worlds)
            return
        script = self._scripts.get(job)
        if script is not None and not script.started:
            script.given_up = True
            return
        self.executor.ask(lambda: self._tell(self.name(job)))

    def _tell(self, name: str) -> None:
        slurm = self.executor.slurm
        with contextlib.suppress(SlurmError):  # it is killed later in any case
            found = [step for step, called in slurm.steps(self.within) if called == name]
            if found:
                slurm.call("scancel", "--signal=TERM", *found)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job or launch at once, here and on its nodes."""
        self._killed.add(self.name(job, launch))
        super().kill(job, launch)

    # --- power -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start a meter on every node."""
        self._start_meter()
        own, prefix = self.name(self._meter_name), self.name("meter-")
        self.executor.ask(lambda: self._end_meters(prefix, own))

    @property
    def _meter_name(self) -> str:
        return f"meter-{self.meter_token[:6]}"

    def _end_meters(self, prefix: str, own: str) -> None:
        """End the meters of a daemon that was killed."""
        slurm = self.executor.slurm
        with contextlib.suppress(SlurmError):
            steps = slurm.steps(self.within)
            old = [step for step, name in steps if name.startswith(prefix) and name != own]
            if old:
                slurm.end_steps(old)

    def _start_meter(self) -> None:
        srun, nodes = shutil.which("srun"), len(self.hosts)
        if srun is None:
            return
        env = {**self.environment, INSTANCE_VARIABLE: f"{self.instance_id}:{self._meter_name}"}
        env |= {"RMS_SERVER": self.server, "RMS_TOKEN": self.meter_token}
        every_s = max(1.0, nodes / READINGS_PER_S)
        command = [
            *[srun, f"--jobid={self.within}", f"--nodes={nodes}", f"--ntasks={nodes}"],
            *["--ntasks-per-node=1", f"--nodelist={','.join(self.hosts)}", "--input=none"],
            *["--quiet", *self.step_options(self.name(self._meter_name))],
            *[sys.executable, "-m", "rms.power.agent", "--every", f"{every_s:g}"],
        ]
        self._meter_s = time.monotonic()
        with contextlib.suppress(LaunchError):
            log = self.state / "meter.log"
            self._meter = self._start(command, str(self.state), env, log, [])

    def _watch_meter(self) -> None:
        """Start the meters again where they died; they end well where there is nothing to read."""
        if self._meter is None or self._meter.poll() in (None, 0):
            return
        if time.monotonic() > self._meter_s + METER_AGAIN_S and self.answers():
            self._start_meter()

    def close(self) -> None:
        """End the meters; wait for what was asked of Slurm."""
        if self._meter is not None and self._meter.poll() is None:
            self._meter.kill()
            self._meter.wait()
            slurm, name = self.executor.slurm, self.name(self._meter_name)
            self.executor.ask(lambda: end_steps(slurm, self.within, name, PROBE_S))
        self._eye.close()
        self.executor.close()


def _words(asked: Future[str]) -> PendingCall:
    """Return an errand of an answer in words."""
    return lambda: asked.result() if asked.done() else None
