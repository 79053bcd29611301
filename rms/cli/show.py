"""``rms show ID``: all that is known of a job, for a person; ``--json`` has it for programs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import msgspec

from rms.cli.queue import add_ids
from rms.client.commands import jobs
from rms.client.connection import server_address
from rms.drawings import clock
from rms.formats.energy import Account, slurm_words
from rms.formats.nodelist import fold_slots
from rms.wire.rows import restart_words
from rms.wire.terminal import columns, printable, publish
from rms.wire.users import JobRow, ResizeRow

RESIZE_HEADS = ("RESIZE", "AT", "STEP", "RANKS", "STRATEGY", "BOOT", "STALL", "MOVED", "ENERGY")


def add_show(command: argparse.ArgumentParser) -> None:
    """Add the argument of ``rms show``."""
    add_ids(command)


def show(arguments: argparse.Namespace) -> int:
    """``rms show ID``: what is known of each of its jobs, and a table of its resizes."""
    rows = jobs(server_address(arguments.server, os.environ), arguments.id)
    lines: list[str] = []
    for job in rows:
        lines += [""] if lines else []
        lines += known_lines(job)
    publish(arguments.json, msgspec.to_builtins(rows), lines)
    return 0


def known_lines(job: JobRow) -> list[str]:
    """Return all that is known of a job, a line each, and a table of its resizes."""
    lines = columns(("JOB", printable(f"{job.id} {job.name}".rstrip())), list(_known(job)))
    if job.resizes:
        found = [[str(n), *_resize(row)] for n, row in enumerate(job.resizes, 1)]
        lines += ["", *columns(RESIZE_HEADS, found)]
    return lines


def _known(job: JobRow) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each fact that the daemon has about a job.

    A node failure also requeues a job, so a running job shows the cost of a requeue.
    """
    status = "" if job.exit_code is None else f", exit status {job.exit_code}"
    to, how = job.resize_to, job.resizing or "pending"
    yield "state", f"{job.state}{status}" + ("" if to is None else f", resize to {to}: {how}")
    if job.reason:
        yield "reason", job.reason
    if job.limit_s is not None:
        yield "time limit", elapsed(job.limit_s)
    yield "submitted", clock(job.submit_s, day=True)
    if job.expected_start_s is not None:
        yield "expected start", clock(job.expected_start_s, day=True)
    if job.start_s is not None:
        yield (
            "started",
            f"{clock(job.start_s, day=True)}, after {elapsed(job.start_s - job.submit_s)}",
        )
    if job.end_s is not None and job.start_s is not None:
        yield "ended", f"{clock(job.end_s, day=True)}, after {elapsed(job.end_s - job.start_s)}"
    elif job.end_s is not None:
        yield "ended", clock(job.end_s, day=True)
    yield "nodes", _nodes(job)
    if job.steps:
        yield "progress", f"step {job.step:,} of {job.steps:,} ({job.step / job.steps:.0%})"
    if job.start_s is not None and job.end_s is None:
        yield "if requeued", restart_words(job.restartable, job.step, job.steps)
    if job.seen:
        speeds = [f"{s.steps / s.seconds:.4g} on {s.nodes}" for s in job.seen if s.seconds > 0.0]
        yield "steps a second", ", ".join(speeds)
    yield "energy", Account.of(job.energy).words
    if by_slurm := slurm_words(job.slurm):
        yield "by Slurm", by_slurm
    for name, listed in (("only on", job.nodelist), ("not on", job.exclude)):
        if listed:
            yield name, ",".join(listed)
    for name in ("account", "answer", "profile", "output", "summary"):
        if value := getattr(job, name):
            yield name, str(value)
    if job.priority:
        yield "priority", f"{job.priority:g}"
    if job.frequency is not None:
        yield "frequency", f"{job.frequency:.0%} of the highest"


def _nodes(job: JobRow) -> str:
    """Return how many nodes a job has, and may have."""
    low, high = job.nodes_min, job.nodes_max
    may = f"{low}" if low == high else f"{low} to {high}"
    if not job.size:
        return f"wants {may}, {job.mode}"
    names = f" ({fold_slots(job.nodes)})" if job.nodes else ""
    return f"{job.size}{names}, {job.mode}" + ("" if low == high else f", may have {may}")


def _resize(row: ResizeRow) -> list[str]:
    energy = "" if row.energy_j is None else f"{row.energy_j:.1f} J"
    if row.saved_j is not None:
        energy += f", {'saves' if row.saved_j >= 0.0 else 'costs'} {abs(row.saved_j):.1f} J later"
    return [
        clock(row.at_s),
        f"{row.step}",
        f"{row.from_ranks} to {row.to_ranks}",
        row.strategy,
        f"{row.boot_s:.2f} s",
        f"{row.stall_s:.3f} s",
        f"{row.bytes / 1e6:.1f} MB",
        energy,
    ]


def elapsed(seconds: float) -> str:
    """Return a length of time in its two largest units: ``3 min 5 s``."""
    if seconds < 59.95:  # what is written as 60.0 s is a minute
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, small, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // small} {rest}"
    return f"{whole // 60} min {whole % 60} s"
