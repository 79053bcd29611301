"""Energy of owners, with uncertainty, sources and cost, in words; idle energy that jobs share."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec

from rms.core.books.spans import BOOT, IDLE, OFF, check_balance
from rms.core.state import is_task
from rms.formats.prices import Cost, Prices
from rms.wire.users import (
    AcctAnswer,
    EnergyPart,
    EnergyRow,
    JobRow,
    LostWork,
    SlurmRow,
    steps_words,
)

MODEL = "model"

ROUNDING = 1e-9
"""Share of an owner's energy below which words leave out a source, as rounding."""


@dataclass
class OwnerEnergy:
    """The energy of one owner: a job, or idle, off and boot.

    Attributes:
        joules: the whole energy.
        uncertainty_j: half-width of the measured part, with splits of devices: the sum over its
            rows, as if all errors were fully correlated. The model's error is unknown and not
            included.
        by_source: joules of the meters, and of the model.
        estimate: whether a part is a share of a device that other owners used too.
        cost: price and CO2; zero without prices.
    """

    joules: float = 0.0
    uncertainty_j: float = 0.0
    by_source: dict[str, float] = field(default_factory=dict)
    estimate: bool = False
    cost: Cost = field(default_factory=Cost)

    @classmethod
    def of(
        cls, parts: Iterable[EnergyPart | EnergyRow], prices: Prices | None = None
    ) -> OwnerEnergy:
        """Return the sum of parts of an owner's energy."""
        energy = cls()
        for part in parts:
            energy.add(part)
            if prices is not None and isinstance(part, EnergyRow):
                energy.cost += prices.cost(part.joules, part.begin_s, part.end_s)
        return energy

    def add(self, part: EnergyPart | EnergyRow) -> None:
        """Add a part."""
        self.joules += part.joules
        self.uncertainty_j += part.uncertainty_j
        self.by_source[part.source] = self.by_source.get(part.source, 0.0) + part.joules
        self.estimate |= part.estimate

    def __add__(self, other: OwnerEnergy) -> OwnerEnergy:
        ours, theirs = self.by_source, other.by_source
        return OwnerEnergy(
            self.joules + other.joules,
            self.uncertainty_j + other.uncertainty_j,
            {name: ours.get(name, 0.0) + theirs.get(name, 0.0) for name in {**ours, **theirs}},
            self.estimate or other.estimate,
            self.cost + other.cost,
        )

    @property
    def modelled(self) -> bool:
        """Whether a part is by the model, whose uncertainty is unknown."""
        whole_j = sum(map(abs, self.by_source.values()))
        return not whole_j or abs(self.by_source.get(MODEL, 0.0)) > ROUNDING * whole_j

    @property
    def known_uncertainty_j(self) -> float | None:
        """Half-width of the energy; None, unknown, if a part is by the model."""
        return None if self.modelled else self.uncertainty_j

    @property
    def sources(self) -> str:
        """The source, or several with their shares."""
        return source_words(self.by_source)

    @property
    def words(self) -> str:
        """Amount, uncertainty and sources: ``245.2 +- 3.1 J (81 % rapl, 19 % model)``."""
        shared = "; an estimate, from devices that were shared" if self.estimate else ""
        return f"{self.amount} J ({self.sources}{shared})"

    @property
    def words_in_full(self) -> str:
        """The same, and that the uncertainty of the model is unknown."""
        if not self.modelled:
            return self.words
        of = " of the model's part" if self.by_source.keys() - {MODEL} else ""
        return f"{self.words}, uncertainty{of} unknown"

    @property
    def cells(self) -> tuple[str, str]:
        """Amount and sources for a table: ``245.2 +- 3.1``, ``rapl (estimate)``."""
        return self.amount, f"{self.sources}{' (estimate)' if self.estimate else ''}"

    @property
    def amount(self) -> str:
        """Amount, with the uncertainty of a measured one: ``245.2 +- 3.1``, in J."""
        error = f" +- {self.uncertainty_j:.1f}" if self.uncertainty_j else ""
        return f"{self.joules:.1f}{error}"


def as_json(message: object) -> Any:
    """Return a message as ``--json`` prints it: the uncertainty of the model's energy is null.

    Lost work has the source of its job. It is a part of that by time, which makes its uncertainty
    unknown.
    """
    return _unknown(msgspec.to_builtins(message))


def _unknown(value: Any) -> Any:
    if isinstance(value, list):
        return [_unknown(item) for item in value]
    if not isinstance(value, dict):
        return value
    known = {key: _unknown(item) for key, item in value.items()}
    if known.get("source") == MODEL and "uncertainty_j" in known:
        known["uncertainty_j"] = None
    if "energy_source" in known and isinstance(lost := known.get("lost"), dict):
        lost |= {"energy_source": known["energy_source"], "uncertainty_j": None}
    return known


def energy_words(joules: float) -> str:
    """Return an energy in a unit that fits: ``1.23 MJ``."""
    for unit, name in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if joules >= unit:
            return f"{joules / unit:.2f} {name}"
    return f"{joules:.0f} J"


def owner_energies(
    rows: Iterable[EnergyRow], prices: Prices | None = None
) -> dict[str, OwnerEnergy]:
    """Return the energy by owner."""
    rows_of: dict[str, list[EnergyRow]] = {}
    for row in rows:
        rows_of.setdefault(row.owner, []).append(row)
    return {owner: OwnerEnergy.of(own, prices) for owner, own in rows_of.items()}


def check_energies(answer: AcctAnswer, owners: Mapping[str, OwnerEnergy], *, whole: bool) -> None:
    """Check that sums of the same energy agree to 1e-9 of the cluster's.

    These are the sums of a job and of its rows, and with all jobs (``whole``) also those of all
    owners and of the cluster.

    Raises:
        BalanceError: two sums of one energy differ.
    """
    energy = answer.energy
    for job in answer.jobs:
        rows_j = owners[job.id].joules if job.id in owners else 0.0
        what = f"the rows of job {job.id} to be its energy"
        check_balance(what, rows_j, job.energy_j, energy.cluster_j)
    if not whole:
        return
    parts = energy.busy_j, energy.tasks_j, energy.idle_j, energy.off_j, energy.boot_j
    jobs_j = sum(job.energy_j for job in answer.jobs)
    tasks_j = sum(account.joules for owner, account in owners.items() if is_task(owner))
    rows_j = sum(account.joules for account in owners.values())
    for what, got_j, expected_j in (
        ("jobs' energies to be the busy energy", jobs_j, energy.busy_j),
        ("the rows of tasks to be their energy", tasks_j, energy.tasks_j),
        ("owners' and nodes' energies to agree", sum(parts), energy.cluster_j),
        ("the rows of all owners to be the cluster's energy", rows_j, energy.cluster_j),
    ):
        check_balance(what, got_j, expected_j, energy.cluster_j)


# --- idle energy of hosts that jobs share -------------------------------------------------------


class _Held(NamedTuple):
    """A time in which an owner held a slot of a host: with the owner's world and resize."""

    begin_s: float
    end_s: float
    key: tuple[str, int | None, int]


def share_idle(rows: Iterable[EnergyRow]) -> list[EnergyRow]:
    """Divide the idle energy of hosts over the jobs that ran there at that time.

    The idle energy of a host counts evenly over its row's time. At each moment the owners of slots
    of the host have it in proportion to their slots; where nobody holds a slot it stays idle. A
    job's part is a row of its own, on the host. The sum of the rows does not change.
    """
    rows, held = list(rows), dict[str, list[_Held]]()
    for row in rows:
        if row.source == MODEL and row.owner not in (IDLE, OFF, BOOT) and row.end_s > row.begin_s:
            host = row.node.rpartition("/")[0] or row.node
            key = row.owner, row.world, row.resize
            held.setdefault(host, []).append(_Held(row.begin_s, row.end_s, key))
    for spans in held.values():
        spans.sort(key=lambda span: span.begin_s)
    ends_s = {host: list(accumulate((s.end_s for s in spans), max)) for host, spans in held.items()}
    shared = list[EnergyRow]()
    for row in rows:
        spans = held.get(row.node, []) if row.owner == IDLE else []
        first = bisect_right(ends_s[row.node], row.begin_s) if spans else 0
        last = bisect_left(spans, row.end_s, key=lambda span: span.begin_s)
        shared += _shares(row, spans[first:last]) if first < last else [row]
    return shared


def _shares(row: EnergyRow, spans: Sequence[_Held]) -> Iterator[EnergyRow]:
    """Yield the parts of an idle row that owners have, and the part that stays idle."""
    changes = list[tuple[float, int, tuple[str, int | None, int]]]()
    times = dict[tuple[str, int | None, int], tuple[float, float]]()
    for span in spans:
        begin_s, end_s = max(span.begin_s, row.begin_s), min(span.end_s, row.end_s)
        if end_s > begin_s:
            changes += [(begin_s, 1, span.key), (end_s, -1, span.key)]
            before = times.get(span.key, (begin_s, end_s))
            times[span.key] = min(before[0], begin_s), max(before[1], end_s)
    changes.sort(key=lambda change: change[0])
    seconds, slots = dict.fromkeys(times, 0.0), Counter[tuple[str, int | None, int]]()
    for (at_s, number, key), (next_s, *_) in pairwise([*changes, (row.end_s, 0, ("", None, 0))]):
        slots[key] += number
        if at_s < next_s and (whole := slots.total()):
            for owner, own in slots.items():
                seconds[owner] += (next_s - at_s) * own / whole
    parts = {key: own_s / (row.end_s - row.begin_s) for key, own_s in seconds.items()}
    left, left_j, left_replaced_j = 1.0 - sum(parts.values()), row.joules, row.replaced_j
    for key, part in parts.items():
        joules, replaced_j = part * row.joules, part * row.replaced_j
        left_j, left_replaced_j = left_j - joules, left_replaced_j - replaced_j
        yield _part(row, key, times[key], (part, joules, replaced_j))
    idle = row.owner, row.world, row.resize
    yield _part(row, idle, (row.begin_s, row.end_s), (left, left_j, left_replaced_j))


def _part(
    row: EnergyRow,
    key: tuple[str, int | None, int],
    times_s: tuple[float, float],
    energy: tuple[float, float, float],
) -> EnergyRow:
    """Return the row of an owner for a share of a row, with its energy and replaced energy."""
    (owner, world, resize), (begin_s, end_s), (share, joules, replaced_j) = key, times_s, energy
    return msgspec.structs.replace(
        row,
        owner=owner,
        world=world,
        resize=resize,
        begin_s=begin_s,
        end_s=end_s,
        joules=joules,
        uncertainty_j=max(0.0, share) * row.uncertainty_j,
        replaced_j=replaced_j,
    )


def with_idle_shared(answer: AcctAnswer) -> AcctAnswer:
    """Return the accounting of all jobs in which jobs have the idle energy of their hosts.

    The energy of resizes and of lost work stays as it was.
    """
    rows = share_idle(answer.rows)
    rows_of: dict[str, list[EnergyRow]] = {}
    for row in rows:
        rows_of.setdefault(row.owner, []).append(row)
    jobs = [_job_of(job, rows_of.get(job.id, [])) for job in answer.jobs]
    jobs_j = sum(job.energy_j for job in jobs) - sum(job.energy_j for job in answer.jobs)
    energy = answer.energy
    tasks_j = sum(row.joules for name, own in rows_of.items() if is_task(name) for row in own)
    energy = msgspec.structs.replace(
        energy,
        busy_j=energy.busy_j + jobs_j,
        tasks_j=tasks_j,
        idle_j=energy.idle_j - jobs_j - (tasks_j - energy.tasks_j),
    )
    return AcctAnswer(jobs, energy, rows)


def _job_of(job: JobRow, rows: Iterable[EnergyRow]) -> JobRow:
    """Return a job with the energy of these rows."""
    by_source: dict[str, OwnerEnergy] = {}
    for row in rows:
        by_source.setdefault(row.source, OwnerEnergy()).add(row)
    parts = [
        EnergyPart(source, part.joules, part.uncertainty_j, part.estimate)
        for source, part in sorted(by_source.items(), key=lambda item: (item[0] == MODEL, item[0]))
        if part.joules or part.uncertainty_j
    ]
    energy = OwnerEnergy.of(parts or job.energy)
    return msgspec.structs.replace(
        job,
        energy_j=energy.joules,
        energy_source=" and ".join(part.source for part in parts) or job.energy_source,
        energy=parts or job.energy,
        uncertainty_j=energy.known_uncertainty_j,
    )


# --- words ---------------------------------------------------------------------------------------


def source_words(by_source: Mapping[str, float]) -> str:
    """Return the source, or several with their shares: ``81 % rapl, 19 % model``.

    Energy below zero (a correction of the model by a meter) has its share by size.
    """
    total = sum(map(abs, by_source.values()))
    if not total:
        return " and ".join(sorted(by_source)) or MODEL
    largest_first = sorted(by_source.items(), key=lambda item: (-abs(item[1]), item[0]))
    shares = [(name, 100 * abs(joules) / total) for name, joules in largest_first]
    shares = [(name, share) for name, share in shares if share > 100 * ROUNDING]
    if len(shares) == 1:
        return shares[0][0]
    return ", ".join(f"{_percent(share)} % {name}" for name, share in shares)


def _percent(share: float) -> str:
    """Return a share as a whole number; ``<1`` and ``>99`` instead of a rounded 0 or 100."""
    if share < 1.0:
        return "<1"
    return ">99" if share > 99.0 else f"{share:.0f}"


def lost_words(lost: LostWork) -> str:
    """Return what failures have cost: ``40 steps, 12.3 s, 1234.5 J in 2 failures (...)``."""
    return (
        f"{steps_words(lost.steps)}, {lost.seconds:.1f} s, {lost.energy_j:.1f} J "
        f"in {lost.times:,} failure{'' if lost.times == 1 else 's'} "
        f"({lost.recomputed_j:.1f} J of lost steps, {lost.recovery_j:.1f} J of recovery)"
    )


def slurm_words(row: SlurmRow) -> str:
    """Return the energy that Slurm reports for a job, relative to ours; "" without a report."""
    consumed_j, ratio = row.consumed_energy_j, row.consumed_energy_ratio
    if isinstance(consumed_j, msgspec.UnsetType):
        return ""
    of_ours = "" if isinstance(ratio, msgspec.UnsetType) else f", {ratio:.2f} of ours"
    return f"{consumed_j:.1f} J by Slurm's ConsumedEnergy, unverified{of_ours}"


def cost_words(cost: Cost, prices: Prices) -> list[str]:
    """Return price and CO2 of energy, with the energy of unknown price or CO2."""
    costs = []
    if prices.price is not None:
        costs.append(f"{amount(cost.price)} {prices.currency}{_gap(cost.unpriced_j)}")
    if prices.carbon is not None:
        costs.append(f"{amount(cost.co2_g)} g CO2{_gap(cost.unrated_j)}")
    return costs


def _gap(joules: float) -> str:
    return f" (unknown for {joules:.1f} J)" if joules else ""


def amount(value: float) -> str:
    """Return an amount of money or of CO2: two decimals, three figures where it is small."""
    if abs(value) >= 1.0 or not value:
        return f"{value:.2f}"
    return f"{Decimal(f'{value:.3g}'):f}"  # without an exponent
