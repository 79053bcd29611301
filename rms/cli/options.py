"""Options that several commands share: engine and nodes, and the inputs of ``rms simulate``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, Site
from rms.core.policies import DEFAULT, POLICIES
from rms.formats.config import LABELS, FileError, parse_criteria, read_cluster, read_workload
from rms.formats.prices import Kind, Prices
from rms.formats.profiles import folder
from rms.launch.local import this_machine
from rms.wire.files import state_folder
from rms.wire.terminal import CommandError, completed_by

if TYPE_CHECKING:
    from rms.formats.joblog import JobLog

ENGINES = ("local", "slurm-pilot", "slurm")
ON_DEMAND = "pilot on demand"
"""The engine of ``rms pilot``."""

HOSTS = "hosts"
"""The engine of hosts that a remote shell reaches: of a cluster file, Grid Engine or PBS."""


def add_engine(add: Callable[..., argparse.Action]) -> None:
    text = f"source of the nodes: {', '.join(ENGINES)} (default: local, this machine)"
    completed_by(add("--engine", default="local", metavar="NAME", help=text), lambda: ENGINES)


def add_policy(add: Callable[..., argparse.Action]) -> None:
    text = f"scheduling policy: {', '.join(POLICIES)} or a file (default: {DEFAULT})"
    policy = add("--policy", default=DEFAULT, metavar="NAME|FILE.toml", help=text)
    completed_by(policy, lambda: POLICIES)


def cheap_by(stated: Kind | None, prices: Prices | None) -> Kind:
    """Return what cheap hours are cheap in: as stated, else the price where there is one.

    Raises:
        CommandError: it is stated, and the prices have none.
    """
    if prices is None:
        if stated is not None:
            raise CommandError(f"expected --prices FILE with --cheap-by {stated}, got none")
        return "price"
    kind: Kind = stated or ("price" if prices.price is not None else "co2")
    if prices.series(kind) is None:
        has = "co2" if kind == "price" else "price"
        raise CommandError(f"expected --cheap-by {has}, which {prices.source} has, got {kind}")
    return kind


def check_engine(name: str) -> None:
    """Refuse an unknown engine."""
    if name not in ENGINES:
        raise CommandError(f"expected an engine of {', '.join(ENGINES)}, got {name!r}")


def local_nodes(nodes: int | None) -> int:
    """Return how many cores serve as nodes: at most those of this machine."""
    most = len(this_machine().names)
    if nodes is not None and not 1 <= nodes <= most:
        raise CommandError(
            f"expected 1 to {most} nodes, as this machine has cores, got {nodes}: an "
            "oversubscribed timing is no result"
        )
    return most if nodes is None else nodes


# --- Inputs of rms simulate: a workload, a trace, or a cluster's accounting -----------------------

SHARED_FROM = 0.05
"""Share of jobs with a part of a node from which a line reports that nodes seem to be shared."""


class Workload(msgspec.Struct, frozen=True):
    """Jobs of a file, and their cluster; ``notes`` are printed with the figures of the result."""

    name: str
    specs: Sequence[JobSpec]
    site: Site
    notes: dict[str, Any]
    log: JobLog | None = None
    names: Mapping[JobId, str] = {}


def read_inputs(
    arguments: argparse.Namespace, mode: Mode | None, *, shared: bool = False
) -> Workload:
    """Read the inputs of ``rms simulate``.

    Args:
        mode: the mode of all jobs; None for those of the files.
        shared: whether jobs share nodes, so that sizes count slots.
    """
    inputs = [arguments.trace, arguments.sacct, arguments.workload]
    if sum(value is not None for value in inputs) != 1:
        raise FileError(
            "expected one of --trace FILE.swf, --sacct FILE and --workload FILE.toml or FILE.csv"
        )
    if arguments.by != "nodes" and arguments.sacct is None:
        raise FileError(f"expected --sacct with --by {arguments.by}")
    if arguments.cluster is not None and arguments.processors is not None:
        raise FileError("expected either --cluster FILE.toml or --processors P, got both")
    processors = arguments.processors
    log: JobLog | None = None
    notes: dict[str, Any] = {}
    names: dict[JobId, str] = {}
    specs: Sequence[JobSpec]
    if arguments.sacct is not None:
        from rms.formats.joblog import read_log

        log = read_log(arguments.sacct, arguments.by)
        specs = [job.spec(mode or Mode.FIXED) for job in log.jobs]
        processors = processors or log.largest
    elif arguments.trace is not None:
        from rms.formats.swf import read_trace

        trace = read_trace(arguments.trace, mode=mode or Mode.FIXED)
        specs = trace.specs
        notes = {"skipped_records": trace.skipped, "raised_estimates": trace.raised}
        processors = processors or trace.processors
    else:
        base = folder(os.environ, state_folder(os.environ))
        note = partial(print, file=sys.stderr)
        specs = read_workload(arguments.workload, mode, note, base, names)
    if arguments.cluster is not None:
        file = read_cluster(arguments.cluster)
        site = Site(len(file.power), file.power, levels=file.levels)
        if shared:
            site = Site(sum(file.slots), file.power, shared=file.shared, levels=file.levels)
    elif shared:
        raise FileError("expected --cluster FILE.toml with a policy of shared nodes, got none")
    elif processors is not None:
        site = Site(processors)
    else:
        raise FileError("expected --cluster FILE.toml or --processors P, got neither")
    if log is not None:
        notes = {"log": log.figures(site.nodes, arguments.by)}
    files = arguments.sacct or [arguments.trace or arguments.workload]
    name = files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    return Workload(name, specs, site, notes, log, names)


def candidates(text: str | None, work: Workload) -> frozenset[JobId] | None:
    """Return the jobs that ``--malleable-jobs`` selects, None for all."""
    if text is None:
        return None
    criteria = parse_criteria(text)
    if work.log is None:
        if criteria.labels:
            names = " and ".join(criteria.labels)
            raise FileError(f"expected --sacct with {names} in --malleable-jobs, got a trace")
        match = criteria.match
        jobs = [spec.id for spec in work.specs if match(spec.preferred, spec.run_s or 0.0, {})]
    else:
        jobs = []
        for job in work.log.jobs:
            labels = {kind: getattr(job, kind) for kind in LABELS}
            if criteria.match(job.size, job.run_s, labels):
                jobs.append(JobId(job.id))
    if not jobs:
        raise FileError(f"expected --malleable-jobs that some jobs match, got {text!r}")
    return frozenset(jobs)


def log_lines(figures: dict[str, Any]) -> list[str]:
    """Return :meth:`JobLog.figures` as lines of text."""
    by, size, most = figures["sizes"], figures["cluster"], figures["largest_held_at_once"]
    lines = [
        f"the log: {figures['jobs']} jobs that ran, the first submitted at {figures['begin']}; "
        f"cluster of {size} {by}, the jobs held {most} at once at most",
        f"  as it was: mean wait {figures['mean_wait_s']:.0f} s, turnaround "
        f"{figures['mean_turnaround_s']:.0f} s, bounded slowdown "
        f"{figures['mean_bounded_slowdown']:.2f}, utilization {figures['utilization']:.4f}",
    ]
    lines += [
        f"  {count} {_WORDS.get(name, name.replace('_', ' '))}"
        for name, count in figures["counts"].items()
    ]
    lines.append(
        "  waits in the log also come from priorities, partitions, reservations and users' limits, "
        "which are not in it: compare simulations with one another"
    )
    part = figures["share_of_jobs_on_parts_of_nodes"]
    if by == "nodes" and part > SHARED_FROM:
        node_time = figures["share_of_node_time_on_parts_of_nodes"]
        lines.append(
            f"  {100 * part:.0f} % of the jobs ({100 * node_time:.0f} % of the node time) had less "
            "than half of their nodes' CPUs: if nodes are shared here, --by cpus is closer"
        )
    return lines


_WORDS = {
    "steps": "steps of jobs (.batch, .extern, .0) left out",
    "cut_short_lines": "last lines without an end left out",
    "repeated": "records that occur twice, as in overlapping files, taken once",
    "waiting": "jobs that were still waiting left out",
    "cancelled_before_start": "jobs that never started left out",
    "still_running": "jobs that were still running left out",
    "ended_before_they_started": "records with an end before their start left out",
    "heterogeneous": "heterogeneous jobs taken as one job, of all their nodes",
    "resizes_in_the_log": "resizes in the log: such a job gets its mean size",
    "requeued": "attempts of requeued jobs, all taken as jobs",
    "clock_changes": "run times across a change of clocks, taken as stated in Elapsed",
    "suspended": "jobs that were suspended: the time suspended is no run time",
    "held_back": "jobs held back by a dependency, hold or begin time: they wait from then on",
    "without_a_limit": "jobs without a time limit: they get the longest of their partition",
    "raised_limits": "jobs beyond their limit: the limit raised to the run time",
}
