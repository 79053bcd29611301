"""The scheduler: the engine, the energy books, the timeline and the history of decisions.

They follow from events alone. No I/O, no clock: a daemon feeds it events as they happen, a
restarted one the events of its journal, and a replay compares its decisions with the recorded ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rms.core.books.books import EnergyBooks
from rms.core.books.ledger import Ledger
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    NO_RESIZE,
    Decision,
    Event,
    JobDecision,
    JobEvent,
    PowerOff,
    PowerOn,
    Reopened,
    Requeued,
    Resize,
    ResizeRolledBack,
    Start,
    Submitted,
    WorkLost,
)
from rms.core.model.jobs import JobId
from rms.core.policies import Policy
from rms.core.rules.checks import RuleError
from rms.core.scheduler.engine import Engine
from rms.core.state import owners_changed
from rms.wire.messages import Metered
from rms.wire.users import Books, HistoryEntry


def repeats(entry: HistoryEntry, before: HistoryEntry) -> bool:
    """Return whether an entry of a history repeats the one before it."""
    return (entry.kind, entry.reason, entry.size) == (before.kind, before.reason, before.size)


class Scheduler:
    """Events in, decisions out; the books are kept on the way.

    Args:
        cluster: the nodes.
        policy: decides on all jobs.
        where: an identifier that distinguishes clusters with the same names, or "".

    Attributes:
        history: entries by job, in order, without repeats.
        reasons: by job, why it waits, or the reason of its last decision.
        resizes: by job, the number of resizes decided, which is the number of the newest.
        present: the place of the daemon and its nodes there, with slots, which events do not have.
        stand_ins: policies that decide in turn instead of one that fails; without them the error
            of a policy is raised.
        failure: the failure of the policy on the newest event, or "".
    """

    def __init__(self, cluster: Cluster, policy: Policy, where: str = "") -> None:
        self.cluster, self.where = cluster, where
        self.engine = Engine(cluster.site, policy)
        self.energy = EnergyBooks(cluster)
        self.timeline = self.energy.measured.spans
        self.history: dict[JobId, list[HistoryEntry]] = {}
        self.reasons: dict[JobId, str] = {}
        self.resizes: dict[JobId, int] = {}
        self.present: tuple[str, Cluster] | None = None
        self.stand_ins: tuple[Policy, ...] = ()
        self.failure = ""

    def feed(self, event: Event, recorded: Sequence[Decision] | None = None) -> list[Decision]:
        """Apply an event; return the decisions on it.

        Args:
            recorded: decisions to follow; None to decide.

        Raises:
            TransitionError: it cannot have happened.
            RuleError: a decision breaks a rule.
        """
        if isinstance(event, Reopened):
            self._reopen(event)
        state, at_s = self.engine.state, event.at_s
        lent = state.lent
        self.energy.advance(state, at_s)
        decisions = self._decide(event, recorded)
        if isinstance(event, ResizeRolledBack):
            self._remember(event.job, HistoryEntry(at_s, "rolledback", "RolledBack", event.reason))
        if isinstance(event, Requeued) and event.reason:
            self._remember(event.job, HistoryEntry(at_s, "requeued", "Requeued", event.reason))
        if isinstance(event, WorkLost) and event.reason:
            self._remember(event.job, HistoryEntry(at_s, "worklost", "WorkLost", event.reason))
        of_jobs = [item for item in decisions if not isinstance(item, PowerOff | PowerOn)]
        for decision in of_jobs:
            goes = isinstance(decision, Start | Resize)
            self.reasons[decision.job] = "" if goes else decision.reason
            self._remember(decision.job, self.entry(at_s, decision))
            if isinstance(decision, Resize):
                self.resizes[decision.job] = self.resizes.get(decision.job, 0) + 1
        jobs = [event.job] if isinstance(event, JobEvent) else []
        jobs.extend(decision.job for decision in of_jobs)
        owners = [] if state.lent is lent else owners_changed(lent, state.lent)
        self.energy.follow(state, event, [*jobs, *owners], self.resizes)
        self.timeline.power(at_s, self.energy.power_w)
        return decisions

    def _decide(self, event: Event, recorded: Sequence[Decision] | None) -> list[Decision]:
        """Decide on an event, or follow recorded decisions; a policy that fails is replaced."""
        engine, self.failure = self.engine, ""
        if recorded is not None:
            engine.follow(event, recorded)
            return list(recorded)
        engine.apply(event)
        decisions = self._decided(event)
        if self.failure:
            engine.replace(engine.policy)
        return decisions

    def _decided(self, event: Event) -> list[Decision]:
        engine, decisions = self.engine, list[Decision]()
        policies = iter(self.stand_ins)
        while engine.asks(event):
            try:
                return decisions + engine.decide((event,))
            except Exception as error:  # a user's own function may raise anything
                decisions += error.taken if isinstance(error, RuleError) else ()
                if decisions and isinstance(event, Submitted):  # some of them may be refused by now
                    left = tuple(s for s in event.specs if s.id in engine.state.pending)
                    event = Submitted(event.at_s, left)
                self.failure = self.failure or f"{engine.policy.name} failed: {error}"
                instead = next((p for p in policies if p is not engine.policy), None)
                if instead is None:
                    if self.stand_ins:
                        break
                    raise
                engine.policy, engine.state.needs_pass = instead, True
        return decisions

    def forget(self, jobs: Collection[JobId]) -> None:
        """Drop finished jobs; no decision depends on them."""
        state = self.engine.state
        arrays = {job.spec.array for job_id in jobs if (job := state.ended.pop(job_id, None))}
        for records in (self.history, self.reasons, self.resizes):
            for job_id in jobs:
                records.pop(job_id, None)
        left = {job.spec.array for job in state.ended.values()} | state.arrays.keys()
        for array in arrays - left:
            state.outcomes.pop(array or "", None)
        self.energy.forget(jobs)
        self.timeline.forget_jobs(frozenset(jobs))

    def entry(self, at_s: float, decision: JobDecision) -> HistoryEntry:
        """Return the entry of a decision in the history."""
        kind, code = type(decision).__name__.lower(), str(decision.code)
        if decision.code in NO_RESIZE:
            kind = "refused"
        if not isinstance(decision, Start | Resize):
            return HistoryEntry(at_s, kind, code, decision.reason)
        names = [self.cluster.names[node] for node in decision.nodes]
        size = len(self.cluster.slots_of(decision.nodes))
        return HistoryEntry(at_s, kind, code, decision.reason, size, names)

    def report(self, report: Metered, now_s: float, nodes: Mapping[str, Sequence[str]]) -> bool:
        """Book a report of a node's meters; return whether it is new.

        Args:
            now_s: the present time.
            nodes: nodes by device.

        Raises:
            ReplacedAgentError: another agent reports in its place.
        """
        news = self.energy.measured.take(report, now_s, nodes)
        if news and report.devices and self.energy.begun:
            self._draw(now_s)
        return news

    def forget_meter(self, host: str, now_s: float) -> None:
        """Use the model for the power of a host's nodes, whose meters have fallen silent."""
        self.energy.measured.forget_power(host)
        if self.energy.begun:
            self._draw(now_s)

    def use_levels(self, levels: tuple[tuple[float, float], ...]) -> None:
        """Set the frequencies of nodes after a restart of the daemon."""
        if levels != self.cluster.levels:
            self.cluster = replace(self.cluster, levels=levels)
            self.engine.state.use_levels(levels)
            self.ledger.levels = levels

    def books(self, now_s: float) -> Books:
        """Return the energy books up to a time, should nothing happen until then."""
        return self.energy.books(now_s)

    @property
    def closed(self) -> Books | None:
        """The books as of the end of the last job, None before the first event."""
        return self.energy.closed

    @property
    def ledger(self) -> Ledger:
        """The model's books."""
        return self.energy.ledger

    def _draw(self, now_s: float) -> None:
        self.timeline.reading(max(now_s, self.engine.state.now_s), self.energy.power_w)

    def _remember(self, job_id: JobId, entry: HistoryEntry) -> None:
        entries = self.history.setdefault(job_id, [])
        happens = entry.kind in ("rolledback", "worklost")
        if happens or not entries or not repeats(entry, entries[-1]):
            entries.append(entry)

    def _reopen(self, event: Reopened) -> None:
        """Go on with another cluster; the time between is not booked."""
        self.where = event.where
        self.cluster = Cluster.recorded(
            event.nodes, event.power, event.widths, event.shared, event.levels
        )
        self.energy.reopen(self.engine.state, event, self.cluster)
        if self.present is not None:
            where, cluster = self.present
            if (where, cluster.names) == (event.where, event.nodes):
                self.cluster = cluster
