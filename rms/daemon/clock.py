"""The daemon's clock: the time of day as it was when the machine booted, counted on from there.

Somebody may set the time of day, or NTP may find it wrong, while jobs run: their limits, the time
they are given to end and the energy of the model must not follow. So a daemon counts seconds of
``CLOCK_BOOTTIME``, which nobody sets, from an offset that is in the journal's notes: a daemon that
is started again before the machine is booted again goes on with it. What else tells times (meters
on the nodes, files) follows the time of day; by how much that differs is :attr:`Clock.skew_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rms.daemon.journal import Journal
from rms.daemon.log import warning

NOTE = "clock"
BOOT = Path("/proc/sys/kernel/random/boot_id")
STEP_S = 1.0
"""A time of day that differs by less from what is counted was not set."""


def uptime_s() -> float:
    """Return seconds since the machine was booted, suspended ones included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str:
    """Return what tells this boot of the machine from others, "" where that is not known."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


class Clock:
    """Tells the time in seconds since the epoch.

    Args:
        journal: keeps the offset.
        uptime: counts seconds since the machine was booted.
        of_day: the time of day, in seconds since the epoch.
        boot: what tells this boot from others.
    """

    def __init__(
        self,
        journal: Journal,
        say: Callable[[str], None],
        *,
        uptime: Callable[[], float] = uptime_s,
        of_day: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._journal, self._say, self._uptime, self._of_day = journal, say, uptime, of_day
        self._boot = boot_id() if boot is None else boot
        known = journal.notes(NOTE).get(NOTE, {})
        goes_on = bool(self._boot) and known.get("boot") == self._boot
        self._offset_s = float(known["offset_s"]) if goes_on else of_day() - uptime()
        self._skew_s = 0.0
        if not goes_on:
            self._keep()

    def __call__(self) -> float:
        """Return the time."""
        return self._uptime() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Go on from a time at least: what has happened was not later than now."""
        if self() < at_s:
            self._offset_s = at_s - self._uptime()
            self._keep()

    @property
    def skew_s(self) -> float:
        """By how much the time of day is ahead of this clock: 0 until somebody sets it."""
        skew_s = self._of_day() - self()
        if abs(skew_s - self._skew_s) > STEP_S:
            words = (
                f"the time of day was set by {skew_s - self._skew_s:+.1f} s; times here go on as "
                f"before, {abs(skew_s):.1f} s {'behind' if skew_s > 0.0 else 'ahead of'} it"
            )
            self._say(warning(words))
            self._skew_s = skew_s
        return self._skew_s

    def _keep(self) -> None:
        self._journal.note(NOTE, {"boot": self._boot, "offset_s": self._offset_s})
