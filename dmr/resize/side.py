"""One world's side of a resize: how its ranks talk, wait and fail together.

The messages between the two worlds are those of :mod:`dmr.resize.replace`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from dmr.application import Run
from dmr.boot.environment import Runtime
from dmr.errors import CollectiveError, Left, RolledBackError, TransferError, described
from dmr.plan import Deadlines
from dmr.state.values import ValuesError
from dmr.wire.channel import ChannelError, ControlChannel, Message, Refused
from dmr.wire.ranks import SLEEP_S, Check, RankMessages

ALONE_S = 5.0
"""How long a rank that fails waits for the others of its world to fail, or to hear of it."""

T = TypeVar("T")
P = TypeVar("P")
M = TypeVar("M", bound=Message)

FAILURES = (RolledBackError, ChannelError, TransferError, ValuesError, MemoryError)
"""What may fail on one rank without the others being stuck in a collective call: a reason to roll
back. Anything else ends the rank."""


def reason(error: BaseException) -> str:
    """Return why a resize failed; a MemoryError may have no words of its own."""
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    return str(error)


class Side:
    """One world's side of a resize.

    Args:
        messages: between rank 0 and the other ranks of this world.
        deadlines: of every wait.

    Attributes:
        channels: rank 0's, one to each launch of the other world.
        phase: how far the resize is, for what is said of a failure; "" to leave it out.
    """

    def __init__(self, messages: RankMessages, deadlines: Deadlines) -> None:
        self.messages, self.deadlines = messages, deadlines
        self.channels: list[ControlChannel] = []
        self.phase = ""
        self._early: dict[int, deque[Message]] = {}
        """Messages that came before they were expected, by the place of their channel."""

    # --- rank 0 and the other world ----------------------------------------------------------

    def say(self, message: Message) -> None:
        """Rank 0: send a message to the other world.

        Raises:
            ChannelError: it is gone.
        """
        for channel in self.channels:
            channel.send(message)

    def expect(self, kind: type[M]) -> list[M]:
        """Rank 0: return the message that must come now, one from each channel.

        Raises:
            ChannelError: something else came, a refusal, or nothing in time.
        """
        found: list[M] = []
        for place, channel in enumerate(self.channels):
            early = self._early.get(place)
            message = early.popleft() if early else channel.receive(self.deadlines.answer_s)
            if isinstance(message, Refused):
                raise ChannelError(message.why)
            if not isinstance(message, kind):
                raise ChannelError(f"expected {kind.__name__}, got {type(message).__name__}")
            found.append(message)
        return found

    def check_other_world(self) -> None:
        """Rank 0: notice that the other world is gone or has refused; keep what else it says.

        Raises:
            ChannelError: it is, or has.
        """
        for place, channel in enumerate(self.channels):
            if channel.readable:
                message = channel.receive(self.deadlines.answer_s)
                if isinstance(message, Refused):
                    raise ChannelError(message.why)
                self._early.setdefault(place, deque()).append(message)

    def check_alive(self, waited_s: float) -> None:
        """Give up a wait for fields; called now and then with the seconds it has taken.

        Raises:
            RolledBackError: rank 0 has given up, the other world has, or nothing moves.
        """
        if not self.messages.is_root:
            if self.messages.pending():
                raise RolledBackError("rank 0 has given up")
        else:
            try:
                self.check_other_world()
            except ChannelError as error:
                raise RolledBackError(str(error)) from None
        if waited_s > self.deadlines.move_s:
            raise RolledBackError(f"nothing moved for {self.deadlines.move_s:g} s")

    # --- all ranks of this world -------------------------------------------------------------

    def on_root(
        self, work: Callable[[], T], check: Check | None = None, sleep_s: float = SLEEP_S
    ) -> T:
        """Return on all ranks what ``work`` gives on rank 0 (collective).

        Raises:
            RolledBackError: it failed; the other world has been told.
        """
        if not self.messages.is_root:
            problem, result = self.messages.receive(check, sleep_s)
        else:
            problem, result = attempt(work)
            if problem is not None:
                problem = self.in_phase(problem)
                for channel in self.channels:
                    with contextlib.suppress(ChannelError):
                        channel.send(Refused(problem))
            self.messages.send_all((problem, result))
        if problem is not None:
            raise RolledBackError(problem)
        found: T = result
        return found

    def report_and_decide(
        self,
        problem: str | None,
        part: P,
        work: Callable[[list[P]], T],
        check: Check | None = None,
        *,
        everywhere: bool = False,
    ) -> T:
        """Hear on rank 0 how every rank has done its part, and return what ``work`` makes of it.

        Args:
            problem: what this rank has found wrong, or None.
            part: what it reports otherwise; ``work`` gets those of all ranks, in their order.
            check: called on rank 0 while it waits for the others; without one, it notices the
                end of the other world.
            everywhere: have the others call ``check`` as well while they wait for rank 0.

        Raises:
            RolledBackError: a rank found something wrong, or ``work`` did; on all ranks, and the
                other world has been told.
        """

        def gather(_: float) -> None:
            self.check_other_world()

        def hear() -> T:
            if problem is not None:
                raise ChannelError(problem)
            parts = [part]
            for wrong, other in self.messages.collect(check or gather):
                if wrong is not None:
                    raise ChannelError(wrong)
                parts.append(other)
            return work(parts)

        if not self.messages.is_root:
            self.messages.report((problem, part))
        return self.on_root(hear, check if everywhere else None)

    def agree(self, problem: str | None, check: Check) -> None:
        """Go on if every rank has done its part, as :meth:`report_and_decide` does.

        Raises:
            RolledBackError: one has not.
        """
        self.report_and_decide(problem, None, lambda _: None, check)

    def in_phase(self, why: str) -> str:
        """Return a failure with the phase in which it happened."""
        return f"{why} (while {self.phase})" if self.phase else why


def attempt(work: Callable[[], T]) -> tuple[str | None, T | None]:
    """Return None and what ``work`` gives, or why it failed and None."""
    try:
        return None, work()
    except FAILURES as error:
        return reason(error), None


def detach_fields(run: Run) -> None:
    """Let go of the fields, and of what they use of the world's communicator."""
    for block in run.fields.values():
        block.join(None)
    run.fields.clear()
    run.internal.free_carts()


# --- a new world that cannot take over ----------------------------------------------------------


@contextlib.contextmanager
def giving_way(runtime: Runtime, messages: RankMessages) -> Iterator[None]:
    """Let no error of a world that is to take over end the running one."""
    try:
        yield
    except Exception as error:
        if runtime.rendezvous is None:
            raise
        give_way(runtime, messages, error)


def give_way(
    runtime: Runtime,
    messages: RankMessages,
    error: Exception,
    channel: ControlChannel | None = None,
) -> NoReturn:
    """Say why this world cannot take over, and leave it.

    Raises:
        Left: all ranks leave; the old world goes on.
        Exception: ``error``, which this rank alone has met: the others may wait for it in MPI, so
            that only MPI_Abort ends them.
    """
    why = str(error)
    if not isinstance(error, CollectiveError):
        why = f"rank {runtime.comm.rank}: {described(error)}"
        traceback.print_exception(error)
    if messages.is_root:
        if channel is None:
            runtime.refuse(why)
        else:
            with contextlib.suppress(ChannelError):
                channel.send(Refused(why))
    if isinstance(error, CollectiveError):
        raise Left(0)

    def check(waited_s: float) -> None:
        if waited_s > ALONE_S:
            raise error

    if messages.is_root:
        messages.send_all((why, None))
        messages.collect(check)
    else:
        messages.report((why, None))
        messages.receive(check)
    raise Left(0)
