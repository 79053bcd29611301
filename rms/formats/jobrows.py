"""Workload files as CSV: a header of columns, then a row for each job.

A column is a key of ``[[jobs]]`` whose value is no table; a nested one has the name of its table in
front (``resize = {every_s}`` is ``resize_every_s``), and ``nodes = [min, max]`` is two columns.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from rms.core.modes import Mode


class RowError(ValueError):
    """A file that is no such table: one sentence, which names the line of a bad row."""


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    value = _number(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


NUMBER = (_number, "a number")
WHOLE = (_whole, "a whole number")
TEXT = (sys.intern, "text")
COLUMNS: dict[str, tuple[Callable[[str], Any], str]] = {
    "submit_s": NUMBER,
    "name": TEXT,
    "user": TEXT,
    "account": TEXT,
    "array": TEXT,
    "count": WHOLE,
    "mode": (Mode, f"a mode of {', '.join(Mode)}"),
    "nodes_min": WHOLE,
    "nodes_max": WHOLE,
    "preferred": WHOLE,
    "limit_s": NUMBER,
    "run_s": NUMBER,
    "serial": NUMBER,
    "resize_every_s": NUMBER,
    "resize_price_s": NUMBER,
    "memory_bandwidth_gb_s": NUMBER,
    "power_w": NUMBER,
}
"""What reads the cells of each column, and the kind of its values in words."""


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the values of each row, without those of empty cells.

    Raises:
        RowError: the file is no such table.
        OSError: it cannot be read.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            header = next(reader, [])
            _check_header(header)
            for cells in reader:
                if cells:
                    yield reader.line_num, _values(header, cells, reader.line_num)
        except (csv.Error, UnicodeDecodeError) as error:
            raise RowError(f"expected CSV, got after line {reader.line_num}: {error}") from None


def _check_header(header: Sequence[str]) -> None:
    """Refuse a header with unknown or repeated columns, or without a size.

    Raises:
        RowError: it has some, or none.
    """
    for name in header:
        if name not in COLUMNS:
            raise RowError(f"expected columns of {', '.join(COLUMNS)}, got {name[:40]!r}")
        if header.count(name) > 1:
            raise RowError(f"expected each column once, got {name} {header.count(name)} times")
    if "nodes_min" not in header:
        raise RowError(f"expected a column nodes_min, got {', '.join(header) or 'no header'}")


def _values(header: Sequence[str], cells: Sequence[str], line: int) -> dict[str, Any]:
    """Return the values of a row.

    Raises:
        RowError: a cell does not parse.
    """
    if len(cells) != len(header):
        raise RowError(f"line {line}: expected {len(header)} cells, got {len(cells)}")
    values = {}
    for name, text in zip(header, cells, strict=True):
        if text:
            read, kind = COLUMNS[name]
            try:
                values[name] = read(text)
            except ValueError:
                raise RowError(
                    f"line {line}: expected {kind} in column {name}, got {text[:40]!r}"
                ) from None
    return values
