"""Bounds on the mean turnaround: below every schedule, equal to the optimum where that is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import job_spec

from rms.core.model.jobs import JobId, JobSpec, Mode, Site, Speedup
from rms.core.policies import DEFAULT, named
from rms.sim.run import chosen, simulated
from rms.studies.bounds import (
    Work,
    least_works,
    mean_busy,
    shortest_remaining,
    turnaround_bound_s,
    turnaround_bounds_s,
)


def rigid(name: str, submit_s: float, nodes: int, run_s: float) -> JobSpec:
    return job_spec(name, nodes, at_s=submit_s, run_s=run_s)


@st.composite
def streams(draw: st.DrawFn, most: int = 10, modes: Sequence[Mode] = tuple(Mode)) -> list[JobSpec]:
    """Jobs of every mode on 6 nodes, some of them too wide to start."""
    specs = []
    for number in range(draw(st.integers(1, most))):
        low = draw(st.integers(1, 4))
        preferred = draw(st.integers(low, 7))
        serial = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
        mode = draw(st.sampled_from(modes))
        whole_s = draw(st.integers(0 if mode is Mode.FIXED else 1, 60))
        specs.append(
            job_spec(
                number,
                (low, preferred, draw(st.integers(preferred, 9))),
                mode,
                float(draw(st.integers(0, 30))),
                speedup=Speedup(law=((1.0 - serial) * whole_s, serial * whole_s)),
                resize_every_s=float(draw(st.integers(1, 9))) if mode.resizable else None,
                resize_price_s=float(draw(st.integers(0, 2))) if mode.resizable else 0.0,
            )
        )
    return specs


@pytest.mark.parametrize("name", ["fifo", "easy", "easy-share", DEFAULT])
@given(specs=streams())
@settings(max_examples=60)
def test_no_policy_is_below_a_bound(name: str, specs: list[JobSpec]) -> None:
    simulation, _ = simulated(specs, Site(6), chosen(named(name), counted=True, ahead=False))
    ended = simulation.engine.state.ended.values()
    turnarounds = [
        job.end_s - job.spec.submit_s
        for job in ended
        if job.start_s is not None and job.end_s is not None
    ]
    for bound in turnaround_bounds_s(specs, 6).values():
        assert bound <= (fmean(turnarounds) if turnarounds else 0.0) + 1e-9


def best_turnaround_s(specs: Sequence[JobSpec], nodes: int) -> float:
    """Return the least mean turnaround of jobs that keep their size, by trying all.

    One of the orders, each job as early as it fits beside those before it, is best.
    """
    sizes = [
        [spec.preferred] if spec.mode is Mode.FIXED else [n for n in spec.sizes() if n <= nodes]
        for spec in specs
    ]
    best_s = float("inf")
    for order in permutations(range(len(specs))):
        for choice in product(*sizes):
            best_s = min(best_s, _in_order(specs, order, choice, nodes))
    return best_s


def _in_order(
    specs: Sequence[JobSpec], order: Sequence[int], choice: Sequence[int], nodes: int
) -> float:
    placed: list[tuple[float, float, int]] = []
    turnarounds = []
    for at in order:
        spec, size = specs[at], choice[at]
        run_s = spec.time_s(size) or 0.0
        for start in sorted({spec.submit_s, *(end for _, end, _ in placed)}):
            if start < spec.submit_s:
                continue
            moments = [start, *(begin for begin, _, _ in placed if start < begin < start + run_s)]
            if all(
                size + sum(n for begin, end, n in placed if begin <= moment < end) <= nodes
                for moment in moments
            ):
                placed.append((start, start + run_s, size))
                turnarounds.append(start + run_s - spec.submit_s)
                break
    return fmean(turnarounds)


@given(specs=streams(4, (Mode.FIXED, Mode.MOLDABLE)))
@settings(max_examples=60)
def test_no_schedule_of_a_few_jobs_is_below_a_bound(specs: list[JobSpec]) -> None:
    fitting = [spec for spec in specs if spec.smallest_start <= 6]
    if fitting:
        best_s = best_turnaround_s(fitting, 6)
        for bound in turnaround_bounds_s(specs, 6).values():
            assert bound <= best_s + 1e-9


@given(runs=st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_jobs_of_one_node_at_once_are_bounded_by_the_shortest_first(runs: list[int]) -> None:
    specs = [rigid(str(n), 0.0, 1, float(run_s)) for n, run_s in enumerate(runs)]
    ends = [sum(sorted(runs)[: n + 1]) for n in range(len(runs))]
    for name in ("shortest remaining", "mean busy"):
        assert turnaround_bounds_s(specs, 1)[name] == pytest.approx(fmean(ends))


@given(
    works=st.lists(
        st.builds(
            Work,
            st.integers(0, 40).map(float),
            st.integers(1, 40).map(float),
            st.integers(1, 20).map(float),
        ),
        min_size=1,
        max_size=8,
    ),
    nodes=st.integers(1, 4),
)
def test_mean_busy_is_at_least_what_no_job_alone_has(works: list[Work], nodes: int) -> None:
    """A large speed makes all prices nothing: what is left is each job's shortest run time."""
    works = sorted(works)
    alone_s = fmean(work.time_s for work in works)
    assert mean_busy(works, nodes, 1e9) == pytest.approx(alone_s, rel=1e-6)


@given(specs=streams(8))
def test_nothing_between_the_extreme_sizes_takes_less(specs: list[JobSpec]) -> None:
    usable = [spec for spec in specs if spec.smallest_start <= 6]
    works = least_works(specs, 6)
    expected = []
    for spec in usable:
        keeps = spec.mode is Mode.FIXED
        sizes = [spec.preferred] if keeps else [n for n in spec.sizes() if n <= 6]
        times = [spec.time_s(n) or 0.0 for n in sizes]
        node_s = min(n * t for n, t in zip(sizes, times, strict=True))
        expected.append(Work(spec.submit_s, node_s, min(times)))
    assert [tuple(work) for work in works] == [
        pytest.approx(tuple(work)) for work in sorted(expected)
    ]


def test_a_table_that_is_interpolated() -> None:
    speedup = Speedup((1, 4, 8), (100.0, 20.0, 30.0), interpolate=True)
    spec = JobSpec(JobId("1"), 0.0, 2, 8, 4, Mode.FLEXIBLE, speedup)
    (work,) = least_works([spec], 8)
    assert work == (0.0, 80.0, 20.0)
    few = JobSpec(JobId("1"), 0.0, 2, 8, 2, Mode.FLEXIBLE, speedup)
    (narrow,) = least_works([few], 3)
    assert narrow.time_s == pytest.approx(speedup.time(3))


def test_two_jobs_by_hand() -> None:
    # 80 node-seconds on 4 nodes, interrupted at 10 s by 8: they end at 22 and 12 s.
    works = least_works([rigid("1", 0.0, 4, 20.0), rigid("2", 10.0, 2, 4.0)], 4)
    assert shortest_remaining(works, 4) == pytest.approx((22.0 + 2.0) / 2)
    # Both have the mean busy time 11 s, and half of 20 and of 4 s after it. The price at 12 s is
    # (22 - 12) / 80, so that 2 pays 12 + 8 x 0.125 = 13 s at least: 1 s before it can be over.
    ends_s = 11.0 + 10.0 + 11.0 + 2.0 + (14.0 - 13.0) ** 2 / (2 * 4.0)
    assert mean_busy(works, 4) == pytest.approx((ends_s - 10.0) / 2)


def test_jobs_side_by_side_are_bounded_by_their_run_times() -> None:
    specs = [rigid(str(n), 0.0, 1, 100.0) for n in range(4)]
    bounds = turnaround_bounds_s(specs, 4)
    assert bounds["shortest remaining"] == pytest.approx(62.5)
    assert bounds["alone"] == pytest.approx(100.0)
    assert bounds["mean busy"] == pytest.approx(100.0)
    assert turnaround_bound_s(specs, 4) == max(bounds.values())


def test_no_job_and_an_unknown_run_time() -> None:
    assert turnaround_bound_s([], 4) == 0.0
    assert turnaround_bound_s([rigid("1", 0.0, 8, 1.0)], 4) == 0.0
    unknown = JobSpec(JobId("7"), 0.0, 1, 1, 1, Mode.FIXED)
    with pytest.raises(ValueError, match="expected a run time of job 7 for a bound, got none"):
        turnaround_bound_s([unknown], 4)
