"""The scheduler: events in, decisions out, and the books and the timeline that follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Decision,
    Ended,
    Event,
    NodeBooted,
    Reopened,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Submitted,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, NodePower
from rms.core.policies import adjusted, named
from rms.core.policies.admission import Admission
from rms.core.policies.placement import Plan, Room
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.scheduler import Scheduler
from rms.core.state import State
from rms.wire.messages import DeviceEnergy, Metered

ONE = JobId("1")
POWER = NodePower(idle_w=10.0, static_w=100.0)


def scheduler(nodes: int = 3) -> Scheduler:
    names = tuple(f"n{n}" for n in range(nodes))
    slots = tuple((f"cpu:{2 * n}", f"cpu:{2 * n + 1}") for n in range(nodes))
    return Scheduler(Cluster(names, slots, (POWER,) * nodes), named("easy"))


def spec(name: str = "1", low: int = 1, high: int = 3, preferred: int = 1) -> JobSpec:
    return JobSpec(JobId(name), 0.0, low, high, preferred, Mode.FLEXIBLE)


def fed(to: Scheduler, *events: Event) -> Scheduler:
    for event in events:
        to.feed(event)
    return to


def grown(to: Scheduler) -> Scheduler:
    """Have a job go from one node to two, from 0 s to 30 s."""
    return fed(
        to,
        Submitted(0.0, (spec(),)),
        Started(0.0, ONE),
        ResizePoint(10.0, ONE),
        ResizeAsked(10.0, ONE, 2),
        ResizeBegun(20.0, ONE),
        Resized(30.0, ONE),
    )


def test_a_decision_is_taken_and_remembered_with_slots_and_names() -> None:
    found = scheduler()
    (start,) = found.feed(Submitted(0.0, (spec(),)))
    assert isinstance(start, Start)
    (entry,) = found.history[ONE]
    assert (entry.kind, entry.size, entry.nodes) == ("start", 2, ["n0"])
    assert found.reasons[ONE] == ""


def test_resizes_are_numbered_and_a_refusal_says_why() -> None:
    found = grown(scheduler())
    assert found.resizes[ONE] == 1
    fed(found, ResizePoint(31.0, ONE))
    (refused,) = found.feed(ResizeAsked(31.0, ONE, 7))
    assert not isinstance(refused, Resize)
    assert found.resizes[ONE] == 1
    assert found.reasons[ONE] == refused.reason == found.history[ONE][-1].reason


def test_a_rollback_is_part_of_the_history_and_repeats_of_it_are_too() -> None:
    found = fed(scheduler(), Submitted(0.0, (spec(),)), Started(0.0, ONE), ResizePoint(1.0, ONE))
    for at_s in (2.0, 4.0):
        fed(found, ResizeAsked(at_s, ONE, 2), ResizeRolledBack(at_s + 1, ONE, "lost", False, True))
    kinds = [entry.kind for entry in found.history[ONE]]
    assert kinds == ["start", "resize", "rolledback", "resize", "rolledback"]


def test_who_held_which_node_when() -> None:
    found = fed(grown(scheduler()), Ended(40.0, ONE, "COMPLETED"))
    spans = [(s.node, s.job, s.start_s, s.end_s) for s in found.timeline.spans]
    assert spans == [("n0", "1", 0.0, 40.0), ("n1", "1", 20.0, 40.0)]


def test_nobody_holds_the_nodes_of_a_cluster_that_is_gone() -> None:
    found = grown(scheduler())
    fed(found, Reopened(99.0, "x", ("m0",), (POWER,), (1,), failed=(ONE,)))
    ended = {(s.node, s.end_s) for s in found.timeline.spans if s.end_s is not None}
    assert ended == {("n0", 30.0), ("n1", 30.0)}
    assert [s.node for s in found.timeline.spans if s.end_s is None] == []
    assert found.cluster.names == found.timeline.names == ("m0",)


def read(to: Scheduler, number: int, at_s: float, joules: float, node: str = "n0") -> None:
    """Have a meter report what it has counted so far."""
    devices = [DeviceEnergy("package-0", "rapl", joules)]
    to.report(Metered(node, "a", number, at_s, "boot", devices), at_s, {"package-0": (node,)})


def test_fast_readings_do_not_fill_the_memory_and_the_newest_counts() -> None:
    found = fed(scheduler(), Submitted(0.0, (spec(),)), Started(0.0, ONE))
    joules = 0.0
    for n in range(1000):
        joules += (50.0 + n) / 100
        read(found, n, 1.0 + n / 100, joules)
    curve = found.timeline.power_w
    assert len(curve) <= 25
    assert curve[-1] == (1.0 + 9.99, pytest.approx(50.0 + 999 + 20.0))
    read(found, 1001, 1.0 + 9.995, joules)
    fed(found, Ended(11.0, ONE, "COMPLETED"))
    assert curve[-2:] == [(1.0 + 9.995, 20.0), (11.0, 20.0)]


def test_looking_at_the_books_books_nothing() -> None:
    seen, unseen = grown(scheduler()), grown(scheduler())
    for at_s in (31.0, 77.0, 500.0):
        books = seen.books(at_s)
        assert books.at_s == at_s
        assert books.busy_j == pytest.approx(seen.ledger.job_j(ONE, at_s))
        assert books.busy_j + books.idle_j == pytest.approx(books.cluster_j)
        _ = seen.ledger.busy_j, seen.ledger.cluster_j, seen.ledger.power_w
    assert seen.ledger == unseen.ledger
    for each in (seen, unseen):
        fed(each, Ended(600.0, ONE, "COMPLETED"))
    assert seen.books(600.0) == unseen.books(600.0)
    assert seen.books(600.0).busy_j == pytest.approx(10 * 100.0 + 10 * 100.0 + 580 * 200.0)


def test_the_books_of_nothing() -> None:
    assert scheduler().books(7.0).cluster_j == 0.0
    assert scheduler().books(7.0).at_s == 7.0


def test_where_the_power_comes_from() -> None:
    found = fed(scheduler(), Submitted(0.0, (spec(),)))
    assert found.energy.power_source == "model"
    read(found, 1, 0.0, 0.0)
    assert found.energy.power_source == "rapl and model"
    found.forget_meter("n0", 1.0)
    assert found.energy.power_source == "model"


def test_rows_of_a_boot_that_takes_no_time_add_up() -> None:
    power = (NodePower(10.0, 100.0, off_w=1.0, boot_j=50.0),) * 2
    policy = adjusted(named("easy"), node_power={"part": "off-when-idle"})
    found = Scheduler(Cluster(("n0", "n1"), (("cpu:0",), ("cpu:1",)), power), policy)
    fed(found, Submitted(0.0, (spec(high=1),)), Started(0.0, ONE), Ended(10.0, ONE, "COMPLETED"))
    assert found.engine.state.off
    two = JobId("2")
    fed(found, Submitted(100.0, (spec("2", high=1),)))
    (node,) = found.engine.state.booting
    fed(found, NodeBooted(100.0, node), Started(100.0, two))
    books = found.books(110.0)
    rows = found.energy.measured.spans.present(110.0)
    assert books.boot_j == 50.0 == sum(row.joules for row in rows if row.owner == "boot")
    assert sum(row.joules for row in rows) == pytest.approx(books.cluster_j)
    assert books.off_j == pytest.approx(sum(row.joules for row in rows if row.owner == "off"))


# --- a policy that fails -------------------------------------------------------------------------


class Failing(Admission):
    """Let the first job wait, and raise as soon as there is a second one."""

    __slots__ = ()

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        if len(state.pending) > 1:
            raise ValueError("two")
        return []


def started(decisions: list[Decision]) -> list[str]:
    return [each.job for each in decisions if isinstance(each, Start)]


def test_who_decides_instead_starts_those_too_that_have_waited() -> None:
    """Job 1 waits though all nodes are free; at job 2 the policy fails, and EASY starts both."""
    found = scheduler()
    found.engine.policy = replace(named("fifo"), name="mine", admission=Failing())
    found.stand_ins = (named("easy"),)
    assert started(found.feed(Submitted(0.0, (spec("1"),)))) == []
    assert started(found.feed(Submitted(1.0, (spec("2"),)))) == ["1", "2"]
    assert (found.failure, found.engine.policy.name) == ("mine failed: two", "easy")


def test_another_policy_starts_whom_the_one_before_held_up() -> None:
    """One of three nodes is free for job 3, but job 2 is first until EASY decides."""
    engine = Engine(3, named("fifo"))
    jobs = [spec("1", 2, 2, 2), spec("2", 2, 2, 2), spec("3", 1, 1, 1)]
    assert started(engine.handle(Submitted(0.0, tuple(jobs)))) == ["1"]
    engine.replace(named("easy"))
    assert started(engine.handle(Submitted(1.0, (spec("4", 3, 3, 3),)))) == ["3"]
