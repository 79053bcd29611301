"""Tasks in the daemon: between their processes, their scheduler and the nodes of jobs.

    process ── socket ──► here ── event ──► scheduler: strategy ── decisions ──► here ──► process
                           │  lend: the nodes that tasks hold
                           ▼
                         the daemon (:class:`NodeLender`), which gives them to no job

The daemon's journal has the nodes only. A node that tasks no longer need is held for a moment, so
that a burst of short tasks writes few events. A job that waits for nodes of tasks goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec.structs import replace

from rms.core.state import TASKS
from rms.formats.prices import Prices
from rms.kernels.connection import (
    CommandEnded,
    DaemonMessage,
    DeviceLost,
    Frames,
    Hello,
    ProcessMessage,
    TaskCommand,
    frame,
)
from rms.kernels.model import (
    Governor,
    GovernorSet,
    OwnerGone,
    Resource,
    TaskDecision,
    TaskDevice,
    TaskDrop,
    TaskEvent,
    TaskFinished,
    TaskGoOn,
    TaskId,
    TaskRegistered,
    TaskResized,
    TaskRun,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.record import RecordEntry, StrategySet, TaskRan, TaskRecording, UnitPower
from rms.kernels.scheduler import ShortTerm, Strategy, TaskScheduler
from rms.launch.base import LaunchError, ManagedProcess, ScriptLaunch
from rms.launch.local import LocalLauncher
from rms.wire.users import TaskRow

log = logging.getLogger("rms")


class NodeLender(Protocol):
    """The daemon's interface for tasks: it lends nodes to them and takes them back.

    Attributes:
        devices: the devices of tasks, whose units are numbers of nodes; none with an engine that
            has no tasks.
    """

    devices: Sequence[TaskDevice]
    power: Mapping[int, UnitPower]
    prices: Prices | None
    launcher: LocalLauncher
    now: Callable[[], float]
    record: Callable[[Sequence[RecordEntry]], None]
    recorded: Callable[[], list[RecordEntry]]

    def lent(self) -> Mapping[int, str]:
        """Return the nodes that tasks hold, with the owners of their energy, or ""."""

    def lend(self, units: Mapping[int, str]) -> None:
        """Lend these nodes, to these owners of their energy, and no others."""

    def free(self, units: Iterable[int]) -> set[int]:
        """Return the nodes among these that are up and not a job's."""

    def under_cap(self, units: Iterable[int]) -> set[int]:
        """Return the nodes among these on which tasks could run within the power cap."""

    def power_cap_w(self) -> float | None:
        """Return the power cap of the cluster."""

    def jobs_wait(self) -> bool:
        """Return whether tasks hold the nodes, or the power, for which a job waits."""

    def slots_of(self, units: Iterable[int]) -> tuple[str, ...]:
        """Return the slots of nodes, as ``cpu:3`` or ``gpu:0``."""

    def keep(self, strategy: Strategy, governor: str) -> None:
        """Note a strategy and the governor's rule for the next daemon."""

    def kept(self) -> tuple[Callable[[], Strategy], str] | None:
        """Return a loader of the strategy, and the governor's rule, of the previous daemon."""


class StrategyLoader(Protocol):
    """Loads strategies, also from users' files, and ends the processes of the latter."""

    def load(self, name: str, text: str) -> Strategy:
        """Return a shipped strategy, or that of a file of this text; ValueError without one."""

    def used(self, strategy: Strategy) -> None:
        """Enter that a strategy decides from now on."""

    def end_unused(self, strategies: Collection[Strategy]) -> None:
        """End the processes of all used strategies but these."""


# --- The governor ----------------------------------------------------------------------------
#
# A change is an event of the record, so strategies are tried under the governor as it was.

LOOK_S = 1.0  # interval at which a rule is applied
ROUNDING = 1e-9  # relative rounding of the mean of equal prices
Kind = Literal["high", "low", "price", "co2", "cap"]
EXPECTED = "high, low, price[:LIMIT], co2[:LIMIT] or cap"


class GovernorRule(msgspec.Struct, frozen=True):
    """The rule that sets the governor of tasks.

    Attributes:
        kind: ``high`` or ``low`` for a constant governor; ``price``, ``co2``: low while these are
            above the limit; ``cap``: low while the power cap leaves less than tasks would take on
            all nodes that are not jobs'.
        limit: price or g of CO2 per kWh; None for the mean of the file of prices.
    """

    kind: Kind = "high"
    limit: float | None = None

    @classmethod
    def parse(cls, text: str) -> GovernorRule:
        """Return the rule of a text, or raise a ValueError."""
        kind, colon, number = text.partition(":")
        try:
            limit = float(number) if colon else None
        except ValueError:
            limit = math.nan
        valid = kind in get_args(Kind) and (not colon or kind in ("price", "co2"))
        if not valid or (limit is not None and not math.isfinite(limit)):
            raise ValueError(f"expected a governor: {EXPECTED}, got {text!r}")
        return cls(kind, limit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.limit is None else f"{self.kind}:{self.limit:g}"

    @property
    def automatic(self) -> bool:
        """Whether it may change the governor."""
        return self.kind not in ("high", "low")

    def check(self, prices: Prices | None) -> None:
        """Raise a ValueError if the rule needs prices that are missing."""
        if self.kind in ("price", "co2") and (prices is None or prices.series(self.kind) is None):
            keys = {"price": "price_per_kwh", "co2": "co2_g_per_kwh"}
            raise ValueError(f"expected rms serve --prices FILE with {keys[self.kind]}, got none")

    def governor(
        self, lender: NodeLender, units: Iterable[int], present: Governor
    ) -> tuple[Governor, str]:
        """Return the governor by this rule now, and the reason.

        Args:
            present: the present governor, which stays if the file of prices has no value now.
        """
        if not self.automatic:
            return Governor(self.kind), "as set"
        if self.kind == "cap":
            cap_w, free = lender.power_cap_w(), lender.free(units)
            if cap_w is None:
                return Governor.HIGH, "no power cap"
            low = len(lender.under_cap(free)) < len(free)
            less = "less than" if low else "all that"
            return _low(low), f"the cap of {cap_w:g} W leaves {less} tasks would take"
        prices = lender.prices
        assert prices is not None and self.kind in ("price", "co2")
        value = prices.value(self.kind, lender.now())
        limit = prices.mean(self.kind) if self.limit is None else self.limit
        if value is None:
            return present, f"no {self.kind} of this time in the file of prices"
        low = value > limit + ROUNDING * abs(limit)
        unit = prices.currency if self.kind == "price" else "g CO2"
        return _low(low), f"{value:g} {unit}/kWh, {'above' if low else 'not above'} {limit:g}"


def _low(low: bool) -> Governor:
    return Governor.LOW if low else Governor.HIGH


# --- Processes: their connections, and their commands on other nodes -------------------------

_decode = msgspec.msgpack.Decoder(ProcessMessage).decode


class TaskLink(asyncio.Protocol):
    """The connection of a process; it ends with the process."""

    def __init__(self, tasks: Tasks) -> None:
        self.owner = self.pid = 0
        self.program = ""
        self.tasks: dict[TaskId, TaskId] = {}
        self._listener, self._frames = tasks, Frames()
        self._transport: Any = None

    @property
    def label(self) -> str:
        """The owner of the energy of its tasks."""
        return f"{TASKS}{self.program}[{self.pid}]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take in a process."""
        self._transport = transport
        self._listener.connected(self)

    def data_received(self, data: bytes) -> None:
        """Take in messages; end the connection at one that is invalid."""
        try:
            for body in self._frames.feed(data):
                self._listener.on_message(self, _decode(body))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            log.info(f"tasks: a process was cut off: {error}")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Take back the devices of a process."""
        self._listener.disconnected(self)

    def send(self, message: DaemonMessage) -> None:
        """Send a message to the process."""
        self._transport.write(frame(message))


PRINTED = 4096
"""Bytes at the end of a command's output that are searched for the reason of its end."""


class TaskCommands:
    """The commands of tasks on other nodes, at most one per task, which ends with the task's turn.

    Their output is appended to ``tasks.log`` of the state folder when they are over.
    """

    def __init__(self, launcher: LocalLauncher) -> None:
        self._launcher = launcher
        self._commands: dict[TaskId, tuple[str, ManagedProcess]] = {}

    def begin(self, task: TaskId, message: TaskCommand, slots: Sequence[str]) -> None:
        """Start a task's command on slots of one node, or raise a LaunchError."""
        self.end(task)
        launcher = self._launcher
        name = f"task-{secrets.token_hex(4)}"  # no other daemon has used it before
        folder = launcher.status_file(name).parent
        try:
            folder.mkdir(parents=True, mode=0o700)
            script = folder / "script"
            script.write_text(f"#!/bin/sh\nexec {shlex.join(message.command)}\n")
            script.chmod(0o700)
            output = folder / "output"
            launch = ScriptLaunch(script, message.cwd, message.env, output, [slots])
            self._commands[task] = name, launcher.start_script(name, launch)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LaunchError(str(error)) from None

    def end(self, task: TaskId) -> None:
        """End a task's command, if it has one."""
        name, _ = self._commands.pop(task, ("", None))
        if not name:
            return
        self._launcher.kill(name)
        folder = self._launcher.status_file(name).parent
        with contextlib.suppress(OSError):
            output = (folder / "output").read_bytes()
            if output:
                with (self._launcher.state / "tasks.log").open("ab") as log:
                    log.write(output)
        shutil.rmtree(folder, ignore_errors=True)

    def ended(self) -> Iterator[tuple[TaskId, str]]:
        """Yield the tasks whose commands are over, once, and the reason."""
        for task, (name, process) in list(self._commands.items()):
            status = process.status()
            if status is None:
                continue
            output = self._launcher.status_file(name).with_name("output")
            reason = process.end_reason or _last_line(output)
            self.end(task)
            yield task, reason or f"exit status {status}"

    def close(self) -> None:
        """End all of them."""
        for task in list(self._commands):
            self.end(task)


def _last_line(output: Path) -> str:
    with contextlib.suppress(OSError):
        text = output.read_bytes()[-PRINTED:].decode(errors="replace")
        return next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return ""


# --- The tasks of all processes --------------------------------------------------------------

RECORD_S = 1.0  # time for which entries are kept in memory; a killed daemon loses them
BEGIN_EVERY = 10_000
"""Number of entries after which the devices are entered again, as the journal drops the oldest."""

LINGER_S = 0.5  # time for which an unneeded node is held, if no job waits
ADOPT_S = 10.0
"""Time after a restart for which the nodes of tasks are kept for tasks that still run there."""

LONGEST_NAME = 64


class Tasks:
    """The tasks of all connected processes."""

    def __init__(self, lender: NodeLender, strategies: StrategyLoader) -> None:
        self._lender = lender
        self.scheduler = TaskScheduler(lender.devices, ShortTerm(), self._strategy_failed)
        self.strategies = strategies
        self._entries, self._entry_count = list[RecordEntry](), 0
        self._begun_s = self._recorded_s = lender.now()
        self.rule, self._governed_s = GovernorRule(), -inf
        self._failure = ""
        self._commands = TaskCommands(lender.launcher)
        self._links: dict[int, TaskLink] = {}
        self._owners = self._numbers = 0
        self._process_tasks: dict[TaskId, tuple[TaskLink, TaskId]] = {}
        self._jobs_changed, self._jobs_wait = True, False
        self._idle_since: dict[int, float] = {}
        self._closing = set[int]()  # tasks run there, and no others may start there
        self._kept = dict(lender.lent())
        self._kept_until_s = lender.now() + ADOPT_S

    def tick(self) -> None:
        """Take back nodes that tasks do not need, and wake the strategy at its time."""
        now, state = self._lender.now(), self.scheduler.state
        if self._entries and now >= self._recorded_s + RECORD_S:
            self._write_record()
        for task_id, reason in self._commands.ended():
            self._send_ended(task_id, reason)
        if self._kept and now > self._kept_until_s:
            self._kept.clear()
            self._jobs_changed = True
        lent, need = self._lender.lent(), self._need()
        idle = dict.fromkeys(lent.keys() - need.keys(), "")
        self._idle_since = {unit: self._idle_since.get(unit, now) for unit in idle}
        if any(since_s + LINGER_S <= now for since_s in self._idle_since.values()):
            self._lend(need)
        elif any(lent[unit] for unit in idle):
            self._lend({**need, **idle})  # they draw the power of idle nodes now
        self.strategies.end_unused(self.scheduler.strategies)
        if self.rule.automatic and now >= self._governed_s + LOOK_S:
            self._govern()
        wake_s = self.scheduler.wake_s
        if wake_s is not None and now >= wake_s:
            self._feed(Woken(now))
        elif self._jobs_changed and (state.tasks or self._lender.lent()):
            self._decide([])

    def jobs_changed(self) -> None:
        """Enter that jobs, or their nodes, have changed; the next tick decides by them."""
        self._jobs_changed = True

    def close(self) -> None:
        """End the processes of strategies and the commands; enter the record."""
        self.strategies.end_unused(())
        self._commands.close()
        self._write_record()

    def rows(self) -> list[TaskRow]:
        """Return the rows of all tasks, the oldest first."""
        return [
            TaskRow(
                self._links[task.spec.owner].pid,
                task.spec.name,
                "STOPPING" if task.device is not None and task.stopping else str(task.phase),
                "" if task.device is None else task.device.name,
                task.queue or "",
            )
            for task in self.scheduler.state.tasks.values()
        ]

    # --- the record of their events ----------------------------------------------------------

    def record(self) -> list[RecordEntry]:
        """Return the record as far as the journal keeps it."""
        self._write_record()
        return self._lender.recorded()

    def _note(self, entry: RecordEntry) -> None:
        """Add an entry to the record; from time to time also the devices."""
        if self._entry_count % BEGIN_EVERY == 0:
            scheduler, state = self.scheduler, self.scheduler.state
            devices, power = tuple(state.devices.values()), dict(self._lender.power)
            strategy, governor = scheduler.strategy.name, state.governor
            self._entries.append(
                TaskRecording(
                    entry.at_s, self._begun_s, devices, power, strategy, governor, state.others
                )
            )
        self._entry_count += 1
        self._entries.append(entry)

    def _write_record(self) -> None:
        self._recorded_s = self._lender.now()
        if self._entries:
            entries, self._entries = self._entries, []
            self._lender.record(entries)

    # --- strategy and governor ---------------------------------------------------------------

    def use(self, strategy: Strategy | None, rule: GovernorRule | None) -> None:
        """Set the strategy and the governor's rule; None leaves them as they are.

        A ValueError states what is missing, a device or prices, or why the strategy failed.
        """
        if not self.scheduler.state.devices:
            raise ValueError("expected tasks with the engine local or slurm-pilot, got another")
        now, scheduler = self._lender.now(), self.scheduler
        if rule is not None:
            rule.check(self._lender.prices)
            self.rule = rule
        if strategy is not None:
            self._failure = ""
            self.strategies.used(strategy)
            scheduler.swap(strategy)
        self._feed(Woken(now))
        if rule is not None:
            self._govern()
        self._note(StrategySet(now, scheduler.strategy.name))
        self.strategies.end_unused(scheduler.strategies)
        self._lender.keep(scheduler.strategy, str(self.rule))
        if strategy not in (None, scheduler.strategy):
            raise ValueError(self._failure)

    def restore(self) -> None:
        """Use the strategy and the governor of the previous daemon."""
        kept = self._lender.kept()
        if kept is None:
            return
        load, rule = kept
        try:
            self.use(load(), None)
        except ValueError as error:
            log.info(f"strategy {self.scheduler.strategy.name} instead: {error}")
        try:
            self.use(None, GovernorRule.parse(rule))
        except ValueError as error:
            log.info(f"governor {self.rule} instead: {error}")

    def _strategy_failed(self, words: str) -> None:
        self._failure = words
        log.info(words)

    def _govern(self) -> None:
        self._governed_s, state = self._lender.now(), self.scheduler.state
        governor, reason = self.rule.governor(self._lender, self._units, state.governor)
        if governor is not state.governor:
            if self.rule.automatic:
                log.info(f"governor of tasks {governor}: {reason}")
            self._feed(GovernorSet(self._lender.now(), governor))

    # --- processes ---------------------------------------------------------------------------

    def connected(self, link: TaskLink) -> None:
        """Take in a process."""
        self._owners += 1
        link.owner = self._owners
        self._links[link.owner] = link

    def disconnected(self, link: TaskLink) -> None:
        """Take back the devices of a process that is gone."""
        for task_id in link.tasks.values():
            self._process_tasks.pop(task_id, None)
            self._commands.end(task_id)
        if link.tasks:
            self._feed(OwnerGone(self._lender.now(), link.owner))
        del self._links[link.owner]

    def on_message(self, link: TaskLink, message: ProcessMessage) -> None:
        """Take in a message of a process; an impossible event is a ValueError."""
        if isinstance(message, Hello):
            link.pid, link.program = message.pid, message.program[:LONGEST_NAME]
            return
        if isinstance(message, TaskRegistered):
            self._register(link, message)
            return
        task_id = link.tasks.get(message.task)
        if task_id is None:
            return  # it was dropped meanwhile
        if isinstance(message, TaskCommand):
            task = self.scheduler.state.running.get(task_id)
            if task is None or task.device is None or task.device.resource is not Resource.NODE:
                raise ValueError(f"expected a task that has a node to start {message.command[:1]}")
            try:
                self._commands.begin(task_id, message, self._lender.slots_of(task.device.units))
            except LaunchError as error:
                self._send_ended(task_id, str(error))
            return
        if not isinstance(message, TaskResized):
            self._commands.end(task_id)  # before others have its node
        if isinstance(message, TaskFinished):
            self._forget(task_id)
        self._feed(replace(message, at_s=self._lender.now(), task=task_id))

    def _register(self, link: TaskLink, message: TaskRegistered) -> None:
        if message.task in link.tasks:
            raise ValueError(f"expected a new task, got {message.task}")
        self._numbers += 1
        task_id, number = TaskId(self._numbers), message.task
        if message.device:
            device = self.scheduler.state.devices.get(message.device)
            if device is None or not self._kept.keys() >= set(device.units):
                link.send(DeviceLost(number))
                return
            for unit in device.units:
                del self._kept[unit]
        after = tuple(link.tasks[task] for task in message.spec.after if task in link.tasks)
        spec = replace(message.spec, owner=link.owner, after=after)
        link.tasks[number], self._process_tasks[task_id] = task_id, (link, number)
        self._feed(replace(message, at_s=self._lender.now(), task=task_id, spec=spec))

    def _forget(self, task_id: TaskId) -> None:
        link, number = self._process_tasks.pop(task_id)
        del link.tasks[number]

    def _send_ended(self, task_id: TaskId, reason: str) -> None:
        if task_id in self._process_tasks:
            link, number = self._process_tasks[task_id]
            link.send(CommandEnded(number, reason))

    def _send(self, decision: TaskDecision) -> None:
        """Send a decision on a task to its process, if that is still there."""
        task_id = decision.task
        if task_id not in self._process_tasks:
            return
        link, number = self._process_tasks[task_id]
        message = replace(decision, task=number)
        if isinstance(message, TaskRun):
            self._note(TaskRan(self._lender.now(), task_id, message.device))
        if isinstance(message, TaskRun | TaskGoOn):
            units = self.scheduler.state.devices[message.device].units
            message = replace(message, slots=self._lender.slots_of(units))
        elif isinstance(message, TaskDrop):
            self._forget(task_id)
        link.send(message)

    # --- decisions, and the nodes they need --------------------------------------------------

    def _feed(self, event: TaskEvent) -> None:
        decisions = self.scheduler.apply(event)
        if not isinstance(event, Woken):
            self._note(event)
        self._decide(decisions)

    def _decide(self, decisions: list[TaskDecision]) -> None:
        """Decide, borrow the nodes of the decisions, then send them; again if jobs changed."""
        while True:
            closed = self._closing - self.scheduler.state.held.keys()
            if self._jobs_changed or self._jobs_wait or closed:
                self._follow_jobs()
            decisions += self.scheduler.decide()
            need, lent = self._need(), self._lender.lent()
            if not need.items() <= lent.items() or (self._jobs_wait and len(need) < len(lent)):
                self._lend(need if self._jobs_wait else {**lent, **need})
            if not self._jobs_changed:
                break
        for decision in decisions:
            self._send(decision)

    @property
    def _units(self) -> set[int]:
        return {unit for device in self.scheduler.state.devices.values() for unit in device.units}

    def _need(self) -> dict[int, str]:
        """Return the units of tasks, and those kept for tasks of before a restart."""
        links = self._links
        held = {unit: links[owner].label for unit, owner in self.scheduler.state.held.items()}
        return held | self._kept

    def _lend(self, units: Mapping[int, str]) -> None:
        self._lender.lend(units)
        self._jobs_changed = True

    def _follow_jobs(self) -> None:
        """Enter the units of jobs in the scheduler.

        While a job waits for units of tasks, these are all units that tasks do not hold; else those
        that are not free, and free ones on which tasks would exceed the power cap.
        """
        self._jobs_changed = False
        self._jobs_wait = self._lender.jobs_wait()
        state, units = self.scheduler.state, self._units
        held, before = state.held.keys(), set(state.others)
        if self._jobs_wait:
            others, self._closing = units - held, set()
        else:
            closed = units - self._lender.under_cap(self._lender.free(units))
            others, self._closing = closed - held | self._kept.keys(), closed & held
        now = self._lender.now()
        for kind, changed in ((UnitsTaken, others - before), (UnitsFreed, before - others)):
            if changed:
                event = kind(now, tuple(sorted(changed)))
                self._note(event)
                self.scheduler.apply(event)
