"""Run users' functions in forks of the daemon, with a deadline for every answer.

A policy with parts of a user's own decides in a fork that ends after the pass: the fork has the
state, which may hold many thousands of jobs, so nothing is sent to it. A strategy of tasks from a
user's file has a process of its own, also forked, which imports the file once and receives a state
per answer. A function that raises, never returns, calls ``sys.exit``, crashes the interpreter or
changes the state spoils its own answer only.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event, Later, Reason
from rms.core.model.jobs import Job, JobId, Node
from rms.core.policies import DEFAULT, POLICIES, Policy, View, adjusted
from rms.core.policies.compose import UserPart
from rms.core.rules.checks import RuleError
from rms.core.state import State
from rms.kernels.model import Choice, Resource, TaskState
from rms.kernels.scheduler import STRATEGIES, Strategy
from rms.wire.files import write_whole

LIMIT_S = 2.0  # deadline for an answer; the daemon waits until then
MOST_OPEN = 1 << 16  # lower bound of the number of open files where the system states no limit

LENGTH_BYTES = 8

T = TypeVar("T")


def fork(work: Callable[[], object], only: int | None = None) -> int:
    """Start a process that calls a function and ends; return its process id.

    Its status is 0 if the function returned, 1 if it raised, -N if signal N ended it. Other threads
    do not exist in it: the function must need none, nor a lock that one of them may have held. All
    files stay open, or ``only`` one besides standard input, output and error.
    """
    with warnings.catch_warnings():  # the warning is about other threads, which are not used
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        gc.disable()  # it would copy memory that is gone in a moment
        with contextlib.suppress(ValueError):  # the daemon's loop does not hear of our signals
            signal.set_wakeup_fd(-1)
        if only is not None:
            os.closerange(3, only)  # all but standard input, output and error
            os.closerange(only + 1, max(MOST_OPEN, os.sysconf("SC_OPEN_MAX")))
        work()
        status = 0
    finally:
        os._exit(status)


# --- one process, its answers, their deadlines ---------------------------------------------------


class SandboxError(ValueError):
    """A function that raised, did not answer in time, or answered the wrong type."""


class _Answer(msgspec.Struct):
    """The value of a call, encoded, or an error message."""

    body: bytes = b""
    error: str = ""


class Sandbox:
    """A fork that answers over a socket.

    Args:
        work: runs in the fork, with the fork's end of the socket; sends answers by :func:`reply`.
        alone: whether to close all other files in the fork.
        expected: the noun for an answer in errors.
    """

    def __init__(
        self,
        work: Callable[[socket.socket], object],
        *,
        alone: bool = False,
        expected: str = "an answer",
    ) -> None:
        self._socket, theirs = socket.socketpair()
        self._expected = expected
        try:
            self.pid = fork(lambda: work(theirs), theirs.fileno() if alone else None)
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def answer(self, kind: Any, limit_s: float, question: bytes | None = None) -> Any:
        """Send a question, if there is one; return the answer, of this type, or a SandboxError."""
        if self._socket.fileno() < 0:
            raise SandboxError("expected one that goes on, got one that was ended")
        until_s = time.monotonic() + limit_s
        try:
            if question is not None:
                self._socket.settimeout(limit_s)
                self._socket.sendall(len(question).to_bytes(LENGTH_BYTES, "big") + question)
            body = _receive(self._socket, until_s)
        except TimeoutError:
            raise SandboxError(f"expected an answer within {limit_s:g} s, got none") from None
        except (OSError, EOFError):
            raise SandboxError(f"expected {self._expected}, got the end of its process") from None
        try:
            answer = msgspec.msgpack.decode(body, type=_Answer)
            if not answer.error:
                return msgspec.msgpack.decode(answer.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            got = f"something else ({error})"
            raise SandboxError(f"expected {self._expected}, got {got}") from None
        raise SandboxError(answer.error)

    def close(self) -> None:
        """Kill the process; a second time does nothing."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def reply(answers: socket.socket, work: Callable[[], object]) -> bool:
    """Send the value of a call, or how it failed; return whether it succeeded."""
    try:
        answer = _Answer(msgspec.msgpack.encode(work()))
    except SandboxError as error:
        answer = _Answer(error=str(error))
    except BaseException as error:
        answer = _Answer(error=f"it raised {error!r}"[:1000])
    body = msgspec.msgpack.encode(answer)
    answers.sendall(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    return not answer.error


def _receive(stream: socket.socket, until_s: float | None = None) -> bytes:
    """Return the next message, or raise a TimeoutError or EOFError."""
    data, size = bytearray(), LENGTH_BYTES
    while len(data) < size:
        if until_s is not None:
            stream.settimeout(max(0.001, until_s - time.monotonic()))
        part = stream.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
        if len(data) == LENGTH_BYTES:
            size += int.from_bytes(data, "big")
    return bytes(data[LENGTH_BYTES:])


# --- policies with parts of users' own -----------------------------------------------------------

# Number of waiting jobs, from the first, whose reasons to wait a user's part explains.
EXPLAINED = 100
PARTS = ("order", "sizing", "admission", "placement", "passes", "node_power", "frequency")


class FailedPolicyError(RuleError):
    """A policy that raised, did not answer in time, or answered no decision."""


def stand_ins(cluster: Cluster) -> tuple[Policy, ...]:
    """Return the policies that decide on these nodes instead of one that fails, in order."""
    if cluster.shared:
        return (adjusted(POLICIES["fifo"], placement={"part": "first-fit-shared"}),)
    return POLICIES[DEFAULT], POLICIES["fifo"]


def guarded(policy: Policy) -> Policy:
    """Return a policy whose users' parts run in forks; a policy of shipped parts is returned."""
    if not any(isinstance(getattr(policy, part), UserPart) for part in PARTS):
        return policy
    parts = {part.name: getattr(policy, part.name) for part in fields(policy) if part.init}
    return GuardedPolicy(**parts)


@dataclass(frozen=True)
class GuardedPolicy(Policy):
    """A policy that decides in forks. Its methods raise :class:`FailedPolicyError`."""

    # the error of the first explanation that failed; there are no others
    silent: list[FailedPolicyError] = field(default_factory=list, init=False, compare=False)

    def decide(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions."""
        return forked(lambda: Policy.decide(self, state, events), list[Decision])

    def place(self, state: State, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size."""
        return forked(lambda: Policy.place(self, state, job, size), tuple[Node, ...])

    def explained(self, state: State) -> dict[JobId, Later]:
        """Return why the first jobs wait."""

        def work() -> dict[JobId, Later]:
            reasons, view = Policy.explained(self, state), Policy.view(self, state)
            for job_id, job in islice(state.pending.items(), EXPLAINED):
                if job_id not in reasons:
                    reasons[job_id] = Policy.explain(self, state, job, view)
            return reasons

        if not self.silent:
            try:
                return forked(work, dict[JobId, Later])
            except FailedPolicyError as error:
                self.silent.append(error)
        return {}

    def view(self, state: State) -> View | None:
        """Return None, as parts are called in forks only."""
        return None

    def explain(self, state: State, job: Job, view: View | None = None) -> Later:
        """Return a reason to wait without the policy's parts."""
        return Later(job.spec.id, "Resources: its turn has not come", Reason.RESOURCES)


def forked(work: Callable[[], T], kind: type[T]) -> T:
    """Return the value, of this type, of a function in a fork, or raise a FailedPolicyError."""
    sandbox = Sandbox(lambda answers: reply(answers, work), expected="decisions")
    try:
        value: T = sandbox.answer(kind, LIMIT_S)
    except SandboxError as error:
        raise FailedPolicyError(str(error)) from None
    finally:
        sandbox.close()
    return value


# --- strategies of tasks in users' files ---------------------------------------------------------

LOAD_S = 30.0  # deadline for the import of a file; the daemon goes on meanwhile
PARENT_S = 0.5  # interval at which a strategy's process checks that its daemon is there
# Number of waiting tasks, from the first, that a strategy is sent: sending takes time.
MOST_SEEN = 256


class StrategyError(ValueError):
    """A strategy that cannot be loaded, raises, hangs, or answers nonsense; one sentence."""


class FileStrategy:
    """A strategy whose function ``schedule(state)`` is in a file and runs in its own process."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or str(path)
        if not path.is_file():
            raise StrategyError(f"expected a strategy's file, got {path}, which does not exist")
        daemon = os.getpid()
        self.sandbox = Sandbox(lambda answers: _serve_file(answers, path, daemon), alone=True)
        self.capacity: Mapping[Resource, int] = self._answer(dict[Resource, int], LOAD_S)

    def __call__(self, state: TaskState) -> tuple[Choice, ...]:
        """Return the strategy's choices; a StrategyError ends its process."""
        question = pickle.dumps(_head(state), pickle.HIGHEST_PROTOCOL)
        choices: tuple[Choice, ...] = self._answer(tuple[Choice, ...], LIMIT_S, question)
        return choices

    def _answer(self, kind: Any, limit_s: float, question: bytes | None = None) -> Any:
        try:
            return self.sandbox.answer(kind, limit_s, question)
        except SandboxError as error:
            self.close()
            raise StrategyError(f"{self.name}: {error}") from None

    def close(self) -> None:
        """End the strategy's process."""
        self.sandbox.close()


class StrategyFiles:
    """Strategies of users, with copies of their files; unused ones have no process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._used = folder, set[FileStrategy]()

    def load(self, name: str, text: str) -> Strategy:
        """Return a shipped strategy, or start that of a file with this text."""
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
        """Enter that a strategy decides from now on."""
        if isinstance(strategy, FileStrategy):
            self._used.add(strategy)

    def end_unused(self, strategies: Collection[Strategy]) -> None:
        """End the processes of all strategies that were used but these."""
        for strategy in self._used.difference(strategies):
            self._used.remove(strategy)
            strategy.close()


def _head(state: TaskState) -> TaskState:
    if len(state.waiting) <= MOST_SEEN:
        return state
    head = copy.copy(state)
    head.waiting = state.waiting[:MOST_SEEN]
    queued = (task for queue in state.queues.values() for task in queue)
    head.tasks = {task.id: task for task in (*state.running.values(), *queued, *head.waiting)}
    head.after, head.failed = {}, set()
    return head


def _serve_file(answers: socket.socket, path: Path, daemon: int) -> None:
    """Import a strategy's file; answer with its capacities, then to every state with choices."""
    threading.Thread(target=_end_with, args=(daemon,), daemon=True).start()
    gc.freeze()  # the daemon's objects are not looked through; the strategy's are
    gc.enable()
    os.dup2(2, 1)  # prints of the file go to standard error
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    names: dict[str, Any] = {"__name__": "strategy", "__file__": str(path)}

    def load() -> dict[Resource, int]:
        try:
            exec(compile(path.read_bytes(), str(path), "exec"), names)
            capacity = msgspec.convert(names.get("CAPACITY", {}), dict[Resource, int])
        except Exception as error:
            expected = "expected a file that can be imported"
            raise SandboxError(f"{expected}, got {error!r}") from None
        if not callable(names.get("schedule")):
            raise SandboxError("expected a function schedule(state), got none")
        return capacity

    def choose() -> tuple[Choice, ...]:
        choices = tuple(names["schedule"](state))
        wrong = [choice for choice in choices if not isinstance(choice, Choice)]
        if wrong:
            raise SandboxError(f"expected choices (TaskStart, TaskEnqueue, ...), got {wrong[0]!r}")
        return choices

    going_on = reply(answers, load)
    while going_on:
        state: TaskState = pickle.loads(_receive(answers))
        reply(answers, choose)


def _end_with(parent: int) -> None:
    """End this process when its daemon is gone, whatever its other thread does."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(0)
