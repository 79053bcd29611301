"""The steps of a job as an earlier daemon has noted them, and the processes they have now."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Ended, Reopened, Started
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies import placing
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon.heart import Daemon
from rms.daemon.jobs import scripts, watch
from rms.daemon.jobs.machine import RELAUNCH, Adopted
from rms.daemon.nodes.energy import restore_energy
from rms.daemon.nodes.nodes import check_placement
from rms.daemon.restart.replay import replay as replay
from rms.daemon.restart.replay import restored
from rms.daemon.store.context import Context, Notes, Settings, describe, warning
from rms.daemon.store.file import RECORDS, Count, DamagedError, prepare, said
from rms.daemon.store.journal import Journal, JournalError
from rms.daemon.store.private import line_file
from rms.daemon.store.record import REQUEUED, JobRuntime, PendingResize, Step
from rms.daemon.store.sandbox import stand_ins
from rms.launch.base import LaunchCommand, Launcher, LaunchError, ManagedProcess
from rms.wire.users import ResizeRow


def known_steps(daemon: Daemon, job: JobRuntime) -> list[int]:
    """Enter the steps of a job as they were noted; return its processes."""
    journal, launcher = daemon.journal, daemon.launcher
    members = launcher.members(job.id)

    def world(number: int, pid: int) -> ManagedProcess:
        """Return a launch; one that was started anew meanwhile has another process."""
        if pid in members or not launcher.shared_filesystem:
            kept = launcher.world_status_file(job.id, number)
            return ManagedProcess(pid if pid in members else 0, status_file=kept)
        return ManagedProcess(min(launcher.members(job.id, number), default=0))

    found = journal.noted("steps", job.id)
    job.keys, job.launch_count = found.get("keys", []), found.get("launches", 0)
    job.steps = []
    for number, step in enumerate(found.get("steps", [])):
        line = journal.noted("line", f"{job.id}/{number}")
        if "env" not in line:  # format 4 and before have it there
            line["env"] = _line_environment(daemon, job, number)
        command = msgspec.convert(line, LaunchCommand)
        job.steps.append(
            Step(
                command,
                {int(n): world(int(n), pid) for n, pid in step["pids"].items()},
                tuple(n for n in step["current"] if str(n) in step["pids"]),
                step["strategy"],
                tuple((launch, ranks) for launch, ranks in step["groups"]),
                step["exit_code"],
                step["message"],
                has_polled=step.get("polled", True),  # then it must leave a record
                cooldown_s=step.get("cooldown_s", 0.0),
                restartable=step.get("restartable", False),
            )
        )
    if job.steps and job.steps[-1].exit_code is None and not job.steps[-1].current:
        _find_first_world(daemon, job)
    return members


def _line_environment(daemon: Daemon, job: JobRuntime, number: int) -> dict[str, str]:
    try:
        return daemon.context.private.kept(line_file(job.id, number))
    except LaunchError as error:  # what runs needs it no more, but a resize would
        daemon.say(f"job {job.id}: {error}")
        return {}


def _find_first_world(daemon: Daemon, job: JobRuntime) -> None:
    """Find the first world of a step whose start was not noted; else let its line ask again."""
    launcher, step, first = daemon.launcher, job.steps[-1], job.launch_count
    running = daemon.context.state.running.get(job.id)
    slots = () if running is None else daemon.context.cluster.slots_of(running.nodes)
    parts = daemon.worlds.parts(job.id, step.command, slots)
    for number in range(first, first + len(parts)):
        kept, members = launcher.world_status_file(job.id, number), launcher.members(job.id, number)
        if members or kept.exists():
            step.worlds[number] = ManagedProcess(min(members, default=0), status_file=kept)
    if len(step.worlds) == len(parts):
        step.current, job.launch_count = tuple(step.worlds), first + len(parts)
    else:
        for number in step.worlds:  # it would wait for the others for good
            launcher.kill(job.id, number)
        if step.worlds:
            job.launch_count = first + len(parts)
        job.steps, job.keys = job.steps[:-1], job.keys[: len(job.steps) - 1]
    daemon.worlds.save_steps(job)


# FUSED rms.daemon.restart.recover: A daemon that was killed and is back: its journal, and the processes that still run.
#
# :func:`resume` brings scheduler and jobs back from the journal (:mod:`rms.daemon.restart.replay`), makes a
# daemon of them, and takes back into the books what still runs (:func:`adopt`), or goes on with other
# nodes (:func:`reopen`).

KILL_S = 5.0
"""Deadline at start for killed processes to end."""

LOST: dict[str, Any] = {"output": "/dev/null", "requeue": False, "token": "", "name": "lost"}
"""What is taken for what was submitted of a job where that is lost."""


# --- the journal ---------------------------------------------------------------------------------


def resume(
    cluster: Cluster,
    journal: Journal,
    launcher: Launcher,
    settings: Settings,
    kind: type[Daemon] = Daemon,
) -> Daemon:
    """Return a daemon that goes on where the journal ends, new or of an earlier daemon.

    Args:
        cluster: the nodes there are now. Where ``settings`` do not say ``where`` they are, they
            must be those of the journal.
        launcher: starts processes.
        kind: what to make.

    Raises:
        JournalError: the journal is damaged, is of other nodes, or holds what this version cannot
            have written.
        PolicyError: there is no such policy, or it does not place jobs.
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
        adopt(daemon)
    else:
        reopen(daemon, cluster)
    daemon.nodes.resume()
    daemon.node_power.resume()
    daemon.look_at_idle_nodes()
    return daemon


def restore(cluster: Cluster, journal: Journal, launcher: Launcher, settings: Settings) -> Context:
    """Bring scheduler and jobs back from a journal; record the decisions that it lacks.

    Args:
        cluster: the nodes the scheduler begins with; those that the journal began with where
            ``settings`` say ``where`` the present ones are.

    Raises:
        JournalError: the journal is damaged, or holds what this version cannot have written.
    """
    found = restored(journal, None if settings.where else cluster)
    missing = found.missing if found.unrecorded else []
    for sentence in (*missing, *found.refused, *found.differing):
        settings.say(f"before the restart: {sentence}")
    for number, decisions in found.unrecorded.items():
        journal.decided(number, decisions)
    if settings.clock is not None:
        settings.clock.not_before(found.engine.state.now_s)
    restore_energy(found.scheduler, journal)
    forget_archived(journal, found.scheduler)
    jobs = known_jobs(journal, found.scheduler)
    drained = frozenset(journal.notes("drained").get("drained", {"names": []})["names"])
    broken = frozenset(journal.notes("broken").get("broken", {"names": []})["names"])
    return Context(settings, found.scheduler, jobs, journal, launcher, drained, broken)


def forget_archived(journal: Journal, scheduler: Scheduler) -> None:
    """Let a scheduler forget the jobs that had been archived when its daemon was killed."""
    state = scheduler.engine.state
    gone = set(map(JobId, journal.archived_among(state.ended)))
    known = {*state.waiting, *state.running, *state.ended}
    scheduler.forget([*gone, *sorted(scheduler.energy.owners() - known)])


def known_jobs(journal: Journal, scheduler: Scheduler) -> dict[JobId, JobRuntime]:
    """Return what was noted of each job but its processes; tell the scheduler how they ended."""
    jobs, state = {}, scheduler.engine.state
    notes = {key.removeprefix("job/"): note for key, note in journal.notes("job/").items()}
    there = [*state.waiting, *state.running, *state.ended]
    kinds = ("resizes", "steps", "end", scripts.NOTE, watch.NOTE)
    known = {key: note for kind in kinds for key, note in journal.notes(f"{kind}/").items()}
    for job_id in there:
        note = notes.get(job_id) or notes.get(job_id.partition("_")[0])
        job = jobs[job_id] = JobRuntime(job_id, LOST if note is None else note)
        rows = known.get(f"resizes/{job_id}", {}).get("rows", [])
        job.resizes = msgspec.convert(rows, list[ResizeRow])
        job.launch_count = known.get(f"steps/{job_id}", {}).get("launches", 0)
        end = known.get(f"end/{job_id}", {})
        job.answer, job.exit_code = end.get("answer", ""), end.get("exit_code")
        if "reason" in end:
            scheduler.reasons[job.id] = end["reason"]
        job.signalled = bool(known.get(f"{watch.NOTE}/{job_id}"))
        job.summary = known.get(f"{scripts.NOTE}/{job_id}", {}).get("line")
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
        if code is None and job.note["requeue"]:
            status.unlink(missing_ok=True)  # written by the shell that ran its script
            daemon.say(f"job {job_id}: {reason}; requeued")
            continue
        state = "COMPLETED" if code == 0 else "FAILED"
        daemon.scripts.enter_end(job, 1 if code is None else code, reason, state)
        daemon.say(f"job {job_id} {state}: {reason}")
    daemon.scripts.stopping = False


# --- the same nodes ------------------------------------------------------------------------------


def is_copy(journal: Journal) -> bool:
    """Return whether the state folder was copied from another one since a daemon served it last."""
    return bool(journal.notes("mark").get("mark", {}).get("copied"))


def adopt(daemon: Daemon) -> None:
    """Take back into the books what still runs; requeue or end what does not."""
    copied = is_copy(daemon.journal)
    for job_id, running in list(daemon.context.state.running.items()):
        job = daemon.jobs.setdefault(job_id, JobRuntime(job_id, LOST))
        if copied and not daemon.launcher.status_file(job_id).exists():
            daemon.scripts.fail(job, scripts.COPIED)
            continue
        try:
            if job.note is LOST:
                raise JournalError("expected what was submitted in the journal, got nothing")
            _adopt(daemon, job, running)
        except Exception as error:  # whatever is wrong about one job, the others go on
            daemon.scripts.fail(job, f"could not be adopted: {describe(error)}")


def _adopt(daemon: Daemon, job: JobRuntime, running: Job) -> None:
    pid = daemon.journal.noted("script", job.id).get("pid")
    script = daemon.launcher.find_script(job.id, pid)
    if running.state is JobState.CONFIGURING:
        if script is None:
            daemon.scripts.start(job, running.nodes)
            daemon.say(f"job {job.id}: started now, as decided before the restart")
            _go_on_ending(daemon, job)  # it may have been submitted to Slurm before
            return
        job.script = script
        if not script.started:
            return
        daemon.handle(Started(daemon.time(), job.id))
    _take_back(daemon, job, script)


def _take_back(daemon: Daemon, job: JobRuntime, script: ManagedProcess | None) -> None:
    members = known_steps(daemon, job)
    ending, boot = (daemon.journal.noted(kind, job.id) for kind in ("ending", "boot"))
    wanted = daemon.context.state.running[job.id].requested_nodes
    newest = boot.get("number") == daemon.scheduler.resizes.get(job.id)
    if script is None and newest and boot.get("state") in RELAUNCH and wanted is not None:
        boot |= {"state": "starting"}
        job.steps, job.keys = [], []
        kept = {"boot": boot, "steps": job.steps_note(), "script": {}}
        daemon.journal.keep({f"{kind}/{job.id}": note for kind, note in kept.items()})
        daemon.scripts.run(job, wanted)
        script = job.script
    if script is not None:
        job.script = script
        daemon.say(
            f"job {job.id}: adopted, {len(members)} processes still run"
            if script.status() is None
            else f"job {job.id}: ended while the daemon was away"
        )
    elif ending.get("state") == REQUEUED or (job.note["requeue"] and not ending):
        daemon.scripts.requeue(job, "ended, its processes are gone")
        return
    else:
        daemon.say(f"job {job.id}: ended, its processes are gone")
        state = ending.get("state", "FAILED")
        reason = "its processes died while the daemon was away"
        daemon.scripts.enter_end(job, 1, reason, "FAILED" if state == REQUEUED else state)
        return
    job.resize = PendingResize.from_note(boot)
    if job.launch_count:
        daemon.worlds.enter_worlds(job, (job.launch_count - 1,))
    daemon.worlds.resize(job, Adopted())
    _go_on_ending(daemon, job)


def _go_on_ending(daemon: Daemon, job: JobRuntime) -> None:
    """Tell a job again to end that was told to before the restart."""
    ending = daemon.journal.noted("ending", job.id)
    if ending and job.script is not None:
        job.ending, job.kill_at = ending["state"], ending["kill_at"]
        daemon.scripts.terminate(job)


# --- other nodes ---------------------------------------------------------------------------------


def reopen(daemon: Daemon, cluster: Cluster) -> None:
    """Go on with other nodes: what ran on those before waits again, or has failed."""
    context, state = daemon.context, daemon.context.state
    daemon.scripts.stopping = True  # on nodes that are gone nothing starts
    for job_id in list(state.running):
        _enter_end(daemon, daemon.jobs[job_id])
    failed, kept, copied = [], Notes(), is_copy(context.journal)
    for job_id, running in state.running.items():
        job = daemon.jobs[job_id]
        again = not copied and (job.note["requeue"] or running.start_s is None)
        if not again:
            failed.append(job_id)
            reason = scripts.COPIED if copied else "its nodes were taken away while it ran"
            context.scheduler.reasons[job_id] = reason
            job.exit_code = 1
            kept[f"end/{job_id}"] = {"exit_code": 1, "answer": "", "reason": reason}
        kept |= daemon.scripts.forget(job)
        daemon.say(f"job {job_id}: its nodes are gone; {'requeued' if again else 'FAILED'}")
    daemon.scripts.stopping = False
    drained = context.drained
    down = tuple(n for name in cluster.hosts if name in drained for n in cluster.nodes_of[name])
    before = len(context.cluster.hosts)
    daemon.say(f"goes on with {len(cluster.hosts)} nodes, after {before} before")
    at_s, where = daemon.time(), context.settings.where
    given = cluster.names, cluster.power, cluster.widths
    kinds = cluster.shared, cluster.levels
    daemon.handle(Reopened(at_s, where, *given, down, tuple(failed), *kinds), kept)


def _enter_end(daemon: Daemon, job: JobRuntime) -> None:
    """Enter the end of a job whose script came to it before its nodes were taken away."""
    status = daemon.launcher.status_file(job.id)
    if daemon.context.state.running[job.id].start_s is None or not status.exists():
        return
    job.script = ManagedProcess(0, status_file=status)
    at_s = status.stat().st_mtime - daemon.context.skew_s
    with daemon.context.as_of(min(at_s, daemon.now())):
        known_steps(daemon, job)
        code = job.script.status()
        for number, step in enumerate(job.steps):
            if step.exit_code is None:
                daemon.worlds.conclude(job, number, 1)
        if job.ending is None and all(s.exit_code == 0 for s in job.steps) and code == 0:
            daemon.end_script(job, code)


# FUSED rms.daemon.restart.recover: What is left of a daemon whose journal was cut, zeroed or deleted, and what is missing.
#
# A journal that SQLite cannot read is set aside, and what can be read of it is copied to a new one
# (:func:`open_journal`). Numbers of jobs are never given again (:func:`restore_notes`). Once the
# daemon is back, it is said what is missing, and what runs of jobs that nobody knows is ended
# (:func:`settle`).

NO_NOTE = "what it was submitted with is missing from the journal"
MOST_NAMED = 20
"""Of more ids than this the first and the number are said."""

_ID = re.compile(r"([0-9]+)(?:_[0-9]+)?")


def open_journal(path: Path, say: Callable[[str], None]) -> Journal:
    """Open a journal; one that is broken is set aside, and what can be read of it goes on.

    Raises:
        JournalError: as :meth:`rms.daemon.store.journal.Journal.open`; a broken file beside which no
            count is kept may be no journal at all, and is left alone.
    """
    whole = path.with_name(f"{path.name}.salvaged")
    if whole.exists():  # a daemon was killed while it did this
        _replace(path, whole)
    try:
        return Journal.open(path)
    except DamagedError as error:
        if not any(each.exists() for each in Count(path).paths):
            raise
        say(warning(str(error)))
    part = path.with_name(f"{path.name}.salvaging")
    part.unlink(missing_ok=True)
    found = _copy(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(whole)
    aside = _replace(path, whole)
    words = f"{path}: {found} records could be read, and go on; the file is kept as {aside.name}"
    say(warning(words))
    return Journal.open(path)


def _replace(path: Path, whole: Path) -> Path:
    """Put a whole journal in the place of a broken one; return where that is now."""
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.{n}")).exists())
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        os.link(path, aside)
    with contextlib.suppress(FileNotFoundError):
        log.rename(aside.with_name(f"{aside.name}-wal"))
    whole.replace(path)
    return aside


def _copy(path: Path, part: Path) -> int:
    """Copy what can be read of a journal to a new one; return how many records that were."""
    found = 0
    with (
        said(path),
        contextlib.closing(sqlite3.connect(path.absolute(), timeout=0)) as old,
        contextlib.closing(sqlite3.connect(part.absolute())) as new,
    ):
        prepare(new, part)
        new.execute("PRAGMA journal_mode = DELETE")
        new.execute("BEGIN")
        for table in (*RECORDS, "over", "energy", "tasks"):
            for row in _rows(old, table):
                places = ", ".join("?" * len(row))
                found += new.execute(
                    f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({places})",
                    tuple(row.values()),
                ).rowcount
        new.execute("COMMIT")
    return found


def _rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table up to the first page that cannot be read, and from the last on."""
    try:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    except sqlite3.Error:
        return
    key = "rowid" if table != "energy" else "node, begin_s, owner, device, source"
    for order in (key, ", ".join(f"{part} DESC" for part in key.split(", "))):
        try:
            for row in db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"):
                yield dict(zip(columns, row, strict=True))
        except sqlite3.Error:
            continue
        return


# --- what may not be given again -----------------------------------------------------------------


def restore_notes(journal: Journal, jobs: Path) -> None:
    """Bring back whose processes are the journal's own, and let no number be given twice.

    Args:
        jobs: folder with one of each job.
    """
    kept = {} if journal.counted is None else journal.counted.notes
    notes = journal.notes()
    if "mark" in kept and "mark" not in notes:
        journal.note("mark", kept["mark"])
    known = notes.get("next", {"id": 1})["id"]
    used = max((int(match[1]) for match in map(_ID.fullmatch, _names(jobs)) if match), default=0)
    following = max(known, kept.get("next", {"id": 1})["id"], used + 1)
    if following > known:
        journal.note("next", {"id": following})


def own_mark(journal: Journal, state: Path) -> str:
    """Return the mark of this folder's processes, which a restart or a rename does not change.

    It belongs to the folder's file system and inode, or to the inodes of the folder and of its
    journal, as XFS may have another id after a reboot. A copy of the folder gets a new mark and
    port, and does not take over the processes of the original. A note without either is of a
    version that recorded neither, and taken for the folder's own.
    """
    inode = state.stat().st_ino
    place = {
        "folder": f"{os.statvfs(state).f_fsid:x}-{inode}",
        "inodes": [inode, journal.path.stat().st_ino],
    }
    note = journal.notes("mark").get("mark", {})
    known = place.keys() & note.keys()
    if not note or (known and all(note[key] != place[key] for key in known)):
        note = {"mark": secrets.token_hex(8), **place, "copied": bool(note)}
        journal.keep({"mark": note, "port": {"port": 0}})
        journal.flush()
    elif note != note | place:
        note |= place
        journal.note("mark", note)
    return str(note["mark"])


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208


# --- what is missing -----------------------------------------------------------------------------


def settle(daemon: Daemon) -> None:
    """Say what is missing; end what runs of jobs that nobody knows, and jobs that cannot start."""
    state, journal = daemon.context.state, daemon.journal
    for sentence in journal.damage:
        daemon.say(warning(f"{journal.path}: {sentence}"))
    for job_id, job in state.waiting.items():
        if job.state is JobState.PENDING and daemon.jobs[job_id].note is LOST:
            daemon.scheduler.reasons[job_id] = NO_NOTE
            daemon.handle(Ended(daemon.time(), job_id, "FAILED"))
            daemon.say(f"job {job_id} FAILED: {NO_NOTE}")
    if journal.damage:
        known = {*state.waiting, *state.running, *state.ended, *journal.archived_ids()}
        names = {name for name in _names(daemon.launcher.state / "jobs") if _ID.fullmatch(name)}
        arrays = {job_id.partition("_")[0] for job_id in known}
        lost = sorted(names - known - arrays, key=lambda name: [int(n) for n in name.split("_")])
        if lost:
            daemon.say(warning(f"not known any more, or refused at the time: {_listed(lost)}"))
    if is_copy(journal):
        daemon.say(
            warning(
                f"{journal.path.parent} is a copy of another state folder: the processes of its "
                "jobs are not touched, and waiting jobs run here as well"
            )
        )
        journal.note("mark", journal.notes("mark")["mark"] | {"copied": False})
    for name in daemon.launcher.jobs():
        if _ID.fullmatch(name) and name not in state.running:
            daemon.launcher.kill(name)
            daemon.say(f"job {name}: ended what was left of it, as it is not known to run")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"jobs {', '.join(names[:MOST_NAMED])}{more}"
