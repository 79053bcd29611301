"""Jobs that may not start yet: held and released by users, and let go when their time has come."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rms.core.model.events import Ended, Event, Freed, HeldByUser, Reopened, Submitted, Withdrawn
from rms.core.model.jobs import JobId
from rms.core.rules import transition
from rms.daemon.context import Context, Handle

_CHANGES = transition.EVENTS | {Submitted, Ended, Withdrawn, Reopened}
"""Events after which another job may be the next whose time comes."""


class Holds:
    """Enters who is held and who may start."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._next_s = -inf

    def followed(self, event: Event) -> None:
        """Take in what has happened."""
        if type(event) in _CHANGES:
            self._next_s = -inf

    def look(self) -> None:
        """Let jobs start whose time has come."""
        context = self._context
        at_s, state = context.time(), context.state
        if self._next_s > at_s:
            return
        if found := transition.due(state, at_s):
            self._handle(Freed(at_s, found))
        self._next_s = transition.next_s(state)

    def hold(self, jobs: Sequence[JobId]) -> None:
        """Hold jobs that wait."""
        self._handle(HeldByUser(self._context.time(), tuple(jobs), True))

    def withdraw(self, jobs: Sequence[JobId]) -> None:
        """Cancel jobs that wait."""
        self._handle(Withdrawn(self._context.time(), tuple(jobs)))

    def release(self, jobs: Sequence[JobId]) -> None:
        """Let jobs start that a user held, once they wait for nothing else."""
        self._handle(HeldByUser(self._context.time(), tuple(jobs), False))
