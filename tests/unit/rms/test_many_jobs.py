"""What keeps a daemon with thousands of jobs answering."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from submissions import hand_in

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Ended, Resize, Resized, Start, Started, Submitted
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies import named
from rms.core.scheduler.engine import Engine
from rms.daemon.ask.routes import MOST_HOLD_S, POLLS_PER_S, holding_s
from rms.daemon.jobs.watch import BUDGET_S
from rms.daemon.restart.recover import replay, resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.daemon.store.notes import ScriptNote
from rms.daemon.store.record import JobRuntime, PendingResize, Step
from rms.launch.base import ManagedProcess, ScriptLaunch
from rms.launch.local import LocalLauncher


def spec(name: str, low: int = 1, high: int = 8, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(JobId(name), submit_s, low, high, low, Mode.FLEXIBLE, resize_every_s=0.0)


# -- How many jobs are resized at once -------------------------------------------------------


def running(engine: Engine, *specs: JobSpec) -> list[Decision]:
    """Have jobs run at the sizes the policy gives them; return what it then decides."""
    found = engine.handle(Submitted(0.0, specs))
    later: list[Decision] = []
    for decision in found:
        assert isinstance(decision, Start)
        later += engine.handle(Started(0.0, decision.job))
    return later


@pytest.mark.parametrize(("at_once", "expected"), [(0, 6), (2, 2), (4, 4)])
def test_idle_nodes_go_to_few_jobs_where_few_may_be_resized(at_once: int, expected: int) -> None:
    engine = Engine(18, named("array-share"))
    engine.state.max_concurrent_resizes = at_once
    fixed = JobSpec(JobId("wall"), 0.0, 12, 12, 12, Mode.FIXED, run_s=100.0)
    running(engine, fixed, *(spec(str(n)) for n in range(6)))
    assert {job.size for job in engine.state.running.values()} == {1, 12}
    decisions = engine.handle(Ended(1.0, JobId("wall"), "COMPLETED"))
    assert len(decisions) == expected
    assert all(isinstance(decision, Resize) for decision in decisions)
    gained = sum(len(d.nodes) for d in decisions if isinstance(d, Resize)) - expected
    assert gained == min(12, expected * 7)
    assert engine.state.resizes_left == (len(engine.state.running) if not at_once else 0)


def test_the_others_have_their_turn_when_a_resize_is_over() -> None:
    engine = Engine(18, named("array-share"))
    engine.state.max_concurrent_resizes = 1
    fixed = JobSpec(JobId("wall"), 0.0, 12, 12, 12, Mode.FIXED, run_s=100.0)
    running(engine, fixed, *(spec(str(n)) for n in range(6)))
    (first,) = engine.handle(Ended(1.0, JobId("wall"), "COMPLETED"))
    (second,) = engine.handle(Resized(2.0, first.job))
    assert isinstance(second, Resize)
    assert second.job != first.job


def test_whoever_waits_is_let_in_by_as_many_as_it_takes() -> None:
    engine = Engine(12, named("array-share"))
    engine.state.max_concurrent_resizes = 1
    running(engine, *(spec(str(n), 1, 2) for n in range(6)))
    assert [job.size for job in engine.state.running.values()] == [2] * 6
    decisions = engine.handle(Submitted(1.0, (spec("wide", 4, 4, 1.0),)))
    assert [len(d.nodes) for d in decisions if isinstance(d, Resize)] == [1] * 4


def test_a_replay_knows_how_many(tmp_path: Path) -> None:
    engine = Engine(18, named("array-share"))
    engine.state.max_concurrent_resizes = 2
    with Journal.open(tmp_path / "j") as journal:
        names = tuple(f"n{n}" for n in range(18))
        journal.header(Cluster.recorded(names), "array-share", at_once=2)
        events: list[Submitted | Started] = [Submitted(0.0, (spec("1", 1, 4), spec("2", 1, 4)))]
        events += [Started(0.0, JobId("1")), Started(0.0, JobId("2"))]
        for event in events:
            journal.decided(journal.append(event), engine.handle(event))
        found = replay(journal.read())
    assert found.differing == []
    assert found.engine.state.max_concurrent_resizes == 2


# -- What is on disk -------------------------------------------------------------------------


def test_many_entries_are_flushed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []

    def fsync(file: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    with Journal.open(tmp_path / "j") as journal:
        journal.header(Cluster.recorded(("a",)), "fifo")
        for n in range(10):
            journal.note(ScriptNote(str(n), n))
        assert flushed == []
        journal.flush()
        journal.notes(ScriptNote)
        journal.flush()
    assert flushed == [
        str(tmp_path),
        str(tmp_path / "j-wal"),
    ]  # that it is there, and what is in it


# -- The server's questions -------------------------------------------------------------------


def test_questions_are_held_the_longer_the_more_jobs_ask() -> None:
    assert holding_s(1) == holding_s(100) == 1.0
    assert 1000 / holding_s(1000) == pytest.approx(POLLS_PER_S)
    assert holding_s(10**6) == MOST_HOLD_S < 10.0  # what a job waits for an answer


def test_a_question_is_held_while_its_wish_is_known() -> None:
    """Else a job asks without end from its request to the end of its resize, which takes a core."""

    async def ask() -> None:
        job = JobRuntime(JobId("1"))
        waiting = asyncio.create_task(job.wakeup.wait())
        await asyncio.sleep(0)
        job.resize = PendingResize(1, ("a",), "spawn", told=True)
        job.wake()
        await asyncio.wait_for(waiting, 10)
        held = asyncio.create_task(job.wakeup.wait())
        await asyncio.sleep(0.01)
        job.resize = None
        await asyncio.sleep(0.01)
        assert not held.done()
        job.resize = PendingResize(2, ("b",), "spawn", told=True)
        job.wake()
        await asyncio.wait_for(held, 10)

    asyncio.run(ask())


# -- The daemon's loop -----------------------------------------------------------------------


class Tired(LocalLauncher):
    """Each look at a job's script takes longer than a look at all may."""

    looked: list[str]

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        child = ManagedProcess(0)
        child.status = lambda: self.tire(job)  # type: ignore[method-assign]
        return child

    def tire(self, job: str) -> None:
        self.looked.append(job)
        self.clock[0] += 2 * BUDGET_S

    clock: list[float]


def test_every_job_has_its_turn_where_looks_take_long(tmp_path: Path) -> None:
    launcher = Tired(tmp_path, "cafe", "unix:none")
    launcher.looked, launcher.clock = [], [1_000.0]
    names = ("a", "b", "c")
    cluster = Cluster(names, tuple((f"cpu:{n}",) for n in range(3)), (NodePower(),) * 3)
    with Journal.open(tmp_path / "j") as journal:
        settings = Settings(policy="fifo", now=lambda: launcher.clock[0])
        daemon = resume(cluster, journal, launcher, settings)
        fixed = [JobSpec(JobId(n), 1_000.0, 1, 1, 1, Mode.FIXED) for n in ("1", "2", "3")]
        hand_in(daemon, fixed)
        for _ in range(6):
            daemon.tick()
    assert launcher.looked == ["1", "2", "3"] * 2


class Child(ManagedProcess):
    """Runs until it is told to end."""

    is_child = True  # type: ignore[assignment]
    code: int | None = None
    looks = 0

    def status(self) -> int | None:
        self.looks += 1
        return self.code


class Calm(LocalLauncher):
    child: Child
    told: list[str]

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        self.child = Child(0)
        return self.child

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        self.told.append(job)

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return []


def test_a_calm_job_is_looked_at_when_a_child_ends_or_a_limit_is_due(tmp_path: Path) -> None:
    launcher, clock = Calm(tmp_path, "cafe", "unix:none"), [1_000.0]
    launcher.told = []
    cluster = Cluster(("a",), (("cpu:0",),), (NodePower(),))
    with Journal.open(tmp_path / "j") as journal:
        settings = Settings(policy="fifo", now=lambda: clock[0])
        daemon = resume(cluster, journal, launcher, settings)
        limited = JobSpec(JobId("1"), 1_000.0, 1, 1, 1, Mode.FIXED, limit_s=100.0)
        hand_in(daemon, [limited])
        watch = daemon.job_watch
        watch.has_signals = True

        def looks() -> int:
            before = launcher.child.looks
            daemon.tick()
            return launcher.child.looks - before

        assert looks() and not looks() and not looks()
        watch.child_ended()  # another's
        assert looks() and not looks()
        far = Child(0)  # the end of ranks on another host, or of an earlier daemon, is no signal
        far.is_child = False
        job = daemon.jobs[JobId("1")]
        job.steps = [Step(command=None, worlds={0: far}, current=(0,))]  # type: ignore[arg-type]
        watch.child_ended()
        assert looks() and looks() and looks()
        job.steps[0].exit_code = 0
        assert looks() and not looks()
        job.steps.clear()
        clock[0] += 101.0
        assert looks() and launcher.told == ["1"]  # its time is up
        assert looks() and looks()  # until it has ended
        launcher.child.code = 143
        watch.child_ended()
        daemon.tick()
        assert str(daemon.context.state.ended[JobId("1")].state) == "TIMEOUT"
