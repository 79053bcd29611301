"""Recovery of a daemon from its state folder, its journal and the processes that still run.

In the order of a start: the journal is opened, a broken one salvaged (:func:`open_journal`); the
mark of its processes and the next job number are restored (:func:`restore_notes`,
:func:`own_mark`); the journal is replayed (:func:`restored`), and scheduler and jobs are rebuilt
(:func:`resume`); running jobs are adopted (:func:`adopt`), or the daemon goes on with other nodes
(:func:`reopen`); losses are logged and processes of unknown jobs ended (:func:`settle`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from math import inf
from pathlib import Path

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Ended, Reopened, Started
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies import Policy, PolicyError, named, placing
from rms.core.rules.checks import RuleError
from rms.core.rules.transition import TransitionError
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import SnapshotError, thaw
from rms.daemon.heart import Daemon
from rms.daemon.jobs import scripts
from rms.daemon.jobs.machine import RELAUNCH, Adopted
from rms.daemon.nodes.energy import restore_energy
from rms.daemon.nodes.nodes import check_placement
from rms.daemon.store.context import Context, Settings, describe, log
from rms.daemon.store.file import CountFiles, DamagedError, finish_salvage, salvage
from rms.daemon.store.journal import Entry, Journal, JournalError, Opened, PolicySet, Seen
from rms.daemon.store.notes import (
    BrokenNote,
    DrainedNote,
    EndingNote,
    EndNote,
    LineNote,
    MarkNote,
    NextNote,
    Notes,
    PortNote,
    ResizesNote,
    ScriptNote,
    SignalNote,
    StepsNote,
    SubmissionNote,
    SummaryNote,
)
from rms.daemon.store.private import line_file
from rms.daemon.store.record import REQUEUED, STEP_FACTS, JobRuntime, ResizeNote, ResizeState, Step
from rms.daemon.store.sandbox import guarded, stand_ins
from rms.launch.base import LaunchCommand, LaunchError, ManagedProcess
from rms.launch.local import LocalLauncher

KILL_S = 5.0  # deadline at start for killed processes to end
LOST = SubmissionNote(name="lost", output="/dev/null")  # submission of a job whose own is lost
NO_NOTE = "its submission is missing from the journal"
MOST_NAMED = 20
_ID = re.compile(r"([0-9]+)(?:_[0-9]+)?")


# --- the journal, its mark, the next number ------------------------------------------------------


def open_journal(path: Path) -> Journal:
    """Open a journal; a broken one is set aside, and its readable records go on.

    A broken file without a count beside it may be no journal at all, and is left alone.
    """
    finish_salvage(path)
    try:
        return Journal.open(path)
    except DamagedError as error:
        if not any(count.exists() for count in CountFiles(path).paths):
            raise
        log.warning(str(error))
    records, aside = salvage(path)
    words = f"{path}: {records} records could be read, and go on; the file is kept as {aside.name}"
    log.warning(words)
    return Journal.open(path)


def restore_notes(journal: Journal, jobs: Path) -> None:
    """Restore the mark of the journal's processes, and raise the next job number above all used."""
    counted = journal.counted
    following = noted = journal.noted(NextNote).id
    if counted is not None:
        if counted.mark.mark and not journal.noted(MarkNote).mark:
            journal.note(counted.mark)
        following = max(following, counted.next.id)
    numbers = [int(match[1]) for match in map(_ID.fullmatch, _names(jobs)) if match]
    following = max([following, *(number + 1 for number in numbers)])
    if following > noted:
        journal.note(NextNote(id=following))


def own_mark(journal: Journal, state: Path) -> str:
    """Return the mark of this folder's processes, which a restart or a rename does not change.

    It belongs to the folder's file system and inode, or to the inodes of the folder and of its
    journal, as XFS may have another id after a reboot. A copy of the folder gets a new mark and
    port, and does not take over the processes of the original.
    """
    inode = state.stat().st_ino
    folder, inodes = f"{os.statvfs(state).f_fsid:x}-{inode}", [inode, journal.path.stat().st_ino]
    note = journal.noted(MarkNote)
    if not note.mark or (note.folder != folder and note.inodes != inodes):
        mark = MarkNote(
            mark=secrets.token_hex(8), folder=folder, inodes=inodes, copied=bool(note.mark)
        )
        journal.note(mark, PortNote())
        journal.flush()
        return mark.mark
    if (note.folder, note.inodes) != (folder, inodes):
        journal.note(msgspec.structs.replace(note, folder=folder, inodes=inodes))
    return note.mark


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208


# --- replay: a journal through a scheduler, from its beginning or from a snapshot -----------------
#
# For ``rms replay`` the policies decide again and their decisions are compared with the recorded
# ones; a restart follows the recorded decisions. A journal without a header is a JournalError.


class Replayed(msgspec.Struct):
    """The result of feeding a journal to a scheduler."""

    scheduler: Scheduler  # in the state of the daemon that wrote the journal, if nothing differs
    events: int = 0
    # a sentence per event on which the decisions differ from the recorded ones, or that is refused
    # although it was accepted before
    differing: list[str] = []
    # by sequence number, the decisions on events without recorded decisions: these have not been
    # acted on, so they are to be recorded and carried out
    unrecorded: dict[int, list[Decision]] = {}
    refused: list[str] = []  # a sentence per refused event without recorded decisions
    missing: list[str] = []

    @property
    def engine(self) -> Engine:
        """The scheduler's engine."""
        return self.scheduler.engine


def replayed(journal: Journal) -> Replayed:
    """Replay all entries of a journal, and let the policies decide again."""
    begins = journal.begins()
    base = _thawed(journal, begins, again=True) if begins else None
    return replay(journal.read(begins), base=base)


def restored(journal: Journal, cluster: Cluster | None = None) -> Replayed:
    """Replay a journal from the newest readable snapshot, following the recorded decisions."""
    for seq in journal.snapshots():
        try:
            base = _thawed(journal, seq, again=False)
        except JournalError as error:
            journal.damage.append(str(error))
            continue
        return replay(journal.read(seq), again=False, base=base)
    with uncollected():
        return replay(journal.read(), cluster, again=False)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable automatic garbage collection, which would visit all kept objects repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _thawed(journal: Journal, seq: int, *, again: bool) -> Replayed:
    missing: list[str] = []

    def policy_of(key: str, cluster: Cluster) -> Policy:
        return _policy(key, missing) or stand_ins(cluster)[0]

    try:
        scheduler = thaw(journal.snapshot(seq), policy_of)
    except SnapshotError as error:
        raise JournalError(f"the snapshot after entry {seq}: {error}") from None
    scheduler.stand_ins = () if again else stand_ins(scheduler.cluster)
    return Replayed(scheduler, missing=missing)


def replay(
    entries: Iterable[Entry],
    cluster: Cluster | None = None,
    *,
    again: bool = True,
    base: Replayed | None = None,
) -> Replayed:
    """Feed the events of a journal to a scheduler, under the policies as recorded.

    An event on which a policy failed is not decided again, nor an event of a missing policy.

    Args:
        cluster: the nodes it begins with; by default those of the journal's first entry.
        again: whether policies decide again on events with recorded decisions.
        base: the result of the entries before these; None at the beginning of the journal.
    """
    rest = iter(entries)
    if base is None:
        result, has_policy = _begun(next(rest, None), cluster, again=again)
    else:
        result, has_policy = base, not base.missing
    for entry, after in pairwise(chain(rest, [None])):
        if isinstance(entry, Seen):
            failed = isinstance(after, PolicySet) and bool(after.reason)
            _feed(result, entry, follow=not again or failed or not has_policy)
        elif entry is not None:
            has_policy = _use(result, entry)
            if isinstance(entry, Opened):
                result.engine.state.max_concurrent_resizes = entry.at_once
                result.scheduler.use_levels(entry.levels)
    return result


def _begun(first: Entry | None, cluster: Cluster | None, *, again: bool) -> tuple[Replayed, bool]:
    """Return a fresh scheduler, and whether the policy exists."""
    if not isinstance(first, Opened):
        raise JournalError(f"expected a header as first entry, got {first}")
    where = first.where if cluster is None else ""
    recorded = Cluster.recorded(first.nodes, first.power, first.widths, first.shared)
    cluster = replace(cluster or recorded, levels=first.levels)
    spare = stand_ins(cluster)
    result = Replayed(Scheduler(cluster, spare[0], where))
    result.scheduler.stand_ins = () if again else spare
    has_policy = _use(result, first)
    result.engine.state.max_concurrent_resizes = first.at_once
    return result, has_policy


def _use(result: Replayed, entry: Opened | PolicySet) -> bool:
    """Let the policy of an entry decide; return whether it exists."""
    policy = _policy(entry.policy, result.missing)
    instead = policy or stand_ins(result.scheduler.cluster)[0]
    if isinstance(entry, PolicySet) and entry.reason:
        result.engine.replace(instead)
    else:
        result.engine.policy = instead
    return policy is not None


def _policy(key: str, missing: list[str]) -> Policy | None:
    """Return the policy of a key; None, and a sentence in ``missing``, if it is gone."""
    try:
        return guarded(named(key))
    except (PolicyError, RuleError) as error:
        missing.append(f"a policy is gone, its decisions are taken as recorded: {error}")
        return None


def _feed(result: Replayed, entry: Seen, *, follow: bool) -> None:
    """Feed an event, decide on it or follow the recorded decisions; note differences."""
    result.events += 1
    recorded, name = entry.decisions, f"event {entry.seq} ({type(entry.event).__name__})"
    try:
        decisions = result.scheduler.feed(entry.event, recorded if follow else None)
    except (TransitionError, RuleError) as error:
        sentence = f"{name}: expected one that the engine takes, got: {error}"
        (result.refused if recorded is None else result.differing).append(sentence)
        return
    if recorded is None:
        result.unrecorded[entry.seq] = decisions
    elif tuple(decisions) != recorded:
        old, new = next((a, b) for a, b in zip_longest(recorded, decisions) if a != b)
        result.differing.append(f"{name}: expected {old} as recorded, got {new}")


# --- scheduler and jobs --------------------------------------------------------------------------


def resume(
    cluster: Cluster,
    journal: Journal,
    launcher: LocalLauncher,
    settings: Settings,
    kind: type[Daemon] = Daemon,
) -> Daemon:
    """Return a daemon that goes on where the journal ends, new or of an earlier daemon.

    Where ``settings`` do not say ``where`` the nodes are, they must be those of the journal.
    """
    where, policy = settings.where, settings.policy
    check_placement(placing(policy), cluster)
    at_once = launcher.nodes.max_concurrent_resizes
    journal.header(cluster, policy, where, at_once)
    context = restore(cluster, journal, launcher, settings)
    scheduler, daemon = context.scheduler, kind(context)
    scheduler.present, scheduler.stand_ins = (where, cluster), stand_ins(cluster)
    if journal.damage:
        end_unrecorded_runs(daemon)
    if (scheduler.where, scheduler.cluster.names) == (where, cluster.names):
        scheduler.cluster = cluster
        daemon.nodes.tick()  # before anything starts
        adopt(daemon)
    else:
        reopen(daemon, cluster)
    daemon.nodes.resume()
    daemon.node_switch.resume()
    daemon.look_at_idle_nodes()
    return daemon


def restore(
    cluster: Cluster, journal: Journal, launcher: LocalLauncher, settings: Settings
) -> Context:
    """Rebuild scheduler and jobs from a journal; record the decisions that it lacks."""
    result = restored(journal, None if settings.where else cluster)
    missing = result.missing if result.unrecorded else []
    for sentence in (*missing, *result.refused, *result.differing):
        log.info(f"before the restart: {sentence}")
    for number, decisions in result.unrecorded.items():
        journal.decided(number, decisions)
    if settings.clock is not None:
        settings.clock.not_before(result.engine.state.now_s)
    restore_energy(result.scheduler, journal)
    forget_archived(journal, result.scheduler)
    jobs = restore_jobs(journal, result.scheduler)
    drained = frozenset(journal.noted(DrainedNote).names)
    broken = frozenset(journal.noted(BrokenNote).names)
    return Context(settings, result.scheduler, jobs, journal, launcher, drained, broken)


def forget_archived(journal: Journal, scheduler: Scheduler) -> None:
    """Remove the jobs from a scheduler that had been archived when its daemon was killed."""
    state = scheduler.engine.state
    gone = set(map(JobId, journal.archived_among(state.ended)))
    present = {*state.waiting, *state.running, *state.ended}
    scheduler.forget([*gone, *sorted(scheduler.energy.owners() - present)])


def restore_jobs(journal: Journal, scheduler: Scheduler) -> dict[JobId, JobRuntime]:
    """Return the records of jobs, without processes; enter reasons in the scheduler."""
    jobs, state = dict[JobId, JobRuntime](), scheduler.engine.state
    submissions, resizes = journal.notes(SubmissionNote), journal.notes(ResizesNote)
    steps, ends = journal.notes(StepsNote), journal.notes(EndNote)
    signals, summaries = journal.notes(SignalNote), journal.notes(SummaryNote)
    for job_id in (*state.waiting, *state.running, *state.ended):
        submission = submissions.get(job_id) or submissions.get(job_id.partition("_")[0]) or LOST
        job = jobs[job_id] = JobRuntime(job_id, submission)
        if job_id in resizes:
            job.resizes = resizes[job_id].rows
        if job_id in steps:
            note = steps[job_id]
            job.launch_count, job.keeper_count, job.run = note.launches, note.keepers, note.run
        if job_id in ends:
            end = ends[job_id]
            job.answer, job.exit_code = end.answer, end.exit_code
            scheduler.reasons[job_id] = end.reason
        job.signalled = job_id in signals and signals[job_id].sent
        job.summary = summaries[job_id].line if job_id in summaries else None
    return jobs


def end_unrecorded_runs(daemon: Daemon) -> None:
    """End the jobs that have run, but wait according to a damaged journal.

    A job with an exit status is not run again (a requeued job has none). Processes of other jobs
    are killed, and the job waits again or fails.
    """
    launcher, running = daemon.launcher, frozenset(daemon.launcher.jobs())
    daemon.scripts.stopping = True  # a decision in the meantime could start one of them
    for job_id in daemon.context.state.waiting:
        job, status, code = daemon.jobs[job_id], launcher.status_file(job_id), None
        how = "its processes are killed"
        if status.exists():
            code = ManagedProcess(0, status_file=status).status()
            how = f"its script ended with {code}"
        elif job_id not in running:
            continue
        until_s = time.monotonic() + KILL_S
        while job_id in running and launcher.members(job_id) and time.monotonic() < until_s:
            launcher.kill(job_id)
            time.sleep(0.02)
        reason = f"{how}; when it ran is missing from the journal"
        if code is None and job.submission.requeue:
            status.unlink(missing_ok=True)  # written by the shell that ran its script
            log.info(f"job {job_id}: {reason}; requeued")
            continue
        state = "COMPLETED" if code == 0 else "FAILED"
        daemon.scripts.enter_end(job, 1 if code is None else code, reason, state)
        log.info(f"job {job_id} {state}: {reason}")
    daemon.scripts.stopping = False


# --- the same nodes: running jobs are adopted ----------------------------------------------------


def adopt(daemon: Daemon) -> None:
    """Adopt running jobs; requeue or end jobs without processes."""
    copied = daemon.journal.noted(MarkNote).copied
    for job_id, running in list(daemon.context.state.running.items()):
        job = daemon.jobs.setdefault(job_id, JobRuntime(job_id, LOST))
        if copied and not daemon.launcher.status_file(job_id).exists():
            daemon.scripts.fail(job, scripts.COPIED)
            continue
        try:
            if job.submission is LOST:
                raise JournalError("expected its submission in the journal, got none")
            _adopt(daemon, job, running)
        except Exception as error:  # an error about one job does not affect the others
            daemon.scripts.fail(job, f"could not be adopted: {describe(error)}")


def _adopt(daemon: Daemon, job: JobRuntime, running: Job) -> None:
    pid = daemon.journal.noted(ScriptNote, job.id).pid
    script = daemon.launcher.find_script(job.id, pid)
    if running.state is JobState.CONFIGURING:
        if script is None:
            away = daemon.launcher.nodes.unavailable() or ()
            if not set(away).isdisjoint(daemon.context.cluster.hosts_of(running.nodes)):
                _end_or_requeue(daemon, job, "could not start, its nodes do not answer yet", True)
                return
            daemon.scripts.start(job, running.nodes)
            log.info(f"job {job.id}: started now, as decided before the restart")
            _go_on_ending(daemon, job)  # it may have been submitted to Slurm before
            return
        job.script = script
        if not script.started:
            _go_on_ending(daemon, job)
            return
        daemon.handle(Started(daemon.time(), job.id))
    _take_back(daemon, job, script)


def _take_back(daemon: Daemon, job: JobRuntime, script: ManagedProcess | None) -> None:
    journal = daemon.journal
    job.resize = resize = journal.noted(ResizeNote, job.id).resize
    members = restore_steps(daemon, job)
    wanted = daemon.context.state.running[job.id].requested_nodes
    if (
        script is None
        and wanted is not None
        and resize is not None
        and resize.number == daemon.scheduler.resizes.get(job.id)
        and resize.state in RELAUNCH
    ):
        resize.state = ResizeState.STARTING
        job.steps, job.keys = [], []
        journal.note(ResizeNote(job.id, resize), job.steps_note(), ScriptNote(job.id))
        daemon.scripts.run(job, wanted)
        script = job.script
    elif script is None and job.inherited is not None and not members:
        daemon.worlds.run_again(job)
        script = job.script
    if script is not None:
        job.script = script
        log.info(
            f"job {job.id}: adopted, {len(members)} processes still run"
            if script.status() is None
            else f"job {job.id}: ended while the daemon was away"
        )
    else:
        _end_or_requeue(daemon, job, "ended, its processes are gone", job.submission.requeue)
        return
    if job.launch_count:
        daemon.worlds.enter_worlds(job, (job.launch_count - 1,))
    daemon.worlds.feed(job, Adopted())
    _go_on_ending(daemon, job)


def _end_or_requeue(daemon: Daemon, job: JobRuntime, words: str, again: bool) -> None:
    """Let a job without processes here wait again, if it may, or end it."""
    job.resize = None
    daemon.launcher.end_leftovers(job.id)
    state = daemon.journal.noted(EndingNote, job.id).state
    if state == REQUEUED or (again and not state):
        daemon.scripts.requeue(job, words)
        return
    log.info(f"job {job.id}: {words}")
    if daemon.context.state.running[job.id].state is JobState.CONFIGURING:
        daemon.handle(Started(daemon.time(), job.id))
    reason = "its processes died while the daemon was away"
    daemon.scripts.enter_end(job, 1, reason, "FAILED" if state in ("", REQUEUED) else state)


def _go_on_ending(daemon: Daemon, job: JobRuntime) -> None:
    """Terminate a job again whose end was requested before the restart."""
    ending = daemon.journal.noted(EndingNote, job.id)
    if ending.state and job.script is not None:
        job.ending, job.kill_at = ending.state, ending.kill_at
        daemon.scripts.terminate(job)


def restore_steps(daemon: Daemon, job: JobRuntime) -> list[int]:
    """Enter the steps of a job as an earlier daemon noted them; return the job's processes."""
    journal, launcher = daemon.journal, daemon.launcher
    members = launcher.members(job.id)

    def world(number: int, pid: int) -> ManagedProcess:
        """Return a launch; one that was started anew meanwhile has another process."""
        if pid in members or not launcher.shared_filesystem:
            kept = launcher.world_status_file(job.id, number)
            return ManagedProcess(pid if pid in members else 0, status_file=kept)
        return ManagedProcess(min(launcher.members(job.id, number), default=0))

    note = journal.noted(StepsNote, job.id)
    if note.heir is not None and note.inherited is not None:
        nothing = LaunchCommand([], "", {}, "", "")  # until its line runs again
        facts = {name: getattr(note.inherited, name) for name in STEP_FACTS}
        job.heir, job.inherited = note.heir, Step(nothing, {}, **facts)
    job.keys, job.launch_count, job.run, job.steps = note.keys, note.launches, note.run, []
    for number, step in enumerate(note.steps):
        line = journal.noted(LineNote, f"{job.id}/{number}")
        if not line.command:
            raise JournalError("expected its launcher line in the journal, got none")
        try:
            env = daemon.context.private.kept(line_file(job.id, number))
        except LaunchError as error:  # running processes have theirs, but a resize would need it
            log.info(f"job {job.id}: {error}")
            env = {}
        command = LaunchCommand(line.command, line.cwd, env, line.output, line.errors)
        worlds = {launch: world(launch, pid) for launch, pid in step.pids.items()}
        facts = {name: getattr(step, name) for name in STEP_FACTS}
        facts["current"] = tuple(launch for launch in step.current if launch in worlds)
        job.steps.append(Step(command, worlds, **facts))
    if job.steps and job.steps[-1].exit_code is None and not job.steps[-1].current:
        _find_first_world(daemon, job)
    return members


def _find_first_world(daemon: Daemon, job: JobRuntime) -> None:
    """Find the first world of a step whose start was not noted; else let its line ask again."""
    launcher, step, first = daemon.launcher, job.steps[-1], job.launch_count
    parts = daemon.worlds.parts(job.id, step.command, daemon.worlds.slots_of(job)[0])
    for number in range(first, first + len(parts)):
        kept, members = launcher.world_status_file(job.id, number), launcher.members(job.id, number)
        if members or kept.exists():
            step.worlds[number] = ManagedProcess(min(members, default=0), status_file=kept)
    if not step.worlds and job.submission.survive:  # its world is started when its keepers serve
        step.waits_s, job.revives = -inf, True
    elif len(step.worlds) == len(parts):
        step.current, job.launch_count = tuple(step.worlds), first + len(parts)
    else:
        for number in step.worlds:  # it would wait for the others for good
            launcher.kill(job.id, number)
        if step.worlds:
            job.launch_count = first + len(parts)
        job.steps, job.keys = job.steps[:-1], job.keys[: len(job.steps) - 1]
    daemon.worlds.save_steps(job)


# --- other nodes: running jobs wait again or have failed -----------------------------------------


def reopen(daemon: Daemon, cluster: Cluster) -> None:
    """Go on with other nodes: jobs that ran on those before wait again, or have failed."""
    context, state = daemon.context, daemon.context.state
    daemon.scripts.stopping = True  # on nodes that are gone nothing starts
    for job_id in list(state.running):
        _enter_end(daemon, daemon.jobs[job_id])
    failed, notes, copied = list[JobId](), Notes(), context.journal.noted(MarkNote).copied
    for job_id, running in state.running.items():
        job = daemon.jobs[job_id]
        again = not copied and (job.submission.requeue or running.start_s is None)
        if not again:
            failed.append(job_id)
            reason = scripts.COPIED if copied else "its nodes were taken away while it ran"
            context.scheduler.reasons[job_id] = reason
            job.exit_code = 1
            notes.append(EndNote(job_id, 1, "", reason))
        notes += daemon.scripts.forget(job)
        log.info(f"job {job_id}: its nodes are gone; {'requeued' if again else 'FAILED'}")
    daemon.scripts.stopping = False
    drained = context.drained
    down = tuple(n for name in cluster.hosts if name in drained for n in cluster.nodes_of[name])
    before = len(context.cluster.hosts)
    log.info(f"goes on with {len(cluster.hosts)} nodes, after {before} before")
    event = Reopened(
        daemon.time(),
        context.settings.where,
        nodes=cluster.names,
        power=cluster.power,
        widths=cluster.widths,
        down=down,
        failed=tuple(failed),
        shared=cluster.shared,
        levels=cluster.levels,
    )
    daemon.handle(event, notes)


def _enter_end(daemon: Daemon, job: JobRuntime) -> None:
    """Enter the end of a job whose script ended before its nodes were taken away."""
    status = daemon.launcher.status_file(job.id)
    if daemon.context.state.running[job.id].start_s is None or not status.exists():
        return
    job.script = ManagedProcess(0, status_file=status)
    at_s = status.stat().st_mtime - daemon.context.skew_s
    with daemon.context.as_of(min(at_s, daemon.now())):
        restore_steps(daemon, job)
        code = job.script.status()
        for number, step in enumerate(job.steps):
            if step.exit_code is None:
                daemon.worlds.conclude(job, number, 1)
        if job.ending is None and all(s.exit_code == 0 for s in job.steps) and code == 0:
            daemon.job_watch.end_script(job, code)


def settle(daemon: Daemon) -> None:
    """Log losses; end processes of unknown jobs, and jobs that cannot start."""
    state, journal = daemon.context.state, daemon.journal
    for sentence in journal.damage:
        log.warning(f"{journal.path}: {sentence}")
    for job_id, job in state.waiting.items():
        if job.state is JobState.PENDING and daemon.jobs[job_id].submission is LOST:
            daemon.scheduler.reasons[job_id] = NO_NOTE
            daemon.handle(Ended(daemon.time(), job_id, "FAILED"))
            log.info(f"job {job_id} FAILED: {NO_NOTE}")
    if journal.damage:
        ids = {*state.waiting, *state.running, *state.ended, *journal.archived_ids()}
        names = {name for name in _names(daemon.launcher.state / "jobs") if _ID.fullmatch(name)}
        arrays = {job_id.partition("_")[0] for job_id in ids}
        lost = sorted(names - ids - arrays, key=lambda name: [int(n) for n in name.split("_")])
        if lost:
            more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
            words = f"jobs {', '.join(lost[:MOST_NAMED])}{more}"
            log.warning(f"missing in the journal, or refused when submitted: {words}")
    daemon.worlds.keepers.adopt(daemon.launcher.jobs())
    mark = journal.noted(MarkNote)
    if mark.copied:
        log.warning(
            f"{journal.path.parent} is a copy of another state folder: the processes of its "
            "jobs are not touched, and waiting jobs run here as well"
        )
        journal.note(msgspec.structs.replace(mark, copied=False))
    for name in daemon.launcher.jobs():
        if _ID.fullmatch(name) and name not in state.running:
            daemon.launcher.kill(name)
            log.info(f"job {name}: killed its remaining processes, as it does not run")
