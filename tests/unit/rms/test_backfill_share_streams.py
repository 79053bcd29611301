"""Policy ``backfill-share`` on simulated streams of jobs: what it promises to each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from driven import (
    FIXED,
    FLEXIBLE,
    MALLEABLE,
    MOLDABLE,
    Driven,
    Kind,
    job,
    rigid,
    starts,
    streams,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rms.core.events import Ended, NodeDown, NodeUp
from rms.core.model import Job, JobId, JobSpec, JobState, Node, NodePower, Site, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.backfill_share import REST_S, BackfillShare
from rms.core.policies.order import SmallestFirst
from rms.core.state import State
from rms.sim.failures import failing
from rms.sim.run import chosen
from rms.sim.simulator import Hooks, Simulation

NODES = 8
DEFAULT = named("backfill-share")
SIZING = BackfillShare()
ARRAYS = ((None, None), (None, None), ("a", 2), ("b", None))


@dataclass
class First:
    """The first due job that waits, as long as it stays the first.

    Attributes:
        reserved_s: its reservation when it became the first: now, if it waits for lent nodes only.
        latest_s: the latest reservation worked out since.
    """

    reserved_s: float
    latest_s: float


@dataclass
class Watched:
    """A simulation, looked at after every event.

    Attributes:
        resizing: the most jobs that were being resized at once.
        sizes: of each job, the sizes it has had, and since when.
        firsts: of due jobs that waited before all others, to their starts.
        alone_s: since when the last job runs alone, and nobody waits.
    """

    specs: list[JobSpec]
    policy: Policy = DEFAULT
    at_once: int = 0
    mtbf_s: float | None = None
    lazy: bool = True
    nodes: int = NODES
    resizing: int = 0
    sizes: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    firsts: dict[str, First] = field(default_factory=dict)
    alone_s: float = inf

    def __post_init__(self) -> None:
        failures = []
        if self.mtbf_s is not None:
            failures = failing(
                self.nodes, mtbf_s=self.mtbf_s, repair_s=50.0, horizon_s=300.0, seed=1
            )
        self.simulation = Simulation(
            self.specs,
            Site(self.nodes, (NodePower(1.0, 2.0, 3.0),) * self.nodes),
            self.policy,
            hooks=Hooks(record=False, observer=self.look),
            failures=failures,
        )
        self.simulation._lazy = self.lazy
        self.state = self.simulation.engine.state
        self.state.max_concurrent_resizes = self.at_once
        self.simulation.run()

    def look(self, simulation: Simulation) -> None:
        state = simulation.engine.state
        resizing = sum(j.requested_size is not None for j in state.running.values())
        self.resizing = max(self.resizing, resizing)
        for each in state.running.values():
            had = self.sizes.setdefault(str(each.spec.id), [])
            if not had or had[-1][0] != each.size:
                had.append((each.size, state.now_s))
        alone = len(state.running) == 1 and not state.pending
        self.alone_s = min(self.alone_s, state.now_s) if alone else inf
        self._look_at_first(state)

    def _look_at_first(self, state: State) -> None:
        waiting = [state.pending[i] for i in state.due or {} if i in state.pending]
        first = next(iter(state.by_priority(waiting)), None)
        name = "" if first is None else str(first.spec.id)
        for other in [each for each in self.firsts if each != name and JobId(each) in state.pending]:
            del self.firsts[other]
        if first is None or state.one_array:
            return
        room = self.policy.placement(state)
        found = SIZING.backfilled(state, self.policy.order(state), room)
        if not found.jobs and found.first is None:
            found.first = first
        at_s = found.reserve(state, room) if found.first is first else state.now_s
        known = self.firsts.setdefault(name, First(at_s, at_s))
        known.latest_s = max(known.latest_s, at_s)

    def start_s(self, name: str) -> float:
        start_s = self.state.ended[JobId(name)].start_s
        assert start_s is not None
        return start_s


def interval_s(specs: list[JobSpec]) -> float:
    """Return how long it may take until every job has come to a resize point."""
    return max((s.resize_every_s or 0.0 for s in specs if s.mode.resizable), default=0.0)
