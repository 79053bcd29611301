"""What happens and what is decided: small typed values that a journal can hold.

An event is observed; a decision is wanted. A start or resize is planned by a policy, requested
when the engine takes the decision, and true only once an event says so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from rms.model import JobId, JobSpec, Node


class Submitted(msgspec.Struct, frozen=True, tag=True):
    """Jobs have been handed in: one, or a whole array, which a policy sees as a whole."""

    at_s: float
    specs: tuple[JobSpec, ...]


class Started(msgspec.Struct, frozen=True, tag=True):
    """The first world of a job runs."""

    at_s: float
    job: JobId


class ResizePoint(msgspec.Struct, frozen=True, tag=True):
    """A job stands where it could be resized; a live job says so once for each world."""

    at_s: float
    job: JobId


class ResizeAsked(msgspec.Struct, frozen=True, tag=True):
    """A user wants a job at another size; decided by the rules, not by the policy."""

    at_s: float
    job: JobId
    size: int


class ResizeBegun(msgspec.Struct, frozen=True, tag=True):
    """A job has stopped stepping for the resize that was requested."""

    at_s: float
    job: JobId


class Resized(msgspec.Struct, frozen=True, tag=True):
    """The new world of a job steps; the nodes it gave up are free."""

    at_s: float
    job: JobId


class ResizeRolledBack(msgspec.Struct, frozen=True, tag=True):
    """The old world goes on; nodes held for the new one are free again."""

    at_s: float
    job: JobId
    why: str = ""


class Requeued(msgspec.Struct, frozen=True, tag=True):
    """A job whose processes are gone waits again, from the beginning or its checkpoint."""

    at_s: float
    job: JobId


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A job is over."""

    at_s: float
    job: JobId
    state: Literal["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"]


Event = (
    Submitted
    | Started
    | ResizePoint
    | ResizeAsked
    | ResizeBegun
    | Resized
    | ResizeRolledBack
    | Requeued
    | Ended
)


class Reason(StrEnum):
    """Why a decision was taken; ``reason`` beside it says the same for people, with numbers."""

    FITS = "Fits"
    BACKFILLS = "Backfills"
    RESOURCES = "Resources"
    PRIORITY = "Priority"
    ARRAY_LIMIT = "JobArrayTaskLimit"
    TOO_WIDE = "TooWide"
    MAKES_ROOM = "MakesRoom"
    IDLE_NODES = "IdleNodes"
    USER = "User"
    REFUSED = "Refused"


class Start(msgspec.Struct, frozen=True, tag=True):
    """Launch a job on these nodes."""

    job: JobId
    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.FITS


class Resize(msgspec.Struct, frozen=True, tag=True):
    """Ask a running job to go over to these nodes."""

    job: JobId
    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.USER


class Later(msgspec.Struct, frozen=True, tag=True):
    """A job has to wait; ``reason`` is what ``rms queue`` shows."""

    job: JobId
    reason: str
    code: Reason = Reason.RESOURCES


class Never(msgspec.Struct, frozen=True, tag=True):
    """A job can never run here."""

    job: JobId
    reason: str
    code: Reason = Reason.TOO_WIDE


Decision = Start | Resize | Later | Never
