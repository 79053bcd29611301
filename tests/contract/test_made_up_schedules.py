"""Schedules worked out by hand, on small traces that come with the tests.

Published schedules (``test_published_schedules.py``) need traces that the project does not ship.
The traces here test the same formulas without them: each is small enough that its schedule stands
in a comment, with the arithmetic. A job is ``(id, submit, run, processors, requested time)``.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rms.cli.main import main

pytestmark = pytest.mark.promise("schedules-by-hand")

Job = tuple[str, int, int, int, int]


def simulated(
    folder: Path, jobs: list[Job], processors: int, policy: str, *options: str
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the start of each job in s, and the figures of ``rms simulate``."""
    trace, rows, figures = folder / "t.swf", folder / "jobs.csv", folder / "out.json"
    trace.write_text(
        "".join(
            f"{job} {submit} -1 {run} {size} -1 -1 {size} {limit} -1 1 1 1 1 1 -1 -1 -1\n"
            for job, submit, run, size, limit in jobs
        )
    )
    command = ["simulate", "--trace", str(trace), "--processors", str(processors)]
    command += ["--policy", policy, "--per-job", str(rows), "--json", str(figures), *options]
    assert main(command) == 0
    with rows.open() as file:
        starts = {row["job"]: float(row["start_s"]) for row in csv.DictReader(file)}
    return starts, json.loads(figures.read_text())


# Figures of a schedule

FIGURES: list[Job] = [
    ("1", 0, 100, 4, 100),  # starts at 0, waits 0: 100 / 100 = 1
    ("2", 0, 5, 4, 5),  # starts at 100, waits 100: (100 + 5) / max(5, 10) = 10.5
    ("3", 104, 2, 1, 2),  # starts at 105, waits 1: (1 + 2) / 10 = 0.3, so 1
    ("4", 105, 10, 4, 10),  # starts at 107, waits 2: (2 + 10) / 10 = 1.2
    ("5", 107, 20, 2, 20),  # starts at 117, waits 10: (10 + 20) / 20 = 1.5; ends at 137
]


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative"])
def test_bounded_slowdown_wait_and_utilization(tmp_path: Path, policy: str) -> None:
    starts, found = simulated(tmp_path, FIGURES, 4, policy)
    assert starts == {"1": 0.0, "2": 100.0, "3": 105.0, "4": 107.0, "5": 117.0}
    assert found["mean_wait_s"] == pytest.approx((0 + 100 + 1 + 2 + 10) / 5)
    assert found["mean_bounded_slowdown"] == pytest.approx((1 + 10.5 + 1 + 1.2 + 1.5) / 5)
    assert found["p95_bounded_slowdown"] == pytest.approx(1.5)  # the fourth of five: 0.95 x 4 = 3.8
    assert found["makespan_s"] == 137.0
    used = 4 * 100 + 4 * 5 + 1 * 2 + 4 * 10 + 2 * 20
    assert found["utilization"] == pytest.approx(used / (4 * 137))


def test_utilization_and_makespan_begin_with_the_first_submission(tmp_path: Path) -> None:
    _, found = simulated(tmp_path, [("1", 50, 10, 1, 10), ("2", 60, 30, 2, 30)], 2, "fifo")
    assert found["makespan_s"] == 40.0
    assert found["utilization"] == pytest.approx((1 * 10 + 2 * 30) / (2 * 40))


# First come, first served


def test_fcfs_keeps_the_order_of_the_trace_at_equal_times(tmp_path: Path) -> None:
    jobs: list[Job] = [("3", 0, 5, 1, 5), ("1", 0, 5, 1, 5), ("2", 0, 5, 1, 5)]
    starts, _ = simulated(tmp_path, jobs, 1, "fifo")
    assert starts == {"3": 0.0, "1": 5.0, "2": 10.0}


def test_fcfs_lets_nobody_overtake_and_easy_does(tmp_path: Path) -> None:
    # 1 has 2 of 4 processors until 10. 2 needs 3 and waits for it; 3 needs 1 for 5 s.
    jobs: list[Job] = [("1", 0, 10, 2, 10), ("2", 1, 10, 3, 10), ("3", 2, 5, 1, 5)]
    assert simulated(tmp_path, jobs, 4, "fifo")[0] == {"1": 0.0, "2": 10.0, "3": 10.0}
    assert simulated(tmp_path, jobs, 4, "easy")[0] == {"1": 0.0, "2": 10.0, "3": 2.0}


# EASY: the reservation of the first waiting job, and who may start before it


def test_all_jobs_that_end_in_the_instant_of_the_reservation_leave_nodes_to_it(
    tmp_path: Path,
) -> None:
    # Of 10 processors 1, 2 and 3 have 4, 3 and 2; 1 is free. 4 needs 5: they are free at 10, as
    # soon as 1 ends. But 2 ends at 10 too, so 1 + 4 + 3 = 8 are free then, 3 more than 4 needs.
    # 5 needs 1 of them for long, and starts at once.
    jobs: list[Job] = [
        ("1", 0, 10, 4, 10),
        ("2", 0, 10, 3, 10),
        ("3", 0, 20, 2, 20),
        ("4", 1, 10, 5, 10),
        ("5", 2, 100, 1, 100),
    ]
    starts, _ = simulated(tmp_path, jobs, 10, "easy")
    assert starts == {"1": 0.0, "2": 0.0, "3": 0.0, "4": 10.0, "5": 2.0}


@pytest.mark.parametrize(("limit", "start"), [(8, 2.0), (9, 15.0)])
def test_a_job_that_ends_at_the_reservation_overtakes_one_that_ends_later_does_not(
    tmp_path: Path, limit: int, start: float
) -> None:
    # 1 has 3 of 4 until 10, when 2 has all four reserved, none is left over. 3 comes at 2: with
    # 8 s it ends at 10 and starts at 2; with 9 s it waits for the end of 2, 10 + 5 = 15.
    jobs: list[Job] = [("1", 0, 10, 3, 10), ("2", 1, 5, 4, 5), ("3", 2, limit, 1, limit)]
    starts, _ = simulated(tmp_path, jobs, 4, "easy")
    assert starts == {"1": 0.0, "2": 10.0, "3": start}


@pytest.mark.parametrize(("size", "start"), [(2, 2.0), (3, 20.0)])
def test_a_long_job_overtakes_on_as_many_nodes_as_the_reservation_leaves(
    tmp_path: Path, size: int, start: float
) -> None:
    # 1 has 3 of 6 until 10, when 2 has 4 of the 6 reserved: 2 are left over. 3 would fit at 2 with
    # 3 too, but then 2 would lack one; so it waits for the end of 2, 10 + 10 = 20.
    jobs: list[Job] = [("1", 0, 10, 3, 10), ("2", 1, 10, 4, 10), ("3", 2, 100, size, 100)]
    starts, _ = simulated(tmp_path, jobs, 6, "easy")
    assert starts == {"1": 0.0, "2": 10.0, "3": start}


def test_what_the_reservation_leaves_is_used_up(tmp_path: Path) -> None:
    # 1 has 3 of 6 until 6, 2 the other 3 until 10. 3 has 4 reserved for 10: 2 are left over. At 6
    # three are free: 4 takes 1 of those left over, 5 would need 2 more and waits. At 10, 6 - 1 - 4
    # is 1, so 5 waits for the end of 3, at 20.
    jobs: list[Job] = [
        ("1", 0, 6, 3, 6),
        ("2", 0, 10, 3, 10),
        ("3", 1, 10, 4, 10),
        ("4", 2, 100, 1, 100),
        ("5", 3, 100, 2, 100),
    ]
    starts, _ = simulated(tmp_path, jobs, 6, "easy")
    assert starts == {"1": 0.0, "2": 0.0, "3": 10.0, "4": 6.0, "5": 20.0}


@pytest.mark.parametrize(("limit", "start"), [(18, 2.0), (19, 25.0)])
def test_the_reservation_is_at_the_last_end_that_it_needs(
    tmp_path: Path, limit: int, start: float
) -> None:
    # 1 and 2 have 2 and 1 of 4 until 10 and 20: 3 has all four reserved for 20. 4 ends at 20 with
    # 18 s; with 19 s it waits for the end of 3, 20 + 5.
    jobs: list[Job] = [
        ("1", 0, 10, 2, 10),
        ("2", 0, 20, 1, 20),
        ("3", 1, 5, 4, 5),
        ("4", 2, limit, 1, limit),
    ]
    starts, _ = simulated(tmp_path, jobs, 4, "easy")
    assert starts == {"1": 0.0, "2": 0.0, "3": 20.0, "4": start}


@pytest.mark.parametrize(
    ("estimates", "starts"),
    [("requested", {"1": 0.0, "2": 17.0, "3": 2.0}), ("exact", {"1": 0.0, "2": 10.0, "3": 15.0})],
)
def test_reservations_are_by_requested_or_by_exact_times(
    tmp_path: Path, estimates: str, starts: dict[str, float]
) -> None:
    # 1 requests 20 s and runs for 10. By requests 2 has its reservation at 20, so 3 (15 s) starts
    # at 2 and ends at 17, and 2 starts then. By run times 2 has it at 10, and 3 waits for its end.
    jobs: list[Job] = [("1", 0, 10, 3, 20), ("2", 1, 5, 4, 5), ("3", 2, 15, 1, 15)]
    assert simulated(tmp_path, jobs, 4, "easy", "--estimates", estimates)[0] == starts


@pytest.mark.parametrize(("estimates", "start"), [("requested", 15.0), ("exact", 2.0)])
def test_so_is_the_end_of_a_job_that_overtakes(
    tmp_path: Path, estimates: str, start: float
) -> None:
    # 2 has its reservation at 10. 3 requests 15 s, and would end at 17; it runs for 8, until 10.
    jobs: list[Job] = [("1", 0, 10, 3, 10), ("2", 1, 5, 4, 5), ("3", 2, 8, 1, 15)]
    starts, _ = simulated(tmp_path, jobs, 4, "easy", "--estimates", estimates)
    assert starts == {"1": 0.0, "2": 10.0, "3": start}


@pytest.mark.parametrize(("order", "third", "fourth"), [("fcfs", 3.0, 15.0), ("sjbf", 15.0, 3.0)])
def test_jobs_overtake_in_the_order_of_the_queue_or_the_shortest_first(
    tmp_path: Path, order: str, third: float, fourth: float
) -> None:
    # 1 has 3 of 4 until 10, 0 the last one until 3; 2 has all reserved for 10, and runs until 15.
    # At 3 one is free: 3 would end at 10, 4 at 8. Whoever starts, the other one would end too late:
    # at 8, 3 would end at 15.
    jobs: list[Job] = [
        ("0", 0, 3, 1, 3),
        ("1", 0, 10, 3, 10),
        ("2", 1, 5, 4, 5),
        ("3", 1, 7, 1, 7),
        ("4", 2, 5, 1, 5),
    ]
    starts, _ = simulated(tmp_path, jobs, 4, "easy", "--order", order)
    assert starts == {"0": 0.0, "1": 0.0, "2": 10.0, "3": third, "4": fourth}


# Conservative backfilling: a reservation for everybody


@pytest.mark.parametrize(("limit", "start"), [(17, 3.0), (18, 25.0)])
def test_conservative_delays_nobody_that_came_before(
    tmp_path: Path, limit: int, start: float
) -> None:
    # 1 has 2 of 4 until 10; 2 (3 processors) has 10 to 20 reserved, 3 (all) 20 to 25. 4 needs one:
    # 3 to 10 two are free, 10 to 20 one, then none until 25. With 17 s it just fits in before 3;
    # with 18 s it starts at 25.
    jobs: list[Job] = [
        ("1", 0, 10, 2, 10),
        ("2", 1, 10, 3, 10),
        ("3", 2, 5, 4, 5),
        ("4", 3, limit, 1, limit),
    ]
    starts, _ = simulated(tmp_path, jobs, 4, "conservative")
    assert starts == {"1": 0.0, "2": 10.0, "3": 20.0, "4": start}


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("easy", {"1": 0.0, "2": 10.0, "3": 103.0, "4": 3.0}),
        ("conservative", {"1": 0.0, "2": 10.0, "3": 20.0, "4": 25.0}),
    ],
)
def test_easy_delays_whoever_is_not_the_first(
    tmp_path: Path, policy: str, starts: dict[str, float]
) -> None:
    # As above, but 4 needs one processor for 100 s. 2 leaves one of four, so under EASY 4 starts
    # at 3, and 3, which needs all, waits until 103.
    jobs: list[Job] = [
        ("1", 0, 10, 2, 10),
        ("2", 1, 10, 3, 10),
        ("3", 2, 5, 4, 5),
        ("4", 3, 100, 1, 100),
    ]
    assert simulated(tmp_path, jobs, 4, policy)[0] == starts


# What a pass sees: one event, or all of an instant


@pytest.mark.parametrize(
    ("passes", "third", "fourth"),
    [("per-event", 40.0, 10.0), ("per-timestamp", 10.0, 15.0)],
)
def test_two_ends_of_an_instant_are_seen_one_by_one_or_together(
    tmp_path: Path, passes: str, third: float, fourth: float
) -> None:
    # 1 and 2 have 2 each of 4 and end at 10, though 2 requested 50 s. 3 needs all four. A pass
    # after the end of 1 alone has two free, and 3 reserved for 50; 4 (30 s) starts, and 3 at its
    # end. A pass after both has four free: 3 starts, and 4 at its end, 10 + 5.
    jobs: list[Job] = [
        ("1", 0, 10, 2, 10),
        ("2", 0, 10, 2, 50),
        ("3", 1, 5, 4, 5),
        ("4", 2, 30, 2, 30),
    ]
    starts, _ = simulated(tmp_path, jobs, 4, "easy", "--passes", passes)
    assert starts == {"1": 0.0, "2": 0.0, "3": third, "4": fourth}


@pytest.mark.parametrize(
    ("passes", "second", "third"),
    [("per-event", 30.0, 10.0), ("ends-first", 10.0, 15.0), ("per-timestamp", 10.0, 15.0)],
)
def test_a_submission_in_the_instant_of_an_end_comes_before_or_after_it(
    tmp_path: Path, passes: str, second: float, third: float
) -> None:
    # 1 has one of 2 and ends at 10, though it requested 50 s; 2 needs both. 3 (one, 20 s) comes at
    # 10. If that is seen first, 2 has its reservation at 50, so 3 starts, and 2 at its end, 30. If
    # the end is seen first, 2 starts at 10, and 3 at its end.
    jobs: list[Job] = [("1", 0, 10, 1, 50), ("2", 1, 5, 2, 5), ("3", 10, 20, 1, 20)]
    starts, _ = simulated(tmp_path, jobs, 2, "easy", "--passes", passes)
    assert starts == {"1": 0.0, "2": second, "3": third}
