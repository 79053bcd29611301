"""What jobs did: a record from which a simulator runs the same jobs again."""

from __future__ import annotations

import msgspec

from rms.core.model.jobs import JobSpec, Site


class ResizeRan(msgspec.Struct, frozen=True):
    """A completed resize: its end, the time without steps, and the boot of the new world, in s."""

    at_s: float
    stall_s: float
    boot_s: float


class JobRan(msgspec.Struct, frozen=True):
    """A job that has started.

    Attributes:
        end_s: the time of its end; None while it runs.
        spans: ``(node, from, to)``: the nodes that it held.
        resizes: in the order of time.
        steps: number of steps of the whole job, 0 where it reports none.
        measured: ``(nodes, steps, seconds)``: the speed that it has reported by size.
    """

    spec: JobSpec
    state: str
    start_s: float
    end_s: float | None
    spans: tuple[tuple[int, float, float], ...]
    resizes: tuple[ResizeRan, ...] = ()
    steps: int = 0
    measured: tuple[tuple[int, int, float], ...] = ()


class Ran(msgspec.Struct, frozen=True):
    """The jobs of a daemon that have started, up to a time.

    Attributes:
        seq: number of the newest entry of the journal.
        policy: key of the present policy, as in the journal.
        site: the present cluster.
        dropped: number of older jobs that are not in the record.
    """

    seq: int
    now_s: float
    policy: str
    site: Site
    jobs: tuple[JobRan, ...]
    dropped: int = 0
