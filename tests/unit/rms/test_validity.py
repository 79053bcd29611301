"""Events that cannot have happened are refused before they are in the journal."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest
from faults import Fault
from killed import bench as opened

from rms.core.model.events import (
    Ended,
    Event,
    Freed,
    HeldByUser,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
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
)
from rms.core.model.jobs import JobId, JobSpec, Mode, Node
from rms.core.policies import named
from rms.core.rules import transition
from rms.core.rules.transition import TransitionError, check
from rms.core.scheduler.engine import Engine
from rms.daemon.restart.recover import replayed
from rms.daemon.store.notes import ScriptNote

NODES = 4
OF_JOBS = (Started, ResizePoint, Requeued, ResizeBegun, Resized, ResizeRolledBack)
OF_NODES = (NodeDown, NodeUp, NodeBooted, NodePowerFailed)


def spec(number: int, at_s: float, *, hold: bool = False) -> JobSpec:
    return JobSpec(JobId(str(number)), at_s, 1, 4, 1 + number % 3, Mode.FLEXIBLE, hold=hold)


def events(at_s: float) -> Iterator[Event]:
    """Yield events of all kinds about all there is, and about what there is not."""
    for job in map(JobId, ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0")):
        yield from (kind(at_s, job) for kind in OF_JOBS)
        yield Ended(at_s, job, "COMPLETED")
        yield from (Stepped(at_s, job, 1, 9, *made) for made in ((1, 1.0), (0, 1.0), (1, 0.0)))
        yield Stepped(at_s, job, 1, 9, 1, nan)
        yield from (HeldByUser(at_s, (job,), held) for held in (True, False))
        yield Freed(at_s, (job,))
        yield from (Submitted(at_s, (spec(int(job), at_s),) * times) for times in (1, 2))
        yield from (ResizeAsked(at_s, job, 1, (Node(n),)) for n in (-1, 0, NODES))
    for node in map(Node, range(-1, NODES + 1)):
        yield from (kind(at_s, node) for kind in OF_NODES)
        yield TasksHold(at_s, (node,))
        yield from (NodesLeased(at_s, (node,), until_s, 4, 9.0) for until_s in ((1.0,), ()))
    yield Submitted(at_s - 1.0, (spec(99, at_s),))


def lived(seed: int) -> Engine:
    """Return an engine some of whose jobs wait, run, are held, resized and over."""
    rng, engine, at_s = random.Random(seed), Engine(NODES, named("easy-share")), 1.0
    for number in range(1, 9):
        at_s += 1.0
        job = spec(number, at_s, hold=number % 4 == 0)
        for start in engine.handle(Submitted(at_s, (job,))):
            if isinstance(start, Start) and rng.random() < 0.8:
                engine.handle(Started(at_s, start.job))
                engine.handle(ResizePoint(at_s, start.job))
                engine.handle(ResizeAsked(at_s, start.job, rng.randint(1, 3)))
        if engine.state.running and rng.random() < 0.3:
            engine.handle(Ended(at_s, rng.choice(list(engine.state.running)), "FAILED"))
    if rng.random() < 0.5:
        engine.handle(NodeDown(at_s, Node(rng.randrange(NODES))))
    return engine


@pytest.mark.promise("checked-first")
@pytest.mark.parametrize("seed", range(4))
def test_what_passes_is_what_the_transition_takes(seed: int) -> None:
    state = lived(seed).state
    counts = {True: 0, False: 0}
    for event in events(state.now_s):
        known = copy.deepcopy(state)
        try:
            check(state, event)
            passes = True
        except TransitionError:
            passes = False
        assert state == known, event
        counts[passes] += 1
        if passes:
            transition.apply(known, event)
        else:
            with pytest.raises(TransitionError):
                transition.apply(known, event)
    assert min(counts.values()) > 20


@pytest.mark.promise("checked-first")
def test_nothing_of_an_impossible_event_is_in_the_journal(tmp_path: Path, fault: Fault) -> None:
    with opened(tmp_path) as bench:
        bench.submit("1", (1, 1, 1), Mode.FIXED)
        last = bench.journal.last
        tried = 0
        for event in events(bench.now_s):
            if event.at_s < bench.now_s:
                continue  # what a daemon hears late it enters as of now
            try:
                check(bench.daemon.context.state, event)
            except TransitionError:
                tried += 1
                with pytest.raises(TransitionError):
                    bench.daemon.handle(event, [ScriptNote("of", 1)])
        with pytest.raises(TransitionError):
            bench.submit("1", (1, 1, 1), Mode.FIXED)
        assert (bench.journal.last, bench.journal.noted(ScriptNote, "of").pid) == (
            last,
            None,
        ) and tried > 100
        bench.start()
        found = replayed(bench.journal)
        assert (found.refused, found.differing) == ([], [])
    fault(f"{tried} events that cannot have happened", "refused; none is in the journal")
