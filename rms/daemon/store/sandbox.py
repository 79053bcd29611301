"""Processes that have the daemon's memory as it is at one moment, do one thing with it, and end."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TypeVar

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event, Later, Reason
from rms.core.model.jobs import Job, JobId, Node
from rms.core.policies import DEFAULT, POLICIES, Policy, View, adjusted
from rms.core.policies.compose import UserPart
from rms.core.rules.checks import RuleError
from rms.core.state import State

FIRST_OPEN = 3
"""Files before this are standard input, output and error."""

MOST_OPEN = 1 << 16
"""So many may be open at least where the system says that there is no limit."""


def fork(work: Callable[[], object], only: int | None = None) -> int:
    """Start a process that does this and nothing else; return its number.

    Its status is 0 if the work returned, 1 if it raised, -N if signal N ended it. Other threads are
    not there in it: the work must need none, nor a lock that one may have held.

    Args:
        only: the one open file that it keeps, besides standard input, output and error; None to
            keep all. Where others are kept, what is listened at stays open until it ends, even if
            the daemon is killed.

    Raises:
        OSError: there is no room for it.
    """
    with warnings.catch_warnings():  # that other threads are not there in a fork: none is asked
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        gc.disable()  # it would copy memory that is gone in a moment
        with contextlib.suppress(ValueError):  # the daemon's loop is not to hear of our signals
            signal.set_wakeup_fd(-1)
        if only is not None:
            os.closerange(FIRST_OPEN, only)
            os.closerange(only + 1, max(MOST_OPEN, os.sysconf("SC_OPEN_MAX")))
        work()
        status = 0
    finally:
        os._exit(status)


# FUSED rms.daemon.store.sandbox: Policies with parts of users' own: each pass in a process of its own, with a time limit.
#
# A pass reads all of the state, which may hold many thousands of jobs. So it is no process that is
# sent the state (as strategies of tasks are, :mod:`rms.daemon.kernels`) but a fork of the daemon,
# which has it, and which is gone after the pass: a part that raises, never ends, calls ``sys.exit``,
# crashes the interpreter or changes the state harms nothing but its answer. What it answers is
# decoded as decisions and nothing else. A fork takes milliseconds; policies without such parts are
# asked in the daemon itself.

LIMIT_S = 2.0
"""How long a pass may take; until then the daemon waits for it."""

EXPLAINED = 100
"""Of so many waiting jobs, the first, a part of a user's own is asked why they wait."""

PARTS = ("order", "sizing", "admission", "placement", "passes", "node_power", "frequency")

T = TypeVar("T")


class FailedPolicyError(RuleError):
    """A policy that raised, did not answer in time, or answered what is no decision."""


class _Answer(msgspec.Struct):
    """What a fork says: what it was asked for, encoded, or how that went wrong."""

    body: bytes = b""
    error: str = ""


def stand_ins(cluster: Cluster) -> tuple[Policy, ...]:
    """Return the policies that decide on these nodes instead of one that fails, in order."""
    if cluster.shared:
        return (adjusted(POLICIES["fifo"], placement={"part": "first-fit-shared"}),)
    return POLICIES[DEFAULT], POLICIES["fifo"]


def guarded(policy: Policy) -> Policy:
    """Return a policy whose passes harm nobody: the same, if all of its parts are shipped."""
    if not any(isinstance(getattr(policy, part), UserPart) for part in PARTS):
        return policy
    given = {each.name: getattr(policy, each.name) for each in fields(policy) if each.init}
    return GuardedPolicy(**given)


@dataclass(frozen=True)
class GuardedPolicy(Policy):
    """A policy that is asked in forks. Its methods raise :class:`FailedPolicyError`.

    Attributes:
        silent: not empty once it has failed to say why jobs wait: it is not asked again.
    """

    silent: list[FailedPolicyError] = field(default_factory=list, init=False, compare=False)

    def decide(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return what to do."""
        found = list[Decision]
        return forked(lambda: Policy.decide(self, state, events), found)

    def place(self, state: State, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size."""
        found = tuple[Node, ...]
        return forked(lambda: Policy.place(self, state, job, size), found)

    def explained(self, state: State) -> dict[JobId, Later]:
        """Return why the first jobs wait."""

        def work() -> dict[JobId, Later]:
            found, view = Policy.explained(self, state), Policy.view(self, state)
            for job_id, job in islice(state.pending.items(), EXPLAINED):
                if job_id not in found:
                    found[job_id] = Policy.explain(self, state, job, view)
            return found

        if not self.silent:
            try:
                return forked(work, dict[JobId, Later])
            except FailedPolicyError as error:
                self.silent.append(error)
        return {}  # whoever asks why a job waits is to have an answer

    def view(self, state: State) -> View | None:
        """Return nothing: parts are asked in forks only."""
        return None

    def explain(self, state: State, job: Job, view: View | None = None) -> Later:
        """Return why a job waits of which the policy's parts are not asked."""
        return Later(job.spec.id, "Resources: its turn has not come", Reason.RESOURCES)


def forked(work: Callable[[], T], kind: type[T], limit_s: float | None = None) -> T:
    """Return what a function returns in a fork of this process.

    Args:
        kind: of what it returns; anything else is refused.
        limit_s: how long it may take, s; None for :data:`LIMIT_S`.

    Raises:
        FailedPolicyError: it raised, ended its process, took longer, or returned something else.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    reading, writing = os.pipe()
    pid = fork(lambda: _answer(work, writing))
    os.close(writing)
    try:
        said = _read(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if said is None:
        raise FailedPolicyError(f"expected an answer within {limit_s:g} s, got none")
    try:
        answer = msgspec.msgpack.decode(said, type=_Answer)
        if not answer.error:
            return msgspec.msgpack.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        got = f"something else ({error})" if said else "the end of its process"
        raise FailedPolicyError(f"expected decisions, got {got}") from None
    raise FailedPolicyError(answer.error)


def _answer(work: Callable[[], object], writing: int) -> None:
    """Write what there is to be answered, whatever happens."""
    try:
        answer = _Answer(msgspec.msgpack.encode(work()))
    except BaseException as error:
        answer = _Answer(error=f"it raised {error!r}"[:1000])
    left = memoryview(msgspec.msgpack.encode(answer))
    while left:
        left = left[os.write(writing, left) :]


def _read(reading: int, until_s: float) -> bytes | None:
    """Return all that a fork writes, None where it has not ended in time."""
    found, poller = bytearray(), select.poll()  # not select: a daemon has many open files
    poller.register(reading, select.POLLIN)
    while poller.poll(1000.0 * max(0.0, until_s - time.monotonic())):
        data = os.read(reading, 1 << 16)
        if not data:
            return bytes(found)
        found += data
    return None
