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
"""Index of a unit that one job has at a time: a node, or a slot where nodes are shared."""


def sort_key(job_id: str) -> tuple[int, int]:
    """Return the sort key of a job: number, then index in the array (-1 where it has none)."""
    number, _, index = job_id.partition("_")
    return int(number), int(index or -1)


class Mode(StrEnum):
    """The changes of size that a job allows (Iserte & Rojek, section 3).

    Attributes:
        any_start: the job may start at another size than its preferred one.
        resizable: the job may be resized while it runs.
    """

    any_start: bool
    resizable: bool

    def __init__(self, value: str) -> None:
        # Plain attributes: read at every event.
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
    SUSPENDED = "SUSPENDED"
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
    """A job as it was submitted.

    Attributes:
        nodes_min, nodes_max, preferred: sizes in nodes.
        speedup: run time against nodes, or None.
        limit_s: time limit, or None.
        deadline_s: the time by which the user wants it to be over, or None. Until then a policy may
            put it off to hours in which electricity is cheaper.
        assumed_s: run time for planning only, without a limit or run time; None: unlimited.
        resize_every_s: running time from one resize point to the next, or None.
        resize_parts: equal parts of its work, with resize points in between, or None.
        resize_price_s: time without progress that a resize costs it.
        array: name of the job array it belongs to, or None.
        array_limit: how many jobs of that array may run at once, or None.
        run_s: run time at the preferred size, where no speedup is stated (of a trace), or None.
        power_w: power that the job adds to the idle power of its nodes while it runs, of all
            together and at any size, or None.
        profile: shares of ``power_w`` really drawn, as ``(share of the run time, share of power)``
            one after the other; empty for all of it all the time. Policies count with ``power_w``.
        bandwidth_gb_s: memory bandwidth that a process demands on the fastest kind of processor,
            or None (see :mod:`rms.core.model.contention`).
        expected_bandwidth_gb_s: the bandwidth that policies count with, None for the same.
        operating_points: time and power over frequency, rising; empty where there are none.
        hold: it is held from its submission on, until a user releases it.
        wait_for_nodes: on a cluster with too few nodes it waits for a larger one.
        begin_s: the earliest time of its start, or None.
        account: the account whose usage includes its nodes.
        after, after_any: jobs that have to be over before it starts: all of them, or any.
        nodelist, exclude: names of the only nodes it may have, and of nodes that it may not have.
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
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes_min <= self.preferred <= self.nodes_max:
            raise ValueError(
                f"job {self.id}: expected 1 <= min <= preferred <= max nodes, got "
                f"{self.nodes_min}, {self.preferred}, {self.nodes_max}"
            )

    @property
    def planned_gb_s(self) -> float:
        """The memory bandwidth of a process for policies."""
        expected = self.expected_bandwidth_gb_s
        return (self.bandwidth_gb_s if expected is None else expected) or 0.0

    @property
    def resize_points_known(self) -> bool:
        """Whether the times of its resize points are stated, as of a simulated job."""
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
        """Return the run time of the whole job on ``n`` nodes, or None."""
        return self.run_s if self.speedup is None else self.speedup.time(n)

    def expected_s(self, n: int, *, exact: bool = False) -> float:
        """Return the expected run time: the limit, else the stated time, else the assumed one.

        The limit is that of its preferred size; it scales with the speedup where one is stated.

        Args:
            exact: the stated time goes before the limit.
        """
        if self.limit_s is not None and not exact:
            if self.speedup is None or n == self.preferred:
                return self.limit_s
            return self.limit_s * self.speedup.time(n) / self.speedup.time(self.preferred)
        time_s = self.time_s(n)
        if time_s is not None:
            return time_s
        stated_s = self.assumed_s if self.limit_s is None else self.limit_s
        return inf if stated_s is None else stated_s

    @property
    def is_assumed(self) -> bool:
        """Whether :meth:`expected_s` has neither a limit nor a stated run time to go by."""
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


LAW_MEASURED_S = 30.0
"""Least time of a job without a table at a size before its steps there correct its speedup: on
less, noise would decide whether it is ever widened."""


OVERDUE_S = 5.0
"""First extension of an estimated end that a job runs past, doubled for further ones; also the
least time from the last event to the pass that takes an extension into account."""


class Job(msgspec.Struct, gc=False):
    """One job as it is now.

    Attributes:
        number: its place in the order of submission, from 1.
        least: the fewest nodes on which it may start.
        nodes, size: the nodes it has, and their number; where nodes are counted, ``nodes`` stays
            empty.
        requested_nodes, requested_size: the same after the resize under way, or None. Nodes that
            an expansion brings are held for the job from the request on.
        resize_begun: the job has stopped stepping for that resize.
        at_resize_point: it has resize points and does not rest after a resize. Stated by a
            simulated job, reported by a real one.
        rests: it has to come to another resize point first, after a resize.
        refused_sizes: sizes to which a resize failed; they are not requested again.
        end_s, expected_end_s: the time at which it was over, or None; the expected one.
        pays_until_s: until then the next larger size saves more time than the resize costs.
        done, rate, since_s: share done at ``since_s``, and the share done per second since then.
        resize_count, widened_s: number of its resizes, and the time of the last expansion.
        longest_s: the longest time it may hold nodes, by its request, at its least size.
        callable: nodes above its least size, while it may be shrunk (of ``State.callable``).
        measured_steps: ``(steps, seconds they took)`` by size; None before the first.
        speedup: for planning: the speedup of ``spec``, corrected by ``measured_steps``.
        above_w: metered power of one of its nodes above the expected power.
        no_wider_before_s: until then it is not widened, since a power cap has shrunk it.
        slowdown: expected run time where it is over the stated one.
        requested_frequencies: by node, over the highest; empty for the highest.
        frequencies: its present ones there, as a neighbour may request more.
        stretch: run time at these over that at the highest one.
        kept: a user chose its size: policies change it only for a waiting job or a power cap.
        held_by_user: a user holds it (see :mod:`rms.core.rules.transition`).
        suspended_s: time that it was suspended before; its time limit does not count it.
        suspended_at_s: the time of its suspension, or None. Its nodes are idle meanwhile.
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
    measured_steps: Mapping[int, tuple[int, float]] | None = None
    speedup: Speedup | None = None
    above_w: float = 0.0
    no_wider_before_s: float = -inf
    slowdown: float = 1.0
    requested_frequencies: tuple[float, ...] = ()
    frequencies: tuple[float, ...] = ()
    stretch: float = 1.0
    held_by_user: bool = False
    kept: bool = False
    rests: bool = False
    suspended_s: float = 0.0
    suspended_at_s: float | None = None

    def __post_init__(self) -> None:
        if self.speedup is None:
            self.speedup = self.spec.speedup

    __hash__ = object.__hash__

    @property
    def held(self) -> tuple[Node, ...]:
        """All nodes that the job has or is about to have."""
        if self.requested_nodes is None:
            return self.nodes
        return tuple(sorted({*self.nodes, *self.requested_nodes}))

    @property
    def busy_nodes(self) -> tuple[Node, ...]:
        """The nodes that it keeps busy: of both worlds during a resize, none while suspended."""
        if self.suspended_at_s is not None:
            return ()
        return self.held if self.resize_begun else self.nodes

    @property
    def busy_size(self) -> int:
        """The number of these nodes, also where nodes are counted."""
        if self.suspended_at_s is not None:
            return 0
        return self.size + self.gain if self.resize_begun else self.size

    @property
    def gain(self) -> int:
        """The number of nodes that a resize under way adds, held for the job already."""
        if self.requested_size is None:
            return 0
        if self.requested_nodes is None:
            return max(0, self.requested_size - self.size)
        return len(set(self.requested_nodes).difference(self.nodes))

    @property
    def loss(self) -> int:
        """The number of nodes that a resize under way will free."""
        return 0 if self.requested_size is None else self.size + self.gain - self.requested_size

    @property
    def resizable_now(self) -> bool:
        """Whether a resize may be requested of it: running, allowed, none in flight."""
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
        """Return the next size above ``size`` that was not refused, or None."""
        sizes = self.spec.sizes()
        at = bisect_right(sizes, size)
        while at < len(sizes) and sizes[at] in self.refused_sizes:
            at += 1
        return sizes[at] if at < len(sizes) else None

    def time_s(self, n: int) -> float | None:
        """Return the run time of the whole job on ``n`` nodes, or None."""
        return self.spec.run_s if self.speedup is None else self.speedup.time(n)

    def stepped(self, steps: int, span_s: float, step: int, total: int, now: float) -> None:
        """Enter ``steps`` made in ``span_s`` at its size; it is at ``step`` of ``total`` now."""
        measured = dict(self.measured_steps or {})
        before, so_far_s = measured.get(self.size, (0, 0.0))
        measured[self.size] = before + steps, so_far_s + span_s / self.stretch
        self.measured_steps = measured
        least_s = LAW_MEASURED_S if self.spec.speedup is None else 0.0
        run_s = {n: total * s / made for n, (made, s) in measured.items() if s >= least_s}
        self.speedup = corrected(self.spec.speedup, self.spec.sizes(), run_s)
        self.done, self.since_s = min(1.0, step / total), now
        self.rate = steps / span_s / total

    def progress_to(self, now: float) -> None:
        """Bring ``done`` up to date before the rate changes."""
        if self.rate:
            self.done = min(1.0, self.done + self.rate * (now - self.since_s))
        self.since_s = now

    def remaining_share(self, now: float) -> float:
        """Return the share of the job that is left."""
        return 1.0 - min(1.0, self.done + self.rate * (now - self.since_s))

    def remaining_s(self, n: int, now: float) -> float | None:
        """Return the time to its end if it ran on ``n`` nodes from now, or None."""
        whole_s = self.time_s(n)
        return None if whole_s is None else self.remaining_share(now) * whole_s * self.stretch

    @property
    def limit_end_s(self) -> float:
        """The end of a running job by its time limit, inf for none and while it is suspended."""
        limit_s = self.spec.limit_s
        if limit_s is None or self.start_s is None or self.suspended_at_s is not None:
            return inf
        return self.start_s + self.suspended_s + limit_s

    def expected_end(self, now: float, *, exact: bool) -> tuple[float, bool]:
        """Return the expected end of a running job, and whether it is an estimate.

        From its reported progress, but not after its limit; without progress from its limit, its
        stated run time or the assumed run time.

        Args:
            exact: the stated run time goes before the limit.
        """
        if self.suspended_at_s is not None:
            return inf, False
        spec, limit_s = self.spec, self.spec.limit_s
        since = now if self.start_s is None else self.start_s + self.suspended_s
        if self.measured_steps and self.done > 0.0:
            # The mean rate, until there is a rate at the present size.
            rate = self.rate or self.done / max(now - since, 1e-9)
            begun = self.since_s if self.rate else now
            end = _after(begun + (1.0 - self.done) / rate, OVERDUE_S, now)
            return end if limit_s is None else min(end, since + limit_s), True
        if limit_s is not None and not exact:
            if (spec.speedup is None or not self.resize_count) and self.stretch == 1.0:
                span_s = limit_s if spec.speedup is None else spec.expected_s(self.size)
                return since + span_s * self.slowdown, False
            left = self.remaining_share(now) * self.stretch
            return now + left * spec.expected_s(self.size), False
        left_s = self.remaining_s(self.size, now)
        if left_s is not None:
            return now + left_s * self.slowdown, False
        if spec.is_assumed and spec.assumed_s is not None:
            return _after(since + spec.assumed_s, spec.assumed_s, now), True
        return inf, False

    def set_rate(self) -> None:
        """Set its rate by its size and frequencies."""
        whole = self.time_s(self.size)
        self.rate = 0.0 if whole is None else (1.0 / (whole * self.stretch) if whole > 0 else inf)


def _after(end_s: float, span_s: float, now_s: float) -> float:
    """Extend an end by a doubling span until it is in the future."""
    while end_s <= now_s:
        end_s, span_s = end_s + span_s, 2.0 * span_s
    return end_s


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

        Chauhan et al., figure 11: the gap is longer than a boot, and idling in it costs more than
        being off and booting.
        """
        if gap_s == inf:
            return self.idle_w > self.off_w
        off_j = self.off_w * (gap_s - self.boot_s) + self.boot_j
        return gap_s > self.boot_s and self.idle_w * gap_s > off_j

    def slot_w(self, spec: JobSpec, size: int, slots: int = 1) -> float:
        """Return the power that a job on ``size`` slots adds to the host's idle power by slot."""
        if spec.power_w is not None:
            return spec.power_w / size
        return max(0.0, self.busy_w(spec, size) - self.idle_w) / slots

    def slot_peak_w(self, spec: JobSpec, size: int, slots: int = 1) -> float:
        """Return :meth:`slot_w`, or the highest power of the job's profile if that is more."""
        mean_w = self.slot_w(spec, size, slots)
        if spec.power_w is not None or spec.speedup is None:
            return mean_w
        return max(mean_w, spec.speedup.peak(spec.speedup.allowed_size(size)) / slots)

    def busy_w(self, spec: JobSpec, nodes: int) -> float:
        """Return the power of one of a job's nodes: as stated, by its profile, or by the model."""
        if spec.power_w is not None:
            return self.idle_w + spec.power_w / nodes
        if spec.speedup is None:
            return self.static_w + self.dynamic_w
        nodes = spec.speedup.allowed_size(nodes)  # of two worlds that overlap there may be more
        stated = spec.speedup.power(nodes)
        if stated is not None:
            return stated
        return self.static_w + self.dynamic_w * spec.speedup.efficiency(nodes)


class Site(msgspec.Struct, frozen=True):
    """The constant properties of a cluster, for decisions.

    Attributes:
        nodes: the number of nodes, or of slots where nodes are shared.
        power: power models by host; empty where none are stated.
        host: hosts (power domains) by slot, from 0; empty where nodes are hosts. With ``shared``
            nodes it follows from them.
        rack: racks by host; empty where all are in one.
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
            raise ValueError(f"expected {self.nodes} entries of host, got {len(self.host)}")

    @property
    def contended(self) -> bool:
        """Whether processes slow one another down, or processors differ in speed."""
        return any(node.contended for node in self.shared)

    @property
    def models(self) -> tuple[NodePower, ...]:
        """Power models by host; where none is stated they draw nothing."""
        return self.power or (NodePower(),) * self.hosts

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return max(self.host) + 1 if self.host else self.nodes


# What jobs did: the record from which a simulator runs the same jobs again.


class ResizeRan(msgspec.Struct, frozen=True):
    """A completed resize: its end, the time without steps, and the boot of the new world, in s."""

    at_s: float
    stall_s: float
    boot_s: float


class JobRan(msgspec.Struct, frozen=True):
    """A job that has started.

    Attributes:
        end_s: the time of its end; None while it runs.
        spans: ``(node, from, to)``: the nodes that it held.
        resizes: in the order of time.
        steps: number of steps of the whole job, 0 where it reports none.
        measured: ``(nodes, steps, seconds)``: the speed that it has reported by size.
        energy_j: its energy in the books.
    """

    spec: JobSpec
    state: str
    start_s: float
    end_s: float | None
    spans: tuple[tuple[int, float, float], ...]
    resizes: tuple[ResizeRan, ...] = ()
    steps: int = 0
    measured: tuple[tuple[int, int, float], ...] = ()
    energy_j: float = 0.0


class Ran(msgspec.Struct, frozen=True):
    """The jobs of a daemon that have started, up to a time.

    Attributes:
        seq: number of the newest entry of the journal.
        policy: key of the present policy, as in the journal.
        site: the present cluster.
        dropped: number of older jobs that are not in the record.
        prices_unit: unit of the prices by which the policy puts jobs off, "" for none.
    """

    seq: int
    now_s: float
    policy: str
    site: Site
    jobs: tuple[JobRan, ...]
    dropped: int = 0
    prices_unit: str = ""
