"""``rms simulate``: a workload or a trace on the virtual clock."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from rms.core.events import NodeDown, NodeUp
from rms.core.model import JobSpec, Mode, Site
from rms.core.policies import PolicyError, named
from rms.formats.config import FileError, read_cluster, read_workload
from rms.formats.joblog import JobLog, Unit, log_lines, read_log
from rms.formats.sacct import COMMAND
from rms.formats.swf import read_trace, write_trace
from rms.sim.run import chosen, figures, rows, simulated, write_rows
from rms.sim.simulator import Passes, failing
from rms.wire.terminal import check_writable, publish, refuse_on

PASSES = """after every event, submissions before all else of their time; once an instant; after
every event, submissions after all else"""


def add_simulate(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms simulate``."""
    add = command.add_argument
    add("--workload", type=Path, metavar="FILE.toml")
    add("--trace", type=Path, metavar="FILE.swf[.gz]")
    add(
        "--sacct",
        type=Path,
        nargs="+",
        metavar="FILE[.gz]",
        help=f"a cluster's accounting, as printed by: {COMMAND.replace('%', '%%')}",
    )
    add("--by", choices=get_args(Unit), default="nodes", help="what a size of --sacct counts")
    add("--cluster", type=Path, metavar="FILE.toml")
    add(
        "--processors",
        type=int,
        metavar="P",
        help="default: the trace's, or the most that jobs of --sacct held at once",
    )
    add("--policy", default="array-share", metavar="NAME|FILE.toml")
    add("--mode", metavar="MODE")
    add("--order", choices=("fcfs", "sjbf"), help="of the jobs behind the first waiting one")
    add("--estimates", choices=("requested", "exact"))
    add("--passes", choices=get_args(Passes), default="per-event", help=PASSES)
    add("--per-job", type=Path, metavar="OUT.csv")
    add("--malleable", metavar="PCT[,PCT...]", help="make these shares of a trace's jobs malleable")
    add("--serial", type=float, default=0.05, metavar="F", help="their share that is not parallel")
    add("--mtbf", type=float, metavar="H", help="each node fails that often")
    add("--repair", type=float, default=1.0, metavar="H", help="and is back after")
    add("--seed", type=int, default=1, metavar="X", help="of the failures")
    add("--figure", type=Path, metavar="FILE.png", help="of --malleable")
    add("--out", type=Path, metavar="OUT.swf", help="the schedule as a trace")


def simulate(arguments: argparse.Namespace) -> int:
    """``rms simulate``: a workload or a trace on a virtual clock."""
    with refuse_on(FileError, PolicyError):
        return _simulate(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    targets = (
        (arguments.json, "--json"),
        (arguments.per_job, "--per-job"),
        (arguments.out, "--out"),
        (arguments.figure, "--figure"),
    )
    for target, option in targets:
        problem = check_writable(target, option)
        if problem is not None:
            raise FileError(problem)
    _refuse_unused(arguments)
    specs, site, notes = _inputs(arguments)
    if arguments.malleable is not None:
        return _malleable(arguments, specs, site)
    policy = chosen(
        named(arguments.policy),
        counted=arguments.cluster is None,
        ahead=not any(spec.resize_points_known for spec in specs),
        order=arguments.order,
        estimates=arguments.estimates,
        passes=arguments.passes,
    )
    failures = _failures(arguments, site, specs)
    with ProgressBar(len(specs), quiet=arguments.json == "-") as progress:
        simulation, wall_s = simulated(
            specs,
            site,
            policy,
            passes=arguments.passes,
            progress=progress,
            failures=failures,
        )
    result = figures(simulation, specs, policy, wall_s) | notes
    if arguments.per_job is not None:
        write_rows(arguments.per_job, rows(simulation, specs))
    if arguments.out is not None:
        ended = simulation.engine.state.ended
        note = f"rms simulate, policy {policy.text}"
        write_trace(arguments.out, (ended[spec.id] for spec in specs), site.nodes, note)
    publish(arguments.json, result, _table(result))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _failures(
    arguments: argparse.Namespace, site: Site, specs: Sequence[JobSpec]
) -> list[NodeDown | NodeUp]:
    """Return the failures that are asked for."""
    if arguments.mtbf is None:
        return []
    if arguments.mtbf <= 0 or arguments.repair < 0:
        raise FileError(f"expected hours above 0 between failures, got {arguments.mtbf}")
    if arguments.cluster is None:
        raise FileError("expected --cluster FILE.toml with --mtbf: counted processors do not fail")
    horizon_s = max(spec.submit_s for spec in specs) + 3600.0 * 24 * 365
    return failing(
        site.nodes,
        mtbf_s=3600.0 * arguments.mtbf,
        repair_s=3600.0 * arguments.repair,
        horizon_s=horizon_s,
        seed=arguments.seed,
    )


def _malleable(arguments: argparse.Namespace, specs: Sequence[JobSpec], site: Site) -> int:
    """Answer what malleability would bring on a trace."""
    from rms.studies.malleability import Change, draw, study, table

    try:
        shares = [float(part) / 100.0 for part in arguments.malleable.split(",")]
        if arguments.trace is None or not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError
    except ValueError:
        raise FileError(
            f"expected --trace and shares in per cent like 0,20,100, got {arguments.malleable!r}"
        ) from None
    if not 0.0 <= arguments.serial < 1.0:
        raise FileError(f"expected a serial share of 0 to below 1, got {arguments.serial}")
    policy = "easy-share" if arguments.policy == "array-share" else arguments.policy
    change = Change(serial=arguments.serial)
    found = study(specs, site, shares, change, policy=policy)
    result = {"trace": arguments.trace.name, "change": change, "rows": found}
    if arguments.figure is not None:
        draw(found, arguments.figure, f"{arguments.trace.name}, policy {policy}")
    publish(arguments.json, msgspec.to_builtins(result), table(found))
    return 0


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Refuse options that would have no effect.

    Raises:
        FileError: there is one.
    """
    if arguments.malleable is None:
        if arguments.figure is not None:
            raise FileError("expected --malleable with --figure, which draws its study")
        return
    for option in ("order", "estimates", "per_job", "out", "mtbf"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise FileError(f"expected --malleable or --{name}, got both")
    if arguments.passes != "per-event":
        raise FileError(f"expected --malleable with --passes per-event, got {arguments.passes}")


def _inputs(arguments: argparse.Namespace) -> tuple[Sequence[JobSpec], Site, dict[str, Any]]:
    given = [arguments.trace, arguments.sacct, arguments.workload]
    if sum(each is not None for each in given) != 1:
        raise FileError("expected one of --trace FILE.swf, --sacct FILE and --workload FILE.toml")
    if arguments.mode is not None and arguments.mode not in list(Mode):
        raise FileError(f"expected a mode of {', '.join(Mode)}, got {arguments.mode!r}")
    if arguments.cluster is not None and arguments.processors is not None:
        raise FileError("expected either --cluster FILE.toml or --processors P, got both")
    if arguments.processors is not None and arguments.processors < 1:
        raise FileError(f"expected at least 1 processor, got {arguments.processors}")
    mode = None if arguments.mode is None else Mode(arguments.mode)
    processors = arguments.processors
    log: JobLog | None = None
    notes: dict[str, Any] = {}
    specs: Sequence[JobSpec]
    if arguments.sacct is not None:
        log = read_log(arguments.sacct, arguments.by)
        specs = [job.spec(mode or Mode.FIXED) for job in log.jobs]
        processors = processors or log.largest
    elif arguments.trace is not None:
        trace = read_trace(arguments.trace, mode=mode or Mode.FIXED)
        specs = trace.specs
        notes = {"skipped_records": trace.skipped, "raised_estimates": trace.raised}
        processors = processors or trace.processors
    else:
        specs = read_workload(arguments.workload, mode, _say)
    if arguments.cluster is not None:
        power = read_cluster(arguments.cluster).power
        site = Site(len(power), power)
    elif processors is not None:
        site = Site(processors)
    else:
        raise FileError("expected --cluster FILE.toml or --processors P, got neither")
    if log is not None:
        notes = {"log": log.figures(site.nodes, arguments.by)}
    return specs, site, notes


class ProgressBar:
    """A progress bar on standard error, where that is a terminal."""

    def __init__(self, total: int, *, quiet: bool = False) -> None:
        self._total, self._quiet = total, quiet or not sys.stderr.isatty()

    def __enter__(self) -> Callable[[int], None] | None:
        """Return what is to be called with the number of jobs that are over."""
        if self._quiet:
            return None
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("jobs", total=self._total)
        every = max(1, self._total // 200)

        def show(done: int) -> None:
            if done % every == 0:
                self._bar.update(task, completed=done)

        return show

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._bar.stop()


def _table(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in result.items():
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        if name.startswith("mean_") or name == "p95_bounded_slowdown":
            text = f"{value:.4f}"
        if name == "log":
            lines += ["", *log_lines(value)]
            continue
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v / 1000:.1f} kJ" for k, v in value.items())
        lines.append(f"{name:22s} {text}")
    return lines
