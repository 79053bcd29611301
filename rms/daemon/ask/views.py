"""Read-only views of the daemon's state for users' commands: jobs, nodes, energy, decisions.

:func:`selected` and :func:`archived` find the jobs of a command; :func:`past` gives the views of a
journal whose daemon does not run.
"""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rms.core.books.spans import MODEL
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import Job, JobId, JobRan, JobState, Node, Ran, ResizeRan, sort_key
from rms.core.rules.powercap import expected_w
from rms.core.scheduler.scheduler import repeats
from rms.core.state import State
from rms.daemon.nodes.energy import restore_energy
from rms.daemon.restart.recover import forget_archived, restore_jobs, restored
from rms.daemon.store.archive import energy_rows, priority, stalled, waits_for
from rms.daemon.store.archive import row as row
from rms.daemon.store.context import Context, Settings
from rms.daemon.store.journal import Journal, UnknownJobError
from rms.formats.values import IdSelection, parse_id_list
from rms.kernels.served import Tasks
from rms.launch.local import LocalLauncher
from rms.wire.users import (
    SHORT_STATES,
    AcctAnswer,
    BooksAnswer,
    HistoryEntry,
    JobRow,
    JobSelection,
    NodeRow,
    PolicyName,
    PowerCapRow,
    Snapshot,
)

PLANNED = 200  # number of pending jobs whose expected starts are computed
MOST_RAN = 2_000  # number of jobs in a record for a replay: the newest


# --- selection of jobs --------------------------------------------------------------------------


def groups(state: State) -> tuple[Mapping[JobId, Job], ...]:
    """Return all jobs: pending, held, running and ended."""
    return (state.pending, state.too_wide, state.held, state.running, state.ended)


def selected(context: Context, selection: JobSelection) -> dict[JobId, Job]:
    """Return the jobs that match all filters of a selection; each id must be a job's."""
    matches = _filter(selection)
    jobs = {} if matches is None else dict(_named(context, selection.id))
    return {
        job_id: job
        for job_id, job in jobs.items()
        if matches and matches(job.state, context.jobs[job_id].submission.name)
    }


def archived(context: Context, selection: JobSelection, *, every: bool = False) -> list[JobRow]:
    """Return the archived jobs of a selection with ids, or (``every``) of one without."""
    matches, journal = _filter(selection), context.journal
    if matches is None or (selection.id is None and not every):
        return []
    if selection.id is None:
        entries = journal.all_archived()
    else:
        ids = {job_id: None for part in parse_id_list(selection.id) for job_id in _ids(part)}
        entries = (entry for job_id in ids for entry in journal.archived(job_id))
    rows = {entry.row.id: entry.row for entry in entries}
    return [row for row in rows.values() if matches(row.state, row.name)]


def _filter(selection: JobSelection) -> Callable[[str, str], bool] | None:
    """Return the test of a job's state and name; None for other users' jobs: there are none."""
    states = _states(selection.state)
    names = None if selection.name is None else set(selection.name.split(","))
    if selection.user is not None and getpass.getuser() not in selection.user.split(","):
        return None
    return lambda state, name: (
        (states is None or state in states) and (names is None or name in names)
    )


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
    ids = map(JobId, _ids(part))
    return [(job_id, job) for job_id in ids if (job := state.job(job_id)) is not None]


def _ids(part: IdSelection) -> list[str]:
    """Return the ids of the job or the array tasks that an id names."""
    job, indices = part.job, part.indices
    return [str(job)] if indices is None else [f"{job}_{index}" for index in sorted(indices)]


def _by_array(state: State) -> dict[str, list[tuple[JobId, Job]]]:
    arrays: dict[str, list[tuple[JobId, Job]]] = {}
    for group in groups(state):
        for job_id, job in group.items():
            arrays.setdefault(job_id.partition("_")[0], []).append((job_id, job))
    return arrays


def _states(text: str | None) -> set[JobState] | None:
    if text is None or text.upper() == "ALL":
        return None
    states = set[JobState]()
    for name in text.upper().split(","):
        state = SHORT_STATES.get(name, name)
        if state not in list(JobState):
            names = ", ".join(JobState)
            raise ValueError(f"expected states of {names}, or ALL, got {text!r}")
        states.add(JobState(state))
    return states


# --- jobs ---------------------------------------------------------------------------------------


def jobs(context: Context, archived: Iterable[JobRow] = ()) -> list[JobRow]:
    """Return the rows of all jobs, by rising id."""
    present = (job for group in groups(context.state) for job in group.values())
    return by_id([*archived, *rows(context, present)])


def rows(context: Context, some: Iterable[Job]) -> list[JobRow]:
    """Return the rows of jobs, for queue, show, acct and reports."""
    now_s, jobs = context.time(), list(some)
    waiting = any(job.spec.id in context.state.pending for job in jobs)
    starts = context.scheduler.engine.expected_starts(PLANNED) if waiting else {}
    return [
        msgspec.structs.replace(row(context, job, now_s), expected_start_s=starts.get(job.spec.id))
        for job in jobs
    ]


def by_id(rows: Iterable[JobRow]) -> list[JobRow]:
    """Return rows by rising id."""
    return sorted(rows, key=lambda row: sort_key(JobId(row.id)))


def history(context: Context, job_id: JobId) -> list[HistoryEntry]:
    """Return the decisions about a job and, if it is pending, the present reason."""
    scheduler = context.scheduler
    if job_id not in context.jobs:
        return next((entry.history for entry in context.journal.archived(job_id)), [])
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


# --- nodes --------------------------------------------------------------------------------------


def nodes(context: Context) -> list[NodeRow]:
    """Return the nodes and their jobs; of shared nodes, the hosts of the slots."""
    state, sources = context.state, context.scheduler.energy.measured.sources
    held = {node: job_id for job_id, job in state.running.items() for node in job.held}
    set_to: dict[Node, float] = {}
    for job in state.running.values():
        set_to.update(zip(job.nodes, job.frequencies, strict=False))
    cluster, rows, taken = context.cluster, list[NodeRow](), held.keys() | state.lent.keys()
    for name in cluster.hosts:
        own = cluster.nodes_of[name]
        jobs = dict.fromkeys(held[node] for node in own if node in held)
        jobs |= {JobId(state.lent[node]): None for node in own if state.lent.get(node)}
        allocated = sum(len(cluster.slots[node]) for node in own if node in taken)
        rows.append(
            NodeRow(
                name=name,
                slots=list(cluster.slots_of(own)),
                state=_node_state(context, own, taken),
                job=",".join(jobs) or None,
                power_source=sources.get(name, MODEL),
                allocated=allocated,
                frequency=max((set_to[node] for node in own if node in set_to), default=None),
                reason=context.controller_away,
                kinds=_kinds(cluster, own, taken),
            )
        )
    return rows


def _kinds(
    cluster: Cluster, own: Sequence[Node], taken: Collection[Node]
) -> dict[str, tuple[int, int]]:
    """Return the numbers of slots, and of allocated slots, by kind of a host's processors."""
    numbers: dict[str, tuple[int, int]] = {}
    for node, kind in zip(own, cluster.kinds_of(own), strict=False):
        slots, allocated = numbers.get(kind, (0, 0))
        numbers[kind] = slots + 1, allocated + (node in taken)
    return numbers


def _node_state(context: Context, own: Sequence[Node], held: Collection[Node]) -> str:
    """Return the state of a node, or of the host of these slots, in the words of sinfo."""
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


# --- policy and energy --------------------------------------------------------------------------


def policy(context: Context, tasks: Tasks) -> PolicyName:
    """Return the policy of jobs, and the strategy and governor of tasks."""
    name, scheduler = context.scheduler.engine.policy.name, tasks.scheduler
    if not scheduler.state.devices:
        return PolicyName(name)
    governor, rule = str(scheduler.state.governor), tasks.rule
    by = str(rule) if rule.automatic else ""
    return PolicyName(name, scheduler.strategy.name, governor, governor_rule=by)


def acct(context: Context, wanted: JobSelection | None = None) -> AcctAnswer:
    """Return jobs and their energy at one time; with all jobs also the energy of no job."""
    with context.as_of(context.now()):
        if wanted is None:
            archive = context.journal.all_archived()
            job_rows = jobs(context, archived=(entry.row for entry in archive))
        else:
            some = selected(context, wanted).values()
            job_rows = by_id([*archived(context, wanted, every=True), *rows(context, some)])
        ids = None if wanted is None else [job.id for job in job_rows]
        spans = energy_rows(context, ids)
        return AcctAnswer(job_rows, context.scheduler.books(context.time()), spans)


def power_cap(context: Context) -> PowerCapRow:
    """Return the power cap with the expected and the measured power."""
    state, energy = context.state, context.scheduler.energy
    measured_w = energy.power_w if energy.measured.node_w else None
    return PowerCapRow(state.power_cap_w, expected_w(state), state.idle_w, measured_w)


def books(context: Context) -> BooksAnswer:
    """Return the energy books up to now, and the spans in which jobs held nodes."""
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


def ran(context: Context) -> Ran:
    """Return what the newest jobs did, for a replay on the virtual clock (:mod:`rms.sim.gain`).

    Archived jobs are not in the record.
    """
    state, cluster = context.state, context.cluster
    begun = (*state.ended.values(), *state.running.values())
    jobs = [job for job in begun if job.start_s is not None]
    dropped = max(0, len(jobs) - MOST_RAN) + context.journal.archived_number()
    jobs, now_s = jobs[-MOST_RAN:], context.time()
    number = {name: at for at, name in enumerate(cluster.names)}
    spans: dict[str, list[tuple[int, float, float]]] = {job.spec.id: [] for job in jobs}
    for span in context.scheduler.timeline.spans:
        own, node = spans.get(span.job), number.get(span.node)
        if own is not None and node is not None:
            own.append((node, span.start_s, now_s if span.end_s is None else span.end_s))
    return Ran(
        seq=context.journal.last,
        now_s=now_s,
        policy=context.scheduler.engine.policy.key,
        site=msgspec.structs.replace(cluster.site, power_cap_w=state.power_cap_w),
        jobs=tuple(_job_ran(context, job, spans[job.spec.id]) for job in jobs),
        dropped=dropped,
        prices_unit="" if state.prices is None else state.prices.unit,
    )


def _job_ran(context: Context, job: Job, spans: Iterable[tuple[int, float, float]]) -> JobRan:
    runtime, start_s = context.jobs.get(job.spec.id), job.start_s or 0.0
    rows = [] if runtime is None else [row for row in runtime.resizes if row.at_s >= start_s]
    return JobRan(
        spec=job.spec,
        state=str(job.state),
        start_s=start_s,
        end_s=job.end_s,
        spans=tuple(span for span in spans if span[2] > start_s),
        resizes=tuple(ResizeRan(row.at_s, row.stall_s, row.boot_s) for row in rows),
        steps=0 if runtime is None else runtime.total,
        measured=tuple((size, *made) for size, made in sorted((job.measured_steps or {}).items())),
        energy_j=context.scheduler.energy.job_j(job.spec.id, context.time()),
    )


def past(path: Path) -> Snapshot:
    """Return the views of a journal at its last event; the journal is not changed."""
    with _reopened(path) as context:
        accounting = acct(context)
        settled = msgspec.structs.replace(books(context), energy=accounting.energy)
        decisions = {job.id: history(context, JobId(job.id)) for job in accounting.jobs}
        return Snapshot(accounting.jobs, nodes(context), settled, accounting.rows, decisions)


def past_ran(path: Path) -> Ran:
    """Return what the newest jobs of a journal did; the journal is not changed."""
    with _reopened(path) as context:
        return ran(context)


@contextmanager
def _reopened(path: Path) -> Iterator[Context]:
    """Yield the context of a journal at its last event."""
    with Journal.open(path) as journal, tempfile.TemporaryDirectory() as folder:
        scheduler = restored(journal).scheduler
        restore_energy(scheduler, journal)
        forget_archived(journal, scheduler)
        settings = Settings(policy="", now=lambda: scheduler.engine.state.now_s)
        launcher = LocalLauncher(Path(folder), "", "")  # it starts nothing
        yield Context(settings, scheduler, restore_jobs(journal, scheduler), journal, launcher)
