"""``rms queue``, in the format of squeue, and ``rms show``, with all facts about a job."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import time
from collections.abc import Callable, Mapping

from rms.client.commands import jobs
from rms.client.connection import server_address
from rms.client.status import RESIZE_HEADS, job_facts, resize_cells
from rms.formats.energy import as_json
from rms.formats.values import fold_ids, fold_slots
from rms.wire.terminal import (
    JOB_IDS,
    CommandError,
    columns,
    completed_by,
    printable,
    publish,
    slurm_duration,
)
from rms.wire.users import ALIVE, SHORT_STATES, JobRow, JobSelection

COLUMNS = "ijuTmMlDsR"
"""Fields of the default table."""

ME = "--me"


def add_queue(command: argparse.ArgumentParser) -> None:
    add_filters(command)
    fields = ", ".join(f"%%{letter} {head}" for letter, (head, _) in FIELDS.items())
    command.add_argument(
        "-o",
        "--format",
        metavar="TEXT",
        help=f"format of a line, as of squeue: {fields}; %%8i is 8 wide, %%.8i to the right",
    )
    command.add_argument("--noheader", action="store_true", help="omit the header line")


def add_ids(command: argparse.ArgumentParser, nargs: str | None = None) -> None:
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
    """``rms queue``: pending and running jobs; pending tasks of an array share a row."""
    form = arguments.format
    for place in _PLACE.finditer(form or ""):
        if place[3] not in FIELDS:
            fields = ", ".join(f"%{letter}" for letter in FIELDS)
            raise CommandError(f"--format: expected fields of {fields}, got {place[0]!r}")
    server = server_address(arguments.server, os.environ)
    wanted = selection(arguments)
    rows = jobs(server, wanted.id, state=wanted.state or ALIVE, name=wanted.name, user=wanted.user)
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
    publish(arguments.json, as_json(rows), lines[arguments.noheader :])
    return 0


# --- fields and formats --------------------------------------------------------------------------


def _where(job: JobRow) -> str:
    if job.start_s is not None and job.end_s is None:
        return fold_slots(job.nodes)
    return f"({job.reason})" if job.reason else ""


def _date(at_s: float | None) -> str:
    return "N/A" if at_s is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _run_s(job: JobRow) -> float:
    if job.start_s is None:
        return 0.0
    return (time.time() if job.end_s is None else job.end_s) - job.start_s


def _limit(job: JobRow, used_s: float = 0.0) -> str:
    return "UNLIMITED" if job.limit_s is None else slurm_duration(job.limit_s - used_s)


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
    "M": ("TIME", lambda name, job: slurm_duration(_run_s(job))),
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


def _fill(form: str, values: Mapping[str, str]) -> str:
    """Return a format with values in the places of its fields."""

    def put(place: re.Match[str]) -> str:
        right, width, letter = place.groups()
        text = printable(values[letter])
        if not width:
            return text
        return (text.rjust if right else text.ljust)(int(width))[: int(width)]

    return _PLACE.sub(put, form)


add_show = add_ids


def show(arguments: argparse.Namespace) -> int:
    """``rms show ID``: the facts about one or several jobs, and their resizes."""
    rows = jobs(server_address(arguments.server, os.environ), arguments.id)
    lines = [line for job in rows for line in ("", *job_lines(job))]
    publish(arguments.json, as_json(rows), lines[1:])
    return 0


def job_lines(job: JobRow) -> list[str]:
    """Return the facts about a job, one in a line, and a table of its resizes."""
    lines = columns(("JOB", printable(f"{job.id} {job.name}".rstrip())), list(job_facts(job)))
    if job.resizes:
        rows = [[str(n), *resize_cells(row)] for n, row in enumerate(job.resizes, 1)]
        lines += ["", *columns(("RESIZE", *RESIZE_HEADS), rows)]
    return lines
