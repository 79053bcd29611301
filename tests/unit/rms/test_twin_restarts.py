"""A daemon that begins at a snapshot, or at its journal, knows who is due as one that went on."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, Driven, job
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rms.core.model.cluster import Cluster
from rms.core.model.events import Ended, Event, Requeued
from rms.core.model.jobs import JobId, JobSpec, NodePower
from rms.core.policies import named
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze, thaw
from rms.daemon.restart.recover import replayed, restored
from rms.daemon.store.journal import Journal
from rms.sim.run import failing
from rms.sim.simulator import Simulation

NODES = 6
NAMES = tuple(f"n{number}" for number in range(NODES))
CLUSTER = Cluster(NAMES, tuple((f"{n}/",) for n in NAMES), (NodePower(5.0, 10.0),) * NODES)
POLICY = "backfill-share"


@st.composite
def streams(draw: st.DrawFn) -> list[JobSpec]:
    """Short jobs and wide ones, mostly flexible; of some the run time is not known before."""
    specs, at_s = [], 0.0
    for number in range(1, draw(st.integers(5, 20)) + 1):
        at_s += draw(st.sampled_from([0.0, 1.0, 5.0, 30.0]))
        low, preferred, high = sorted(draw(st.tuples(*[st.integers(1, NODES)] * 3)))
        mode = draw(st.sampled_from([FLEXIBLE, FLEXIBLE, FLEXIBLE, MALLEABLE, FIXED]))
        run_s = float(draw(st.integers(5, 100)))
        spec = job(
            number,
            (low, preferred, high),
            mode,
            run_s=run_s,
            at_s=at_s,
            limit_s=draw(st.sampled_from([None, run_s, 3.0 * run_s])),
            every_s=draw(st.sampled_from([1.0, 20.0, None])),
            price_s=draw(st.sampled_from([0.0, 2.0])),
        )
        if draw(st.booleans()):
            spec = msgspec.structs.replace(spec, speedup=None, run_s=run_s)
        specs.append(spec)
    return specs


def happened(specs: list[JobSpec], mtbf_s: float | None) -> list[Event]:
    """Return the events of a simulation of these jobs."""
    failures = []
    if mtbf_s is not None:
        failures = failing(NODES, mtbf_s=mtbf_s, repair_s=50.0, horizon_s=300.0, seed=1)
    simulation = Simulation(specs, CLUSTER.site, named(POLICY), failures=failures)
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)
    return simulation.events


def image(scheduler: Scheduler) -> Any:
    """Return all that a scheduler has come to."""
    return msgspec.msgpack.decode(zlib.decompress(freeze(scheduler)))


def new() -> Scheduler:
    return Scheduler(CLUSTER, named(POLICY))


def due(scheduler: Scheduler) -> list[tuple[str, float]]:
    """Return who is due, and since when, in order."""
    return [(str(job_id), at_s) for job_id, at_s in (scheduler.engine.state.due or {}).items()]


def moments(events: Iterable[Event]) -> list[int]:
    """Return after how many events jobs are due that wait."""
    scheduler, found = new(), []
    for number, event in enumerate(events, 1):
        scheduler.feed(event)
        state = scheduler.engine.state
        if state.pending.keys() & (state.due or {}):
            found.append(number)
    return found


def test_a_job_that_is_over_in_the_twin_may_wait_again() -> None:
    """Two jobs of unknown run times; the end of the second is before that of the third there."""

    def unknown(number: int, most: int) -> JobSpec:
        known = job(number, (1, 1, most), FLEXIBLE, every_s=None)
        return msgspec.structs.replace(known, speedup=None, run_s=None)

    driven = Driven(2)
    assert driven.submit(unknown(1, 2)) == [("1", 2)]
    assert driven.submit(unknown(2, 1), job(3, (1,), FLEXIBLE, run_s=5.0)) == []
    assert driven.happen(Ended(10.0, JobId("1"), "COMPLETED")) == [("2", 1), ("3", 1)]
    assert driven.happen(Requeued(16.0, JobId("3"))) == [("3", 1)]
    assert driven.happen(Ended(18.0, JobId("2"), "COMPLETED")) == []
    assert driven.happen(Ended(21.0, JobId("3"), "COMPLETED")) == []


@settings(max_examples=150)
@given(streams(), st.sampled_from([None, 500.0]), st.data())
@pytest.mark.promise("due-kept")
def test_from_a_snapshot_on_it_decides_as_one_that_went_on(
    specs: list[JobSpec], mtbf_s: float | None, data: st.DataObject
) -> None:
    events = happened(specs, mtbf_s)
    cuts = moments(events)
    assume(cuts)
    cut, one = data.draw(st.sampled_from(cuts)), new()
    for event in events[:cut]:
        one.feed(event)
    other = thaw(freeze(one), lambda key, _: named(key))
    assert due(other) == due(one) != []
    assert other.engine.look_s == one.engine.look_s
    for event in events[cut:]:
        assert other.feed(event) == one.feed(event)
        assert due(other) == due(one)
    assert image(other) == image(one)


@settings(max_examples=50)
@given(streams(), st.sampled_from([None, 500.0]), st.booleans(), st.data())
@pytest.mark.promise("due-kept")
def test_a_journal_with_a_restart_replays_to_the_same_decisions(
    specs: list[JobSpec], mtbf_s: float | None, snapshot: bool, data: st.DataObject
) -> None:
    """The daemon is killed while jobs are due; it begins at a snapshot of that time, or without."""
    events = happened(specs, mtbf_s)
    cuts = moments(events)
    assume(cuts)
    cut, whole = data.draw(st.sampled_from(cuts)), new()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = Journal.open(path)
        journal.header(CLUSTER, POLICY)
        scheduler = new()
        for number, event in enumerate(events):
            if number == cut:
                if snapshot:
                    journal.save(freeze(scheduler), None)
                journal.close()
                journal = Journal.open(path)
                scheduler = restored(journal).scheduler
                assert due(scheduler) == due(whole) != []
            entry = journal.append(event)
            decisions = scheduler.feed(event)
            journal.decided(entry, decisions)
            assert decisions == whole.feed(event)
        again = replayed(journal)
        journal.close()
    assert (again.differing, again.refused, again.events) == ([], [], len(events))
    assert image(again.scheduler) == image(scheduler) == image(whole)
