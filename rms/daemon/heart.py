"""Events on their way through a daemon: journalled, decided on, acted on, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from rms.core.model.events import (
    NO_RESIZE,
    Decision,
    Ended,
    Event,
    Later,
    Never,
    PowerCapSet,
    PowerOff,
    PowerOn,
    Requeued,
    Resize,
    ResizeAsked,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Stepped,
    Submitted,
    Ticked,
)
from rms.core.model.jobs import Job, JobId, JobSpec, JobState
from rms.core.policies import PolicyError, placing
from rms.core.rules.powercap import check_cap
from rms.core.rules.transition import check
from rms.daemon.ask.exposition import observe
from rms.daemon.jobs.machine import Polled, ScriptEnded
from rms.daemon.jobs.scripts import Endings, Scripts
from rms.daemon.jobs.submit import Holds
from rms.daemon.jobs.watch import JobWatch
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.kernels import Tasks
from rms.daemon.nodes.energy import Meters, PowerWatch
from rms.daemon.nodes.nodes import POWERED_BY_SLURM, Leases, Nodes, check_placement
from rms.daemon.nodes.switch import FrequencyControl, PowerControl
from rms.daemon.store.context import Context, Faults, Notes, debug, describe, warning
from rms.daemon.store.journal import JournalError, JournalFullError, PolicySet
from rms.daemon.store.record import REQUEUED, CountPace, JobRuntime
from rms.daemon.store.sandbox import guarded
from rms.daemon.store.snapshots import Snapshots
from rms.launch.base import NODES_LOST, LaunchCommand
from rms.wire.messages import MeterAnswer, Metered, Poll, Report, ResizeRequest


class Dispatcher:
    """Hands events to the scheduler, through the journal.

    Args:
        followed: is told of each event before its decisions are acted on.
        act: acts on a decision; events that this leads to are dispatched after it.

    Attributes:
        busy: whether an event is being handled: others wait for their turn.
    """

    def __init__(
        self,
        context: Context,
        endings: Endings,
        faults: Faults,
        followed: Callable[[Event], None],
        act: Callable[[Decision], None],
    ) -> None:
        self._context, self._endings, self._faults = context, endings, faults
        self._followed, self._act = followed, act
        self._queue, self.busy = deque[tuple[Event, Notes, int | None]](), False
        self._decided, self._unwritable = deque[Decision](), False

    def handle(
        self, event: Event, notes: Notes | None = None, number: int | None = None
    ) -> list[Decision]:
        """Journal an event, decide, journal the decisions, act; then what acting led to.

        Args:
            notes: facts that are true with the event and not without it: kept with it or not.
            number: its sequence number, where it is in the journal already.

        Raises:
            TransitionError: it cannot have happened; nothing of it is in the journal.
        """
        self._queue.append((event, notes or {}, number))
        return [] if self.busy else self._work_off()

    def act(self) -> None:
        """Act on what was decided while it could not be written down."""
        if self._decided:
            self._work_off()

    def _work_off(self) -> list[Decision]:
        """Follow the events that wait; return what was decided on the first."""
        self.busy, first = True, list[Decision]()
        try:
            self._carry_out()
            if self._queue:
                first = self._handle(*self._queue.popleft())
        finally:
            try:
                while self._queue:  # it has happened, whatever else went wrong
                    event, notes, number = self._queue.popleft()
                    with self._faults.of(f"{type(event).__name__} event"):
                        self._handle(event, notes, number)
            finally:
                self._queue.clear()
                self.busy = False
        return first

    def _handle(self, event: Event, notes: Notes, number: int | None) -> list[Decision]:
        context = self._context
        journal, scheduler = context.journal, context.scheduler
        event = msgspec.structs.replace(event, at_s=max(event.at_s, context.state.now_s))
        if number is None:
            check(context.state, event)
        ended = self._endings.due(event)
        if number is None:
            notes = notes | {key: {"line": ""} for key in ended.values()}
            number = journal.append(event, notes)
        begun = time.perf_counter()
        decisions = scheduler.feed(event)
        observe(context, event, time.perf_counter() - begun)
        if scheduler.failure:
            self._policy_failed(number, event, decisions)
        else:
            journal.decided(number, decisions)
        if context.settings.debug:
            context.say(debug(f"entry {number}: {event}; decided: {decisions or 'nothing'}"))
        self._followed(event)
        self._endings.add(ended)
        self._decided.extend(decisions)
        self._carry_out()
        return decisions

    def _carry_out(self) -> None:
        """Act on what was decided, once that is on disk; on a full one, when there is room."""
        if not self._decided:
            return
        try:
            self._context.journal.flush()
        except JournalFullError:
            return
        while self._decided:
            self._act(self._decided.popleft())

    async def flush(self) -> None:
        """Have all on disk that was entered; say when that cannot be, and when it can be again.

        Others have their turn meanwhile.
        """
        try:
            work = self._context.journal.flushing()
            if work is not None:
                await asyncio.to_thread(work)
        except JournalFullError as error:
            if not self._unwritable:
                words = f"{error}; until it can be written, jobs go on but none is taken in"
                self._context.say(warning(words))
            self._unwritable = True
        else:
            if self._unwritable:
                self._context.say("the journal can be written again")
            self._unwritable = False

    def _policy_failed(self, number: int, event: Event, decisions: Sequence[Decision]) -> None:
        """Enter that another policy decides from this event on, since the one before failed."""
        scheduler = self._context.scheduler
        policy, reason = scheduler.engine.policy, scheduler.failure
        entry = PolicySet(event.at_s, policy.key, reason)
        self._context.journal.replaced(number, decisions, entry)
        self._context.say(warning(f"policy {reason}; {policy.name} decides from now on"))


# FUSED rms.daemon.heart: The daemon's heart: events from processes and users, through the journal, to the launcher.
#
# Single-threaded: every method runs in the server's event loop. Order of things, always: journal
# the event, hand it to the scheduler, journal the decisions, act on them. What the scheduler does
# not know but a restarted daemon needs (scripts, outputs) is in the journal's notes.


class Daemon:
    """One RMS. :func:`rms.daemon.restart.recover.resume` makes one, from a journal that may be new.

    Attributes:
        context: scheduler, jobs, journal, launcher.
        scripts, worlds: processes of jobs.
        job_watch: looks at those that run.
        nodes: which of them are given to nobody.
        meters: reports of energy, and rows of the books.
        power: what they say, held against the power cap.
        endings: the last line of each job's output.
        holds: jobs that may not start yet.
        tasks: those of processes on this machine, beside jobs.
        snapshots: of the scheduler, in the journal.
    """

    def __init__(self, context: Context) -> None:
        self.context, self.scheduler, self.jobs = context, context.scheduler, context.jobs
        self.journal, self.launcher = context.journal, context.launcher
        self.now, self.time, self.say = context.now, context.time, context.say
        self.faults = Faults(context.say)
        self.scripts = Scripts(context, self.handle)
        self.worlds = Worlds(context, self.scripts, self.handle)
        self.nodes = Nodes(context, self.handle)
        self.leases = Leases(context, self.handle, self.scripts)
        self.meters = Meters(context)
        self.endings = Endings(context)
        parts = self.scripts, self.worlds, self.faults, self.end_script
        self.job_watch = JobWatch(context, *parts)
        self.holds = Holds(context, self.handle)
        self.power = PowerWatch(context, self.handle)
        self.node_power = PowerControl(context, self.handle, context.settings.power_commands)
        self.frequencies = FrequencyControl(context, self.handle)
        self.tasks = Tasks(context, self.handle)
        self.snapshots = Snapshots(context)
        self._strategies: dict[JobId, str] = {}
        self._ticked_s, self._look_s, self._counts = 0.0, inf, CountPace()
        given = self.endings, self.faults, self._followed, self._act
        self._dispatcher = Dispatcher(context, *given)
        self._parts: dict[str, Callable[[], None]] = {
            "decisions": self._dispatcher.act,
            "held jobs": self.holds.look,
            "policy": self._tick,
            "starts": self.scripts.start_some,
            "ends": self.scripts.end_some,
            "launcher": self.launcher.poll,
            "leases": self.leases.watch,
            "nodes": self.nodes.watch,
            "node power": self.node_power.watch,
            "frequencies": self.frequencies.watch,
            "measured power": self.power.look,
            "last lines": self.endings.watch,
            "tasks": self.tasks.look,
            "clock": self.context.see_clock,
            "snapshots": self.snapshots.watch,
        }

    # --- events ------------------------------------------------------------------------------

    def handle(
        self, event: Event, notes: Notes | None = None, number: int | None = None
    ) -> list[Decision]:
        """Journal an event, decide, journal the decisions, act; then what acting led to.

        Args:
            notes: facts that are true with the event and not without it: kept with it or not.
            number: its sequence number, where it is in the journal already.
        """
        if not self._dispatcher.busy:
            self.scripts.begin_slice()
        return self._dispatcher.handle(event, notes, number)

    def _followed(self, event: Event) -> None:
        self._look_s = self.scheduler.engine.look_s
        self.power.followed(event)
        self.holds.followed(event)
        if isinstance(event, Ended | Requeued):
            self._strategies.pop(event.job, None)
        self.tasks.follow()

    def _act(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self.scripts.enqueue(decision)
        elif isinstance(decision, Resize):
            if decision.job not in self.context.state.running:
                return  # over before this could be acted on
            job, strategy = self.jobs[decision.job], self._strategies.pop(decision.job, "")
            try:
                self._begin_resize(job, decision, strategy)
            except JournalError:
                raise
            except Exception as error:
                self.scripts.fail(job, describe(error))
        elif isinstance(decision, Later) and decision.code in NO_RESIZE:
            self._strategies.pop(decision.job, None)
        elif isinstance(decision, Never):
            self.say(f"job {decision.job} can never run: {decision.reason}")
        elif isinstance(decision, PowerOff | PowerOn):
            self.node_power.act(decision)

    def _begin_resize(self, job: JobRuntime, decision: Resize, strategy: str) -> None:
        if job.ending is not None or job.fault:
            self.handle(ResizeRolledBack(self.time(), job.id, "the job is told to end"))
            return
        slots = self.context.cluster.slots_of(decision.nodes)
        self.worlds.begin_resize(job, slots, strategy)

    # --- what users ask ----------------------------------------------------------------------

    def submit(
        self,
        specs: list[JobSpec],
        notes: Mapping[str, dict[str, Any]],
        facts: Notes | None = None,
    ) -> None:
        """Take in jobs, all of them or none; durable when it returns.

        Args:
            notes: what is kept of each job, or of the array that it is of.
            facts: what else is true once they are taken in, and not before.

        Raises:
            JournalFullError: they cannot be written down now.
        """
        event = Submitted(self.time(), tuple(specs))
        check(self.context.state, event)
        with self.journal.whole():
            for key, fact in (facts or {}).items():
                self.journal.note(key, fact)
            for of, note in notes.items():
                self.journal.note(f"job/{of}", note)
            entry = self.journal.append(event)
        for spec in specs:
            self.jobs[spec.id] = JobRuntime(
                spec.id, notes[spec.id if spec.id in notes else str(spec.array)]
            )
        self.handle(event, number=entry)
        self.journal.flush()

    def next_id(self) -> int:
        """Return a job number never used before; it is so until the note ``next`` is raised."""
        return int(self.journal.notes("next").get("next", {"id": 1})["id"])

    def cancel(self, job_id: JobId) -> None:
        """End a job: at once if it waits, by SIGTERM and later SIGKILL if it runs."""
        self.scripts.cancel(self.jobs[job_id], if_journalled=True)

    def resize(
        self, job_id: JobId, size: int | None, strategy: str | None = None, on: Sequence[str] = ()
    ) -> Decision:
        """Ask for a resize on a user's behalf; the decision says what became of it.

        Args:
            size: None gives the choice back to the policy.
            strategy: how, for this resize and no other; None for the job's own.

        Raises:
            ValueError: ``on`` names nodes that there are not, or not as many as ``size``.
        """
        nodes_of = self.context.cluster.nodes_of
        found = [node for name in on for node in nodes_of.get(name, ())]
        unknown = [name for name in on if name not in nodes_of]
        if unknown or (on and (len(set(found)) != size or len(found) != size)):
            raise ValueError(f"expected {size} nodes of this cluster, got {', '.join(on)}")
        nodes = tuple(found)
        self._strategies[job_id] = strategy or ""
        asked = ResizeAsked(self.time(), job_id, size or 0, nodes, True, auto=size is None)
        return self.handle(asked)[0]

    def set_policy(self, name: str) -> None:
        """Let another policy decide from now on.

        Raises:
            PolicyError: there is none of that name, it cannot decide here, or it names functions of
                modules that the daemon was not started with.
        """
        policy = guarded(placing(name, self.context.settings.policy_modules))
        check_placement(policy, self.context.cluster)
        if not policy.always_on and self.launcher.shared_filesystem:
            raise PolicyError(POWERED_BY_SLURM)
        self.journal.policy(name, self.time())
        self.scheduler.engine.policy = policy
        self.frequencies.begin()
        self.look_at_idle_nodes()

    def look_at_idle_nodes(self) -> None:
        """Let the policy power idle nodes off, or on, that nothing else would make it look at."""
        if not self.scheduler.engine.policy.always_on or self.context.state.off:
            self.handle(Ticked(self.time()))

    def set_power_cap(self, watts: float | None) -> None:
        """Let the cluster draw no more than this from now on, None for any power.

        Raises:
            ValueError: its idle nodes alone draw as much.
        """
        check_cap(watts, self.context.state.idle_w)
        if watts != self.context.state.power_cap_w:
            self.handle(PowerCapSet(self.time(), watts))
            self.journal.flush()

    def stop(self) -> None:
        """Ask all jobs to end at checkpoints, and start no others.

        Where the next daemon may have other nodes, they wait for it, but those that opted out. A
        job that has nodes, but whose script has not been started, is left to the next daemon.
        """
        self.scripts.stopping = True
        for job_id in list(self.context.state.running):
            job = self.jobs[job_id]
            if job.script is None:
                continue
            again = self.launcher.nodes.requeue_on_shutdown and job.note["requeue"]
            self.scripts.cancel(job, REQUEUED if again else "CANCELLED")

    def hurry(self) -> None:
        """Give jobs that were asked to end no more time for it."""
        for job_id in self.context.state.running:
            self.jobs[job_id].kill_at = 0.0

    # --- what jobs say -----------------------------------------------------------------------

    def poll(self, job_id: JobId, poll: Poll) -> ResizeRequest | None:
        """Take in how far a job is; return the resize request it does not know of yet."""
        job, running = self.jobs[job_id], self.context.state.running.get(job_id)
        job.step, job.total = poll.step, poll.steps
        step = job.running_step
        if step is not None:
            known = step.has_polled, step.strategy, step.ranks, step.restartable
            step.has_polled, step.cooldown_s = True, poll.cooldown_s
            step.restartable = poll.restartable
            if job.resize is not None and job.resize.state == "starting":
                self.worlds.resize(job, Polled())
            if known != (True, poll.strategy, poll.launches, poll.restartable):
                step.strategy, step.ranks = poll.strategy, poll.launches
                self.worlds.save_steps(job)
        if running is not None:
            self._count_steps(job, running)
            self._at_resize_point(job, running)
        return self.request(job_id, poll.known)

    def _at_resize_point(self, job: JobRuntime, running: Job) -> None:
        rests = self.now() < job.rests_until_s
        if running.state is JobState.RUNNING and not (running.at_resize_point or rests):
            self.handle(ResizePoint(self.time(), job.id))
        if job.requested_ranks and running.resizable_now:
            self.resize(job.id, job.requested_ranks)
            job.requested_ranks = 0

    def _count_steps(self, job: JobRuntime, running: Job) -> None:
        """Enter now and then how fast a job steps at its size."""
        if running.state is not JobState.RUNNING:
            return
        at_s = self.time()
        counted = job.stepped(at_s, enter=self._counts.due(at_s))
        if counted is not None:
            self._counts.entered(at_s)
            self.handle(Stepped(at_s, job.id, job.step, job.total, *counted))

    def request(self, job_id: JobId, known: int) -> ResizeRequest | None:
        """Return what a job is to do, unless it knows."""
        request = self.jobs[job_id].request
        return request if request is not None and request.number > known else None

    def report(self, job_id: JobId, report: Report) -> None:
        """Take in how a resize goes, or that the job itself would have one.

        Raises:
            ValueError: it speaks of what there is not.
        """
        self.worlds.report(self.jobs[job_id], report)

    def launch(self, job_id: JobId, command: LaunchCommand, key: str) -> int:
        """Boot a world for a launcher line of a job script; return the step's number.

        A line that asks again with its ``key``, its daemon having been away, gets the same step.
        """
        job, running = self.jobs[job_id], self.context.state.running[job_id]
        if key in job.keys:
            return job.keys.index(key)
        if running.state is JobState.CONFIGURING:  # its script runs, whoever is late to say so
            self.handle(Started(self.time(), job_id))
        slots = self.context.cluster.slots_of(running.nodes)
        if job.resize is not None and job.resize.state == "starting":  # it is being relaunched
            slots = job.resize.slots
        return self.worlds.launch(job, command, slots, key)

    def metered(self, said: Metered) -> MeterAnswer:
        """Take what a node's meters have read.

        Raises:
            ValueError: of a node that there is not.
        """
        return self.meters.heard(said, self.power.report)

    # --- processes ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at all processes once: worlds that ended, scripts that ended, time that is up."""
        self.scripts.begin_slice()
        for part, look in self._parts.items():
            with self.faults.of(part):
                look()
        self.job_watch.look()
        with self.faults.of("meters"):
            self.meters.watch()

    async def flush(self) -> None:
        """Have all on disk that was entered; jobs are asked and answered meanwhile."""
        await self._dispatcher.flush()

    def _tick(self) -> None:
        """Let a policy look that wants to: at a time of its own, or regularly while jobs are."""
        now, state = self.now(), self.context.state
        if self._look_s <= self.time():
            self.handle(Ticked(self.time()))
        every_s = self.scheduler.engine.policy.passes.every_s
        if every_s is None or now < self._ticked_s + every_s:
            return
        if state.pending or state.running:
            self._ticked_s = now
            self.handle(Ticked(self.time()))

    def end_script(self, job: JobRuntime, status: int) -> None:
        """End a job whose script has ended, once none of its processes is left."""
        self.worlds.watch(job)
        if job.id not in self.context.state.running:
            return
        if self.launcher.members(job.id):
            self.launcher.kill(job.id)
            return
        lost = job.script is not None and job.script.end_state == NODES_LOST
        if not self.worlds.resize(job, ScriptEnded(lost)):
            self.scripts.end(job, status)

    @property
    def idle(self) -> bool:
        """Whether no job has processes any more."""
        return all(self.jobs[job_id].script is None for job_id in self.context.state.running)
