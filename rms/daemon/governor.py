"""The governor of tasks: high or low, as somebody said, or by a price curve or the power cap.

A change is an event of the tasks' record, so strategies that are tried on it afterwards
(``rms simulate --strategy``) see the governor as it was; the rule is in a note for the next daemon.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, get_args

import msgspec

from rms.core.rules.powercap import under_cap
from rms.daemon.context import Context
from rms.formats.prices import Prices
from rms.kernels.model import Governor

LOOK_S = 1.0
"""How often a rule is looked at."""

ROUNDING = 1e-9
"""The mean of equal prices may be that much off."""

Kind = Literal["high", "low", "price", "co2", "cap"]
EXPECTED = "high, low, price[:LIMIT], co2[:LIMIT] or cap"


class GovernorRule(msgspec.Struct, frozen=True):
    """What the governor of tasks is set by.

    Attributes:
        kind: always ``high`` or ``low``; low while ``price`` or ``co2`` are above the limit, or
            while the power ``cap`` leaves less than tasks would take on all nodes that are not
            jobs'.
        limit: per kWh, of price or g of CO2; None for the mean of the file of prices.
    """

    kind: Kind = "high"
    limit: float | None = None

    @classmethod
    def parse(cls, text: str) -> GovernorRule:
        """Return the rule that is written like this.

        Raises:
            ValueError: none is.
        """
        kind, colon, number = text.partition(":")
        try:
            limit = float(number) if colon else None
        except ValueError:
            limit = math.nan
        known = kind in get_args(Kind) and (not colon or kind in ("price", "co2"))
        if not known or (limit is not None and not math.isfinite(limit)):
            raise ValueError(f"expected a governor: {EXPECTED}, got {text!r}")
        return cls(kind, limit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.limit is None else f"{self.kind}:{self.limit:g}"

    @property
    def automatic(self) -> bool:
        """Whether it may set the governor to another."""
        return self.kind not in ("high", "low")

    def check(self, prices: Prices | None) -> None:
        """Refuse a rule by prices that are not known.

        Raises:
            ValueError: they are not.
        """
        if self.kind in ("price", "co2") and (prices is None or prices.series(self.kind) is None):
            keys = {"price": "price_per_kwh", "co2": "co2_g_per_kwh"}
            raise ValueError(f"expected rms serve --prices FILE with {keys[self.kind]}, got none")


def governor_of(
    rule: GovernorRule, context: Context, nodes: Collection[int], present: Governor
) -> tuple[Governor, str]:
    """Return what a rule says now, and why.

    Where a file of prices says nothing of this time it stays as it is.

    Args:
        nodes: those that tasks may run on.
        present: what it is now.
    """
    if not rule.automatic:
        return Governor(rule.kind), "as set"
    if rule.kind == "cap":
        state = context.state
        if state.power_cap_w is None:
            return Governor.HIGH, "no power cap"
        able = {node for node in nodes if state.vacant[node] or node in state.lent}
        low = len(under_cap(state, able)) < len(able)
        less = "less than" if low else "all that"
        return _low(low), f"the cap of {state.power_cap_w:g} W leaves {less} tasks would take"
    prices = context.settings.prices
    assert prices is not None and rule.kind in ("price", "co2")
    value = prices.value(rule.kind, context.now())
    limit = prices.mean(rule.kind) if rule.limit is None else rule.limit
    if value is None:
        return present, f"no {rule.kind} of this time is known"
    low = value > limit + ROUNDING * abs(limit)
    unit = prices.currency if rule.kind == "price" else "g CO2"
    return _low(low), f"{value:g} {unit}/kWh, {'above' if low else 'not above'} {limit:g}"


def _low(low: bool) -> Governor:
    return Governor.LOW if low else Governor.HIGH
