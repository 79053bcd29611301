"""The state of the engine, with indices for policies.

A policy reads it and changes nothing; only :mod:`rms.core.rules.transition` calls the methods that
change it. Beside the jobs it keeps the number of free nodes, the expected ends of running jobs, the
jobs that can be expanded or shrunk, and the queue by estimate.

An index is a sorted list, kept by bisection, so an event costs the logarithm of the number of
jobs (and a short copy in memory), not that number nor the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, log
from typing import Any

from msgspec.structs import replace

from rms.core.model.contention import Pools
from rms.core.model.events import HourlyPrices, NodesLeased, ResizeAsked
from rms.core.model.jobs import OVERDUE_S, Job, JobId, JobSpec, Mode, Node, NodePower, Site

# --- idle nodes ----------------------------------------------------------------------------------

MINUTE_S = 60.0
"""Period in which switches are counted, as for Slurm's SuspendRate and ResumeRate."""


@dataclass(slots=True)
class Idle:
    """The times since which nodes are idle; kept while a policy may power nodes off.

    Attributes:
        since_s: by node, the time it was last released; of nodes never held, the begin of this.
        off_s, on_s: times at which hosts were powered off, and on, in the last minute.
    """

    since_s: dict[Node, float] = field(default_factory=dict)
    off_s: list[float] = field(default_factory=list)
    on_s: list[float] = field(default_factory=list)

    def begin(self, nodes: int, now_s: float) -> None:
        """Count all nodes as idle from now on."""
        self.since_s = dict.fromkeys(map(Node, range(nodes)), now_s)

    def free(self, nodes: Iterable[Node], now_s: float) -> None:
        """Enter that nodes were released."""
        self.since_s.update(dict.fromkeys(nodes, now_s))

    def whole_since_s(self, slots: Iterable[Node]) -> float:
        """Return the time since which all slots of an idle host are idle, inf before any event."""
        return max([self.since_s.get(node, inf) for node in slots])

    def switch(self, now_s: float, *, on: bool) -> None:
        """Enter that a host was powered on or off."""
        times = self.on_s if on else self.off_s
        while times and times[0] + MINUTE_S <= now_s:
            times.pop(0)
        times.append(now_s)

    def switches_left(self, at_most: int, now_s: float, *, on: bool) -> int:
        """Return the number of hosts that may still be powered on or off now."""
        return at_most - len(_recent(self.on_s if on else self.off_s, now_s))

    def next_s(self, at_most: int, now_s: float) -> float:
        """Return the time of the next switch where no more hosts may be switched now, else inf."""
        full = [_recent(times, now_s) for times in (self.off_s, self.on_s)]
        return min([times[0] + MINUTE_S for times in full if len(times) >= at_most], default=inf)


def _recent(times: list[float], now_s: float) -> list[float]:
    return [at_s for at_s in times if at_s + MINUTE_S > now_s]


# --- usage of accounts ---------------------------------------------------------------------------

_MOST_HALF_LIVES = 64.0


@dataclass
class Usage:
    """Node-seconds by account, halved over time as by Slurm's multifactor plugin.

    Attributes:
        half_life_s: node-seconds of a half-life ago count half.
        at_s: the time up to which usage is counted.
        used: by account, as it counts at ``since_s``: later usage counts more there, so no sum has
            to be halved as time goes by. Of all accounts that have submitted jobs since.
    """

    half_life_s: float
    at_s: float
    used: dict[str, float] = field(default_factory=dict)
    since_s: float = 0.0

    def __post_init__(self) -> None:
        self.since_s = self.since_s or self.at_s

    def add_accounts(self, jobs: Iterable[Job]) -> None:
        """Add the accounts of jobs, among which shares are counted."""
        for job in jobs:
            self.used.setdefault(job.spec.account, 0.0)

    def now(self) -> dict[str, float]:
        """Return the node-seconds by account as they count at ``at_s``."""
        left = 0.5 ** ((self.at_s - self.since_s) / self.half_life_s)
        return {account: used * left for account, used in self.used.items()}

    def advance(self, running: Iterable[Job], now_s: float) -> None:
        """Count the nodes that running jobs have held until now, at their present sizes.

        With h the half-life, a node held from s to now counts h / ln 2 (1 - 2^(-(now - s) / h)).
        """
        if now_s <= self.at_s:
            return
        half_life_s = self.half_life_s
        if now_s - self.since_s > _MOST_HALF_LIVES * half_life_s:
            self.used, self.since_s = self.now(), self.at_s
        before = 2.0 ** ((self.at_s - self.since_s) / half_life_s)
        grown = 2.0 ** min(1000.0, (now_s - self.since_s) / half_life_s)
        node_s, used = half_life_s / log(2.0) * (grown - before), self.used
        for job in running:
            account = job.spec.account
            used[account] = used.get(account, 0.0) + job.size * node_s
        self.at_s = now_s


# --- the state -----------------------------------------------------------------------------------

End = tuple[float, int, Job]
"""The expected end of a job, its number (which is unique), the job."""

NodeLists = tuple[tuple[str, ...], tuple[str, ...]]
Key = Callable[[Job], float]
"""The key by which waiting jobs are sorted."""

Ranked = dict[int, float]
"""Keys of running jobs by their numbers."""

RunningKey = Callable[["State", Job], float]
"""The key by which running jobs are sorted; inf for jobs that are left out."""


@dataclass(slots=True)
class Ranking:
    """Running jobs sorted by a key, which is computed when a job changes.

    Attributes:
        keys: by number of the job.
    """

    key: RunningKey
    entries: list[End] = field(default_factory=list)
    keys: dict[int, float] = field(default_factory=dict)

    def enter(self, state: State, job: Job) -> None:
        """Enter a job, unless its key is inf."""
        value = self.key(state, job)
        if value < inf:
            self.keys[job.number] = value
            insort(self.entries, (value, job.number, job))

    def leave(self, job: Job) -> None:
        """Remove a job, if it is in the ranking."""
        value = self.keys.pop(job.number, None)
        if value is not None:
            del self.entries[bisect_left(self.entries, (value, job.number))]


@dataclass(slots=True)
class State:
    """The cluster and its jobs, as a policy reads them.

    Attributes:
        counted: nodes are counted, not placed: jobs have sizes and no nodes.
        exact: expected ends follow stated run times, not limits.
        free_count: free nodes. Below 0 only during an instant in which starts go by expected ends
            (see :mod:`rms.core.rules.checks`).
        releasing: nodes that shrinks under way are about to free.
        vacant: by node, whether it is free and up; empty where counted.
        down: nodes that have failed or are drained.
        off: nodes that are powered off; of shared hosts all slots, as of ``booting``.
        booting: nodes that were powered on, with the times at which they are expected to be up.
        idle: idle times of nodes, while a policy may power nodes off; else None.
        asleep: in the view of :func:`rms.core.policies.node_power.all_on` only: vacant nodes that
            are off or booting, in the order in which they should be taken, after all others.
        returning: in the view of :func:`rms.core.policies.node_power.window_view` only: the entry
            of ``ends`` for nodes that are off until a window ends.
        reclocked: jobs whose frequencies, and so rates, changed since the driver last looked.
        lent: nodes that tasks hold, with the owner (:class:`rms.core.model.events.TasksHold`).
        switched: nodes powered off or on, or booted, since the energy ledger was last written.
        lease: terms of nodes (:mod:`rms.core.rules.checks`); None where nodes have none.
        too_wide: jobs that wait for a wider cluster than the present one.
        held: jobs that may not start yet (see :mod:`rms.core.rules.transition`).
        wanted: resizes that users request of jobs that have come to no resize point yet.
        usage: usage of accounts, where the policy goes by it.
        due: waiting jobs that EASY would have started, all jobs rigid, in that order, with the
            times (:mod:`rms.core.scheduler.twin`); None where EASY decides, or no policy goes by
            it.
        outcomes: by array: numbers of its jobs, of those that are over, and of those that failed.
        ends: running jobs by expected end.
        estimated: an expected end in ``ends`` is an estimate, from progress or from an assumed run
            time, which a job may run past.
        arrays, accounts: numbers of jobs that wait or run, by array and by account.
        held_by: by account, the number of nodes that its jobs hold at their least sizes.
        shrinkable: running jobs that may be shrunk now, by expected end.
        expandable: running jobs that may be expanded now, by the time until which the next size
            saves more than the resize costs: entries in the past do not pay and are skipped.
        callable: nodes that running jobs hold above their least sizes and may be shrunk from now.
        sizes_stay: no running job is widened: of a copy that looks ahead.
        cheapest: by waiting job, its sizes in cheap hours and what they depend on
            (:mod:`rms.core.policies.cheap_hours`): a cache.
        hour_plans: the plans for jobs with a deadline in this state, with the part ``hours`` and
            the waiting jobs that they are of; None where it has changed.
        awaited: running jobs that the policy would resize if they were at a resize point: a
            simulation lets them come to their next one, and no other.
        changed: jobs whose nodes or power changed since the energy ledger was last written.
        needs_pass: an event other than a submission has happened since the policy's last pass;
            else the jobs that waited then wait now for the same reasons, and only ``new_jobs``
            matter.
        new_jobs: jobs submitted since the policy's last pass.
        reached_resize_point: jobs that have come to a resize point since then.
        array_limited: number of waiting jobs of arrays with a limit of running jobs.
        prioritised: number of waiting jobs whose priority is not 0.
        power_cap_w: power cap of the cluster, or None.
        prices: prices or carbon intensities of electricity by the hour, or None.
        deadlines: number of jobs with a deadline that wait or run.
        measured_w: metered power, as last entered under a cap, or None.
        idle_above_w: metered power of idle nodes above ``idle_w``, from times without jobs.
        host_slots: slots by host; empty where nodes are not shared.
        least_slots: the smallest number of slots of a host; 1 where nodes are not shared.
        power_models: the different power models of nodes.
        idle_w: idle power of all nodes.
        settable_frequencies: False once a daemon could not set the frequencies that a policy
            decided: policies decide none then, and all jobs run at the highest.
        clocked: nodes have a frequency each (see :mod:`rms.core.rules.transition`).
        pools: processors that share bandwidth, or None.
        pool_free, pool_gb_s: by pool, free processors, and the expected demand of bandwidth.
        contended: processes slow one another down there.
        beside: running jobs that may be resized there: their rates follow their neighbours.
        listed: jobs, not over, with lists of nodes; ``allowed`` caches the nodes by list
            (:func:`rms.core.rules.checks.allowed`).
        max_concurrent_resizes: largest number of jobs that should be resized at once, 0 for any.
            Policies that choose among resizes keep to it; no resize is refused for it.
    """

    site: Site
    counted: bool = False
    exact: bool = field(default=False, compare=False)
    now_s: float = 0.0
    pending: dict[JobId, Job] = field(default_factory=dict)
    running: dict[JobId, Job] = field(default_factory=dict)
    ended: dict[JobId, Job] = field(default_factory=dict)
    free_count: int = 0
    releasing: int = 0
    vacant: bytearray = field(default_factory=bytearray)
    down: set[Node] = field(default_factory=set)
    off: set[Node] = field(default_factory=set)
    booting: dict[Node, float] = field(default_factory=dict)
    idle: Idle | None = field(default=None, compare=False)
    asleep: tuple[Node, ...] = field(default=(), compare=False)
    returning: End | None = field(default=None, compare=False)
    reclocked: dict[JobId, Job] = field(default_factory=dict, compare=False)
    lent: dict[Node, str] = field(default_factory=dict)
    switched: set[Node] = field(default_factory=set, compare=False)
    lease: NodesLeased | None = None
    too_wide: dict[JobId, Job] = field(default_factory=dict)
    held: dict[JobId, Job] = field(default_factory=dict)
    wanted: dict[JobId, ResizeAsked] = field(default_factory=dict)
    usage: Usage | None = None
    due: dict[JobId, float] | None = field(default=None, compare=False)
    outcomes: dict[str, tuple[int, int, int]] = field(default_factory=dict, compare=False)
    ends: list[End] = field(default_factory=list)
    shrinkable: list[End] = field(default_factory=list)
    expandable: list[End] = field(default_factory=list)
    callable: int = field(default=0, compare=False)
    sizes_stay: bool = field(default=False, compare=False)
    cheapest: dict[JobId, tuple[Any, float, Any]] = field(default_factory=dict, compare=False)
    hour_plans: tuple[Any, Any, dict[JobId, Any]] | None = field(default=None, compare=False)
    awaited: dict[JobId, Job] = field(default_factory=dict, compare=False)
    changed: dict[JobId, Job] = field(default_factory=dict, compare=False)
    needs_pass: bool = field(default=True, compare=False)
    new_jobs: list[Job] = field(default_factory=list, compare=False)
    reached_resize_point: list[Job] = field(default_factory=list, compare=False)
    array_limited: int = 0
    prioritised: int = 0
    submitted: int = 0
    max_concurrent_resizes: int = field(default=0, compare=False)
    power_cap_w: float | None = None
    prices: HourlyPrices | None = None
    deadlines: int = 0
    measured_w: float | None = None
    idle_above_w: float = 0.0
    host_slots: tuple[tuple[Node, ...], ...] = field(default=(), compare=False)
    least_slots: int = field(default=1, compare=False)
    power_models: tuple[NodePower, ...] = field(default=(), compare=False)
    idle_w: float = field(default=0.0, compare=False)
    arrays: dict[str, int] = field(default_factory=dict, compare=False)
    accounts: dict[str, int] = field(default_factory=dict, compare=False)
    held_by: dict[str, int] = field(default_factory=dict, compare=False)
    settable_frequencies: bool = True
    estimated: bool = field(default=False, compare=False)
    clocked: bool = field(default=False, compare=False)
    pools: Pools | None = field(default=None, compare=False)
    pool_free: list[int] = field(default_factory=list, compare=False)
    pool_gb_s: list[float] = field(default_factory=list, compare=False)
    contended: bool = field(default=False, compare=False)
    beside: dict[JobId, Job] = field(default_factory=dict, compare=False)
    listed: set[JobId] = field(default_factory=set)
    _queues: dict[Key, list[End]] = field(default_factory=dict, compare=False)
    _rankings: dict[str, Ranking] = field(default_factory=dict, compare=False)
    allowed: dict[NodeLists, frozenset[Node]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.free_count = self.site.nodes
        self.power_cap_w = self.site.power_cap_w
        self.use_site()
        if not self.counted:
            self.vacant = bytearray(b"\x01" * self.site.nodes)

    @property
    def nodes(self) -> int:
        """The number of nodes of the cluster."""
        return self.site.nodes

    def together(self, node: Node) -> tuple[Node, ...]:
        """Return all slots of a node's host, which goes down, off and on as one."""
        return self.host_slots[self.site.host[node]] if self.host_slots else (node,)

    def model(self, node: Node) -> NodePower:
        """Return the power model of a node, or of a slot's host."""
        site = self.site
        if not site.power:
            return NodePower()
        return site.power[site.host[node] if site.host else node]

    @property
    def resizes_left(self) -> int:
        """The number of jobs that should still be resized now."""
        if not self.max_concurrent_resizes:
            return len(self.running)
        resizing = sum(job.requested_size is not None for job in self.running.values())
        return max(0, self.max_concurrent_resizes - resizing)

    @property
    def free(self) -> list[Node]:
        """The free nodes, rising."""
        return list(self.free_nodes())

    def free_nodes(self) -> Iterator[Node]:
        """Yield the free nodes, rising: a node costs no more than the nodes before it."""
        if self.asleep:
            last = set(self.asleep)
            yield from (
                Node(n) for n, is_free in enumerate(self.vacant) if is_free and n not in last
            )
            yield from self.asleep
            return
        find, at, numbers = self.vacant.find, -1, _numbers(len(self.vacant))
        while (at := find(1, at + 1)) >= 0:
            yield numbers[at]

    def job(self, job_id: JobId) -> Job | None:
        """Return a job, whatever its state."""
        groups = self.pending, self.too_wide, self.held, self.running, self.ended
        return next((group[job_id] for group in groups if job_id in group), None)

    @property
    def waiting(self) -> dict[JobId, Job]:
        """All waiting jobs, also those that no policy sees."""
        return {**self.pending, **self.too_wide, **self.held}

    @property
    def by_estimate(self) -> list[End]:
        """Waiting jobs by expected run time; equal ones in the order of submission."""
        return self.queue_by(self.estimate)

    def queue_by(self, key: Key) -> list[End]:
        """Return the waiting jobs by a key that does not change while a job waits.

        Equal ones are in the order of submission. The list is kept sorted from the first call on,
        so a key must always be the same function.
        """
        queue = self._queues.get(key)
        if queue is None:
            entries = ((key(job), job.number, job) for job in self.pending.values())
            queue = self._queues[key] = sorted(entries, key=lambda entry: entry[:2])
        return queue

    def rank(self, keys: Mapping[str, RunningKey]) -> None:
        """Keep the running jobs sorted by these keys from now on, and by no others.

        A key is computed whenever the size or progress of a job is entered, not as time goes by: so
        the same events lead to the same keys.
        """
        self._rankings = {name: Ranking(key) for name, key in keys.items()}
        for ranking in self._rankings.values():
            for job in self.running.values():
                ranking.enter(self, job)

    def running_by(self, name: str) -> list[End]:
        """Return the running jobs sorted by a key, without jobs for which it is inf."""
        return self._rankings[name].entries

    @property
    def ranks(self) -> bool:
        """Whether running jobs are sorted by keys of a policy."""
        return bool(self._rankings)

    @property
    def ranked(self) -> dict[str, Ranked]:
        """The keys of running jobs, by name and by number of the job."""
        return {name: ranking.keys for name, ranking in self._rankings.items()}

    def restore_ranks(self, keys: Mapping[str, RunningKey], ranked: Mapping[str, Ranked]) -> None:
        """Restore keys from ``ranked``; missing ones are computed."""
        self.rank({name: key for name, key in keys.items() if name not in ranked})
        jobs = {job.number: job for job in self.running.values()}
        for name, key in keys.items():
            if name in ranked:
                own = {number: value for number, value in ranked[name].items() if number in jobs}
                entries = sorted((value, number, jobs[number]) for number, value in own.items())
                self._rankings[name] = Ranking(key, entries, own)

    def keep_sizes(self) -> None:
        """Let no running job of a copy of a state be resized."""
        self.shrinkable, self.expandable, self.callable, self.sizes_stay = [], [], 0, True
        self.rank({name: ranking.key for name, ranking in self._rankings.items()})

    def by_priority(self, jobs: Iterable[Job]) -> Iterable[Job]:
        """Return jobs by priority, the highest first; a stable sort."""
        return sorted(jobs, key=lambda job: -job.spec.priority) if self.prioritised else jobs

    def estimate(self, job: Job) -> float:
        """Return the expected run time of a waiting job at its preferred size."""
        return job.spec.expected_s(job.spec.preferred, exact=self.exact)

    @property
    def one_array(self) -> bool:
        """Whether all jobs belong to one array."""
        there = len(self.pending) + len(self.running)
        return len(self.arrays) == 1 and sum(self.arrays.values()) == there

    def use_levels(self, levels: tuple[tuple[float, float], ...]) -> None:
        """Set the frequencies of nodes."""
        self.site = replace(self.site, levels=levels)
        self.clocked = bool(levels) and not self.contended

    def use_site(self) -> None:
        """Derive the fields that depend on the site."""
        self.allowed.clear()
        hosts: list[list[Node]] = [[] for _ in range(self.site.hosts)] if self.site.host else []
        for node, host in enumerate(self.site.host):
            hosts[host].append(Node(node))
        self.host_slots = tuple(map(tuple, hosts))
        self.least_slots = min(map(len, hosts), default=1) or 1
        self.power_models = tuple(dict.fromkeys(self.site.power)) or (NodePower(),)
        self.idle_w = sum(model.idle_w for model in self.site.power)
        self.contended = self.site.contended
        self.clocked = bool(self.site.levels) and not self.contended
        self.pools = Pools(self.site.shared) if self.site.shared else None
        self.pool_free = [] if self.pools is None else list(self.pools.number)
        self.pool_gb_s = [0.0] * len(self.pool_free)

    def count(self, job: Job, more: int) -> None:
        """Count a job that came (1) or went (-1)."""
        account, array = job.spec.account, job.spec.array
        self.deadlines += more * (job.spec.deadline_s is not None)
        there = self.accounts.get(account, 0) + more
        if there:
            self.accounts[account] = there
        else:
            del self.accounts[account]
            self.held_by.pop(account, None)
        if array is None:
            return
        left = self.arrays.get(array, 0) + more
        if left:
            self.arrays[array] = left
        else:
            del self.arrays[array]

    # --- changes by the transition ---------------------------------------------------------------

    def set_pending(self, pending: dict[JobId, Job]) -> None:
        """Replace the waiting jobs of a copy of a state."""
        self.pending, self._queues, self.new_jobs = pending, {}, []

    def enqueue(self, job: Job, *, sort: bool = True) -> None:
        """Put a job at the end of the queue; with ``sort`` one that waited before in its place."""
        if job.number == 0:
            self.submitted += 1
            job.number = self.submitted
            spec = job.spec
            job.least = spec.smallest_start if spec.mode.any_start else spec.preferred
            job.longest_s = spec.expected_s(job.least)
            if spec.mode.resizable and not spec.mode.any_start:
                job.longest_s = max(job.longest_s, spec.expected_s(spec.smallest))
            self.pending[spec.id] = job
            self.new_jobs.append(job)
        else:
            self.pending[job.spec.id] = job
            if sort:
                self.pending = dict(sorted(self.pending.items(), key=lambda item: item[1].number))
        self.count(job, 1)
        if job.spec.array_limit is not None:
            self.array_limited += 1
        self.prioritised += job.spec.priority != 0
        if self._queues:
            for key, queue in self._queues.items():
                insort(queue, (key(job), job.number, job))

    def dequeue(self, job_id: JobId) -> Job:
        """Remove a job from the queue."""
        job = self.pending.pop(job_id)
        self.count(job, -1)
        if job.spec.array_limit is not None:
            self.array_limited -= 1
        self.prioritised -= job.spec.priority != 0
        if self._queues:
            for key, queue in self._queues.items():
                _remove(queue, key(job), job)
        return job

    def take(self, nodes: Sequence[Node]) -> None:
        """Mark nodes as held."""
        vacant = self.vacant
        for node in nodes:
            vacant[node] = 0
        if self.pools is not None:
            for node in nodes:
                self.pool_free[self.pools.of_slot[node]] -= 1

    def give_back(self, nodes: Sequence[Node]) -> None:
        """Mark nodes as free, except nodes that are down."""
        vacant = self.vacant
        for node in nodes:
            vacant[node] = 1
        if self.pools is not None:
            for node in nodes:
                self.pool_free[self.pools.of_slot[node]] += 1
        if self.idle is not None:
            self.idle.free(nodes, self.now_s)
        if self.down and (lost := tuple(self.down.intersection(nodes))):
            self.take(lost)
            self.free_count -= len(lost)

    def index_running(self, job: Job) -> None:
        """Enter a running job into the indices of expected ends and of possible resizes."""
        spec = job.spec
        end, estimated = job.expected_end(self.now_s, exact=self.exact)
        job.expected_end_s = end
        self.estimated = self.estimated or estimated
        insort(self.ends, (end, job.number, job))
        if job.at_resize_point and job.resizable_now:
            sizes = spec.sizes()
            if job.size > sizes[0]:
                insort(self.shrinkable, (end, job.number, job))
                least = sizes[0]
                if least in job.refused_sizes:
                    least = next((n for n in sizes if n not in job.refused_sizes), job.size)
                job.callable = max(0, job.size - least)
                self.callable += job.callable
            if job.size < sizes[-1] and not job.kept:
                job.pays_until_s = self._pays_until(job)
                insort(self.expandable, (job.pays_until_s, job.number, job))
        held = self.held_by
        held[spec.account] = held.get(spec.account, 0) + job.size - job.callable
        for ranking in self._rankings.values():
            ranking.enter(self, job)

    def renew_overdue(self) -> None:
        """Extend estimated ends in the past."""
        at = bisect_right(self.ends, self.now_s, key=lambda entry: entry[0])
        for end, _, job in self.ends[:at]:
            self.unindex_running(job)
            self.index_running(job)
            if job.expected_end_s > end:
                self.needs_pass = True

    @property
    def renewal_s(self) -> float:
        """Time of the next extension of an estimated end that delays waiting jobs, or inf."""
        if not (self.estimated and self.pending and self.ends):
            return inf
        first_s = self.ends[0][0]
        return max(first_s, self.now_s + OVERDUE_S) if first_s > self.now_s else inf

    def _pays_until(self, job: Job) -> float:
        """Return the time until which expanding a job by a size saves more than it costs.

        With t(n) the run time on n nodes and m the next size, it saves 1 - t(m) / t(n) of the time
        to the end, which has to exceed the price of a resize.
        """
        speedup, wider = job.speedup, job.next_larger(job.size)
        if wider is None:
            return -inf
        if speedup is None:
            return inf
        saves = 1.0 - speedup.time(wider) / speedup.time(job.size)
        if saves <= 0.0:
            return -inf
        left_s = job.remaining_share(self.now_s) * speedup.time(job.size)
        return self.now_s + left_s - job.spec.resize_price_s / saves

    def unindex_running(self, job: Job) -> None:
        """Remove a job from the indices of running jobs."""
        _remove(self.ends, job.expected_end_s, job)
        if self.shrinkable:
            _remove(self.shrinkable, job.expected_end_s, job)
        if self.expandable:
            _remove(self.expandable, job.pays_until_s, job)
        self.held_by[job.spec.account] -= job.size - job.callable
        self.callable -= job.callable
        job.callable = 0
        for ranking in self._rankings.values():
            ranking.leave(job)

    def use_estimates(self, *, exact: bool) -> None:
        """Let expected ends follow stated run times (``exact``), or limits."""
        self.needs_pass, self._rankings = True, {}
        self._queues.clear()
        if exact == self.exact:
            return
        self.exact = exact
        self.ends.clear()
        self.shrinkable.clear()
        self.expandable.clear()
        self.callable, self.held_by = 0, {}
        for job in self.running.values():
            self.index_running(job)


@lru_cache(maxsize=4)
def _numbers(nodes: int) -> tuple[Node, ...]:
    """Return the numbers of nodes, as objects that all jobs share.

    Jobs that are over keep their nodes: with objects of their own they would take 28 bytes more per
    node than the 8 in the job's tuple, 2.7 GiB for a million jobs of 100 nodes.
    """
    return tuple(map(Node, range(nodes)))


def _remove(index: list[End], key: float, job: Job) -> None:
    """Remove a job from an index, if it is there."""
    at = bisect_left(index, (key, job.number))
    if at < len(index) and index[at][2] is job:
        del index[at]


# --- nodes that tasks hold (:mod:`rms.kernels`) --------------------------------------------------

TASKS = "task:"
"""Prefix of the owners of tasks' energy: ``task:mine.py[4711]``, program and process."""

TASK = JobSpec(JobId(TASKS), 0.0, 1, 1, 1, Mode.FIXED)
"""A task as a job without power or run time, on one slot."""


def is_task(owner: str) -> bool:
    """Return whether an owner of energy is a program with tasks."""
    return owner.startswith(TASKS)


def owners_changed(before: dict[Node, str], now: dict[Node, str]) -> list[JobId]:
    """Return the programs that hold other nodes than before."""
    both = sorted(before.keys() | now.keys())
    pairs = [(before.get(node, ""), now.get(node, "")) for node in both]
    owners = [owner for pair in pairs if pair[0] != pair[1] for owner in pair if owner]
    return [JobId(owner) for owner in dict.fromkeys(owners)]


def as_job(state: State, owner: JobId) -> Job:
    """Return the nodes of a program's tasks as a job without a profile, for the energy books."""
    nodes = tuple([node for node, holder in sorted(state.lent.items()) if holder == owner])
    spec = JobSpec(owner, 0.0, 1, 1, 1, Mode.FIXED)
    return Job(spec, nodes=nodes, size=len(nodes), start_s=state.now_s)


def task_w(state: State) -> float:
    """Return the highest power that a task is expected to add to an idle node, in W."""
    return max(model.slot_w(TASK, 1, state.least_slots) for model in state.power_models)


def tasks_w(state: State) -> float:
    """Return the power that tasks are expected to add to the idle power of their nodes, in W."""
    if not state.lent:
        return 0.0
    return task_w(state) * sum([bool(owner) for owner in state.lent.values()])
