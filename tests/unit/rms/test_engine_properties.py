"""Whatever happens in whatever order: what the engine and every policy must keep to."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from specs import job_spec

from rms.core.books.ledger import Ledger
from rms.core.model.events import (
    Ended,
    Event,
    Freed,
    HeldByUser,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodesLost,
    NodeUp,
    Reopened,
    Requeued,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Stepped,
    Submitted,
    TasksHold,
    Ticked,
    Withdrawn,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId, JobSpec, JobState, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import POLICIES, adjusted, named
from rms.core.policies.admission import reservation
from rms.core.rules.checks import needs_s
from rms.core.rules.transition import due, next_s
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.sim.run import chosen
from rms.sim.simulator import Simulation

NODES = 7


@st.composite
def specs_of(draw: st.DrawFn, number: int, at_s: float, *, nodes: int = NODES) -> JobSpec:
    low = draw(st.integers(1, nodes))
    high = draw(st.integers(low, nodes + 1))
    known = draw(st.booleans())
    return job_spec(
        number,
        (low, draw(st.integers(low, high)), high),
        draw(st.sampled_from(Mode)),
        at_s,
        speedup=Speedup(law=(draw(st.floats(1, 99)), 1.0)) if known else None,
        limit_s=draw(st.sampled_from([None, 10.0, 50.0])),
        resize_every_s=draw(st.sampled_from([None, 3.0])),
        resize_price_s=draw(st.sampled_from([0.0, 2.0])),
        array=(array := draw(st.sampled_from([None, "a", "b"]))),
        array_limit=2 if array == "a" else None,
        power_w=draw(st.sampled_from([None, 100.0, 300.0])),
    )


def powers(nodes: int) -> tuple[NodePower, ...]:
    """Of nodes that are worth being off, some of which take no time to boot."""
    return tuple(
        NodePower(5.0 + n, 20.0, 30.0, 1.0, boot_s=2.0 * (n % 3), boot_j=3.0 * n)
        for n in range(nodes)
    )


OFF_WHEN_IDLE = [
    adjusted(POLICIES[name], node_power={"part": "off-when-idle", **when}).key
    for name, when in (
        ("easy", {"ahead": True}),
        ("array-share", {"keep": 1, "delay_s": 4.0}),
        ("backfill-share", {"keep": 2, "delay_s": 3.0, "ahead": True, "at_most": 1}),
    )
]


BY_STRATEGY = [
    adjusted(
        POLICIES["easy-share"], admission={"part": "rms.kernels.admission:ByStrategy", "name": name}
    ).key
    for name in ("short-term", "long-term")
]


def waiting(state: State) -> list[Job]:
    return [*state.pending.values(), *state.too_wide.values(), *state.held.values()]


class Cluster(RuleBasedStateMachine):
    """Any events in any order, under a policy that is swapped now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.fresh()
        self.ledger = Ledger(powers(NODES))
        self.events: list[tuple[str, Event | None]] = []
        self.decisions: list[object] = []
        self.number = 0

    def fresh(self) -> Engine:
        return Engine(Site(NODES, powers(NODES)), named("array-share"))

    def happen(self, event: Event) -> None:
        self.ledger.advance(self.engine.state, event.at_s)
        self.events.append((self.engine.policy.key, event))
        decided = self.engine.handle(event)  # the rules are checked at every decision
        for each in decided:
            if isinstance(each, Start):
                self.starts_on_nodes_that_stay(each)
        self.decisions.append(decided)
        for decision in decided:
            if isinstance(decision, Start) and self.prompt:
                self.happen(Started(event.at_s, decision.job))

    def starts_on_nodes_that_stay(self, start: Start) -> None:
        state = self.engine.state
        if state.lease is not None:
            until_s = dict(zip(state.lease.nodes, state.lease.until_s, strict=True))
            needed_s = needs_s(state.running[start.job].spec)
            assert all(until_s.get(n, inf) - state.now_s >= needed_s for n in start.nodes)

    prompt = True

    def now(self, data: st.DataObject) -> float:
        return self.engine.state.now_s + data.draw(st.sampled_from([0.0, 0.5, 3.0, 20.0]))

    def one(self, data: st.DataObject, jobs: list[Job]) -> Job:
        return data.draw(st.sampled_from(jobs))

    def running(self, *, resizing: bool) -> list[Job]:
        found = self.engine.state.running.values()
        return [
            j for j in found if j.start_s is not None and (j.requested_size is not None) == resizing
        ]

    @rule(data=st.data(), count=st.integers(1, 4))
    def submit(self, data: st.DataObject, count: int) -> None:
        at_s = self.now(data)
        self.number += count
        numbers = range(self.number - count, self.number)
        specs = [data.draw(specs_of(n, at_s)) for n in numbers]
        begin_s = data.draw(st.sampled_from([None, None, at_s - 1.0, at_s + 2.0]))
        specs[0] = replace(specs[0], begin_s=begin_s, hold=begin_s == at_s - 1.0)
        self.happen(Submitted(at_s, tuple(specs)))

    @precondition(lambda self: waiting(self.engine.state))
    @rule(data=st.data(), held=st.booleans())
    def hold(self, data: st.DataObject, held: bool) -> None:
        jobs = data.draw(st.sets(st.sampled_from(waiting(self.engine.state)), max_size=3))
        names = tuple(sorted(job.spec.id for job in jobs))
        self.happen(HeldByUser(self.now(data), names, held))
        assert not held or self.engine.state.held.keys() >= set(names)

    @precondition(lambda self: next_s(self.engine.state) < inf)
    @rule()
    def free(self) -> None:
        at_s = max(self.engine.state.now_s, next_s(self.engine.state))
        freed = due(self.engine.state, at_s)
        self.happen(Freed(at_s, freed))
        assert not self.engine.state.held.keys() & set(freed)

    @precondition(lambda self: self.engine.state.running)
    @rule(data=st.data(), state=st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT"]))
    def end(self, data: st.DataObject, state: str) -> None:
        job = self.one(data, list(self.engine.state.running.values()))
        self.happen(Ended(self.now(data), job.spec.id, state))

    @precondition(lambda self: waiting(self.engine.state))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.one(data, waiting(self.engine.state))
        self.happen(Ended(self.now(data), job.spec.id, "CANCELLED"))

    @precondition(lambda self: waiting(self.engine.state))
    @rule(data=st.data())
    def cancel_some(self, data: st.DataObject) -> None:
        ids = sorted(job.spec.id for job in waiting(self.engine.state))
        gone = data.draw(st.lists(st.sampled_from(ids), unique=True))
        self.happen(Withdrawn(self.now(data), tuple(gone)))
        assert all(self.engine.state.ended[job].state is JobState.CANCELLED for job in gone)

    @precondition(lambda self: self.engine.state.running)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        job = self.one(data, list(self.engine.state.running.values()))
        self.happen(Requeued(self.now(data), job.spec.id))

    @precondition(lambda self: self.running(resizing=False))
    @rule(data=st.data())
    def point(self, data: st.DataObject) -> None:
        self.happen(
            ResizePoint(self.now(data), self.one(data, self.running(resizing=False)).spec.id)
        )

    @precondition(lambda self: self.engine.state.running)
    @rule(data=st.data(), steps=st.integers(1, 1000), span_s=st.floats(0.01, 1e3))
    def step(self, data: st.DataObject, steps: int, span_s: float) -> None:
        job = self.one(data, list(self.engine.state.running.values()))
        at_s, at = self.now(data), steps + data.draw(st.integers(0, 1000))
        self.happen(Stepped(at_s, job.spec.id, at, 2000, steps, span_s))

    @precondition(lambda self: self.running(resizing=False))
    @rule(data=st.data(), size=st.integers(1, NODES))
    def ask(self, data: st.DataObject, size: int) -> None:
        job = self.one(data, self.running(resizing=False))
        self.happen(ResizeAsked(self.now(data), job.spec.id, size))

    @precondition(lambda self: self.able())
    @rule(data=st.data())
    def grow_and_roll_back(self, data: st.DataObject) -> None:
        job = self.one(data, self.able())
        free = self.engine.state.free_count
        self.happen(ResizeAsked(self.now(data), job.spec.id, job.size + 1))
        assert job.requested_size == job.size + 1 and self.engine.state.free_count == free - 1
        self.happen(ResizeRolledBack(self.now(data), job.spec.id))

    def able(self) -> list[Job]:
        jobs = self.running(resizing=False) if self.engine.state.free_count else []
        return [j for j in jobs if j.resizable_now and j.size < j.spec.sizes()[-1]]

    @precondition(lambda self: self.running(resizing=True))
    @rule(data=st.data(), good=st.booleans(), begun=st.booleans())
    def resize(self, data: st.DataObject, good: bool, begun: bool) -> None:
        job_id = self.one(data, self.running(resizing=True)).spec.id
        if begun:
            self.happen(ResizeBegun(self.now(data), job_id))
        at_s = self.now(data)
        self.happen(Resized(at_s, job_id) if good else ResizeRolledBack(at_s, job_id))

    @rule(data=st.data(), node=st.integers(0, NODES - 1))
    def fail_or_mend(self, data: st.DataObject, node: int) -> None:
        node %= self.engine.state.nodes
        down = Node(node) in self.engine.state.down
        at_s = self.now(data)
        self.happen(NodeUp(at_s, Node(node)) if down else NodeDown(at_s, Node(node)))

    @precondition(lambda self: self.losing())
    @rule(data=st.data(), stays_up=st.booleans(), done=st.sampled_from([None, 0.0, 0.25]))
    def lose_nodes(self, data: st.DataObject, stays_up: bool, done: float | None) -> None:
        job, state = self.one(data, self.losing()), self.engine.state
        sizes = [size for size in job.spec.sizes() if size < job.size]
        size, nodes = data.draw(st.sampled_from(sizes)), data.draw(st.permutations(job.nodes))
        kept, lost = tuple(sorted(nodes[:size])), nodes[size]
        if not stays_up and lost not in state.down:
            self.happen(NodeDown(self.now(data), lost))
        if job not in self.losing():
            return
        self.happen(NodesLost(self.now(data), job.spec.id, kept, done))
        assert job.spec.id in state.running

    def losing(self) -> list[Job]:
        """Jobs that can go on with fewer nodes."""
        return [
            job
            for job in self.engine.state.running.values()
            if job.state is JobState.RUNNING
            and job.spec.mode.resizable
            and job.size > job.spec.sizes()[0]
        ]

    @precondition(lambda self: self.running(resizing=False))
    @rule(data=st.data(), ago_s=st.sampled_from([0.0, 2.0, 30.0]))
    def lose_work(self, data: st.DataObject, ago_s: float) -> None:
        """No decision follows, and what is lost is a part of the job's energy."""
        job_id, at_s = self.one(data, self.running(resizing=False)).spec.id, self.now(data)
        until_s = data.draw(st.floats(at_s - ago_s, at_s))
        event = WorkLost(at_s, job_id, data.draw(st.floats(until_s - ago_s, until_s)), until_s, 3)
        held = self.engine.state.running[job_id].nodes
        self.happen(event)
        assert not self.decisions[-1] or self.engine.state.held
        assert self.engine.state.running[job_id].nodes == held
        self.ledger.lose(event)
        energy_j = self.ledger.job_j(job_id, at_s)
        assert 0.0 <= self.ledger.lost[job_id].energy_j <= energy_j * (1.0 + 1e-9)

    @rule(data=st.data())
    def hold_for_tasks(self, data: st.DataObject) -> None:
        state = self.engine.state
        able = sorted(state.lent.keys() | state.free)
        held = sorted(data.draw(st.sets(st.sampled_from(able)))) if able else []
        owners = [data.draw(st.sampled_from(["", "task:a[1]", "task:b[2]"])) for _ in held]
        self.happen(TasksHold(self.now(data), tuple(held), tuple(owners)))

    @rule(data=st.data(), most=st.integers(1, NODES), longest_s=st.sampled_from([40.0, 70.0]))
    def lease(self, data: st.DataObject, most: int, longest_s: float) -> None:
        at_s, nodes = self.now(data), range(self.engine.state.nodes)
        leased = tuple(map(Node, sorted(data.draw(st.sets(st.sampled_from(nodes))))))
        left_s = [data.draw(st.sampled_from([-1.0, 9.0, 20.0, 55.0, 90.0])) for _ in leased]
        until_s = tuple(at_s + s for s in left_s)
        self.happen(NodesLeased(at_s, leased, until_s, most, longest_s))

    @precondition(lambda self: self.engine.state.booting)
    @rule(data=st.data(), good=st.booleans())
    def boot(self, data: st.DataObject, good: bool) -> None:
        node = data.draw(st.sampled_from(sorted(self.engine.state.booting)))
        kind = NodeBooted if good else NodePowerFailed
        self.happen(kind(self.now(data), node))

    @rule(data=st.data(), nodes=st.integers(1, NODES + 2))
    def reopen(self, data: st.DataObject, nodes: int) -> None:
        state, at_s = self.engine.state, self.now(data)
        number = {job.spec.id: job.number for job in (*state.running.values(), *waiting(state))}
        self.ledger.follow(state)  # what was decided in this instant: a boot that takes no time
        booked = dict(self.ledger.busy_j), self.ledger.cluster_j
        down = tuple(data.draw(st.sets(st.integers(0, nodes - 1).map(Node), max_size=2)))
        failed = tuple(job for job in sorted(state.running) if data.draw(st.booleans()))
        self.ledger.reopen(state, Site(nodes, powers(nodes)), at_s)
        names = tuple(f"n{n}" for n in range(nodes))
        self.happen(Reopened(at_s, "x", names, powers(nodes), (), down, failed))
        assert (self.ledger.busy_j, self.ledger.cluster_j) == (
            {**booked[0], **dict.fromkeys(self.ledger.busy_j.keys() - booked[0].keys(), 0.0)},
            pytest.approx(booked[1]),
        )
        kept = {job.spec.id: job.number for job in (*state.running.values(), *waiting(state))}
        assert kept == {job: n for job, n in number.items() if job not in failed}
        assert all(job.least > nodes for job in state.too_wide.values())
        assert all(job.least <= nodes for job in state.pending.values())

    @rule(data=st.data())
    def tick(self, data: st.DataObject) -> None:
        self.happen(Ticked(self.now(data)))

    @rule(name=st.sampled_from([*sorted(POLICIES), *OFF_WHEN_IDLE, *BY_STRATEGY]))
    def swap(self, name: str) -> None:
        self.engine.policy = named(name)
        self.events.append((self.engine.policy.key, None))  # as a journal has it

    @invariant()
    def no_slot_twice(self) -> None:
        state = self.engine.state
        held = [node for job in state.running.values() for node in job.held]
        held.extend(state.lent)
        assert len(held) == len(set(held))
        assert not state.off.intersection(held) and not state.booting.keys() & held
        assert not state.off & state.booting.keys()
        free = set(range(state.nodes)) - set(held) - state.down - state.off - state.booting.keys()
        assert set(state.free) == free
        assert state.free_count == len(free)
        assert state.releasing == sum(
            len(set(job.nodes) - set(job.requested_nodes))
            for job in state.running.values()
            if job.requested_nodes is not None
        )

    @invariant()
    def limits_are_kept(self) -> None:
        assert sum(j.spec.array == "a" for j in self.engine.state.running.values()) <= 2
        for job in self.engine.state.running.values():
            assert job.size == len(job.nodes) and job.size in job.spec.sizes()
            if not job.spec.mode.any_start and not job.resize_count:
                assert job.size == job.spec.preferred
            if not job.spec.mode.resizable:
                assert job.requested_size is None and not job.resize_count

    @invariant()
    def the_indices_say_what_the_jobs_say(self) -> None:
        state = self.engine.state
        running = sorted((j.expected_end_s, j.number) for j in state.running.values())
        assert [(end, number) for end, number, _ in state.ends] == running
        ready = [job for job in state.running.values() if job.resizable_now]
        wide = [(j.expected_end_s, j.number) for j in ready if j.size != j.spec.sizes()[0]]
        assert [(end, number) for end, number, _ in state.shrinkable] == sorted(wide)
        narrow = [(j.pays_until_s, j.number) for j in ready if j.size != j.spec.sizes()[-1]]
        assert [(until, number) for until, number, _ in state.expandable] == sorted(narrow)
        callable_ = {
            job.spec.id: job.size - min({*job.spec.sizes()} - job.refused_sizes | {job.size})
            for job in ready
        }
        assert {id_: j.callable for id_, j in state.running.items() if j.callable} == {
            id_: number for id_, number in callable_.items() if number
        }
        assert state.callable == sum(callable_.values())
        held = Counter[str]()
        for job in state.running.values():
            held[job.spec.account] += job.size - job.callable
        assert +Counter(state.held_by) == +held
        for job in ready:
            wider = job.next_larger(job.size)
            if wider is not None and job.speedup is not None:
                left = job.remaining_share(state.now_s)
                saved = left * (job.speedup.time(job.size) - job.speedup.time(wider))
                pays = saved > job.spec.resize_price_s + 1e-9
                assert not pays or job.pays_until_s > state.now_s - 1e-9
        assert state.array_limited == sum(
            j.spec.array_limit is not None for j in state.pending.values()
        )
        there = (*state.running.values(), *state.pending.values())
        named = Counter(job.spec.array for job in there if job.spec.array is not None)
        assert state.arrays == named
        assert state.one_array == (len({job.spec.array for job in there}) == 1 and bool(named))
        queue = [job.number for job in state.pending.values()]
        assert queue == sorted(queue)
        estimates = [(state.estimate(j), j.number) for j in state.pending.values()]
        assert [entry[:2] for entry in state.by_estimate] == sorted(estimates)

    @invariant()
    def books_balance(self) -> None:
        ledger = self.ledger
        assert ledger.owned_j == pytest.approx(ledger.cluster_j, rel=1e-9, abs=1e-6)

    @invariant()
    def a_waiting_job_is_told_why(self) -> None:
        state = self.engine.state
        for job_id in (*islice(state.pending, 3), *islice(state.too_wide, 3), *state.held):
            later = self.engine.explain(job_id)
            assert later is not None and later.job == job_id and later.reason

    def teardown(self) -> None:
        """Feed the same events to a fresh engine: it decides the same."""
        again = self.fresh()
        decided = []
        for policy, event in self.events:
            if again.policy.key != policy:
                again.policy = named(policy)
            if event is not None:
                decided.append(again.handle(event))
        # Starts are followed by their Started events at once, so the order is that of the events.
        assert sorted(map(repr, decided)) == sorted(map(repr, self.decisions))


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=30)


@st.composite
def rigid(draw: st.DrawFn) -> list[JobSpec]:
    """Jobs whose limit is their run time."""
    found = []
    for number in range(draw(st.integers(2, 25))):
        size, run_s = draw(st.integers(1, 10)), float(draw(st.integers(1, 60)))
        submit_s = float(draw(st.integers(0, 80)))
        found.append(job_spec(number, size, at_s=submit_s, limit_s=run_s, run_s=run_s))
    return found


@settings(max_examples=150)
@given(rigid(), st.sampled_from(["queue", "shortest"]), st.booleans())
def test_the_first_jobs_reservation_never_slips_under_exact_estimates(
    specs: list[JobSpec], tail: str, counted: bool
) -> None:
    policy = adjusted(named("easy"), admission={"tail": tail, "estimates": "exact"})
    policy = chosen(policy, counted=True) if counted else policy
    promised: dict[str, float] = {}

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        if state.pending:
            head = next(iter(state.pending.values()))
            at_s, _ = reservation(state, policy.placement(state), [], head.least)
            before = promised.setdefault(head.spec.id, at_s)
            assert at_s <= before
            promised[head.spec.id] = at_s

    simulation = Simulation(specs, Site(10), policy, record=False, observer=look)
    simulation.run()
    for job_id, at_s in promised.items():
        start_s = simulation.engine.state.ended[JobId(job_id)].start_s
        assert start_s is not None and start_s <= at_s


@pytest.mark.parametrize("tail", ["queue", "shortest"])
def test_backfilling_keeps_the_limit_of_an_array(tail: str) -> None:
    first = [job_spec(1, 4, run_s=100.0, limit_s=100.0), job_spec(2, 6, at_s=1.0, run_s=10.0)]
    tasks = [
        replace(job_spec(n, 1, at_s=2.0, limit_s=20.0, run_s=20.0), array="a", array_limit=1)
        for n in (3, 4)
    ]
    policy = adjusted(named("easy"), admission={"tail": tail})
    simulation = Simulation([*first, *tasks], Site(6), policy)
    simulation.run()
    ended = simulation.engine.state.ended
    assert [ended[task.id].start_s for task in tasks] == [2.0, 22.0]


@settings(max_examples=100)
@given(rigid())
def test_no_reservation_slips_where_every_job_has_one(specs: list[JobSpec]) -> None:
    policy = adjusted(named("conservative"), admission={"estimates": "exact"})
    promised: dict[str, float] = {}

    def look(simulation: Simulation) -> None:
        state = simulation.engine.state
        room = policy.placement(state)
        queue = list(state.pending.values())
        plan = policy.sizing(state, queue, room)
        for job, _, at_s in policy.admission._planned(state, queue, plan, room):  # type: ignore[attr-defined]
            assert at_s <= promised.get(job.spec.id, at_s)
            promised[job.spec.id] = at_s

    simulation = Simulation(specs, Site(10), policy, record=False, observer=look)
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)
