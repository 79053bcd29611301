"""A daemon that was killed and is back: the journal, and the processes that still run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rms.events import Decision, Ended, Start, Started
from rms.journal import Opened, PolicySet, Seen
from rms.live import Line, Live, Step
from rms.local import Child
from rms.model import JobId, JobState
from rms.policies import named
from rms.rules import RuleError
from rms.transition import TransitionError

if TYPE_CHECKING:
    from rms.daemon import Daemon


def restore(daemon: Daemon) -> list[tuple[int, list[Decision]]]:
    """Bring the state back from the journal; return decisions that were never acted on."""
    for key, note in daemon.journal.notes("job/").items():
        daemon.live[JobId(key.removeprefix("job/"))] = Live(note)
    pending: list[tuple[int, list[Decision]]] = []
    for entry in daemon.journal.read():
        if isinstance(entry, Opened | PolicySet):
            daemon.engine.policy = named(entry.policy)
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
        if job is not None and job.requested is None:
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


def _take_back(daemon: Daemon, job_id: JobId, live: Live, script: Child | None) -> None:
    members = daemon.launcher.members(job_id)

    def noted(kind: str) -> dict[str, Any]:
        return daemon.journal.notes(f"{kind}/{job_id}").get(f"{kind}/{job_id}", {})

    def noted_line(number: int) -> Line:
        key = f"line/{job_id}/{number}"
        return msgspec.convert(daemon.journal.notes(key)[key], Line)

    found, ending = noted("steps"), noted("ending")
    live.keys, live.launches = found.get("keys", []), found.get("launches", 0)
    live.steps = []
    for number, step in enumerate(found.get("steps", [])):
        line = noted_line(number)
        # One that may have spoken of resizes must leave a record.
        live.steps.append(
            Step(
                line,
                {int(n): Child(pid if pid in members else 0) for n, pid in step["pids"].items()},
                tuple(step["current"]),
                step["strategy"],
                tuple((launch, ranks) for launch, ranks in step["groups"]),
                step["exit_code"],
                step["message"],
                spoke=True,
            )
        )
    if script is not None:
        live.script = script
        daemon.say(
            f"job {job_id}: adopted, {len(members)} processes still run"
            if script.status() is None
            else f"job {job_id}: ended while the daemon was away"
        )
    elif live.note["requeue"] and not ending:
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
