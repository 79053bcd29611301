"""Which jobs a command is about: by id, state, name, user."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping

from rms.core.model.jobs import Job, JobId, JobState
from rms.core.state import State
from rms.daemon.context import Context
from rms.formats.ids import IdSelection, parse_id_list
from rms.wire.users import SHORT_STATES, JobRow, JobSelection


class UnknownJobError(ValueError):
    """An id of no job."""


def groups(state: State) -> tuple[Mapping[JobId, Job], ...]:
    """Return all jobs: those that wait, run and are over."""
    return (state.pending, state.too_wide, state.held, state.running, state.ended)


def selected(context: Context, selection: JobSelection) -> dict[JobId, Job]:
    """Return the jobs that match all filters of a selection.

    Raises:
        UnknownJobError: an id is that of no job.
        ValueError: an id or a state has another form.
    """
    states = _states(selection.state)
    names = None if selection.name is None else set(selection.name.split(","))
    if selection.user is not None and getpass.getuser() not in selection.user.split(","):
        return {}  # they are all of the daemon's own user
    jobs = dict(_named(context, selection.id))
    if states is not None:
        jobs = {job_id: job for job_id, job in jobs.items() if job.state in states}
    if names is not None:
        notes = {job_id: context.jobs[job_id].note for job_id in jobs}
        jobs = {i: job for i, job in jobs.items() if notes[i].get("name") in names}
    return jobs


def archived(context: Context, selection: JobSelection, *, every: bool = False) -> list[JobRow]:
    """Return the archived jobs of a selection: those with its ids.

    Args:
        every: a selection without ids includes all archived jobs.
    """
    others = selection.user is not None and getpass.getuser() not in selection.user.split(",")
    if others or (selection.id is None and not every):
        return []
    states = _states(selection.state)
    names = None if selection.name is None else set(selection.name.split(","))
    if selection.id is None:
        rows = {each.row.id: each.row for each in context.journal.all_archived()}
    else:
        ids = {job_id: None for part in parse_id_list(selection.id) for job_id in _ids(part)}
        found = (each.row for job_id in ids for each in context.journal.archived(job_id))
        rows = {row.id: row for row in found}
    return [
        row
        for row in rows.values()
        if (states is None or row.state in states) and (names is None or row.name in names)
    ]


def _named(context: Context, ids: str | None) -> Iterator[tuple[JobId, Job]]:
    state = context.state
    if ids is None:
        yield from (entry for group in groups(state) for entry in group.items())
        return
    arrays: dict[str, list[tuple[JobId, Job]]] | None = None
    for part in dict.fromkeys(parse_id_list(ids)):
        entries = _of(state, part)
        if not entries and part.indices is None:  # it may be an array
            arrays = _by_array(state) if arrays is None else arrays
            entries = arrays.get(str(part.job), [])
        if not entries and not any(map(context.journal.archived, _ids(part))):
            raise UnknownJobError(f"expected the id of a job, got {part}, which is not known")
        yield from entries


def _of(state: State, part: IdSelection) -> list[tuple[JobId, Job]]:
    """Return the jobs with exactly these ids."""
    ids = map(JobId, _ids(part))
    return [(job_id, job) for job_id in ids if (job := state.job(job_id)) is not None]


def _ids(part: IdSelection) -> list[str]:
    """Return the ids of the job or the tasks that an id names."""
    job, indices = part.job, part.indices
    return [str(job)] if indices is None else [f"{job}_{index}" for index in sorted(indices)]


def _by_array(state: State) -> dict[str, list[tuple[JobId, Job]]]:
    """Return the tasks of each array."""
    arrays: dict[str, list[tuple[JobId, Job]]] = {}
    for group in groups(state):
        for job_id, job in group.items():
            arrays.setdefault(job_id.partition("_")[0], []).append((job_id, job))
    return arrays


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
