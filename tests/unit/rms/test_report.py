"""``rms report`` of a result that was kept as JSON, and of the journal of a daemon that is gone."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed import routed

from rms.cli.main import main
from rms.client.report import Cell, Report, SizedJob, sizes_of, watts_by_owner, watts_of
from rms.core.model.jobs import JobId
from rms.daemon.store.journal import Journal
from rms.plots import History
from rms.wire.users import EnergyRow, NodeSpan

TRACE = "; MaxProcs: 8\n" + "".join(
    f"{n} {20 * n} -1 {100 + n} {1 + n % 8} -1 -1 {1 + n % 8} 900 -1 1 1 1 1 1 -1 -1 -1\n"
    for n in range(1, 40)
)
JOB = {"id": "1", "state": "COMPLETED", "start_s": 0.0, "end_s": 9.5, "energy_j": 20.0}
COMPARISON = {
    "engine": "local",
    "nodes": 2,
    "policy": "array-share",
    "power_source": "model",
    "rows": [
        {"mode": mode, "time_s": time_s, "cluster_j": 90.0, "allocation": 0.5, "jobs": [JOB]}
        for mode, time_s in (("fixed", 12.0), ("flexible", 9.5))
    ],
}


def reported(folder: Path, result: dict[str, Any] | Path) -> str:
    """Return the page of a result."""
    source = folder / "result.json"
    if isinstance(result, dict):
        source.write_text(json.dumps(result))
    else:
        source = result
    assert main(["report", str(folder / "out"), "--from", str(source)]) == 0
    return (folder / "out" / "report.html").read_text()


def simulated(folder: Path, *options: str) -> Path:
    (folder / "t.swf").write_text(TRACE)
    result = folder / "result.json"
    command = ["simulate", "--trace", str(folder / "t.swf"), "--policy", "easy"]
    assert main([*command, *options, "--json", str(result)]) == 0
    return result


@pytest.mark.promise("site-log")
def test_a_study(tmp_path: Path) -> None:
    page = reported(tmp_path, simulated(tmp_path, "--malleable", "0,100", "--mode", "flexible"))
    assert "What would malleability bring to t.swf?" in page
    assert "f t + (1 - f) t s / n" in page and "by class of job" in page
    assert page.count('src="data:image/png;base64,') == 1
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)  # nothing outside of the file
    assert len(page) > 50_000


def test_a_simulation(tmp_path: Path) -> None:
    result = simulated(tmp_path)
    page = reported(tmp_path, result)
    wait_s = json.loads(result.read_text())["mean_wait_s"]
    assert f'<td>mean_wait_s</td><td class="n">{wait_s:.6g}</td>' in page
    assert "Mean wait by processors" in page and page.count("<rect") > 2
    assert "data:image" not in page and not re.search(r'(?:src|href)="(?!#)', page)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"mean-wait-by-size.png", "result.csv", "size.csv"} <= files


def test_a_comparison(tmp_path: Path) -> None:
    page = reported(tmp_path, COMPARISON)
    assert '<td>flexible</td><td class="n">9.5</td>' in page
    assert "Jobs, mode flexible" in page and "over-time" not in page.partition("<h1>")[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "which does not exist"),
        ("not JSON", "expected JSON, got"),
        ("[1]", "expected the JSON of rms simulate or rms compare"),
        ('{"jobs": []}', "expected the JSON of rms simulate or rms compare"),
        ('{"makespan_s": 3}', "got one without a good 'energy_j'"),
        ('{"rows": [1], "policy": "easy"}', "got one without a good"),
        ('{"rows": [], "study": "malleability"}', "got one without a good 'trace'"),
    ],
)
def test_what_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, expected: str
) -> None:
    source = tmp_path / "result.json"
    if text is not None:
        source.write_text(text)
    assert main(["report", str(tmp_path / "out"), "--from", str(source)]) == 2
    err = capsys.readouterr().err
    assert expected in err and str(source) in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    source = tmp_path / "result.json"
    source.write_text(json.dumps(COMPARISON))
    assert main(["report", str(tmp_path / "file" / "x"), "--from", str(source)]) == 2
    assert "expected a folder that can be written" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "file"), "--from", str(source)]) == 2
    assert "expected a folder, got " in capsys.readouterr().err
    command = ["report", str(tmp_path), "--from", str(source), "--server", "unix:x"]
    assert main(command) == 2
    assert "one of --server, --journal FILE and --from" in capsys.readouterr().err


# --- rms report --journal ----------------------------------------------------------------------


def test_a_daemon_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "state" / "journal"
    command = ["report", str(tmp_path / "out"), "--journal", str(journal)]
    with routed(tmp_path / "state") as server:
        server.submit(nodes=[2, 2], job_name="<over>", output="/dev/null")
        server.clock[0] += 4.0
        server.daemon.scripts.end(server.daemon.jobs[JobId("1")], 0)
        server.submit(nodes=[1, 1], job_name="runs")
        server.clock[0] += 2.0
        server.submit(nodes=[2, 2], job_name="waits")
        assert main(command) == 2 and "in use" in capsys.readouterr().err
    assert main([*command, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(job["state"], job["energy_j"]) for job in found["jobs"]] == [
        *(("COMPLETED", 40.0), ("RUNNING", 10.0), ("PENDING", 0.0)),
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;over&gt;" in page and "Jobs, tasks, idle, off and boot are the cluster" in page
    assert found["jobs"][0]["summary"].startswith("job 1 COMPLETED: 4.0 s on 2 nodes")
    assert [entry["kind"] for entry in found["decisions"]["1"]] == ["start"]
    out = tmp_path / "out"
    assert page.count('class="bar ') == 3 and "<h2>Decisions</h2>" in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.html", "nodes.png", "power.png", "jobs.csv", "decisions.csv"}
    with (out / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["NAME"] for row in rows] == ["<over>", "runs", "waits"]
    assert not (out / "cost.csv").exists() and "Cost of energy" not in page

    prices = tmp_path / "p.csv"
    first, then, last = (f"1970-01-01T00:16:{second}Z" for second in (40, 44, 50))
    prices.write_text(f"time,<b>/kWh,gCO2/kWh\n{first},0.3,\n{then},0.1,200\n{last},,\n")
    assert main([*command, "--prices", str(prices)]) == 0
    capsys.readouterr()
    whole_j = found["books"]["energy"]["cluster_j"]
    with (out / "cost.csv").open(newline="") as file:
        price, carbon = csv.DictReader(file)
    cost = (40.0 * 0.3 + (whole_j - 40.0) * 0.1) / 3.6e6
    assert float(price["COST"]) == pytest.approx(cost, rel=1e-3)
    even = whole_j / 3.6e6 * (4 * 0.3 + 2 * 0.1) / 6
    assert float(price["EVENLY"]) == pytest.approx(even, rel=1e-3)
    assert price["SAVED"] == "0.0%" and carbon["UNKNOWN"] == "40 J"
    page = (out / "report.html").read_text()
    assert "0.3 &lt;b&gt;/kWh" in page and "<b>/kWh" not in page
    assert main([*command, "--prices", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err


@given(
    spans=st.lists(
        st.tuples(
            st.sampled_from(["1", "2_7", "idle", "off", "boot"]),
            st.floats(0.0, 90.0),
            st.floats(0.01, 50.0),
            st.floats(0.0, 1e6),
        )
    )
)
def test_a_curve_has_all_joules(spans: list[tuple[str, float, float, float]]) -> None:
    rows = [
        EnergyRow(owner, 1, 0, "n1", "node", "model", at, at + for_s, joules, 0.0, False, 0.0)
        for owner, at, for_s, joules in spans
    ]
    points = watts_by_owner(rows, 0.0, 140.0)
    part_s = points[1][0] - points[0][0]
    for at, owners in enumerate((("1", "2_7"), ("idle",), ("off",), ("boot",))):
        whole = sum(row.joules for row in rows if row.owner in owners)
        found = sum(watts[at] for _, watts in points) * part_s
        assert found == pytest.approx(whole, rel=1e-6, abs=1e-6)
    assert points[-1][0] == pytest.approx(140.0)


def test_many_nodes_share_lanes(tmp_path: Path) -> None:
    nodes = [f"n{n}" for n in range(1, 1001)]
    spans = [NodeSpan(node, "1", 0.0, 10.0) for node in nodes[:500]]
    history = History(nodes, spans, [(0.0, 500.0)], 10.0)
    found = Report("many")
    found.over_time(history, watts_of(history), {})
    page = found.write(tmp_path).read_text()
    assert page.count('class="row"') == 63 + 4 and "100% allocated" in page and len(page) < 60_000
    assert len((tmp_path / "nodes.csv").read_text().splitlines()) == 501


def test_what_is_no_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("not a journal")
    with contextlib.closing(Journal.open(tmp_path / "later")):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "later")) as database:
        database.execute("PRAGMA user_version = 6")
    words = ("none", "which does not exist"), ("text", "expected a journal")
    for name, said in (*words, ("later", "expected a journal of format 1, got format 6")):
        assert main(["report", str(tmp_path / "out"), "--journal", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    both = ["--journal", str(tmp_path / "text"), "--from", str(tmp_path / "text")]
    assert main(["report", str(tmp_path / "out"), *both]) == 2
    assert "expected one of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sizes_of_jobs_over_time() -> None:
    """A resize changes the height of a bar; a job that still runs ends with the window."""
    spans = [
        NodeSpan("n1", "1", 0.0, None),
        NodeSpan("n2", "1", 0.0, 10.0),
        NodeSpan("n2", "2", 10.0, 30.0),
        NodeSpan("n2", "1", 30.0, None),
    ]
    sizes = sizes_of(spans, 40.0)
    assert sizes == {
        "1": [(0.0, 2), (10.0, 1), (30.0, 2), (40.0, 0)],
        "2": [(10.0, 1), (30.0, 0)],
    }
    report = Report("sizes")
    history = History(["n1", "n2"], spans, [(0.0, 20.0)], 40.0)
    report.sizes(history, [SizedJob("2", "<two>", 4.0, sizes["2"])])
    page = report.parts[0]
    assert 'class="step wait" data-a="4.0" data-b="10.0"' in page  # from its submission on
    assert "job 2, 1 node, " in page and "0:00:20</title>" in page and "2 &lt;two&gt;" in page
    assert 'x="25.000%" width="50.000%" y="1.0" height="20.0"' in page
    path = 'd="M0 18H0.0V1.0H22.0V9.5H66.0V1.0H88.0V18.0H88V18Z"'
    assert path in SizedJob("1", "one", 0.0, sizes["1"]).spark()


def test_cells_of_a_page_and_of_its_csv() -> None:
    report = Report("cells")
    rows: list[list[str | Cell]] = [
        ["a", Cell("0:01:05", "65.0", "65.0 s", "n", "65"), "1 J"],
        ["b", Cell("", kind="n"), ""],
    ]
    report.table("times", ("Name", "Wait", "Energy"), rows, ("NAME", "WAIT_S", "ENERGY_J"))
    assert report.files["times.csv"].splitlines() == [
        *("NAME,WAIT_S,ENERGY_J", "a,65.0,1 J", "b,,")
    ]
    page = report.parts[0]
    assert page.count('<th class="n">') == 2  # numbers, though some are empty
    assert '<td class="n" title="65.0 s" data-v="65">0:01:05</td>' in page
