"""Which sizes a job may have: pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dmr.errors import UsageError

Limits = tuple[int, int | None]
"""Fewest and most ranks; None for as many as there are."""


def parse_resizes(text: str, name: str = "") -> tuple[dict[int, int], dict[int, str]]:
    """Read ``STEP:RANKS[@BACKEND][,...]``, steps rising: ranks and backends by step.

    Raises:
        ValueError: anything else; one sentence, which may name where the text is from.
    """
    ranks: dict[int, int] = {}
    backends: dict[int, str] = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\d+):(\d+)(?:@(\w+))?\s*", part)
        if match is None or int(match[2]) < 1:
            raise ValueError(f"expected {name}STEP:RANKS[@BACKEND][,...], got {part!r}")
        step = int(match[1])
        if ranks and step <= max(ranks):
            raise ValueError(f"expected rising steps of resizes, got {text!r}")
        ranks[step] = int(match[2])
        if match[3]:
            backends[step] = match[3]
    return ranks, backends


def fitting(asked: int, limits: Limits, sizes: Sequence[int] = ()) -> int:
    """Return the size that a request for ``asked`` ranks leads to.

    The largest of ``sizes`` that is not above what was asked for, else their smallest; without
    any, what was asked for, brought within ``limits``.
    """
    least, most = limits
    within = max(least, asked if most is None else min(asked, most))
    below = [size for size in sizes if size <= within]
    return max(below) if below else min(sizes, default=within)


def check_size(ranks: int, limits: Limits) -> None:
    """Refuse a size beyond the limits.

    Raises:
        UsageError: it is.
    """
    least, most = limits
    if ranks < least or (most is not None and ranks > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"expected a resize to {bounds} ranks, got {ranks}")


def check_cooldown(given: float | str) -> float:
    """Return a cooldown in seconds.

    Raises:
        UsageError: it is none.
    """
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"expected a cooldown of at least 0 seconds, got {given}")
    return seconds


def check_plan(limits: Limits, sizes: Sequence[int]) -> None:
    """Refuse limits that leave nothing, and preferred sizes beyond them.

    Raises:
        UsageError: they do, or are.
    """
    least, most = limits
    if least < 1 or (most is not None and most < least):
        raise UsageError(f"expected limits of at least 1 rank, fewest first, got {limits}")
    wrong = [n for n in sizes if n < least or (most is not None and n > most)]
    if wrong:
        raise UsageError(f"expected preferred sizes within the limits {limits}, got {wrong[0]}")
