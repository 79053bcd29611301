"""What happened to tasks, entered in the journal a second at a time.

Nothing follows from it but what other strategies would have done (``rms simulate --strategy``).
"""

from __future__ import annotations

from rms.core.model.cluster import Cluster
from rms.daemon.context import Context
from rms.kernels.model import OTHERS
from rms.kernels.record import RecordEntry, Recording, UnitPower
from rms.kernels.scheduler import TaskScheduler

RECORD_S = 1.0
"""How long entries are kept in memory: a daemon that is killed loses those."""

BEGIN_EVERY = 10_000
"""After so many entries what there is to run on is entered again: the oldest are forgotten."""


class TaskRecord:
    """Takes in what happens to the tasks of a scheduler."""

    def __init__(self, context: Context, scheduler: TaskScheduler) -> None:
        self._context, self._scheduler = context, scheduler
        self._entries, self._count = list[RecordEntry](), 0
        self._daemon = self._entered_s = context.now()

    def note(self, entry: RecordEntry) -> None:
        """Keep that something happens."""
        if self._count % BEGIN_EVERY == 0:
            self._entries.append(self._begin(entry.at_s))
        self._count += 1
        self._entries.append(entry)

    def look(self, now_s: float) -> None:
        """Enter what has happened, if it is time."""
        if self._entries and now_s >= self._entered_s + RECORD_S:
            self.enter()

    def enter(self) -> None:
        """Enter what has happened."""
        self._entered_s = self._context.now()
        if self._entries:
            entries, self._entries = self._entries, []
            self._context.journal.record(entries)

    def read(self) -> list[RecordEntry]:
        """Return all that is kept."""
        self.enter()
        return self._context.journal.recorded()

    def _begin(self, at_s: float) -> Recording:
        scheduler, state = self._scheduler, self._scheduler.state
        return Recording(
            at_s,
            self._daemon,
            tuple(state.devices.values()),
            power_of(self._context.cluster),
            scheduler.strategy.name,
            state.governor,
            tuple(sorted(unit for unit, task in state.holder.items() if task == OTHERS)),
        )


def power_of(cluster: Cluster) -> dict[int, UnitPower]:
    """Return what each node draws by its model, idle and busy; of a shared host a slot's part."""
    if not cluster.power:
        return {}
    at = {host: number for number, host in enumerate(cluster.hosts)}
    found = {}
    for unit in range(len(cluster.names)):
        host = cluster.host_of(unit)
        model, slots = cluster.power[at[host]], len(cluster.nodes_of[host]) if cluster.shared else 1
        added_w = max(0.0, model.static_w + model.dynamic_w - model.idle_w)
        found[unit] = UnitPower(model.idle_w / slots, added_w / slots)
    return found
