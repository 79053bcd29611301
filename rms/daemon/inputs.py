"""What the resize machine is told: inputs, and the facts beside the job's record.

See :mod:`rms.daemon.resize`. What jobs report (:mod:`rms.wire.messages`) is input as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from rms.wire.messages import Begun, CompletionRecord, Done, Failed, Ready, RolledBack


@dataclass(frozen=True)
class Decided:
    """A resize was decided.

    Attributes:
        strategy: a user's choice, or "" for the job's own.
        refusal: why a running job cannot go over to these slots, or "".
    """

    number: int
    slots: tuple[str, ...]
    strategy: str = ""
    refusal: str = ""


@dataclass(frozen=True)
class CallStarted:
    """Whoever owns the nodes was asked, and will answer."""


@dataclass(frozen=True)
class CallAnswered:
    """They have done what they were asked (or there is nobody to ask), or say why not."""

    reason: str = ""


@dataclass(frozen=True)
class Booted:
    """The launches of the resize were started: their processes; or why one could not be."""

    pids: dict[int, int]
    failure: str = ""


@dataclass(frozen=True)
class Observed:
    """Its processes were looked at; deadlines are checked.

    Attributes:
        ended: exit status of launches of the resize that have ended.
        gone: launches that are to leave and have no processes any more.
    """

    ended: dict[int, int]
    gone: frozenset[int]


@dataclass(frozen=True)
class WorldEnded:
    """The world that was told to end at a checkpoint has ended, with this record or without."""

    record: CompletionRecord | None


@dataclass(frozen=True)
class StepEnded:
    """The launcher line has ended; nothing is left to be resized."""


@dataclass(frozen=True)
class ScriptEnded:
    """The script has ended, and none of the job's processes is left."""

    nodes_lost: bool = False


@dataclass(frozen=True)
class Polled:
    """The job computes."""


@dataclass(frozen=True)
class Adopted:
    """A restarted daemon has found the job, and the resize as it was noted."""


Input = (
    Decided
    | CallStarted
    | CallAnswered
    | Booted
    | Ready
    | Failed
    | Begun
    | Done
    | RolledBack
    | Observed
    | WorldEnded
    | StepEnded
    | ScriptEnded
    | Polled
    | Adopted
)


@dataclass(frozen=True)
class Facts:
    """What the machine is told of the job beside its record, and the time.

    Attributes:
        now_s: wall clock, for deadlines.
        at_s: time of events: never going back.
        slots: where the job is, by the scheduler.
        requested: where it is to be, None where the scheduler knows of no resize in flight.
        resize_begun: whether the scheduler knows that it has stopped stepping for it.
        number: of the newest resize that was decided for the job.
    """

    now_s: float
    at_s: float
    slots: tuple[str, ...]
    requested: tuple[str, ...] | None = None
    resize_begun: bool = False
    number: int = 1
