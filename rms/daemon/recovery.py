"""A daemon that was killed and is back: the journal, and the processes that still run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rms.core.cluster import Cluster
from rms.core.events import Decision, Ended, Reopened, Start, Started
from rms.core.model import JobId, JobState, Node
from rms.core.policies import named
from rms.core.rules import RuleError
from rms.core.transition import TransitionError
from rms.daemon import relaunch
from rms.daemon.jobs import JobRuntime, Step
from rms.daemon.journal import Opened, PolicySet, Seen
from rms.launch.base import LaunchCommand, ManagedProcess

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon

REQUEUED = "REQUEUED"
"""The ending of a job that is to wait again."""


def restore(daemon: Daemon) -> list[tuple[int, list[Decision]]]:
    """Bring the state back from the journal; return decisions that were never acted on."""
    for key, note in daemon.journal.notes("job/").items():
        daemon.live[JobId(key.removeprefix("job/"))] = JobRuntime(note)
    pending: list[tuple[int, list[Decision]]] = []
    for entry in daemon.journal.read():
        if isinstance(entry, Opened | PolicySet):
            daemon.engine.policy = named(entry.policy)
            if isinstance(entry, Opened):
                daemon.engine.state.max_concurrent_resizes = entry.at_once
        elif isinstance(entry, Seen):
            try:
                decisions = daemon.feed(entry.event)
            except (TransitionError, RuleError) as error:
                if entry.decisions is not None:
                    raise
                daemon.say(f"event {entry.seq} was refused before the restart: {error}")
                continue
            if entry.decisions is None:
                pending.append((entry.seq, decisions))
            elif tuple(decisions) != entry.decisions:
                daemon.say(f"event {entry.seq}: this version decides otherwise than recorded")
    for job_id, live in daemon.live.items():
        live.resizes = daemon.journal.notes(f"resizes/{job_id}").get(
            f"resizes/{job_id}", {"rows": []}
        )["rows"]
        end = daemon.journal.notes(f"end/{job_id}").get(f"end/{job_id}", {})
        live.answer, live.reason = end.get("answer", ""), end.get("reason", live.reason)
        job = daemon.engine.state.running.get(job_id)
        if job is not None and job.requested_nodes is None:
            live.wish = None
    return pending


def adopt(daemon: Daemon, pending: list[tuple[int, list[Decision]]]) -> None:
    """Take back into the books what still runs; requeue or end what does not."""
    for number, decisions in pending:
        daemon.journal.decided(number, decisions)
    for job_id, job in list(daemon.engine.state.running.items()):
        live = daemon.live[job_id]
        pid = daemon.journal.notes(f"script/{job_id}").get(f"script/{job_id}", {}).get("pid")
        script = daemon.launcher.find_script(job_id, pid)
        if job.state is JobState.CONFIGURING and script is None:
            daemon.start(Start(job_id, job.nodes, "decided before the restart"))
            daemon.say(f"job {job_id}: started now, as decided before the restart")
            continue
        if job.state is JobState.CONFIGURING and script is not None:
            live.script = script
            if not script.started:
                continue
            daemon.handle(Started(daemon.time(), job_id))
        _take_back(daemon, job_id, live, script)


def reopen(
    daemon: Daemon,
    pending: list[tuple[int, list[Decision]]],
    cluster: Cluster,
    where: str,
) -> None:
    """Go on with other nodes: what ran on those before waits again, or has failed."""
    for number, decisions in pending:
        daemon.journal.decided(number, decisions)
    state, daemon.stopping = daemon.engine.state, True  # on nodes that are gone nothing starts
    for job_id in list(state.running):
        _ended_meanwhile(daemon, job_id)
    failed = []
    for job_id, job in state.running.items():
        live = daemon.live[job_id]
        again = live.note["requeue"] or job.start_s is None
        if not again:
            failed.append(job_id)
            live.reason = "its nodes were taken away while it ran"
            daemon.journal.note(
                f"end/{job_id}", {"exit_code": 1, "answer": "", "reason": live.reason}
            )
        daemon.forget(job_id, live)
        daemon.say(f"job {job_id}: its nodes are gone; {'requeued' if again else 'FAILED'}")
    daemon.stopping = False
    down = [Node(n) for n, name in enumerate(cluster.names) if name in daemon.drained]
    before, daemon.home = len(daemon.cluster.names), cluster
    daemon.say(f"goes on with {len(cluster.names)} nodes, after {before} before")
    daemon.handle(
        Reopened(
            max(daemon.now(), state.now_s),
            where,
            cluster.names,
            cluster.power,
            cluster.widths,
            tuple(down),
            tuple(failed),
        )
    )


def _ended_meanwhile(daemon: Daemon, job_id: JobId) -> None:
    """Enter the end of a job whose script came to it before its nodes were taken away."""
    status = daemon.launcher.status_file(job_id)
    if daemon.engine.state.running[job_id].start_s is None or not status.exists():
        return
    clock, live, ended_s = daemon.now, daemon.live[job_id], status.stat().st_mtime
    live.script = ManagedProcess(0, status_file=status)
    daemon.now = lambda: ended_s
    try:
        _known_steps(daemon, job_id, live)
        code = live.script.status()
        for number, step in enumerate(live.steps):
            if step.exit_code is None:
                daemon.worlds.conclude(job_id, live, number, 1)
        if live.ending is None and all(s.exit_code == 0 for s in live.steps) and code == 0:
            daemon.end_script(job_id, live, code)
    finally:
        daemon.now = clock


def _noted(daemon: Daemon, kind: str, job_id: JobId) -> dict[str, Any]:
    return daemon.journal.notes(f"{kind}/{job_id}").get(f"{kind}/{job_id}", {})


def _known_steps(daemon: Daemon, job_id: JobId, live: JobRuntime) -> list[int]:
    """Enter the steps of a job as they were noted; return its processes."""
    members = daemon.launcher.members(job_id)

    def child(number: int, pid: int) -> ManagedProcess:
        """Return a launch; one that was started anew meanwhile has another process."""
        if pid in members or not daemon.launcher.shared_filesystem:
            return ManagedProcess(pid if pid in members else 0)
        return ManagedProcess(min(daemon.launcher.members(job_id, number), default=0))

    def noted_line(number: int) -> LaunchCommand:
        key = f"line/{job_id}/{number}"
        return msgspec.convert(daemon.journal.notes(key)[key], LaunchCommand)

    found = _noted(daemon, "steps", job_id)
    live.keys, live.launches = found.get("keys", []), found.get("launches", 0)
    live.steps = []
    for number, step in enumerate(found.get("steps", [])):
        line = noted_line(number)
        # One that may have spoken of resizes must leave a record.
        live.steps.append(
            Step(
                line,
                {int(n): child(int(n), pid) for n, pid in step["pids"].items()},
                tuple(step["current"]),
                step["strategy"],
                tuple((launch, ranks) for launch, ranks in step["groups"]),
                step["exit_code"],
                step["message"],
                spoke=True,
            )
        )
    return members


def _take_back(
    daemon: Daemon, job_id: JobId, live: JobRuntime, script: ManagedProcess | None
) -> None:
    members, ending = _known_steps(daemon, job_id, live), _noted(daemon, "ending", job_id)
    boot, wanted = (
        _noted(daemon, "boot", job_id),
        daemon.engine.state.running[job_id].requested_nodes,
    )
    if script is None and boot.get("state") in relaunch.STATES and wanted is not None:
        script = daemon.run_script(job_id, live, wanted)
        daemon.journal.note(f"boot/{job_id}", boot | {"state": "starting"})
    if script is not None:
        live.script = script
        daemon.say(
            f"job {job_id}: adopted, {len(members)} processes still run"
            if script.status() is None
            else f"job {job_id}: ended while the daemon was away"
        )
    elif live.note["requeue"] and ending.get("state") in (None, REQUEUED):
        daemon.requeue(job_id, live, "ended, its processes are gone")
        return
    else:
        daemon.say(f"job {job_id}: ended, its processes are gone")
        live.reason = "its processes died while the daemon was away"
        daemon.handle(Ended(daemon.time(), job_id, "FAILED"))
        return
    daemon.worlds.take_back(job_id, live)
    if ending:
        live.ending, live.kill_at = ending["state"], ending["kill_at"]
        daemon.terminate(job_id, live)
