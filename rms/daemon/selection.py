"""Which jobs a command is about: by id, state, name, user."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping

from rms.core.model import Job, JobId
from rms.core.modes import JobState
from rms.core.state import State
from rms.daemon.context import Context
from rms.formats.ids import IdSelection, parse_id_list
from rms.wire.users import SHORT_STATES, JobRow, JobSelection


class UnknownJobError(ValueError):
    """An id of no job."""


def groups(state: State) -> tuple[Mapping[JobId, Job], ...]:
    """Return all jobs: those that wait, run and are over."""
    return (state.pending, state.too_wide, state.held, state.running, state.ended)


def selected(context: Context, asked: JobSelection) -> dict[JobId, Job]:
    """Return the jobs of which all that is asked for is true.

    Raises:
        UnknownJobError: an id is that of no job.
        ValueError: what is asked for is no id, or no state.
    """
    states = _states(asked.state)
    names = None if asked.name is None else set(asked.name.split(","))
    if asked.user is not None and getpass.getuser() not in asked.user.split(","):
        return {}  # they are all of the daemon's own user
    found = dict(_named(context, asked.id))
    if states is not None:
        found = {job_id: job for job_id, job in found.items() if job.state in states}
    if names is not None:
        notes = {job_id: context.jobs[job_id].note for job_id in found}
        found = {i: job for i, job in found.items() if notes[i].get("name") in names}
    return found


def archived(context: Context, asked: JobSelection) -> list[JobRow]:
    """Return the jobs that have been over for long, are named by an id, and are asked for."""
    if asked.id is None or (
        asked.user is not None and getpass.getuser() not in asked.user.split(",")
    ):
        return []
    states = _states(asked.state)
    names = None if asked.name is None else set(asked.name.split(","))
    found = {row.id: row for part in parse_id_list(asked.id) for row in _archived(context, part)}
    return [
        row
        for row in found.values()
        if (states is None or row.state in states) and (names is None or row.name in names)
    ]


def _archived(context: Context, part: IdSelection) -> list[JobRow]:
    rows = (each.row for each in context.journal.archived(str(part.job)))
    return [row for row in rows if part.matches(row.id)]


def _named(context: Context, ids: str | None) -> Iterator[tuple[JobId, Job]]:
    state = context.state
    if ids is None:
        yield from (entry for group in groups(state) for entry in group.items())
        return
    for part in parse_id_list(ids):
        found = _of(state, part)
        if not found and not _archived(context, part):
            raise UnknownJobError(f"expected the id of a job, got {part}, which is not known")
        yield from found


def _of(state: State, part: IdSelection) -> list[tuple[JobId, Job]]:
    """Return the jobs that an id names; no others are looked at but for those of a whole array."""
    indices = part.indices
    ids = [str(part.job)] if indices is None else [f"{part.job}_{n}" for n in sorted(indices)]
    known = [(JobId(i), job) for i in ids if (job := state.job(JobId(i))) is not None]
    if known or indices is not None:
        return known
    before = f"{part.job}_"
    return [each for group in groups(state) for each in group.items() if each[0].startswith(before)]


def _states(text: str | None) -> set[JobState] | None:
    if text is None or text.upper() == "ALL":
        return None
    found = set[JobState]()
    for given in text.upper().split(","):
        word = SHORT_STATES.get(given, given)
        if word not in list(JobState):
            known = ", ".join(JobState)
            raise ValueError(f"expected states of {known}, or ALL, got {text!r}")
        found.add(JobState(word))
    return found
