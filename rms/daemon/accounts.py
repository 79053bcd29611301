"""The energy of jobs and of the rest, as the books have it: rows of owner, node, device, source."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from rms.core.model.jobs import Job, JobId
from rms.daemon.context import Context
from rms.wire.users import EnergyRow


def energy_rows(context: Context, jobs: Collection[str] | None = None) -> list[EnergyRow]:
    """Return what is booked up to now, what is written and what is newer; both by node and time.

    Args:
        jobs: of these only; of all owners where None.
    """
    measured = context.scheduler.energy.measured
    one = next(iter(jobs)) if jobs is not None and len(jobs) == 1 else None
    present = measured.spans.present(max(context.time(), measured.until_s), jobs)
    newer = {_key(row): row for row in present}
    found = [newer.pop(_key(row), row) for row in context.journal.energy(one)]
    found += [newer[key] for key in sorted(newer)]
    wanted = None if jobs is None else frozenset(jobs)
    return [row for row in found if wanted is None or row.owner in wanted]


def _key(row: EnergyRow) -> tuple[str, float, str, str, str]:
    """Return what tells a row from all others."""
    return row.node, row.begin_s, row.owner, row.device, row.source


def job_rows(context: Context, job_id: JobId) -> list[EnergyRow]:
    """Return what is booked of a job up to now."""
    return energy_rows(context, [job_id])


def is_settled(context: Context, job: Job) -> bool:
    """Return whether meters have reported of all nodes of a job since it was over.

    What nobody measures is settled.
    """
    hosts, cluster = context.scheduler.energy.measured.hosts, context.cluster
    for node in job.nodes:
        if node >= len(cluster.names):
            continue  # of a cluster before this one
        name = cluster.names[node]
        for host in (hosts.get(cluster.host_of(node)), hosts.get("")):
            until_s = inf if host is None else host.nodes.get(name, inf)
            if until_s < (job.end_s or 0.0):
                return False
    return True
