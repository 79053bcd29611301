"""What meters say of the cluster's power, on its way to the scheduler while a power cap holds."""

from __future__ import annotations

from math import inf

from rms.core.model.events import (
    Ended,
    Event,
    PowerMeasured,
    Reopened,
    Requeued,
    Resized,
    ResizeRolledBack,
    TasksHold,
)
from rms.core.rules.powercap import expected_w, matters
from rms.daemon.context import Context, Handle
from rms.wire.messages import Metered

LOOK_S = 1.0
"""How often readings are held against the cap."""

LAG_S = 10.0
"""A reading that is in part of before jobs drew less counts only if none has for so long."""

STALE_S = 60.0
"""Meters that have not reported for so long say nothing of the cluster's power.

Where they report more rarely, this and :data:`LAG_S` are at least :data:`REPORTS` times as long as
between two reports.
"""

REPORTS = 3

_LESS = frozenset((Ended, Requeued, Resized, ResizeRolledBack, Reopened, TasksHold))
"""Events after which jobs and tasks may draw less than meters have read."""


class PowerWatch:
    """Enters measured power as an event where it changes what is left of the cap.

    So it is in the journal, and what was decided on it is decided again by a replay.
    """

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._reports: dict[str, tuple[float, float]] = {}
        self._less_s, self._looked_s, self._counted_s = -inf, -inf, -inf
        self._begun_s = context.now()

    def report(self, said: Metered) -> None:
        """Take in that meters have read what was drawn since their last report."""
        if said.devices:
            _, before_s = self._reports.get(said.node, (0.0, said.at_s))
            self._reports[said.node] = before_s, said.at_s

    def followed(self, event: Event) -> None:
        """Take in that an event has been followed."""
        if type(event) in _LESS:
            self._less_s = event.at_s

    def look(self) -> None:
        """Tell the scheduler what the cluster draws, if that matters to the cap."""
        state, now_s = self._context.state, self._context.now()
        if state.power_cap_w is None or now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        rarely_s = REPORTS * max([end_s - s for s, end_s in self._reports.values()], default=0.0)
        from_s = now_s - max(STALE_S, rarely_s)
        heard = [since_s for since_s, end_s in self._reports.values() if end_s > from_s]
        if heard:
            due_s = self._counted_s + max(LAG_S, rarely_s)
            if min(heard) < self._less_s and now_s < due_s:
                return
            self._counted_s = now_s
            watts = self._context.scheduler.energy.power_w
        elif now_s < self._begun_s + STALE_S:
            return  # what was read before a restart holds until meters report again
        else:
            watts = expected_w(state)
        if matters(state, watts):
            self._handle(PowerMeasured(self._context.time(), watts))
