"""What is known beforehand: which jobs are handed in when, and what comes first at one time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rms.core.model.events import (
    Ended,
    NodeBooted,
    NodeDown,
    NodeUp,
    Resized,
    ResizePoint,
    Submitted,
    Ticked,
)
from rms.core.model.jobs import JobId, JobSpec


class Phase(msgspec.Struct, frozen=True):
    """From now on a job draws this share of its power."""

    at_s: float
    job: JobId
    share: float


RANK: dict[type, int] = {
    Ended: 1,
    Resized: 2,
    NodeUp: 2,
    NodeBooted: 2,
    NodeDown: 2,
    Ticked: 3,
    ResizePoint: 4,
    Phase: 5,
}
"""What comes first at one time, submissions aside: ends, nodes freed, ticks, resize points."""


IDLE = frozenset((Ticked, NodeDown, NodeUp, NodeBooted))
"""What matters to nobody once all jobs are over."""


def submissions(specs: Sequence[JobSpec]) -> Iterator[Submitted]:
    """Yield what is handed in together: the jobs of one array at one time, else one job."""
    together: list[JobSpec] = []
    for spec in specs:
        if together and (spec.array, spec.submit_s) != (together[0].array, together[0].submit_s):
            yield Submitted(together[0].submit_s, tuple(together))
            together = []
        if spec.array is None:
            yield Submitted(spec.submit_s, (spec,))
        else:
            together.append(spec)
    if together:
        yield Submitted(together[0].submit_s, tuple(together))
