"""Rows of jobs and of energy, as users' commands show them, the archive of old jobs, snapshots."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import attrgetter
from typing import IO

import msgspec

from rms.core.books.spans import MODEL
from rms.core.model.events import Later, Reason
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies.order import Multifactor, Priority
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze
from rms.daemon.store.context import Context, log
from rms.daemon.store.journal import Archived, JournalFullError
from rms.daemon.store.notes import (
    EndingNote,
    EndNote,
    LineNote,
    ResizesNote,
    ScriptNote,
    SignalNote,
    StepsNote,
    SubmissionNote,
    SummaryNote,
)
from rms.daemon.store.record import JobRuntime, ResizeNote
from rms.daemon.store.sandbox import fork
from rms.wire.users import EnergyPart, EnergyRow, JobRow, ResizeRow, SeenSteps, SlurmRow


def row(context: Context, job: Job, now_s: float) -> JobRow:
    """Return the row of a job, with its energy up to a time."""
    spec, scheduler = job.spec, context.scheduler
    runtime = context.jobs.get(spec.id, JobRuntime(spec.id))
    submission = runtime.submission
    energy_j = scheduler.energy.job_j(spec.id, now_s)
    parts = scheduler.energy.parts(spec.id, energy_j)
    details = _compared(context.launcher.nodes.job_details(spec.id), energy_j)
    rank, wanted = priority(context, job), context.state.wanted.get(spec.id)
    waits = waits_for(context, spec.id)
    reason = stalled(context, spec.id) or scheduler.reasons.get(spec.id, "")
    reason = reason if waits is None else waits.reason
    return JobRow(
        id=spec.id,
        name=submission.name,
        state=str(job.state),
        mode=str(spec.mode),
        submit_s=spec.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        nodes=[context.cluster.names[n] for n in job.nodes] if job.end_s is None else [],
        size=len(job.nodes),
        nodes_min=spec.nodes_min,
        nodes_max=spec.nodes_max,
        reason=reason or details.waits or "",
        step=runtime.step,
        steps=runtime.total,
        energy_j=energy_j,
        energy_source=" and ".join(part.source for part in parts),
        energy=parts,
        uncertainty_j=uncertainty_j(parts),
        answer=runtime.answer,
        resizes=[_resize(context, spec.id, resize) for resize in runtime.resizes],
        resizing=runtime.resizing,
        resize_to=job.requested_size if wanted is None else wanted.size,
        output=str(runtime.files[0]) if submission.output else "",
        slurm=details,
        summary=runtime.summary,
        seen=[SeenSteps(size, *made) for size, made in sorted((job.measured_steps or {}).items())],
        profile=submission.profile,
        frequency=min(job.frequencies, default=None) if job.end_s is None else None,
        exit_code=None if job.end_s is None else runtime.exit_code,
        account=spec.account,
        user=submission.user,
        limit_s=spec.limit_s,
        nodelist=list(spec.nodelist),
        exclude=list(spec.exclude),
        restartable=runtime.restartable,
        priority=float(spec.priority) if rank is None else rank.value,
        lost=scheduler.energy.lost(spec.id),
    )


def priority(context: Context, job: Job) -> Priority | None:
    """Return the computed priority of a waiting job, None if the policy computes none."""
    order, state = context.scheduler.engine.policy.order, context.state
    if isinstance(order, Multifactor) and job.spec.id in state.pending:
        return order.priority(state, job)
    return None


def _compared(details: SlurmRow, energy_j: float) -> SlurmRow:
    """Return Slurm's row of a job with the ratio of its energy to ours."""
    consumed_j = details.consumed_energy_j
    if isinstance(consumed_j, msgspec.UnsetType) or not energy_j:
        return details
    return msgspec.structs.replace(details, consumed_energy_ratio=consumed_j / energy_j)


def _resize(context: Context, job_id: JobId, row: ResizeRow) -> ResizeRow:
    energy = context.scheduler.energy
    resize = energy.resizes.get((job_id, row.number))
    if resize is None:
        return row
    joules = energy.resize_j(job_id, row.number) or 0.0
    parts = energy.resize_parts(job_id, row.number, joules)
    return msgspec.structs.replace(
        row,
        energy_j=joules,
        saved_j=resize.saved_j,
        energy_source=" and ".join(part.source for part in parts),
        uncertainty_j=uncertainty_j(parts),
    )


def uncertainty_j(parts: Sequence[EnergyPart]) -> float | None:
    """Return the half-width of an energy: the sum over its parts, None if one is by the model."""
    if any(part.source == MODEL for part in parts):
        return None
    return sum(part.uncertainty_j for part in parts)


def waits_for(context: Context, job_id: JobId) -> Later | None:
    """Return why a job waits, with the state of requested nodes; None if it does not wait."""
    waits = context.scheduler.engine.explain(job_id)
    if waits is not None and waits.code is Reason.BEGIN:
        begin_s = context.state.held[job_id].spec.begin_s or 0.0
        at = time.localtime(begin_s + context.skew_s)
        reason = time.strftime("BeginTime: not before %Y-%m-%dT%H:%M:%S", at)
        return msgspec.structs.replace(waits, reason=reason)
    if waits is None or waits.code not in (Reason.RESOURCES, Reason.PRIORITY):
        return waits
    reasons = [waits.reason, *filter(None, (context.nodes_wait, context.controller_away))]
    return msgspec.structs.replace(waits, reason="; ".join(reasons))


def stalled(context: Context, job_id: JobId) -> str:
    """Return why a start or resize of a job waits for Slurm, or why it seems to hang, or ""."""
    job, runtime = context.state.running.get(job_id), context.jobs.get(job_id)
    pulse = None if job is None or runtime is None else runtime.pulse
    if pulse is not None and pulse.reported:
        return f"Stalled: {pulse.reported}"
    if job is None or (job.state is not JobState.CONFIGURING and job.requested_size is None):
        return ""
    return context.controller_away


# --- energy: rows of owner, node, device and source ----------------------------------------------


def energy_rows(context: Context, jobs: Collection[str] | None = None) -> list[EnergyRow]:
    """Return the energy rows up to now, of these owners or of all, by node and time."""
    measured = context.scheduler.energy.measured
    one = next(iter(jobs)) if jobs is not None and len(jobs) == 1 else None
    present = measured.spans.present(max(context.time(), measured.until_s), jobs)
    newer = {_key(row): row for row in present}
    rows = [newer.pop(_key(row), row) for row in context.journal.energy(one)]
    rows += [newer[key] for key in sorted(newer)]
    wanted = None if jobs is None else frozenset(jobs)
    return [row for row in rows if wanted is None or row.owner in wanted]


_key = attrgetter("node", "begin_s", "owner", "device", "source")


def is_settled(context: Context, job: Job) -> bool:
    """Return whether meters have reported on all nodes of a job since it was over.

    Nodes without a meter count as settled.
    """
    hosts, cluster = context.scheduler.energy.measured.hosts, context.cluster
    for node in job.nodes:
        if node >= len(cluster.names):
            continue  # of a cluster before this one
        name = cluster.names[node]
        for host in (hosts.get(cluster.host_of(node)), hosts.get("")):
            until_s = inf if host is None else host.nodes.get(name, inf)
            if until_s < (job.end_s or 0.0):
                return False
    return True


# --- jobs that ended long ago: their rows move to the journal -------------------------------------
#
# The newest ended jobs stay in memory, as do those that meters may still report on and those
# that other jobs wait for. No decision depends on a job that is over, so a replay, which has all of
# them, decides the same.

KEPT = 1_000  # number of jobs that are over and stay in memory
MOST = 4  # limit of jobs that stay for the sake of the schedule of EASY, in multiples of those
AT_ONCE = 100  # number of jobs that are archived at once: requests are answered in between

NOTES = (
    *(SubmissionNote, ScriptNote, StepsNote, ResizeNote, ResizesNote),
    *(EndingNote, EndNote, SignalNote, SummaryNote),
)


def retire(context: Context) -> bool:
    """Archive some of the ended jobs, if there are many; return whether any were archived."""
    state, scheduler = context.state, context.scheduler
    more = len(state.ended) - KEPT
    if more < AT_ONCE:
        return False
    jobs = list(islice(_due(context, more), AT_ONCE))
    if not jobs:
        return False
    ids = [job.spec.id for job in jobs]
    archived = [
        Archived(row(context, job, context.time()), scheduler.history.get(job.spec.id, []))
        for job in jobs
    ]
    keys = [kind(job_id).key for job_id in ids for kind in NOTES]
    keys += [LineNote(f"{job_id}/").key for job_id in ids]
    keys += [SubmissionNote(array).key for array in _arrays_over(context, jobs)]
    context.journal.archive(archived, keys)
    scheduler.forget(ids)
    for job_id in ids:
        context.jobs.pop(job_id, None)
    return True


def _due(context: Context, number: int) -> Iterator[Job]:
    """Yield the jobs among the first ended ones that nothing depends on any more."""
    state, spans = context.state, context.scheduler.energy.measured.spans
    twin = None if len(state.ended) > MOST * KEPT else context.scheduler.engine.twin
    wanted = {after.job for job in state.held.values() for after in job.spec.after}
    booked = {span.owner for span in spans.kept()}
    return (
        job
        for job_id, job in islice(state.ended.items(), number)
        if job_id not in booked
        and (twin is None or not twin.knows(job_id))
        and wanted.isdisjoint((job_id, job.spec.array or job_id))
        and context.jobs[job_id].summary != ""
    )


def _arrays_over(context: Context, jobs: Sequence[Job]) -> set[str]:
    """Return the arrays of jobs of which no task is left when these are archived."""
    gone = {job.spec.id for job in jobs}
    arrays = {job.spec.array for job in jobs if job.spec.array is not None}
    arrays -= context.state.arrays.keys()
    if arrays:
        arrays -= {job_id.partition("_")[0] for job_id in context.jobs if job_id not in gone}
    return arrays


# --- snapshots of the scheduler: old entries of the journal are deleted ---------------------------

EVERY = 2_000  # number of entries between snapshots; a start replays no more than these
KEEP = 100_000  # default of the minimum number of entries that are kept
# Number of jobs up to which a snapshot is packed by the daemon, in some 10 ms; else in a fork.
PACKED_AT_ONCE = 500
LIMIT_S = 60.0  # deadline for a fork, on a busy machine too
NICE = 5  # niceness of a fork, for which no request waits


@dataclass(frozen=True)
class Packing:
    """A fork that packs the scheduler as it was after an entry, into a file without a name."""

    pid: int
    after: int
    into: IO[bytes]
    until_s: float

    @classmethod
    def begin(cls, scheduler: Scheduler, after: int) -> Packing:
        """Start the fork; an OSError means that there is no room for a process or file."""
        into = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - until the fork is over

        def work() -> None:
            os.nice(NICE)
            left = memoryview(freeze(scheduler))
            while left:
                left = left[os.write(into.fileno(), left) :]

        try:
            pid = fork(work, only=into.fileno())
        except OSError:
            into.close()
            raise
        return cls(pid, after, into, time.monotonic() + LIMIT_S)

    def result(self) -> bytes | None:
        """Return the snapshot, b"" if the fork has failed, None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and time.monotonic() < self.until_s:
            return None
        if not pid:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        self.into.seek(0)
        return b"" if status else self.into.read()


class Snapshots:
    """Takes snapshots between events; where there are many jobs, after as many entries.

    A snapshot and the deletion of needless ones are one transaction: killed before its end, the
    daemon goes on from the snapshot before. Without room it is tried again later. With many jobs
    it is packed by a fork of the daemon and entered when that has ended: no request waits for it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = max(context.journal.snapshots(), default=0)
        self._prunes = True
        self._packing: Packing | None = None
        self._forks = True

    def tick(self) -> None:
        """Take a snapshot that is due; else archive some jobs, or delete some old entries."""
        state, journal = self._context.state, self._context.journal
        try:
            jobs = len(state.pending) + len(state.held) + len(state.running)
            if self._packing is not None:
                self._follow(self._packing)
            elif journal.last >= self._last + max(EVERY, jobs):
                self._take(jobs + len(state.ended))
            elif retire(self._context):
                return
            elif self._prunes and (keep := self._context.settings.keep_entries) is not None:
                self._prunes = journal.prune(keep)
        except JournalFullError:
            return

    def _take(self, jobs: int) -> None:
        """Take a snapshot of this many jobs, or start to."""
        journal, scheduler = self._context.journal, self._context.scheduler
        if self._forks and jobs > PACKED_AT_ONCE:
            try:
                self._packing = Packing.begin(scheduler, journal.last)
                return
            except OSError as error:
                self._together(str(error))
        self._last, self._prunes = journal.last, True
        journal.save(freeze(scheduler), self._context.settings.keep_entries)

    def _follow(self, packing: Packing) -> None:
        """Enter the snapshot of a fork that has ended."""
        packed = packing.result()
        if packed is None:
            return
        self._packing = None
        packing.into.close()
        if not packed:
            self._together("a process of it failed")
            return
        self._last, self._prunes = packing.after, True
        keep = self._context.settings.keep_entries
        self._context.journal.save(packed, keep, packing.after)

    def _together(self, why: str) -> None:
        """Pack in the daemon from now on."""
        self._forks = False
        log.info(f"snapshots are made while all wait from now on: {why}")
