"""Jobs on nodes whose processes share bandwidth, on the virtual clock.

:class:`Contention` has the rates of processes as time goes on, by
:mod:`rms.core.model.contention`; :class:`Beside` runs jobs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from rms.core.model.contention import Pools, parts
from rms.core.model.jobs import Job, JobId
from rms.core.model.speedup import dynamic_power
from rms.core.state import State


class Part(NamedTuple):
    """Processes of one job in one pool, all alike.

    Attributes:
        work_s: run time of a process alone on the fastest kind of processor at full frequency.
        demand_gb_s: demand of a process there.
        frequency: over the highest one.
        power: of a process while it computes, in any unit.
    """

    pool: int
    processes: int
    work_s: float
    demand_gb_s: float
    frequency: float = 1.0
    power: float = 1.0


@dataclass(slots=True, eq=False)
class _Group:
    """A part that runs: it is over when its pool's clock is at ``end``."""

    job: str
    part: Part
    demand_gb_s: float
    begun_s: float
    end: float


@dataclass(slots=True)
class _Job:
    """The running parts of a job, and the number of its processes, also of finished ones."""

    groups: list[_Group] = field(default_factory=list)
    processes: int = 0


@dataclass(slots=True)
class _Pool:
    """The clock of a pool: it advances by ``rate`` per second, slower while bandwidth is short."""

    clock: float = 0.0
    rate: float = 1.0
    since_s: float = 0.0
    version: int = 0
    groups: list[tuple[float, int, _Group]] = field(default_factory=list)


class Contention:
    """The rates of processes on shared nodes, and the ends of jobs.

    Between two changes on a node all processes of a pool run at one rate, so a pool has a clock of
    its own on which ends do not move: the cost of a change depends on the pools of a node, not on
    the numbers of processes and jobs. A process has no demand after its own end; its processor is
    held until the last process of its job has ended. A job that is resized is stopped
    (:meth:`stop`) and started again: the rest of all its processes is then divided evenly.

    Attributes:
        energy: power times time of finished processes.
        followed: jobs that may be in ``moved``.
        moved: followed jobs whose rate may have changed since the driver last looked.
        now_s: time of the last change.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._state = [_Pool() for _ in pools.node]
        self._demand_gb_s = [0.0] * len(pools.node)
        self._jobs: dict[str, _Job] = {}
        self._next: list[tuple[float, int, int, int]] = []
        self._number = 0
        self.energy = 0.0
        self.followed: set[str] = set()
        self.moved: set[str] = set()
        self.now_s = 0.0

    def start(self, job: str, parts: Iterable[Part], now_s: float) -> None:
        """Start the processes of a job."""
        nodes, own = {}, self._jobs.setdefault(job, _Job())
        factor, node = self._pools.factor, self._pools.node
        for part in parts:
            at, pool = part.pool, self._state[part.pool]
            self._advance(pool, now_s)
            speed = part.frequency / factor[at]
            demand = part.processes * part.demand_gb_s * speed
            group = _Group(job, part, demand, now_s, pool.clock + part.work_s / speed)
            self._number += 1
            heappush(pool.groups, (group.end, self._number, group))
            self._demand_gb_s[at] += demand
            pool.version += 1
            own.groups.append(group)
            own.processes += part.processes
            nodes[node[at]] = True
        for changed in nodes:
            self._share(changed, now_s)

    def runs(self, job: str) -> bool:
        """Return whether a process of a job runs."""
        return job in self._jobs

    def left_s(self, job: str, now_s: float) -> float:
        """Return the rest of a job: the mean of ``work_s`` left of its processes."""
        own, left = self._jobs[job], 0.0
        for group in own.groups:
            pool = self._state[group.part.pool]
            clock = pool.clock + pool.rate * (now_s - pool.since_s)
            speed = group.part.frequency / self._pools.factor[group.part.pool]
            left += group.part.processes * max(0.0, group.end - clock) * speed
        return left / own.processes

    def rate(self, job: str) -> float:
        """Return the present decrease of :meth:`left_s` per second."""
        own, done = self._jobs[job], 0.0
        for group in own.groups:
            speed = group.part.frequency / self._pools.factor[group.part.pool]
            done += group.part.processes * speed * self._state[group.part.pool].rate
        return done / own.processes

    def stop(self, job: str, now_s: float) -> None:
        """Stop the processes of a job: they have no demand and make no progress."""
        nodes = {}
        for group in self._jobs.pop(job).groups:
            at, pool = group.part.pool, self._state[group.part.pool]
            self._advance(pool, now_s)
            pool.groups = [entry for entry in pool.groups if entry[2] is not group]
            heapify(pool.groups)
            self._leave(at, group)
            pool.version += 1
            self._book(group, now_s)
            nodes[self._pools.node[at]] = True
        for node in nodes:
            self._share(node, now_s)

    @property
    def next_s(self) -> float:
        """The time of the next ends of processes without other events; inf if none run."""
        ahead = self._next
        while ahead and ahead[0][3] != self._state[ahead[0][2]].version:
            heappop(ahead)
        return ahead[0][0] if ahead else inf

    def run(self, until_s: float, *, included: bool = False) -> tuple[float, str] | None:
        """Process ends before a time, or also at it, until the first end of a job.

        Returns None, also once :attr:`moved` has jobs.
        """
        while (at_s := self.next_s) < until_s or (included and at_s == until_s < inf):
            job = self.finish()
            if job is not None:
                return at_s, job
            if self.moved:
                break
        return None

    def finish(self) -> str | None:
        """Process the ends at :attr:`next_s`; return the job if it is over, too."""
        now_s = self.next_s
        _, _, at, _ = heappop(self._next)
        pool = self._state[at]
        end, _, group = heappop(pool.groups)
        self._advance(pool, now_s)
        pool.clock = end  # without errors of rounding
        self._leave(at, group)
        pool.version += 1
        self._book(group, now_s)
        own = self._jobs[group.job].groups
        own.remove(group)
        self._share(self._pools.node[at], now_s)
        if own:
            if group.job in self.followed:
                self.moved.add(group.job)
            return None
        del self._jobs[group.job]
        self.followed.discard(group.job)
        return group.job

    def _leave(self, at: int, group: _Group) -> None:
        left_gb_s = self._demand_gb_s[at] - group.demand_gb_s
        self._demand_gb_s[at] = left_gb_s if self._state[at].groups else 0.0

    def _book(self, group: _Group, now_s: float) -> None:
        self.energy += group.part.processes * (now_s - group.begun_s) * group.part.power

    def _share(self, node: int, now_s: float) -> None:
        """Set the rates of a node's pools by the present demand."""
        members, state = self._pools.members[node], self._state
        self.now_s = now_s
        slowdowns = self._pools.slowdowns_among(node, self._demand_gb_s)
        for at, slowdown in zip(members, slowdowns, strict=True):
            pool, rate = state[at], 1.0 / slowdown
            if rate != pool.rate:
                pool.clock += pool.rate * (now_s - pool.since_s)
                pool.since_s, pool.rate = now_s, rate
                pool.version += 1
                if self.followed:
                    self.moved.update({group.job for *_, group in pool.groups} & self.followed)
            elif pool.since_s != now_s:
                continue  # neither its rate nor its processes have changed
            if pool.groups:
                self._number += 1
                left = pool.groups[0][0] - pool.clock
                ends_s = now_s + left / rate if left > 0.0 else now_s
                heappush(self._next, (ends_s, self._number, at, pool.version))

    @staticmethod
    def _advance(pool: _Pool, now_s: float) -> None:
        pool.clock += pool.rate * (now_s - pool.since_s)
        pool.since_s = now_s


def processes(
    counts: Mapping[tuple[int, float], int],
    work_s: float,
    demand_gb_s: float,
    levels: Sequence[tuple[float, float]],
) -> list[Part]:
    """Return the processes of a job, with power by V^2 f.

    Args:
        counts: numbers of processes by pool and frequency.
        work_s, demand_gb_s: see :class:`Part`.
        levels: frequencies and voltages, rising; empty where frequencies are not set.
    """
    power = {share: dynamic_power(levels, share) for share in {share for _, share in counts}}
    return [
        Part(pool, number, work_s, demand_gb_s, share, power[share])
        for (pool, share), number in counts.items()
    ]


# --- jobs ----------------------------------------------------------------------------------------


class Beside:
    """Runs jobs beside one another: their progress follows the rates of their processes."""

    def __init__(self, state: State) -> None:
        assert state.pools is not None
        self._state, self._pools = state, state.pools
        self.contention = Contention(state.pools)

    def start(self, job: Job, now: float) -> None:
        """Let the rest of a job run from now on, at its size."""
        spec, whole_s = job.spec, job.time_s(job.size)
        if whole_s is None:
            raise ValueError(f"expected a run time of job {spec.id} to simulate, got none")
        left_s = whole_s * job.remaining_share(now) if job.done else whole_s
        counts = parts(self._pools, job.nodes, job.frequencies)
        levels, demand_gb_s = self._state.site.levels, spec.bandwidth_gb_s or 0.0
        self.contention.start(spec.id, processes(counts, left_s, demand_gb_s, levels), now)
        if spec.resize_parts is not None and spec.mode.resizable:
            self.contention.followed.add(spec.id)

    def progress(self, job: Job, now: float) -> tuple[float, float]:
        """Return the share of its work that a job has done, and its present share per second."""
        whole_s = job.time_s(job.size)
        if not whole_s:
            return 1.0, 0.0
        left_s = self.contention.left_s(job.spec.id, now)
        return max(0.0, 1.0 - left_s / whole_s), self.contention.rate(job.spec.id) / whole_s

    def moved(self) -> tuple[float, list[Job]]:
        """Return the jobs with resize points by work whose rates have changed, with the time."""
        moved = sorted(self.contention.moved)
        self.contention.moved.clear()
        running = self._state.running
        jobs = [running[JobId(job_id)] for job_id in moved if self.contention.runs(job_id)]
        return self.contention.now_s, jobs
