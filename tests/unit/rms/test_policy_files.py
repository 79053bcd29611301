"""Policies as files: compositions, a user's own part, what is refused; Chiesi's node selection."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from specs import job_spec

from rms.core.model.events import Later, Resize, ResizeAsked, ResizePoint, Start, Started, Submitted
from rms.core.model.jobs import Job, JobId, JobSpec, JobState, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import POLICIES, PolicyError, adjusted, modules_of, named, read_policy
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.kernels.admission import ByStrategy
from rms.studies.chiesi import PowerRoom, PowerSlot

JOBS = Path(__file__).parents[3] / "jobs"
OWN = '''
def last_come(state):
    """The last that came is served first."""
    return sorted(state.pending.values(), key=lambda job: -job.number)


def at_most(state, queue, plan, room, *, jobs):
    from rms.core.model.events import Start
    starts = []
    for job in queue:
        if len(state.running) + len(starts) >= jobs or not room.fits(job, job.least):
            break
        starts.append(Start(job.spec.id, room.place(job, job.least), "one of few"))
    return starts
'''


SLOT = {"part": "rms.studies.chiesi:PowerSlot", "per": "node"}


def job(number: int, size: int = 1, power_w: float | None = None) -> JobSpec:
    return job_spec(number, size, run_s=10.0, power_w=power_w)


def started(engine: Engine, *specs: JobSpec) -> list[str]:
    decided = engine.handle(Submitted(0.0, specs))
    return [d.job for d in decided if isinstance(d, Start)]


def test_a_users_own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_parts.py").write_text(OWN)
    path = tmp_path / "mine.toml"
    path.write_text(
        'order = { part = "my_parts:last_come" }\n'
        'admission = { part = "my_parts:at_most", jobs = 2 }\n'
    )
    policy = read_policy(path)
    engine = Engine(8, policy)
    assert started(engine, *(job(n) for n in range(1, 5))) == ["4", "3"]
    assert engine.explain(JobId("1")) is not None
    assert named(policy.key) == policy  # what a journal holds of it
    assert modules_of(policy) == {"my_parts"} and named(policy.key, {"my_parts"}) == policy
    with pytest.raises(PolicyError, match="--policy-modules"):
        named(policy.key, {"parts"})
    with pytest.raises(PolicyError, match="expected a policy of"):
        named(str(path), {"my_parts"})


def test_structs_of_the_program_are_parts_by_module_and_name() -> None:
    policy = read_policy(JOBS / "strategy.toml")
    assert policy.admission == ByStrategy("short-term") and not modules_of(policy)
    assert named(policy.key, ()) == policy  # no --policy-modules is needed
    with pytest.raises(PolicyError, match="of long-term, short-term, got 'banking'"):
        adjusted(policy, admission={"name": "banking"})
    function = '{"name":"x","order":{"part":"rms.cli.main:main"}}'
    with pytest.raises(PolicyError, match="--policy-modules"):
        named(function, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('order = { part = "none" }', "order of fcfs, shortest"),
        ("order = 3", 'order = {part = "name"'),
        ('admission = { part = "easy", tial = "queue" }', "tial"),
        ('admission = { part = "easy", tail = "longest" }', "longest"),
        ('placement = { part = "rms.studies.chiesi:PowerSlot" }', "cap_w"),
        ('sizing = { part = "equal-share", energy = 2.0 }', "energy of 0 to 1"),
        ('color = { part = "red" }', "color"),
        ('frequency = { part = "slow" }', "frequency of nominal, power-aware, optimal"),
        ('frequency = { part = "power-aware" }', "for frequency power-aware, got first-fit"),
        (
            'frequency = { part = "optimal-operating-point", slowdown = 0.9 }',
            "a slowdown of at least 1, got 0.9",
        ),
        ('node_power = { part = "always-on", after_s = 60 }', "after_s"),
        ('node_power = { part = "off-when-idle", keep = -1 }', "keep of at least 0, got -1"),
        (
            'node_power = { part = "off-when-idle" }\nplacement = { part = "count" }',
            "a placement that says which nodes, for nodes that go off, got count",
        ),
        ('order = { part = "no_such_module:f" }', "no_such_module"),
        ('order = { part = "math:pi" }', "cannot be called"),
        ("order = ", "x.toml"),
    ],
)
def test_what_is_not_a_policy_is_refused_in_words(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(PolicyError) as error:
        read_policy(path)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_kinds_with_one_value_may_state_it(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('frequency = { part = "nominal" }\nnode_power = { part = "always-on" }\n')
    stated = read_policy(path)
    assert started(Engine(8, stated), job(1)) == ["1"]
    assert named(stated.key) == stated


def test_every_shipped_policy_is_made_again_from_its_text() -> None:
    assert {"fifo", "easy", "conservative", "array-share", "array-share-paper"} <= set(POLICIES)
    for name, policy in POLICIES.items():
        assert policy.key == name
        assert named(policy.text) == policy
        assert adjusted(policy) == policy


def test_a_policy_that_counts_does_not_follow_one_that_places() -> None:
    engine = Engine(4, named("fifo"))
    with pytest.raises(RuntimeError, match="places jobs"):
        engine.policy = adjusted(named("fifo"), placement={"part": "count"})


def node(idle_w: float = 240.0) -> NodePower:
    return NodePower(idle_w=idle_w)


def running(state: State, number: int, slot: int, power_w: float) -> None:
    found = Job(job(number, 1, power_w), number, 1, JobState.RUNNING, (Node(slot),), 1)
    state.running[found.spec.id] = found
    state.take((Node(slot),))
    state.free_count -= 1


def selected(cap_w: float, busy: dict[int, list[float]], power_w: float) -> int | None:
    """Return the node that takes a job: figure 2 on four nodes of four GPUs."""
    site = Site(16, (node(),) * 4, tuple(slot // 4 for slot in range(16)))
    state = State(site)
    number = 0
    for host, powers in busy.items():
        for at, watts in enumerate(powers):
            number += 1
            running(state, number, 4 * host + at, watts)
    room = PowerSlot(cap_w)(state)
    candidate = Job(job(99, 1, power_w), 99, 1)
    if not room.fits(candidate, 1):
        return None
    return room.place(candidate, 1)[0] // 4


def test_figure_2_the_smallest_slot_that_is_not_negative() -> None:
    # Slots left at 800 W for a job of 160 W: 400, 220, 0 and 180 W; then one that is full.
    busy = {0: [], 1: [180.0], 2: [180.0, 220.0], 3: [110.0, 110.0]}
    assert selected(800.0, busy, 160.0) == 2
    assert selected(800.0, busy, 161.0) == 3
    assert selected(800.0, {0: [160.0] * 4, 1: [], 2: [], 3: []}, 560.0) == 3  # ties: the last
    assert selected(800.0, {}, 561.0) is None


def test_figure_3_four_nodes_of_four() -> None:
    # Node 1 has no GPU free, node 2 no power; node 4 has the smaller slot of the two that are left.
    busy = {
        0: [110.0] * 4,
        1: [220.0, 190.0, 110.0],
        2: [110.0, 160.0],
        3: [160.0, 170.0],
    }
    assert selected(850.0, busy, 180.0) == 3


def test_a_rack_has_one_cap() -> None:
    site = Site(4, (node(100.0),) * 4, (0, 1, 2, 3), (0, 0, 1, 1))
    state = State(site)
    running(state, 1, 0, 50.0)
    room = PowerRoom(state, 300.0, "rack")
    wide = Job(job(9, 1, 60.0), 9, 1)
    assert room.fits(wide, 1)
    assert room.place(wide, 1)[0] in (2, 3)  # the other rack has 250 W already
    small = Job(job(10, 1, 50.0), 10, 1)
    assert room.fits(small, 1)
    assert room.place(small, 1) == (Node(1),)
    assert not room.fits(wide, 1)


def test_the_cap_holds_and_the_reason_says_so() -> None:
    site = Site(4, (node(),), (0, 0, 0, 0))
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 680.0}))
    specs = [job(n, 1, watts) for n, watts in enumerate((220.0, 220.0, 110.0, 180.0), 1)]
    assert started(engine, *specs) == ["1", "2"]  # 680 W, no more
    later = engine.explain(JobId("3"))
    assert later is not None and later.reason.startswith("PowerCap")
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 800.0}))
    assert started(engine, *specs) == ["1", "2", "3"]  # 790 W
    first = [job(1, 1, 220.0), job(2, 1, 220.0), job(3, 1, 220.0), job(4, 1, 110.0)]
    engine = Engine(site, adjusted(named("p-fifo"), placement={"cap_w": 800.0}))
    assert started(engine, *first) == ["1", "2"]  # nobody overtakes
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 800.0}))
    assert started(engine, *first) == ["1", "2", "4"]


def unstated(number: int, size: int = 1, speedup: Speedup | None = None) -> JobSpec:
    return job_spec(number, size, speedup=speedup, run_s=10.0)


def test_a_job_without_power_counts_as_what_its_slots_draw_when_busy() -> None:
    """A host draws 100 W idle and 400 W with all four slots busy: 75 W a slot."""
    busy = NodePower(100.0, 250.0, 150.0)
    site = Site(4, (busy,), (0, 0, 0, 0))
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 249.9}))
    assert started(engine, *(unstated(n) for n in range(1, 4))) == ["1"]
    later = engine.explain(JobId("2"))
    assert later is not None and later.reason.startswith("PowerCap")
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 249.9}))
    assert started(engine, unstated(1), unstated(2, 3)) == ["1"]
    later = engine.explain(JobId("2"))
    assert later is not None
    assert later.reason == "PowerCap: 3 nodes are free, but its power fits on none"
    engine = Engine(site, adjusted(named("p-bff"), placement={"cap_w": 250.0}))
    assert started(engine, job(1, 1, 76.0), unstated(2), job(3, 1, 74.0)) == ["1", "3"]
    assert PowerSlot(174.0).refusal(site, unstated(1)) == (
        "adds 75 W to an idle node: 175 W, the cap is 174 W"
    )
    assert PowerSlot(175.0).refusal(site, unstated(1)) is None
    # Nodes that are given whole: all that a busy node draws above idle.
    engine = Engine(
        Site(2, (busy,) * 2), adjusted(named("fifo"), placement=SLOT | {"cap_w": 399.0})
    )
    assert started(engine, unstated(1)) == []
    engine = Engine(
        Site(2, (busy,) * 2), adjusted(named("fifo"), placement=SLOT | {"cap_w": 400.0})
    )
    assert started(engine, unstated(1, 2)) == ["1"]


def test_a_job_without_power_goes_where_its_own_node_model_fits() -> None:
    """A busy slot adds 200 W on the first host, 20 W on the second."""
    power = (NodePower(100.0, 500.0), NodePower(100.0, 140.0))
    site = Site(4, power, (0, 0, 1, 1))
    room = PowerRoom(State(site), 200.0, "node")
    waiting = Job(unstated(1), 1, 1)
    assert room.fits(waiting, 1) and room.place(waiting, 1) == (Node(2),)
    assert PowerSlot(119.0).refusal(site, unstated(1)) is not None
    assert PowerSlot(120.0).refusal(site, unstated(1)) is None
    # It is refused on both hosts; a job with less than it adds to the first one still fits there.
    room = PowerRoom(State(site), 119.0, "node")
    assert not room.fits(waiting, 1) and room.fits(Job(job(2, 1, 19.0), 2, 1), 1)


def test_a_profile_counts_with_its_peak() -> None:
    """Mean 130 W, of which 30 above idle; 90 W above idle at the peak."""
    profiled = Speedup((1, 2), (20.0, 10.0), (130.0, 120.0), peak_w_per_node=(90.0, 80.0))
    site = Site(2, (NodePower(100.0, 500.0),) * 2)
    for size, above_w in ((1, 90.0), (2, 80.0)):
        spec = unstated(1, size, profiled)
        assert PowerSlot(99.0 + above_w).refusal(site, spec) is not None
        assert PowerSlot(100.0 + above_w).refusal(site, spec) is None
    flat = Speedup((1, 2), (20.0, 10.0), (130.0, 120.0), peak_w_per_node=(10.0, 10.0))
    assert PowerSlot(129.0).refusal(site, unstated(1, 1, flat)) is not None  # no less than its mean


def test_a_task_counts_as_a_busy_slot() -> None:
    state = State(Site(2, (NodePower(100.0, 400.0),), (0, 0)))
    state.take((Node(0),))
    state.free_count -= 1
    room = PowerSlot(400.0)
    for owner, fits in (("", True), ("task:mine.py[7]", False)):
        state.lent = {Node(0): owner}
        assert room(state).fits(Job(job(1, 1, 151.0), 1, 1), 1) is fits
        assert room(state).fits(Job(job(1, 1, 150.0), 1, 1), 1)


def test_a_job_of_which_nothing_is_known_counts_as_nothing() -> None:
    engine = Engine(
        Site(4, (node(),), (0,) * 4), adjusted(named("p-bff"), placement={"cap_w": 240.0})
    )
    assert started(engine, *(unstated(n) for n in range(1, 4))) == ["1", "2", "3"]


@pytest.mark.parametrize(("cap_w", "expected"), [(575.0, Later), (600.0, Resize)])
@pytest.mark.parametrize("sizing", ["as-asked", "equal-share"])
def test_a_resize_over_the_cap_is_not_made(
    cap_w: float, expected: type[Later] | type[Resize], sizing: str
) -> None:
    """Four idle nodes of 75 W, a job of 200 W on two of them, 50 W more for each it is to have."""
    site = Site(4, (node(75.0),) * 4)
    placement = {"part": "rms.studies.chiesi:PowerSlot", "cap_w": cap_w, "per": "rack"}
    policy = adjusted(named("fifo"), placement=placement, sizing={"part": sizing})
    engine = Engine(site, policy)
    spec = JobSpec(
        JobId("1"), 0.0, 2, 4, 2, Mode.MALLEABLE, Speedup((2, 4), (100.0, 50.0)), power_w=200.0
    )
    assert started(engine, spec) == ["1"]
    engine.handle(Started(0.0, spec.id))
    decided = engine.handle(ResizePoint(1.0, spec.id))
    if sizing == "as-asked":
        decided = engine.handle(ResizeAsked(1.0, spec.id, 4))
        assert [type(decision) for decision in decided] == [expected]
    else:
        assert [type(decision) for decision in decided] == [Resize] * (expected is Resize)
