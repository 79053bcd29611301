"""Prices of electricity and its emissions: their file, and the cost of joules over a time.

A TOML file gives constants, or 24 values by hour of day::

    currency = "EUR"                 # free text
    price_per_kwh = 0.21
    co2_g_per_kwh = [90, 88, ...]    # 24 of them; the first holds from 0:00 to 1:00
    time_zone = "Europe/Madrid"      # of the hours of the day

A CSV file gives values from times on; its heads have the units, and the zone of times without an
offset from UTC::

    time (Europe/Madrid),EUR/kWh,gCO2/kWh
    2026-11-22T13:00,0.208,93
    2026-11-22T14:00,0.197,

A value holds until the next time, the last as long as the one before it. An empty cell, and all
times before the first and after the last, are a gap: joules there are counted, and cost nothing. A
file that is missing or of another form raises :class:`rms.formats.config.FileError`.
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from rms.core.model.events import HourlyPrices
from rms.formats.config import FileError

JOULES_PER_KWH = 3.6e6
HOURS = 24
QUARTER_S = 900
"""Clocks differ from UTC by whole quarters of an hour, and change by them."""

TIME_HEAD = re.compile(r"time(?: \((?P<zone>[^)]+)\))?")
UNIT_HEAD = re.compile(r"(?P<unit>.+)/kWh")
HEADS = 'time,EUR/kWh,gCO2/kWh, with any currency, and "time (ZONE)" for times without an offset'


Kind = Literal["price", "co2"]
"""The price of electricity, or its emissions."""

CO2_UNIT = "g CO2"


class Series(msgspec.Struct, frozen=True):
    """A quantity per kWh over time: one value, 24 by hour of day, or values from times on.

    Attributes:
        values: None for a gap.
        times_s: begins of the values (Unix times, rising), and the end of the last; empty for
            constants and hours.
    """

    values: tuple[float | None, ...]
    times_s: tuple[float, ...] = ()


class Cost(msgspec.Struct, frozen=True):
    """The cost of energy.

    Attributes:
        price: in the currency of the prices.
        co2_g: g of CO2.
        unpriced_j: joules without a price, which are not in ``price``.
        unrated_j: joules without a carbon intensity, which are not in ``co2_g``.
    """

    price: float = 0.0
    co2_g: float = 0.0
    unpriced_j: float = 0.0
    unrated_j: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.price + other.price,
            self.co2_g + other.co2_g,
            self.unpriced_j + other.unpriced_j,
            self.unrated_j + other.unrated_j,
        )


class Prices(msgspec.Struct, frozen=True):
    """Price and carbon intensity of electricity.

    Attributes:
        time_zone: of hours of the day.
        price, carbon: per kWh, in ``currency`` and g of CO2; None where the file has none.
    """

    source: str
    currency: str = ""
    time_zone: str = "UTC"
    price: Series | None = None
    carbon: Series | None = None

    def cost(self, joules: float, begin_s: float, end_s: float) -> Cost:
        """Return the cost of energy that was drawn evenly from one time to another.

        It is integrated over the span: the cost of a span is the sum of the costs of its parts.

        Args:
            begin_s, end_s: Unix times; a span of no length is taken for its instant.
        """
        price, unpriced = self._share(self.price, joules, begin_s, end_s)
        co2_g, unrated = self._share(self.carbon, joules, begin_s, end_s)
        return Cost(price, co2_g, unpriced, unrated)

    def series(self, kind: Kind) -> Series | None:
        """Return the price, or g of CO2, per kWh; None where the file has none."""
        return self.price if kind == "price" else self.carbon

    def value(self, kind: Kind, at_s: float) -> float | None:
        """Return the value at a time, None in a gap."""
        series = self.series(kind)
        return None if series is None else self._at(series, at_s)

    def steps(
        self, kind: Kind, begin_s: float, end_s: float, parts: int
    ) -> list[tuple[float, float]]:
        """Return ``(time, value)`` at the begins of equal parts of a time, without gaps."""
        times_s = [begin_s + at * (end_s - begin_s) / parts for at in range(parts)]
        values = ((at_s, self.value(kind, at_s)) for at_s in times_s)
        return [(at_s, value) for at_s, value in values if value is not None]

    def mean(self, kind: Kind) -> float:
        """Return the mean of all values of the file.

        Raises:
            ValueError: it has none.
        """
        series = self.series(kind)
        values = [value for value in series.values if value is not None] if series else []
        if not values:
            raise ValueError(f"expected a value of {kind}, got none")
        return fmean(values)

    def hourly(
        self, kind: Kind, begin_s: float, end_s: float, zero_s: float = 0.0
    ) -> HourlyPrices | None:
        """Return the values from one time to another for decisions, None where there are none.

        In a gap the mean of the file counts.

        Args:
            begin_s, end_s: Unix times.
            zero_s: the Unix time at which the engine's clock is 0.
        """
        series = self.series(kind)
        if series is None or not any(value is not None for value in series.values):
            return None
        begins = [begin_s]
        if series.times_s:
            begins = [at_s for at_s in series.times_s[:-1] if at_s < end_s]
            first = max(0, bisect_right(begins, begin_s) - 1)
            begins, end_s = begins[first:], min(end_s, series.times_s[-1])
        elif len(series.values) == HOURS:
            quarters = range(math.floor(begin_s / QUARTER_S), math.ceil(end_s / QUARTER_S))
            hours = [_hour(self.time_zone, n) for n in quarters]
            begins = [
                float(n * QUARTER_S)
                for n, hour, before in zip(quarters, hours, [None, *hours], strict=False)
                if hour != before
            ]
        if not begins or end_s <= max(begin_s, begins[0]):
            return None
        mean = self.mean(kind)
        values = [self._at(series, at_s) for at_s in begins]
        return HourlyPrices(
            self.currency if kind == "price" else CO2_UNIT,
            tuple(at_s - zero_s for at_s in (*begins, end_s)),
            tuple(mean if value is None else value for value in values),
        )

    @property
    def begin_s(self) -> float:
        """The Unix time of the first value, or of a midnight where values go by hour of day."""
        series = self.price or self.carbon
        if series is not None and series.times_s:
            return series.times_s[0]
        return datetime(2026, 1, 1, tzinfo=_zone(self.time_zone)).timestamp()

    def _share(
        self, series: Series | None, joules: float, begin_s: float, end_s: float
    ) -> tuple[float, float]:
        """Return the cost of the joules for which the series has a value, and the other joules."""
        if series is None:
            return 0.0, joules
        at_once = end_s <= begin_s
        pieces = (
            [(1.0, self._at(series, begin_s))] if at_once else self._pieces(series, begin_s, end_s)
        )
        span_s = 1.0 if at_once else end_s - begin_s
        total = valued_s = 0.0
        for piece_s, value in pieces:
            if value is not None:
                total += piece_s * value
                valued_s += piece_s
        unknown = 0.0 if valued_s >= span_s else joules * (1.0 - valued_s / span_s)
        return joules / JOULES_PER_KWH * total / span_s, unknown

    def _at(self, series: Series, at_s: float) -> float | None:
        if len(series.values) == 1 and not series.times_s:
            return series.values[0]
        if not series.times_s:
            return series.values[_hour(self.time_zone, math.floor(at_s / QUARTER_S))]
        n = bisect_right(series.times_s, at_s) - 1
        return series.values[n] if 0 <= n < len(series.values) else None

    def _pieces(
        self, series: Series, begin_s: float, end_s: float
    ) -> Iterable[tuple[float, float | None]]:
        """Yield the parts of a span that have one value: their length, and the value."""
        times, values = series.times_s, series.values
        if len(values) == 1 and not times:
            yield end_s - begin_s, values[0]
            return
        if not times:
            quarter, last = (math.floor(at_s / QUARTER_S) for at_s in (begin_s, end_s))
            for n in range(quarter, last + 1):
                piece_s = min(end_s, (n + 1) * QUARTER_S) - max(begin_s, n * QUARTER_S)
                yield piece_s, values[_hour(self.time_zone, n)]
            return
        for n in range(max(0, bisect_right(times, begin_s) - 1), len(values)):
            if times[n] >= end_s:
                return
            yield max(0.0, min(end_s, times[n + 1]) - max(begin_s, times[n])), values[n]

    @property
    def units(self) -> tuple[tuple[Kind, str, str], ...]:
        """Kind, name and unit of the price and of the emissions."""
        currency = self.currency or "price"
        return ("price", "Price", f"{currency}/kWh"), ("co2", "Carbon", "g CO2/kWh")

    @property
    def words(self) -> str:
        """A summary of the file, in a line."""
        parts = [
            f"{unit}/kWh {self._when(series)}"
            for unit, series in ((self.currency or "price", self.price), (CO2_UNIT, self.carbon))
            if series is not None
        ]
        return f"{self.source}: {', '.join(parts)}"

    def _when(self, series: Series) -> str:
        if series.times_s:
            first, last = (_written(at_s) for at_s in (series.times_s[0], series.times_s[-1]))
            return f"from {first} to {last}"
        if len(series.values) == 1:
            return "constant"
        return f"by hour of day ({self.time_zone})"


class PricesAnswer(msgspec.Struct, frozen=True):
    """The prices of a daemon."""

    prices: Prices | None


def _written(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


@lru_cache(maxsize=8)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


@lru_cache(maxsize=1 << 16)
def _hour(zone: str, quarter: int) -> int:
    """Return the hour of the day in a time zone, in a quarter of an hour since 1970 (UTC)."""
    return datetime.fromtimestamp(quarter * QUARTER_S, _zone(zone)).hour


# --- files -----------------------------------------------------------------------------------


class _File(msgspec.Struct, forbid_unknown_fields=True):
    currency: str = ""
    time_zone: str = ""
    price_per_kwh: float | list[float] | None = None
    co2_g_per_kwh: float | list[float] | None = None


def read_prices(path: Path) -> Prices:
    """Read a file of prices: CSV by its name, else TOML."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"expected a file, got {path}, which does not exist") from None
    except OSError as error:
        raise FileError(f"expected a file of prices, got {path}: {error.strerror}") from None
    try:
        return (_from_csv if path.suffix == ".csv" else _from_toml)(data, path.name)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path}: expected text in UTF-8") from None


def _from_toml(data: bytes, name: str) -> Prices:
    try:
        content = msgspec.toml.decode(data, type=_File)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FileError(str(error)) from None
    price = _series(content.price_per_kwh, "price_per_kwh", -math.inf)
    carbon = _series(content.co2_g_per_kwh, "co2_g_per_kwh", 0.0)
    if price is None and carbon is None:
        raise FileError("expected price_per_kwh, co2_g_per_kwh or both, got neither")
    if price is not None and not content.currency:
        raise FileError('expected the currency of price_per_kwh, such as currency = "EUR"')
    by_hour = any(series is not None and len(series.values) == HOURS for series in (price, carbon))
    if by_hour and not content.time_zone:
        raise FileError(
            "expected the time zone of values by hour of day, "
            'such as time_zone = "Europe/Madrid" or "UTC", got none'
        )
    zone = content.time_zone or "UTC"
    _check_zone(zone)
    return Prices(name, content.currency, zone, price, carbon)


def _series(stated: float | list[float] | None, key: str, least: float) -> Series | None:
    if stated is None:
        return None
    values = stated if isinstance(stated, list) else [stated]
    if isinstance(stated, list) and len(values) != HOURS:
        raise FileError(f"expected {key} as a number or {HOURS} of them, got {len(values)}")
    for value in values:
        _check_value(value, key, least)
    return Series(tuple(values))


def _check_value(value: float, what: str, least: float) -> None:
    if not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise FileError(f"expected {what} to be a number{bound}, got {value:g}")


def _check_zone(name: str) -> None:
    try:
        _zone(name)
    except (OSError, ValueError, KeyError):  # ZoneInfo's own is a KeyError
        raise FileError(
            f'expected a time zone that this machine knows, such as "Europe/Madrid", got {name!r}'
        ) from None


def _from_csv(data: bytes, name: str) -> Prices:
    lines = [
        (number, row)
        for number, row in enumerate(csv.reader(data.decode("utf-8-sig").splitlines()), 1)
        if row
    ]
    if not lines:
        raise FileError(f"expected the heads {HEADS}, got an empty file")
    zone, units = _heads([cell.strip() for cell in lines[0][1]])
    times: list[float] = []
    columns: list[list[float | None]] = [[] for _ in units]
    for number, row in lines[1:]:
        if len(row) != 1 + len(units):
            raise FileError(f"line {number}: expected {1 + len(units)} cells, got {len(row)}")
        at_s = _time(row[0].strip(), zone, number)
        if times and at_s <= times[-1]:
            raise FileError(
                f"line {number}: expected rising times, got {row[0].strip()} "
                "(where a clock is set back, times need their offset from UTC)"
            )
        times.append(at_s)
        for column, unit, cell in zip(columns, units, row[1:], strict=True):
            column.append(_cell(cell.strip(), unit, number))
    if len(times) < 2:
        raise FileError(f"expected two times or more, got {len(times)}")
    times.append(times[-1] + (times[-1] - times[-2]))
    series = {
        unit: Series(tuple(column), tuple(times))
        for unit, column in zip(units, columns, strict=True)
    }
    carbon = series.pop("", None)
    currency, price = next(iter(series.items()), ("", None))
    return Prices(name, currency, zone or "UTC", price, carbon)


def _heads(cells: Sequence[str]) -> tuple[str, list[str]]:
    """Return the zone of times, and the columns' units per kWh.

    The zone is "" if times need an offset; a unit is a currency, or "" for g of CO2.
    """
    time = TIME_HEAD.fullmatch(cells[0])
    heads = [UNIT_HEAD.fullmatch(cell) for cell in cells[1:]]
    if time is None or not heads or None in heads:
        raise FileError(f"expected the heads {HEADS}, got {','.join(cells)}")
    units = [head["unit"].strip() for head in heads if head is not None]
    units = ["" if re.fullmatch(r"g ?CO2(?:eq)?", unit) else unit for unit in units]
    if len(units) > 2 or (len(units) == 2 and units.count("") != 1):
        raise FileError(f"expected one price and one carbon intensity, got {','.join(cells)}")
    zone = time["zone"] or ""
    if zone:
        _check_zone(zone)
    return zone, units


def _time(text: str, zone: str, number: int) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise FileError(
            f"line {number}: expected a time such as 2026-11-22T13:00, got {text!r}"
        ) from None
    if at.tzinfo is None:
        if not zone:
            raise FileError(
                f"line {number}: expected a time with its offset from UTC, such as "
                f'2026-11-22T13:00+01:00, or the head "time (ZONE)", got {text}'
            )
        at = at.replace(tzinfo=_zone(zone))
    return at.timestamp()


def _cell(text: str, unit: str, number: int) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise FileError(f"line {number}: expected a number, got {text!r}") from None
    what = f"line {number}: {unit or 'gCO2'}/kWh"
    _check_value(value, what, -math.inf if unit else 0.0)
    return value
