"""The one allocation that a pilot was given: what Slurm knows of it, and what jobs there died of.

Its end (which may be changed), its nodes and how they are: asked for every few seconds on a thread.
Slurm notices a dead node only after minutes (``SlurmdTimeout``), but a step there fails at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rms.launch.slurm.commands import Meaning, Slurm, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.output import OutputError
from rms.launch.slurm.site import UNFIT
from rms.launch.slurm.steps import is_part_of, step_on_each

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
