"""Part ``passes``: after which events the policy decides."""

from __future__ import annotations

import msgspec

from rms.core.events import (
    Ended,
    NodeBooted,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
    PowerCapSet,
    PowerMeasured,
    Reopened,
    Requeued,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Stepped,
    Submitted,
    TasksHold,
    Ticked,
    Withdrawn,
)

POWER: frozenset[type] = frozenset((PowerCapSet, PowerMeasured))
"""Events after which jobs may have to yield to a power cap, whenever a policy looks."""

TRIGGERS: frozenset[type] = POWER | frozenset(
    (
        *(Submitted, Ended, Requeued, Resized, ResizeRolledBack, ResizePoint, Stepped),
        *(NodeUp, NodeBooted, NodePowerFailed, Ticked, Reopened, TasksHold, NodesLeased),
        Withdrawn,
    )
)
"""Events after which there may be something to decide."""


class Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides after every event that can change what it decides.

    Attributes:
        every_s: also at multiples of this time, while there are jobs; None for never.
    """

    every_s: float | None = None

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""
        return TRIGGERS

    @property
    def start_triggers(self) -> frozenset[type]:
        """Events after which it starts jobs."""
        return TRIGGERS


class Ticks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides at regular times and at each end; for running jobs at resize points.

    Attributes:
        every_s: time between regular passes.
    """

    every_s: float = 10.0

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""
        return POWER | frozenset((Ended, Withdrawn, Ticked, ResizePoint))

    @property
    def start_triggers(self) -> frozenset[type]:
        """Events after which it starts jobs."""
        return frozenset((Ended, Withdrawn, Ticked))
