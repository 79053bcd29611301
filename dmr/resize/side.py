"""One world's side of a resize: its ranks communicate, wait and fail together.

The messages between the two worlds are those of :mod:`dmr.resize.replace`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable
from typing import NoReturn, TypeVar

from dmr.application import Run
from dmr.boot.environment import Runtime
from dmr.errors import CollectiveError, Left, RolledBackError, TransferError, described
from dmr.plan import Deadlines
from dmr.state.values import ValuesError
from dmr.wire.channel import ChannelError, ControlChannel, Message, Refused
from dmr.wire.ranks import SLEEP_S, Check, RankMessages

ALONE_S = 5.0
"""Timeout for the other ranks after an error of one rank: to fail too, or to receive it."""

T = TypeVar("T")
P = TypeVar("P")
M = TypeVar("M", bound=Message)

FAILURES = (RolledBackError, ChannelError, TransferError, ValuesError, MemoryError)
"""Errors that a rank can report to rank 0 instead of raising, because no other rank waits for it
in a collective call. They roll the resize back; any other error ends the rank."""


class Side:
    """One world's side of a resize.

    Methods of rank 0 raise :class:`~dmr.wire.channel.ChannelError` if the other world is gone, has
    refused, sends another message, or does not answer in time. Methods of all ranks raise
    :class:`~dmr.errors.RolledBackError` on all of them, and send the other world the reason.

    Args:
        messages: between rank 0 and the other ranks of this world.
        deadlines: of every wait.

    Attributes:
        channels: rank 0's, one to each launch of the other world.
        phase: progress of the resize, for messages of a failure; "" to leave it out.
    """

    def __init__(self, messages: RankMessages, deadlines: Deadlines) -> None:
        self.messages, self.deadlines = messages, deadlines
        self.channels: list[ControlChannel] = []
        self.phase = ""
        self._early: dict[ControlChannel, deque[Message]] = {}
        """Messages that came before they were expected."""

    # --- rank 0 and the other world ----------------------------------------------------------

    def say(self, message: Message) -> None:
        """Rank 0: send a message to the other world."""
        for channel in self.channels:
            channel.send(message)

    def expect(self, kind: type[M]) -> list[M]:
        """Rank 0: return the next message, of one kind, from each channel."""
        messages: list[M] = []
        for channel in self.channels:
            early = self._early.get(channel)
            message = early.popleft() if early else self._receive(channel)
            if not isinstance(message, kind):
                raise ChannelError(f"expected {kind.__name__}, got {type(message).__name__}")
            messages.append(message)
        return messages

    def _receive(self, channel: ControlChannel) -> Message:
        message = channel.receive(self.deadlines.answer_s)
        if isinstance(message, Refused):
            raise ChannelError(message.why)
        return message

    def check_other_world(self) -> None:
        """Rank 0: raise an error if the other world is gone or has refused; keep its messages."""
        for channel in self.channels:
            if channel.readable:
                self._early.setdefault(channel, deque()).append(self._receive(channel))

    def check_alive(self, waited_s: float) -> None:
        """Check a wait for fields; called at intervals with the seconds so far."""
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
        """Return the result of ``work`` on rank 0 to all ranks (collective)."""
        if not self.messages.is_root:
            problem, result = self.messages.receive(check, sleep_s)
        else:
            problem, result = catch_failure(work)
            if problem is not None:
                problem = self.in_phase(problem)
                for channel in self.channels:
                    with contextlib.suppress(ChannelError):
                        channel.send(Refused(problem))
            self.messages.send_all((problem, result))
        if problem is not None:
            raise RolledBackError(problem)
        returned: T = result
        return returned

    def report_and_decide(
        self,
        problem: str | None,
        part: P,
        work: Callable[[list[P]], T],
        check: Check | None = None,
        *,
        everywhere: bool = False,
    ) -> T:
        """Report this rank's part to rank 0; return the result of ``work`` there (collective).

        Args:
            problem: why this rank has failed, or None.
            part: argument of ``work``, which gets those of all ranks, in their order.
            check: called on rank 0 while it waits for the others; by default
                :meth:`check_other_world`.
            everywhere: whether the others call ``check`` as well while they wait for rank 0.
        """

        def collect() -> T:
            if problem is not None:
                raise ChannelError(problem)
            parts = [part]
            reports = self.messages.collect(check or (lambda _: self.check_other_world()))
            for other_problem, other_part in reports:
                if other_problem is not None:
                    raise ChannelError(other_problem)
                parts.append(other_part)
            return work(parts)

        if not self.messages.is_root:
            self.messages.report((problem, part))
        return self.on_root(collect, check if everywhere else None)

    def agree(self, problem: str | None, check: Check) -> None:
        """Return if no rank has failed, as :meth:`report_and_decide` does."""
        self.report_and_decide(problem, None, lambda _: None, check)

    def in_phase(self, why: str) -> str:
        """Return the reason of a failure with its phase."""
        return f"{why} (while {self.phase})" if self.phase else why


def catch_failure(work: Callable[[], T]) -> tuple[str | None, T | None]:
    """Return None and the result of ``work``, or the reason of its failure and None."""
    try:
        return None, work()
    except MemoryError as error:
        return f"out of memory: {error}" if str(error) else "out of memory", None
    except FAILURES as error:
        return str(error), None


def detach_fields(run: Run) -> None:
    """Drop the fields and the copies, and free their resources of the world's communicator."""
    if run.internal.copies is not None:
        run.internal.copies.close()
    for block in run.fields.values():
        block.join(None)
    run.fields.clear()
    run.internal.free_carts()


def give_way(
    runtime: Runtime,
    messages: RankMessages,
    error: Exception,
    channel: ControlChannel | None = None,
) -> NoReturn:
    """Report why this new world cannot take over, and leave it.

    Raises:
        Left: all ranks leave; the old world goes on.
        Exception: ``error``, if only this rank has it: the others may wait for it in MPI, so that
            only MPI_Abort ends them.
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
