"""The accounting of jobs in the columns of other tools: EAR's eacct, CEEMS's units, Slurm's sacct.

Only columns are filled for which rms has a value; of energy and power, in EAR's and CEEMS's only
measured ones. A value that was not measured is an empty cell, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from rms.core.books.spans import MODEL, WHOLE
from rms.formats.prices import JOULES_PER_KWH, Prices
from rms.wire.files import csv_text
from rms.wire.users import AcctAnswer, EnergyRow, JobRow

# --- EAR: the columns of `eacct -c` -------------------------------------------------------------

EAR_HEADS = (
    "JOBID USERID ACCOUNTID JOBNAME JOB_START_TIME JOB_END_TIME JOB_START_DATE JOB_END_DATE "
    "NODENAME TIME_SEC DC_NODE_POWER_W DRAM_POWER_W PCK_POWER_W"
)


def ear_csv(answer: AcctAnswer, prices: Prices | None = None) -> str:
    """Return a row for each job and host: mean power by device while it was measured, W.

    Slots of a host are one row. There is a column for each GPU that a job used.
    """
    rows_of = _by_owner(answer.rows)
    gpus = sorted({row.device for row in answer.rows if _is_gpu(row.device)})
    gpus.sort(key=len)
    heads = [*EAR_HEADS.split(), *(f"{gpu.replace('-', '').upper()}_POWER_W" for gpu in gpus)]
    lines: list[Sequence[object]] = [heads]
    for job in answer.jobs:
        by_host: dict[str, list[EnergyRow]] = {}
        for row in rows_of.get(job.id, []):
            by_host.setdefault(row.node.rpartition("/")[0] or row.node, []).append(row)
        times = [int(at) if at is not None else "" for at in (job.start_s, job.end_s)]
        dates = [_date(at, "%Y-%m-%d %H:%M:%S") for at in (job.start_s, job.end_s)]
        for host, rows in by_host.items():
            held_s = _held_s(rows)
            measured_s = held_s * _measured_share(rows)
            kinds: list[Callable[[str], bool]] = [
                WHOLE.__eq__,
                lambda device: device.startswith("dram"),
                lambda device: device.startswith("package"),
                *(gpu.__eq__ for gpu in gpus),
            ]
            watts = [_cell(_measured_j(rows, kind), measured_s, 3) for kind in kinds]
            known = job.id, job.user, job.account, job.name, *times, *dates
            lines.append([*known, host, f"{held_s:.3f}", *watts])
    return csv_text(lines)


def _held_s(rows: Iterable[EnergyRow]) -> float:
    """Return the time that rows cover, s; where they overlap it counts once."""
    held_s, until_s = 0.0, float("-inf")
    for begin_s, end_s in sorted((row.begin_s, row.end_s) for row in rows):
        held_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return held_s


def _measured_share(rows: Iterable[EnergyRow]) -> float:
    """Return the share of the time that was measured, by the model's energy that is replaced."""
    model = [row for row in rows if row.source == MODEL]
    replaced_j = sum(row.replaced_j for row in model)
    whole_j = replaced_j + sum(row.joules for row in model)
    return min(1.0, max(0.0, replaced_j / whole_j)) if whole_j else 1.0


# --- CEEMS: the columns of its table `units` ----------------------------------------------------

CEEMS_HEADS = (
    "uuid name project usr created_at started_at ended_at created_at_ts started_at_ts ended_at_ts "
    "elapsed state total_walltime_seconds total_cpu_energy_usage_kwh total_gpu_energy_usage_kwh"
)
CEEMS_EMISSIONS = ["total_cpu_emissions_gms", "total_gpu_emissions_gms"]


def ceems_csv(answer: AcctAnswer, prices: Prices | None = None) -> str:
    """Return a row for each job: measured energy in kWh of GPUs, and of all other devices.

    With the CO2 of electricity (``prices``) also the emissions of that energy, g.
    """
    rows_of, now_s = _by_owner(answer.rows), answer.energy.at_s
    carbon = prices if prices is not None and prices.carbon is not None else None
    lines: list[Sequence[object]] = [[*CEEMS_HEADS.split(), *(CEEMS_EMISSIONS if carbon else [])]]
    for job in answer.jobs:
        rows = rows_of.get(job.id, [])
        times_s = job.submit_s, job.start_s, job.end_s
        run_s = _run_s(job, now_s)
        energies = [_measured_j(rows, kind) for kind in (_is_no_gpu, _is_gpu)]
        lines.append(
            [
                *(job.id, job.name, job.account, job.user),
                *(_date(at, "%Y-%m-%dT%H:%M:%S%z") for at in times_s),
                *("" if at is None else int(at * 1000) for at in times_s),
                *(_elapsed(run_s), job.state, int(run_s)),
                *(_cell(joules, JOULES_PER_KWH, 9) for joules in energies),
                *([] if carbon is None else _emissions(rows, carbon)),
            ]
        )
    return csv_text(lines)


def _emissions(rows: Sequence[EnergyRow], prices: Prices) -> list[str]:
    """Return the emissions of measured energy, of GPUs last; "" where they are not all known."""
    cells = []
    for kind in (_is_no_gpu, _is_gpu):
        own = [row for row in rows if row.source != MODEL and kind(row.device)]
        costs = [prices.cost(row.joules, row.begin_s, row.end_s) for row in own]
        known = costs and not any(cost.unrated_j for cost in costs)
        cells.append(f"{sum(cost.co2_g for cost in costs):.6g}" if known else "")
    return cells


# --- sacct --------------------------------------------------------------------------------------

SACCT_HEADS = (
    "JobID User Account Submit Start End ElapsedRaw TimelimitRaw AllocNodes State "
    "ConsumedEnergy ConsumedEnergyRaw JobName"
)
"""The name comes last, as it may hold the separator: so ``rms simulate --sacct`` reads it."""


def sacct_lines(answer: AcctAnswer, prices: Prices | None = None) -> str:
    """Return a line for each job, as ``sacct --parsable2 --allocations`` prints it.

    ``ConsumedEnergy`` is the job's whole energy, also by the model.
    """
    lines = [SACCT_HEADS.replace(" ", "|")]
    for job in answer.jobs:
        limit = "UNLIMITED" if job.limit_s is None else f"{-(-job.limit_s // 60):.0f}"
        times = (_date(at, "%Y-%m-%dT%H:%M:%S") for at in (job.submit_s, job.start_s, job.end_s))
        cells = [
            *(job.id, job.user, job.account, *(text or "Unknown" for text in times)),
            *(f"{int(_run_s(job, answer.energy.at_s))}", limit, f"{job.size}", job.state),
            *(consumed_energy(job.energy_j), f"{_whole(job.energy_j)}"),
            " ".join(job.name.splitlines()),
        ]
        lines.append("|".join(cells))
    return "".join(f"{line}\n" for line in lines)


def consumed_energy(joules: float) -> str:
    """Return an energy in sacct's form, with decimal prefixes: ``540``, ``12.34K``, ``4.19G``."""
    value, unit = float(_whole(joules)), 0
    while value >= 1000.0 and unit < len(_UNITS) - 1:
        value, unit = value / 1000.0, unit + 1
    return f"{value:.0f}{_UNITS[unit]}" if value.is_integer() else f"{value:.2f}{_UNITS[unit]}"


_UNITS = ("", "K", "M", "G", "T", "P")


def _whole(joules: float) -> int:
    return max(0, round(joules))  # the model may be corrected to below 0 for a moment


# --- what they share ----------------------------------------------------------------------------


FORMS: dict[str, Callable[[AcctAnswer, Prices | None], str]] = {
    "ear": ear_csv,
    "ceems": ceems_csv,
    "sacct": sacct_lines,
}
"""What ``rms acct --export`` prints, by its name."""


def _by_owner(rows: Iterable[EnergyRow]) -> dict[str, list[EnergyRow]]:
    rows_of: dict[str, list[EnergyRow]] = {}
    for row in rows:
        rows_of.setdefault(row.owner, []).append(row)
    return rows_of


def _is_gpu(device: str) -> bool:
    return device.startswith("gpu-")


def _is_no_gpu(device: str) -> bool:
    return not _is_gpu(device)


def _measured_j(rows: Iterable[EnergyRow], kind: Callable[[str], bool]) -> float | None:
    """Return the measured energy of some devices, None if none of it was measured."""
    own = [row.joules for row in rows if row.source != MODEL and kind(row.device)]
    return sum(own) if own else None


def _cell(joules: float | None, over: float, digits: int) -> str:
    return "" if joules is None or over <= 0.0 else f"{joules / over:.{digits}f}"


def _run_s(job: JobRow, now_s: float | None) -> float:
    end_s = now_s if job.end_s is None else job.end_s
    return 0.0 if job.start_s is None or end_s is None else max(0.0, end_s - job.start_s)


def _elapsed(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{h:02d}:{m:02d}:{s:02d}"


def _date(at_s: float | None, form: str) -> str:
    return "" if at_s is None else time.strftime(form, time.localtime(at_s))
