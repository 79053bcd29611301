"""The energy books by the model of power, with two sums that must agree.

One is by owner: running jobs, programs with tasks, idle nodes, nodes that are off or booting. The
other is by node (of counted nodes: all together), without owners. An event books changes only: a
job's power when it starts, ends or is resized, never that of all nodes. The books follow from
events alone, without measurements (:mod:`rms.core.books.measured`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rms.core.books.spans import PAST, LostTime, check_balance
from rms.core.model.events import WorkLost
from rms.core.model.jobs import Job, JobId, Node, NodePower, Site
from rms.core.model.speedup import drawn
from rms.core.state import State, is_task
from rms.wire.users import Books, LostWork

_NO_HOSTS: Mapping[int, float] = {}


@dataclass(slots=True)
class Draw:
    """Power of a job since a time, and its nodes, or the number of counted ones.

    Attributes:
        hosts: power by host, where hosts are shared.
    """

    since_s: float
    watts: float
    nodes: tuple[Node, ...]
    size: int
    hosts: Mapping[int, float] = field(default_factory=lambda: _NO_HOSTS)


@dataclass
class Ledger:
    """Integrates power over time; call :meth:`advance` before the state changes.

    Attributes:
        power: models by node, or by host where nodes are shared.
        host: hosts by slot; empty where nodes are not shared. On a shared host a job's power comes
            on top of the host's idle power, which is in ``idle_j``.
        levels: frequencies and voltages; power on slots of lower ones is as V^2 f.
        idle_j: energy of nodes that no job holds, or that wait for a resize to begin.
        off_j, boot_j: energy of nodes while they are off, and while they boot.
        busy_node_s: node-seconds held by running jobs, and by tasks.
        peak_w: highest power so far by host, where hosts are shared.
        lost: what failures have cost, by job; a part of its energy.
        lost_times: the times of that, by job: rising, none twice.
    """

    power: Sequence[NodePower]
    host: Sequence[int] = ()
    levels: Sequence[tuple[float, float]] = ()
    idle_j: float = 0.0
    off_j: float = 0.0
    boot_j: float = 0.0
    busy_node_s: float = 0.0
    at_s: float | None = None
    peak_w: list[float] = field(default_factory=list)
    lost: dict[JobId, LostWork] = field(default_factory=dict)
    lost_times: dict[JobId, list[LostTime]] = field(default_factory=dict)
    _busy_j: dict[JobId, float] = field(default_factory=dict)
    _draws: dict[JobId, Draw] = field(default_factory=dict)
    # by running job: its energy at its start and whenever its power has changed
    _points: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    _shares: dict[JobId, float] = field(default_factory=dict)
    _rescaled: dict[JobId, Job] = field(default_factory=dict)
    _watts: float = 0.0
    _idle_w: float = 0.0
    _off_w: float = 0.0
    _boot_w: float = 0.0
    _asleep: dict[int, bool] = field(default_factory=dict)
    _busy: int = 0
    _counted_j: float = 0.0
    _past_j: float = 0.0
    _counted: bool = False
    _unpowered: bool = False
    _powerless: dict[JobId, int] = field(default_factory=dict)
    _alike: bool = False
    _slots: Mapping[int, int] = field(default_factory=dict)
    _node_w: list[float] = field(default_factory=list)
    _node_j: list[float] = field(default_factory=list)
    _node_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._idle_w = self._watts = sum(model.idle_w for model in self.power)
        self._node_w = [model.idle_w for model in self.power]
        self._node_j = [0.0] * len(self.power)
        self._node_s = [0.0] * len(self.power)
        self._slots = Counter(self.host)
        self._alike = not self.host and len(set(self.power)) == 1
        self._unpowered = set(self.power) == {NodePower()}
        self.peak_w = list(self._node_w) if self.host else []

    def advance(self, state: State, now_s: float) -> None:
        """Book the time since the last call under the state as it was until now."""
        at = self.at_s
        if at is None:
            self.at_s, self._counted = now_s, state.counted
            self._node_s = [now_s] * len(self.power)
            return
        if now_s <= at:
            return  # also if the clock went back: no second is booked twice
        if state.changed or self._rescaled or state.switched:
            self._enter(state, at)
        span = now_s - at
        self.at_s = now_s
        self.idle_j += span * self._idle_w
        if self._asleep:
            self.off_j += span * self._off_w
            self.boot_j += span * self._boot_w
        self.busy_node_s += span * self._busy
        if self._counted:
            self._counted_j += span * self._watts

    def reopen(self, state: State, site: Site, now_s: float) -> None:
        """Go on with another cluster: nothing is booked for the time since the last entry."""
        at = self.at_s
        if at is not None:
            self._enter(state, at)
            for job_id in list(self._draws):
                self._leave_job(job_id, at)
            self._past_j, self.at_s = self.cluster_j, now_s
        self._draws.clear()
        self._points.clear()
        self._shares.clear()
        self._powerless.clear()
        self._asleep.clear()
        self._off_w = self._boot_w = 0.0
        self.power, self.host, self.levels = site.models, site.host, site.levels
        self._busy = 0
        self.__post_init__()
        self._node_s = [now_s] * len(self.power)

    @property
    def busy_j(self) -> dict[JobId, float]:
        """The energy by job, from its start to its end, and by program with tasks."""
        return self._busy_at(self.at_s or 0.0)

    @property
    def cluster_j(self) -> float:
        """The cluster's energy, summed over nodes."""
        return self._cluster_at(self.at_s or 0.0)

    @property
    def owned_j(self) -> float:
        """The same, summed over owners."""
        return sum(self.busy_j.values()) + self.idle_j + self.off_j + self.boot_j

    def check(self) -> None:
        """Raise :class:`BalanceError` if the two sums of the books differ."""
        cluster_j = self.cluster_j
        check_balance("owners' and nodes' energies to agree", self.owned_j, cluster_j, cluster_j)

    @property
    def power_w(self) -> float:
        """Power of the cluster as of the last :meth:`follow` or :meth:`advance`."""
        return self._watts

    def node_w(self, node: Node) -> float:
        """Return the power of a placed node (or host) as of the last :meth:`follow`."""
        return self._node_w[node]

    def base_w(self, host: int) -> float:
        """Return the power of a host without its jobs."""
        model, boots = self.power[host], self._asleep.get(host)
        return model.idle_w if boots is None else model.boot_w if boots else model.off_w

    def slots_w(self, job_id: JobId) -> dict[Node, float]:
        """Return the power that a job adds, by slot."""
        draw = self._draws.get(job_id)
        if draw is None:
            return {}
        there = Counter([self.host[node] for node in draw.nodes])
        of_host = {host: draw.hosts[host] / number for host, number in there.items()}
        return {node: of_host[self.host[node]] for node in draw.nodes}

    def job_w(self, job: Job, nodes: Sequence[Node]) -> float:
        """Return the power of a job on these nodes."""
        if self.host:
            return sum(self._by_host(job, nodes).values())
        return sum(self._by_node(job, nodes))

    def follow(self, state: State) -> None:
        """Enter the changes of the books' instant, so that the sums are up to date."""
        if self.at_s is not None:
            self._enter(state, self.at_s)

    def job_j(self, job_id: JobId, now_s: float) -> float:
        """Return a job's energy up to ``now_s``, without changes until then; books nothing."""
        draw = self._draws.get(job_id)
        booked = self._busy_j.get(job_id, 0.0)
        if draw is None or self.at_s is None:
            return booked
        return booked + draw.watts * (max(now_s, self.at_s) - draw.since_s)

    def spent_j(self, job_id: JobId, since_s: float, until_s: float) -> float:
        """Return the energy of a running job in a time, from its last start to now."""
        now_s = self.at_s or 0.0
        points = [*self._points.get(job_id, ()), (now_s, self.job_j(job_id, now_s))]
        spent_j = 0.0
        for (begin_s, before_j), (end_s, after_j) in pairwise(points):
            seconds = min(until_s, end_s) - max(since_s, begin_s)
            if seconds > 0.0:
                spent_j += (after_j - before_j) * seconds / (end_s - begin_s)
        return spent_j

    def lose(self, event: WorkLost) -> None:
        """Count the energy of lost steps, and of the time until the job computes again.

        It stays a part of the job's energy. No time counts twice, and none before its last start.
        """
        job_id, points = event.job, self._points.get(event.job)
        since_s = max(event.since_s, points[0][0]) if points else event.since_s
        before = self.lost_times.get(job_id, [])
        new = [
            *_new(before, since_s, event.until_s, recovery=False),
            *_new(before, max(since_s, event.until_s), event.at_s, recovery=True),
        ]
        joules = {False: 0.0, True: 0.0}
        for time in new:
            joules[time.recovery] += self.spent_j(job_id, time.begin_s, time.end_s)
        self.lost_times[job_id] = sorted((*before, *new))
        seconds = sum(time.end_s - time.begin_s for time in new)
        more = LostWork(1, event.steps, seconds, joules[False], joules[True])
        self.lost[job_id] = self.lost.get(job_id, LostWork()) + more

    def books(self, now_s: float, power_source: str = "model") -> Books:
        """Return all sums up to ``now_s``, without changes until then; books nothing.

        Of the state as of the last :meth:`follow`. Before the first event all are 0.
        """
        if self.at_s is None:
            return Books(now_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, power_source)
        at = max(now_s, self.at_s)
        span, owned = at - self.at_s, self._busy_at(at)
        tasks_j = sum([owned.pop(owner) for owner in list(owned) if is_task(owner)])
        return Books(
            at,
            sum(owned.values()),
            self.idle_j + span * self._idle_w,
            self.off_j + span * self._off_w,
            self.boot_j + span * self._boot_w,
            self._cluster_at(at),
            self.busy_node_s + span * self._busy,
            power_source,
            tasks_j=tasks_j,
        )

    def _busy_at(self, at: float) -> dict[JobId, float]:
        busy_j = dict(self._busy_j)
        for job_id, draw in self._draws.items():
            busy_j[job_id] = busy_j.get(job_id, 0.0) + draw.watts * (at - draw.since_s)
        return busy_j

    def _cluster_at(self, at: float) -> float:
        if self._counted:
            return self._counted_j + self._watts * (at - (self.at_s or 0.0))
        return self._past_j + sum(
            joules + watts * (at - since)
            for joules, watts, since in zip(self._node_j, self._node_w, self._node_s, strict=True)
        )

    def scale(self, job: Job, share: float) -> None:
        """Set the share of its power that a job draws from the time of the books on."""
        self._shares[job.spec.id] = share
        self._rescaled[job.spec.id] = job

    def forget(self, job_id: JobId) -> None:
        """Add the energy of a finished job to the sum of forgotten jobs."""
        if job_id in self._busy_j:
            past = JobId(PAST)
            self._busy_j[past] = self._busy_j.get(past, 0.0) + self._busy_j.pop(job_id)
        self.lost.pop(job_id, None)
        self.lost_times.pop(job_id, None)

    # --- changes -----------------------------------------------------------------------------

    def _enter(self, state: State, at: float) -> None:
        """Enter the changes of the instant ``at``."""
        if len(state.changed) == 1 and not (self._rescaled or state.switched):  # most frequent
            job_id, job = state.changed.popitem()
            self._leave_job(job_id, at)
            self._enter_job(job, at)
            return
        # First all leave their nodes, then all enter: within an instant nodes change owners.
        changed = self._rescaled | state.changed if self._rescaled else state.changed
        jobs = list(changed.values())
        state.changed.clear()
        self._rescaled.clear()
        for job in jobs:
            self._leave_job(job.spec.id, at)
        if state.switched:
            for slot in sorted(state.switched):
                if slot == state.together(slot)[0]:  # the first slot stands for its host
                    self._switch(state, slot, at)
            state.switched.clear()
        for job in jobs:
            self._enter_job(job, at)

    def _switch(self, state: State, slot: Node, at: float) -> None:
        """Enter that a free node (or the host of a slot) is off, boots, or is up."""
        node = self.host[slot] if self.host else slot
        model, booted = self.power[node], self._asleep.pop(node, None)
        if booted is None:
            self._idle_w -= model.idle_w
        elif booted:
            self._boot_w -= model.boot_w
        else:
            self._off_w -= model.off_w
            if slot not in state.off and model.boot_s <= 0.0:  # a boot that takes no time
                self.boot_j += model.boot_j
                self._node_j[node] += model.boot_j
        watts = model.idle_w
        if slot in state.off:
            watts, self._asleep[node] = model.off_w, False
            self._off_w += watts
        elif slot in state.booting:
            watts, self._asleep[node] = model.boot_w, True
            self._boot_w += watts
        else:
            self._idle_w += watts
        if not self._asleep:
            self._off_w = self._boot_w = 0.0  # without errors of rounding
        self._watts += watts - self._node_w[node]
        self._set_nodes((node,), watts, at)
        if self.host:
            self.peak_w[node] = max(self.peak_w[node], watts)

    def _leave_job(self, job_id: JobId, at: float) -> None:
        if self._powerless and (size := self._powerless.pop(job_id, 0)):
            self._busy -= size
            return
        draw = self._draws.pop(job_id, None)
        if draw is not None:
            booked_j = self._busy_j.get(job_id, 0.0)
            self._busy_j[job_id] = booked_j + draw.watts * (at - draw.since_s)
            self._leave(draw, at)

    def _enter_job(self, job: Job, at: float) -> None:
        job_id = job.spec.id
        size = job.busy_size
        if job.start_s is None or job.end_s is not None or size == 0:
            self._points.pop(job_id, None)
            if self._shares:
                self._shares.pop(job_id, None)
            return
        unknown = job.spec.speedup is None and job.spec.power_w is None
        if unknown and self._unpowered and (self._counted or self.host):
            self._powerless[job_id] = size  # it has nodes, and draws no power
            self._busy += size
            return
        self._points.setdefault(job_id, []).append((at, self._busy_j.get(job_id, 0.0)))
        if self._counted:
            model = self.power[0]
            watts = size * model.busy_w(job.spec, size)
            self._draws[job_id] = Draw(at, watts, (), size)
            self._busy += size
            self._idle_w -= size * model.idle_w
            self._watts += watts - size * model.idle_w
            return
        nodes = job.busy_nodes
        hosts = _NO_HOSTS
        if self._alike and not job.frequencies:
            own = self.power[0].busy_w(job.spec, len(nodes))
            watts = own * len(nodes)
            self._idle_w -= self.power[0].idle_w * len(nodes)
            self._watts += watts - self.power[0].idle_w * len(nodes)
            self._set_nodes(nodes, own, at)
        elif self.host:
            hosts = self._by_host(job, nodes)
            watts = sum(hosts.values())
            self._watts += watts
            for host, own in hosts.items():
                self._set_nodes((host,), self._node_w[host] + own, at)
                self.peak_w[host] = max(self.peak_w[host], self._node_w[host])
        else:
            powers = self._by_node(job, nodes)
            watts = sum(powers)
            self._watts += watts
            for node, own in zip(nodes, powers, strict=True):
                self._idle_w -= self._node_w[node]
                self._watts -= self._node_w[node]
                self._set_nodes((node,), own, at)
        self._draws[job_id] = Draw(at, watts, nodes, len(nodes), hosts)
        self._busy += len(nodes)

    def _by_node(self, job: Job, nodes: Sequence[Node]) -> list[float]:
        """Return the power of a job's nodes, where nodes are not shared."""
        spec, size, clocks, powers = job.spec, len(nodes), _clocks(job), []
        for node in nodes:
            model = self.power[node]
            watts, share = model.busy_w(spec, size), clocks.get(node, 1.0)
            if share != 1.0:
                dynamic = drawn(self.levels, spec.operating_points, share)
                watts = model.idle_w + (watts - model.idle_w) * dynamic
            powers.append(watts)
        return powers

    def _by_host(self, job: Job, nodes: Sequence[Node]) -> dict[int, float]:
        """Return the power that a job adds to the idle power of its hosts."""
        spec, size, clocks, powers = job.spec, len(nodes), _clocks(job), dict[int, float]()
        slots = Counter([(self.host[node], clocks.get(node, 1.0)) for node in nodes])
        for (host, share), number in slots.items():
            own_w = self.power[host].slot_w(spec, size, self._slots[host])
            if share != 1.0:
                own_w *= drawn(self.levels, spec.operating_points, share)
            powers[host] = powers.get(host, 0.0) + number * own_w
        phase = self._shares.get(spec.id, 1.0)
        return {host: own_w * phase for host, own_w in powers.items()}

    def _leave(self, draw: Draw, at: float) -> None:
        self._busy -= draw.size
        self._watts -= draw.watts
        if self._counted:
            idle = draw.size * self.power[0].idle_w
            self._idle_w += idle
            self._watts += idle
            return
        if self._alike:
            idle = self.power[0].idle_w
            self._idle_w += idle * draw.size
            self._watts += idle * draw.size
            self._set_nodes(draw.nodes, idle, at)
            return
        for host, own in draw.hosts.items():
            self._set_nodes((host,), self._node_w[host] - own, at)
        for node in () if self.host else draw.nodes:
            idle = self.power[node].idle_w
            self._idle_w += idle
            self._watts += idle
            self._set_nodes((node,), idle, at)

    def _set_nodes(self, nodes: Iterable[int], watts: float, at: float) -> None:
        joules, powers, since = self._node_j, self._node_w, self._node_s
        for node in nodes:
            if since[node] != at:  # else its owner has changed in this instant
                joules[node] += powers[node] * (at - since[node])
                since[node] = at
            powers[node] = watts


def _new(
    before: Iterable[LostTime], begin_s: float, end_s: float, *, recovery: bool
) -> Iterable[LostTime]:
    """Yield the parts of a time that are in none of rising times."""
    for time in before:
        if begin_s < min(time.begin_s, end_s):
            yield LostTime(begin_s, min(time.begin_s, end_s), recovery)
        begin_s = max(begin_s, time.end_s)
    if begin_s < end_s:
        yield LostTime(begin_s, end_s, recovery)


def _clocks(job: Job) -> dict[Node, float]:
    """Return the frequencies of a job's nodes that are not the highest one."""
    return dict(zip(job.nodes, job.frequencies, strict=True)) if job.frequencies else {}
