"""``rms queue``: the jobs that wait or run, as squeue shows them."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rms.client.commands import jobs
from rms.client.connection import server_address
from rms.drawings import clock
from rms.formats.energy import Account, slurm_words
from rms.formats.values import fold_ids, fold_slots
from rms.wire.rows import restart_words
from rms.wire.terminal import (
    JOB_IDS,
    CommandError,
    columns,
    completed_by,
    printable,
    publish,
)
from rms.wire.users import ALIVE, SHORT_STATES, JobRow, JobSelection, ResizeRow

COLUMNS = "ijuTmMlDsR"
"""Fields of the default table."""

ME = "--me"


def add_queue(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms queue``."""
    add_filters(command)
    fields = ", ".join(f"%%{letter} {head}" for letter, (head, _) in FIELDS.items())
    command.add_argument(
        "-o",
        "--format",
        metavar="TEXT",
        help=f"a line of each job, as squeue's: {fields}; %%8i is 8 wide, %%.8i to the right",
    )
    command.add_argument("--noheader", action="store_true", help="omit the header line")


def add_ids(command: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument ``ID``."""
    ids = command.add_argument("id", nargs=nargs, metavar="ID", help="like 7, 7_3 or 7_[1-3]")
    completed_by(ids, JOB_IDS)


def add_filters(command: argparse.ArgumentParser) -> None:
    """Add the arguments that select jobs: ids and filters, which are combined with *and*."""
    add_ids(command, "*")
    listed = command.add_argument("-j", "--jobs", metavar="ID,...", help="ids, comma-separated")
    completed_by(listed, JOB_IDS)
    state = command.add_argument(
        "-t", "--state", metavar="STATE,...", help="as PENDING,RUNNING or PD,R; or all"
    )
    completed_by(state, lambda: [*SHORT_STATES.values(), "all"])
    command.add_argument("-n", "--name", metavar="NAME,...", help="names of jobs")
    users = command.add_mutually_exclusive_group()
    users.add_argument(
        "-u", "--user", metavar="USER,...", help="users; the daemon's owner has all jobs"
    )
    users.add_argument(
        "--me", dest="user", action="store_const", const=ME, help="jobs of this user"
    )


def selection(arguments: argparse.Namespace) -> JobSelection:
    """Return the selection that ids and filters specify."""
    ids = ",".join([*arguments.id, *([arguments.jobs] if arguments.jobs else [])])
    user = getpass.getuser() if arguments.user is ME else arguments.user
    return JobSelection(ids or None, arguments.state, arguments.name, user)


def queue(arguments: argparse.Namespace) -> int:
    """``rms queue``: jobs that wait or run, array tasks that wait folded into one row."""
    form = arguments.format
    _check(form or "")
    server = server_address(arguments.server, os.environ)
    wanted = selection(arguments)
    state = ALIVE if wanted.state is None else wanted.state
    rows = jobs(server, wanted.id, state=state, name=wanted.name, user=wanted.user)
    waiting: dict[tuple[str, str], list[JobRow]] = {}
    shown: list[tuple[str, JobRow]] = []
    for job in rows:
        if job.state == "PENDING" and "_" in job.id:
            waiting.setdefault((job.id.partition("_")[0], job.reason), []).append(job)
        else:
            shown.append((job.id, job))
    for group in waiting.values():
        shown += [(name, group[0]) for name in fold_ids(job.id for job in group)]
    if form is None:
        heads, values = zip(*(FIELDS[letter] for letter in COLUMNS), strict=True)
        lines = columns(heads, [[value(name, job) for value in values] for name, job in shown])
    else:
        lines = [_fill(form, {letter: head for letter, (head, _) in FIELDS.items()})]
        for name, job in shown:
            cells = {letter: value(name, job) for letter, (_, value) in FIELDS.items()}
            lines.append(_fill(form, cells))
    publish(arguments.json, msgspec.to_builtins(rows), lines[arguments.noheader :])
    return 0


def _where(job: JobRow) -> str:
    if job.state == "RUNNING":
        return fold_slots(job.nodes)
    return f"({job.reason})" if job.reason else ""


# --- a format of the user's own ------------------------------------------------------------------


def _date(at_s: float | None) -> str:
    return "N/A" if at_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _run_s(job: JobRow) -> float:
    """Return how long a job has run."""
    if job.start_s is None:
        return 0.0
    return (time.time() if job.end_s is None else job.end_s) - job.start_s


def _limit(job: JobRow, used_s: float = 0.0) -> str:
    return "UNLIMITED" if job.limit_s is None else hours(job.limit_s - used_s)


def hours(length_s: float) -> str:
    """Return a length of time as squeue writes it: ``2-03:04:05``, ``3:04:05``, ``4:05``."""
    minutes, seconds = divmod(max(0, int(length_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


SHORT = {state: short for short, state in SHORT_STATES.items()}

FIELDS: dict[str, tuple[str, Callable[[str, JobRow], str]]] = {
    "i": ("JOBID", lambda name, job: name),
    "j": ("NAME", lambda name, job: job.name),
    "T": ("STATE", lambda name, job: job.state),
    "t": ("ST", lambda name, job: SHORT[job.state]),
    "D": ("NODES", lambda name, job: job.nodes_words),
    "N": ("NODELIST", lambda name, job: fold_slots(job.nodes)),
    "R": ("NODELIST(REASON)", lambda name, job: _where(job)),
    "r": ("REASON", lambda name, job: job.reason or "None"),
    "a": ("ACCOUNT", lambda name, job: job.account or "None"),
    "Q": ("PRIORITY", lambda name, job: "" if job.priority is None else f"{job.priority:.0f}"),
    "u": ("USER", lambda name, job: job.user),
    "m": ("MODE", lambda name, job: job.mode),
    "M": ("TIME", lambda name, job: hours(_run_s(job))),
    "l": ("TIME_LIMIT", lambda name, job: _limit(job)),
    "L": ("TIME_LEFT", lambda name, job: _limit(job, _run_s(job))),
    "s": ("STEP", lambda name, job: f"{job.step}/{job.steps}" if job.steps else ""),
    "V": ("SUBMIT_TIME", lambda name, job: _date(job.submit_s)),
    "S": ("START_TIME", lambda name, job: _date(job.start_s or job.expected_start_s)),
    "e": ("END_TIME", lambda name, job: _date(job.end_s)),
    "E": ("ENERGY_J", lambda name, job: f"{job.energy_j:.1f}"),
}
"""Fields by squeue's letters, except ``%E``: energy so far, ``%m``: mode and ``%s``: step."""

_PLACE = re.compile(r"%(?:(\.?)([0-9]{1,3}))?(.|$)")


def _check(form: str) -> None:
    for place in _PLACE.finditer(form):
        if place[3] not in FIELDS:
            fields = ", ".join(f"%{letter}" for letter in FIELDS)
            raise CommandError(f"--format: expected fields of {fields}, got {place[0]!r}")


def _fill(form: str, values: Mapping[str, str]) -> str:
    """Return a format with values in the places of its fields."""

    def put(place: re.Match[str]) -> str:
        right, width, letter = place.groups()
        text = printable(values[letter])
        if not width:
            return text
        return (text.rjust if right else text.ljust)(int(width))[: int(width)]

    return _PLACE.sub(put, form)


# FUSED rms.cli.queue: ``rms show ID``: all that is known of a job, for a person; ``--json`` has it for programs.

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
