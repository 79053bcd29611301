"""The daemon's heart: events from processes and users, through the journal, to the launcher.

Single-threaded: every method runs in the server's event loop. Order of things, always: journal
the event, hand it to the engine, journal the decisions, act on them. What is not in the engine's
state but needed after a restart (scripts, outputs, tokens) is in the journal's notes.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.core.cluster import Cluster
from rms.core.engine import Engine
from rms.core.events import (
    Decision,
    Ended,
    Event,
    Never,
    NodeDown,
    NodeUp,
    Reopened,
    Requeued,
    Resize,
    ResizeAsked,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Submitted,
    Ticked,
)
from rms.core.model import JobId, JobSpec, JobState, Node
from rms.core.policies import placing
from rms.daemon import recovery, relaunch
from rms.daemon.jobs import JobRuntime
from rms.daemon.journal import Journal
from rms.daemon.meters import Meters
from rms.daemon.recovery import REQUEUED
from rms.daemon.resize import BOOT_S, Worlds
from rms.launch.base import (
    NODES_LOST,
    LaunchCommand,
    Launcher,
    LaunchError,
    ManagedProcess,
    ScriptLaunch,
)
from rms.wire.messages import ApplicationResizeRequest, Poll, Report, ResizeRequest

GRACE_S = 10.0
_OF_NO_JOB = (Submitted, Ticked, NodeDown, NodeUp, Reopened)

START_S = 0.1
"""How long jobs are started before others have their turn for as long."""

LOOK_S = 0.1
"""How long jobs are looked at before others have their turn."""


class Daemon:
    """One RMS.

    Args:
        cluster: the nodes.
        policy: name of the policy.
        journal: open journal, empty or of an earlier daemon; one that does not say ``where`` its
            nodes are must have had the same.
        launcher: starts processes.
        now: wall clock in seconds.
        say: where to tell the operator what happened.
        grace_s: from SIGTERM to SIGKILL: time for a job to reach a resize point and write its
            checkpoint.
        boot_s: deadline for a world that boots beside a running one.
        where: what tells these nodes from others of the same names: an allocation's id, or "".
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: str,
        journal: Journal,
        launcher: Launcher,
        now: Callable[[], float],
        say: Callable[[str], None],
        grace_s: float = GRACE_S,
        boot_s: float = BOOT_S,
        where: str = "",
    ) -> None:
        self.home, self.home_where = cluster, where
        self.journal, self.launcher = journal, launcher
        self.now, self.say, self.grace_s = now, say, grace_s
        self.worlds = Worlds(self, boot_s)
        self.stopping = False
        self.drained = set(journal.notes("drained").get("drained", {"names": []})["names"])
        self.away: frozenset[str] | None = None
        self._ticked = self._starts_from_s = 0.0
        self._starts: deque[Start] = deque()
        self._unseen = 0
        self._queue: deque[Event] = deque()
        self._handling = False
        journal.header(
            *(cluster.names, policy, cluster.power, where, cluster.widths),
            launcher.max_concurrent_resizes,
        )
        self.scheduler, self.live = recovery.restore(journal, cluster, where, say)
        self.meters = Meters(self.scheduler, now, say)
        if (self.scheduler.where, self.cluster.names) == (where, cluster.names):
            self.scheduler.cluster = cluster
            recovery.adopt(self)
        else:
            recovery.reopen(self)

    @property
    def engine(self) -> Engine:
        """What decides."""
        return self.scheduler.engine

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        return self.scheduler.cluster

    # --- events ------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Decision]:
        """Journal an event, decide, journal the decisions, act; then what acting led to."""
        self._queue.append(event)
        if self._handling:
            return []
        self._handling = True
        self._starts_from_s = self.now()
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
        if decisions:
            self.journal.flush()
        for decision in decisions:
            self._act(decision)
        return decisions

    def time(self) -> float:
        """Return the time for the next event: the wall clock, never going back."""
        return max(self.now(), self.engine.state.now_s)

    def _feed(self, event: Event) -> list[Decision]:
        decisions = self.scheduler.feed(event)
        if isinstance(event, Reopened):
            here = self.cluster.names == self.home.names and event.where == self.home_where
            if here:
                self.scheduler.cluster = self.home
        return decisions

    def _act(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self._starts.append(decision)
            self._start_some()
        elif isinstance(decision, Resize):
            live = self.live[decision.job]
            if live.ending is not None:
                why = "the job is told to end"
                self.handle(ResizeRolledBack(self.time(), decision.job, why))
                return
            self.worlds.begin(decision.job, live, self.slots(decision.nodes))
        elif isinstance(decision, Never):
            self.say(f"job {decision.job} can never run: {decision.reason}")

    def _start_some(self) -> None:
        """Start jobs for a short while: hundreds may be decided at once, and others want answers.

        One that is not started now is so at the next look, or by the next daemon.
        """
        while self._starts and not self.stopping and self.now() <= self._starts_from_s + START_S:
            decision = self._starts.popleft()
            job = self.engine.state.running.get(decision.job)
            known = self.live[decision.job].script is not None
            if job is not None and job.nodes == decision.nodes and not known:
                self.start(decision)

    def start(self, decision: Start) -> None:
        """Start a job."""
        live, job_id = self.live[decision.job], decision.job
        try:
            script = self.run_script(job_id, live, decision.nodes)
        except LaunchError as error:
            self.say(f"job {job_id}: {error}")
            self.scheduler.reasons[job_id] = str(error)
            self.handle(Started(self.time(), job_id))
            self.handle(Ended(self.time(), job_id, "FAILED"))
            return
        if script.started:
            self.handle(Started(self.time(), job_id))

    def run_script(self, job_id: JobId, live: JobRuntime, on: tuple[Node, ...]) -> ManagedProcess:
        """Run a job's script on nodes.

        Raises:
            LaunchError: it could not be started.
        """
        note = live.note
        launch = ScriptLaunch(
            script=Path(note["script"]),
            cwd=note["cwd"],
            env={**note["env"], **self._job_env(job_id, len(on))},
            output=Path(note["output"]),
            nodes=[self.cluster.slots[node] for node in on],
            limit_s=self.engine.state.running[job_id].spec.limit_s,
        )
        live.script = script = self.launcher.start_script(job_id, launch)
        self.journal.note(f"script/{job_id}", {"pid": script.pid})
        return script

    def _job_env(self, job_id: JobId, nodes: int) -> dict[str, str]:
        note = self.live[job_id].note
        values = {"JOB_ID": job_id, "JOB_NUM_NODES": str(nodes)}
        if note["index"] is not None:
            values |= {"ARRAY_JOB_ID": note["array"], "ARRAY_TASK_ID": str(note["index"])}
        both = {f"{kind}_{key}": v for kind in ("RMS", "SLURM") for key, v in values.items()}
        return both | {"RMS_TOKEN": note["token"]}

    def slots(self, nodes: tuple[Node, ...]) -> tuple[str, ...]:
        """Return the slots of nodes, in order."""
        return self.cluster.slots_of(nodes)

    # --- what users ask ----------------------------------------------------------------------

    def submit(self, specs: list[JobSpec], notes: Mapping[JobId, dict[str, Any]]) -> None:
        """Take in jobs; durable when it returns."""
        for spec in specs:
            note = {**notes[spec.id], "token": secrets.token_hex(16)}
            self.live[spec.id] = JobRuntime(note)
            self.journal.note(f"job/{spec.id}", note)
        self.handle(Submitted(self.time(), tuple(specs)))
        self.journal.flush()

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
        elif live.ending is None:
            live.ending, live.kill_at = state, self.now() + self.grace_s
            self.journal.note(f"ending/{job_id}", {"state": state, "kill_at": live.kill_at})
            self.terminate(job_id, live)
        self.journal.flush()

    def terminate(self, job_id: JobId, live: JobRuntime) -> None:
        """Ask a job's present world to checkpoint and end."""
        step = live.running
        worlds = [] if step is None else [step.worlds[n] for n in step.current]
        self.launcher.terminate(job_id, worlds)

    def resize(
        self, job_id: JobId, size: int, strategy: str | None = None, on: Sequence[str] = ()
    ) -> Decision:
        """Ask for a resize on a user's behalf; the decision says what became of it.

        Raises:
            ValueError: ``on`` names nodes that there are not, or not as many as ``size``.
        """
        unknown = [name for name in on if name not in self.cluster.names]
        if unknown or (on and len(set(on)) != size):
            raise ValueError(f"expected {size} nodes of this cluster, got {', '.join(on)}")
        self.live[job_id].forced = strategy
        nodes = tuple(Node(self.cluster.names.index(name)) for name in on)
        return self.handle(ResizeAsked(self.time(), job_id, size, nodes))[0]

    def set_policy(self, name: str) -> None:
        """Let another policy decide from now on."""
        policy = placing(name)
        self.journal.policy(name, self.time())
        self.engine.policy = policy

    # --- what jobs say -----------------------------------------------------------------------

    def poll(self, job_id: JobId, poll: Poll) -> ResizeRequest | None:
        """Hear how far a job is; return the wish it does not know of yet."""
        live, job = self.live[job_id], self.engine.state.running.get(job_id)
        live.step, live.total = poll.step, poll.steps
        step = live.running
        if step is not None:
            step.spoke, step.cooldown_s = True, poll.cooldown_s
            step.restarts = poll.restartable
            relaunch.spoke(self, job_id, live)
            if (step.strategy, step.groups) != (poll.strategy, poll.launches):
                step.strategy, step.groups = poll.strategy, poll.launches
                self.worlds.note(job_id, live)
        rests = self.now() < live.rests_until_s
        if job is not None and job.state is JobState.RUNNING and not (job.at_resize_point or rests):
            self.handle(ResizePoint(self.time(), job_id))
        if live.asked and job is not None and job.resizable_now:
            self.resize(job_id, live.asked)
            live.asked = 0
        return self.wish(job_id, poll.known)

    def wish(self, job_id: JobId, known: int) -> ResizeRequest | None:
        """Return what a job is to do, unless it knows."""
        wish = self.live[job_id].wish
        return wish if wish is not None and wish.number > known else None

    def report(self, job_id: JobId, report: Report) -> None:
        """Hear how a resize goes, or that the job itself would have one."""
        if isinstance(report, ApplicationResizeRequest):
            self.live[job_id].asked = report.ranks
            return
        self.worlds.hear(job_id, self.live[job_id], report)

    def launch(self, job_id: JobId, line: LaunchCommand, key: str) -> int:
        """Boot a world for a launcher line of a job script; return the step's number.

        A line that asks again with its ``key``, its daemon having been away, gets the same step.
        """
        live, job = self.live[job_id], self.engine.state.running[job_id]
        if key in live.keys:
            return live.keys.index(key)
        if job.state is JobState.CONFIGURING:  # its script runs, whoever is late to say so
            self.handle(Started(self.time(), job_id))
        slots = self.slots(job.nodes)
        if live.boot is not None and live.boot.state == "starting":  # it is being relaunched
            slots = live.boot.slots
        return self.worlds.start(job_id, live, line, slots, key)

    # --- processes ---------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Let a policy look that wants to at regular times, while there are jobs."""
        every_s, state = self.engine.policy.passes.every_s, self.engine.state
        if every_s is None or now < self._ticked + every_s:
            return
        if state.pending or state.running:
            self._ticked = now
            self.handle(Ticked(self.time()))

    def watch(self) -> None:
        """Look at all processes once: worlds that ended, scripts that ended, time that is up.

        Where much has happened to many jobs, the rest of them are looked at the next time.
        """
        now = self.now()
        self._tick(now)
        self._starts_from_s = self.now()
        self._start_some()
        self.launcher.poll()
        self._look_at_nodes()
        self.meters.forget_stale(self.time())
        jobs = list(self.engine.state.running.items())
        begun, first, self._unseen = self.now(), self._unseen, 0
        jobs = [*jobs[first:], *jobs[:first]]
        for at, (job_id, job) in enumerate(jobs):
            if at and self.now() > begun + LOOK_S:
                self._unseen = (first + at) % len(jobs)
                break
            live = self.live[job_id]
            if job.state is JobState.CONFIGURING and live.script is not None:
                if live.script.started:
                    self.journal.note(f"script/{job_id}", {"pid": live.script.pid})
                    self.handle(Started(self.time(), job_id))
                elif live.script.end_state == NODES_LOST:
                    self.requeue(job_id, live, "could not start where it was meant to")
                    continue
            self.worlds.watch(job_id, live)
            limit = job.spec.limit_s
            if limit is not None and job.start_s is not None and now > job.start_s + limit:
                self.cancel(job_id, "TIMEOUT")
            if live.kill_at is not None and now > live.kill_at:
                self.launcher.kill(job_id)
            if live.script is not None:
                status = live.script.status()
                if status is not None:
                    self.end_script(job_id, live, status)
        self.journal.flush()

    def _look_at_nodes(self) -> None:
        """Tell the engine of nodes that are not to be had, or are again."""
        found = self.launcher.unavailable()
        if found is None or self.away == found:
            return
        gone = sorted(set(found) - (self.away or set()))
        if gone and self.launcher.requeue_on_shutdown:
            self.say(f"not to be had now: {', '.join(gone)}")
        self.away = frozenset(found)
        self._close_and_open(self.cluster.names)

    def drain(self, names: Sequence[str], *, drained: bool) -> None:
        """Give nodes to no more jobs, or to jobs again; who runs there is left alone.

        Raises:
            ValueError: there are no such nodes.
        """
        unknown = [name for name in names if name not in self.cluster.names]
        if unknown:
            raise ValueError(f"expected nodes of this cluster, got {', '.join(unknown)}")
        self.drained = self.drained.union(names) if drained else self.drained.difference(names)
        self.journal.note("drained", {"names": sorted(self.drained)})
        self._close_and_open(names)

    def _close_and_open(self, names: Sequence[str]) -> None:
        """Tell the engine which of these nodes are down now, and which are up."""
        away, down = self.away, self.engine.state.down
        numbers = {name: n for n, name in enumerate(self.cluster.names)}
        for name in names:
            node = Node(numbers[name])
            if name in self.drained or (away is not None and name in away):
                if node not in down:
                    self.handle(NodeDown(self.time(), node))
            elif node in down:
                self.handle(NodeUp(self.time(), node))

    def requeue(self, job_id: JobId, live: JobRuntime, why: str) -> None:
        """Let a job of which nothing runs any more wait again."""
        self.say(f"job {job_id}: {why}; requeued")
        self.forget(job_id, live)
        self.handle(Requeued(self.time(), job_id))
        self.scheduler.reasons[job_id] = why

    def forget(self, job_id: JobId, live: JobRuntime) -> None:
        """Drop what was known of a job's processes, of which there are none any more."""
        live.script = live.wish = live.boot = live.ending = live.kill_at = None
        live.errand = live.inquiry = None
        live.steps, live.keys = [], []
        live.step = live.total = live.asked = 0
        self.launcher.status_file(job_id).unlink(missing_ok=True)  # else it is taken for the next's
        for kind in ("ending", "boot"):
            self.journal.note(f"{kind}/{job_id}", {})
        self.worlds.note(job_id, live)

    def end_script(self, job_id: JobId, live: JobRuntime, status: int) -> None:
        """End a job whose script has ended, once none of its processes is left."""
        self.worlds.watch(job_id, live)
        if job_id not in self.engine.state.running:
            return
        if self.launcher.members(job_id):
            self.launcher.kill(job_id)
            return
        if relaunch.script_over(self, job_id, live):
            return
        live.boot = None
        failed = next((s for s in live.steps if s.exit_code != 0), None)
        well = status == 0 and failed is None
        end_state, lost = "", ""
        if live.script is not None:
            end_state, lost = live.script.end_state, live.script.end_reason
        ending = live.ending
        if ending == REQUEUED:
            if not well or end_state:
                self.requeue(job_id, live, "told to end before its nodes are taken away")
                return
            ending = None  # it came to its own end in time
        if not (well or end_state or ending):
            answer = self._inquire(job_id, live)
            if answer is None:
                return
            end_state, lost = (NODES_LOST, answer) if answer else ("", "")
        if end_state == NODES_LOST and ending is None:
            lost = lost or "its nodes were lost"
            if live.note["requeue"]:
                self.requeue(job_id, live, lost)
                return
            end_state = "FAILED"
        state = ending or end_state or ("COMPLETED" if well else "FAILED")
        said = "" if live.script is None else live.script.end_reason
        why = failed.message if failed is not None else said or f"script ended with {status}"
        why = lost or why
        why = {"COMPLETED": "", "TIMEOUT": f"TimeLimit: {why}"}.get(state, why)
        self.scheduler.reasons[job_id] = why
        self.journal.note(
            f"end/{job_id}",
            {"exit_code": status, "answer": live.answer, "reason": why},
        )
        self.handle(Ended(self.time(), job_id, state))  # type: ignore[arg-type]
        self.say(f"job {job_id} {state}{': ' if why else ''}{why}")

    def _inquire(self, job_id: JobId, live: JobRuntime) -> str | None:
        """Return how a job that failed has lost its nodes, "" if it has not, None until known."""
        if live.inquiry is None:
            job = self.engine.state.running[job_id]
            hosts = [self.cluster.names[node] for node in job.held]
            live.inquiry = self.launcher.diagnose_failure(job_id, hosts)
        return "" if live.inquiry is None else live.inquiry()

    def stop(self) -> None:
        """Ask all jobs to end at checkpoints, and start no others.

        Where the next daemon may have other nodes, they wait for it, but those that opted out.
        """
        self.stopping = True
        for job_id in list(self.engine.state.running):
            again = self.launcher.requeue_on_shutdown and self.live[job_id].note["requeue"]
            self.cancel(job_id, REQUEUED if again else "CANCELLED")

    @property
    def idle(self) -> bool:
        """Whether no job has processes any more."""
        return all(self.live[job_id].script is None for job_id in self.engine.state.running)
