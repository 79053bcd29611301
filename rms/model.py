"""Jobs, nodes and what is known of them: the view a policy sees.

Times are seconds on the engine's clock, which is part of the state: nothing here reads a clock.
A job's progress is the integral of its present rate, so a rate may change while it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

JobId = NewType("JobId", str)
"""As Slurm writes it: ``7``, ``7_3``."""

Node = NewType("Node", int)
"""Index of a node in its cluster."""


class Mode(StrEnum):
    """What a job allows (Iserte & Rojek, section 3)."""

    FIXED = "fixed"
    MOLDABLE = "moldable"
    MALLEABLE = "malleable"
    FLEXIBLE = "flexible"

    @property
    def any_start(self) -> bool:
        """Whether the job may start at another size than its preferred one."""
        return self in (Mode.MOLDABLE, Mode.FLEXIBLE)

    @property
    def resizable(self) -> bool:
        """Whether the job may be resized while it runs."""
        return self in (Mode.MALLEABLE, Mode.FLEXIBLE)


class JobState(StrEnum):
    """Job states by Slurm's names."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"


@dataclass(frozen=True)
class Speedup:
    """Run time and power of a job against its number of nodes.

    Attributes:
        nodes: sizes with known figures, rising.
        time_s: run time of the whole job at each.
        power_w_per_node: power of each node while it runs, or empty.
        law: ``(t1_s, tc_s)`` of t(n) = tc + t1 / n (Iserte & Rojek, section 3), or None.
        interpolate: whether sizes between the known ones may be used, linear in 1/n.
    """

    nodes: tuple[int, ...] = ()
    time_s: tuple[float, ...] = ()
    power_w_per_node: tuple[float, ...] = ()
    law: tuple[float, float] | None = None
    interpolate: bool = False

    def allows(self, n: int) -> bool:
        """Return whether a job may run on ``n`` nodes."""
        if self.law is not None:
            return n >= 1
        return n in self.nodes or (self.interpolate and self.nodes[0] <= n <= self.nodes[-1])

    def time(self, n: int) -> float:
        """Return the run time of the whole job on ``n`` nodes."""
        if self.law is not None:
            return self.law[1] + self.law[0] / n
        return self._at(self.time_s, n)

    def power(self, n: int) -> float | None:
        """Return the power of each of ``n`` nodes, None where it is not stated."""
        return self._at(self.power_w_per_node, n) if self.power_w_per_node else None

    def efficiency(self, n: int) -> float:
        """Return Eff(n) = t(1) / (n t(n)) (Iserte & Rojek, section 3)."""
        smallest = 1 if self.law is not None else self.nodes[0]
        return smallest * self.time(smallest) / (n * self.time(n))

    def _at(self, values: tuple[float, ...], n: int) -> float:
        at = bisect_left(self.nodes, n)
        if at < len(self.nodes) and self.nodes[at] == n:
            return values[at]
        if not self.interpolate or not 0 < at < len(self.nodes):
            raise ValueError(f"expected a size of {self.nodes}, got {n}")
        low, high = self.nodes[at - 1], self.nodes[at]
        share = (1 / n - 1 / low) / (1 / high - 1 / low)
        return values[at - 1] + share * (values[at] - values[at - 1])


@dataclass(frozen=True)
class JobSpec:
    """What was asked for.

    Attributes:
        nodes_min, nodes_max, preferred: sizes in nodes.
        speedup: run time against nodes, or None where nothing is known.
        limit_s: time limit, or None.
        resize_every_s: running time from one resize point to the next; None where it has none.
        resize_price_s: time without progress that a resize costs it.
        array: name of the job array it belongs to, or None.
        array_limit: how many jobs of that array may run at once, or None.
    """

    id: JobId
    submit_s: float
    nodes_min: int
    nodes_max: int
    preferred: int
    mode: Mode
    speedup: Speedup | None = None
    limit_s: float | None = None
    resize_every_s: float | None = None
    resize_price_s: float = 0.0
    array: str | None = None
    array_limit: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes_min <= self.preferred <= self.nodes_max:
            raise ValueError(
                f"job {self.id}: expected 1 <= min <= preferred <= max nodes, got "
                f"{self.nodes_min}, {self.preferred}, {self.nodes_max}"
            )

    def sizes(self) -> list[int]:
        """Return the sizes the job may run at, rising."""
        return [
            n
            for n in range(self.nodes_min, self.nodes_max + 1)
            if self.speedup is None or self.speedup.allows(n)
        ]


@dataclass(slots=True)
class Job:
    """One job as it is now.

    ``nodes`` is observed; ``requested`` is what a resize under way will make of it. Nodes that
    an expansion is to bring are held for the job from the request on. ``answers`` says that it
    has resize points: known beforehand of a simulated job, heard from a live one. ``refused`` are
    sizes to which it could not be brought; they are not asked for again.
    """

    spec: JobSpec
    state: JobState = JobState.PENDING
    nodes: tuple[Node, ...] = ()
    requested: tuple[Node, ...] | None = None
    moving: bool = False
    answers: bool = False
    refused: set[int] = field(default_factory=set)
    start_s: float | None = None
    end_s: float | None = None
    done: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    resizes: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def held(self) -> tuple[Node, ...]:
        """Every node this job has or is about to have."""
        if self.requested is None:
            return self.nodes
        return tuple(sorted({*self.nodes, *self.requested}))

    @property
    def resizable_now(self) -> bool:
        """Whether a resize may be asked of it: running, allowed, none in flight."""
        return (
            self.state is JobState.RUNNING
            and self.spec.mode.resizable
            and self.requested is None
            and self.answers
        )

    def progress_to(self, now: float) -> None:
        """Bring ``done`` up to date before the rate changes."""
        self.done = min(1.0, self.done + self.rate * (now - self.since_s))
        self.since_s = now

    def remaining_s(self, n: int, now: float) -> float | None:
        """Return the time to its end if it ran on ``n`` nodes from now, None if unknown."""
        if self.spec.speedup is None:
            return None
        left = 1.0 - min(1.0, self.done + self.rate * (now - self.since_s))
        return left * self.spec.speedup.time(n)


@dataclass(slots=True)
class State:
    """Everything a policy may look at. Only :mod:`rms.transition` changes it."""

    nodes: int
    now_s: float = 0.0
    pending: dict[JobId, Job] = field(default_factory=dict)
    running: dict[JobId, Job] = field(default_factory=dict)
    ended: dict[JobId, Job] = field(default_factory=dict)
    free: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [Node(n) for n in range(self.nodes)]

    @property
    def coming(self) -> int:
        """Nodes that shrinks under way are about to free."""
        return sum(
            len(job.nodes) - len(job.requested)
            for job in self.running.values()
            if job.requested is not None and len(job.requested) < len(job.nodes)
        )

    def take(self, nodes: tuple[Node, ...]) -> None:
        """Remove nodes from the free ones."""
        gone = set(nodes)
        self.free = [node for node in self.free if node not in gone]

    def give_back(self, nodes: tuple[Node, ...]) -> None:
        """Return nodes to the free ones, which stay sorted."""
        for node in nodes:
            insort(self.free, node)
