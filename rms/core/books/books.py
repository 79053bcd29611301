"""The energy books: by the model, with measurements in its place.

The model's books (:mod:`rms.core.books.ledger`) follow from events alone, so that a replay has the
same. The measured energy less the model's energy of the same time
(:mod:`rms.core.books.measured`) is added to them, by owner and by node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from rms.core.books.ledger import Ledger
from rms.core.books.measured import SILENT_S, Measured
from rms.core.books.spans import BOOT, IDLE, MODEL, OFF, PAST, Share, check_balance
from rms.core.model.cluster import Cluster
from rms.core.model.events import Event, Reopened, ResizeBegun, ResizeEvent, WorkLost
from rms.core.model.jobs import Job, JobId, Node
from rms.core.state import State, as_job, is_task
from rms.wire.users import Books, EnergyPart, EnergyRow, LostWork

ROUNDING = 1e-9
"""A smaller share of an owner's energy that was not measured is ignored."""


@dataclass(frozen=True)
class ResizeEnergy:
    """Energy of a resize, by the model.

    Attributes:
        job_j: energy of the job from its last step before to its first step after.
        saved_j: energy that the rest of the job saves at its new size, None without a run time.
    """

    job_j: float
    saved_j: float | None


ResizeBefore = tuple[float, tuple[Node, ...]]
"""A job at the beginning of a resize: its energy so far, and its nodes."""


class EnergyBooks:
    """Model and measurements.

    Where jobs share nodes, a host is booked under several names (:meth:`Cluster.booked`): its own
    for its idle power, or that of being off or booting, and those of its slots for the power that
    jobs add.

    Attributes:
        ledger: the model's books.
        measured: meters' reports.
        resizes: energy of finished resizes, by job and number.
        begun_resizes: jobs before their present resizes.
        past_lost: what failures have cost the forgotten jobs.
        closed_by_model: the model's books as of the end of the last job, None before the first.
    """

    def __init__(self, cluster: Cluster) -> None:
        site = cluster.site
        self.ledger = Ledger(site.models, site.host, site.levels)
        self.measured = Measured()
        self.resizes: dict[tuple[JobId, int], ResizeEnergy] = {}
        self._use(cluster)
        self.begun_resizes: dict[JobId, ResizeBefore] = {}
        self.past_lost = LostWork()
        self.closed_by_model: Books | None = None
        self.measured.spans.lost = self.ledger.lost_times

    def _use(self, cluster: Cluster) -> None:
        """Book under the names of these nodes."""
        self.measured.spans.use(cluster.names)
        self._names, self._shared = cluster.names, bool(cluster.shared)
        self._index = {name: host for host, name in enumerate(cluster.hosts)}
        self._hosts = {cluster.nodes_of[name][0]: name for name in cluster.hosts}
        idle_w = {name: 0.0 for host in cluster.hosts for name in cluster.booked(host)}
        for name, model in zip(self._index, self.ledger.power, strict=True):
            idle_w[name] = model.idle_w
        self.measured.idle_w = idle_w

    # --- events ----------------------------------------------------------------------------------

    def advance(self, state: State, at_s: float) -> None:
        """Book the time until the next event."""
        if self.ledger.at_s is None:
            self.measured.spans.open(at_s, self.measured.idle_w)
        self.ledger.advance(state, at_s)

    def follow(
        self, state: State, event: Event, jobs: Iterable[JobId], numbers: Mapping[JobId, int]
    ) -> None:
        """Enter the changes of jobs by an event; ``numbers`` are those of their newest resizes."""
        at_s, spans = event.at_s, self.measured.spans
        if isinstance(event, ResizeEvent):
            self._resizing(state.running[event.job], event, numbers.get(event.job, 0))
        switched = [n for n in sorted(state.switched) if n in self._hosts] if state.switched else ()
        for node in switched:
            model, name = state.model(node), self._hosts[node]
            up = spans.on(name)[-1].owner == OFF and node not in state.off
            if up and model.boot_s <= 0.0 and model.boot_j:
                spans.booted(at_s, name, model.boot_j)
        self.ledger.follow(state)
        if isinstance(event, WorkLost):
            self._lose(event)
        over = not state.running and not state.pending
        if over:
            spans.count_from(at_s, self.measured.until_s)
        if self._shared:  # a start may change the clock of a host, and so the power of neighbours
            tasks = [JobId(owner) for owner in state.lent.values() if owner]
            jobs = dict.fromkeys((*jobs, *state.running, *tasks))
        holdings = {job: self._holding(state, job, numbers) for job in jobs}
        spans.follow(at_s, holdings, self._slot_w(holdings) if self._shared else self._node_w)
        if switched:
            owners = asleep(state)
            of_hosts = {self._hosts[node]: owners.get(node, IDLE) for node in switched}
            spans.switch(at_s, of_hosts, self._node_w)
            spans.sleep(at_s, owners)
        if over:
            spans.split(self.measured.booked_s, at_s)
            closed = self.ledger.books(at_s)
            self.closed_by_model = msgspec.structs.replace(closed, lost=self._all_lost)

    def reopen(self, state: State, event: Reopened, cluster: Cluster) -> None:
        """Go on with another cluster; the time between is not booked."""
        at_s = self.ledger.at_s
        if at_s is not None:
            self.measured.spans.close(at_s)
        self.ledger.reopen(state, cluster.site, event.at_s)
        self._use(cluster)
        self.begun_resizes.clear()
        if at_s is not None:
            self.measured.spans.open(event.at_s, self.measured.idle_w)

    def restore(
        self, sums: Iterable[EnergyRow], rows: Iterable[EnergyRow], lost: Iterable[EnergyRow]
    ) -> None:
        """Go on from the written rows, after events and meters have been restored.

        Args:
            sums: of all written rows, for :meth:`Totals.load`.
            rows: the newest ones, see :meth:`Spans.restore`.
            lost: those of the jobs that have lost work.
        """
        measured, spans = self.measured, self.measured.spans
        booked_s = measured.booked_s
        measured.until_s = max(booked_s.values(), default=measured.until_s)
        for host in measured.hosts.values():
            for device in host.devices.values():
                for source, error_j in device.errors_j.items():
                    measured.errors_j[source] = measured.errors_j.get(source, 0.0) + error_j
        for row in sums:
            spans.totals.load(row)
        spans.load_lost(lost, booked_s)
        spans.restore(rows, booked_s)
        if self.closed_by_model is not None:
            spans.split(booked_s, spans.totals.since_s)

    def forget(self, jobs: Collection[JobId]) -> None:
        """Drop the own sums of finished jobs; their energy stays in the other sums."""
        totals = self.measured.spans.totals
        for job in jobs:
            self.past_lost += self.lost(job) or LostWork()
            self.ledger.forget(job)
            totals.forget(job)
        gone = frozenset(jobs)
        for key in [key for key in self.resizes if key[0] in gone]:
            del self.resizes[key]
        for name in [name for name in totals.resize_j if name[0] in gone]:
            del totals.resize_j[name]
            totals.resize_measured.pop(name, None)

    def owners(self) -> set[JobId]:
        """Return the jobs that have sums of their own."""
        totals = self.measured.spans.totals
        owners = {*self.ledger.busy_j, *totals.owner_j, *totals.measured, *totals.since_j}
        owners.difference_update((IDLE, OFF, BOOT, PAST))
        return {JobId(owner) for owner in owners if not is_task(owner)}

    def _node_w(self, name: str) -> float:
        """Return the power of a node by the model (of a shared host: without its jobs)."""
        host = self._index[name]
        return self.ledger.base_w(host) if self._shared else self.ledger.node_w(Node(host))

    def _slot_w(self, jobs: Iterable[JobId]) -> Callable[[str], float]:
        """Return a function of the power that jobs add on a slot."""
        powers: dict[str, float] = {}
        for job_id in jobs:
            for node, watts in self.ledger.slots_w(job_id).items():
                powers[self._names[node]] = watts
        return lambda name: powers.get(name, 0.0)

    def _holding(
        self, state: State, owner: JobId, numbers: Mapping[JobId, int]
    ) -> tuple[tuple[str, ...], int | None]:
        """Return the nodes of a running job, or of a program with tasks, and the resize."""
        job = as_job(state, owner) if is_task(owner) else state.running.get(owner)
        if job is None:
            return (), None
        number = numbers.get(job.spec.id, 0) if job.resize_begun else 0
        nodes = tuple(self._names[node] for node in job.busy_nodes)
        return nodes, None if job.start_s is None else number

    def _resizing(self, job: Job, event: ResizeEvent, number: int) -> None:
        """Enter the beginning of a resize, or its energy and the energy that it will save."""
        job_id, job_j = job.spec.id, self.ledger.job_j(job.spec.id, event.at_s)
        if isinstance(event, ResizeBegun):
            self.begun_resizes[job_id] = job_j, job.nodes
            return
        before = self.begun_resizes.pop(job_id, None)
        if before is None:
            return
        before_j, nodes = before
        old_j = self._to_go_j(job, nodes, event.at_s)
        new_j = self._to_go_j(job, job.nodes, event.at_s)
        saved_j = None if old_j is None or new_j is None else old_j - new_j
        self.resizes[job_id, number] = ResizeEnergy(job_j - before_j, saved_j)

    def _lose(self, event: WorkLost) -> None:
        """Enter lost work, with the measurements of the spans in memory."""
        spans = self.measured.spans
        own = [span for span in spans.kept() if span.owner == event.job]
        for span in own:
            spans.enter_lost(span, -1)
        self.ledger.lose(event)
        for span in own:
            spans.enter_lost(span)
        spans.split(spans.held.get(event.job, ()), event.at_s)  # what it draws now is not lost

    def _to_go_j(self, job: Job, nodes: Sequence[Node], now_s: float) -> float | None:
        """Return the energy of the rest of a job on these nodes, or None."""
        if job.speedup is None or not job.speedup.allows(len(nodes)):
            return None
        left_s = job.remaining_s(len(nodes), now_s) or 0.0
        return left_s * self.ledger.job_w(job, nodes)

    # --- answers ---------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether an event was booked."""
        return self.ledger.at_s is not None

    @property
    def power_w(self) -> float:
        """Power of the cluster: measured nodes as last read, the others by the model."""
        measured_w = self.measured.node_w
        if not measured_w:
            return self.ledger.power_w
        spans, shared = self.measured.spans, self._shared
        return self.ledger.power_w + sum(
            watts - (spans.on(name)[-1].watts if shared else self._node_w(name))
            for name, watts in measured_w.items()
            if name in self.measured.idle_w
        )

    @property
    def power_source(self) -> str:
        """The present sources of power: the meters of nodes, ``model`` where not all have any."""
        sources = self.measured.sources
        names = {
            source
            for node in self.measured.idle_w
            for source in sources.get(node, MODEL).split(" and ")
        }
        return " and ".join(sorted(names, key=lambda source: (source == MODEL, source)))

    def job_j(self, job_id: JobId, now_s: float) -> float:
        """Return a job's energy up to a time, without events until then."""
        modelled = self.ledger.job_j(job_id, max(now_s, self.measured.until_s))
        return modelled + self.measured.spans.totals.owner_j.get(job_id, 0.0)

    def unsettled_j(self, now_s: float) -> dict[str, float]:
        """Return the model's energy by owner that the next reports of meters replace.

        It is that since the last report of each node, unless the node's meters have fallen silent.
        """
        unsettled_j, spans = defaultdict[str, float](float), self.measured.spans
        for node, booked_s in self.measured.booked_s.items():
            if now_s - booked_s <= SILENT_S:
                for span, seconds in spans.pieces(node, booked_s, now_s):
                    unsettled_j[span.owner] += span.watts * seconds
        return unsettled_j

    def resize_j(self, job_id: JobId, number: int) -> float | None:
        """Return the energy of a job in a resize, or None."""
        energy = self.resizes.get((job_id, number))
        if energy is None:
            return None
        return energy.job_j + self.measured.spans.totals.resize_j.get((job_id, number), 0.0)

    def lost(self, job_id: JobId) -> LostWork | None:
        """Return what failures have cost a job that goes on or went on, None without any.

        It is a part of the job's energy, and measured where that is, also by later reports. Spans
        that ended over :data:`rms.core.books.spans.LOST_S` before the failure have the model's
        energy until the daemon is started again.
        """
        lost, more_j = self.ledger.lost.get(job_id), self.measured.spans.totals.lost_j
        if lost is None:
            return None
        return lost + LostWork(
            recomputed_j=more_j.get((job_id, False), 0.0),
            recovery_j=more_j.get((job_id, True), 0.0),
        )

    @property
    def _all_lost(self) -> LostWork:
        lost = [own for job in self.ledger.lost if (own := self.lost(job)) is not None]
        return sum(lost, self.past_lost)

    def books(self, now_s: float) -> Books:
        """Return the energy books up to a time, without events until then."""
        if not self.begun:
            return self.ledger.books(now_s, self.power_source)
        model = self.ledger.books(max(now_s, self.measured.until_s))
        books = self._corrected(model, {})
        parts = _parts(self.measured.spans.totals.measured.values(), books.cluster_j)
        errors_j = self.measured.errors_j  # without the uncertainty of the split
        parts = [
            msgspec.structs.replace(part, uncertainty_j=errors_j.get(part.source, 0.0))
            for part in parts
        ]
        return msgspec.structs.replace(books, sources=parts, lost=self._all_lost)

    @property
    def closed(self) -> Books | None:
        """The books as of the end of the last job, with later reports."""
        if self.closed_by_model is None:
            return None
        return self._corrected(self.closed_by_model, self.measured.spans.totals.since_j)

    def check(self, now_s: float) -> None:
        """Raise :class:`BalanceError` if the two sums of the books differ."""
        books = self.books(now_s)
        owned_j = books.busy_j + books.tasks_j + books.idle_j + books.off_j + books.boot_j
        text, cluster_j = "owners' and nodes' energies to agree", books.cluster_j
        check_balance(text, owned_j, cluster_j, cluster_j)

    def parts(self, job_id: JobId, job_j: float) -> list[EnergyPart]:
        """Return a job's energy ``job_j`` by source."""
        return _parts([self.measured.spans.totals.measured.get(job_id, {})], job_j)

    def resize_parts(self, job_id: JobId, number: int, resize_j: float) -> list[EnergyPart]:
        """Return the energy ``resize_j`` of a job in a resize by source."""
        return _parts(
            [self.measured.spans.totals.resize_measured.get((job_id, number), {})], resize_j
        )

    def _corrected(self, model: Books, later_j: Mapping[str, float]) -> Books:
        """Return books of the model with measurements, except those of later spans."""
        totals = self.measured.spans.totals
        more_j = {
            owner: joules - later_j.get(owner, 0.0) for owner, joules in totals.owner_j.items()
        }
        idle_j, off_j, boot_j = (more_j.pop(owner, 0.0) for owner in (IDLE, OFF, BOOT))
        tasks_j = sum([more_j.pop(owner) for owner in list(more_j) if is_task(owner)])
        nodes_j = sum(totals.node_j.values()) - sum(later_j.values())
        return msgspec.structs.replace(
            model,
            busy_j=model.busy_j + sum(more_j.values()),
            tasks_j=model.tasks_j + tasks_j,
            idle_j=model.idle_j + idle_j,
            off_j=model.off_j + off_j,
            boot_j=model.boot_j + boot_j,
            cluster_j=model.cluster_j + nodes_j,
            power_source=self.power_source,
        )


def _parts(measured: Iterable[Mapping[str, Share]], whole_j: float) -> list[EnergyPart]:
    """Return an energy by source: the measured ones, and the model for the rest."""
    sums: dict[str, Share] = {}
    for by_source in measured:
        for source, share in by_source.items():
            sums.setdefault(source, Share()).add(share)
    parts = [
        EnergyPart(source, share.joules, share.uncertainty_j, share.estimate)
        for source, share in sorted(sums.items())
    ]
    left_j = whole_j - sum(part.joules for part in parts)
    if not parts or abs(left_j) > ROUNDING * max(1.0, abs(whole_j)):
        parts.append(EnergyPart(MODEL, left_j))
    return parts


def asleep(state: State) -> dict[Node, str]:
    """Return the owners of the energy of nodes, or slots, that are off or boot."""
    return dict.fromkeys(sorted(state.off), OFF) | dict.fromkeys(sorted(state.booting), BOOT)
