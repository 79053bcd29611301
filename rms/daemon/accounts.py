"""The energy of jobs and of the rest, as the books have it: rows of owner, node, device, source."""

from __future__ import annotations

from collections.abc import Collection

from rms.core.model import JobId
from rms.daemon.context import Context
from rms.wire.users import EnergyRow


def energy_rows(context: Context, owners: Collection[str] | None = None) -> list[EnergyRow]:
    """Return what is booked up to now, by node and time: what is written, and what is newer.

    Args:
        owners: of these only; of all where None.
    """
    measured = context.scheduler.energy.measured
    one = next(iter(owners)) if owners is not None and len(owners) == 1 else None
    found = context.journal.energy(one)
    found += measured.spans.present(max(context.time(), measured.until_s))
    newest = {(row.node, row.begin_s, row.owner, row.device, row.source): row for row in found}
    wanted = None if owners is None else frozenset(owners)
    return [newest[key] for key in sorted(newest) if wanted is None or key[2] in wanted]


def job_rows(context: Context, job_id: JobId) -> list[EnergyRow]:
    """Return what is booked of a job up to now."""
    return energy_rows(context, [job_id])


def is_settled(context: Context, job_id: JobId) -> bool:
    """Return whether what is booked of a job that is over will not change any more.

    It will where a meter has not yet reported of the time up to its end.
    """
    measured = context.scheduler.energy.measured
    booked_s = measured.booked_s
    return not any(
        span.owner == job_id and span.end_s is not None and booked_s[span.node] < span.end_s
        for node in measured.sources
        for span in measured.spans.on(node)
    )
