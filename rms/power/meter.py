"""What reads power: one interface for every kind of meter, and all of a node's together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rms.wire.messages import Metered


class MeterError(Exception):
    """Power cannot be read; one sentence."""


class Meter(Protocol):
    """One kind of meter of this machine.

    Attributes:
        source: what it is called in the books.
    """

    source: str

    def read(self, now_s: float) -> float | None:
        """Return the power, W; None while there is no reading yet.

        Args:
            now_s: a clock that never goes back, seconds.

        Raises:
            MeterError: there is nothing to read here, or no more.
        """

    def close(self) -> None:
        """End what reads."""


@dataclass
class NodeMeter:
    """What a node draws: the sum of all meters that can be read there."""

    node: str
    meters: Sequence[Meter]
    _refused: dict[str, str] = field(default_factory=dict)

    def read(self, now_s: float) -> Metered | None:
        """Return the reading, None while there is none yet."""
        watts: dict[str, float] = {}
        wait = False
        for meter in self.meters:
            if meter.source in self._refused:
                continue
            try:
                found = meter.read(now_s)
            except MeterError as error:
                self._refused[meter.source] = str(error)
                continue
            if found is None:
                wait = True
            else:
                watts[meter.source] = found
        if wait:
            return None
        if not watts:
            return Metered(self.node, "model", None, "; ".join(self._refused.values()))
        return Metered(self.node, " and ".join(watts), sum(watts.values()))

    def close(self) -> None:
        """End all of them."""
        for meter in self.meters:
            meter.close()
