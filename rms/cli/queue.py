"""``rms queue``: the jobs that wait or run, as squeue shows them."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Mapping

import msgspec

from rms.client.commands import jobs
from rms.client.connection import server_address
from rms.formats.ids import fold_ids
from rms.formats.nodelist import fold_slots
from rms.wire.terminal import CommandError, columns, printable, publish
from rms.wire.users import ALIVE, SHORT_STATES, JobRow

HEADS = ["JOBID", "NAME", "STATE", "MODE", "NODES", "STEP", "NODELIST(REASON)"]


def add_queue(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms queue``."""
    command.add_argument("id", nargs="?", help="ids with commas between: 7,8_[1-3]")
    add_filters(command)
    known = ", ".join(f"%%{letter} {head}" for letter, (head, _) in FIELDS.items())
    command.add_argument(
        "--format",
        metavar="TEXT",
        help=f"a line of each job, as squeue's: {known}; %%8i is 8 wide, %%.8i to the right",
    )


def add_filters(command: argparse.ArgumentParser) -> None:
    """Add what selects jobs beside their ids."""
    command.add_argument("--state", metavar="STATE,...", help="as PENDING,RUNNING or PD,R; or all")
    command.add_argument("--name", metavar="NAME,...")
    command.add_argument("--user", metavar="NAME,...", help="the daemon's owner has all jobs")


def queue(arguments: argparse.Namespace) -> int:
    """``rms queue``: jobs that wait or run, array tasks that wait folded into one row."""
    form = arguments.format
    _check(form or "")
    server = server_address(arguments.server, os.environ)
    state = ALIVE if arguments.state is None else arguments.state
    rows = jobs(server, arguments.id, state=state, name=arguments.name, user=arguments.user)
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
        lines = columns(HEADS, [_row(name, job) for name, job in shown])
    else:
        lines = [_fill(form, {letter: head for letter, (head, _) in FIELDS.items()})]
        for name, job in shown:
            values = {letter: value(name, job) for letter, (_, value) in FIELDS.items()}
            lines.append(_fill(form, values))
    publish(arguments.json, msgspec.to_builtins(rows), lines)
    return 0


def _row(name: str, job: JobRow) -> list[str]:
    return [
        name,
        job.name,
        job.state,
        job.mode,
        str(job.size or job.nodes_max),
        f"{job.step}/{job.steps}" if job.steps else "",
        _where(job),
    ]


def _where(job: JobRow) -> str:
    if job.state == "RUNNING":
        return fold_slots(job.nodes)
    return f"({job.reason})" if job.reason else ""


# --- a format of the user's own ------------------------------------------------------------------


def _date(at_s: float | None) -> str:
    return "N/A" if at_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _run_time(job: JobRow) -> str:
    """Return how long a job has run."""
    if job.start_s is None:
        return hours(0.0)
    return hours((time.time() if job.end_s is None else job.end_s) - job.start_s)


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
    "D": ("NODES", lambda name, job: str(job.size or job.nodes_max)),
    "N": ("NODELIST", lambda name, job: fold_slots(job.nodes)),
    "R": ("NODELIST(REASON)", lambda name, job: _where(job)),
    "r": ("REASON", lambda name, job: job.reason or "None"),
    "a": ("ACCOUNT", lambda name, job: job.account or "None"),
    "Q": ("PRIORITY", lambda name, job: "" if job.priority is None else f"{job.priority:.0f}"),
    "M": ("TIME", lambda name, job: _run_time(job)),
    "V": ("SUBMIT_TIME", lambda name, job: _date(job.submit_s)),
    "S": ("START_TIME", lambda name, job: _date(job.start_s)),
    "e": ("END_TIME", lambda name, job: _date(job.end_s)),
    "E": ("ENERGY_J", lambda name, job: f"{job.energy_j:.1f}"),
}
"""By squeue's letters; ``%E``, its list of dependencies, is the energy so far."""

_PLACE = re.compile(r"%(?:(\.?)([0-9]{1,3}))?(.|$)")


def _check(form: str) -> None:
    for place in _PLACE.finditer(form):
        if place[3] not in FIELDS:
            known = ", ".join(f"%{letter}" for letter in FIELDS)
            raise CommandError(f"--format: expected fields of {known}, got {place[0]!r}")


def _fill(form: str, values: Mapping[str, str]) -> str:
    """Return a format with values in the places of its fields."""

    def put(place: re.Match[str]) -> str:
        right, width, letter = place.groups()
        text = printable(values[letter])
        if not width:
            return text
        return (text.rjust if right else text.ljust)(int(width))[: int(width)]

    return _PLACE.sub(put, form)
