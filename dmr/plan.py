"""Times of resizes and checkpoints, sizes of a job, and the world after a resize.

Values and pure functions of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dmr.errors import UsageError
from rms.wire.messages import BootedWorld

Limits = tuple[int, int | None]
"""Fewest and most ranks; None for no upper limit."""


@dataclass(frozen=True)
class Deadlines:
    """Timeouts of the phases of a resize, in seconds; after one the resize is rolled back.

    Attributes:
        boot_s: from the start of a new world until it is ready (an RMS has its own).
        connect_s: until the two worlds have met.
        move_s: without progress of the move.
        answer_s: for ``build`` in the new world, and for any other answer.
    """

    boot_s: float = 60.0
    connect_s: float = 10.0
    move_s: float = 10.0
    answer_s: float = 60.0


AUTO: Literal["auto"] = "auto"

LEAST_GB_S = 0.001
"""Lowest limit of the rate of copies in memory, in GB/s."""


@dataclass(frozen=True)
class Schedule:
    """Times of checkpoints on disk, or of copies in memory.

    Attributes:
        directory: folder of checkpoints on disk; None for copies in memory.
        every: steps between two; 0 for checkpoints at SIGTERM only.
        every_s: seconds between two copies in memory; 0 to count steps. ``"auto"``: as
            :func:`dmr.memory.interval.interval_s` computes it from the time that a copy takes and
            the mean time between failures (``DMR_MTBF``).
    """

    directory: Path | None = None
    every: int = 0
    every_s: float | Literal["auto"] = 0.0

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step`` steps."""
        return self.every > 0 and step > 0 and step % self.every == 0

    @property
    def folder(self) -> Path:
        """The folder of checkpoints on disk, which :func:`check_schedules` has checked."""
        if self.directory is None:
            raise ValueError("expected the folder of checkpoints, got none")
        return self.directory


@dataclass(frozen=True)
class Plan:
    """When the library may act. ``every``, ``checkpoint`` and ``restart`` are equal on all ranks.

    Attributes:
        every: steps between resize points, which handle SIGTERM and resizes.
        resizes: scripted resizes, step to ranks, done exactly at those steps.
        strategy: one of ``dmr.STRATEGIES``.
        deadlines: timeouts of the phases of a resize.
        checkpoint: folder and interval of checkpoints, or None.
        memory: interval of copies in memory, or None for that of ``dmr run``. ``DMR_MEMORY``, in
            seconds, takes precedence. Without ``dmr run`` there are none.
        partners: other hosts that have a copy of what a host holds.
        partner_gb_s: rate at which a rank sends its copies to them, in GB/s, at most, or None. A
            copy that is due while the one before is sent waits. ``DMR_MEMORY_GB_S`` takes
            precedence.
        restart: continue from the newest whole checkpoint, if there is one.
        options: values that a checkpoint must have in common with this run.
        limits: fewest and most ranks that the job may have.
        sizes: preferred sizes; a request of the program is rounded down to one of them.
        backends: the backend after a scripted resize, by its step.
        cooldown_s: seconds from the end of a resize, done or rolled back, until the RMS or the
            program may start the next; a larger ``DMR_COOLDOWN`` takes precedence.
        collective_s: timeout of collective calls of the library, in seconds. When it expires, the
            program ends and names the missing ranks. ``DMR_COLLECTIVE_S`` takes precedence.
        sigterm_s: timeout from SIGTERM to the next resize point, in seconds, at least five mean
            intervals of resize points. ``DMR_SIGTERM_S`` takes precedence.
    """

    every: int = 10
    resizes: Mapping[int, int] = field(default_factory=dict)
    strategy: str = "auto"
    deadlines: Deadlines = field(default_factory=Deadlines)
    checkpoint: Schedule | None = None
    memory: Schedule | None = None
    partners: int = 1
    partner_gb_s: float | None = None
    restart: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = (1, None)
    sizes: tuple[int, ...] = ()
    backends: Mapping[int, str] = field(default_factory=dict)
    cooldown_s: float = 0.0
    collective_s: float = 300.0
    sigterm_s: float = 60.0


@dataclass(frozen=True)
class NextWorld:
    """The world that a resize leads to.

    Attributes:
        ranks: number of ranks.
        strategy: of the resize.
        slots: of the ranks, if an RMS has chosen them.
        request: number of the RMS's resize request, or 0.
        launches: booted for it by the RMS, and waiting.
        backend: of the new world, "" for that of this one.
    """

    ranks: int
    strategy: str
    slots: tuple[str, ...] = ()
    request: int = 0
    launches: tuple[BootedWorld, ...] = ()
    backend: str = ""


def parse_resizes(text: str, name: str = "") -> tuple[dict[int, int], dict[int, str]]:
    """Read ``STEP:RANKS[@BACKEND][,...]``, steps rising: ranks and backends by step.

    Raises:
        ValueError: another syntax; one sentence, with the ``name`` of the text.
    """
    ranks: dict[int, int] = {}
    backends: dict[int, str] = {}
    last = -1
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})(?:@(\w+))?\s*", part)
        if match is None or int(match[2]) < 1:
            why = "" if match is None else ": a job has at least 1 rank"
            raise ValueError(f"expected {name}STEP:RANKS[@BACKEND][,...], got {part!r}{why}")
        step = int(match[1])
        if step <= last:
            raise ValueError(f"expected rising steps of resizes, got {step} after {last}")
        ranks[step] = int(match[2])
        last = step
        if match[3]:
            backends[step] = match[3]
    return ranks, backends


def fitting(requested: int, limits: Limits, sizes: Sequence[int] = ()) -> int:
    """Return the size of a world for a request of ``requested`` ranks.

    It is the largest of ``sizes`` that is not above the request, else their smallest; without any,
    the request within ``limits``.
    """
    least, most = limits
    within = max(least, requested if most is None else min(requested, most))
    below = [size for size in sizes if size <= within]
    return max(below) if below else min(sizes, default=within)


def check_size(ranks: int, limits: Limits) -> None:
    """Raise :class:`~dmr.errors.UsageError` for a size beyond the limits."""
    least, most = limits
    if ranks < least or (most is not None and ranks > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"expected a resize to {bounds} ranks, got {ranks}")


def check_seconds(value: float | str, name: str, *, positive: bool = False) -> float:
    """Return a finite number of seconds, at least 0 (``positive``: more than 0).

    Raises:
        UsageError: the value is no such number.
    """
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf or (positive and not seconds):
        bound = "more than" if positive else "at least"
        raise UsageError(f"expected {name} of {bound} 0 seconds, got {value}")
    return seconds


def check_rate(gb_s: float | str) -> float:
    """Return a rate of copies in GB/s.

    Raises:
        UsageError: it is none, or so low that a partner takes the rank for dead.
    """
    try:
        rate = float(gb_s)
    except ValueError:
        rate = math.nan
    if not LEAST_GB_S <= rate < math.inf:
        raise UsageError(f"expected a rate of copies of at least {LEAST_GB_S} GB/s, got {gb_s!r}")
    return rate


def check_schedules(checkpoint: Schedule | None, memory: Schedule | None, partners: int) -> None:
    """Raise :class:`~dmr.errors.UsageError` for schedules that cannot be followed."""
    if checkpoint is not None and (checkpoint.directory is None or checkpoint.every_s):
        got = "no folder" if checkpoint.directory is None else f"{checkpoint.every_s} seconds"
        raise UsageError(f"expected checkpoints with a folder and an interval in steps, got {got}")
    if memory is not None and memory.directory is not None:
        raise UsageError(f"expected copies in memory without a folder, got {memory.directory}")
    if memory is not None and memory.every_s != AUTO:
        check_seconds(memory.every_s, "an interval of copies", positive=not memory.every)
    if partners < 0:
        raise UsageError(f"expected 0 or more partners, got {partners}")


def check_plan(limits: Limits, sizes: Sequence[int]) -> None:
    """Raise :class:`~dmr.errors.UsageError` for empty limits and sizes beyond them."""
    least, most = limits
    if least < 1 or (most is not None and most < least):
        raise UsageError(f"expected limits of at least 1 rank, fewest first, got {limits}")
    wrong = [n for n in sizes if n < least or (most is not None and n > most)]
    if wrong:
        raise UsageError(f"expected preferred sizes within the limits {limits}, got {wrong[0]}")
