"""Jobs that may have some nodes only: where they run, what that costs others, what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import SCRIPT, routed
from specs import job_spec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Ended, Event, NodeDown, Resize, Start, Submitted
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import adjusted, named
from rms.core.policies.admission import reservation
from rms.core.policies.placement import ListedRoom
from rms.core.rules.checks import RuleError, allowed, check
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze, thaw
from rms.core.state import State
from rms.sim.simulator import Simulation

NODES = 6
NAMES = tuple(f"n{n}" for n in range(NODES))
LISTS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=NODES, unique=True).map(tuple)
PLACING = ["fifo", "easy", "conservative", "array-share", "easy-share", "backfill-share"]


@st.composite
def specs_of(draw: st.DrawFn, number: int, *, rigid: bool = False) -> JobSpec:
    """One of a stream of jobs, half of them with a list."""
    nodelist = draw(st.none() | LISTS) or ()
    exclude = draw(st.none() | LISTS) or ()
    own = set(nodelist or NAMES) - set(exclude)
    if not own:
        nodelist, exclude, own = (), (), set(NAMES)
    low = draw(st.integers(1, len(own)))
    high = low if rigid else draw(st.integers(low, len(own)))
    run_s = draw(st.integers(1, 30))
    return job_spec(
        number,
        (low, high, high),
        Mode.FIXED if rigid else draw(st.sampled_from(Mode)),
        float(draw(st.integers(0, 40))),
        speedup=None if rigid else Speedup(law=(float(run_s), 1.0)),
        limit_s=draw(st.sampled_from([None, 40.0])) if not rigid else run_s + 5.0,
        run_s=float(run_s) if rigid else None,
        resize_every_s=draw(st.sampled_from([None, 3.0])),
        resize_price_s=draw(st.sampled_from([0.0, 2.0])),
        array=(array := None if rigid else draw(st.sampled_from([None, "a", "b"]))),
        array_limit=2 if array == "a" else None,
        nodelist=nodelist,
        exclude=exclude,
    )


def streams(*, rigid: bool = False) -> st.SearchStrategy[list[JobSpec]]:
    return st.integers(1, 14).flatmap(
        lambda number: st.tuples(*(specs_of(n, rigid=rigid) for n in range(number))).map(list)
    )


def given_nodes(simulation: Simulation) -> list[tuple[str, tuple[int, ...]]]:
    found = [each for _, each in simulation.decisions if isinstance(each, Start | Resize)]
    return [(each.job, each.nodes) for each in found]


@pytest.mark.promise("node-lists")
@settings(max_examples=60)
@given(streams(), st.sampled_from(PLACING), st.booleans(), st.sampled_from([None, 450.0]))
def test_nobody_has_other_nodes_nor_starves(
    specs: list[JobSpec], policy: str, powered: bool, cap_w: float | None
) -> None:
    made = named(policy)
    if powered:
        made = adjusted(made, node_power={"part": "off-when-idle"})
    model = NodePower(5.0, 20.0, 30.0, 1.0, boot_s=2.0, boot_j=3.0)
    site = Site(NODES, (model,) * NODES, names=NAMES, power_cap_w=cap_w)
    simulation = Simulation(specs, site, made)
    simulation.run()
    state = simulation.engine.state
    assert len(state.ended) == len(specs) and not state.listed
    by_id = {spec.id: spec for spec in specs}
    for job_id, nodes in given_nodes(simulation):
        assert allowed(state, by_id[JobId(job_id)]).issuperset(nodes)
    again = Engine(site, made)
    replayed = [decision for event in simulation.events for decision in again.handle(event)]
    assert replayed == [decision for _, decision in simulation.decisions]


@settings(max_examples=60)
@given(streams(rigid=True))
def test_a_first_job_is_not_delayed_by_those_with_lists(specs: list[JobSpec]) -> None:
    policy, promised = named("easy"), dict[str, float]()

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        head = next(iter(state.pending.values()), None)
        if head is not None and head.spec.id not in state.listed:
            at_s, _ = reservation(state, policy.placement(state), [], head.least)
            assert at_s <= promised.setdefault(head.spec.id, at_s)

    simulation = Simulation(specs, Site(NODES, names=NAMES), policy, record=False, observer=look)
    simulation.run()
    for job_id, at_s in promised.items():
        start_s = simulation.engine.state.ended[JobId(job_id)].start_s
        assert start_s is not None and start_s <= at_s


def listed(name: str, nodes: int, nodelist: str = "", exclude: str = "") -> JobSpec:
    lists = {"nodelist": tuple(nodelist.split()), "exclude": tuple(exclude.split())}
    return job_spec(name, nodes, limit_s=10.0, **lists)


def scheduler(policy: str = "easy") -> Scheduler:
    slots = tuple((f"{name}/core:0",) for name in NAMES)
    return Scheduler(Cluster(NAMES, slots, (NodePower(),) * NODES), named(policy))


def starts(decisions: list[Decision]) -> dict[str, tuple[int, ...]]:
    return {each.job: each.nodes for each in decisions if isinstance(each, Start)}


def test_nodes_of_a_list_are_kept_for_the_first_and_others_take_what_few_may_have() -> None:
    found = scheduler()
    wide, one = listed("1", 2, "n0 n1"), listed("2", 1)
    # The one without a list leaves the two nodes that the other may have.
    assert starts(found.feed(Submitted(0.0, (one, wide)))) == {"2": (2,), "1": (0, 1)}
    first, others = listed("3", 2, "n1 n3"), tuple(listed(str(n), 1) for n in range(4, 9))
    # n3 is kept for the first in the queue until n1 is free; the others go past it.
    decided = starts(found.feed(Submitted(1.0, (first, *others))))
    assert decided == {"4": (4,), "5": (5,)}
    later = found.engine.explain(JobId("3"))
    assert later is not None
    assert later.reason == "Resources: waits for 2 nodes, of its list 1 is free"
    assert starts(found.feed(Ended(2.0, JobId("1"), "COMPLETED"))) == {"3": (1, 3), "6": (0,)}


def test_who_lists_nodes_that_are_kept_for_another_is_in_nobodys_way() -> None:
    found = scheduler()
    found.feed(Submitted(0.0, (listed("1", 1, "n0"),)))
    jobs = listed("2", 2, "n0 n1"), listed("3", 1, "n1"), listed("4", 4)
    assert starts(found.feed(Submitted(1.0, jobs))) == {"4": (2, 3, 4, 5)}
    assert starts(found.feed(Ended(2.0, JobId("1"), "COMPLETED"))) == {"2": (0, 1)}


def test_a_list_whose_nodes_are_down_is_in_nobodys_way() -> None:
    found = scheduler()
    found.feed(NodeDown(0.0, Node(0)))
    decided = found.feed(Submitted(0.0, (listed("1", 2, "n0 n1"), listed("2", 5))))
    assert starts(decided) == {"2": (1, 2, 3, 4, 5)}
    later = found.engine.explain(JobId("1"))
    assert later is not None and "ReqNodeNotAvail: of its list 1 is there" in later.reason


def test_no_policy_may_give_other_nodes_and_a_snapshot_knows_which() -> None:
    found = scheduler()
    events: list[Event] = [Submitted(0.0, (listed("1", 6), listed("2", 1, exclude="n0 n1")))]
    found.feed(events[0])
    again = thaw(freeze(found), lambda key, _: named(key))
    for each in (found, again):
        assert each.engine.state.listed == {"2"}
        with pytest.raises(RuleError, match="expected nodes of its list for 2"):
            engine = Engine(Site(NODES, names=NAMES), named("easy"))
            engine.state.enqueue(Job(listed("2", 1, exclude="n0")))
            engine.state.listed.add(JobId("2"))
            check(engine.state, Start(JobId("2"), (Node(0),), "", "FITS"))  # type: ignore[arg-type]
        assert starts(each.feed(Ended(9.0, JobId("1"), "COMPLETED"))) == {"2": (2,)}


def test_a_job_gets_as_many_nodes_of_its_list_as_it_asks_for_or_all_that_are_left() -> None:
    state = State(Site(NODES, names=NAMES))
    job = Job(listed("1", 1, "n1 n3 n5"))
    state.enqueue(job)
    state.listed.add(job.spec.id)
    room = ListedRoom(state)
    assert [room.of(job, most) for most in (0, 1, 2, 9)] == [[], [1], [1, 3], [1, 3, 5]]
    assert (room.place(job, 0), room.free) == ((), 6)
    assert (room.place(job, 2), room.free) == ((1, 3), 4)
    assert room.of(job) == [5] and room.rest == [0, 2, 4, 5]


def test_under_a_placement_that_picks_nodes_itself_it_waits() -> None:
    found = scheduler("p-fifo")
    powered = listed("1", 1, "n1")
    assert not starts(found.feed(Submitted(0.0, (powered,))))
    later = found.engine.explain(JobId("1"))
    assert later is not None and later.reason.startswith("NodeList: this policy")


def test_ranks_fill_the_nodes_that_are_named(tmp_path: Path) -> None:
    slots = ("cpu:0",), ("cpu:1", "cpu:2")
    with routed(tmp_path, Cluster(("small", "wide"), slots, (NodePower(),) * 2)) as server:
        body = SCRIPT | {"options": {"ntasks": 2}}
        status, answer = server.ask("POST", "/jobs", body)
        assert status == 400 and "--ntasks to fill whole nodes of 1 or 2 slots" in answer["error"]
        job = server.daemon.context.state.job(JobId(server.submit(ntasks=2, nodelist="wide")))
        assert job is not None and (job.spec.preferred, job.nodes) == (1, (1,))


def test_lists_are_submitted_as_to_slurm_or_refused_in_words(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        state = server.daemon.context.state
        assert server.submit(nodelist="n[1-2]") == "1"  # --nodes: as many as it names
        text = "#!/bin/sh\n#SBATCH -x n1 --nodes=1-2\n#RMS --mode=flexible\ntrue\n"
        assert server.ask("POST", "/jobs", SCRIPT | {"text": text}) == (200, {"ids": ["2"]})
        first, second = (state.job(JobId(n)) for n in "12")
        assert first is not None and second is not None
        assert (first.spec.nodelist, first.spec.preferred) == (("n1", "n2"), 2)
        assert (second.spec.exclude, second.spec.nodes_max) == (("n1",), 1)
        assert server.ask("GET", "/jobs?id=2")[1][0]["exclude"] == ["n1"]
        for options, said in (
            ({"nodelist": "n7"}, "--nodelist: expected nodes of this cluster, got 'n7'"),
            ({"nodelist": "n[1-999999999]"}, "--nodelist: expected at most 100000 nodes"),
            ({"exclude": "n[1-2]"}, "--exclude: expected at least 1 nodes left to it, got 0"),
            ({"nodelist": "n1", "nodes": [2, 2]}, "--nodelist: expected at least 2 nodes"),
        ):
            status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": options})
            assert status == 400 and said in answer["error"]
        assert server.ask("POST", "/policy", {"name": "p-fifo"})[0] == 200
        status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {"exclude": "n1"}})
        assert status == 400 and "expected a policy that takes nodes in order" in answer["error"]
