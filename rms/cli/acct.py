"""``rms acct``: times, energy and cost of jobs, and whether the energy books balance."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from rms.cli.queue import add_filters, selection
from rms.client.connection import ask, server_address
from rms.client.status import (
    GAIN_HEADS,
    HOURS_HEADS,
    gain_cells,
    gain_words,
    hours_cells,
    hours_words,
)
from rms.core.books.spans import BalanceError
from rms.core.state import TASKS, is_task
from rms.formats.energy import (
    OwnerEnergy,
    amount,
    as_json,
    check_energies,
    lost_words,
    owner_energies,
    slurm_words,
    with_idle_shared,
)
from rms.formats.export import FORMS
from rms.formats.prices import Cost, Prices, PricesAnswer, read_prices
from rms.wire.terminal import CommandError, clock, columns, duration, publish, refuse_on
from rms.wire.users import AcctAnswer, EnergyRow, JobRow, JobSelection

HEADS = "JOBID NAME STATE MODE SUBMITTED WAITED RAN RESIZES ENERGY SOURCE"
ROW_HEADS = "OWNER WORLD NODE DEVICE ENERGY_J SOURCE"
LEAST_J = 1e-6
"""Rows with less energy are left out: the model has none where everything is measured."""

PARTS = ("jobs", "tasks", "idle", "off", "boot")


def add_acct(command: argparse.ArgumentParser) -> None:
    add_filters(command)
    add = command.add_argument
    add("--energy", action="store_true", help="by job, world, node, device and source too")
    add("--cost", action="store_true", help="cost and emissions of the energy")
    add(
        "--gain",
        action="store_true",
        help="what resizes have brought: a replay without them; with "
        "--cost what cheap hours have saved: one with flat prices",
    )
    add("--prices", type=Path, metavar="FILE", help="with --cost (default: that of rms serve)")
    add(
        "--idle",
        choices=("own", "share"),
        default="own",
        help="idle energy of hosts: own account (default), or shared by their jobs by slots x time",
    )
    add("--export", choices=tuple(FORMS), help="print the jobs in the columns of this tool instead")


@dataclass(frozen=True)
class Result:
    """The daemon's answer, the energy by owner, and the prices, None without costs.

    ``idle`` is ``share`` if jobs have the idle energy of their hosts, else ``own``.
    """

    answer: AcctAnswer
    owners: Mapping[str, OwnerEnergy]
    prices: Prices | None
    idle: str

    @property
    def has_lost(self) -> bool:
        """Whether failures have cost a job work."""
        return any(job.lost is not None for job in self.answer.jobs)

    def of(self, owner: str) -> OwnerEnergy:
        return self.owners.get(owner, OwnerEnergy())

    @property
    def parts(self) -> dict[str, OwnerEnergy]:
        """The energy of all jobs, tasks (if there were any), idle, off, boot, and the cluster."""
        jobs = {job.id for job in self.answer.jobs}
        parts = {part: OwnerEnergy() for part in (*PARTS, "cluster")}
        for owner, energy in self.owners.items():
            part = "tasks" if is_task(owner) else "jobs" if owner in jobs else owner
            parts[part] += energy
            parts["cluster"] += energy
        if not any(is_task(owner) for owner in self.owners):
            del parts["tasks"]
        error_j = sum(part.uncertainty_j for part in self.answer.energy.sources)
        parts["cluster"].uncertainty_j = error_j
        parts["cluster"].estimate = False  # the parts of a shared device add up to the whole
        return parts


def acct(arguments: argparse.Namespace) -> int:
    """``rms acct``: times, energy and cost of jobs; 1 if the books do not balance."""
    server = server_address(arguments.server, os.environ)
    if arguments.prices is not None and not arguments.cost:
        raise CommandError("expected --cost with --prices")
    if arguments.gain:
        return _hours_gain(arguments, server) if arguments.cost else _gain(arguments, server)
    _check_export(arguments)
    prices = _prices(server, arguments.prices) if arguments.cost else None
    wanted = selection(arguments)
    whole = wanted == JobSelection()
    answer = _answer(server, wanted, arguments.idle)
    result = Result(answer, owner_energies(answer.rows, prices), prices, arguments.idle)
    if arguments.export is not None:
        print(FORMS[arguments.export](answer, prices), end="")
        with refuse_on(BalanceError, exit_code=1):
            check_energies(answer, result.owners, whole=whole)
        return 0
    heads = [*HEADS.split(), *(["LOST"] if result.has_lost else [])]
    heads += [] if prices is None else _cost_heads(prices)
    lines = columns(heads, [_job_row(job, result) for job in answer.jobs])
    if arguments.energy:
        lines += ["", *columns(ROW_HEADS.split(), _rows(answer.rows))]
        if tasks := _tasks(result):
            lines += ["", *columns(["TASKS OF", "PID", "ENERGY_J", "SOURCE"], tasks)]
        by_slurm = [(job.id, slurm_words(job.slurm)) for job in answer.jobs]
        lines += [f"job {name}: {words}" for name, words in by_slurm if words]
    if whole:
        lines += ["", *_sums(result)]
    if prices is not None:
        lines += _notes(result.parts["cluster"].cost, prices)
    publish(arguments.json, _as_json(result, arguments, whole=whole), lines)
    with refuse_on(BalanceError, exit_code=1):
        check_energies(answer, result.owners, whole=whole)
    return 0


def _check_export(arguments: argparse.Namespace) -> None:
    """Refuse options that have no meaning with ``--export``."""
    form = arguments.export
    if form is None:
        return
    if arguments.energy or arguments.json is not None:
        raise CommandError("expected --export without --energy and --json")
    if arguments.cost and form != "ceems":
        raise CommandError(f"expected --cost with --export ceems, got --export {form}")


def _answer(server: str, wanted: JobSelection, idle: str) -> AcctAnswer:
    """Return the selected jobs with their rows, or all jobs and all rows."""
    path = f"/acct?{urlencode(msgspec.to_builtins(wanted))}"
    if idle == "own":
        return ask(AcctAnswer, server, "GET", "/acct" if wanted == JobSelection() else path)
    answer = with_idle_shared(ask(AcctAnswer, server, "GET", "/acct"))
    if wanted == JobSelection():
        return answer
    ids = {job.id for job in ask(AcctAnswer, server, "GET", path).jobs}
    return msgspec.structs.replace(
        answer,
        jobs=[job for job in answer.jobs if job.id in ids],
        rows=[row for row in answer.rows if row.owner in ids],
    )


def _gain(arguments: argparse.Namespace, server: str) -> int:
    """``rms acct --gain``: what resizes have brought to all jobs."""
    from rms.core.model.jobs import Ran
    from rms.sim.gain import GainError, gain

    _refuse_parts(arguments)
    with refuse_on(GainError, exit_code=1):
        brought = gain(ask(Ran, server, "GET", "/ran"))
    lines = [*columns(GAIN_HEADS, gain_cells(brought)), "", *gain_words(brought)]
    publish(arguments.json, msgspec.to_builtins(brought), lines)
    return 0


def _hours_gain(arguments: argparse.Namespace, server: str) -> int:
    """``rms acct --gain --cost``: what waiting for cheap hours has saved to all jobs."""
    from rms.core.model.jobs import Ran
    from rms.sim.gain import GainError, hours_gain

    _refuse_parts(arguments)
    prices = _prices(server, arguments.prices)
    with refuse_on(GainError, exit_code=1):
        saved = hours_gain(ask(Ran, server, "GET", "/ran"), prices)
    lines = [*columns(HOURS_HEADS, hours_cells(saved)), "", *hours_words(saved)]
    publish(arguments.json, msgspec.to_builtins(saved), lines)
    return 0


def _refuse_parts(arguments: argparse.Namespace) -> None:
    alone = selection(arguments) == JobSelection() and arguments.idle == "own"
    if arguments.energy or arguments.export or not alone:
        raise CommandError("expected --gain alone, or with --cost: it is of all jobs together")


def _prices(server: str, path: Path | None) -> Prices:
    """Return the prices of a file, else those of the daemon."""
    if path is not None:
        return read_prices(path)
    prices = ask(PricesAnswer, server, "GET", "/prices").prices
    if prices is None:
        raise CommandError("expected --prices FILE, here or of rms serve, got neither")
    return prices


# --- tables ------------------------------------------------------------------------------------


def _job_row(job: JobRow, result: Result) -> list[str]:
    energy, prices, now_s = result.of(job.id), result.prices, result.answer.energy.at_s
    end_s = now_s if job.end_s is None else job.end_s
    started_s = end_s if job.start_s is None else job.start_s
    return [
        job.id,
        job.name,
        job.state,
        job.mode,
        clock(job.submit_s, day=True),
        _length(job.submit_s, started_s),
        _length(job.start_s, end_s),
        str(len(job.resizes)),
        f"{energy.amount} J",
        energy.cells[1],
        *(_lost_cells(job) if result.has_lost else []),
        *([] if prices is None else _cost_cells(energy.cost, prices)),
    ]


def _lost_cells(job: JobRow) -> list[str]:
    return ["" if job.lost is None else f"{job.lost.energy_j:.1f} J"]


def _length(begin_s: float | None, end_s: float | None) -> str:
    return "" if begin_s is None or end_s is None else duration(max(0.0, end_s - begin_s))


def _cost_heads(prices: Prices) -> list[str]:
    heads = [prices.currency.upper()] if prices.price is not None else []
    return [*heads, "CO2_G"] if prices.carbon is not None else heads


def _cost_cells(cost: Cost, prices: Prices) -> list[str]:
    cells = [amount(cost.price)] if prices.price is not None else []
    return [*cells, amount(cost.co2_g)] if prices.carbon is not None else cells


def _rows(rows: Sequence[EnergyRow]) -> list[list[str]]:
    sums: dict[tuple[str, ...], OwnerEnergy] = {}
    for row in rows:
        world = "-" if row.world is None else str(row.world)
        key = row.owner, world, row.node, row.device, row.source
        sums.setdefault(key, OwnerEnergy()).add(row)
    shown = [(key, energy) for key, energy in sums.items() if abs(energy.joules) > LEAST_J]
    return [[*key[:-1], *energy.cells] for key, energy in shown]


def _tasks(result: Result) -> list[list[str]]:
    rows = []
    for owner, energy in result.owners.items():
        if is_task(owner):
            program, _, pid = owner.removeprefix(TASKS).rstrip("]").rpartition("[")
            rows.append([program or "?", pid, *energy.cells])
    return rows


def _sums(result: Result) -> list[str]:
    parts = result.parts
    whole = parts.pop("cluster")
    owned = " + ".join(f"{name} {part.joules:.1f}" for name, part in parts.items())
    lines = [f"cluster {whole.words} = {owned}"]
    lost = result.answer.energy.lost
    if lost.times:
        lines.append(f"lost work of jobs: {lost_words(lost)}")
    prices = result.prices
    if prices is not None:
        costs = {**parts, "cluster": whole}.items()
        rows = [[name, *part.cells, *_cost_cells(part.cost, prices)] for name, part in costs]
        lines += columns(["OWNER", "ENERGY_J", "SOURCE", *_cost_heads(prices)], rows)
    return lines


def _notes(cost: Cost, prices: Prices) -> list[str]:
    """Return lines about the prices and the energy that they do not cover."""
    lines = [f"prices of {prices.words}"]
    gaps = (("price", prices.price, cost.unpriced_j), ("CO2", prices.carbon, cost.unrated_j))
    for name, series, joules in gaps:
        if series is not None and joules:
            when = "before their first time, after their last or in a gap"
            lines.append(f"{joules:.1f} J {when} have no {name} and are not in these sums")
    return lines


def _as_json(result: Result, arguments: argparse.Namespace, *, whole: bool) -> Any:
    """Return the jobs with their rows, and with ``--energy`` or ``--cost`` the sums as well."""
    rows: dict[str, list[EnergyRow]] = {}
    for row in result.answer.rows:
        rows.setdefault(row.owner, []).append(row)
    jobs = [
        as_json(job)
        | {"idle": result.idle, "rows": as_json(rows.get(job.id, []))}
        | _costs(result.of(job.id), result.prices)
        for job in result.answer.jobs
    ]
    if not (arguments.energy or arguments.cost):
        return jobs
    prices = result.prices
    parts = {
        name: {
            "energy_j": part.joules,
            "energy_source": part.sources,
            "uncertainty_j": part.known_uncertainty_j,
            "by_source_j": part.by_source,
            **_costs(part, prices),
        }
        for name, part in result.parts.items()
        if whole or name == "jobs"
    }
    costs = {} if prices is None else {"currency": prices.currency, "prices": prices.words}
    whole_rows = as_json(result.answer.rows)
    return {"jobs": jobs, "idle": result.idle, "sums": parts, "rows": whole_rows, **costs}


def _costs(energy: OwnerEnergy, prices: Prices | None) -> dict[str, Any]:
    if prices is None:
        return {}
    costs: dict[str, Any] = {}
    if prices.price is not None:
        costs |= {"cost": energy.cost.price, "unpriced_j": energy.cost.unpriced_j}
    if prices.carbon is not None:
        costs |= {"co2_g": energy.cost.co2_g, "unrated_j": energy.cost.unrated_j}
    return costs
