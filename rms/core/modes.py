"""Names of jobs and nodes, what jobs allow, and the states that they are in."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

JobId = NewType("JobId", str)
"""As Slurm writes it: ``7``, ``7_3``."""

Node = NewType("Node", int)
"""Index of what is given to one job at a time: a node, or a slot where nodes are shared."""


def sort_key(job_id: str) -> tuple[int, int]:
    """Return what jobs are sorted by: number, then index in the array (-1 where it has none)."""
    number, _, index = job_id.partition("_")
    return int(number), int(index or -1)


class Mode(StrEnum):
    """What a job allows (Iserte & Rojek, section 3).

    Attributes:
        any_start: the job may start at another size than its preferred one.
        resizable: the job may be resized while it runs.
    """

    any_start: bool
    resizable: bool

    def __init__(self, value: str) -> None:
        # Plain attributes: asked for at every event.
        self.any_start = value in ("moldable", "flexible")
        self.resizable = value in ("malleable", "flexible")

    FIXED = "fixed"
    MOLDABLE = "moldable"
    MALLEABLE = "malleable"
    FLEXIBLE = "flexible"


class JobState(StrEnum):
    """Job states by Slurm's names."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
