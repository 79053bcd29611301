"""What the resize machine has done: instructions, to be carried out in order.

See :mod:`rms.daemon.resize`. All are values, so that a test compares lists of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rms.core.model.events import ResizeBegun, Resized, ResizeRolledBack


@dataclass(frozen=True)
class AskGrant:
    """Have whoever owns the nodes let the job hold those it has and those it is to have."""

    have: tuple[str, ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class AskRelease:
    """Have whoever owns the nodes let the job hold these only."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class BootWorlds:
    """Start launches of a step, each on its slots, for a resize; their ranks boot on ``cores``."""

    step: int
    launches: dict[int, tuple[str, ...]]
    resize: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class KillLaunch:
    """Kill what is left of a launch."""

    launch: int


@dataclass(frozen=True)
class KillJob:
    """Kill all processes of the job."""


@dataclass(frozen=True)
class Terminate:
    """Ask the job's world to end at a checkpoint."""


@dataclass(frozen=True)
class SaveResize:
    """Note the resize in flight for a restarted daemon; empty where there is none any more."""

    note: dict[str, Any]


@dataclass(frozen=True)
class SaveSteps:
    """Note the job's steps."""


@dataclass(frozen=True)
class SavePast:
    """Note the resizes that are over."""


@dataclass(frozen=True)
class TellJob:
    """There is a resize request for the job."""


@dataclass(frozen=True)
class Observe:
    """Look at the processes now."""


@dataclass(frozen=True)
class Decide:
    """Take the decision up from its beginning."""

    slots: tuple[str, ...]
    strategy: str = ""


@dataclass(frozen=True)
class FindLaunches:
    """Find the processes of these launches again."""

    launches: tuple[int, ...]


@dataclass(frozen=True)
class RunScript:
    """Run the job's script again, at the new size."""


@dataclass(frozen=True)
class Requeue:
    """Let the job wait again."""

    reason: str


@dataclass(frozen=True)
class Say:
    """Tell the operator."""

    words: str


ResizeEvent = ResizeBegun | Resized | ResizeRolledBack
SaveCommand = SaveResize | SaveSteps | SavePast
RecordCommand = TellJob | Observe | Decide | Say
ProcessCommand = (
    AskGrant
    | AskRelease
    | BootWorlds
    | KillLaunch
    | KillJob
    | Terminate
    | FindLaunches
    | RunScript
    | Requeue
)
ActCommand = ResizeEvent | RecordCommand | ProcessCommand
Instruction = SaveCommand | ActCommand
Instructions = list[Instruction]
"""An event for the scheduler, or a command; to be carried out in order."""
