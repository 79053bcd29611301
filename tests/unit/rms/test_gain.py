"""What resizes have brought: a record replayed with and without them, against figures by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from routed import routed
from specs import job_spec

from rms.client.status import gain_cells, gain_words, hours_cells, hours_words
from rms.core.model.jobs import JobId, JobRan, Mode, NodePower, Ran, ResizeRan, Site
from rms.core.model.speedup import Speedup
from rms.daemon.ask.views import past_ran
from rms.formats.prices import Prices, Series
from rms.sim.gain import GainError, gain, hours_gain, lent_node_s, run_times
from rms.wire.users import Gain, HoursGain

TWO = Speedup((1, 2), (40.0, 20.0))
SITE = Site(2, (NodePower(idle_w=10.0, static_w=20.0),) * 2)


def lender() -> JobRan:
    """Return a job that gives node 1 away at 10 s, gets it back at 20 s, and ends at 25 s."""
    return JobRan(
        spec=job_spec(1, (1, 2, 2), Mode.MALLEABLE, speedup=TWO),
        state="COMPLETED",
        start_s=0.0,
        end_s=25.0,
        spans=((0, 0.0, 25.0), (1, 0.0, 10.0), (1, 20.0, 25.0)),
        resizes=(ResizeRan(10.0, 0.0, 0.5), ResizeRan(20.0, 0.0, 0.5)),
    )


def borrower(begin_s: float = 10.0, end_s: float = 20.0) -> JobRan:
    return JobRan(
        spec=job_spec(2, 1, at_s=10.0),
        state="COMPLETED",
        start_s=begin_s,
        end_s=end_s,
        spans=((1, begin_s, end_s),),
    )


def ran(*jobs: JobRan, policy: str = "backfill-share", now_s: float = 25.0) -> Ran:
    return Ran(seq=7, now_s=now_s, policy=policy, site=SITE, jobs=jobs)


@pytest.mark.parametrize(("policy", "late_s"), [("array-share", 0.0), ("backfill-share", 1.0)])
def test_by_hand(policy: str, late_s: float) -> None:
    """Without the resize, job 2 waits until job 1 ends at 20 s: for 10 s.

    Job 1 has a resize point each second. Under array-share it shrinks at that of 10 s. Under
    backfill-share it comes to the next one after the submission, a second later. A second after
    job 2 has ended it gets the node back: it works 11 s on two nodes, 11 s on one, 3.5 s on two.
    """
    end_s = 25.0 + late_s / 2
    brought = gain(ran(lender(), borrower(), policy=policy))
    assert (brought.jobs, brought.left_out, brought.seq) == (2, 0, 7)
    assert brought.lent_node_s == 10.0
    assert brought.real.makespan_s == 25.0 and brought.real.resizes == 2
    assert brought.real.mean_wait_s == 0.0
    assert brought.with_resizes.makespan_s == pytest.approx(end_s)
    assert brought.with_resizes.resizes == 2
    assert brought.start_error_s == late_s / 2
    assert brought.makespan_error == pytest.approx(end_s / 25.0 - 1.0)
    # two nodes of 20 W, one of them idle at 10 W from 20 s until job 1 has it back
    assert brought.with_resizes.energy_j == pytest.approx(2 * 20.0 * end_s - 10.0 * late_s)
    # without: two busy nodes until 20 s, then one busy and one idle until 30 s
    assert brought.without.makespan_s == pytest.approx(30.0)
    assert brought.without.resizes == 0
    assert brought.without.energy_j == pytest.approx(2 * 20.0 * 20.0 + (20.0 + 10.0) * 10.0)
    assert brought.without.busy_j == pytest.approx(2 * 20.0 * 20.0 + 20.0 * 10.0)
    assert brought.without.mean_wait_s == pytest.approx(5.0)
    assert brought.mean_saved_s == pytest.approx(5.0 - late_s / 2)
    assert (brought.later, brought.earlier) == (1, 0)
    assert [(row.id, row.without_s) for row in brought.rows] == [("1", 0.0), ("2", 10.0)]


HOUR_S = 3600.0
DEAR_THEN_CHEAP = Prices(
    "p.csv",
    "EUR",
    price=Series((0.4, 0.1, 0.4), (0.0, HOUR_S, 2 * HOUR_S, 5 * HOUR_S)),
    carbon=Series((300.0, 100.0, 300.0), (0.0, HOUR_S, 2 * HOUR_S, 5 * HOUR_S)),
)


def patient(busy_j: float = 72e3) -> JobRan:
    """Return a job of an hour on a node that waited for the hour of 0.1 EUR/kWh."""
    return JobRan(
        spec=job_spec(1, 1, limit_s=HOUR_S, deadline_s=4 * HOUR_S),
        state="COMPLETED",
        start_s=HOUR_S,
        end_s=2 * HOUR_S,
        spans=((0, HOUR_S, 2 * HOUR_S),),
        energy_j=busy_j,
    )


def test_cheap_hours_by_hand() -> None:
    """A node of 20 W or 10 W idle, another of 10 W: an hour is 0.03 kWh, idle 0.02 kWh."""
    record = ran(patient(80e3), policy="cheap-hours", now_s=2 * HOUR_S)
    saved = hours_gain(record, DEAR_THEN_CHEAP)
    assert (saved.jobs, saved.patient, saved.left_out) == (1, 1, 0)
    assert saved.priced.price == pytest.approx(0.02 * 0.4 + 0.03 * 0.1)
    assert saved.flat.price == pytest.approx(0.03 * 0.4 + 0.02 * 0.1)
    assert saved.priced.co2_g == pytest.approx(0.02 * 300 + 0.03 * 100)
    assert saved.flat.co2_g == pytest.approx(0.03 * 300 + 0.02 * 100)
    assert saved.priced.cluster_j == pytest.approx(saved.flat.cluster_j)
    assert saved.priced.busy_j == saved.flat.busy_j == pytest.approx(72e3)
    assert saved.priced.mean_turnaround_s == 2 * HOUR_S == saved.real.mean_turnaround_s
    assert saved.flat.mean_turnaround_s == HOUR_S
    assert saved.real.missed == saved.priced.missed == saved.flat.missed == 0
    words = hours_words(saved)
    assert words[0] == (
        "Waiting for cheap hours saves 0.003 EUR (21.4%) and 2.00 g CO2 (18.2%), and makes the "
        "mean turnaround 1:00:00 longer."
    )
    assert "in the replay is -10.0% off the books" in words[2]
    assert [row[0] for row in hours_cells(saved)][:2] == ["Cost, cluster", "Emissions, cluster"]
    assert msgspec.json.decode(msgspec.json.encode(saved), type=HoursGain) == saved


def test_cheap_hours_go_by_what_the_record_went_by() -> None:
    """The cheap hour is not the clean one."""
    by_two = msgspec.structs.replace(
        DEAR_THEN_CHEAP,
        carbon=Series((300.0, 300.0, 100.0), (0.0, HOUR_S, 2 * HOUR_S, 5 * HOUR_S)),
    )
    record = ran(patient(), policy="cheap-hours", now_s=2 * HOUR_S)
    assert hours_gain(record, by_two).priced.mean_turnaround_s == 2 * HOUR_S
    by_co2 = msgspec.structs.replace(record, prices_unit="g CO2")
    assert hours_gain(by_co2, by_two).priced.mean_turnaround_s == 3 * HOUR_S


def test_cheap_hours_without_a_replay() -> None:
    record = ran(patient(), policy="cheap-hours", now_s=2 * HOUR_S)
    late = Prices("p.csv", "EUR", price=Series((0.1,), (-9.0, -1.0)))
    for words, of, prices in (
        ("no job with a deadline", ran(lender(), policy="cheap-hours"), DEAR_THEN_CHEAP),
        ("policy easy does not wait", ran(patient(), policy="easy"), DEAR_THEN_CHEAP),
        ("p.csv has no values for the time", record, late),
    ):
        with pytest.raises(GainError, match=words):
            hours_gain(of, prices)


def test_a_node_that_nobody_takes_is_not_lent() -> None:
    assert lent_node_s(ran(lender())) == {"1": 0.0}
    assert lent_node_s(ran(lender(), borrower(14.0, 30.0)))[JobId("1")] == 6.0  # back at 20 s


def test_a_migration_lends_nothing() -> None:
    moved = JobRan(
        spec=job_spec(1, (1, 1, 2), Mode.MALLEABLE),
        state="COMPLETED",
        start_s=0.0,
        end_s=20.0,
        spans=((0, 0.0, 11.0), (1, 10.0, 20.0)),  # both worlds for a second
        resizes=(ResizeRan(11.0, 1.0, 1.0),),
    )
    other = JobRan(job_spec(2, 1), "COMPLETED", 11.0, 20.0, ((0, 11.0, 20.0),))
    assert lent_node_s(ran(moved, other, now_s=20.0)) == {"1": 0.0, "2": 0.0}


def test_run_times() -> None:
    """At the sizes at which a job really ran, it ends when it really ended."""
    assert run_times(lender(), 25.0) == TWO  # 10 s + 5 s of 20, 10 s of 40: all of its work
    # twice as slow as stated: 20 + 20 s on two nodes
    slow = JobRan(lender().spec, "COMPLETED", 0.0, 40.0, ((0, 0.0, 40.0), (1, 0.0, 40.0)))
    assert run_times(slow, 40.0).time_s == (80.0, 40.0)
    # of a stall of 20 s nothing is work
    stalled = msgspec.structs.replace(slow, resizes=(ResizeRan(30.0, 20.0, 1.0),))
    assert run_times(stalled, 40.0) == TWO
    # reported speeds at two sizes: 100 steps of 0.6 s on one node, of 0.4 s on two
    plain = job_spec(1, (1, 2, 4), Mode.FLEXIBLE)
    law = msgspec.structs.replace(
        slow, spec=plain, steps=100, measured=((1, 10, 6.0), (2, 10, 4.0))
    )
    times = run_times(law, 40.0)
    assert [times.time(n) for n in (1, 2, 4)] == pytest.approx([60.0, 40.0, 30.0])
    # nothing but its end: 5 % serial
    only = run_times(msgspec.structs.replace(slow, spec=plain), 40.0)
    assert only.time(1) / only.time(4) == pytest.approx(1.0 / (0.05 + 0.95 / 4))
    assert only.time(2) == pytest.approx(40.0)


def test_what_still_runs_or_has_no_place() -> None:
    running = msgspec.structs.replace(lender(), end_s=None, state="RUNNING")
    wide = JobRan(job_spec(3, 3), "COMPLETED", 0.0, 5.0, ())
    brought = gain(ran(running, borrower(), wide, policy="array-share"))
    assert (brought.jobs, brought.left_out) == (2, 1)
    assert brought.real.makespan_s == 25.0 and brought.later == 1


def test_a_held_job_was_submitted_when_it_started() -> None:
    held = JobRan(job_spec(1, 1, hold=True), "COMPLETED", 50.0, 60.0, ((0, 50.0, 60.0),))
    brought = gain(ran(held, now_s=60.0))
    assert brought.rows[0].with_s == brought.rows[0].without_s == 0.0


def test_refusals() -> None:
    with pytest.raises(GainError, match="no job has started yet"):
        gain(ran())
    with pytest.raises(GainError, match="the policy cannot be used for a replay: expected"):
        gain(ran(lender(), policy="gone"))
    with pytest.raises(GainError, match="expected a replay of at most -1 s, got 1 jobs by then"):
        gain(ran(lender()), limit_s=-1.0)
    with pytest.raises(GainError, match="cannot be replayed: expected every job to start"):
        never = job_spec(4, 1, nodelist=("nowhere",))
        gain(ran(JobRan(never, "COMPLETED", 0.0, 1.0, ((0, 0.0, 1.0),))))


def test_over_the_wire() -> None:
    record = ran(lender(), borrower())
    assert msgspec.json.decode(msgspec.json.encode(record), type=Ran) == record
    brought = gain(record)
    assert msgspec.json.decode(msgspec.json.encode(brought), type=Gain) == brought


def test_the_record_of_a_daemon(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        server.submit(nodes=[2, 2], job_name="first", time_s=60.0)
        server.clock[0] += 10.0
        server.submit(nodes=[1, 1], job_name="second")
        server.clock[0] += 20.0
        server.daemon.scripts.end(server.daemon.jobs[JobId("1")], 0)
        server.clock[0] += 5.0
        server.submit(nodes=[2, 2], job_name="pending")
        status, answer = server.ask("GET", "/ran")
        assert status == 200
        record = msgspec.convert(answer, Ran)
        assert record.seq == server.daemon.journal.last and record.now_s == 1035.0
        first, second = record.jobs  # what has not started is not in it
        assert (first.start_s, first.end_s, first.state) == (1000.0, 1030.0, "COMPLETED")
        assert first.spans == ((0, 1000.0, 1030.0), (1, 1000.0, 1030.0))
        assert (second.start_s, second.end_s, second.state) == (1030.0, None, "RUNNING")
        assert second.spans == ((0, 1030.0, 1035.0),) and second.spec.submit_s == 1010.0
        live = gain(record)
        assert live.with_resizes.makespan_s == live.without.makespan_s == 35.0
        errors = live.start_error_s, live.makespan_error, live.lent_node_s
        assert errors == pytest.approx((0.0, 0.0, 0.0))
    past = gain(past_ran(tmp_path / "journal"))
    assert past.rows == live.rows and past.real == live.real


def test_words() -> None:
    brought = gain(ran(lender(), borrower(), policy="array-share"))
    cells = gain_cells(brought)
    assert [row[0] for row in cells[:3]] == ["Makespan", "Mean wait", "Resizes"]
    assert cells[0][1:] == ["0:00:25", "0:00:25", "0:00:30"] and cells[3][1] == ""
    lent, waits, _, error = gain_words(brought)
    assert lent == "0.00278 node hours lent by 1 job to other jobs."
    expected = "Without resizes the mean wait is 0:00:05 longer: 1 job starts later, 0 earlier."
    assert waits == expected
    assert "starts in the replay are 0:00:00 off on average" in error and "+0.0%" in error
    unsure = msgspec.structs.replace(brought, start_error_s=6.0)
    assert gain_words(unsure)[-1] == "The difference of the waits is within that error."
