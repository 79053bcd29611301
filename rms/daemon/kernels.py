"""Tasks beside jobs: the daemon lends nodes to :mod:`rms.kernels.served`, and takes them back."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import TasksHold
from rms.core.model.jobs import Node
from rms.core.rules.powercap import tasks_in_the_way, under_cap
from rms.daemon.store.context import Context, Handle
from rms.formats.prices import Prices
from rms.kernels.model import Choice, Resource, TaskDevice, TaskState
from rms.kernels.record import UnitPower
from rms.kernels.scheduler import STRATEGIES, Strategy
from rms.kernels.served import Tasks
from rms.wire.files import write_whole

LOOKED_AT = 100
"""How many waiting jobs are checked for tasks in their way."""


def tasks_of(context: Context, handle: Handle) -> Tasks:
    """Return the tasks of a daemon."""
    files = StrategyFiles(context.launcher.state / "strategies")
    return Tasks(NodesForTasks(context, handle, files), files)


class NodesForTasks:
    """The daemon's nodes, as tasks borrow them (:class:`rms.kernels.served.NodeLender`)."""

    def __init__(self, context: Context, handle: Handle, files: StrategyFiles) -> None:
        self._context, self._handle, self._files = context, handle, files
        self.now, self.say, self.launcher = context.now, context.say, context.launcher
        self.record, self.recorded = context.journal.record, context.journal.recorded

    @property
    def devices(self) -> Sequence[TaskDevice]:
        """The devices of tasks, if the launcher can start processes beside jobs."""
        launcher, cluster = self.launcher, self._context.cluster
        if not launcher.starts_steps:
            return ()
        return nodes_as_devices(cluster) if launcher.shared_filesystem else devices_of(cluster)

    @property
    def power(self) -> Mapping[int, UnitPower]:
        """The power of all nodes, by their model."""
        return power_of(self._context.cluster)

    @property
    def prices(self) -> Prices | None:
        """The prices of electricity."""
        return self._context.settings.prices

    @property
    def power_cap_w(self) -> float | None:
        """The power cap of the cluster."""
        return self._context.state.power_cap_w

    @property
    def lent(self) -> Mapping[int, str]:
        """The nodes that tasks hold, each with the owner of its energy, or ""."""
        return {int(node): owner for node, owner in self._context.state.lent.items()}

    def lend(self, units: Mapping[int, str]) -> None:
        """Lend these nodes and no others; jobs may start on those that are taken back."""
        nodes = sorted(units)
        owners = tuple(units[unit] for unit in nodes)
        self._handle(TasksHold(self._context.time(), tuple(map(Node, nodes)), owners))

    def free(self, units: Iterable[int]) -> set[int]:
        """Return those of some nodes that are up and no job's."""
        state = self._context.state
        return {n for n in units if state.vacant[n] or n in state.lent} - state.down

    def under_cap(self, units: Iterable[int]) -> set[int]:
        """Return those of some nodes on which tasks could run without passing the power cap."""
        return under_cap(self._context.state, units)

    def jobs_wait(self) -> bool:
        """Return whether a job could start but for nodes, or power, of tasks."""
        state = self._context.state
        return tasks_in_the_way(state, islice(state.pending.values(), LOOKED_AT))

    def slots_of(self, units: Iterable[int]) -> tuple[str, ...]:
        """Return the slots of nodes."""
        return self._context.cluster.slots_of(Node(unit) for unit in units)

    def keep(self, strategy: Strategy, governor: str) -> None:
        """Keep a strategy and the governor's rule for the next daemon."""
        note = {"name": strategy.name, "governor": governor}
        if isinstance(strategy, FileStrategy):
            note["file"] = str(strategy.path)
        self._context.journal.note("strategy", note)

    def kept(self) -> tuple[Callable[[], Strategy], str] | None:
        """Return a loader of the strategy, and the governor's rule, of the previous daemon."""
        note = self._context.journal.notes("strategy").get("strategy")
        if note is None:
            return None
        name, file = note["name"], note.get("file")

        def load() -> Strategy:
            return FileStrategy(Path(file), name) if file else self._files.load(name, "")

        return load, note["governor"]


def devices_of(cluster: Cluster) -> list[TaskDevice]:
    """Return the devices of this machine: GPU nodes, all cores together, each core, each node.

    A node here is a virtual one: a kernel for another node runs there in a process of its own.
    """
    gpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("gpu") for s in slots)]
    cpus = [n for n, slots in enumerate(cluster.slots) if any(s.startswith("cpu") for s in slots)]
    devices = [TaskDevice(cluster.names[n], Resource.GPU, (n,)) for n in gpus]
    if cpus:
        devices.append(TaskDevice("cores", Resource.CORES, tuple(cpus)))
    devices += [TaskDevice(cluster.names[n], Resource.CORE, (n,)) for n in cpus]
    nodes = nodes_as_devices(cluster)
    return devices + [each for each in nodes if set(cpus).issuperset(each.units)]


def nodes_as_devices(cluster: Cluster) -> list[TaskDevice]:
    """Return all nodes, or hosts that jobs share, as devices of kernels for another node."""
    return [
        TaskDevice(f"node-{host}", Resource.NODE, tuple(map(int, cluster.nodes_of[host])))
        for host in cluster.hosts
    ]


def power_of(cluster: Cluster) -> dict[int, UnitPower]:
    """Return the power of all nodes by their model; of a shared host, a slot's part of it."""
    if not cluster.power:
        return {}
    at = {host: number for number, host in enumerate(cluster.hosts)}
    powers = {}
    for unit in range(len(cluster.names)):
        host = cluster.host_of(unit)
        model, slots = cluster.power[at[host]], len(cluster.nodes_of[host]) if cluster.shared else 1
        added_w = max(0.0, model.static_w + model.dynamic_w - model.idle_w)
        powers[unit] = UnitPower(model.idle_w / slots, added_w / slots)
    return powers


# --- Strategies of users' own files: each in a process of its own, with a time limit per call --
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
            words = (
                f"expected choices (TaskStart, TaskEnqueue, ...), got {wrong[0]!r}" if wrong else ""
            )
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
