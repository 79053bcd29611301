"""What a page that follows a daemon is answered: cut to size, and true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from routed import Routed, routed

from rms.core.model.events import Ended
from rms.core.model.jobs import JobId
from rms.core.policies import placing
from rms.daemon.ask import live
from rms.daemon.store import archive
from rms.formats.prices import read_prices
from rms.web.views import PageQuery, content
from rms.wire.live import Live, node_seconds, size_steps
from rms.wire.users import ResizeRow


def asked(server: Routed, **query: object) -> dict[str, Any]:
    status, answer = server.ask("POST", "/live", query)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def end(server: Routed, job: str) -> None:
    server.clock[0] += 10.0
    server.daemon.handle(Ended(server.clock[0], JobId(job), "COMPLETED"))


@pytest.mark.promise("web-data")
def test_a_page_asks_for_rows_and_drawings_that_are_cut_to_size(server: Routed) -> None:
    wide = server.submit(nodes=[2, 2], job_name="<b>wide</b>")
    array = server.submit(array="1-200").partition("_")[0]
    before = asked(server)["seq"]
    present = asked(server, jobs="active", after=0)
    assert [line["ids"] for line in present["jobs"]["lines"]] == [wide, f"{array}_[1-200]"]
    assert (present["waiting"], present["running"], present["held"]) == (200, 1, 2)
    assert present["jobs"]["total"] == 2 and present["jobs"]["lines"][1]["tasks"] == 200
    said = [each["words"] for each in present["news"]]
    assert f"job {wide} started" in said and f"job {wide} submitted" in said

    end(server, wide)
    then = asked(server, jobs="active", after=before, lanes=2, power=True, array=array, job=wide)
    assert [each["words"] for each in then["news"] if each["job"] == wide] == [
        f"job {wide} completed"
    ]
    assert all(each["seq"] > before for each in then["news"]) and then["missed"] == 0
    assert [line["ids"] for line in then["jobs"]["lines"]] == [
        f"{array}_1",
        f"{array}_2",
        f"{array}_[3-200]",
    ]
    spans = [(span["job"], span["end_s"]) for span in then["lanes"]["lanes"][0]["spans"]]
    assert spans == [(wide, 1010.0), (f"{array}_1", None)]
    assert len(then["tasks"]) == 200 and then["tasks"][0] == [1, "RUNNING"]
    assert then["job"]["name"] == "<b>wide</b>" and then["history"][0]["kind"] == "start"

    over = asked(server, jobs="over", find="wide", limit=1)["jobs"]
    assert [line["ids"] for line in over["lines"]] == [wide] and over["total"] == 1
    assert asked(server, jobs="over", find="other")["jobs"]["lines"] == []


@pytest.mark.promise("web-data")
def test_jobs_that_are_archived_are_there_too(server: Routed) -> None:
    array = server.submit(array="1-4", job_name="tasks").partition("_")[0]
    last = server.submit(job_name="last")
    for job in [f"{array}_{n}" for n in (1, 2, 3, 4)] + [last]:
        end(server, job)
    for known in server.daemon.jobs.values():
        known.summary = None
    server.clock[0] += 100.0
    server.daemon.meters.write_all()
    before = asked(server, jobs="over", array=array)
    with patch.object(archive, "KEPT", 2), patch.object(archive, "AT_ONCE", 1):
        while archive.retire(server.daemon.context):
            pass
    assert len(server.daemon.context.state.ended) == 2
    then = asked(server, jobs="over", array=array, job=f"{array}_1")
    assert (then["over"], then["tasks"]) == (5, before["tasks"])
    assert then["job"]["state"] == "COMPLETED" and then["history"][0]["kind"] == "start"
    ids = [line["ids"] for line in then["jobs"]["lines"]]
    assert ids == [line["ids"] for line in before["jobs"]["lines"]] and then["jobs"]["total"] == 5
    pages = [asked(server, jobs="over", offset=n, limit=2)["jobs"]["lines"] for n in (0, 2, 4)]
    assert [line["ids"] for page in pages for line in page] == ids
    for text, number in (("tasks", 4), ("last", 1), (f"{array}_2", 1), ("none", 0)):
        found = asked(server, jobs="over", find=text)["jobs"]
        assert len(found["lines"]) == found["total"] == number


def test_the_curve_of_power_is_that_of_the_books(server: Routed) -> None:
    job = server.submit(nodes=[1, 1])
    end(server, job)
    server.clock[0] += 50.0
    found = asked(server, power=True, span_s=60.0)["power"]
    assert (found["begin_s"], found["end_s"]) == (1000.0, 1060.0) and len(found["points"]) == 120
    part_s = 60.0 / 120
    energy = found["energy"]
    assert sum(point[1] for point in found["points"]) * part_s == pytest.approx(energy["cluster_j"])
    share = [held for at_s, held in found["allocated"] if at_s <= 1001.0]
    assert share == [0.5] and found["allocated"][-1] == [1010.0, 0.0]
    assert sum(point[2] for point in found["points"]) * part_s == pytest.approx(energy["idle_j"])
    assert found["prices"] == []


def test_prices_and_emissions_are_beside_the_power(server: Routed, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "time,<b>/kWh,gCO2/kWh\n1970-01-01T00:00Z,0.2,\n"
        "1970-01-01T00:17Z,0.1,350\n1970-01-01T01:00Z,,\n"
    )
    context = server.daemon.context
    context.settings = replace(context.settings, prices=read_prices(tmp_path / "p.csv"))
    server.clock[0] = 1060.0
    price, carbon = asked(server, power=True, span_s=60.0)["power"]["prices"]
    assert (price["name"], price["unit"]) == ("Price", "<b>/kWh")
    assert [value for at_s, value in price["steps"] if at_s < 1020.0] == [0.2] * 40
    assert price["steps"][40:] == [[1020.0 + at / 2, 0.1] for at in range(80)]
    assert (carbon["name"], carbon["unit"]) == ("Carbon", "g CO2/kWh")
    assert carbon["steps"] == [[1020.0 + at / 2, 350.0] for at in range(80)]
    answer = asked(server, power=True, span_s=60.0)
    view = content(PageQuery.parse({}), msgspec.convert(answer, Live)).parts["price-curves"]
    assert "now 0.1 &lt;b&gt;/kWh, mean 0.1333" in view and "<b>/kWh" not in view


def test_of_much_in_a_lane_it_says_how_much_was_held(server: Routed) -> None:
    for _ in range(6):
        end(server, server.submit(nodes=[1, 1]))
    with patch.object(live, "MOST_BARS", 2):
        first, second = asked(server, lanes=2, span_s=600.0)["lanes"]["lanes"]
    assert first["spans"] == [] and {share for _, share in first["held"]} == {1.0}
    assert second["held"] == [] and second["state"] == "idle"
    (both,) = asked(server, lanes=1, span_s=600.0)["lanes"]["lanes"]
    assert both["name"] == "n1 - n2" and {share for _, share in both["held"]} == {0.5}
    assert both["state"] == "2 idle"


@pytest.mark.promise("web-data")
def test_who_waits_is_told_when_it_is_expected_to_start(server: Routed) -> None:
    server.submit(nodes=[2, 2], time_s=100.0)
    server.submit(nodes=[2, 2], time_s=50.0)
    server.submit(nodes=[1, 1])
    lines = asked(server, jobs="active")["jobs"]["lines"]
    assert [line["job"]["expected_start_s"] for line in lines] == [None, 1100.0, 1150.0]
    assert json.loads(asked(server)["policy_text"])["name"] == asked(server)["policy"]


@pytest.mark.promise("web-data")
def test_the_next_starts_are_those_of_the_rows_tasks_of_an_array_together(server: Routed) -> None:
    server.submit(nodes=[2, 2], time_s=100.0, job_name="first")
    server.submit(nodes=[2, 2], time_s=50.0, job_name="second")
    server.submit(array="1-3", time_s=10.0)
    rows = asked(server, forecast=5)["forecast"]
    assert [(row["ids"], row["job"], row["nodes"], row["at_s"]) for row in rows] == [
        ("2", "2", 2, 1100.0),
        ("3_[1-3]", "3_1", 1, 1150.0),
    ]
    assert asked(server, forecast=1)["forecast"] == rows[:1] and asked(server)["forecast"] == []


@pytest.mark.promise("web-data")
def test_usage_is_by_account_and_the_same_when_jobs_are_archived(server: Routed) -> None:
    for account, nodes in (("a", 2), ("b", 1), ("a", 1), ("b", 1)):
        end(server, server.submit(nodes=[nodes, nodes], account=account))
    server.submit(nodes=[1, 1], account="a")
    server.clock[0] += 36.0
    server.submit(nodes=[2, 2], account="b")
    before = asked(server, usage=True)["usage"]
    found = {row["account"]: row for row in before["rows"]}
    assert [row["account"] for row in before["rows"]] == ["a", "b"] and before["uncounted"] == 0
    numbers = {name: (row["node_s"], row["nodes"], row["ended"]) for name, row in found.items()}
    assert numbers == {"a": (66.0, 1, 2), "b": (20.0, 0, 2)}
    assert (found["a"]["running"], found["b"]["pending"]) == (1, 1)
    books = server.ask("GET", "/books")[1]["energy"]
    assert sum(row["energy_j"] for row in found.values()) == pytest.approx(books["busy_j"])

    for known in server.daemon.jobs.values():
        known.summary = None
    server.daemon.meters.write_all()
    with patch.object(archive, "KEPT", 1), patch.object(archive, "AT_ONCE", 1):
        while archive.retire(server.daemon.context):
            pass
    assert server.daemon.context.journal.archived_number() == 3
    with patch.object(live, "COUNTED", 2):
        assert asked(server, usage=True)["usage"]["uncounted"] == 1
        then = asked(server, usage=True)["usage"]
    assert then["uncounted"] == 0
    for row in then["rows"]:
        own = found[row["account"]]
        assert row["energy_j"] == pytest.approx(own["energy_j"])
        assert {**row, "energy_j": 0.0} == {**own, "energy_j": 0.0}


def test_the_size_of_a_job_over_time_follows_its_resizes() -> None:
    rest = ("warm", 1.0, 0.1, 0.05, 8, 0.1)
    resizes = [ResizeRow(90.0, 0, 8, 4, *rest), ResizeRow(110.0, 1, 4, 8, *rest)]
    resizes.append(ResizeRow(130.0, 2, 8, 2, *rest))
    assert size_steps(100.0, 1, resizes) == [(100.0, 2.0), (110.0, 4.0), (130.0, 1.0)]
    assert node_seconds(100.0, 140.0, 1, resizes) == 20.0 + 80.0 + 10.0
    assert node_seconds(100.0, 140.0, 3, []) == 120.0


@pytest.mark.parametrize(
    ("names", "most", "lengths"),
    [
        ("n1 n2 n3", 3, [1, 1, 1]),
        ("n1/0 n1/1 n2/0 n2/1", 3, [2, 2]),
        ("r1n1 r1n2 r1n3 r2n1", 2, [3, 1]),
        ("n1 n2 n3 n4 n5", 2, [3, 2]),
        ("a1 b1 c1 d1", 3, [2, 2]),
    ],
)
def test_many_nodes_are_folded_by_host_by_rack_or_in_ranges(
    names: str, most: int, lengths: list[int]
) -> None:
    parts = live.folded(names.split(), most)
    assert [len(part) for part in parts] == lengths
    assert [node for part in parts for node in part] == list(range(len(names.split())))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"jobs": "all"}, "expected jobs that are active or over, got 'all'"),
        ({"lanes": 2, "span_s": -1.0}, "expected a time and its length, got 0.0 and -1.0"),
        ({"lanes": 2, "span_s": 0.0}, "expected a time and its length, got 0.0 and 0.0"),
    ],
)
def test_what_there_is_not_is_refused(server: Routed, query: object, expected: str) -> None:
    assert server.ask("POST", "/live", query) == (400, {"error": expected})


@pytest.mark.promise("web-data")
def test_idle_power_is_that_of_the_nodes_nobody_has_at_the_time(server: Routed) -> None:
    server.submit(nodes=[1, 1])
    server.clock[0] = 1150.0
    server.submit(nodes=[1, 1])
    server.clock[0] = 1200.0
    points = asked(server, power=True, span_s=200.0)["power"]["points"]
    assert {idle_w for at_s, _, idle_w, *_ in points if at_s < 1148.0} == {5.0}
    assert {idle_w for at_s, _, idle_w, *_ in points if at_s > 1152.0} == {0.0}
    assert {tuple(point[3:]) for point in points} == {(0.0, 0.0)}


def test_a_lane_shows_when_its_node_was_off_within_the_window(tmp_path: Path) -> None:
    """Both nodes go off at 1000 s; at 1060 s a job has the first booted, which takes no time."""
    (tmp_path / "p.toml").write_text('node_power = { part = "off-when-idle" }\n')
    with routed(tmp_path / "state", policy=placing(str(tmp_path / "p.toml")).key) as server:

        def lanes(at_s: float) -> list[list[tuple[str, float, float | None]]]:
            server.clock[0] = at_s
            server.daemon.node_switch.tick()
            found = asked(server, lanes=2, span_s=20.0)["lanes"]["lanes"]
            spans = [lane["spans"] for lane in found]
            return [[(one["job"], one["start_s"], one["end_s"]) for one in own] for own in spans]

        assert lanes(1060.0) == [[("off", 1000.0, None)], [("off", 1000.0, None)]]
        job = server.submit(nodes=[1, 1])
        held, off = (job, 1060.0, None), ("off", 1000.0, 1060.0)
        assert lanes(1060.0)[0] == [off, held]
        assert lanes(1070.0)[0] == [off, held, ("boot", 1060.0, 1060.0)]
        assert lanes(1100.0) == [[held], [("off", 1000.0, None)]]


@pytest.mark.promise("web-data")
def test_rows_are_sorted_and_arrays_unfolded(server: Routed) -> None:
    server.submit(nodes=[2, 2], job_name="b")
    server.submit(array="1-3", job_name="c")
    server.clock[0] += 7.0
    server.submit(nodes=[2, 2], job_name="a")

    def ids(**query: object) -> list[str]:
        return [line["ids"] for line in asked(server, jobs="active", **query)["jobs"]["lines"]]

    assert ids() == ["1", "2_[1-3]", "3"]
    assert ids(unfold=["2"]) == ["1", "2_1", "2_2", "2_3", "3"]
    assert ids(sort="name") == ["3", "1", "2_[1-3]"]
    assert ids(sort="-id", unfold=["2"], limit=2) == ["3", "2_3"]
    assert ids(sort="time")[0] == "3" and ids(sort="-energy")[0] == "1"
    assert ids(sort="nodes") == ["2_[1-3]", "1", "3"]
    array = server.submit(array="1-4").partition("_")[0]
    assert server.ask("POST", "/cancel", {"id": f"{array}_[2-3]"})[0] == 200
    assert ids()[-1] == f"{array}_[1,4]"
    status, answer = server.ask("POST", "/live", {"jobs": "active", "sort": "colour"})
    assert status == 400 and "expected to sort by id, name" in answer["error"]
