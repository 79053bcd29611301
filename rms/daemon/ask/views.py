"""Which jobs a command is about: by id, state, name, user."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rms.core.books.spans import MODEL
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import Job, JobId, JobState, Node, sort_key
from rms.core.rules.powercap import expected_w
from rms.core.scheduler.scheduler import repeats
from rms.core.state import State
from rms.daemon.kernels import Tasks
from rms.daemon.nodes.energy import restore_energy
from rms.daemon.restart.recover import forget_archived, known_jobs
from rms.daemon.restart.replay import restored
from rms.daemon.store.archive import energy_rows, priority, stalled, waits_for
from rms.daemon.store.archive import row as row
from rms.daemon.store.context import Context, Settings
from rms.daemon.store.journal import Journal
from rms.formats.values import IdSelection, parse_id_list
from rms.launch.local import LocalLauncher
from rms.wire.users import (
    SHORT_STATES,
    Accounts,
    BooksAnswer,
    HistoryEntry,
    JobRow,
    JobSelection,
    NodeRow,
    PolicyName,
    PowerCapRow,
    Snapshot,
)


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


# FUSED rms.daemon.ask.views: What users' commands see of the daemon; looking changes nothing.

PLANNED = 200
"""Number of waiting jobs whose expected starts are computed."""


def jobs(
    context: Context,
    wanted: Callable[[str], bool] = lambda _: True,
    archived: Iterable[JobRow] = (),
) -> list[JobRow]:
    """Return a row for each wanted job, by rising id.

    Args:
        archived: rows of jobs that have been over for long.
    """
    found = [
        job for each in groups(context.state) for job_id, job in each.items() if wanted(job_id)
    ]
    return by_id([*archived, *rows(context, found)])


def rows(context: Context, found: Iterable[Job]) -> list[JobRow]:
    """Return a row for each of these jobs, for queue, show, acct and reports."""
    now_s, jobs = context.time(), list(found)
    waiting = any(job.spec.id in context.state.pending for job in jobs)
    starts = context.scheduler.engine.expected_starts(PLANNED) if waiting else {}
    return [
        msgspec.structs.replace(row(context, job, now_s), expected_start_s=starts.get(job.spec.id))
        for job in jobs
    ]


def by_id(rows: Iterable[JobRow]) -> list[JobRow]:
    """Return rows by rising id."""
    return sorted(rows, key=lambda each: sort_key(JobId(each.id)))


def nodes(context: Context) -> list[NodeRow]:
    """Return the nodes and who is on them; where slots are given one by one, their hosts."""
    state, sources = context.state, context.scheduler.energy.measured.sources
    held = {n: job for job, found in state.running.items() for n in found.held}
    set_to: dict[Node, float] = {}
    for job in state.running.values():
        set_to.update(zip(job.nodes, job.frequencies, strict=False))
    cluster, found, taken = context.cluster, [], held.keys() | state.lent.keys()
    away = context.controller_away
    for name in cluster.hosts:
        own = cluster.nodes_of[name]
        jobs = dict.fromkeys(held[node] for node in own if node in held)
        jobs |= {JobId(state.lent[node]): None for node in own if state.lent.get(node)}
        allocated = sum(len(cluster.slots[node]) for node in own if node in taken)
        found.append(
            NodeRow(
                name,
                list(cluster.slots_of(own)),
                _node_state(context, own, taken),
                ",".join(jobs) or None,
                sources.get(name, MODEL),
                allocated,
                max((set_to[node] for node in own if node in set_to), default=None),
                away,
                _kinds(cluster, own, taken),
            )
        )
    return found


def _kinds(
    cluster: Cluster, own: Sequence[Node], taken: Collection[Node]
) -> dict[str, tuple[int, int]]:
    """Return of each kind of a host's processors how many slots there are, and are held."""
    found: dict[str, tuple[int, int]] = {}
    for node, kind in zip(own, cluster.kinds_of(own), strict=False):
        slots, held = found.get(kind, (0, 0))
        found[kind] = slots + 1, held + (node in taken)
    return found


def _node_state(context: Context, own: Sequence[Node], held: Collection[Node]) -> str:
    """Return the state of a node, or of a host of these slots, by the words that sinfo has."""
    state, is_held = context.state, not set(own).isdisjoint(held)
    if context.cluster.host_of(own[0]) in context.drained:
        return "draining" if is_held else "drained"
    if own[0] in state.down:
        return context.launcher.nodes.unavailable_label
    if own[0] in state.off:
        return "powered_down"
    if own[0] in state.booting:
        return "powering_up"
    if is_held:
        return "allocated" if set(own) <= set(held) else "mixed"
    return "idle"


def policy(context: Context, tasks: Tasks) -> PolicyName:
    """Return what decides on jobs, and what on tasks."""
    name, scheduler = context.scheduler.engine.policy.name, tasks.scheduler
    if not scheduler.state.devices:
        return PolicyName(name)
    governor, rule = str(scheduler.state.governor), tasks.rule
    by = str(rule) if rule.automatic else ""
    return PolicyName(name, scheduler.strategy.name, governor, governor_rule=by)


def acct(context: Context, wanted: JobSelection | None = None) -> Accounts:
    """Return jobs and what was booked to them, all at one time; of all jobs, to nobody too."""
    with context.as_of(context.now()):
        if wanted is None:
            job_rows = jobs(context, archived=(each.row for each in context.journal.all_archived()))
        else:
            some = selected(context, wanted).values()
            job_rows = by_id([*archived(context, wanted, every=True), *rows(context, some)])
        ids = None if wanted is None else [job.id for job in job_rows]
        spans = energy_rows(context, ids)
        return Accounts(job_rows, context.scheduler.books(context.time()), spans)


def history(context: Context, job_id: JobId) -> list[HistoryEntry]:
    """Return what was decided about a job, and, of one that waits, why it does now."""
    scheduler = context.scheduler
    if job_id not in context.jobs:
        return next((each.history for each in context.journal.archived(job_id)), [])
    recorded, waits = scheduler.history.get(job_id, []), waits_for(context, job_id)
    if waits is None:
        away = stalled(context, job_id)
        code = away.partition(":")[0]
        return [*recorded, HistoryEntry(context.time(), "later", code, away)] if away else recorded
    now = scheduler.entry(context.time(), waits)
    entries = recorded if recorded and repeats(now, recorded[-1]) else [*recorded, now]
    rank = priority(context, context.state.waiting[job_id])
    own = context.state.waiting[job_id].spec.priority
    if rank is not None:
        reason = rank.words
    elif own:
        reason = f"priority {own}: jobs of a higher priority start first"
    else:
        return entries
    return [*entries, HistoryEntry(now.at_s, "later", "Priority", reason)]


def power_cap(context: Context) -> PowerCapRow:
    """Return the power cap, and what is expected and measured under it."""
    state, energy = context.state, context.scheduler.energy
    measured_w = energy.power_w if energy.measured.node_w else None
    return PowerCapRow(state.power_cap_w, expected_w(state), state.idle_w, measured_w)


def books(context: Context) -> BooksAnswer:
    """Return the energy books up to now, and who held which node when."""
    scheduler, now_s = context.scheduler, context.time()
    return BooksAnswer(
        energy=scheduler.books(now_s),
        spans=scheduler.timeline.spans,
        nodes=list(context.cluster.names),
        now_s=now_s,
        policy=scheduler.engine.policy.name,
        power_w=scheduler.timeline.power_w,
        closed=scheduler.closed,
        power_spans=scheduler.timeline.power_spans,
    )


# FUSED rms.daemon.ask.views: What a journal tells when no daemon runs any more: the same as a daemon does, up to its end.


def past(path: Path) -> Snapshot:
    """Return all that a journal tells, as of its last event; nothing is entered in it.

    Raises:
        JournalError: it is none, is in use, or holds what this version cannot have written.
    """
    with Journal.open(path) as journal, tempfile.TemporaryDirectory() as folder:
        scheduler = restored(journal).scheduler
        restore_energy(scheduler, journal)
        forget_archived(journal, scheduler)
        settings = Settings("", lambda: scheduler.engine.state.now_s, lambda words: None)
        launcher = LocalLauncher(Path(folder), "", "")  # it is asked what it knows: nothing
        context = Context(settings, scheduler, known_jobs(journal, scheduler), journal, launcher)
        found = acct(context)
        settled = msgspec.structs.replace(books(context), energy=found.energy)
        decisions = {job.id: history(context, JobId(job.id)) for job in found.jobs}
        return Snapshot(found.jobs, nodes(context), settled, found.rows, decisions)
