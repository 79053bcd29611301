"""The daemon's heart: events from processes and users, through the journal, to the launcher.

Single-threaded: every method runs in the server's event loop. Order of things, always: journal
the event, hand it to the engine, journal the decisions, act on them. What is not in the engine's
state but needed after a restart (scripts, outputs, tokens) is in the journal's notes.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rms.engine import Engine
from rms.events import (
    Decision,
    Ended,
    Event,
    Never,
    Requeued,
    Resize,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Submitted,
)
from rms.journal import Journal, Opened, PolicySet, Seen
from rms.ledger import Ledger, NodePower
from rms.local import Child, LaunchError, LocalLauncher, cores_of
from rms.model import Job, JobId, JobSpec, JobState, Node
from rms.policies import named
from rms.protocol import Done, Poll, ProtocolError, Report, RolledBack, Wish, read_completion
from rms.rules import RuleError
from rms.transition import TransitionError

GRACE_S = 10.0


@dataclass(frozen=True)
class LiveCluster:
    """Nodes with the slots they hold (``cpu:3``, ``gpu:0``) and their power models."""

    names: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]
    power: tuple[NodePower, ...]


@dataclass
class Step:
    """One launcher line of a job script: a sequence of worlds, and how it ended."""

    child: Child | None = None
    exit_code: int | None = None
    message: str = ""
    spoke: bool = False  # it asked for wishes: a program of dmr, which leaves a record


@dataclass
class Live:
    """What the daemon knows of a job beside the engine."""

    note: dict[str, Any]
    script: Child | None = None
    steps: list[Step] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    resizes: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    wish: Wish | None = None
    wishes: int = 0
    step: int = 0
    total: int = 0
    reason: str = ""
    ending: str | None = None
    kill_at: float | None = None
    answer: str = ""


class Daemon:
    """One RMS.

    Args:
        cluster: the nodes.
        policy: name of the policy.
        journal: open journal, empty or of an earlier daemon with the same nodes.
        launcher: starts processes.
        now: wall clock in seconds.
        say: where to tell the operator what happened.
        grace_s: from SIGTERM to SIGKILL: time for a job to reach a resize point and write its
            checkpoint.
    """

    def __init__(
        self,
        cluster: LiveCluster,
        policy: str,
        journal: Journal,
        launcher: LocalLauncher,
        now: Callable[[], float],
        say: Callable[[str], None],
        grace_s: float = GRACE_S,
    ) -> None:
        self.cluster, self.journal, self.launcher = cluster, journal, launcher
        self._now, self._say, self._grace_s = now, say, grace_s
        self.engine = Engine(len(cluster.names), named(policy))
        self.ledger = Ledger(cluster.power)
        self.live: dict[JobId, Live] = {}
        self.spans: list[dict[str, Any]] = []
        self.power_w: list[tuple[float, float]] = []
        self.closed: dict[str, Any] | None = None
        self.stopping = False
        self._queue: deque[Event] = deque()
        self._handling = False
        self._open_spans: dict[Node, dict[str, Any]] = {}
        journal.header(cluster.names, policy)
        pending = self._restore()
        self._adopt(pending)

    # --- events ------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Decision]:
        """Journal an event, decide, journal the decisions, act; then what acting led to."""
        self._queue.append(event)
        if self._handling:
            return []
        self._handling = True
        try:
            first = self._handle(self._queue.popleft())
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._handling = False
            self._queue.clear()
        return first

    def _handle(self, event: Event) -> list[Decision]:
        event = msgspec.structs.replace(event, at_s=max(event.at_s, self.engine.state.now_s))
        number = self.journal.append(event)
        decisions = self._feed(event)
        self.journal.decided(number, decisions)
        for decision in decisions:
            self._act(decision)
        return decisions

    def time(self) -> float:
        """Return the time for the next event: the wall clock, never going back."""
        return max(self._now(), self.engine.state.now_s)

    def _feed(self, event: Event) -> list[Decision]:
        self.ledger.advance(self.engine.state, event.at_s)
        decisions = self.engine.handle(event)
        for decision in decisions:
            live = self.live.get(decision.job)
            if live is None:
                continue
            live.reason = "" if isinstance(decision, Start | Resize) else decision.reason
            self._remember(live, event.at_s, decision)
            if isinstance(decision, Resize):
                live.wishes += 1
                live.wish = Wish(live.wishes, self._slots(decision.nodes))
        self._book_spans(event.at_s)
        self.power_w.append((event.at_s, self.ledger.power_w(self.engine.state)))
        if not self.engine.state.running and not self.engine.state.pending:
            self.closed = self._books()
        return decisions

    def _remember(self, live: Live, at_s: float, decision: Decision) -> None:
        """Keep a decision about a job for ``rms explain``; repeats of one reason once."""
        entry: dict[str, Any] = {
            "at_s": at_s,
            "kind": type(decision).__name__.lower(),
            "code": str(decision.code),
            "reason": decision.reason,
            "size": 0,
            "nodes": [],
        }
        if isinstance(decision, Start | Resize):
            entry["size"] = len(self._slots(decision.nodes))
            entry["nodes"] = [self.cluster.names[n] for n in decision.nodes]
        before = live.history[-1] if live.history else {}
        if any(before.get(key) != entry[key] for key in ("kind", "reason", "size")):
            live.history.append(entry)

    def measured(self, at_s: float, gpu: int, watts: float) -> None:
        """Take a reading of a device: its node draws that from now on, whatever runs there."""
        for node, slots in enumerate(self.cluster.slots):
            if slots == (f"gpu:{gpu}",):
                self.ledger.advance(self.engine.state, max(at_s, self.ledger.at_s or at_s))
                self.ledger.measured_w[Node(node)] = watts

    @property
    def power_source(self) -> str:
        """Where the books' power comes from."""
        found = len(self.ledger.measured_w)
        if not found:
            return "model"
        return "nvidia-smi" if found == len(self.cluster.names) else "nvidia-smi and model"

    def _book_spans(self, now: float) -> None:
        """Keep who held which node when, for charts."""
        holders = {
            node: str(job_id)
            for job_id, job in self.engine.state.running.items()
            for node in (job.held if job.moving else job.nodes)
        }
        for node, span in list(self._open_spans.items()):
            if holders.get(node) != span["job"]:
                span["end_s"] = now
                del self._open_spans[node]
        for node, job in holders.items():
            if node not in self._open_spans:
                span = {"node": self.cluster.names[node], "job": job, "start_s": now, "end_s": None}
                self._open_spans[node] = span
                self.spans.append(span)

    def _act(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            if not self.stopping:  # else the next daemon starts it, as one not yet acted on
                self._start(decision)
        elif isinstance(decision, Never):
            self._say(f"job {decision.job} can never run: {decision.reason}")

    def _start(self, decision: Start) -> None:
        live, job_id = self.live[decision.job], decision.job
        note = live.note
        first = decision.nodes[0]
        cores = cores_of(self.cluster.slots[first])
        env = {**note["env"], **self._job_env(job_id, len(decision.nodes))}
        try:
            live.script = self.launcher.start_script(
                job_id,
                Path(note["script"]),
                note["cwd"],
                env,
                Path(note["output"]),
                cores,
            )
        except LaunchError as error:
            self._say(f"job {job_id}: {error}")
            live.reason = str(error)
            self.handle(Started(self.time(), job_id))
            self.handle(Ended(self.time(), job_id, "FAILED"))
            return
        self.journal.note(f"script/{job_id}", {"pid": live.script.pid})
        self.handle(Started(self.time(), job_id))

    def _job_env(self, job_id: JobId, nodes: int) -> dict[str, str]:
        note = self.live[job_id].note
        values = {"JOB_ID": job_id, "JOB_NUM_NODES": str(nodes)}
        if note["index"] is not None:
            values |= {"ARRAY_JOB_ID": note["array"], "ARRAY_TASK_ID": str(note["index"])}
        both = {f"{kind}_{key}": v for kind in ("RMS", "SLURM") for key, v in values.items()}
        return both | {"RMS_TOKEN": note["token"]}

    def _slots(self, nodes: tuple[Node, ...]) -> tuple[str, ...]:
        return tuple(slot for node in nodes for slot in self.cluster.slots[node])

    # --- what users ask ----------------------------------------------------------------------

    def submit(self, specs: list[JobSpec], notes: Mapping[JobId, dict[str, Any]]) -> None:
        """Take in jobs; durable when it returns."""
        for spec in specs:
            note = {**notes[spec.id], "token": secrets.token_hex(16)}
            self.live[spec.id] = Live(note)
            self.journal.note(f"job/{spec.id}", note)
        self.handle(Submitted(self.time(), tuple(specs)))

    def next_id(self) -> int:
        """Return a job number never used before."""
        used = self.journal.notes("next").get("next", {"id": 1})["id"]
        self.journal.note("next", {"id": used + 1})
        return int(used)

    def cancel(self, job_id: JobId, state: str = "CANCELLED") -> None:
        """End a job: at once if it waits, by SIGTERM and later SIGKILL if it runs."""
        live = self.live[job_id]
        if live.script is None:
            self.handle(Ended(self.time(), job_id, "CANCELLED"))
            return
        if live.ending is None:
            live.ending, live.kill_at = state, self._now() + self._grace_s
            self.journal.note(f"ending/{job_id}", {"state": state, "kill_at": live.kill_at})
            self._terminate(job_id, live)

    def _terminate(self, job_id: JobId, live: Live) -> None:
        worlds = [s.child for s in live.steps if s.child is not None and s.exit_code is None]
        self.launcher.terminate(job_id, worlds)

    def resize(self, job_id: JobId, nodes: int) -> Decision:
        """Ask for a resize on a user's behalf; the decision says what became of it."""
        return self.handle(ResizeAsked(self.time(), job_id, nodes))[0]

    def set_policy(self, name: str) -> None:
        """Let another policy decide from now on."""
        policy = named(name)
        self.journal.policy(name, self.time())
        self.engine.policy = policy

    # --- what jobs say -----------------------------------------------------------------------

    def poll(self, job_id: JobId, poll: Poll) -> Wish | None:
        """Hear how far a job is; return the wish it does not know of yet."""
        live, job = self.live[job_id], self.engine.state.running.get(job_id)
        live.step, live.total = poll.step, poll.steps
        if live.steps:
            live.steps[-1].spoke = True
        if job is not None and job.state is JobState.RUNNING and not job.answers:
            self.handle(ResizePoint(self.time(), job_id))
        return live.wish if live.wish is not None and live.wish.number > poll.known else None

    def report(self, job_id: JobId, report: Report) -> None:
        """Hear how a resize goes; a report that was heard already changes nothing."""
        live, job = self.live[job_id], self.engine.state.running.get(job_id)
        if live.wish is None or report.number != live.wish.number or job is None:
            return
        if isinstance(report, RolledBack):
            live.wish = None
            self.handle(ResizeRolledBack(self.time(), job_id, report.why))
            return
        if not job.moving:
            self.handle(ResizeBegun(self.time(), job_id))
        if isinstance(report, Done):
            live.wish = None
            row = {"at_s": self.time(), **msgspec.to_builtins(report.resize)}
            live.resizes.append(row)
            self.journal.note(f"resizes/{job_id}", {"rows": live.resizes})
            self.handle(Resized(self.time(), job_id))

    def launch(
        self,
        job_id: JobId,
        command: list[str],
        cwd: str,
        env: dict[str, str],
        outputs: tuple[str | None, str | None],
        key: str,
    ) -> int:
        """Boot a world for a launcher line of a job script; return the step's number.

        Its standard output and error go to ``outputs``, where those are files.

        A line that asks again with its ``key``, its daemon having been away, gets the same step.
        """
        live, job = self.live[job_id], self.engine.state.running[job_id]
        if key in live.keys:
            return live.keys.index(key)
        number = len(live.steps)
        step = Step()
        live.steps.append(step)
        live.keys.append(key)
        self._note_steps(job_id, live)
        out, err = (Path(name or live.note["output"]) for name in outputs)
        try:
            step.child = self.launcher.boot_world(
                job_id, number, self._slots(job.nodes), command, cwd, env, out, err
            )
        except LaunchError as error:
            step.exit_code, step.message = 1, str(error)
        self._note_steps(job_id, live)
        return number

    def _note_steps(self, job_id: JobId, live: Live) -> None:
        pids = [0 if step.child is None else step.child.pid for step in live.steps]
        self.journal.note(f"steps/{job_id}", {"keys": live.keys, "pids": pids})

    # --- processes ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at all processes once: worlds that ended, scripts that ended, time that is up."""
        now = self._now()
        for job_id, job in list(self.engine.state.running.items()):
            live = self.live[job_id]
            self._watch_steps(job_id, live)
            limit = job.spec.limit_s
            if limit is not None and job.start_s is not None and now > job.start_s + limit:
                self.cancel(job_id, "TIMEOUT")
            if live.kill_at is not None and now > live.kill_at:
                self.launcher.kill(job_id)
            if live.script is not None:
                status = live.script.status()
                if status is not None:
                    self._job_over(job_id, live, status)

    def _watch_steps(self, job_id: JobId, live: Live) -> None:
        for number, step in enumerate(live.steps):
            if step.child is None or step.exit_code is not None:
                continue
            status = step.child.status()
            if status is None:
                continue
            try:
                record = read_completion(self.launcher.record(job_id, number))
                step.exit_code, step.message = record.exit_code, record.message
                live.answer = record.answer or live.answer
            except (OSError, ProtocolError):
                # No record of a program of dmr: it died, whatever mpiexec's own status says.
                # Another program has had no worlds but this one, so that status counts.
                if status == 0 and not step.spoke:
                    step.exit_code = 0
                    continue
                step.exit_code, step.message = status or 1, "died without a completion record"

    def _job_over(self, job_id: JobId, live: Live, status: int) -> None:
        self._watch_steps(job_id, live)
        self.launcher.kill(job_id)
        failed = next((s for s in live.steps if s.exit_code != 0), None)
        state = live.ending or ("COMPLETED" if status == 0 and failed is None else "FAILED")
        why = failed.message if failed is not None else f"script ended with {status}"
        live.reason = {"COMPLETED": "", "TIMEOUT": f"TimeLimit: {why}"}.get(state, why)
        self.journal.note(
            f"end/{job_id}",
            {"exit_code": status, "answer": live.answer, "reason": live.reason},
        )
        self.handle(Ended(self.time(), job_id, state))  # type: ignore[arg-type]
        self._say(f"job {job_id} {state}{': ' if live.reason else ''}{live.reason}")

    def stop(self) -> None:
        """Ask all jobs to end at checkpoints, and start no others."""
        self.stopping = True
        for job_id in list(self.engine.state.running):
            self.cancel(job_id)

    @property
    def idle(self) -> bool:
        """Whether no job has processes any more."""
        return all(self.live[job_id].script is None for job_id in self.engine.state.running)

    # --- restart -----------------------------------------------------------------------------

    def _restore(self) -> list[tuple[int, list[Decision]]]:
        """Bring the state back from the journal; return decisions that were never acted on."""
        for key, note in self.journal.notes("job/").items():
            self.live[JobId(key.removeprefix("job/"))] = Live(note)
        pending: list[tuple[int, list[Decision]]] = []
        for entry in self.journal.read():
            if isinstance(entry, Opened | PolicySet):
                self.engine.policy = named(entry.policy)
            elif isinstance(entry, Seen):
                try:
                    decisions = self._feed(entry.event)
                except (TransitionError, RuleError) as error:
                    if entry.decisions is not None:
                        raise
                    self._say(f"event {entry.seq} was refused before the restart: {error}")
                    continue
                if entry.decisions is None:
                    pending.append((entry.seq, decisions))
                elif tuple(decisions) != entry.decisions:
                    self._say(f"event {entry.seq}: this version decides otherwise than recorded")
        for job_id, live in self.live.items():
            live.resizes = self.journal.notes(f"resizes/{job_id}").get(
                f"resizes/{job_id}", {"rows": []}
            )["rows"]
            end = self.journal.notes(f"end/{job_id}").get(f"end/{job_id}", {})
            live.answer, live.reason = end.get("answer", ""), end.get("reason", live.reason)
            job = self.engine.state.running.get(job_id)
            if job is not None and job.requested is None:
                live.wish = None
        return pending

    def _adopt(self, pending: list[tuple[int, list[Decision]]]) -> None:
        """Take back into the books what still runs; requeue or end what does not."""
        for number, decisions in pending:
            self.journal.decided(number, decisions)
        for job_id, job in list(self.engine.state.running.items()):
            live = self.live[job_id]
            members = self.launcher.members(job_id)
            status = self.launcher.state / "jobs" / job_id / "status"
            started = members or status.exists()
            if job.state is JobState.CONFIGURING and not started:
                self._start(Start(job_id, job.nodes, "decided before the restart"))
                self._say(f"job {job_id}: started now, as decided before the restart")
                continue
            if job.state is JobState.CONFIGURING:
                self.handle(Started(self.time(), job_id))
            self._take_back(job_id, live, members, status)

    def _take_back(self, job_id: JobId, live: Live, members: list[int], status: Path) -> None:
        def noted(kind: str) -> dict[str, Any]:
            return self.journal.notes(f"{kind}/{job_id}").get(f"{kind}/{job_id}", {})

        steps, ending = noted("steps"), noted("ending")
        live.keys = steps.get("keys", [])
        # One that may have spoken of resizes must leave a record.
        pids = [pid if pid in members else 0 for pid in steps.get("pids", [])]
        live.steps = [Step(child=Child(pid), spoke=True) for pid in pids]
        if members:
            pid = noted("script").get("pid", min(members))
            live.script = Child(pid if pid in members else 0, status_file=status)
            self._say(f"job {job_id}: adopted, {len(members)} processes still run")
        elif status.exists():
            live.script = Child(0, status_file=status)
            self._say(f"job {job_id}: ended while the daemon was away")
        elif live.note["requeue"] and not ending:
            self._say(f"job {job_id}: ended, its processes are gone; requeued")
            live.steps, live.keys, live.wish = [], [], None
            self.handle(Requeued(self.time(), job_id))
            return
        else:
            self._say(f"job {job_id}: ended, its processes are gone")
            live.reason = "its processes died while the daemon was away"
            self.handle(Ended(self.time(), job_id, "FAILED"))
            return
        if ending:
            live.ending, live.kill_at = ending["state"], ending["kill_at"]
            self._terminate(job_id, live)

    # --- what clients see --------------------------------------------------------------------

    def job(self, job_id: JobId) -> Job | None:
        """Return a job, whatever its state."""
        state = self.engine.state
        return state.running.get(job_id) or state.pending.get(job_id) or state.ended.get(job_id)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per job, for queue, show, acct and reports."""
        self.ledger.advance(self.engine.state, self.time())
        state = self.engine.state
        jobs = [*state.ended.values(), *state.running.values(), *state.pending.values()]
        return [self._row(job) for job in sorted(jobs, key=lambda j: _sort_key(j.spec.id))]

    def _row(self, job: Job) -> dict[str, Any]:
        live = self.live.get(job.spec.id, Live({}))
        return {
            "id": job.spec.id,
            "name": live.note.get("name", ""),
            "state": str(job.state),
            "mode": str(job.spec.mode),
            "submit_s": job.spec.submit_s,
            "start_s": job.start_s,
            "end_s": job.end_s,
            "nodes": [self.cluster.names[n] for n in job.nodes] if job.end_s is None else [],
            "size": len(job.nodes),
            "nodes_min": job.spec.nodes_min,
            "nodes_max": job.spec.nodes_max,
            "reason": live.reason,
            "step": live.step,
            "steps": live.total,
            "energy_j": self.ledger.busy_j.get(job.spec.id, 0.0),
            "energy_source": self.power_source,
            "answer": live.answer,
            "resizes": live.resizes,
            "output": live.note.get("output", ""),
        }

    def energy(self) -> dict[str, Any]:
        """Return the books of the cluster, up to now."""
        self.ledger.advance(self.engine.state, self.time())
        return self._books()

    def _books(self) -> dict[str, Any]:
        ledger = self.ledger
        return {
            "at_s": ledger.at_s,
            "busy_j": sum(ledger.busy_j.values()),
            "idle_j": ledger.idle_j,
            "off_j": ledger.off_j,
            "boot_j": ledger.boot_j,
            "cluster_j": ledger.cluster_j,
            "busy_node_s": ledger.busy_node_s,
            "power_source": self.power_source,
        }


def _sort_key(job_id: str) -> tuple[int, int]:
    number, _, index = job_id.partition("_")
    return int(number), int(index or -1)
