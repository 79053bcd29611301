"""The study of CarbonScaler: its record, hours of a file, and jobs hour by hour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from stated import assert_statements

from rms.cli.main import main
from rms.core.policies.cheap_hours import Hour, HourlySizes, Width, cheapest
from rms.formats.config import FileError
from rms.studies.carbonscaler import (
    HOUR_S,
    MADE_UP,
    Intensities,
    at_once,
    carbonscaler,
    profiles,
    ran,
    savings,
)

TWO = (Width(1, 1.0 / (2 * HOUR_S), 10.0), Width(2, 1.0 / HOUR_S, 20.0))
"""Perfect scaling: two hours on one node."""


def hours(*values: float) -> list[Hour]:
    return [Hour(n * HOUR_S, (n + 1) * HOUR_S, value) for n, value in enumerate(values)]


def csv(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(("time (UTC),gCO2/kWh", *rows)) + "\n")
    return path


@pytest.mark.promise("reproduce")
def test_the_record_of_the_made_up_day() -> None:
    (row,) = savings(
        "mpdata-k80", profiles()["mpdata-k80"], Intensities.read(MADE_UP).windows(36, 48)
    )
    keys = ("at_once_pct", "suspend_pct", "static_pct")
    assert_statements("carbonscaler", {key: row["values"][key]["ours"] for key in keys})


@pytest.mark.wide
@pytest.mark.promise("reproduce")
def test_the_whole_experiment_with_its_figure(tmp_path: Path) -> None:
    result, lines, good = carbonscaler(None, tmp_path)
    values = {(row["case"], row.get("deadline_h")): row["values"] for row in result["rows"]}
    own = values["mpdata-k80", 36]
    keys = ("at_once_pct", "suspend_pct", "static_pct")
    assert_statements("carbonscaler", {key: own[key]["ours"] for key in keys})
    assert good and result["starts"] == 24
    assert any("made-up day" in line for line in lines)
    assert {path.name for path in tmp_path.iterdir()} == {"savings.png"}
    by = {(row["case"], row["mode"]): row["values"] for row in result["rows"]}
    for price in ("a resize costs 10 s", "a resize costs 300 s"):
        known, unaware = by[price, "price known"], by[price, "greedy, unaware"]
        assert known["late"]["ours"] == 0.0 < unaware["late"]["ours"]
        assert known["resizes"]["ours"] < unaware["resizes"]["ours"]
    # A forecast that is off costs the more the more it is off, and no deadline.
    errors = [by[f"forecasts off by up to {e} %", "greedy"] for e in (10, 30, 50)]
    over = [row["over_pct"]["ours"] for row in errors]
    assert over == sorted(over) and over[0] > 0.0
    assert all(row["late"]["ours"] == 0.0 for row in errors)


def test_the_savings_of_two_hours_by_hand() -> None:
    """Wide in the hour of 1, off in that of 4: 20, against 50 at once and 30 at one size."""
    windows = [hours(4.0, 1.0, 2.0)]
    (row,) = savings("two", TWO, windows)
    own = {key: value["ours"] for key, value in row["values"].items()}
    assert own["at_once_pct"] == pytest.approx(100.0 * (1.0 - 20.0 / 50.0))
    assert own["suspend_pct"] == pytest.approx(100.0 * (1.0 - 20.0 / 30.0))
    assert own["static_pct"] == pytest.approx(0.0)  # two nodes are the best static size
    assert row["sizes"] == [2] and own["late"] == 0.0


def test_a_job_is_run_hour_by_hour_with_stalls_and_its_deadline() -> None:
    window = hours(1.0, 9.0, 1.0)

    def greedy(left: Sequence[Hour], work: float) -> HourlySizes | None:
        return cheapest(TWO[:1], left, work)

    job = ran(TWO[:1], window, greedy, 60.0)
    assert job.resizes == 1 and job.late and job.done == pytest.approx(1.0 - 60.0 / (2 * HOUR_S))
    assert not ran(TWO[:1], window, greedy, 0.0).late
    once = at_once(TWO[0], window)
    assert once.cost == pytest.approx(10.0 * HOUR_S * (1.0 + 9.0)) and once.resizes == 0


def test_every_program_needs_as_long_on_the_fewest_nodes() -> None:
    for widths in profiles().values():
        assert widths[0].rate == pytest.approx(1.0 / (24 * HOUR_S))
    assert [width.nodes for width in profiles()["mpdata-k80"]] == [1, 2, 4, 8, 16]


def test_hours_of_a_file_with_a_gap_and_half_hours(tmp_path: Path) -> None:
    rows = ["2026-01-01T00:00,10", "2026-01-01T00:30,30", "2026-01-01T01:00,", "2026-01-01T02:00,5"]
    read = Intensities.read(csv(tmp_path / "a.csv", *rows))
    assert list(read.values) == [pytest.approx(20.0), None, pytest.approx(5.0)]
    assert [len(window) for window in read.windows(1, 9)] == [1, 1]
    assert read.windows(2, 9) == []
    day = Intensities.read(MADE_UP)
    assert len(day.values) == 24 and len(day.windows(48, 99)) == 24
    assert day.windows(48, 99)[23][1].value == day.values[0]


def test_files_that_do_not_do_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constant = tmp_path / "c.toml"
    constant.write_text("co2_g_per_kwh = 90\n")
    with pytest.raises(FileError, match="expected carbon intensities by the hour"):
        Intensities.read(constant)
    short = csv(tmp_path / "s.csv", "2026-01-01T00:00,10", "2026-01-01T01:00,20")
    assert main(["reproduce", "carbonscaler", "--carbon", str(short)]) == 2
    assert "expected 24 hours without a gap, got fewer" in capsys.readouterr().err
    assert main(["reproduce", "chiesi", "--carbon", str(short)]) == 2
    assert "expected --carbon with carbonscaler only" in capsys.readouterr().err
