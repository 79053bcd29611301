"""Policy cheap-hours: jobs with a deadline over a day of prices, and everybody else."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from driven import FIXED, FLEXIBLE, MALLEABLE, Driven
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from specs import job_spec

from rms.cli.main import main
from rms.core.model.cluster import Cluster
from rms.core.model.events import (
    Ended,
    HourlyPrices,
    PricesSet,
    Reason,
    Resize,
    ResizePoint,
    Start,
    Started,
    Submitted,
    Ticked,
)
from rms.core.model.jobs import Job, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import POLICIES, adjusted, named
from rms.core.policies.cheap_hours import CheapHours
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze, thaw
from rms.formats.prices import read_prices
from rms.sim.simulator import Simulation

HOUR_S = 3600.0
SPEEDUP = Speedup((1, 2, 4), (4 * HOUR_S, 2.4 * HOUR_S, 1.6 * HOUR_S))
POWER = NodePower(10.0, 100.0)


def by_hour(*values: float) -> HourlyPrices:
    return HourlyPrices("EUR", tuple(HOUR_S * n for n in range(len(values) + 1)), values)


def patient(number: int, deadline_h: float, mode: Mode = FLEXIBLE, **more: object) -> JobSpec:
    stated = {"limit_s": SPEEDUP.time(2), "resize_every_s": 60.0, "resize_price_s": 5.0, **more}
    return job_spec(
        number, (1, 2, 4), mode, speedup=SPEEDUP, deadline_s=HOUR_S * deadline_h, **stated
    )


def simulated(
    specs: list[JobSpec], prices: HourlyPrices | None, policy: str = "cheap-hours", nodes: int = 8
) -> tuple[dict[str, Job], Simulation]:
    simulation = Simulation(specs, Site(nodes, (POWER,) * nodes), named(policy), prices=prices)
    simulation.run()
    assert not simulation.engine.state.pending
    return {str(name): job for name, job in simulation.engine.state.ended.items()}, simulation


@pytest.mark.promise("cheap-hours")
def test_a_job_waits_for_the_cheap_hours_and_is_wide_in_the_cheapest() -> None:
    dear, cheap, cheapest = 9.0, 2.0, 1.0
    prices = by_hour(dear, dear, cheap, cheapest, cheap, dear, dear, dear)
    jobs, simulation = simulated([patient(1, 8.0)], prices)
    assert jobs["1"].start_s == 2 * HOUR_S
    assert jobs["1"].end_s is not None and jobs["1"].end_s <= 5 * HOUR_S
    resizes = [d for _, d in simulation.decisions if isinstance(d, Resize)]
    assert resizes and {d.code for d in resizes} == {Reason.CHEAP_HOURS}
    assert simulation.resized == len(resizes)
    sizes = [d.size for _, d in simulation.decisions if isinstance(d, Start | Resize)]
    assert max(sizes) == sizes[1] > sizes[0]
    wide_s = next(at_s for at_s, d in simulation.decisions if isinstance(d, Resize))
    assert 3 * HOUR_S <= wide_s <= 3 * HOUR_S + 120.0


def test_without_prices_or_without_a_deadline_it_is_the_default_policy() -> None:
    prices = by_hour(9.0, 9.0, 1.0, 9.0)
    for specs, known in (
        ([patient(n, 24.0) for n in (1, 2, 3)], None),
        ([replace(patient(n, 1.0), deadline_s=None) for n in (1, 2, 3)], prices),
    ):
        _, ours = simulated(specs, known)
        _, default = simulated(specs, known, "backfill-share")
        assert ours.decisions == default.decisions


def test_a_deadline_that_leaves_no_choice_starts_at_once() -> None:
    prices = by_hour(9.0, 9.0, 9.0, 1.0)
    jobs, _ = simulated([patient(1, 2.5), patient(2, 0.5)], prices)
    assert jobs["1"].start_s == jobs["2"].start_s == 0.0
    assert (jobs["1"].end_s or 0.0) <= 2.5 * HOUR_S


def test_a_rigid_job_begins_where_its_hours_cost_least() -> None:
    prices = by_hour(9.0, 5.0, 1.0, 1.0, 5.0, 9.0, 9.0, 9.0)
    spec = job_spec(1, 4, FIXED, run_s=2 * HOUR_S, deadline_s=7.5 * HOUR_S)
    jobs, _ = simulated([spec], prices)
    assert jobs["1"].start_s == 2 * HOUR_S and jobs["1"].end_s == 4 * HOUR_S


@pytest.mark.promise("cheap-hours")
def test_a_job_that_is_put_off_holds_up_no_other_one() -> None:
    """The cluster is full without it; a later job runs meanwhile."""
    prices = by_hour(9.0, 9.0, 9.0, 1.0, 1.0, 9.0)
    off = job_spec(1, 8, FIXED, run_s=HOUR_S, deadline_s=12 * HOUR_S)
    other = job_spec(2, 8, FIXED, 60.0, run_s=2 * HOUR_S, limit_s=2 * HOUR_S)
    for policy in ("cheap-hours", "easy"):
        jobs, _ = simulated([off, other], prices, policy)
        assert jobs["2"].start_s == (60.0 if policy == "cheap-hours" else HOUR_S)
    jobs, _ = simulated([off, other], prices)
    assert jobs["1"].start_s == 3 * HOUR_S


def test_at_the_last_moment_it_is_an_ordinary_job_at_its_place() -> None:
    """A neighbour holds all nodes until long after the cheap hour: the job may not wait for it."""
    engine = Engine(Site(4, (POWER,) * 4), POLICIES["cheap-hours"])
    engine.apply(PricesSet(0.0, by_hour(9.0, 9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0)))
    long = job_spec(1, 4, FIXED, run_s=5 * HOUR_S, limit_s=5 * HOUR_S)
    engine.handle(Submitted(0.0, (long,)))
    engine.handle(Started(0.0, long.id))
    # It keeps 2 h more: twice its 4 h on one node of four.
    engine.handle(Submitted(0.0, (patient(2, 9.9),)))  # 5 h + 2.4 h + 20 % of 2.4 h + 2 h = 9.88 h
    later = engine.explain(patient(2, 9.9).id)
    assert later is not None and later.code is Reason.CHEAP_HOURS
    engine.handle(Submitted(60.0, (patient(3, 11.8),)))  # and now 4 h: it is 11.88 h
    later = engine.explain(patient(3, 11.8).id)
    assert later is not None and later.code is Reason.RESOURCES


def test_a_long_queue_leaves_no_time_to_wait() -> None:
    """Of 9.8 h, 1 h is its own, and 2 h are kept for each job of the queue, itself included.

    With four of them it may wait for 0.8 h, but the nodes are held for 1 h.
    """
    engine = Engine(Site(4, (POWER,) * 4), POLICIES["cheap-hours"])
    engine.apply(PricesSet(0.0, by_hour(9.0, 9.0, 1.0, 9.0)))
    off = job_spec(1, 4, FIXED, run_s=HOUR_S, deadline_s=10 * HOUR_S)
    long = job_spec(2, 4, FIXED, run_s=HOUR_S, limit_s=HOUR_S)
    engine.handle(Submitted(0.0, (long,)))
    engine.handle(Started(0.0, long.id))
    engine.handle(Submitted(0.0, (off,)))
    assert engine.look_s == 2 * HOUR_S
    for number, latest_h in ((3, 4.8), (4, 2.8), (5, 0.8)):
        other = job_spec(number, 4, FIXED, run_s=HOUR_S, limit_s=HOUR_S)
        engine.handle(Submitted(0.0, (other,)))
        later = engine.explain(off.id)
        assert later is not None
        waits = latest_h > 1.0  # job 2 ends then
        assert later.code is (Reason.CHEAP_HOURS if waits else Reason.RESOURCES)
        assert engine.look_s == (2.0 * HOUR_S if waits else inf)


def test_plans_are_made_once_for_a_state() -> None:
    engine = Engine(Site(4, (POWER,) * 4), POLICIES["cheap-hours"])
    engine.apply(PricesSet(0.0, by_hour(9.0, 9.0, 1.0, 9.0)))
    hours, state = engine.policy.hours, engine.state
    assert isinstance(hours, CheapHours)
    spec = job_spec(1, 4, FIXED, run_s=HOUR_S, deadline_s=10 * HOUR_S)
    assert engine.handle(Submitted(0.0, (spec,))) == []
    plans = hours.plans(state)
    assert hours.plans(state) is plans and engine.look_s == 2 * HOUR_S
    engine.apply(Ticked(2 * HOUR_S))
    assert hours.plans(state) is not plans and hours.plans(state)[spec.id].size == 4
    assert CheapHours(margin=9.0).plans(state)[spec.id].urgent


def test_a_price_that_holds_for_days_does_not_make_a_running_job_urgent() -> None:
    """Its cheapest size is kept: no resize, until its end."""
    flat = HourlyPrices("EUR", (0.0, 14 * 24 * HOUR_S), (1.0,))
    other = job_spec(2, 1, FIXED, 1000.0, run_s=60.0, limit_s=60.0)
    jobs, simulation = simulated([patient(1, 8.0), other], flat)
    sizes = [d.size for _, d in simulation.decisions if isinstance(d, Start | Resize)]
    assert sizes == [1, 1] and jobs["1"].start_s == 0.0
    assert jobs["1"].end_s == pytest.approx(4 * HOUR_S)


def test_explain_states_what_is_put_off_and_what_that_saves() -> None:
    engine = Engine(Site(4, (POWER,) * 4), POLICIES["cheap-hours"])
    engine.apply(PricesSet(0.0, by_hour(0.4, 0.4, 0.1, 0.1, 0.1, 0.4)))
    spec = job_spec(1, 2, FIXED, run_s=2 * HOUR_S, deadline_s=6 * HOUR_S)
    assert engine.handle(Submitted(0.0, (spec,))) == []
    later = engine.explain(spec.id)
    assert later is not None
    # 2 nodes of 100 W for 2 h: 0.4 kWh at 0.4 EUR now, at 0.1 EUR then.
    assert later.reason == "CheapHours: put off by 7200 s, saves 75 % (0.12 EUR)"
    assert engine.look_s == 2 * HOUR_S
    assert [d.job for d in engine.handle(Ticked(2 * HOUR_S)) if isinstance(d, Start)] == [spec.id]
    assert engine.explain(spec.id) is None


@pytest.mark.parametrize("waits", [False, True])
def test_it_is_wide_in_a_cheap_hour_unless_others_wait_and_narrow_in_a_dear_one(
    waits: bool,
) -> None:
    driven = Driven(4, "cheap-hours")
    driven.engine.apply(PricesSet(0.0, by_hour(1.0, 9.0, 5.0, 9.0, 9.0, 9.0)))
    spec = patient(1, 6.0, MALLEABLE, resize_every_s=None)
    assert driven.submit(spec) == [("1", 2)]
    other = job_spec(2, 4, FIXED, 1.0, limit_s=HOUR_S, run_s=HOUR_S)
    if waits:
        assert driven.submit(other) == []
    assert driven.happen(ResizePoint(60.0, spec.id)) == ([] if waits else [("1", 4)])
    later = [Ticked(HOUR_S), ResizePoint(HOUR_S + 1.0, spec.id)]
    assert driven.happen(*later) == [("1", 1)]
    assert driven.engine.state.running[spec.id].resize_count == (1 if waits else 2)
    over = Ended(2 * HOUR_S + 2.0, spec.id, "COMPLETED")
    assert driven.happen(over) == ([("2", 4)] if waits else [])


@pytest.mark.parametrize("policy", ["easy", "conservative", "fifo", "easy-share", "array-share"])
def test_the_part_goes_with_every_policy(policy: str) -> None:
    made = adjusted(POLICIES[policy], hours={"part": "cheap"})
    prices = by_hour(9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0)
    specs = [patient(n, 8.0) for n in (1, 2)]
    simulation = Simulation(specs, Site(4, (POWER,) * 4), made, prices=prices)
    simulation.run()
    for job in simulation.engine.state.ended.values():
        assert job.start_s is not None and job.start_s >= 2 * HOUR_S
        assert (job.end_s or 0.0) <= 8 * HOUR_S


@pytest.mark.promise("cheap-hours")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([FIXED, Mode.MOLDABLE, MALLEABLE, FLEXIBLE]),
            st.integers(0, 5),
            st.integers(0, 14),
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.integers(1, 9), min_size=12, max_size=12),
)
def test_streams_end_and_are_the_same_again(
    jobs: list[tuple[Mode, int, int]], values: list[int]
) -> None:
    """On a cluster wide enough for all of them every deadline that can be met is met."""
    specs = [
        replace(
            patient(number, deadline_h or 1.0, mode),
            submit_s=600.0 * at,
            deadline_s=HOUR_S * deadline_h if deadline_h else None,
        )
        for number, (mode, at, deadline_h) in enumerate(jobs, 1)
    ]
    prices = by_hour(*map(float, values))
    ended, simulation = simulated(specs, prices, nodes=40)
    _, again = simulated(specs, prices, nodes=40)
    assert simulation.decisions == again.decisions and simulation.events == again.events
    for spec in specs:
        job, deadline_s = ended[spec.id], spec.deadline_s
        if deadline_s is not None and spec.submit_s + 1.1 * SPEEDUP.time(2) <= deadline_s:
            assert (job.end_s or 0.0) <= deadline_s


def test_a_snapshot_keeps_the_prices_and_the_number_of_deadlines() -> None:
    cluster = Cluster(("a", "b"), (("a/",), ("b/",)), (POWER,) * 2)
    scheduler = Scheduler(cluster, named("cheap-hours"))
    scheduler.feed(PricesSet(0.0, by_hour(9.0, 1.0, 9.0, 9.0)))
    scheduler.feed(Submitted(0.0, (job_spec(1, 1, run_s=600.0, deadline_s=4 * HOUR_S),)))
    again = thaw(freeze(scheduler), lambda key, cluster: named(key))
    state = again.engine.state
    assert state.prices == by_hour(9.0, 1.0, 9.0, 9.0) and state.deadlines == 1
    assert [d.job for d in again.feed(Ticked(HOUR_S)) if isinstance(d, Start)] == ["1"]


# --- files and options ---------------------------------------------------------------------------


def test_values_for_decisions_of_a_day_of_times_and_of_a_constant(tmp_path: Path) -> None:
    day = tmp_path / "day.toml"
    values = ", ".join(str(float(hour // 12)) for hour in range(24))
    day.write_text(f'time_zone = "UTC"\nco2_g_per_kwh = [{values}]\n')
    prices = read_prices(day).hourly("co2", 1800.0, 3 * HOUR_S, 1000.0)
    assert prices is not None and prices.unit == "g CO2" and prices.values == (0.0, 0.0, 0.0)
    assert prices.times_s == (800.0, 2600.0, 6200.0, 9800.0)
    assert read_prices(day).hourly("price", 0.0, 1.0) is None
    times = tmp_path / "times.csv"
    times.write_text(
        "time (UTC),EUR/kWh\n1970-01-01T00:00,0.1\n1970-01-01T01:00,\n1970-01-01T02:00,0.3\n"
    )
    read = read_prices(times)
    assert read.begin_s == 0.0
    prices = read.hourly("price", HOUR_S + 5.0, 9 * HOUR_S)
    assert prices == HourlyPrices("EUR", (HOUR_S, 2 * HOUR_S, 3 * HOUR_S), (0.2, 0.3))
    assert read.hourly("price", 9 * HOUR_S, 10 * HOUR_S) is None
    constant = tmp_path / "c.toml"
    constant.write_text('currency = "EUR"\nprice_per_kwh = 0.2\n')
    assert read_prices(constant).hourly("price", 5.0, 9.0) == HourlyPrices(
        "EUR", (5.0, 9.0), (0.2,)
    )


JOBS = """
[[jobs]]
nodes = [1, 4]
preferred = 2
mode = "flexible"
deadline_s = 28800
speedup = { nodes = [1, 2, 4], time_s = [14400, 8640, 5760] }
resize = { every_s = 60, price_s = 5 }
"""


def test_simulate_states_cost_and_missed_deadlines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload, curve, cluster = (tmp_path / name for name in ("j.toml", "p.csv", "c.toml"))
    workload.write_text(JOBS)
    rows = [f"2026-01-01T{h:02d}:00,{1.0 if 2 <= h < 6 else 9.0}" for h in range(10)]
    curve.write_text("\n".join(["time (UTC),EUR/kWh", *rows]) + "\n")
    cluster.write_text(
        'name = "c"\n[[nodes]]\nname = "n[1-4]"\n[nodes.power]\nidle_w = 0\nstatic_w = 1000\n'
    )
    words = ["simulate", "--workload", str(workload), "--cluster", str(cluster)]
    words += ["--prices", str(curve), "--policy"]
    costs = []
    for policy in ("cheap-hours", "backfill-share"):
        assert main([*words, policy]) == 0
        lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
        assert lines["deadlines"] == "1" and lines["deadlines_missed"] == "0"
        costs.append(float(lines["cost"].split()[1].rstrip(",")))
    assert costs[0] == pytest.approx(4.0, abs=0.1)  # one node for 4 h of 1 EUR/kWh
    assert costs[0] < costs[1] / 4
    assert main([*words, "easy", "--cheap-by", "co2"]) == 2
    assert "expected --cheap-by price, which p.csv has, got co2" in capsys.readouterr().err
    assert main(["simulate", "--workload", str(workload), "--cheap-by", "co2"]) == 2
