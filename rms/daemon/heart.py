"""The heart of a daemon: events pass through the journal to the scheduler, and lead to actions.

Everything runs in the server's event loop, one event after the other, always in this order: write
the event to the journal, let the scheduler decide, write the decisions, carry them out. Facts that
a restarted daemon needs, but the scheduler does not, are in the journal's notes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import msgspec

from rms.core.model.events import (
    NO_RESIZE,
    Decision,
    Event,
    Later,
    Never,
    PowerCapSet,
    PowerOff,
    PowerOn,
    PricesSet,
    Resize,
    ResizeAsked,
    ResizeRolledBack,
    Start,
    Ticked,
)
from rms.core.model.jobs import JobId
from rms.core.policies import PolicyError, placing
from rms.core.rules.powercap import check_cap
from rms.core.rules.transition import check
from rms.daemon.jobs.scripts import Endings, Scripts
from rms.daemon.jobs.submit import Holds, Submissions
from rms.daemon.jobs.watch import JobWatch
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.nodes.energy import CapWatch, Meters
from rms.daemon.nodes.nodes import (
    POWERED_ELSEWHERE,
    FrequencyControl,
    LeaseWatch,
    Nodes,
    NodeSwitch,
    check_placement,
    tasks_of,
)
from rms.daemon.store.archive import Snapshots
from rms.daemon.store.context import Context, Faults, describe, log
from rms.daemon.store.journal import JournalError, JournalFullError, PolicySet
from rms.daemon.store.notes import Note, SummaryNote
from rms.daemon.store.record import REQUEUED
from rms.daemon.store.sandbox import guarded

PRICES_EVERY_S, PRICES_AHEAD_S = 86_400.0, 14 * 86_400.0
"""The prices of so long a time are entered in the journal so often."""


class Daemon:
    """A resource manager, made from a journal by :func:`rms.daemon.restart.recover.resume`.

    Its parts enter events by :meth:`handle`. Callers use the parts directly.
    """

    def __init__(self, context: Context) -> None:
        self.context, self.scheduler, self.jobs = context, context.scheduler, context.jobs
        self.journal, self.launcher = context.journal, context.launcher
        self.now, self.time = context.now, context.time
        self.faults = Faults()
        self.submissions = Submissions(context, self.handle)
        self.holds = Holds(context, self.handle)
        self.scripts = Scripts(context, self.handle)
        self.worlds = Worlds(context, self.scripts, self.handle)
        self.job_watch = JobWatch(
            context, scripts=self.scripts, worlds=self.worlds, faults=self.faults
        )
        self.endings = Endings(context)
        self.nodes = Nodes(context, self.handle)
        self.leases = LeaseWatch(context, self.handle)
        self.cap_watch = CapWatch(context, self.handle)
        self.meters = Meters(context, self.cap_watch.on_report)
        self.node_switch = NodeSwitch(context, self.handle)
        self.frequencies = FrequencyControl(context, self.handle)
        self.tasks = tasks_of(context, self.handle)
        self.snapshots = Snapshots(context)
        self._events = deque[tuple[Event, Sequence[Note], int | None]]()
        self._decisions = deque[Decision]()
        self._is_busy, self._is_full = False, False
        self._ticked_s, self._look_s = 0.0, inf
        self._priced_s = -inf
        self._parts: dict[str, Callable[[], object]] = {
            "decisions": self._work_off,  # those that could not be written before
            "held jobs": self.holds.tick,
            "keepers": self.worlds.keepers.tick,
            "policy": self._tick_policy,
            "starts": self.scripts.start_some,
            "ends": self.scripts.end_some,
            "launcher": self.launcher.poll,
            "leases": self._tick_leases,
            "nodes": self.nodes.tick,
            "node power": self.node_switch.tick,
            "prices": self.tell_prices,
            "frequencies": self.frequencies.tick,
            "measured power": self.cap_watch.tick,
            "last lines": self.endings.tick,
            "tasks": self.tasks.tick,
            "clock": lambda: context.skew_s,  # logs a change of the time of day
            "snapshots": self.snapshots.tick,
        }

    # --- events ------------------------------------------------------------------------------

    def handle(
        self, event: Event, notes: Sequence[Note] = (), number: int | None = None
    ) -> list[Decision]:
        """Write an event, let the scheduler decide, write and carry out the decisions.

        Events that are raised meanwhile are queued and handled next. Notes are written with their
        event; one that is in the journal already has a number. An impossible event is a
        TransitionError, and not in the journal.
        """
        self._events.append((event, notes, number))
        if self._is_busy:
            return []
        self.scripts.begin_slice()
        return self._work_off()

    def _work_off(self) -> list[Decision]:
        """Handle the queued events; return the decisions on the first."""
        self._is_busy, decisions = True, list[Decision]()
        try:
            self._carry_out()
            if self._events:
                decisions = self._enter(*self._events.popleft())
        finally:
            try:
                while self._events:  # they have happened, whatever else went wrong
                    event, notes, number = self._events.popleft()
                    with self.faults.of(f"{type(event).__name__} event"):
                        self._enter(event, notes, number)
            finally:
                self._events.clear()
                self._is_busy = False
        return decisions

    def _enter(self, event: Event, notes: Sequence[Note], number: int | None) -> list[Decision]:
        context, journal, scheduler = self.context, self.journal, self.scheduler
        event = msgspec.structs.replace(event, at_s=max(event.at_s, context.state.now_s))
        if number is None:
            check(context.state, event)
        ended = self.endings.due(event)
        if number is None:
            lines = [SummaryNote(job_id, "") for job_id in ended]
            number = journal.append(event, [*notes, *lines])
        begun = time.perf_counter()
        decisions = scheduler.feed(event)
        context.metrics.on_event(context, event, time.perf_counter() - begun)
        if scheduler.failure:  # another policy decides from this event on
            policy, reason = scheduler.engine.policy, scheduler.failure
            journal.replaced(number, decisions, PolicySet(event.at_s, policy.key, reason))
            log.warning(f"policy {reason}; {policy.name} decides from now on")
        else:
            journal.decided(number, decisions)
        log.debug("entry %s: %s; decided: %s", number, event, decisions or "nothing")
        self._look_s = scheduler.engine.look_s
        self.cap_watch.on_event(event)
        self.holds.on_event(event)
        self.tasks.jobs_changed()
        self.endings.add(ended)
        self._decisions.extend(decisions)
        self._carry_out()
        return decisions

    # --- decisions ---------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out the decisions once they are on disk; on a full disk, when there is room."""
        if not self._decisions:
            return
        try:
            self.journal.flush()
        except JournalFullError:
            return
        while self._decisions:
            self._act(self._decisions.popleft())

    def _act(self, decision: Decision) -> None:
        if isinstance(decision, Start):
            self.scripts.enqueue(decision)
        elif isinstance(decision, Resize):
            self._begin_resize(decision)
        elif isinstance(decision, Later) and decision.code in NO_RESIZE:
            self.jobs[decision.job].user_strategy = ""
        elif isinstance(decision, Never):
            log.info(f"job {decision.job} can never run: {decision.reason}")
        elif isinstance(decision, PowerOff | PowerOn):
            self.node_switch.switch(decision)

    def _begin_resize(self, decision: Resize) -> None:
        if decision.job not in self.context.state.running:
            return  # it ended before this could be carried out
        job = self.jobs[decision.job]
        strategy, job.user_strategy = job.user_strategy, ""
        try:
            if job.ending is not None or job.fault:
                self.handle(ResizeRolledBack(self.time(), job.id, "the job is ending"))
            else:
                slots = self.context.cluster.slots_of(decision.nodes)
                self.worlds.begin_resize(job, slots, strategy)
        except JournalError:
            raise
        except Exception as error:
            self.scripts.fail(job, describe(error))

    # --- commands of users -------------------------------------------------------------------

    def resize(
        self, job_id: JobId, size: int | None, strategy: str | None = None, on: Sequence[str] = ()
    ) -> Decision:
        """Request a resize for a user, by a strategy or the job's own; return the decision on it.

        Without a size the policy has the choice again. Other than ``size`` nodes are a ValueError.
        """
        nodes_of = self.context.cluster.nodes_of
        nodes = tuple(node for name in on for node in nodes_of.get(name, ()))
        unknown = [name for name in on if name not in nodes_of]
        if unknown or (on and (len(set(nodes)) != size or len(nodes) != size)):
            raise ValueError(f"expected {size} nodes of this cluster, got {', '.join(on)}")
        self.jobs[job_id].user_strategy = strategy or ""
        event = ResizeAsked(self.time(), job_id, size or 0, nodes, True, auto=size is None)
        return self.handle(event)[0]

    def set_policy(self, name: str) -> None:
        """Let another policy decide from now on; one that cannot is a PolicyError."""
        policy = guarded(placing(name, self.context.settings.policy_modules))
        check_placement(policy, self.context.cluster)
        elsewhere = self.launcher.shared_filesystem and self.context.settings.power_commands is None
        if elsewhere and not policy.always_on:
            raise PolicyError(POWERED_ELSEWHERE)
        self.journal.policy(name, self.time())
        self.scheduler.engine.policy = policy
        self.frequencies.begin()
        self.tell_prices()
        self.look_at_idle_nodes()

    def look_at_idle_nodes(self) -> None:
        """Let the policy power idle nodes off or on, for which no event may come."""
        if not self.scheduler.engine.policy.always_on or self.context.state.off:
            self.handle(Ticked(self.time()))

    def set_power_cap(self, watts: float | None) -> None:
        """Bound the cluster's power, None for no bound; less than idle power is a ValueError."""
        check_cap(watts, self.context.state.idle_w)
        if watts != self.context.state.power_cap_w:
            self.handle(PowerCapSet(self.time(), watts))
            self.journal.flush()

    def tell_prices(self) -> None:
        """Enter the prices of the next days once a day, for a policy that waits for cheap hours."""
        settings, now_s = self.context.settings, self.time()
        if settings.prices is None or not self.scheduler.engine.policy.hours.waits_for_prices:
            return
        if now_s < self._priced_s + PRICES_EVERY_S:
            return
        self._priced_s = now_s
        skew_s = self.context.skew_s  # times of a file are those of the day
        begin_s = now_s + skew_s
        prices = settings.prices.hourly(
            settings.cheap_by, begin_s, begin_s + PRICES_AHEAD_S, skew_s
        )
        if prices != self.context.state.prices:
            self.handle(PricesSet(self.time(), prices))

    def stop(self) -> None:
        """Ask all jobs to end at checkpoints, and start no others.

        Where the next daemon may have other nodes, jobs wait for it, unless they opted out. A job
        that has nodes, but whose script has not been started, is left to the next daemon.
        """
        self.scripts.stopping = True
        for job_id in list(self.context.state.running):
            job = self.jobs[job_id]
            if job.script is None:
                continue
            again = self.launcher.nodes.requeue_on_shutdown and job.submission.requeue
            self.scripts.cancel(job, REQUEUED if again else "CANCELLED")

    def hurry(self) -> None:
        """Kill the jobs that are ending."""
        for job_id in self.context.state.running:
            self.jobs[job_id].kill_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether no job has a script that runs."""
        return all(self.jobs[job_id].script is None for job_id in self.context.state.running)

    # --- rounds ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Call all parts once. An error of a part does not affect the others."""
        self.scripts.begin_slice()
        for name, tick in self._parts.items():
            with self.faults.of(name):
                tick()
        self.job_watch.tick()
        with self.faults.of("meters"):
            self.meters.tick()

    def _tick_policy(self) -> None:
        """Let the policy decide at the time that it set, or regularly."""
        now, state = self.now(), self.context.state
        if self._look_s <= self.time():
            self.handle(Ticked(self.time()))
        every_s = self.scheduler.engine.policy.passes.every_s
        if every_s is None or now < self._ticked_s + every_s:
            return
        if state.pending or state.running:
            self._ticked_s = now
            self.handle(Ticked(self.time()))

    def _tick_leases(self) -> None:
        for job_id in self.leases.tick(starts=not self.scripts.stopping):
            job = self.jobs[job_id]
            if job.script is not None:
                log.info(f"job {job_id}: requested to end, as its allocation ends")
                self.scripts.cancel(job, REQUEUED if job.submission.requeue else "CANCELLED")

    async def flush(self) -> None:
        """Flush the journal in a thread; log when that begins to fail, and when it works again."""
        try:
            work = self.journal.flushing()
            if work is not None:
                await asyncio.to_thread(work)
        except JournalFullError as error:
            if not self._is_full:
                words = f"{error}; until it can be written, jobs go on but none is taken in"
                log.warning(words)
            self._is_full = True
        else:
            if self._is_full:
                log.info("the journal can be written again")
            self._is_full = False
