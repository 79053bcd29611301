"""The governor of tasks: high or low, as somebody said, or by a price curve or the power cap.

A change is an event of the tasks' record, so strategies that are tried on it afterwards
(``rms simulate --strategy``) see the governor as it was; the rule is in a note for the next daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import math
import os
import pickle
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import IO, Any, Literal, Protocol, get_args

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import TasksHold
from rms.core.model.jobs import Node
from rms.core.rules.powercap import tasks_in_the_way, under_cap
from rms.core.state import TASKS
from rms.daemon.store.context import Context, Handle
from rms.formats.prices import Prices
from rms.kernels import wire
from rms.kernels.model import (
    OTHERS,
    Choice,
    Device,
    Drop,
    Finished,
    GoOn,
    Governor,
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
    TaskState,
    UnitsFreed,
    UnitsTaken,
    Woken,
    Yielded,
)
from rms.kernels.record import Ran, RecordEntry, Recording, StrategySet, UnitPower
from rms.kernels.scheduler import STRATEGIES, ShortTerm, Strategy, TaskError, TaskScheduler
from rms.kernels.wire import Resource
from rms.launch.base import LaunchError, ManagedProcess, ScriptLaunch
from rms.wire.files import write_whole
from rms.wire.users import TaskRow

LOOK_S = 1.0
"""How often a rule is looked at."""

ROUNDING = 1e-9
"""The mean of equal prices may be that much off."""

Kind = Literal["high", "low", "price", "co2", "cap"]
EXPECTED = "high, low, price[:LIMIT], co2[:LIMIT] or cap"


class GovernorRule(msgspec.Struct, frozen=True):
    """What the governor of tasks is set by.

    Attributes:
        kind: always ``high`` or ``low``; low while ``price`` or ``co2`` are above the limit, or
            while the power ``cap`` leaves less than tasks would take on all nodes that are not
            jobs'.
        limit: per kWh, of price or g of CO2; None for the mean of the file of prices.
    """

    kind: Kind = "high"
    limit: float | None = None

    @classmethod
    def parse(cls, text: str) -> GovernorRule:
        """Return the rule that is written like this.

        Raises:
            ValueError: none is.
        """
        kind, colon, number = text.partition(":")
        try:
            limit = float(number) if colon else None
        except ValueError:
            limit = math.nan
        known = kind in get_args(Kind) and (not colon or kind in ("price", "co2"))
        if not known or (limit is not None and not math.isfinite(limit)):
            raise ValueError(f"expected a governor: {EXPECTED}, got {text!r}")
        return cls(kind, limit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.kind if self.limit is None else f"{self.kind}:{self.limit:g}"

    @property
    def automatic(self) -> bool:
        """Whether it may set the governor to another."""
        return self.kind not in ("high", "low")

    def check(self, prices: Prices | None) -> None:
        """Refuse a rule by prices that are not known.

        Raises:
            ValueError: they are not.
        """
        if self.kind in ("price", "co2") and (prices is None or prices.series(self.kind) is None):
            keys = {"price": "price_per_kwh", "co2": "co2_g_per_kwh"}
            raise ValueError(f"expected rms serve --prices FILE with {keys[self.kind]}, got none")


def governor_of(
    rule: GovernorRule, context: Context, nodes: Collection[int], present: Governor
) -> tuple[Governor, str]:
    """Return what a rule says now, and why.

    Where a file of prices says nothing of this time it stays as it is.

    Args:
        nodes: those that tasks may run on.
        present: what it is now.
    """
    if not rule.automatic:
        return Governor(rule.kind), "as set"
    if rule.kind == "cap":
        state = context.state
        if state.power_cap_w is None:
            return Governor.HIGH, "no power cap"
        able = {node for node in nodes if state.vacant[node] or node in state.lent}
        low = len(under_cap(state, able)) < len(able)
        less = "less than" if low else "all that"
        return _low(low), f"the cap of {state.power_cap_w:g} W leaves {less} tasks would take"
    prices = context.settings.prices
    assert prices is not None and rule.kind in ("price", "co2")
    value = prices.value(rule.kind, context.now())
    limit = prices.mean(rule.kind) if rule.limit is None else rule.limit
    if value is None:
        return present, f"no {rule.kind} of this time is known"
    low = value > limit + ROUNDING * abs(limit)
    unit = prices.currency if rule.kind == "price" else "g CO2"
    return _low(low), f"{value:g} {unit}/kWh, {'above' if low else 'not above'} {limit:g}"


def _low(low: bool) -> Governor:
    return Governor.LOW if low else Governor.HIGH


# FUSED rms.daemon.kernels: Strategies of users' own files: each in a process of its own, with a time limit for each call.
#
# ``python -m rms.daemon.kernels FILE.py`` is that process: it imports the file, then answers each
# state that it is sent with what ``schedule(state)`` chooses. A loop that never ends is ended with
# it; so is what crashes the interpreter. Whatever goes wrong is an error of the call, on which the
# scheduler of tasks goes back to the strategy before.

LIMIT_S = 2.0
"""How long a call may take; until then the daemon waits for it."""

LOAD_S = 30.0
"""How long the import of a file may take: the daemon goes on meanwhile."""

STRATEGY_LOOK_S = 0.5
"""How often a strategy's process sees whether its daemon is there."""

MOST_SEEN = 256
"""A strategy in a file is told of so many waiting tasks, the first: sending them takes time."""

LENGTH_BYTES = 8


class StrategyError(ValueError):
    """A strategy that cannot be loaded, raises, hangs, or answers nonsense; one sentence."""


class _Answer(msgspec.Struct):
    """What the file says: its choices, or what went wrong; first of all, its queues' lengths."""

    choices: tuple[Choice, ...] = ()
    capacity: dict[Resource, int] = {}
    error: str = ""


_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class FileStrategy:
    """A strategy as the scheduler of tasks knows it, which asks the process that has it.

    Args:
        path: of the file.
        name: what it is called, by default as the file.

    Raises:
        StrategyError: the file cannot be loaded.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or str(path)
        if not path.is_file():
            raise StrategyError(f"expected a strategy's file, got {path}, which does not exist")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rms.daemon.kernels", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self.capacity: Mapping[Resource, int] = self._answer(b"", LOAD_S).capacity

    def __call__(self, state: TaskState) -> tuple[Choice, ...]:
        """Ask it.

        Raises:
            StrategyError: it raised, took too long, or answered nonsense; it is ended.
        """
        body = pickle.dumps(_seen(state), pickle.HIGHEST_PROTOCOL)
        return self._answer(len(body).to_bytes(LENGTH_BYTES, "big") + body, LIMIT_S).choices

    def close(self) -> None:
        """End its process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, question: bytes, limit_s: float) -> _Answer:
        try:
            found = _decode_answer(self._exchange(question, limit_s))
            if found.error:
                raise StrategyError(found.error)
        except (OSError, ValueError) as error:
            self.close()
            raise StrategyError(f"{self.name}: {error}") from None
        return found

    def _exchange(self, question: bytes, limit_s: float) -> bytes:
        """Write a question and read the answer, within a time limit."""
        process, until_s = self._process, time.monotonic() + limit_s
        if process.returncode is not None:
            raise StrategyError("expected one that goes on, got one that was ended")
        assert process.stdin is not None and process.stdout is not None
        writing, reading = process.stdin.fileno(), process.stdout.fileno()
        poller = select.poll()  # not select: a daemon has many open files
        poller.register(reading, select.POLLIN)
        poller.register(writing, select.POLLOUT)
        left, got = memoryview(question), bytearray()
        while len(got) < LENGTH_BYTES or len(got) < LENGTH_BYTES + _length(got):
            ready = dict(poller.poll(1000.0 * max(0.0, until_s - time.monotonic())))
            if not ready:
                raise StrategyError(f"expected an answer within {limit_s:g} s, got none")
            if writing in ready:
                left = left[os.write(writing, left) :]
                if not left:
                    poller.unregister(writing)
            if reading in ready:
                data = os.read(reading, 1 << 16)
                if not data:
                    raise StrategyError("expected an answer, got the end of its process")
                got += data
        return bytes(got[LENGTH_BYTES:])


class StrategyFiles:
    """Strategies of users, whose processes end when they are to decide no more.

    Args:
        folder: where copies of their files are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._used = folder, set[FileStrategy]()

    def load(self, name: str, text: str) -> Strategy:
        """Return a shipped strategy, or that of a file, whose process is started.

        Args:
            text: of the file, which its user has read.

        Raises:
            ValueError: there is none of that name, or it cannot be loaded.
        """
        if not name.endswith(".py"):
            if name not in STRATEGIES:
                raise ValueError(f"expected a strategy of {', '.join(STRATEGIES)}, got {name!r}")
            return STRATEGIES[name]
        if not text:
            raise ValueError(f"expected the text of {name} with its name, got none")
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, text, mode=0o600)
        return FileStrategy(path, name)

    def used(self, strategy: Strategy) -> None:
        """Know that a strategy is to decide from now on."""
        if isinstance(strategy, FileStrategy):
            self._used.add(strategy)

    def end_unused(self, strategies: Collection[Strategy]) -> None:
        """End the processes of all that were used but these."""
        for each in self._used.difference(strategies):
            self._used.remove(each)
            each.close()


def _seen(state: TaskState) -> TaskState:
    """Return what a strategy is told of a state."""
    if len(state.waiting) <= MOST_SEEN:
        return state
    seen = copy.copy(state)
    seen.waiting = state.waiting[:MOST_SEEN]
    queued = (task for queue in state.queues.values() for task in queue)
    seen.tasks = {task.id: task for task in (*state.running.values(), *queued, *seen.waiting)}
    seen.after, seen.failed = {}, set()
    return seen


def _length(data: bytearray) -> int:
    return int.from_bytes(data[:LENGTH_BYTES], "big")


# --- in the strategy's process -------------------------------------------------------------------


def main(path: str) -> None:
    """Answer until nobody asks any more."""
    answers, questions = os.fdopen(os.dup(1), "wb", buffering=0), sys.stdin.buffer
    os.dup2(2, 1)  # what the file prints is no answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        names: dict[str, object] = {"__name__": "strategy", "__file__": path}
        exec(compile(Path(path).read_bytes(), path, "exec"), names)
        schedule = names["schedule"]
        assert callable(schedule)
        capacity = msgspec.convert(names.get("CAPACITY", {}), dict[Resource, int])
        _send(answers, _Answer(capacity=capacity))
    except KeyError:
        _send(answers, _Answer(error="expected a function schedule(state), got none"))
        return
    except Exception as error:
        _send(answers, _Answer(error=f"expected a file that can be imported, got {error!r}"))
        return
    for state in _questions(questions):
        try:
            choices = tuple(schedule(state))
            wrong = [each for each in choices if not isinstance(each, Choice)]
            words = f"expected choices (Start, Enqueue, ...), got {wrong[0]!r}" if wrong else ""
            _send(answers, _Answer(() if wrong else choices, error=words))
        except Exception as error:
            _send(answers, _Answer(error=f"it raised {error!r}"))


def _questions(questions: IO[bytes]) -> Iterator[TaskState]:
    while head := questions.read(LENGTH_BYTES):
        yield pickle.loads(questions.read(int.from_bytes(head, "big")))


def _send(answers: IO[bytes], answer: _Answer) -> None:
    body = memoryview(msgspec.msgpack.encode(answer))
    whole = memoryview(len(body).to_bytes(LENGTH_BYTES, "big") + bytes(body))
    while whole:
        whole = whole[answers.write(whole) :]


def _end_with(parent: int) -> None:
    """End this process when its daemon is gone, whatever it does."""
    while os.getppid() == parent:
        time.sleep(STRATEGY_LOOK_S)
    os._exit(0)


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main(sys.argv[1])


# FUSED rms.daemon.kernels: The connection of a process that has tasks.

_decode = msgspec.msgpack.Decoder(wire.ProcessMessage).decode


class Listener(Protocol):
    """Who is told what processes say."""

    context: Context

    def came(self, link: Link) -> None:
        """Take in a process."""

    def said(self, link: Link, message: wire.ProcessMessage) -> None:
        """Take in what a process says."""

    def went(self, link: Link) -> None:
        """Take back what a process held: it is gone."""


class Link(asyncio.Protocol):
    """The connection of one process; its end is the process's.

    Attributes:
        program: what it says that it is called.
        tasks: by the process's numbers, those that are not over.
    """

    def __init__(self, listener: Listener) -> None:
        self.owner = self.pid = 0
        self.program = ""
        self.tasks: dict[int, TaskId] = {}
        self._listener, self._frames = listener, wire.Frames()
        self._transport: Any = None

    @property
    def label(self) -> str:
        """Whose the energy of its tasks is."""
        return f"{TASKS}{self.program}[{self.pid}]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._transport = transport
        self._listener.came(self)

    def data_received(self, data: bytes) -> None:
        """Something was said; whoever says what cannot be is not listened to any longer."""
        try:
            for body in self._frames.feed(data):
                self._listener.said(self, _decode(body))
        except (TaskError, msgspec.MsgspecError, RecursionError, ValueError) as error:
            self._listener.context.say(f"tasks: a process was cut off: {error}")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The process is gone."""
        self._listener.went(self)

    def send(self, message: wire.DaemonMessage) -> None:
        """Tell the process something."""
        self._transport.write(wire.frame(message))


# FUSED rms.daemon.kernels: Processes of tasks on other nodes: started as a job's script would be, ended with their turn.

PRINTED = 4096
"""So much of what a process printed last is looked at for why it ended."""


@dataclass
class _Process:
    name: str
    folder: Path
    process: ManagedProcess


class TaskProcesses:
    """The processes that tasks had started, one for each at most.

    What they print is in ``tasks.log`` of the state folder once they are over.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._of: dict[TaskId, _Process] = {}

    def begin(self, task: TaskId, message: wire.Begin, slots: Sequence[str]) -> None:
        """Start a task's command on slots of one node.

        Raises:
            LaunchError: it could not be started.
        """
        self.end(task)
        launcher = self._context.launcher
        name = f"task-{secrets.token_hex(4)}"  # no other daemon has used it before
        folder = launcher.status_file(name).parent
        try:
            folder.mkdir(parents=True, mode=0o700)
            script = folder / "script"
            script.write_text(f"#!/bin/sh\nexec {shlex.join(message.command)}\n")
            script.chmod(0o700)
            output = folder / "output"
            launch = ScriptLaunch(script, message.cwd, message.env, output, [slots])
            self._of[task] = _Process(name, folder, launcher.start_script(name, launch))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LaunchError(str(error)) from None

    def end(self, task: TaskId) -> None:
        """End a task's process, if it has one."""
        known = self._of.pop(task, None)
        if known is None:
            return
        self._context.launcher.kill(known.name)
        with contextlib.suppress(OSError):
            printed = (known.folder / "output").read_bytes()
            if printed:
                with (self._context.launcher.state / "tasks.log").open("ab") as log:
                    log.write(printed)
        shutil.rmtree(known.folder, ignore_errors=True)

    def ended(self) -> Iterator[tuple[TaskId, str]]:
        """Yield the tasks whose processes are over, each once, and why."""
        for task, known in list(self._of.items()):
            status = known.process.status()
            if status is None:
                continue
            reason = known.process.end_reason or self._last_line(known)
            self.end(task)
            yield task, reason or f"exit status {status}"

    def close(self) -> None:
        """End all of them."""
        for task in list(self._of):
            self.end(task)

    def _last_line(self, known: _Process) -> str:
        with contextlib.suppress(OSError):
            text = (known.folder / "output").read_bytes()[-PRINTED:].decode(errors="replace")
            return next((line for line in reversed(text.splitlines()) if line.strip()), "")
        return ""


# FUSED rms.daemon.kernels: What happened to tasks, entered in the journal a second at a time.
#
# Nothing follows from it but what other strategies would have done (``rms simulate --strategy``).

RECORD_S = 1.0
"""How long entries are kept in memory: a daemon that is killed loses those."""

BEGIN_EVERY = 10_000
"""After so many entries what there is to run on is entered again: the oldest are forgotten."""


class TaskRecord:
    """Takes in what happens to the tasks of a scheduler."""

    def __init__(self, context: Context, scheduler: TaskScheduler) -> None:
        self._context, self._scheduler = context, scheduler
        self._entries, self._count = list[RecordEntry](), 0
        self._daemon = self._entered_s = context.now()

    def note(self, entry: RecordEntry) -> None:
        """Keep that something happens."""
        if self._count % BEGIN_EVERY == 0:
            self._entries.append(self._begin(entry.at_s))
        self._count += 1
        self._entries.append(entry)

    def look(self, now_s: float) -> None:
        """Enter what has happened, if it is time."""
        if self._entries and now_s >= self._entered_s + RECORD_S:
            self.enter()

    def enter(self) -> None:
        """Enter what has happened."""
        self._entered_s = self._context.now()
        if self._entries:
            entries, self._entries = self._entries, []
            self._context.journal.record(entries)

    def read(self) -> list[RecordEntry]:
        """Return all that is kept."""
        self.enter()
        return self._context.journal.recorded()

    def _begin(self, at_s: float) -> Recording:
        scheduler, state = self._scheduler, self._scheduler.state
        return Recording(
            at_s,
            self._daemon,
            tuple(state.devices.values()),
            power_of(self._context.cluster),
            scheduler.strategy.name,
            state.governor,
            tuple(sorted(unit for unit, task in state.holder.items() if task == OTHERS)),
        )


def power_of(cluster: Cluster) -> dict[int, UnitPower]:
    """Return what each node draws by its model, idle and busy; of a shared host a slot's part."""
    if not cluster.power:
        return {}
    at = {host: number for number, host in enumerate(cluster.hosts)}
    found = {}
    for unit in range(len(cluster.names)):
        host = cluster.host_of(unit)
        model, slots = cluster.power[at[host]], len(cluster.nodes_of[host]) if cluster.shared else 1
        added_w = max(0.0, model.static_w + model.dynamic_w - model.idle_w)
        found[unit] = UnitPower(model.idle_w / slots, added_w / slots)
    return found


# FUSED rms.daemon.kernels: Tasks live: between processes, the scheduler of tasks, and the engine of jobs.
#
#     process ── socket ──► here ── event ──► core/tasks: strategy ── decisions ──► here ──► process
#                            │  TasksHold: the nodes that tasks hold, through the journal
#                            ▼
#                          engine of jobs, which gives them to nobody
#
# A task's state lives in the scheduler of tasks, and in its own process, which tells it again to a
# daemon that was started anew; the journal knows the nodes alone, since jobs are decided by them.
# Nodes that tasks give back are held for a moment, so that a burst of short tasks of a program
# writes three events: they are the program's, nobody's, and given back.
# A job that waits for them goes first: until it has started, no task is given another device.

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


def devices_of(cluster: Cluster) -> list[Device]:
    """Return the devices of this machine: GPU nodes, all cores together, each core, each node.

    A node here is a virtual one: a kernel for another node runs there in a process of its own.
    """
    gpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("gpu") for s in slots)]
    cpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("cpu") for s in slots)]
    devices = [Device(cluster.names[n], Resource.GPU, (n,)) for n in gpus]
    if cpus:
        devices.append(Device("cores", Resource.CORES, tuple(cpus)))
    devices += [Device(cluster.names[n], Resource.CORE, (n,)) for n in cpus]
    nodes = nodes_as_devices(cluster)
    return devices + [node for node in nodes if set(cpus).issuperset(node.units)]


def nodes_as_devices(cluster: Cluster) -> list[Device]:
    """Return each node, or host that jobs share, as a device of kernels for another node."""
    return [
        Device(f"node-{host}", Resource.NODE, tuple(map(int, cluster.nodes_of[host])))
        for host in cluster.hosts
    ]
