"""Which jobs are meant: ``user=alice,name=wrf*,nodes=4-64,hours=1-`` on a command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import inf

import msgspec

from rms.formats.config import FileError

LABELS = ("user", "account", "partition", "name")
RANGES = ("nodes", "hours")
FORM = "user, account, partition or name = PATTERN, nodes or hours = MIN-MAX"


class Criteria(msgspec.Struct, frozen=True):
    """What a job must be; of one kind stated twice either will do, different kinds must all hold.

    Attributes:
        labels: of each of ``LABELS`` the patterns as a shell's, of which one must match.
        ranges: of each of ``RANGES`` the ``(least, most)`` of which one must hold.
    """

    labels: Mapping[str, tuple[str, ...]] = {}
    ranges: Mapping[str, tuple[tuple[float, float], ...]] = {}

    def match(self, nodes: int, run_s: float, labels: Mapping[str, str]) -> bool:
        """Return whether a job is meant.

        Args:
            nodes, run_s: its size and its run time in s.
            labels: its user, account, partition and name.
        """
        values = {"nodes": float(nodes), "hours": run_s / 3600.0}
        return all(
            any(low <= values[kind] <= high for low, high in spans)
            for kind, spans in self.ranges.items()
        ) and all(
            any(fnmatchcase(labels.get(kind, ""), pattern) for pattern in patterns)
            for kind, patterns in self.labels.items()
        )


def parse_criteria(text: str) -> Criteria:
    """Read ``user=alice,user=bob,name=wrf*,nodes=4-64,hours=1-``.

    Raises:
        FileError: it does not parse.
    """
    labels: dict[str, list[str]] = {}
    ranges: dict[str, list[tuple[float, float]]] = {}
    for part in text.split(","):
        kind, equals, value = (each.strip() for each in part.partition("="))
        if kind in LABELS and equals and value:
            labels.setdefault(kind, []).append(value)
        elif kind in RANGES and value:
            ranges.setdefault(kind, []).append(_range(value, part))
        else:
            raise FileError(f"expected {FORM}, got {part!r}")
    return Criteria(
        {kind: tuple(patterns) for kind, patterns in labels.items()},
        {kind: tuple(spans) for kind, spans in ranges.items()},
    )


def _range(value: str, part: str) -> tuple[float, float]:
    low, dash, high = value.partition("-")
    try:
        least = float(low) if low else 0.0
        most = (float(high) if high else inf) if dash else least
    except ValueError:
        raise FileError(f"expected a range like 4-64, 4- or -64, got {part!r}") from None
    if not 0.0 <= least <= most:
        raise FileError(f"expected a range from less to more, got {part!r}")
    return least, most
