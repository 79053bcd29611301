"""``rms simulate``: a workload or a trace on the virtual clock, and its figures."""

from __future__ import annotations

import argparse
import csv
import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rms.core.model import Job, JobSpec, Mode, NodePower, Site
from rms.core.policies import Policy, PolicyError, adjusted, named
from rms.formats.config import FileError, read_cluster, read_workload
from rms.formats.swf import read_trace, write_trace
from rms.sim.simulator import Passes, Simulation, failing
from rms.wire.terminal import check_writable, emit_json

BALANCE = 1e-9
"""The books may differ by this much of themselves, summed in two ways."""

COLUMNS = ("job", "submit_s", "start_s", "end_s", "nodes", "energy_j")


class BalanceError(RuntimeError):
    """The energy books do not balance: a defect of the program."""


def simulate(
    specs: Sequence[JobSpec],
    power: Sequence[NodePower] | Site,
    policy: Policy,
    *,
    passes: Passes = "per-event",
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the JSON of ``rms simulate`` and its rows per job (CLI.md)."""
    simulation, wall_s = simulated(specs, power, policy, passes=passes, progress=progress)
    return figures(simulation, specs, policy, wall_s), rows(simulation, specs)


def simulated(
    specs: Sequence[JobSpec],
    power: Sequence[NodePower] | Site,
    policy: Policy,
    *,
    passes: Passes = "per-event",
    progress: Callable[[int], None] | None = None,
    failures: Sequence[Any] = (),
) -> tuple[Simulation, float]:
    """Run a simulation to its end; return it and the seconds it took."""
    begun = time.perf_counter()
    # Millions of small objects live to the end: looking for cycles among them is for nothing.
    collects = gc.isenabled()
    gc.disable()
    try:
        simulation = Simulation(
            specs,
            power,
            policy,
            passes=passes,
            record=False,
            progress=progress,
            failures=failures,
        )
        simulation.run()
    finally:
        if collects:
            gc.enable()
    wall_s = time.perf_counter() - begun
    for job_id in simulation.engine.state.pending:
        waits = simulation.engine.explain(job_id)
        reason = "" if waits is None else waits.reason
        raise FileError(f"expected every job to start, got job {job_id} waiting for ever: {reason}")
    ledger = simulation.ledger
    gap = abs(ledger.owned_j - ledger.cluster_j)
    if gap > BALANCE * max(1.0, ledger.cluster_j):
        raise BalanceError(f"expected energies to balance, got a difference of {gap:g} J")
    return simulation, wall_s


def figures(
    simulation: Simulation, specs: Sequence[JobSpec], policy: Policy, wall_s: float
) -> dict[str, Any]:
    """Return the figures of a simulation that is over."""
    ledger, nodes = simulation.ledger, simulation.engine.state.nodes
    jobs = list(simulation.engine.state.ended.values())
    run = [job for job in jobs if job.start_s is not None]
    slowdowns = sorted(bounded_slowdown(job) for job in run)
    first = min((spec.submit_s for spec in specs), default=0.0)
    makespan = max((job.end_s or 0.0 for job in run), default=first) - first
    return {
        "policy": policy.name,
        "jobs": len(jobs),
        "refused": len(jobs) - len(run),
        "makespan_s": makespan,
        "mean_wait_s": fmean((j.start_s or 0.0) - j.spec.submit_s for j in run) if run else 0.0,
        "mean_bounded_slowdown": fmean(slowdowns) if run else 0.0,
        "p95_bounded_slowdown": slowdowns[int(0.95 * (len(run) - 1))] if run else 0.0,
        "utilization": ledger.busy_node_s / (nodes * makespan) if makespan else 0.0,
        "energy_j": {
            "busy": sum(ledger.busy_j.values()),
            "idle": ledger.idle_j,
            "off": ledger.off_j,
            "boot": ledger.boot_j,
            "cluster": ledger.cluster_j,
        },
        "power_source": "model",
        "resizes": simulation.resized,
        "restarts": simulation.failed,
        "decisions": simulation.decided,
        "wall_s": wall_s,
        "jobs_per_s": len(jobs) / wall_s if wall_s else 0.0,
        "peak_rss_mib": peak_rss_mib(),
    }


def rows(simulation: Simulation, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
    """Return one row per job, in the order of the workload; ``nodes`` is its last size."""
    busy_j, ended = simulation.ledger.busy_j, simulation.engine.state.ended
    return [
        {
            "job": spec.id,
            "submit_s": spec.submit_s,
            "start_s": ended[spec.id].start_s,
            "end_s": ended[spec.id].end_s,
            "nodes": ended[spec.id].size,
            "energy_j": busy_j.get(spec.id, 0.0),
        }
        for spec in specs
        if spec.id in ended
    ]


def bounded_slowdown(job: Job) -> float:
    """Return max(1, (wait + run) / max(run, 10 s))."""
    start, end = job.start_s or 0.0, job.end_s or 0.0
    return max(1.0, (end - job.spec.submit_s) / max(end - start, 10.0))


def peak_rss_mib() -> float:
    """Return the most memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20


# --- the command -------------------------------------------------------------------------------


def command(arguments: argparse.Namespace) -> int:
    """Run ``rms simulate``.

    Raises:
        FileError, PolicyError: what was given cannot be run; nothing has been written.
    """
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
    specs, site, notes = _inputs(arguments)
    if arguments.malleable is not None:
        return _malleable(arguments, specs, site)
    policy = chosen(
        named(arguments.policy),
        counted=arguments.cluster is None,
        ahead=not any(spec.resize_every_s for spec in specs),
        order=arguments.order,
        estimates=arguments.estimates,
        passes=arguments.passes,
    )
    failures = _failures(arguments, site, specs)
    with bar(len(specs), quiet=arguments.json == "-") as progress:
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
    if arguments.json is not None:
        emit_json(arguments.json, result)
    if arguments.json != "-":
        print("\n".join(_table(result)))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _failures(arguments: argparse.Namespace, site: Site, specs: Sequence[JobSpec]) -> list[Any]:
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
    if arguments.json is not None:
        emit_json(arguments.json, msgspec.to_builtins(result))
    if arguments.json != "-":
        print("\n".join(table(found)))
    return 0


def _inputs(arguments: argparse.Namespace) -> tuple[Sequence[JobSpec], Site, dict[str, Any]]:
    if (arguments.trace is None) == (arguments.workload is None):
        raise FileError("expected either --trace FILE.swf or --workload FILE.toml")
    if arguments.mode is not None and arguments.mode not in list(Mode):
        raise FileError(f"expected a mode of {', '.join(Mode)}, got {arguments.mode!r}")
    if arguments.cluster is not None and arguments.processors is not None:
        raise FileError("expected either --cluster FILE.toml or --processors P, got both")
    if arguments.processors is not None and arguments.processors < 1:
        raise FileError(f"expected at least 1 processor, got {arguments.processors}")
    mode = None if arguments.mode is None else Mode(arguments.mode)
    processors, notes = arguments.processors, {}
    specs: Sequence[JobSpec]
    if arguments.trace is not None:
        trace = read_trace(arguments.trace, mode=mode or Mode.FIXED)
        specs = trace.specs
        notes = {"skipped_records": trace.skipped, "raised_estimates": trace.raised}
        processors = processors or trace.processors
    else:
        specs = read_workload(arguments.workload, mode, _say)
    if arguments.cluster is not None:
        power = read_cluster(arguments.cluster).power
        return specs, Site(len(power), power), notes
    if processors is None:
        raise FileError("expected --cluster FILE.toml or --processors P, got neither")
    return specs, Site(processors), notes


def chosen(
    policy: Policy,
    *,
    counted: bool,
    order: str | None = None,
    estimates: str | None = None,
    passes: Passes = "per-event",
    ahead: bool = True,
) -> Policy:
    """Return a policy as the options of ``rms simulate`` want it.

    Args:
        counted: processors are all alike, so nodes are counted and not placed (unless a cap is
            to hold for each). With one pass per
            event a start may then come before the end, of the same instant, that makes it
            possible.
        ahead: whether it may: not where jobs are resized, whose ends are not their limits'.

    Raises:
        PolicyError: it has no such choice.
    """
    changes: dict[str, dict[str, Any]] = {}
    if order is not None:
        changes["admission"] = {"tail": "shortest" if order == "sjbf" else "queue"}
    if estimates is not None:
        changes.setdefault("admission", {})["estimates"] = estimates
    if counted and not hasattr(policy.placement, "cap_w"):
        ahead = ahead and passes == "per-event" and hasattr(policy.admission, "estimates")
        changes["placement"] = {"part": "count", "ahead": ahead}
    try:
        return adjusted(policy, **changes) if changes else policy
    except PolicyError as error:
        raise PolicyError(
            f"policy {policy.name} has no choice of order or estimates: {error}"
        ) from None


class bar:  # noqa: N801 - used as a function
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


def write_rows(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """Write the rows per job as CSV, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    part.replace(path)


def _table(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in result.items():
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        if name.startswith("mean_") or name == "p95_bounded_slowdown":
            text = f"{value:.4f}"
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v / 1000:.1f} kJ" for k, v in value.items())
        lines.append(f"{name:22s} {text}")
    return lines
