"""What a job was seen to do: entered now and then, and what policies plan by from then on."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from driven import FLEXIBLE, MOLDABLE, Driven, job
from hypothesis import given
from hypothesis import strategies as st

from rms.core.model.events import Stepped
from rms.core.model.jobs import Job, JobId, JobSpec, NodePower, Site
from rms.core.model.speedup import Speedup, some_sizes
from rms.core.policies import adjusted, named
from rms.core.rules.transition import TransitionError
from rms.daemon.store.record import COUNTS_AT_ONCE, PACE_S, JobRuntime, Step, StepRateLimit
from rms.launch.base import LaunchCommand
from rms.sim.simulator import Simulation

ONE = JobId("1")


def seen(at_s: float, step: int, total: int, steps: int, span_s: float, number: int = 1) -> Stepped:
    return Stepped(at_s, JobId(str(number)), step, total, steps, span_s)


def test_of_many_sizes_the_ends_the_doublings_and_those_of_interest_are_tried() -> None:
    assert some_sizes(range(3, 101), 7, 200) == [3, 6, 7, 12, 24, 48, 96, 100]
    assert some_sizes(range(1, 17), 7) == range(1, 17)
    table = [*range(2, 40, 2)]
    assert some_sizes(table, 6) == [2, 4, 6, 8, 16, 32, 38]


# --- what is counted -----------------------------------------------------------------------------


class Counted:
    """A job that polls."""

    def __init__(self) -> None:
        self.job = JobRuntime(ONE)
        self.job.steps.append(Step(LaunchCommand([], "", {}, "", "")))

    def poll(self, at_s: float, step: int, total: int = 10_000) -> tuple[int, float] | None:
        self.job.step, self.job.total = step, total
        return self.job.stepped(at_s)


def test_steps_are_entered_ever_more_seldom() -> None:
    counted, entered = Counted(), []
    for second in range(1, 100):
        found = counted.poll(float(second), 10 * second)
        if found is not None:
            entered.append((second, *found))
            assert found[0] == pytest.approx(10 * found[1])
    # The first second is not counted; then 5 s, 10 s, 20 s, 40 s, and what a poll is late.
    assert [at for at, _, _ in entered] == [8, 19, 40, 81]
    assert sum(span for _, _, span in entered) == 79.0


def test_a_resize_begins_a_new_count() -> None:
    counted = Counted()
    assert [counted.poll(t, int(t)) for t in (1.0, 2.0, 5.0)] == [None] * 3
    counted.job.resize = object()  # type: ignore[assignment]
    assert counted.poll(20.0, 20) is None
    counted.job.resize = None
    assert [counted.poll(t, int(t)) for t in (21.0, 22.0, 24.0)] == [None] * 3
    assert counted.poll(22.0 + PACE_S + 1, 28) == (6, 6.0)


def test_of_many_jobs_that_are_due_at_once_the_rest_count_on() -> None:
    jobs, pace, entered = [Counted().job for _ in range(1000)], StepRateLimit(), []
    for job_ in jobs:
        job_.total = 10_000
    for tick in range(300):  # each polls once in 2 s, ten steps a second
        now_s = 1e9 + tick / 10
        for number in range(tick % 20, 1000, 20):
            jobs[number].step = 1 + tick
            found = jobs[number].stepped(now_s, enter=pace.due(now_s))
            if found is not None:
                pace.entered(now_s)
                entered.append((tick, number))
                assert found[0] == pytest.approx(10 * found[1])
    at_once = Counter(tick for tick, _ in entered)
    assert max(at_once.values()) <= COUNTS_AT_ONCE
    assert {number for _, number in entered} == set(range(1000))


def test_programs_that_do_not_tell_and_scripts_of_several_lines_are_not_counted() -> None:
    counted = Counted()
    assert [counted.poll(float(t), 0, 0) for t in range(30)] == [None] * 30
    counted.job.steps.append(counted.job.steps[0])
    assert [counted.poll(float(t), t) for t in range(30)] == [None] * 30
    back = Counted()
    assert [back.poll(t, s) for t, s in ((1.0, 50), (2.0, 60), (9.0, 10))] == [None] * 3


# --- what follows from it ------------------------------------------------------------------------


def test_a_job_is_planned_by_what_was_seen() -> None:
    driven = Driven(4, "backfill-share")
    driven.submit(job(1, (1, 4, 4), FLEXIBLE, run_s=25.0))  # 100 s on one node
    running = driven.engine.state.running[ONE]
    assert running.size == 4 and running.remaining_s(4, 10.0) == pytest.approx(15.0)
    driven.happen(seen(10.0, 100, 1000, 100, 10.0))  # 10 steps a second, 100 s in all
    assert running.remaining_s(4, 10.0) == pytest.approx(90.0)
    assert running.remaining_s(1, 10.0) == pytest.approx(360.0)
    assert running.expected_end_s == pytest.approx(100.0)
    assert running.measured_steps == {4: (100, 10.0)}


def test_nodes_that_were_seen_not_to_help_are_not_given() -> None:
    """Two sizes without a table: the law through them says that a third brings nothing."""
    spec = job(1, (1, 2, 4), FLEXIBLE)
    spec = msgspec.structs.replace(spec, speedup=None)
    driven = Driven(4, "backfill-share")
    driven.submit(job(9, (2, 2, 2), run_s=50.0))
    driven.submit(spec)
    running = driven.engine.state.running[ONE]
    assert running.size == 2 and running.speedup is None
    driven.happen(seen(10.0, 100, 1000, 100, 10.0))
    assert running.speedup is None
    running.measured_steps = {**(running.measured_steps or {}), 1: (300, 30.0)}
    driven.happen(seen(12.0, 120, 1000, 20, 2.0))
    assert running.speedup is None  # seen for 12 s on two nodes: not long enough
    driven.happen(seen(32.0, 320, 1000, 200, 20.0))
    assert running.speedup is not None
    assert running.speedup.time(2) == pytest.approx(running.speedup.time(4))
    assert driven.engine.state.expandable[0][0] == -float("inf")


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.01, 50.0)), min_size=1, max_size=6))
def test_steps_and_seconds_add_up(spans: list[tuple[int, float]]) -> None:
    running = Job(job(1, (2, 2, 4), FLEXIBLE), size=2)
    at_s = step = 0.0
    for steps, span_s in spans:
        at_s, step = at_s + span_s, step + steps
        running.stepped(steps, span_s, int(step), 10_000, at_s)
    assert running.measured_steps[2] == (step, pytest.approx(at_s))
    assert running.speedup is not None
    assert running.speedup.time(2) == pytest.approx(10_000 * at_s / step)
    assert running.done == step / 10_000


@pytest.mark.parametrize(
    "bad", [seen(1, 1, 0, 1, 1.0), seen(1, 1, 9, 0, 1.0), seen(1, 1, 9, 1, 0.0)]
)
def test_steps_that_cannot_be_are_refused(bad: Stepped) -> None:
    driven = Driven(4)
    driven.submit(job(1, (1, 4, 4), FLEXIBLE))
    with pytest.raises(TransitionError, match="expected steps that took time"):
        driven.engine.handle(bad)


# --- energy --------------------------------------------------------------------------------------

MEASURED = Speedup((1, 2, 4), (100.0, 60.0, 45.0), (10.0, 10.0, 10.0))
"""Each doubling makes it faster, and dearer."""


def measured(number: int, mode: str) -> JobSpec:
    spec = job(number, (1, 4, 4), FLEXIBLE if mode == "flexible" else MOLDABLE, run_s=1.0)
    return msgspec.structs.replace(spec, speedup=MEASURED)


@pytest.mark.parametrize("mode", ["flexible", "moldable"])
def test_with_energy_the_default_policy_needs_fewer_joules(mode: str) -> None:
    used = {}
    for energy in (0.0, 1.0):
        policy = adjusted(named("backfill-share"), sizing={"energy": energy})
        site = Site(4, (NodePower(idle_w=1.0, static_w=2.0, dynamic_w=8.0),) * 4)
        simulation = Simulation([measured(1, mode)], site, policy)
        simulation.run()
        used[energy] = simulation.ledger.busy_j[ONE], simulation.engine.state.now_s
    assert used[0.0] == pytest.approx((4 * 45.0 * 10.0, 45.0))
    assert used[1.0] == pytest.approx((100.0 * 10.0, 100.0))
