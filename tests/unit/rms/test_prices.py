"""Prices and carbon intensities over time: what a span costs, and files that cannot be meant."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.formats.config import FileError
from rms.formats.prices import JOULES_PER_KWH, Cost, Prices, Series, read_prices

DAY = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
HOURS = Series(tuple(float(hour) for hour in range(24)))
TABLE = Series((5.0, None, 2.0), (DAY, DAY + 3600.0, DAY + 7200.0, DAY + 10800.0))
BY_HOUR = f"currency = 'EUR'\nprice_per_kwh = {list(range(24))}\n"


def priced(series: Series, zone: str = "UTC") -> Prices:
    """Return prices and carbon intensities alike."""
    return Prices("p", "EUR", zone, series, series)


def file(folder: Path, text: str, name: str = "p.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- the cost of a span -------------------------------------------------------------------------


@given(
    series=st.sampled_from([Series((0.25,)), HOURS, TABLE]),
    zone=st.sampled_from(["UTC", "Europe/Madrid", "Asia/Kathmandu", "Australia/Lord_Howe"]),
    joules=st.just(0.0) | st.floats(1e-3, 1e12),
    begin_s=st.floats(DAY - 8000.0, DAY + 12_000.0),
    long_s=st.floats(1.0, 200_000.0),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=6),
)
def test_a_span_costs_what_its_parts_cost(
    series: Series, zone: str, joules: float, begin_s: float, long_s: float, cuts: list[float]
) -> None:
    prices, end_s = priced(series, zone), begin_s + long_s
    whole = prices.cost(joules, begin_s, end_s)
    ends = [begin_s, *sorted(begin_s + cut * (end_s - begin_s) for cut in cuts), end_s]
    parts = Cost()
    for begin, end in pairwise(ends):
        parts += prices.cost(joules * (end - begin) / (end_s - begin_s), begin, end)
    # Times of today are stored to 2.4e-7 s.
    scales = {"price": 24 * joules / JOULES_PER_KWH, "unpriced_j": joules}
    scales |= {"co2_g": scales["price"], "unrated_j": joules}
    for name, scale in scales.items():
        close = pytest.approx(getattr(whole, name), rel=1e-6, abs=2e-6 * scale)
        assert getattr(parts, name) == close
    assert 0.0 <= whole.unpriced_j <= joules


def test_each_hour_at_its_price_not_the_mean_of_the_day() -> None:
    # Half an hour at 13, and one and a half at 14 and 15, of 4 kWh in two hours.
    cost = priced(HOURS).cost(4 * JOULES_PER_KWH, DAY + 13.5 * 3600, DAY + 15.5 * 3600)
    assert cost.price == cost.co2_g == pytest.approx(13 * 1.0 + 14 * 2.0 + 15 * 1.0)
    assert cost.unpriced_j == 0.0


def test_hours_are_those_of_the_time_zone_and_of_its_summer() -> None:
    winter, summer = (
        datetime(2026, month, 1, 12, 0, tzinfo=ZoneInfo("Europe/Madrid")).timestamp()
        for month in (1, 7)
    )
    for at_s in (winter, summer):
        assert priced(HOURS, "Europe/Madrid").cost(
            JOULES_PER_KWH, at_s, at_s + 3600
        ).price == pytest.approx(12.0)
    # The night in which 2:00 to 3:00 comes twice: 25 hours, 0 to 23 and another 2.
    begin, end = (
        datetime(2026, 10, day, tzinfo=ZoneInfo("Europe/Madrid")).timestamp() for day in (25, 26)
    )
    night = priced(HOURS, "Europe/Madrid").cost(25 * JOULES_PER_KWH, begin, end)
    assert night.price == pytest.approx(sum(range(24)) + 2)


def test_gaps_before_between_and_after_are_counted_and_cost_nothing() -> None:
    cost = priced(TABLE).cost(5 * JOULES_PER_KWH, DAY - 3600, DAY + 4 * 3600)
    assert cost.price == pytest.approx(5.0 + 2.0)
    assert cost.unpriced_j == cost.unrated_j == pytest.approx(3 * JOULES_PER_KWH)
    assert priced(TABLE).cost(9.0, DAY - 1, DAY - 1) == Cost(0.0, 0.0, 9.0, 9.0)
    instant = priced(TABLE).cost(JOULES_PER_KWH, DAY + 1, DAY + 1)
    assert (instant.price, instant.unpriced_j) == (5.0, 0.0)
    only_carbon = Prices("p", carbon=Series((100.0,))).cost(JOULES_PER_KWH, DAY, DAY + 1)
    assert only_carbon == Cost(0.0, 100.0, JOULES_PER_KWH, 0.0)


# --- files --------------------------------------------------------------------------------------


def test_constants_and_hours(tmp_path: Path) -> None:
    found = read_prices(
        file(tmp_path, "currency = 'ct'\nprice_per_kwh = -1\nco2_g_per_kwh = 56.5\n")
    )
    assert found == Prices("p.toml", "ct", "UTC", Series((-1.0,)), Series((56.5,)))
    assert found.words == "p.toml: ct/kWh constant, g CO2/kWh constant"
    found = read_prices(file(tmp_path, BY_HOUR + "time_zone = 'Europe/Madrid'\n"))
    assert found.price == HOURS and found.carbon is None
    assert found.words == "p.toml: EUR/kWh by hour of day (Europe/Madrid)"


def test_a_table_of_times(tmp_path: Path) -> None:
    text = "time (Europe/Madrid),gCO2/kWh,EUR/kWh\n2026-11-22T01:00,90,0.2\n\n"
    text += "2026-11-22T01:00:00Z,,-0.1\n2026-11-22T04:00,80,\n"
    found = read_prices(file(tmp_path, "\ufeff" + text, "p.csv"))
    times = (DAY, DAY + 3600, DAY + 3 * 3600, DAY + 5 * 3600)  # the last as long as that before
    assert found.price == Series((0.2, -0.1, None), times)
    assert found.carbon == Series((90.0, None, 80.0), times)
    assert found.currency == "EUR"
    assert "EUR/kWh from 2026-11-22 00:00 UTC to 2026-11-22 05:00 UTC" in found.words


BAD = {
    "": "expected price_per_kwh, co2_g_per_kwh or both, got neither",
    "price_per_kwh = 0.2": "expected the currency",
    "price = 0.2": "price",
    "co2_g_per_kwh = -3": "of at least 0, got -3",
    "co2_g_per_kwh = nan": "got nan",
    "co2_g_per_kwh = 'much'": "co2_g_per_kwh",
    "co2_g_per_kwh = [1.0, 2.0]": "a number or 24 of them, got 2",
    "currency = 'EUR'\nprice_per_kwh = inf": "price_per_kwh to be a number, got inf",
    "co2_g_per_kwh = 3\ntime_zone = 'Mars/Olympus'": "got 'Mars/Olympus'",
    "co2_g_per_kwh = 3\ntime_zone = '../../etc/passwd'": "expected a time zone",
    BY_HOUR: "expected the time zone of values by hour of day",
    "co2_g_per_kwh": "p.toml: ",
}
BAD_TABLES = {
    "": "got an empty file",
    "when,EUR/kWh": "expected the heads time,",
    "time": "expected the heads time,",
    "time,EUR": "expected the heads time,",
    "time,EUR/kWh,USD/kWh": "expected one price and one carbon intensity",
    "time (Mars),EUR/kWh": "got 'Mars'",
    "time,EUR/kWh\n2026-11-22T00:00,1": "line 2: expected a time with its offset from UTC",
    "time (UTC),EUR/kWh\n2026-11-22T00:00,1": "expected two times or more, got 1",
    "time (UTC),EUR/kWh\nnoon,1": "line 2: expected a time such as 2026-11-22T13:00, got 'noon'",
    "time (UTC),EUR/kWh\n2026-11-22T00:00": "line 2: expected 2 cells, got 1",
    "time (UTC),EUR/kWh\n2026-11-22T00:00,x": "line 2: expected a number, got 'x'",
    "time (UTC),gCO2/kWh\n2026-11-22T00:00,-1": "line 2: gCO2/kWh",
    "time (UTC),EUR/kWh\n2026-11-22T01:00,1\n2026-11-22T00:00,1": "line 3: expected rising times",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_told_in_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError) as error:
        read_prices(file(tmp_path, text))
    assert BAD[text] in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "p.toml"))


@pytest.mark.parametrize("text", BAD_TABLES)
def test_a_bad_table_is_told_in_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError) as error:
        read_prices(file(tmp_path, text, "p.csv"))
    assert BAD_TABLES[text] in str(error.value) and "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="which does not exist"):
        read_prices(tmp_path / "none.toml")
    with pytest.raises(FileError, match="expected a file of prices"):
        read_prices(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"time,\xff")
    with pytest.raises(FileError, match="UTF-8"):
        read_prices(tmp_path / "b.csv")
