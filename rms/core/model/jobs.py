"""Jobs, nodes and power models: the view that a policy has of them.

Times are seconds on the engine's clock, which is part of the state: nothing here reads a clock. A
job's progress is the integral of its present rate, so a rate may change while it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NewType

import msgspec

from rms.core.model.contention import SharedNode
from rms.core.model.speedup import OperatingPoint, corrected
from rms.core.model.speedup import Speedup as Speedup

JobId = NewType("JobId", str)
"""As Slurm writes it: ``7``, ``7_3``."""

Node = NewType("Node", int)
"""Index of what is given to one job at a time: a node, or a slot where nodes are shared."""


def sort_key(job_id: str) -> tuple[int, int]:
    """Return what jobs are sorted by: number, then index in the array (-1 where it has none)."""
    number, _, index = job_id.partition("_")
    return int(number), int(index or -1)


class Mode(StrEnum):
    """What a job allows (Iserte & Rojek, section 3).

    Attributes:
        any_start: the job may start at another size than its preferred one.
        resizable: the job may be resized while it runs.
    """

    any_start: bool
    resizable: bool

    def __init__(self, value: str) -> None:
        # Plain attributes: asked for at every event.
        self.any_start = value in ("moldable", "flexible")
        self.resizable = value in ("malleable", "flexible")

    FIXED = "fixed"
    MOLDABLE = "moldable"
    MALLEABLE = "malleable"
    FLEXIBLE = "flexible"


class JobState(StrEnum):
    """Job states by Slurm's names."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class Dependency(msgspec.Struct, frozen=True):
    """A job, or all of an array, whose end a job waits for (:mod:`rms.core.rules.transition`).

    Attributes:
        kind: ``afterok``, ``afterany``, ``afternotok`` or ``aftercorr``.
        job: its id, or the array's.
    """

    kind: str
    job: str


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    """What was asked for.

    Attributes:
        nodes_min, nodes_max, preferred: sizes in nodes.
        speedup: run time against nodes, or None where nothing is known.
        limit_s: time limit, or None.
        assumed_s: run time for planning only, without a limit or known run time; None: unlimited.
        resize_every_s: running time from one resize point to the next; None where it has none.
        resize_parts: equal parts of its work; a resize point lies between two. None where that is
            not known.
        resize_price_s: time without progress that a resize costs it.
        array: name of the job array it belongs to, or None.
        array_limit: how many jobs of that array may run at once, or None.
        run_s: run time at the preferred size, where no speedup is stated (of a trace), or None.
        power_w: what the job adds to the idle power of its nodes while it runs, of all together
            and at any size, or None.
        profile: shares of ``power_w`` really drawn, as ``(share of the run time, share of power)``
            one after the other; empty for all of it all the time. Policies count with ``power_w``.
        bandwidth_gb_s: memory bandwidth that each process asks for on the fastest kind of
            processor, or None where that is not known (see :mod:`rms.core.model.contention`).
        expected_bandwidth_gb_s: what policies take it to be, None for the same.
        operating_points: time and power over frequency, rising; empty where that is not known.
        hold: it is held from its submission on, until a user releases it.
        wait_for_nodes: on a cluster with too few nodes it waits for a larger one.
        begin_s: when it may start at the earliest, or None.
        account: whose usage its nodes count as.
        after, after_any: what has to be over before it starts: all of them, or any.
        nodelist, exclude: names of the only nodes it may have, and of those that it may not.
        priority: waiting jobs with a higher priority start first, under every policy.
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
    run_s: float | None = None
    power_w: float | None = None
    profile: tuple[tuple[float, float], ...] = ()
    resize_parts: int | None = None
    bandwidth_gb_s: float | None = None
    expected_bandwidth_gb_s: float | None = None
    operating_points: tuple[OperatingPoint, ...] = ()
    hold: bool = False
    wait_for_nodes: bool = False
    begin_s: float | None = None
    after: tuple[Dependency, ...] = ()
    after_any: bool = False
    account: str = ""
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    priority: int = 0
    assumed_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes_min <= self.preferred <= self.nodes_max:
            raise ValueError(
                f"job {self.id}: expected 1 <= min <= preferred <= max nodes, got "
                f"{self.nodes_min}, {self.preferred}, {self.nodes_max}"
            )

    @property
    def planned_gb_s(self) -> float:
        """The memory bandwidth of a process that policies count with."""
        expected = self.expected_bandwidth_gb_s
        return (self.bandwidth_gb_s if expected is None else expected) or 0.0

    @property
    def resize_points_known(self) -> bool:
        """Whether it is known when it comes to resize points, as of a simulated job."""
        return self.resize_every_s is not None or self.resize_parts is not None

    def sizes(self) -> Sequence[int]:
        """Return the sizes the job may run at, rising."""
        speedup, whole = self.speedup, range(self.nodes_min, self.nodes_max + 1)
        if speedup is None or speedup.law is not None:
            return whole
        if speedup.interpolate:
            return range(max(whole.start, speedup.nodes[0]), min(whole.stop, speedup.nodes[-1] + 1))
        return tuple(n for n in speedup.nodes if n in whole)

    def time_s(self, n: int) -> float | None:
        """Return the run time of the whole job on ``n`` nodes, None where it is not known."""
        return self.run_s if self.speedup is None else self.speedup.time(n)

    def expected_s(self, n: int, *, exact: bool = False) -> float:
        """Return the expected run time: the limit, else the known time, else the assumed one.

        The limit is that of its preferred size: where a speedup is known it scales with that.

        Args:
            exact: what is known goes before the limit.
        """
        if self.limit_s is not None and not exact:
            if self.speedup is None or n == self.preferred:
                return self.limit_s
            return self.limit_s * self.speedup.time(n) / self.speedup.time(self.preferred)
        known = self.time_s(n)
        if known is not None:
            return known
        stated_s = self.assumed_s if self.limit_s is None else self.limit_s
        return inf if stated_s is None else stated_s

    @property
    def is_assumed(self) -> bool:
        """Whether :meth:`expected_s` has neither a limit nor a known run time to go by."""
        return self.limit_s is None and self.speedup is None and self.run_s is None

    @property
    def smallest(self) -> int:
        """The first of :meth:`sizes`."""
        speedup = self.speedup
        if speedup is None or speedup.law is not None:
            return self.nodes_min
        return self.sizes()[0]

    @property
    def smallest_start(self) -> int:
        """The fewest nodes on which the job may start."""
        return self.smallest if self.mode.any_start else self.preferred


LAW_SEEN_S = 30.0
"""How long a job without a table is to be seen at a size before that tells what nodes bring it: on
less, noise would decide whether it is ever widened."""


class Job(msgspec.Struct, gc=False):
    """One job as it is now.

    Attributes:
        number: its place in the order of submission, from 1.
        least: the fewest nodes on which it may start.
        nodes, size: the nodes it has, and their number; of jobs that are only counted, ``nodes``
            stays empty.
        requested_nodes, requested_size: what a resize under way will make of them, or None. Nodes
            that an expansion brings are held for the job from the request on.
        resize_begun: the job has stopped stepping for that resize.
        at_resize_point: it has resize points and does not rest after a resize: known beforehand of
            a simulated job, told by a real one.
        rests: it is to come to another resize point first, after a resize.
        refused_sizes: sizes to which it could not be brought; they are not requested again.
        end_s, expected_end_s: when it was over, or None; when, running, it is expected to be.
        pays_until_s: until when the next larger size saves more time than the resize costs.
        done, rate, since_s: share done at ``since_s``, and how much a second it does since then.
        resize_count, widened_s: how often it was resized so far, and when it was widened last.
        longest_s: how long it may hold nodes, by what it requests, on as few as it may have.
        callable: nodes above its least size, while it may be shrunk (of ``State.callable``).
        seen: of sizes at which it was seen to step, ``(steps, seconds that they took)``; None
            where it never was.
        speedup: what it is planned by: that of ``spec``, corrected by what was seen.
        above_w: what meters say it draws on each of its nodes above what is expected.
        no_wider_before_s: until when it is not widened, having been shrunk for a power cap.
        slowdown: how much longer than stated it is expected to run where it is.
        asked: the frequency it asks for on each of its nodes over the highest; empty for that.
        frequencies: what it has there, as a neighbour may ask for more.
        stretch: how much longer it runs at these than at the highest one.
        kept: a user chose its size: policies change it only for a job that waits, or a power cap.
        held_by_user: a user holds it (see :mod:`rms.core.rules.transition`).
    """

    spec: JobSpec
    number: int = 0
    least: int = 1
    state: JobState = JobState.PENDING
    nodes: tuple[Node, ...] = ()
    size: int = 0
    requested_nodes: tuple[Node, ...] | None = None
    requested_size: int | None = None
    resize_begun: bool = False
    at_resize_point: bool = False
    refused_sizes: frozenset[int] = frozenset()
    start_s: float | None = None
    end_s: float | None = None
    expected_end_s: float = inf
    pays_until_s: float = inf
    done: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    resize_count: int = 0
    widened_s: float = -inf
    callable: int = 0
    longest_s: float = inf
    seen: Mapping[int, tuple[int, float]] | None = None
    speedup: Speedup | None = None
    above_w: float = 0.0
    no_wider_before_s: float = -inf
    slowdown: float = 1.0
    asked: tuple[float, ...] = ()
    frequencies: tuple[float, ...] = ()
    stretch: float = 1.0
    held_by_user: bool = False
    kept: bool = False
    rests: bool = False

    def __post_init__(self) -> None:
        if self.speedup is None:
            self.speedup = self.spec.speedup

    __hash__ = object.__hash__

    @property
    def held(self) -> tuple[Node, ...]:
        """Every node this job has or is about to have."""
        if self.requested_nodes is None:
            return self.nodes
        return tuple(sorted({*self.nodes, *self.requested_nodes}))

    @property
    def busy_nodes(self) -> tuple[Node, ...]:
        """The nodes that it keeps busy: those of both worlds while it is being resized."""
        return self.held if self.resize_begun else self.nodes

    @property
    def gain(self) -> int:
        """How many nodes a resize under way brings, held for the job already."""
        if self.requested_size is None:
            return 0
        if self.requested_nodes is None:
            return max(0, self.requested_size - self.size)
        return len(set(self.requested_nodes).difference(self.nodes))

    @property
    def loss(self) -> int:
        """How many nodes a resize under way will free."""
        return 0 if self.requested_size is None else self.size + self.gain - self.requested_size

    @property
    def resizable_now(self) -> bool:
        """Whether a resize may be asked of it: running, allowed, none in flight."""
        return (
            self.at_resize_point
            and self.requested_size is None
            and self.state is JobState.RUNNING
            and self.spec.mode.resizable
        )

    def forget_resize(self) -> None:
        """Drop the resize under way."""
        self.requested_nodes, self.requested_size, self.resize_begun = None, None, False

    def next_larger(self, size: int) -> int | None:
        """Return the next size above ``size`` that it was not refused, None if there is none."""
        sizes = self.spec.sizes()
        at = bisect_right(sizes, size)
        while at < len(sizes) and sizes[at] in self.refused_sizes:
            at += 1
        return sizes[at] if at < len(sizes) else None

    def time_s(self, n: int) -> float | None:
        """Return the run time of the whole job on ``n`` nodes, None where it is not known."""
        return self.spec.run_s if self.speedup is None else self.speedup.time(n)

    def stepped(self, steps: int, span_s: float, step: int, total: int, now: float) -> None:
        """Take in that it made ``steps`` in ``span_s`` at its size and is at ``step`` of all."""
        seen = self.seen or {}
        before, so_far_s = seen.get(self.size, (0, 0.0))
        self.seen = {**seen, self.size: (before + steps, so_far_s + span_s / self.stretch)}
        least_s = LAW_SEEN_S if self.spec.speedup is None else 0.0
        seen_s = {
            n: total * seconds / made
            for n, (made, seconds) in self.seen.items()
            if seconds >= least_s
        }
        self.speedup = corrected(self.spec.speedup, self.spec.sizes(), seen_s)
        self.done, self.since_s = min(1.0, step / total), now
        self.rate = steps / span_s / total

    def progress_to(self, now: float) -> None:
        """Bring ``done`` up to date before the rate changes."""
        if self.rate:
            self.done = min(1.0, self.done + self.rate * (now - self.since_s))
        self.since_s = now

    def remaining_share(self, now: float) -> float:
        """Return the share of the job that is still to be done."""
        return 1.0 - min(1.0, self.done + self.rate * (now - self.since_s))

    def remaining_s(self, n: int, now: float) -> float | None:
        """Return the time to its end if it ran on ``n`` nodes from now, None if unknown."""
        whole_s = self.time_s(n)
        return None if whole_s is None else self.remaining_share(now) * whole_s * self.stretch

    def set_rate(self) -> None:
        """Let it do in a second what its size and frequencies bring."""
        whole = self.spec.run_s if self.speedup is None else self.speedup.time(self.size)
        self.rate = 0.0 if whole is None else (1.0 / (whole * self.stretch) if whole > 0 else inf)


class NodePower(msgspec.Struct, frozen=True):
    """Power model of a node: idle, and static + dynamic x efficiency while a job runs.

    Iserte & Rojek, equations 1 and 2: P(n) = (P_S + P_Dn) n with P_Dn proportional to Eff(n).

    Attributes:
        off_w: power while it is off.
        boot_s, boot_j: time and energy from being powered on until it is up. Powering it off takes
            no time.
    """

    idle_w: float = 0.0
    static_w: float = 0.0
    dynamic_w: float = 0.0
    off_w: float = 0.0
    boot_s: float = 0.0
    boot_j: float = 0.0

    @property
    def boot_w(self) -> float:
        """Mean power while it boots; 0 where booting takes no time."""
        return self.boot_j / self.boot_s if self.boot_s > 0.0 else 0.0

    def off_pays(self, gap_s: float) -> bool:
        """Return whether a node that is not needed for ``gap_s`` saves energy by being off.

        Chauhan et al., figure 11: the gap is longer than being off and on again takes, and idling
        for so long costs more than that.
        """
        if gap_s == inf:
            return self.idle_w > self.off_w
        off_j = self.off_w * (gap_s - self.boot_s) + self.boot_j
        return gap_s > self.boot_s and self.idle_w * gap_s > off_j

    def slot_w(self, spec: JobSpec, size: int, slots: int = 1) -> float:
        """Return what a job on ``size`` slots adds on each to the idle power of a host of slots."""
        if spec.power_w is not None:
            return spec.power_w / size
        return max(0.0, self.busy_w(spec, size) - self.idle_w) / slots

    def slot_peak_w(self, spec: JobSpec, size: int, slots: int = 1) -> float:
        """Return what a job counts with on each of its slots under a power cap.

        As :meth:`slot_w`, or the highest power of its profile where that is more.
        """
        mean_w = self.slot_w(spec, size, slots)
        if spec.power_w is not None or spec.speedup is None:
            return mean_w
        return max(mean_w, spec.speedup.peak(spec.speedup.known(size)) / slots)

    def busy_w(self, spec: JobSpec, nodes: int) -> float:
        """Return the power of each of a job's nodes: as stated, by its profile, or the model's."""
        if spec.power_w is not None:
            return self.idle_w + spec.power_w / nodes
        if spec.speedup is None:
            return self.static_w + self.dynamic_w
        nodes = spec.speedup.known(nodes)  # of two worlds that overlap there may be more
        stated = spec.speedup.power(nodes)
        if stated is not None:
            return stated
        return self.static_w + self.dynamic_w * spec.speedup.efficiency(nodes)


class Site(msgspec.Struct, frozen=True):
    """What never changes of a cluster, for those who decide.

    Attributes:
        nodes: how many there are: nodes, or slots where nodes are shared.
        power: power model of each host; empty where nothing is known.
        host: the host (power domain) of each slot, from 0; empty where each node is its own; of
            ``shared`` nodes it follows from them.
        rack: the rack of each host; empty where all are in one.
        power_cap_w: the power cap to begin with, or None.
        shared: nodes whose processes share bandwidth; their processors, in order, are the slots.
        levels: frequency (GHz) and voltage (V) a processor can be set to, rising; empty for none.
        names: of the nodes, or slots; empty where no job names nodes.
    """

    nodes: int
    power: tuple[NodePower, ...] = ()
    host: tuple[int, ...] = ()
    rack: tuple[int, ...] = ()
    power_cap_w: float | None = None
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.shared:
            widths = [sum(kind.number for kind in node.processors) for node in self.shared]
            host = tuple(at for at, width in enumerate(widths) for _ in range(width))
            if self.host not in ((), host):
                raise ValueError("expected the hosts of the slots to be the nodes that are shared")
            msgspec.structs.force_setattr(self, "host", host)
        if self.host and len(self.host) != self.nodes:
            raise ValueError(f"expected a host of each of {self.nodes}, got {len(self.host)}")

    @property
    def contended(self) -> bool:
        """Whether processes slow one another down, or are of kinds of unlike speed."""
        return any(node.contended for node in self.shared)

    @property
    def models(self) -> tuple[NodePower, ...]:
        """A power model of each host; where none is stated they draw nothing."""
        return self.power or (NodePower(),) * self.hosts

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return max(self.host) + 1 if self.host else self.nodes
