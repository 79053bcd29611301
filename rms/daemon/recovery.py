"""A daemon that was killed and is back: its journal, and the processes that still run.

:func:`resume` brings scheduler and jobs back from the journal (:mod:`rms.daemon.replay`), makes a
daemon of them, and takes back into the books what still runs (:func:`adopt`), or goes on with other
nodes (:func:`reopen`).
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Reopened, Started
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies import placing
from rms.core.scheduler.scheduler import Scheduler
from rms.daemon import endings, limits
from rms.daemon.context import Context, Notes, Settings
from rms.daemon.daemon import Daemon
from rms.daemon.faults import describe
from rms.daemon.guard import stand_ins
from rms.daemon.inputs import Adopted
from rms.daemon.jobs import REQUEUED, JobRuntime, PendingResize
from rms.daemon.journal import Journal, JournalError
from rms.daemon.meters import restore_energy
from rms.daemon.nodes import check_placement
from rms.daemon.replay import replay as replay
from rms.daemon.replay import restored
from rms.daemon.resize import RELAUNCH
from rms.daemon.steps import known_steps
from rms.launch.base import Launcher, ManagedProcess
from rms.wire.users import ResizeRow

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
    at_once = launcher.max_concurrent_resizes
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
    kinds = ("resizes", "steps", "end", endings.NOTE, limits.NOTE)
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
        job.signalled = bool(known.get(f"{limits.NOTE}/{job_id}"))
        job.summary = known.get(f"{endings.NOTE}/{job_id}", {}).get("line")
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
            daemon.scripts.fail(job, endings.COPIED)
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
            reason = endings.COPIED if copied else "its nodes were taken away while it ran"
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
