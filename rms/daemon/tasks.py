"""Tasks live: between processes, the scheduler of tasks, and the engine of jobs.

    process ── socket ──► here ── event ──► core/tasks: strategy ── decisions ──► here ──► process
                           │  TasksHold: the nodes that tasks hold, through the journal
                           ▼
                         engine of jobs, which gives them to nobody

A task's state lives in the scheduler of tasks, and in its own process, which tells it again to a
daemon that was started anew; the journal knows the nodes alone, since jobs are decided by them.
Nodes that tasks give back are held for a moment, so that a burst of short tasks of a program
writes three events: they are the program's, nobody's, and given back.
A job that waits for them goes first: until it has started, no task is given another device.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import inf
from pathlib import Path

from rms.core.model.events import TasksHold
from rms.core.model.jobs import Node
from rms.core.rules.powercap import tasks_in_the_way, under_cap
from rms.core.state import devices_of, nodes_as_devices
from rms.daemon.context import Context, Handle
from rms.daemon.governor import LOOK_S, GovernorRule, governor_of
from rms.daemon.strategies import FileStrategy, StrategyFiles
from rms.daemon.task_link import Link
from rms.daemon.task_processes import TaskProcesses
from rms.daemon.task_record import TaskRecord
from rms.kernels import wire
from rms.kernels.model import (
    OTHERS,
    Device,
    Drop,
    Finished,
    GoOn,
    GovernorSet,
    OwnerGone,
    Registered,
    Resized,
    Run,
    Stop,
    TaskDecision,
    TaskEvent,
    TaskId,
    TaskSpec,
    UnitsFreed,
    UnitsTaken,
    Woken,
    Yielded,
)
from rms.kernels.record import Ran, StrategySet
from rms.kernels.scheduler import ShortTerm, Strategy, TaskError, TaskScheduler
from rms.kernels.wire import Resource
from rms.launch.base import LaunchError
from rms.wire.users import TaskRow

LINGER_S = 0.5
"""How long a node is held that no task needs any more, if no job waits."""

ADOPT_S = 10.0
"""How long nodes that tasks held when a daemon ended are kept for them to say that they run."""

LONGEST_NAME = 64
"""Of a program's name so many characters are kept."""

LOOKED_AT = 100
"""Of so many waiting jobs it is seen whether tasks are in their way."""


class Tasks:
    """The tasks of all processes that are connected.

    Attributes:
        scheduler: decides where they run.
        files: strategies of users.
        rule: what the governor is set by.
        record: what happened to them.
        follow: the engine of jobs has changed.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self.context, self._handle = context, handle
        launcher, cluster = context.launcher, context.cluster
        devices = list[Device]()
        if launcher.starts_steps:
            devices = (nodes_as_devices if launcher.shared_filesystem else devices_of)(cluster)
        self.scheduler = TaskScheduler(devices, ShortTerm(), self._say)
        self.record = TaskRecord(context, self.scheduler)
        self._processes = TaskProcesses(context)
        self._refusal = ""
        self.files = StrategyFiles(context.launcher.state / "strategies")
        self._links: dict[int, Link] = {}
        self._owners = self._numbers = 0
        self._of: dict[TaskId, tuple[Link, int]] = {}
        self._changed, self._jobs_wait = True, False
        self._idle_since: dict[int, float] = {}
        self._closed = set[int]()  # tasks run there, and no other may after them
        self.rule, self._governed_s = GovernorRule(), -inf
        self._kept = self._lent
        self._kept_until_s = context.now() + ADOPT_S

    # --- what happens ------------------------------------------------------------------------

    def follow(self) -> None:
        """Know that the engine of jobs has changed; what follows is decided at the next look."""
        self._changed = True

    def look(self) -> None:
        """Give back nodes that are not needed, and let the strategy decide whose time has come."""
        now, state = self.context.now(), self.scheduler.state
        self.record.look(now)
        for task_id, reason in self._processes.ended():
            self._say_ended(task_id, reason)
        if self._kept and now > self._kept_until_s:
            self._kept.clear()
            self._changed = True
        lent, need = self._lent, self._need()
        idle = dict.fromkeys(lent.keys() - need.keys(), "")
        self._idle_since = {unit: self._idle_since.get(unit, now) for unit in idle}
        if any(since_s + LINGER_S <= now for since_s in self._idle_since.values()):
            self._hold(need)
        elif any(lent[unit] for unit in idle):
            self._hold({**need, **idle})  # from here on they draw what idle nodes do
        self.files.end_unused(self.scheduler.strategies)
        if self.rule.automatic and now >= self._governed_s + LOOK_S:
            self._govern()
        wake_s = self.scheduler.wake_s
        if wake_s is not None and now >= wake_s:
            self._feed(Woken(now))
        elif self._changed and (state.tasks or self.context.state.lent):
            self._settle([])

    def use(self, strategy: Strategy | None, rule: GovernorRule | None) -> None:
        """Let another strategy decide from now on, or by another governor; None for as before.

        Raises:
            ValueError: no device is there, a rule is by prices that are not known, or what the
                strategy chose at once cannot be.
        """
        if not self.scheduler.state.devices:
            raise ValueError("expected tasks with the engine local or slurm-pilot, got another")
        now, scheduler = self.context.now(), self.scheduler
        if rule is not None:
            rule.check(self.context.settings.prices)
            self.rule = rule
        if strategy is not None:
            self._refusal = ""
            self.files.used(strategy)
            scheduler.swap(strategy)
        self._feed(Woken(now))
        if rule is not None:
            self._govern()
        self.record.note(StrategySet(now, scheduler.strategy.name))
        self.files.end_unused(scheduler.strategies)
        found = {"name": scheduler.strategy.name, "governor": str(self.rule)}
        if isinstance(scheduler.strategy, FileStrategy):
            found["file"] = str(scheduler.strategy.path)
        self.context.journal.note("strategy", found)
        if strategy not in (None, scheduler.strategy):
            raise ValueError(self._refusal)

    def _govern(self) -> None:
        """Set the governor as its rule says."""
        self._governed_s, state = self.context.now(), self.scheduler.state
        units = {unit for device in state.devices.values() for unit in device.units}
        governor, why = governor_of(self.rule, self.context, units, state.governor)
        if governor is not state.governor:
            if self.rule.automatic:
                self.context.say(f"governor of tasks {governor}: {why}")
            self._feed(GovernorSet(self.context.now(), governor))

    def _say(self, words: str) -> None:
        self._refusal = words
        self.context.say(words)

    def restore(self) -> None:
        """Use the strategy and the governor of the daemon before."""
        found = self.context.journal.notes("strategy").get("strategy")
        if found is None:
            return
        try:
            name = found["name"]
            file = found.get("file", name if name.endswith(".py") else "")  # of before: its own
            self.use(FileStrategy(Path(file), name) if file else self.files.load(name, ""), None)
        except ValueError as error:
            self.context.say(f"strategy {self.scheduler.strategy.name} instead: {error}")
        try:
            self.use(None, GovernorRule.parse(found["governor"]))
        except ValueError as error:
            self.context.say(f"governor {self.rule} instead: {error}")

    def close(self) -> None:
        """End the processes of strategies."""
        self.files.end_unused(())
        self._processes.close()
        self.record.enter()

    def rows(self) -> list[TaskRow]:
        """Return a row for each task, the oldest first."""
        return [
            TaskRow(
                self._links[task.spec.owner].pid,
                task.spec.name,
                "STOPPING" if task.device is not None and task.asked else str(task.phase),
                "" if task.device is None else task.device.name,
                task.queue or "",
            )
            for task in self.scheduler.state.tasks.values()
        ]

    # --- processes ---------------------------------------------------------------------------

    def came(self, link: Link) -> None:
        """Take in a process."""
        self._owners += 1
        link.owner = self._owners
        self._links[link.owner] = link

    def went(self, link: Link) -> None:
        """Take back what a process held: it is gone."""
        for task_id in link.tasks.values():
            self._of.pop(task_id, None)
            self._processes.end(task_id)
        if link.tasks:
            self._feed(OwnerGone(self.context.now(), link.owner))
        del self._links[link.owner]

    def said(self, link: Link, message: wire.ProcessMessage) -> None:
        """Take in what a process says.

        Raises:
            TaskError: it says what cannot be.
        """
        now = self.context.now()
        if isinstance(message, wire.Register):
            self._register(link, message, now)
            return
        if isinstance(message, wire.Hello):
            link.pid, link.program = message.pid, message.program[:LONGEST_NAME]
            return
        task_id = link.tasks.get(message.task)
        if task_id is None:
            return  # it was dropped meanwhile
        if isinstance(message, wire.Begin):
            self._begin(task_id, message)
            return
        if isinstance(message, wire.Resized):
            self._feed(Resized(now, task_id, message.device))
            return
        self._processes.end(task_id)  # before others have its node
        if isinstance(message, wire.Yielded):
            self._feed(Yielded(now, task_id))
        else:
            self._forget(task_id)
            self._feed(Finished(now, task_id, message.failed))

    def _begin(self, task_id: TaskId, message: wire.Begin) -> None:
        """Start a process on the node that a task has."""
        task = self.scheduler.state.running.get(task_id)
        if task is None or task.device is None or task.device.resource is not Resource.NODE:
            raise TaskError(f"expected a task that has a node to start {message.command[:1]}")
        slots = self.context.cluster.slots_of(Node(unit) for unit in task.device.units)
        try:
            self._processes.begin(task_id, message, slots)
        except LaunchError as error:
            self._say_ended(task_id, str(error))

    def _say_ended(self, task_id: TaskId, reason: str) -> None:
        found = self._of.get(task_id)
        if found is not None:
            link, number = found
            link.send(wire.Ended(number, reason))

    def _register(self, link: Link, message: wire.Register, now: float) -> None:
        if message.task in link.tasks:
            raise TaskError(f"expected a new task, got {message.task}")
        self._numbers += 1
        task_id = TaskId(self._numbers)
        after = tuple(link.tasks[number] for number in message.after if number in link.tasks)
        spec = TaskSpec(
            link.owner,
            message.kernels,
            message.priority,
            after,
            message.interruptible,
            message.name,
            message.malleable,
        )
        device = self.scheduler.state.devices.get(message.device)
        if message.device:
            if device is None or not self._kept.keys() >= set(device.units):
                link.send(wire.Lost(message.task))
                return
            for unit in device.units:
                del self._kept[unit]
        link.tasks[message.task], self._of[task_id] = task_id, (link, message.task)
        self._feed(Registered(now, task_id, spec, message.device))

    def _forget(self, task_id: TaskId) -> None:
        found = self._of.pop(task_id, None)
        if found is not None:
            link, number = found
            del link.tasks[number]

    # --- decisions ---------------------------------------------------------------------------

    def _feed(self, event: TaskEvent) -> None:
        decisions = self.scheduler.apply(event)
        if not isinstance(event, Woken):
            self.record.note(event)
        self._settle(decisions)

    def _settle(self, decisions: list[TaskDecision]) -> None:
        """Decide, hold the nodes that takes, then tell the processes; again if jobs moved."""
        while True:
            closed = self._closed - self.scheduler.state.held.keys()
            if self._changed or self._jobs_wait or closed:
                self._see_jobs()
            decisions += self.scheduler.decide()
            need, lent = self._need(), self._lent
            if not need.items() <= lent.items() or (self._jobs_wait and len(need) < len(lent)):
                self._hold(need if self._jobs_wait else {**lent, **need})
            if not self._changed:
                break
        for decision in decisions:
            self._tell(decision)

    @property
    def _lent(self) -> dict[int, str]:
        """The nodes that tasks hold for the engine of jobs, and whose energy that is."""
        return {int(node): owner for node, owner in self.context.state.lent.items()}

    def _need(self) -> dict[int, str]:
        """Return the nodes on which tasks run, or may run that have not said so yet."""
        links = self._links
        held = {unit: links[owner].label for unit, owner in self.scheduler.state.held.items()}
        return held | self._kept

    def _hold(self, units: Mapping[int, str]) -> None:
        """Enter which nodes tasks hold; jobs may start on what they no longer do."""
        nodes = sorted(units)
        owners = tuple(units[unit] for unit in nodes)
        self._handle(TasksHold(self.context.time(), tuple(map(Node, nodes)), owners))
        self._changed = True

    def _see_jobs(self) -> None:
        """Let the scheduler of tasks know which nodes are jobs'.

        Those are all that tasks do not hold, while a job waits that theirs would let start; and
        free ones on which tasks would pass the power cap.
        """
        self._changed = False
        jobs, state = self.context.state, self.scheduler.state
        self._jobs_wait = tasks_in_the_way(jobs, islice(jobs.pending.values(), LOOKED_AT))
        held = state.held.keys()
        units = {unit for device in state.devices.values() for unit in device.units}
        if self._jobs_wait:
            theirs, self._closed = units - held, set()
        else:
            free_ones = {n for n in units if jobs.vacant[n] or n in jobs.lent} - jobs.down
            closed = units - under_cap(jobs, free_ones)
            theirs, self._closed = closed - held | self._kept.keys(), closed & held
        before = {unit for unit, task in state.holder.items() if task == OTHERS}
        now = self.context.now()
        for kind, changed in ((UnitsTaken, theirs - before), (UnitsFreed, before - theirs)):
            if changed:
                event = kind(now, tuple(sorted(changed)))
                self.record.note(event)
                self.scheduler.apply(event)

    def _tell(self, decision: TaskDecision) -> None:
        found = self._of.get(decision.task)
        if found is None:
            return
        link, number = found
        if isinstance(decision, Run):
            self.record.note(Ran(self.context.now(), decision.task, decision.device))
            device = self.scheduler.state.devices[decision.device]
            slots = self.context.cluster.slots_of(Node(unit) for unit in device.units)
            link.send(wire.Run(number, decision.device, decision.resource, slots))
        elif isinstance(decision, GoOn):
            device = self.scheduler.state.devices[decision.device]
            slots = self.context.cluster.slots_of(Node(unit) for unit in device.units)
            link.send(wire.GoOn(number, decision.device, slots))
        elif isinstance(decision, Stop):
            link.send(wire.Stop(number))
        elif isinstance(decision, Drop):
            self._forget(decision.task)
            link.send(wire.Drop(number, decision.reason))
