"""``rms simulate``: a workload or a trace on the virtual clock, or a record of tasks.

With ``--malleable`` it runs the study of malleable shares of a trace, with ``--strategy`` it tries
strategies of tasks on the record of a daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from rms.cli.options import add_policy, candidates, cheap_by, log_lines, read_inputs
from rms.client.connection import ask, server_address
from rms.core.model.events import HourlyPrices, NodeDown, NodeUp
from rms.core.model.jobs import JobSpec, Mode, NodePower, Site
from rms.core.policies import PolicyError, named
from rms.core.policies.node_power import Windows
from rms.core.rules.powercap import added_w, check_cap, is_unknown
from rms.formats.config import FileError
from rms.formats.joblog import COMMAND, Unit
from rms.formats.jobscript import parse_power_cap
from rms.formats.prices import Cost, Prices, read_prices
from rms.formats.swf import write_trace
from rms.kernels.model import Governor, Resource
from rms.kernels.record import RecordEntry, TaskRecord, as_it_was, past_tasks, tried
from rms.kernels.scheduler import STRATEGIES, Strategy
from rms.sim.classes import by_class, class_lines
from rms.sim.run import MissedWindows, chosen, failing, figures, rows, simulated, write_rows
from rms.sim.simulator import Passes, Simulation
from rms.wire.terminal import (
    CommandError,
    at_least,
    check_writable,
    columns,
    positive,
    publish,
    refuse_on,
    say,
    seconds,
)

PASSES = """after every event, submissions before all else of their time; once an instant; after
every event, submissions after all else"""

SACCT_HELP = f"""for --sacct, on a login node (add --partition where partitions have other nodes):
  {COMMAND} > jobs.txt"""


def add_simulate(command: argparse.ArgumentParser) -> None:
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = SACCT_HELP
    add = command.add_argument
    add("--workload", type=Path, metavar="FILE.toml|FILE.csv", help="jobs of a workload file")
    add("--trace", type=Path, metavar="FILE.swf[.gz]", help="jobs of a trace, in SWF")
    add(
        "--sacct",
        type=Path,
        nargs="+",
        metavar="FILE[.gz]",
        help="a cluster's accounting, printed as below; several files for several years",
    )
    add(
        "--strategy",
        nargs="+",
        metavar="NAME|FILE.py",
        help="of tasks (as rms policy takes it): tried on what --journal, or else the running "
        "daemon, has recorded of them",
    )
    add("--journal", type=Path, metavar="FILE", help="of a daemon that does not run now")
    add("--hours", type=positive, metavar="H", help="only tasks of the last hours of the record")
    add("--governor", choices=("high", "low"), help="of --strategy; default: as it was")
    add("--by", choices=get_args(Unit), default="nodes", help="what a size of --sacct counts")
    add("--cluster", type=Path, metavar="FILE.toml", help="nodes, as of rms serve")
    add(
        "--processors",
        type=at_least(1),
        metavar="P",
        help="default: the trace's, or the most that jobs of --sacct held at once",
    )
    add_policy(add)
    add("--mode", metavar="MODE[,MODE...]", help="what jobs allow; several with --malleable")
    add("--order", choices=("fcfs", "sjbf"), help="of the jobs behind the first waiting one")
    add(
        "--estimates",
        choices=("requested", "exact"),
        help="run times that the policy expects: requested limits, or those of the workload",
    )
    add("--passes", choices=get_args(Passes), default="per-event", help=PASSES)
    add(
        "--per-job",
        type=Path,
        metavar="OUT.csv",
        help="a row by job; the last column is its name, where a workload file names jobs",
    )
    add(
        "--malleable",
        metavar="PCT[,PCT...]",
        help="make these shares of the jobs malleable: what would it bring",
    )
    add(
        "--malleable-jobs",
        metavar="CRITERIA",
        help="only jobs like 'user=alice,name=wrf*,nodes=4-64,hours=1-' (also account, partition; "
        "a repeated key: either)",
    )
    add(
        "--serial",
        metavar="F[,F...]",
        help="part of a run time that is not parallel; the first is used, the others are tried "
        "(default: 0.05,0.01,0.2)",
    )
    add("--mtbf-node", type=positive, metavar="H", help="mean time between failures of a node")
    add("--repair", type=seconds, default=1.0, metavar="H", help="and is back after")
    add(
        "--recovery",
        metavar="NAME[,NAME...]",
        help="with --mtbf-node: where jobs go on after a failure: at their beginning, from disk "
        "or from memory in the queue, or narrower at once (beginning,disk,memory,narrower)",
    )
    add("--per-node", type=at_least(1), metavar="P", help="processors of a node of the trace")
    add("--days", type=positive, metavar="D", help="only jobs of the first days of the trace")
    add("--power-cap", metavar="W", help="power cap of the cluster")
    add(
        "--prices",
        type=Path,
        metavar="FILE",
        help="of electricity, as of rms serve, for --policy cheap-hours; the first time of a CSV "
        "file, or a midnight, is time 0",
    )
    add("--cheap-by", choices=("price", "co2"), help="what cheap hours are cheap in")
    add("--cheap-within", type=positive, metavar="H", help="deadline of jobs that state none")
    add("--seed", type=int, default=1, metavar="X", help="of the failures")
    add("--figure", type=Path, metavar="FILE.png", help="of --malleable")
    add("--out", type=Path, metavar="OUT.swf", help="the schedule as a trace")


@refuse_on(PolicyError)
def simulate(arguments: argparse.Namespace) -> int:
    """``rms simulate``: a workload or a trace on a virtual clock."""
    for option in ("json", "per_job", "out", "figure"):
        problem = check_writable(getattr(arguments, option), f"--{option.replace('_', '-')}")
        if problem is not None:
            raise FileError(problem)
    if arguments.strategy is not None:
        return _try_strategies(arguments)
    _refuse_unused(arguments)
    if arguments.recovery is not None:
        return _recoveries(arguments)
    if _asks_study(arguments):
        return _malleable(arguments)
    modes = _modes(arguments.mode)
    if len(modes) > 1:
        raise FileError(f"expected one mode without --malleable, got {arguments.mode!r}")
    policy = named(arguments.policy)
    shared = policy.placement.pooled or (policy.placement.shared and arguments.cluster is not None)
    work = read_inputs(arguments, modes[0] if modes else None, shared=shared)
    if work.site.host and arguments.mtbf_node is not None:
        raise FileError(
            "expected nodes that stay up (no --mtbf-node) where jobs share them, got --mtbf-node"
        )
    if work.site.contended and arguments.passes == "per-timestamp":
        raise FileError("expected --passes per-event on nodes of a bandwidth, got per-timestamp")
    specs, site = work.specs, _capped(arguments.power_cap, work.site, work.specs)
    policy = chosen(
        policy,
        counted=arguments.cluster is None,
        ahead=not any(spec.resize_points_known for spec in specs),
        order=arguments.order,
        estimates=arguments.estimates,
        passes=arguments.passes,
    )
    prices, specs = _prices(arguments, specs)
    if site.power_cap_w is not None or policy.placement.caps_nodes:
        _warn_unknown(site, specs)
    failures = _failures(arguments, site, specs)
    passes = arguments.passes
    power = policy.node_power
    missed = MissedWindows(power) if isinstance(power, Windows) else None
    with _progress_bar(len(specs), quiet=arguments.json == "-") as progress:
        simulation, wall_s = simulated(
            *(specs, site, policy),
            passes=passes,
            progress=progress,
            failures=failures,
            prices=prices,
            observer=None if missed is None else missed.observe,
        )
    result = figures(simulation, specs, policy, wall_s) | work.notes
    if missed is not None:
        result |= missed.figures
    if arguments.prices is not None:
        result |= _priced(simulation, read_prices(arguments.prices))
    resizable = {spec.id for spec in specs if spec.mode.resizable}
    result["classes"] = by_class(simulation, specs, resizable)
    if arguments.per_job is not None:
        write_rows(arguments.per_job, rows(simulation, specs), work.names)
    if arguments.out is not None:
        ended = simulation.engine.state.ended
        note = f"rms simulate, policy {policy.text}"
        write_trace(arguments.out, (ended[spec.id] for spec in specs), site.nodes, note)
    publish(arguments.json, result, _table(result))
    return 0


PRICED_DAYS = 60
"""Values by hour of day are known for so long after the last submission."""


def _prices(
    arguments: argparse.Namespace, specs: Sequence[JobSpec]
) -> tuple[HourlyPrices | None, Sequence[JobSpec]]:
    """Return the prices for decisions, and the jobs with their deadlines."""
    within_h = arguments.cheap_within
    if within_h is not None:
        specs = [
            spec
            if spec.deadline_s is not None
            else replace(spec, deadline_s=spec.submit_s + 3600.0 * within_h)
            for spec in specs
        ]
    if arguments.prices is None:
        cheap_by(arguments.cheap_by, None)
        return None, specs
    prices = read_prices(arguments.prices)
    kind = cheap_by(arguments.cheap_by, prices)
    last_s = max([spec.submit_s for spec in specs], default=0.0) + 86_400.0 * PRICED_DAYS
    zero_s = prices.begin_s
    return prices.hourly(kind, zero_s, zero_s + last_s, zero_s), specs


def _priced(simulation: Simulation, prices: Prices) -> dict[str, Any]:
    """Return what the energy of the cluster costs, and that of the jobs above idle power."""
    zero_s, idle_w = prices.begin_s, simulation.engine.state.idle_w
    costs = {"cluster": Cost(), "jobs": Cost()}
    for begin_s, end_s, watts in simulation.drawn:
        for owner, own_w in (("cluster", watts), ("jobs", watts - idle_w)):
            joules = own_w * (end_s - begin_s)
            costs[owner] += prices.cost(joules, zero_s + begin_s, zero_s + end_s)
    ended = simulation.engine.state.ended.values()
    late = [job for job in ended if (job.end_s or 0.0) > (job.spec.deadline_s or inf)]
    return {
        "cost": {name: cost.price for name, cost in costs.items()},
        "co2_g": {name: cost.co2_g for name, cost in costs.items()},
        "deadlines": sum(job.spec.deadline_s is not None for job in ended),
        "deadlines_missed": len(late),
    }


def _capped(text: str | None, site: Site, specs: Sequence[JobSpec]) -> Site:
    if text is None:
        return site
    cap_w = parse_power_cap(text)
    models = site.power or (NodePower(),)
    if not any(added_w(models, spec, spec.preferred) for spec in specs):
        raise FileError("expected power of nodes (--cluster) or of jobs with --power-cap, got none")
    try:
        check_cap(cap_w, sum(model.idle_w for model in site.power))
    except ValueError as error:
        raise FileError(f"--power-cap: {error}") from None
    return replace(site, power_cap_w=cap_w)


def _warn_unknown(site: Site, specs: Sequence[JobSpec]) -> None:
    unknown = sum(is_unknown(site.power or (NodePower(),), spec) for spec in specs)
    if unknown:
        say(
            f"{unknown} of {len(specs)} jobs state no power and their nodes no power model: they "
            "count as 0 W under the power cap"
        )


def _failures(
    arguments: argparse.Namespace, site: Site, specs: Sequence[JobSpec]
) -> list[NodeDown | NodeUp]:
    if arguments.mtbf_node is None:
        return []
    if arguments.cluster is None:
        raise FileError(
            "expected --cluster FILE.toml with --mtbf-node: counted processors do not fail"
        )
    return failing(
        site.nodes,
        mtbf_s=3600.0 * arguments.mtbf_node,
        repair_s=3600.0 * arguments.repair,
        horizon_s=max(spec.submit_s for spec in specs) + 3600.0 * 24 * 365,
        seed=arguments.seed,
    )


def _modes(text: str | None) -> tuple[Mode, ...]:
    """Read ``malleable,flexible``."""
    names = () if text is None else tuple(text.split(","))
    for name in names:
        if name not in list(Mode):
            raise FileError(f"expected a mode of {', '.join(Mode)}, got {name!r}")
    return tuple(Mode(name) for name in names)


def _refuse_unused(arguments: argparse.Namespace) -> None:
    for option in ("journal", "hours", "governor", "server"):
        if getattr(arguments, option) is not None:
            raise FileError(f"expected --strategy with --{option}, which is of what tasks did")
    if arguments.recovery is not None:
        return
    for option in ("per_node", "days"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise FileError(f"expected --recovery with --{name}, which is of its study")
    if not _asks_study(arguments):
        for option in ("figure", "serial"):
            if getattr(arguments, option) is not None:
                raise FileError(f"expected --malleable with --{option}, which is of its study")
        return
    for option in ("order", "estimates", "per_job", "out", "mtbf_node", "power_cap"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise FileError(f"expected --malleable or --{name}, got both")
    if arguments.passes != "per-event":
        raise FileError(f"expected --malleable with --passes per-event, got {arguments.passes}")


@contextlib.contextmanager
def _progress_bar(total: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on a terminal; yield a function of the number of ended jobs, or None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs", total=total)
        every = max(1, total // 200)

        def show(done: int) -> None:
            if done % every == 0:
                bar.update(task, completed=done)

        yield show


def _table(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in result.items():
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        if name.startswith("mean_") or name == "p95_bounded_slowdown":
            text = f"{value:.4f}"
        if name == "log":
            lines += ["", *log_lines(value)]
            continue
        if name == "classes":
            lines += ["", *class_lines(value)] if "log" in result else []
            continue
        if name in ("cost", "co2_g"):
            text = ", ".join(f"{k} {v:.2f}" for k, v in value.items())
        elif isinstance(value, dict):
            text = ", ".join(f"{k} {v / 1000:.1f} kJ" for k, v in value.items())
        lines.append(f"{name:22s} {text}")
    return lines


# --- ``--malleable``: the study --------------------------------------------------------------


def _asks_study(arguments: argparse.Namespace) -> bool:
    return arguments.malleable is not None or arguments.malleable_jobs is not None


def _malleable(arguments: argparse.Namespace) -> int:
    from rms.studies.malleability import MODES, SERIALS, MalleabilityQuestion, answer, draw, table

    if arguments.workload is not None:
        raise FileError("expected --trace or --sacct with --malleable, got --workload")
    if named(arguments.policy).placement.pooled:
        raise FileError(
            "expected a policy that gives whole nodes with --malleable, as no log tells of memory "
            f"bandwidth, got {arguments.policy}"
        )
    shares = _numbers(arguments.malleable or "0,100", "--malleable as shares in per cent", 100.0)
    if any(0.0 < share < 1.0 for share in shares):
        raise FileError(
            "expected --malleable as shares in per cent, each 0 or 1 to 100 (50 for one half), "
            f"got {arguments.malleable!r}"
        )
    serials: tuple[float, ...] = SERIALS
    if arguments.serial is not None:
        serials = _numbers(arguments.serial, "--serial as parts of a run time", 1.0)
    if max(serials) == 1.0:
        raise FileError("expected serial parts from 0 to below 1, got 1")
    work = read_inputs(arguments, None)
    question = MalleabilityQuestion(
        shares=tuple(share / 100.0 for share in shares),
        modes=_modes(arguments.mode) or MODES,
        serials=serials,
        policy=arguments.policy,
        candidates=candidates(arguments.malleable_jobs, work),
    )
    progress = say if sys.stderr.isatty() else None
    answers = answer(work.specs, work.site, question, progress=progress)
    result = {"study": "malleability", "trace": work.name, **work.notes, **answers}
    if arguments.figure is not None:
        draw(result, arguments.figure, f"{work.name}, policy {question.policy}")
    log = log_lines(work.notes["log"]) if "log" in work.notes else []
    publish(arguments.json, result, [*log, *table(result)])
    return 0


def _numbers(text: str, what: str, most: float) -> tuple[float, ...]:
    """Read ``0,20,100``: numbers from 0 to ``most``."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0.0 <= number <= most for number in numbers):
        raise FileError(f"expected {what}, each from 0 to {most:g}, got {text!r}")
    return numbers


# --- ``--recovery``: the study of failures of nodes --------------------------------------------


def _recoveries(arguments: argparse.Namespace) -> int:
    from rms.studies.failures import RECOVERIES, FailureQuestion, answer, draw, on_nodes, table

    others = ["mode", "serial", "malleable_jobs", "order", "estimates", "per_job", "out"]
    own = [] if arguments.workload is None else ["malleable", "per_node", "days"]
    for option in own:
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise FileError(f"expected --trace or --sacct with --{name}, got --workload")
    for option in [*others, "power_cap"]:
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise FileError(f"expected --recovery or --{name}, got both")
    if arguments.mtbf_node is None:
        raise FileError("expected --mtbf-node H with --recovery, got none")
    if arguments.passes != "per-event":
        raise FileError(f"expected --recovery with --passes per-event, got {arguments.passes}")
    names = tuple(arguments.recovery.split(","))
    for name in names:
        if name not in RECOVERIES:
            raise FileError(f"expected a recovery of {', '.join(RECOVERIES)}, got {name!r}")
    text = arguments.malleable or ("100" if arguments.workload is None else "0")
    share = _numbers(text, "--malleable as a share in per cent", 100.0)
    if len(share) > 1:
        raise FileError(f"expected one share with --recovery, got {arguments.malleable!r}")
    if named(arguments.policy).placement.shared:
        raise FileError(
            f"expected a policy that gives whole nodes with --recovery, got {arguments.policy}"
        )
    work = read_inputs(arguments, None)
    specs, site = work.specs, work.site
    if arguments.per_node is not None:
        if arguments.cluster is not None:
            raise FileError("expected either --cluster FILE.toml or --per-node P, got both")
        specs = on_nodes(specs, arguments.per_node)
        site = Site(-(-site.nodes // arguments.per_node))
    if arguments.days is not None:
        until_s = min(spec.submit_s for spec in specs) + 86400.0 * arguments.days
        specs = [spec for spec in specs if spec.submit_s < until_s]
    question = FailureQuestion(
        recoveries=names,
        mtbf_s=3600.0 * arguments.mtbf_node,
        repair_s=3600.0 * arguments.repair,
        share=share[0] / 100.0,
        seed=arguments.seed,
        policy=arguments.policy,
    )
    progress = say if sys.stderr.isatty() else None
    answers = answer(specs, site, question, progress=progress)
    result = {"study": "failures", "trace": work.name, **work.notes, **answers}
    if arguments.figure is not None:
        draw(result, arguments.figure, f"{work.name}, policy {question.policy}")
    publish(arguments.json, result, table(result))
    return 0


# --- ``--strategy``: strategies of tasks on the record of a daemon ---------------------------

OF_JOBS = """
    workload trace sacct cluster processors mode order estimates malleable malleable_jobs per_job
    out mtbf_node recovery per_node days figure power_cap
"""
"""Options of simulations of jobs, which ``--strategy`` refuses."""


def _try_strategies(arguments: argparse.Namespace) -> int:
    for name in OF_JOBS.split():
        if getattr(arguments, name) is not None:
            raise FileError(f"expected --strategy or --{name.replace('_', '-')}, got both")
    record = _record(arguments)
    if not record.tasks:
        raise FileError("expected a record with tasks that came to their end, got none")
    governor = None if arguments.governor is None else Governor(arguments.governor)
    decided = [name for name in record.strategies[-1:] if name in STRATEGIES]
    names = list(dict.fromkeys([*decided, *arguments.strategy]))
    rows = [{"strategy": "as it happened", **asdict(as_it_was(record))}]
    for name in names:
        with _loaded(name) as strategy:
            try:
                rows.append({"strategy": name, **asdict(tried(record, strategy, governor))})
            except ValueError as error:
                words = str(error) if str(error).startswith(name) else f"{name}: {error}"
                raise CommandError(words, 1) from None
    summary = {
        "tasks": len(record.tasks),
        "processes": len({task.spec.owner for task in record.tasks}),
        "left_out": record.left_out,
        "strategies": record.strategies,
    }
    publish(arguments.json, {"record": summary, "rows": rows}, _strategy_table(summary, rows))
    return 0


def _record(arguments: argparse.Namespace) -> TaskRecord:
    if arguments.journal is None:
        server = server_address(arguments.server, os.environ)
        entries = ask(list[RecordEntry], server, "GET", "/tasks/record")
    else:
        from rms.daemon.store.journal import Journal, JournalError

        if arguments.server is not None:
            raise FileError("expected --journal or --server, got both")
        if not arguments.journal.is_file():
            raise FileError(f"expected a journal, got {arguments.journal}, which does not exist")
        with refuse_on(JournalError), Journal.open(arguments.journal) as journal:
            entries = journal.recorded()
    since_s = 0.0
    if arguments.hours is not None:
        since_s = max((entry.at_s for entry in entries), default=0.0) - 3600.0 * arguments.hours
    return past_tasks(entries, since_s)


@contextlib.contextmanager
def _loaded(name: str) -> Iterator[Strategy]:
    """Load a shipped strategy, or that of a file, for a block, as ``rms policy`` does."""
    if name in STRATEGIES:
        yield STRATEGIES[name]
        return
    if not name.endswith(".py"):
        names = ", ".join(STRATEGIES)
        raise FileError(f"expected a strategy of {names} or FILE.py, got {name!r}")
    from rms.daemon.store.sandbox import FileStrategy, StrategyError

    with refuse_on(StrategyError):
        strategy = FileStrategy(Path(name))
    try:
        yield strategy
    finally:
        strategy.close()


def _strategy_table(summary: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    kinds = [kind for kind in Resource if any(row["runs"].get(kind) for row in rows)]
    heads = ["STRATEGY", "MAKESPAN_S", "MEDIAN_RUN_S", "MEAN_WAIT_S", "ENERGY_J", "MOVED"]
    cells = [
        [
            row["strategy"],
            *(f"{row[key]:.3f}" for key in ("makespan_s", "median_run_s", "mean_wait_s")),
            f"{row['energy_j']:.1f}",
            "" if row["strategy"] == "as it happened" else str(row["interrupts"]),
            *(
                f"{row['runs'].get(kind, 0)} ({row['busy_s'].get(kind, 0.0):.2f} s)"
                for kind in kinds
            ),
        ]
        for row in rows
    ]
    lines = [
        f"{summary['tasks']} tasks of {summary['processes']} processes, {summary['left_out']} left "
        f"out (not done); decided by {', '.join(summary['strategies'])}",
        "",
        *columns([*heads, *(f"ON_{kind.upper()}" for kind in kinds)], cells),
        "",
    ]
    for row in rows[1:]:
        times = row["times"]
        lines.append(
            f"{row['strategy']}: run times measured {times.get('seen', 0)}, of tasks alike "
            f"{times.get('alike', 0)}, by affinity {times.get('affinity', 0)}"
        )
        if row["unfinished"]:
            lines.append(f"{row['strategy']}: {row['unfinished']} tasks never came to their end")
    return lines
