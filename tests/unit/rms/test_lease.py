"""Nodes that are held for a time: who is started on them, and what is said to who is not."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
from routed import Idle, routed

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    NodesLeased,
    ResizeAsked,
    ResizePoint,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower
from rms.core.policies import named
from rms.core.rules.checks import LEAST_S, needs_s
from rms.core.rules.transition import TransitionError
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze, thaw
from rms.daemon.nodes.nodes import EVERY_S, SAME_S, LeaseWatch
from rms.launch.base import Demand, EngineNodes, LeaseTerms


def scheduler(nodes: int = 4) -> Scheduler:
    names = tuple(f"n{n}" for n in range(nodes))
    slots = tuple((f"{name}/core:0",) for name in names)
    return Scheduler(Cluster(names, slots, (NodePower(),) * nodes), named("easy"))


def job(
    name: str, limit_s: float | None = None, nodes: int = 1, mode: Mode = Mode.FIXED
) -> JobSpec:
    return JobSpec(JobId(name), 0.0, 1, nodes, nodes, mode, limit_s=limit_s)


def leased(at_s: float, *until_s: float, most: int = 4, longest_s: float = 1000.0) -> NodesLeased:
    return NodesLeased(at_s, tuple(map(Node, range(len(until_s)))), until_s, most, longest_s)


def started(decisions: list[Decision]) -> list[str]:
    return [each.job for each in decisions if isinstance(each, Start)]


def test_what_a_job_needs() -> None:
    assert needs_s(job("1", 500.0)) == 500.0
    assert needs_s(job("1", 500.0, mode=Mode.MOLDABLE)) == 500.0
    assert needs_s(job("1", 500.0, mode=Mode.MALLEABLE)) == LEAST_S
    assert needs_s(job("1", 5.0, mode=Mode.FLEXIBLE)) == 5.0
    assert needs_s(job("1")) == LEAST_S


@pytest.mark.promise("pilot-on-demand")
def test_who_could_not_end_in_time_waits_and_is_told_so() -> None:
    found = scheduler()
    found.feed(leased(0.0, 300.0, 300.0, 300.0, 300.0))
    array = Submitted(0.0, (job("1", 400.0), job("2", 200.0), job("3", 400.0, mode=Mode.FLEXIBLE)))
    assert started(found.feed(array)) == ["2", "3"]
    later = found.engine.explain(JobId("1"))
    assert later is not None and later.code == "AllocationEnds"
    assert later.reason == (
        "AllocationEnds: needs 400 s to end, the nodes that are free go back in 300 s"
    )
    assert started(found.feed(leased(10.0, 410.0, 410.0, 410.0, 410.0))) == ["1"]
    # The fourth node goes back at 410 s.
    assert started(found.feed(Submitted(360.0, (job("4", mode=Mode.FLEXIBLE), job("5"))))) == []
    later = found.engine.explain(JobId("4"))
    assert later is not None and "needs 60 s to reach a checkpoint" in later.reason


def test_who_never_could_is_told_so_and_is_in_nobodys_way() -> None:
    found = scheduler()
    found.feed(leased(0.0, inf, most=2, longest_s=900.0))
    both = job("1", 100.0, nodes=3), job("2", 950.0), job("3", 800.0), job("4", 10.0, nodes=9)
    decisions = found.feed(Submitted(0.0, both))
    assert started(decisions) == ["3"]
    assert [each.job for each in decisions if not isinstance(each, Start)] == ["4"]  # Never
    texts = [later.reason for n in "12" if (later := found.engine.explain(JobId(n))) is not None]
    assert texts == [
        "TooWide: needs 3 nodes, at most 2 are held at once",
        "AllocationEnds: needs 950 s to end, allocations last for 900 s",
    ]


def test_followed_decisions_and_decisions_are_the_same() -> None:
    events: list[Event] = [
        leased(0.0, 100.0, 300.0),
        Submitted(1.0, (job("1", 200.0), job("2", 90.0), job("3", 90.0, 3))),
        Started(1.0, JobId("2")),
        leased(2.0, 300.0, 300.0),
        Ended(50.0, JobId("2"), "COMPLETED"),
    ]
    first, again = scheduler(), scheduler()
    decided = [first.feed(event) for event in events]
    for event, decisions in zip(events, decided, strict=True):
        again.feed(event, decisions)
    assert again.engine.state == first.engine.state


def test_a_snapshot_keeps_it() -> None:
    found = scheduler()
    found.feed(leased(0.0, 100.0, 300.0))
    again = thaw(freeze(found), lambda key, _: named(key))
    assert again.engine.state.lease == found.engine.state.lease
    event = Submitted(1.0, (job("1", 200.0), job("2", 90.0)))
    assert again.feed(event) == found.feed(event)


def test_nodes_that_there_are_not_are_refused() -> None:
    with pytest.raises(TransitionError, match="expected nodes of this cluster"):
        scheduler(2).feed(leased(0.0, 1.0, 2.0, 3.0))


# --- the daemon ----------------------------------------------------------------------------------


class Lent(EngineNodes):
    """Nodes that are held for a time."""

    def __init__(self) -> None:
        self.until_s: dict[str, float] = {}
        self.demand: Demand | None = None

    def leases(self) -> LeaseTerms:
        return LeaseTerms(self.until_s, 2, 500.0, "")

    def follow(self, demand: Demand) -> Sequence[str]:
        self.demand = demand
        return ()


def test_the_daemon_follows_the_ends_of_its_nodes(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        context, nodes, events = server.daemon.context, Lent(), list[Event]()
        launcher = Idle(tmp_path, "instance", "unix:none")
        launcher.nodes = nodes
        context.launcher = launcher

        def handle(event: Event) -> None:
            events.append(event)
            if isinstance(event, NodesLeased):
                server.daemon.handle(event)

        watch = LeaseWatch(context, handle)

        def told(**until_s: float) -> list[Event]:
            """Return the events of a round in which nodes are held until these times."""
            nodes.until_s = until_s
            server.clock[0] += EVERY_S
            before = len(events)
            ends.extend(watch.tick(starts=True))
            return events[before:]

        ends: list[JobId] = []
        (lease,) = told(n1=2000.0, n2=2000.0)
        assert isinstance(lease, NodesLeased)
        assert (lease.until_s, lease.most, lease.longest_s) == ((2000.0, 2000.0), 2, 500.0)
        assert told(n1=2000.0 + SAME_S - 1, n2=2000.0) == []
        (lease,) = told(n1=2000.0 + SAME_S + 1, n2=2000.0)
        assert isinstance(lease, NodesLeased) and lease.until_s == (2006.0, 2000.0)

        job = JobId(server.submit(nodes=[1, 2], mode="malleable", time_s=None))
        server.daemon.handle(Started(server.clock[0], job))
        server.daemon.handle(ResizePoint(server.clock[0], job))
        assert context.state.running[job].nodes == (0, 1)
        server.clock[0] = 2000.0 - LEAST_S
        *_, asked = told(n1=3000.0, n2=2000.0)
        assert isinstance(asked, ResizeAsked)
        assert (asked.job, asked.size, asked.nodes) == (job, 1, (0,)) and ends == []
        context.state.running[job].refused_sizes = frozenset({1})
        assert told(n1=3000.0, n2=2000.0) == []
        server.clock[0] = 2000.0
        assert told(n1=3000.0, n2=2000.0) == [] and ends == [job]
        assert nodes.demand is not None and nodes.demand.busy == {"n1", "n2"}
