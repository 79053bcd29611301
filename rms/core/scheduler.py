"""The scheduler: what decides, with everything that follows from its events alone.

Engine, energy books, timeline and the history of decisions, fed by one event after the other. No
I/O, no clock: a daemon feeds it what happens, a restarted one what its journal holds, and a replay
compares what it decides with what was recorded.
"""

from __future__ import annotations

from rms.core.cluster import Cluster
from rms.core.engine import Engine
from rms.core.events import (
    Decision,
    Event,
    NodeDown,
    NodeUp,
    PowerCapSet,
    PowerMeasured,
    Reopened,
    Resize,
    ResizeRolledBack,
    Start,
    Submitted,
    Ticked,
)
from rms.core.ledger import Ledger
from rms.core.model import JobId, Node, NodePower
from rms.core.policies import Policy
from rms.core.timeline import Timeline
from rms.wire.users import Books, HistoryEntry

_OF_NO_JOB = (Submitted, Ticked, NodeDown, NodeUp, Reopened, PowerCapSet, PowerMeasured)


def repeats(entry: HistoryEntry, before: HistoryEntry) -> bool:
    """Return whether an entry of a history says no more than the one before it."""
    return (entry.kind, entry.reason, entry.size) == (before.kind, before.reason, before.size)


class Scheduler:
    """Events in, decisions out; the books are kept on the way.

    Args:
        cluster: the nodes.
        policy: what the scheduler does with all jobs.
        where: what tells these nodes from others of the same names, or "".

    Attributes:
        engine, ledger, timeline: see there.
        history: of each job, in order; repeats of one reason once.
        reasons: of each job, why it waits, or what was said of it last.
        resizes: of each job, how many resizes were decided; the newest has that number.
        power_sources: who measures a node, for nodes that are measured.
        closed: the books as they were when the last job was over, None before the first event.
        present: where the daemon is and the nodes it has there, with slots that no event knows.
    """

    def __init__(self, cluster: Cluster, policy: Policy, where: str = "") -> None:
        self.cluster, self.where = cluster, where
        self.engine = Engine(cluster.site, policy)
        self.ledger = Ledger(cluster.power or (NodePower(),) * len(cluster.names))
        self.timeline = Timeline(cluster.names)
        self.history: dict[JobId, list[HistoryEntry]] = {}
        self.reasons: dict[JobId, str] = {}
        self.resizes: dict[JobId, int] = {}
        self.power_sources: dict[Node, str] = {}
        self.closed: Books | None = None
        self.present: tuple[str, Cluster] | None = None

    def feed(self, event: Event) -> list[Decision]:
        """Take in what happened; return what is decided on it.

        Raises:
            TransitionError: it cannot have happened.
            RuleError: the policy decided what cannot be.
        """
        if isinstance(event, Reopened):
            self._reopen(event)
        state, at_s = self.engine.state, event.at_s
        self.ledger.advance(state, at_s)
        decisions = self.engine.handle(event)
        if isinstance(event, ResizeRolledBack):
            self._remember(event.job, HistoryEntry(at_s, "rolledback", "RolledBack", event.reason))
        for decision in decisions:
            goes = isinstance(decision, Start | Resize)
            self.reasons[decision.job] = "" if goes else decision.reason
            self._remember(decision.job, self.entry(at_s, decision))
            if isinstance(decision, Resize):
                self.resizes[decision.job] = self.resizes.get(decision.job, 0) + 1
        jobs = [] if isinstance(event, _OF_NO_JOB) else [event.job]
        self.ledger.follow(state)
        self.timeline.hold(state, at_s, [*jobs, *(decision.job for decision in decisions)])
        self.timeline.power(at_s, self.ledger.power_w)
        if not state.running and not state.pending:
            self.closed = self.books(at_s)
        return decisions

    def entry(self, at_s: float, decision: Decision) -> HistoryEntry:
        """Return a decision as the history has it."""
        kind, code = type(decision).__name__.lower(), str(decision.code)
        if not isinstance(decision, Start | Resize):
            return HistoryEntry(at_s, kind, code, decision.reason)
        names = [self.cluster.names[node] for node in decision.nodes]
        size = len(self.cluster.slots_of(decision.nodes))
        return HistoryEntry(at_s, kind, code, decision.reason, size, names)

    def reading(self, at_s: float, node: Node, watts: float, source: str) -> None:
        """Take a meter's reading: the node draws that from now on, whatever runs there."""
        state = self.engine.state
        self.ledger.advance(state, at_s)
        self.ledger.measured(state, node, watts)
        self.power_sources[node] = source
        self._draw()

    def forget_reading(self, at_s: float, node: Node) -> None:
        """Let the model speak again for a node whose meter has fallen silent."""
        state = self.engine.state
        self.ledger.advance(state, at_s)
        self.ledger.unmeasured(state, node)
        self.power_sources.pop(node, None)
        self._draw()

    def books(self, now_s: float) -> Books:
        """Return the energy books up to a time, should nothing happen until then."""
        return self.ledger.books(now_s, self.power_source)

    @property
    def power_source(self) -> str:
        """Where the books' power comes from."""
        found = set(self.power_sources.values())
        if len(self.power_sources) < len(self.cluster.names):
            found.add("model")
        return " and ".join(sorted(found, key=lambda word: (word == "model", word)))

    def _draw(self) -> None:
        ledger = self.ledger
        ledger.follow(self.engine.state)
        if ledger.at_s is not None:
            self.timeline.reading(ledger.at_s, ledger.power_w)

    def _remember(self, job_id: JobId, entry: HistoryEntry) -> None:
        known = self.history.setdefault(job_id, [])
        if entry.kind == "rolledback" or not known or not repeats(entry, known[-1]):
            known.append(entry)

    def _reopen(self, event: Reopened) -> None:
        """Go on elsewhere; the time between belongs to nobody."""
        self.timeline.reopen(event.nodes, self.ledger.at_s)
        self.ledger.reopen(self.engine.state, event.power, event.at_s)
        self.where = event.where
        self.cluster = Cluster.recorded(event.nodes, event.power, event.widths)
        if self.present is not None:
            where, cluster = self.present
            if (where, cluster.names) == (event.where, event.nodes):
                self.cluster = cluster
