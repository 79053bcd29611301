"""Recurring windows in which a share of the nodes is off (``node_power`` part ``windows``)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from specs import job_spec

from rms.cli.main import main
from rms.core.model.events import (
    Decision,
    Ended,
    HourlyPrices,
    Later,
    Never,
    PowerOff,
    PowerOn,
    Reason,
    Resize,
    Started,
    Submitted,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import POLICIES, Policy, PolicyError, adjusted
from rms.core.policies.node_power import Windows
from rms.core.policies.placement import Room, Sizing
from rms.core.scheduler.engine import Engine
from rms.core.state import State
from rms.sim.run import MissedWindows
from rms.sim.simulator import STUCK_S, Simulation
from rms.studies.posner import AsPlanned, PromisePlan

HOUR = 3600.0
POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=120.0, boot_j=18000.0)


def windows(name: str = "easy", share: float = 0.5, **more: Any) -> Policy:
    part = {"part": "windows", "off": ["22:00-06:00"], "share": share, **more}
    return adjusted(POLICIES[name], node_power=part)


def malleable(number: int, at_s: float, sizes: tuple[int, int], work_s: float) -> JobSpec:
    """Return a job of ``work_s`` node seconds with perfect speedup and a resize point a minute."""
    least, most = sizes
    return JobSpec(
        id=job_spec(number, 1).id,
        submit_s=at_s,
        nodes_min=least,
        nodes_max=most,
        preferred=most,
        mode=Mode.MALLEABLE,
        speedup=Speedup(law=(work_s, 0.0)),
        limit_s=2.0 * work_s / most,
        resize_every_s=60.0,
    )


def simulated(
    specs: list[JobSpec],
    nodes: int,
    policy: Policy,
    rack: tuple[int, ...] = (),
    prices: HourlyPrices | None = None,
    missed: MissedWindows | None = None,
) -> tuple[Simulation, list[tuple[float, frozenset[int], int]]]:
    """Return a simulation that is over, and by time the nodes off and the nodes of jobs."""
    seen = list[tuple[float, frozenset[int], int]]()

    def look(simulation: Simulation) -> None:
        if missed is not None:
            missed.observe(simulation)
        state = simulation.engine.state
        used = sum(job.size for job in state.running.values())
        seen.append((state.now_s, frozenset(state.off), used))

    site = Site(nodes, (POWER,) * nodes, rack=rack)
    simulation = Simulation(specs, site, policy, observer=look, prices=prices)
    simulation.run()
    simulation.ledger.check()
    assert not simulation.engine.state.pending
    return simulation, seen


def at(seen: list[tuple[float, frozenset[int], int]], hour: float) -> tuple[frozenset[int], int]:
    """Return the nodes off and those of jobs after the last event until a time."""
    _, off, used = [one for one in seen if one[0] <= hour * HOUR][-1]
    return off, used


def starts(simulation: Simulation) -> dict[str, float]:
    return {job.spec.id: job.start_s or 0.0 for job in simulation.engine.state.ended.values()}


def test_nodes_are_off_for_the_window_and_on_at_its_end() -> None:
    ticks = [
        job_spec(number, 1, at_s=number * HOUR, limit_s=60.0, run_s=60.0) for number in range(40)
    ]
    simulation, seen = simulated(ticks, 4, windows())
    assert len(at(seen, 21.9)[0]) == 0
    assert len(at(seen, 22.0)[0]) == 2
    assert len(at(seen, 29.9)[0]) == 2
    switches = [
        (at_s, type(one), len(one.nodes))
        for at_s, one in simulation.decisions
        if isinstance(one, PowerOff | PowerOn) and at_s > 20 * HOUR
    ]
    assert switches == [(22 * HOUR, PowerOff, 2), (30 * HOUR - 120.0, PowerOn, 2)]
    assert at(seen, 30.0) == (frozenset(), 1)


def test_a_job_that_would_not_end_in_time_waits_and_a_shorter_one_does_not() -> None:
    specs = [
        job_spec(1, 4, at_s=20 * HOUR, limit_s=3 * HOUR, run_s=HOUR),
        job_spec(2, 4, at_s=20 * HOUR + 1, limit_s=HOUR, run_s=HOUR),
        job_spec(3, 2, at_s=20 * HOUR + 2, limit_s=9 * HOUR, run_s=9 * HOUR),
    ]
    simulation, seen = simulated(specs, 4, windows())
    begun = starts(simulation)
    assert begun["2"] == 20 * HOUR + 1  # job 1 does not hold it up
    assert begun["3"] == 21 * HOUR + 1  # two nodes stay on
    assert begun["1"] >= 30 * HOUR
    assert (len(at(seen, 22.0)[0]), at(seen, 22.0)[1]) == (2, 2)


def test_malleable_jobs_make_room_at_their_resize_points_and_grow_again() -> None:
    specs = [malleable(1, 20 * HOUR, (1, 4), 4 * 15 * HOUR)]
    simulation, seen = simulated(specs, 4, windows("backfill-share"))
    assert starts(simulation)["1"] == 20 * HOUR
    assert at(seen, 21.9) == (frozenset(), 4)
    off, used = at(seen, 22.0 + 0.1)
    assert (len(off), used) == (2, 2)
    assert at(seen, 30.1) == (frozenset(), 4)
    sizes = [len(one.nodes) for _, one in simulation.decisions if isinstance(one, Resize)]
    assert sizes == [2, 4]


def test_a_rigid_job_past_its_limit_keeps_its_nodes() -> None:
    specs = [
        job_spec(1, 4, at_s=20 * HOUR, limit_s=HOUR, run_s=4 * HOUR),
        job_spec(2, 1, at_s=25 * HOUR, limit_s=HOUR, run_s=HOUR),
    ]
    _, seen = simulated(specs, 4, windows())
    assert at(seen, 23.0) == (frozenset(), 4)
    assert len(at(seen, 24.1)[0]) == 2  # once it has ended


def test_a_job_that_fits_before_no_window_starts_all_the_same() -> None:
    specs = [job_spec(1, 3, at_s=8 * HOUR, limit_s=20 * HOUR, run_s=20 * HOUR)]
    specs += [job_spec(2, 1, at_s=8 * HOUR + 1, limit_s=20 * HOUR, run_s=20 * HOUR)]
    simulation, seen = simulated(specs, 4, windows())
    begun = starts(simulation)
    assert begun["1"] == 8 * HOUR
    assert begun["2"] >= 28 * HOUR  # its node is off
    assert (len(at(seen, 22.0)[0]), at(seen, 22.0)[1]) == (1, 3)


def test_an_oversized_job_starts_where_it_runs_into_the_fewest_windows() -> None:
    specs = [job_spec(1, 3, at_s=21 * HOUR, limit_s=30 * HOUR, run_s=30 * HOUR)]
    missed = MissedWindows(Windows(off=("22:00-06:00",), share=0.5))
    simulation, _ = simulated(specs, 4, windows(), missed=missed)
    assert starts(simulation)["1"] == 30 * HOUR  # at 21:00 it would run into two
    assert missed.missed == {46 * HOUR: True}
    assert missed.figures == {"windows": 2, "windows_missed": 1, "windows_unavoidable": 1}


def test_the_simulator_prints_missed_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, site = tmp_path / "log.swf", Path("jobs/sp2.toml")
    rest = " -1" * 9
    trace.write_text(
        f"1 28800 0 70000 120 -1 -1 120 72000{rest}\n2 90000 0 60 1 -1 -1 1 60{rest}\n"
    )
    command = ["simulate", "--trace", str(trace), "--cluster", str(site), "--policy"]
    assert main([*command, "jobs/windows.toml", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    got = {name: result[name] for name in ("windows", "windows_missed", "windows_unavoidable")}
    assert got == {"windows": 1, "windows_missed": 1, "windows_unavoidable": 1}
    assert main([*command, "backfill-share", "--json", "-"]) == 0
    assert "windows" not in json.loads(capsys.readouterr().out)


def test_oversized_jobs_are_refused_where_the_operator_says_so() -> None:
    policy, site = windows(oversized="refuse"), Site(4, (POWER,) * 4)
    spec = job_spec(1, 3, at_s=8 * HOUR, limit_s=20 * HOUR, run_s=20 * HOUR)
    narrow = replace(spec, id=JobId("2"), nodes_min=2, nodes_max=2, preferred=2)
    simulation = Simulation([spec, narrow], site, policy)
    simulation.run()
    assert [one for _, one in simulation.decisions if isinstance(one, Never)] == [
        Never(
            spec.id,
            "too wide for the 2 nodes that stay on, and too long between two windows",
            Reason.NODE_POWER,
        )
    ]
    assert simulation.engine.state.ended[narrow.id].start_s == 8 * HOUR


class StartsNothing(Sizing):
    """A sizing that starts no job."""

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        return PromisePlan()


def test_a_simulation_ends_though_a_job_never_starts_and_windows_recur() -> None:
    policy = dataclasses.replace(windows(), sizing=StartsNothing(), admission=AsPlanned())
    simulation = Simulation([job_spec(1, 1)], Site(4, (POWER,) * 4), policy)
    simulation.run()
    assert list(simulation.engine.state.pending) == ["1"]
    assert simulation.engine.state.now_s == pytest.approx(STUCK_S, rel=0.01)


def test_no_job_is_narrowed_so_that_it_runs_into_a_window() -> None:
    """A job that ends at 21:40 on four nodes would run until 23:20 on two."""
    specs = [
        job_spec(1, 4, at_s=19 * HOUR, limit_s=11 * HOUR, run_s=11 * HOUR),
        malleable(2, 20 * HOUR, (2, 4), 4 * 1.6 * HOUR),
        job_spec(3, 2, at_s=20.1 * HOUR, limit_s=HOUR, run_s=HOUR),
    ]
    specs[1] = replace(specs[1], limit_s=1.6 * HOUR)
    missed = MissedWindows(Windows(off=("22:00-06:00",), share=0.5))
    simulation, _ = simulated(specs, 8, windows("backfill-share"), missed=missed)
    assert not missed.missed
    assert not [one for _, one in simulation.decisions if isinstance(one, Resize)]
    free = simulated(specs[1:], 8, windows("backfill-share"))[0]  # the window has room for it
    assert starts(free)["3"] == pytest.approx(20.1 * HOUR)


def test_a_wide_job_keeps_its_turn_through_a_window() -> None:
    """It is reserved at the end of the window: a job that would hold its nodes longer waits."""
    specs = [
        job_spec(1, 4, at_s=20 * HOUR, limit_s=8 * HOUR, run_s=8 * HOUR),
        job_spec(2, 8, at_s=21 * HOUR, limit_s=4 * HOUR, run_s=4 * HOUR),
        job_spec(3, 2, at_s=29 * HOUR, limit_s=6 * HOUR, run_s=6 * HOUR),
    ]
    for name in ("easy", "backfill-share"):
        begun = starts(simulated(specs, 8, windows(name))[0])
        assert begun["2"] == pytest.approx(30 * HOUR) and begun["3"] >= 34 * HOUR, name


def test_a_job_is_wide_enough_to_end_before_the_window() -> None:
    specs = [
        job_spec(1, 2, at_s=8 * HOUR, limit_s=20 * HOUR, run_s=20 * HOUR),
        malleable(2, 18 * HOUR, (1, 2), 4 * HOUR),
    ]
    specs[1] = replace(specs[1], limit_s=2.5 * HOUR)
    simulation, seen = simulated(specs, 4, windows("backfill-share"))
    assert starts(simulation)["2"] == 18 * HOUR  # on one node it would take until 23:00
    assert len(at(seen, 22.0)[0]) == 2


def test_whole_racks_go_off() -> None:
    specs = [job_spec(1, 1, at_s=21 * HOUR, limit_s=5 * HOUR, run_s=5 * HOUR)]
    _, seen = simulated(specs, 6, windows(share=0.4), rack=(0, 0, 1, 1, 2, 2))
    assert at(seen, 22.5)[0] == {2, 3}


def test_the_reason_names_the_window() -> None:
    specs = [job_spec(1, 4, at_s=20 * HOUR, limit_s=3 * HOUR, run_s=HOUR)]
    reasons = list[Later | None]()

    def look(simulation: Simulation) -> None:
        if simulation.engine.state.pending:
            reasons.append(simulation.engine.explain(specs[0].id))

    Simulation(specs, Site(4, (POWER,) * 4), windows(), observer=look).run()
    assert reasons[0] is not None
    assert reasons[0].code is Reason.NODE_POWER
    assert reasons[0].reason == (
        "PowerWindow: would not end before 2 of 4 nodes are powered off from 22:00 on"
    )


def test_a_try_that_is_discarded_awaits_no_resize_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass leaves out a start of the first one, and what that one awaited."""
    engine, tries = Engine(Site(4, (POWER,) * 4), windows()), list[JobId]()
    before, *awaited = (Job(job_spec(n, 1), n, 1) for n in (1, 2, 3))
    engine.state.awaited[before.spec.id] = before

    def switched(self: Policy, state: State, events: object) -> list[Decision]:
        job = awaited[len(tries)]
        state.awaited[job.spec.id] = job
        tries.append(job.spec.id)
        return []

    monkeypatch.setattr(Policy, "_switched", switched)
    over = iter((({JobId("9")}, set[JobId]()), (set[JobId](), set[JobId]())))
    monkeypatch.setattr("rms.core.policies.policy.overruns", lambda *_: next(over))
    engine.policy.decide(engine.state, ())
    assert tries == ["2", "3"] and list(engine.state.awaited) == ["1", "3"]


def test_a_job_that_is_over_awaits_no_resize_point() -> None:
    engine = Engine(4, POLICIES["backfill-share"])
    spec = malleable(1, 0.0, (2, 4), HOUR)
    engine.handle(Submitted(0.0, (spec,)))
    engine.handle(Started(0.0, spec.id))
    engine.handle(Submitted(1.0, (job_spec(2, 2, Mode.FIXED, 1.0, limit_s=HOUR, run_s=HOUR),)))
    assert list(engine.state.awaited) == [spec.id]
    engine.handle(Ended(2.0, spec.id, "COMPLETED"))
    assert not engine.state.awaited


def test_windows_follow_the_clocks_of_their_zone() -> None:
    part = Windows(off=("22:00-06:00",), share=0.5, zone="Europe/Berlin", days=("sat",))
    zone = ZoneInfo("Europe/Berlin")
    window = part.window(datetime(2026, 3, 25, 12, tzinfo=zone).timestamp())
    assert window.begin_s == datetime(2026, 3, 28, 22, tzinfo=zone).timestamp()
    assert window.end_s - window.begin_s == 7 * HOUR  # the clocks are put forward in that night
    assert part.window(window.begin_s) == part.window(window.end_s - 1) == window
    assert part.window(window.end_s).begin_s == datetime(2026, 4, 4, 22, tzinfo=zone).timestamp()


def test_windows_that_overlap_or_touch_are_one() -> None:
    part = Windows(off=("20:00-23:00", "22:00-01:00", "01:00-06:00", "12:00-13:00"), share=0.5)
    assert part.window(21 * HOUR) == (20 * HOUR, 30 * HOUR)
    assert part.window(30 * HOUR) == (36 * HOUR, 37 * HOUR)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"off": ["22:00"]}, "expected a window such as 22:00-06:00, got '22:00'"),
        ({"off": ["22:00-22:00"]}, "expected a window such as 22:00-06:00, got '22:00-22:00'"),
        ({"off": ["24:00-06:00"]}, "expected a window such as 22:00-06:00, got '24:00-06:00'"),
        ({"off": []}, "expected windows such as 22:00-06:00, got none"),
        ({"share": 1.0}, "expected a share of at least 0 and below 1, got 1"),
        ({"days": ["monday"]}, "expected days of mon, tue, wed, thu, fri, sat, sun, got 'monday'"),
        ({"days": []}, "expected days on which windows begin, got none"),
        ({"oversized": "stop"}, "expected oversized of refuse, start, got 'stop'"),
        ({"zone": "Mars"}, "expected a time zone such as Europe/Berlin, got 'Mars'"),
    ],
)
def test_a_wrong_parameter_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match="node_power windows") as caught:
        windows(**more)
    assert words in str(caught.value)


NAMES = ["easy", "backfill-share", "conservative", "easy-share", "cheap-hours"]
JOBS = st.lists(
    st.tuples(
        st.floats(0.0, 60.0),  # hour of submission
        st.integers(1, 8),  # nodes
        st.floats(0.1, 10.0),  # limit in hours
        st.floats(0.1, 1.0),  # share of the limit that it runs
        st.booleans(),  # malleable
        st.booleans(),  # with a deadline
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.promise("node-power")
@settings(deadline=None, max_examples=60)
@given(jobs=JOBS, name=st.sampled_from(NAMES))
def test_no_window_is_missed_where_jobs_keep_their_limits(
    jobs: list[tuple[float, int, float, float, bool, bool]], name: str
) -> None:
    specs = list[JobSpec]()
    for number, (hour, size, limit, share, can, waits) in enumerate(jobs):
        if can:
            work_s = size * limit * share * HOUR
            specs.append(malleable(number, hour * HOUR, (1, size), work_s))
        else:
            times = {"limit_s": limit * HOUR, "run_s": limit * share * HOUR}
            specs.append(job_spec(number, size, at_s=hour * HOUR, **times))
        if waits:
            specs[-1] = replace(specs[-1], deadline_s=(hour + 24.0) * HOUR)
    values = tuple(float(hour % 7) for hour in range(200))
    prices = HourlyPrices("EUR", tuple(HOUR * hour for hour in range(201)), values)
    simulation, seen = simulated(specs, 8, windows(name), prices=prices)
    last_s = seen[-1][0]
    for day in range(1 + int(last_s // 86400.0)):
        begin, end = day * 24 + 22.0, day * 24 + 30.0
        inside = [one for one in seen if (begin + 0.1) * HOUR < one[0] < end * HOUR - 121.0]
        assert all(len(off) == 4 for _, off, _ in inside)
        if seen[0][0] <= begin * HOUR and last_s >= end * HOUR:
            assert len(at(seen, begin + 0.1)[0]) == 4
    assert len(starts(simulation)) == len(specs)


@pytest.mark.promise("node-power")
@settings(deadline=None, max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.floats(0.0, 60.0),  # hour of submission
            st.integers(1, 8),  # nodes
            st.floats(0.1, 45.0),  # limit in hours
            st.floats(0.1, 1.0),  # share of the limit that it runs
            st.integers(0, 8),  # least size of a malleable job, 0 for a rigid one
        ),
        min_size=1,
        max_size=30,
    ),
    name=st.sampled_from(NAMES),
)
def test_only_oversized_jobs_keep_nodes_of_a_window_and_as_few_as_they_can(
    jobs: list[tuple[float, int, float, float, int]], name: str
) -> None:
    specs = list[JobSpec]()
    for number, (hour, size, limit, share, least) in enumerate(jobs):
        if least:
            work_s = size * limit * share * HOUR
            spec = malleable(number, hour * HOUR, (min(least, size), size), work_s)
            specs.append(replace(spec, limit_s=limit * HOUR))
        else:
            times = {"limit_s": limit * HOUR, "run_s": limit * share * HOUR}
            specs.append(job_spec(number, size, at_s=hour * HOUR, **times))
    missed = MissedWindows(Windows(off=("22:00-06:00",), share=0.5))
    simulation, _ = simulated(specs, 8, windows(name), missed=missed)
    assert all(missed.missed.values())
    kept_by, ended = set[float](), simulation.engine.state.ended
    for spec in specs:
        limit_s, begin_s = spec.limit_s or 0.0, ended[spec.id].start_s or 0.0
        if spec.nodes_min <= 4 or limit_s <= 16 * HOUR:
            continue
        begins = [(24 * day + 22) * HOUR for day in range(200)]
        inside = [at_s for at_s in begins if begin_s <= at_s < begin_s + limit_s - 1e-6]
        if spec.mode is Mode.FIXED:
            assert len(inside) == ceil((limit_s / HOUR - 16) / 24)
        else:  # narrowed, it may run for longer than its limit at its preferred size
            inside = [at_s for at_s in begins if begin_s <= at_s <= (ended[spec.id].end_s or 0.0)]
        kept_by.update(inside)
    assert missed.missed.keys() <= kept_by
