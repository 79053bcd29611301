"""Names of jobs were formulas to the spreadsheet that reads a report's CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rms.client.report import Report
from rms.sim.run import write_rows


@pytest.mark.parametrize("name", ["=1+1", "+1+1", "-x", "@SUM(1)", "\t=1", "=cmd|'/c calc'!A1"])
def test_a_name_is_text_in_the_csv_file(name: str, tmp_path: Path) -> None:
    report = Report("jobs")
    report.table("jobs", ("id", "name"), [("1", name), ("-2.5", "plain")])
    rows = list(csv.reader(report.files["jobs.csv"].splitlines()))
    assert rows == [["id", "name"], ["1", f"'{name}"], ["-2.5", "plain"]]
    row = {"job": name, "submit_s": -1.0, "start_s": 0, "end_s": 1, "nodes": 1, "energy_j": 2}
    write_rows(tmp_path / "out.csv", [row])
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file))[1] == [f"'{name}", "-1.0", "0", "1", "1", "2"]
