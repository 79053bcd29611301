"""Energy of a node in one pair of hands, modelled and measured, and the sums of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from rms.wire.users import EnergyRow

IDLE = "idle"
"""Owner of what nobody's nodes draw."""

OFF = "off"
"""Owner of what nodes draw that are powered off."""

BOOT = "boot"
"""Owner of what nodes draw while they boot."""

PAST = "past"
"""Owner of what jobs have had that are no more told apart."""

MODEL = "model"
"""Source of what was not measured."""

WHOLE = "node"
"""Device of a span as a whole, of which the model speaks."""


BALANCE = 1e-9
"""Sums of one energy in two ways may differ by this much of the cluster's."""


class BalanceError(RuntimeError):
    """Two sums of one energy differ: a defect of the program."""


def check_balance(what: str, got_j: float, expected_j: float, cluster_j: float) -> None:
    """Refuse two sums of one energy that differ by more than rounding.

    Raises:
        BalanceError: they do.
    """
    if abs(got_j - expected_j) > BALANCE * max(1.0, cluster_j):
        raise BalanceError(f"expected {what}, got {got_j} J and {expected_j} J")


@dataclass(slots=True)
class Share:
    """Measured energy of one owner or span from one source.

    Attributes:
        uncertainty_j: half-width of ``joules``, about 95 %, plus the largest possible error of the
            split for an estimate; a sum, as if all errors were fully correlated.
        estimate: some of it is a part of a device that several nodes share.
    """

    joules: float = 0.0
    uncertainty_j: float = 0.0
    estimate: bool = False

    def add(self, more: Share) -> None:
        """Add what was measured beside it."""
        self.joules += more.joules
        self.uncertainty_j += more.uncertainty_j
        self.estimate |= more.estimate


@dataclass(slots=True, eq=False)
class Span:
    """A node in one pair of hands.

    Attributes:
        owner: a job's id, or :data:`IDLE`.
        world: number of the job's launch on this node, None where there is none.
        resize: number of the resize that the job is in, 0 for none.
        watts: power by the model.
        end_s: None while it lasts.
        booked_s: until when meters have reported.
        replaced_j: what of the model's energy a measurement stands for.
        measured: by device and source.
        saved: rows of it were written.
        at_once_j: energy of the model that took no time: of a boot of a node that is up at once.
        lasted_s: how long it has lasted by what was written, where it was read back.
    """

    node: str
    owner: str
    world: int | None
    resize: int
    watts: float
    begin_s: float
    end_s: float | None = None
    booked_s: float = -inf
    replaced_j: float = 0.0
    measured: dict[tuple[str, str], Share] = field(default_factory=dict)
    saved: bool = False
    at_once_j: float = 0.0
    lasted_s: float = 0.0

    def seconds(self, since_s: float, until_s: float) -> float:
        """Return how much of a time it lasts."""
        end = until_s if self.end_s is None else min(self.end_s, until_s)
        return max(0.0, end - max(self.begin_s, since_s))

    def rows(self, now_s: float | None = None) -> Iterable[EnergyRow]:
        """Yield its rows: the model's, less what was replaced, and each device's.

        Args:
            now_s: until when the model speaks of one that lasts; None for as long as meters have.
        """
        end_s = self.end_s
        if end_s is None:
            end_s = max(self.begin_s, self.booked_s if now_s is None else now_s)
        modelled_j = self.watts * (end_s - self.begin_s) + self.at_once_j
        model = Share(modelled_j - self.replaced_j)
        yield self._row(WHOLE, MODEL, end_s, model, self.replaced_j)
        measured_s = max(self.begin_s, min(end_s, self.booked_s))
        for (device, source), found in self.measured.items():
            yield self._row(device, source, measured_s, found, 0.0)

    def _row(
        self, device: str, source: str, end_s: float, share: Share, replaced_j: float
    ) -> EnergyRow:
        return EnergyRow(
            owner=self.owner,
            world=self.world,
            resize=self.resize,
            node=self.node,
            device=device,
            source=source,
            begin_s=self.begin_s,
            end_s=end_s,
            joules=share.joules,
            uncertainty_j=share.uncertainty_j,
            estimate=share.estimate,
            replaced_j=replaced_j,
        )


@dataclass
class Totals:
    """What measurements add to the model's books, and take from them.

    Attributes:
        measured: of each owner, by source.
        owner_j: of each owner, measured less replaced.
        node_j: of each node, the same, added up on its own.
        resize_j: of each job and resize, the same.
        since_s: the time since which ``since_j`` counts.
        since_j: of owners, the same, of spans that began then or later.
    """

    measured: dict[str, dict[str, Share]] = field(default_factory=dict)
    owner_j: dict[str, float] = field(default_factory=dict)
    node_j: dict[str, float] = field(default_factory=dict)
    resize_j: dict[tuple[str, int], float] = field(default_factory=dict)
    since_s: float = inf
    since_j: dict[str, float] = field(default_factory=dict)

    def count_from(self, at_s: float) -> None:
        """Let ``since_j`` count from a time on."""
        self.since_s = at_s
        self.since_j.clear()

    def enter(self, span: Span, joules: float) -> None:
        """Add to a span's owner what a measurement adds to (or takes from) the model's energy."""
        owner = span.owner
        self.owner_j[owner] = self.owner_j.get(owner, 0.0) + joules
        if span.resize:
            key = owner, span.resize
            self.resize_j[key] = self.resize_j.get(key, 0.0) + joules
        if span.begin_s >= self.since_s:
            self.since_j[owner] = self.since_j.get(owner, 0.0) + joules

    def enter_node(self, node: str, joules: float) -> None:
        """Add the same to a node."""
        self.node_j[node] = self.node_j.get(node, 0.0) + joules

    def enter_source(self, owner: str, source: str, more: Share) -> None:
        """Add to what was measured of an owner from a source."""
        self.measured.setdefault(owner, {}).setdefault(source, Share()).add(more)

    def forget(self, owner: str) -> None:
        """Let an owner that is over be one of those of before, all of whom have one sum."""
        for sums in (self.owner_j, self.since_j):
            if owner in sums:
                sums[PAST] = sums.get(PAST, 0.0) + sums.pop(owner)
        for source, share in self.measured.pop(owner, {}).items():
            self.enter_source(PAST, source, share)

    def load(self, row: EnergyRow) -> None:
        """Take in a row that was written, or the sum of several of one owner, node and resize."""
        span = Span(row.node, row.owner, None, row.resize, 0.0, row.begin_s)
        joules = -row.replaced_j
        if row.source != MODEL:
            joules = row.joules
            share = Share(row.joules, row.uncertainty_j, row.estimate)
            self.enter_source(row.owner, row.source, share)
        self.enter(span, joules)
        self.enter_node(row.node, joules)
