"""The earliest start of a job, ``--begin``, in Slurm's forms (sbatch(1)), in local time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from rms.formats.ids import ScriptError

FORM = "a time like now+1hour, 16:00, 16:00:30, 2026-12-01, 2026-12-01T08:00, noon or tomorrow"

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LATER = re.compile(r"now(?:\+([0-9]{1,9})(second|minute|hour|day|week)?s?)?")
_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}


def parse_begin(text: str, now_s: float) -> float:
    """Return the time that ``text`` names at ``now_s``; both in seconds since the epoch.

    A time of day that has passed is tomorrow's; a count without a unit is seconds.

    Raises:
        ScriptError: it is none of :data:`FORM`, or not within the years that there are.
    """
    word = text.strip().lower()
    try:
        if later := _LATER.fullmatch(word):
            return now_s + int(later[1] or 0) * _UNITS_S[later[2] or "second"]
        now = datetime.fromtimestamp(now_s).astimezone()
        if word in ("today", "tomorrow"):
            return (now + timedelta(days=word == "tomorrow")).timestamp()
        return _clock_time(word, now).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ScriptError(f"expected {FORM}, got {text!r}") from None


def _clock_time(word: str, now: datetime) -> datetime:
    """Return a date, or a time of day: the next one that comes."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(t[0-9:]+)?", word):
        date, _, clock = word.partition("t")
        year, month, day = map(int, date.split("-"))
        return datetime(year, month, day) + _hours(clock or "0:00")
    clock = f"{_HOURS[word]}:00" if word in _HOURS else word
    found = datetime(now.year, now.month, now.day) + _hours(clock)
    return found if found.timestamp() > now.timestamp() else found + timedelta(days=1)


def _hours(clock: str) -> timedelta:
    """Return the time since midnight of a time of day."""
    found = re.fullmatch("([0-1]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", clock)
    if found is None:
        raise ValueError(clock)
    return timedelta(hours=int(found[1]), minutes=int(found[2]), seconds=int(found[3] or 0))
