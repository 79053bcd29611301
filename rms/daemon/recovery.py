"""A daemon that was killed and is back: the journal, and the processes that still run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from rms.core.cluster import Cluster
from rms.core.engine import Engine
from rms.core.events import Decision, Ended, Reopened, Start, Started
from rms.core.model import JobId, JobState, Node
from rms.core.policies import named
from rms.core.rules import RuleError
from rms.core.scheduler import Scheduler
from rms.core.transition import TransitionError
from rms.daemon import relaunch
from rms.daemon.jobs import JobRuntime, Step
from rms.daemon.journal import Entry, Journal, JournalError, Opened, Seen
from rms.launch.base import LaunchCommand, ManagedProcess

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon

REQUEUED = "REQUEUED"
"""The ending of a job that is to wait again."""


def noted(journal: Journal, kind: str, job_id: JobId) -> dict[str, Any]:
    """Return a note about a job, empty where there is none."""
    return journal.notes(f"{kind}/{job_id}").get(f"{kind}/{job_id}", {})


class Replay(msgspec.Struct):
    """What came of feeding a journal to a fresh scheduler.

    Attributes:
        scheduler: as it was in the daemon that wrote the journal, if nothing differs.
        events: how many it was fed.
        differing: a sentence for each event on which it decided otherwise than is recorded.
        unrecorded: by sequence number, what it decided on events without recorded decisions:
            nobody has acted on it, so record it and do it.
        refused: a sentence for each of those that it refused, as it did at the time.
        broken: those of ``differing`` that it refused, though it had once taken them.
    """

    scheduler: Scheduler
    events: int = 0
    differing: list[str] = []
    unrecorded: dict[int, list[Decision]] = {}
    refused: list[str] = []
    broken: list[str] = []

    @property
    def engine(self) -> Engine:
        """The scheduler's engine."""
        return self.scheduler.engine


def replay(entries: Iterable[Entry], cluster: Cluster | None = None) -> Replay:
    """Feed the events of a journal to a fresh scheduler, under the policies as recorded.

    Args:
        cluster: the nodes it begins with; by default those of the journal's first entry.

    Raises:
        JournalError: the journal does not begin with a header.
    """
    rest = iter(entries)
    first = next(rest, None)
    if not isinstance(first, Opened):
        raise JournalError(f"expected a header as first entry, got {first}")
    where = first.where if cluster is None else ""
    cluster = cluster or Cluster.recorded(first.nodes, first.power, first.widths)
    found = Replay(Scheduler(cluster, named(first.policy), where))
    engine = found.engine
    engine.state.max_concurrent_resizes = first.at_once
    for entry in rest:
        if not isinstance(entry, Seen):
            engine.policy = named(entry.policy)
            if isinstance(entry, Opened):
                engine.state.max_concurrent_resizes = entry.at_once
            continue
        found.events += 1
        event = f"event {entry.seq} ({type(entry.event).__name__})"
        recorded = entry.decisions
        try:
            got = found.scheduler.feed(entry.event)
        except (TransitionError, RuleError) as error:
            sentence = f"{event}: expected one that the engine takes, got: {error}"
            if recorded is None:
                found.refused.append(sentence)
            else:
                found.differing.append(sentence)
                found.broken.append(sentence)
            continue
        if recorded is None:
            found.unrecorded[entry.seq] = got
        elif tuple(got) != recorded:
            old, new = next((a, b) for a, b in zip_longest(recorded, got) if a != b)
            found.differing.append(f"{event}: expected {old} as recorded, got {new}")
    return found


def restore(
    journal: Journal, cluster: Cluster, where: str, say: Callable[[str], None]
) -> tuple[Scheduler, dict[JobId, JobRuntime]]:
    """Bring scheduler and jobs back from a journal; record decisions that it lacks.

    Args:
        cluster: the nodes there are now. Where it says ``where`` they are, the scheduler begins
            with those that the journal began with.

    Raises:
        JournalError: the journal is damaged, or holds what this version cannot have written.
    """
    found = replay(journal.read(), None if where else cluster)
    scheduler = found.scheduler
    if found.broken:
        raise JournalError(f"{journal.path}: {found.broken[0]}")
    for sentence in (*found.refused, *found.differing):
        say(f"before the restart: {sentence}")
    for number, decisions in found.unrecorded.items():
        journal.decided(number, decisions)
    jobs = {}
    for key, note in journal.notes("job/").items():
        job_id = JobId(key.removeprefix("job/"))
        jobs[job_id] = job = JobRuntime(note)
        job.resizes = noted(journal, "resizes", job_id).get("rows", [])
        end = noted(journal, "end", job_id)
        job.answer = end.get("answer", "")
        if "reason" in end:
            scheduler.reasons[job_id] = end["reason"]
    return scheduler, jobs


def adopt(daemon: Daemon) -> None:
    """Take back into the books what still runs; requeue or end what does not."""
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


def reopen(daemon: Daemon) -> None:
    """Go on with other nodes: what ran on those before waits again, or has failed."""
    cluster, where = daemon.home, daemon.home_where
    state, daemon.stopping = daemon.engine.state, True  # on nodes that are gone nothing starts
    for job_id in list(state.running):
        _ended_meanwhile(daemon, job_id)
    failed = []
    for job_id, job in state.running.items():
        live = daemon.live[job_id]
        again = live.note["requeue"] or job.start_s is None
        if not again:
            failed.append(job_id)
            daemon.scheduler.reasons[job_id] = "its nodes were taken away while it ran"
            daemon.journal.note(
                f"end/{job_id}",
                {"exit_code": 1, "answer": "", "reason": daemon.scheduler.reasons[job_id]},
            )
        daemon.forget(job_id, live)
        daemon.say(f"job {job_id}: its nodes are gone; {'requeued' if again else 'FAILED'}")
    daemon.stopping = False
    down = [Node(n) for n, name in enumerate(cluster.names) if name in daemon.drained]
    before = len(daemon.cluster.names)
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

    found = noted(daemon.journal, "steps", job_id)
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
    members, ending = _known_steps(daemon, job_id, live), noted(daemon.journal, "ending", job_id)
    boot, wanted = (
        noted(daemon.journal, "boot", job_id),
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
        daemon.scheduler.reasons[job_id] = "its processes died while the daemon was away"
        daemon.handle(Ended(daemon.time(), job_id, "FAILED"))
        return
    daemon.worlds.take_back(job_id, live)
    if ending:
        live.ending, live.kill_at = ending["state"], ending["kill_at"]
        daemon.terminate(job_id, live)
