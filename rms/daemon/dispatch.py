"""Events on their way through a daemon: journalled, decided on, acted on, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from rms.core.model.events import Decision, Event
from rms.core.rules.transition import check
from rms.daemon.context import Context, Notes
from rms.daemon.endings import Endings
from rms.daemon.exposition import observe
from rms.daemon.faults import Faults
from rms.daemon.journal import JournalFullError, PolicySet
from rms.daemon.log import debug, warning


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
