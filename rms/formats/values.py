"""Values in Slurm's forms: durations, lists of nodes, arrays, ids, and some options. Pure.

A text that does not parse raises :class:`ScriptError`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import mul

from rms.wire.terminal import CommandError

_BRACKETS_OR_COMMA = re.compile(r"\[[^\[\]]*\]|,")
_NAME = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\]([^\[\]]*))?")
SHOWN = 200
"""Characters of a bad text that an error message quotes."""

MOST_NODES = 100_000
"""Maximum length of a list, so that none takes all memory."""

MOST_CHARACTERS = 255
"""Maximum length of a node name, like that of a host name."""

_KIND = re.compile(r"([A-Za-z]+)\d+$")
_DURATION = re.compile("(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class ScriptError(CommandError, ValueError):
    """A script, an option or an id that does not parse."""


def shown(text: str) -> str:
    """Return a text as error messages quote it, not longer than :data:`SHOWN`."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def match(form: str | re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """Return the match of a whole text."""
    whole = re.fullmatch(form, text)
    if whole is None:
        raise ScriptError(f"expected {expected}, got {shown(text)!r}")
    return whole


def seconds_of(text: str, unit_s: float) -> float | None:
    """Return the seconds of ``N``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``, or None.

    Args:
        unit_s: the unit of a number alone.
    """
    parsed = _DURATION.fullmatch(text)
    if parsed is None:
        return None
    days, clock = parsed.groups()
    parts = [int(part) for part in clock.split(":")]
    if days is None and len(parts) == 1:
        return parts[0] * unit_s
    units = (60, 1) if days is None and len(parts) < 3 else (3600, 60, 1)
    return float(int(days or 0) * 86400 + sum(map(mul, parts, units)))


# --- Lists of nodes -------------------------------------------------------------------------------
#
# ClusterShell's NodeSet sorts the names, and their order matters here (a job's script runs on its
# first node); python-hostlist keeps it, but its licence does not fit this project.


def expand(text: str) -> list[str]:
    """Return the names in ``n[1-3,7],gpu2``: n1, n2, n3, n7, gpu2; ``n[08-10]`` keeps its zeros."""
    names: list[str] = []
    for part in split_list(text):
        names += _expanded(part)
        if len(names) > MOST_NODES:
            raise ScriptError(f"expected at most {MOST_NODES} nodes, got more in {text[:60]!r}")
    return names


def split_list(text: str) -> Iterator[str]:
    """Yield the parts of a list between commas outside brackets, in linear time."""
    begin = 0
    for separator in _BRACKETS_OR_COMMA.finditer(text):
        if separator[0] == ",":
            yield text[begin : separator.start()]
            begin = separator.end()
    yield text[begin:]


def fold_slots(names: Sequence[str]) -> str:
    """Return nodes with commas between them, slots of one node folded: ``n1/[0,3],n2/0``.

    Slots of one kind of processors are folded: ``n1/gpu[0,3]``.
    """
    folded: list[str] = []
    for head, group in groupby(names, _head):
        slots = list(group)
        if head and len(slots) > 1:
            folded.append(f"{head}[{','.join(name.removeprefix(head) for name in slots)}]")
        else:
            folded += slots
    return ",".join(folded)


def _head(name: str) -> str:
    """Return the common prefix of the slots of a node and kind, "" for a node."""
    host, slash, slot = name.rpartition("/")
    kind = _KIND.match(slot)
    return f"{host}{slash}{'' if kind is None else kind[1]}" if host else ""


def _expanded(part: str) -> list[str]:
    parsed = _NAME.fullmatch(part)
    if parsed is None or not part:
        raise ScriptError(f"expected nodes like n7 or n[1-36], got {part[:60]!r}")
    head, ranges, tail = parsed[1], parsed[2], parsed[3] or ""
    if len(head) + len(tail) > MOST_CHARACTERS:
        form = f"node names of at most {MOST_CHARACTERS} characters"
        raise ScriptError(f"expected {form}, got {part[:60]!r} and more")
    if ranges is None:
        return [part]
    names: list[str] = []
    for part_range in ranges.split(","):
        bounds = _RANGE.fullmatch(part_range)
        low, high = ("", "") if bounds is None else (bounds[1], bounds[2] or bounds[1])
        if bounds is None or int(high) < int(low):
            raise ScriptError(f"expected a rising range in {part[:60]!r}, got {part_range[:60]!r}")
        if len(names) + int(high) - int(low) >= MOST_NODES:
            raise ScriptError(f"expected at most {MOST_NODES} nodes, got {part[:60]!r}")
        width = len(low) if low.startswith("0") else 0
        names += [f"{head}{n:0{width}d}{tail}" for n in range(int(low), int(high) + 1)]
    return names


# --- Arrays and ids of jobs -----------------------------------------------------------------------

MAX_TASKS = 10_000  # of one job array

_ID = re.compile("([0-9]{1,18})(?:_([0-9]{1,18}))?")
_ID_RANGE = re.compile("([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")


@dataclass(frozen=True)
class Array:
    """Indices of an array's tasks, rising, and how many may run at once (None: all)."""

    indices: tuple[int, ...]
    limit: int | None = None


@dataclass(frozen=True)
class IdSelection:
    """Jobs that an id names: a job with all its tasks (``indices`` None), or some of its tasks."""

    job: int
    indices: frozenset[int] | None = None

    def __str__(self) -> str:
        tasks = [f"{self.job}_{index}" for index in self.indices or ()]
        return fold_ids(tasks or [str(self.job)])[0]

    def matches(self, job_id: str) -> bool:
        """Return whether the job of this id, ``7`` or ``7_3``, is one of them."""
        parsed = _ID.fullmatch(job_id)
        if parsed is None or int(parsed[1]) != self.job:
            return False
        return self.indices is None or (parsed[2] is not None and int(parsed[2]) in self.indices)


def parse_array(spec: str) -> Array:
    """Read ``0-11%4`` or ``1,3,5-9:2``; repeated indices count once."""
    form = "an array like 0-11%4 or 1,3,5-9:2, its limit after % at least 1"
    ranges, limit = match("([^%]*)(?:%(0*[1-9][0-9]{0,8}))?", spec, form).groups()
    indices: set[int] = set()
    spanned = 0  # by ranges, overlapping ones too, as every one takes time
    spec = shown(spec)
    expected = f"indices like 3, 0-11 or 5-9:2, up to 7 digits, in {spec!r}"
    for part in ranges.split(","):
        parsed = match(_ID_RANGE, part, expected)
        low, high, step = int(parsed[1]), int(parsed[2] or parsed[1]), int(parsed[3] or 1)
        if high < low or step < 1:
            within = "" if part == spec else f" in {spec!r}"
            raise ScriptError(f"expected rising indices like 1-5{within}, got {part!r}")
        named = range(low, high + 1, step)
        spanned += len(named) - 1
        if spanned <= 2 * MAX_TASKS:
            indices.update(named)
        if len(indices) > MAX_TASKS or spanned > 2 * MAX_TASKS:
            raise ScriptError(f"expected at most {MAX_TASKS} array tasks, got more in {spec!r}")
    return Array(tuple(sorted(indices)), None if limit is None else int(limit))


def parse_ids(text: str) -> IdSelection:
    """Read ``7``, ``7_3`` or ``7_[1-3,5]``; a ``%limit``, as squeue prints it, is ignored."""
    if several := re.fullmatch(r"([0-9]{1,18})_\[(.*)\]", text):
        return IdSelection(int(several[1]), frozenset(parse_array(several[2]).indices))
    job, index = match(_ID, text, "a job id like 7, 7_3 or 7_[1-3,5]").groups()
    return IdSelection(int(job), None if index is None else frozenset([int(index)]))


def parse_id_list(text: str) -> list[IdSelection]:
    """Read ids with commas between: ``7,8_[1-3,5]``, of at most :data:`MAX_TASKS` jobs."""
    selections, count = [], 0
    for part in split_list(text):
        selections.append(parse_ids(part))
        count += len(selections[-1].indices or ()) or 1
        if count > MAX_TASKS:
            raise ScriptError(f"expected ids of at most {MAX_TASKS} jobs, got more")
    return selections


def fold_ids(ids: Iterable[str]) -> list[str]:
    """Return a row per job and a row per array, as they first come: ``7_[0-1,3]`` for three."""
    rows: dict[tuple[str, bool], set[int]] = {}
    for job_id in ids:
        job, index = match(_ID, job_id, "a job id like 7 or 7_3").groups()
        rows.setdefault((job, index is None), set()).update([] if index is None else [int(index)])
    return [
        f"{job}_[{_folded(tasks)}]" if len(tasks) > 1 else "_".join([job, *map(str, tasks)])
        for (job, _), tasks in rows.items()
    ]


def _folded(indices: Iterable[int]) -> str:
    steps = groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    runs = [[index for _, index in run] for _, run in steps]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# --- --begin --------------------------------------------------------------------------------------

BEGIN_FORM = (
    "a time like now+1hour, 16:00, 16:00:30, 2026-12-01, 2026-12-01T08:00, noon or tomorrow"
)

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LATER = re.compile(r"now(?:\+([0-9]{1,9})(second|minute|hour|day|week)?s?)?")
_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}


def parse_begin(text: str, now_s: float) -> float:
    """Return the time that ``text`` names at ``now_s``; both in seconds since the epoch.

    A time of day that has passed is tomorrow's; a count without a unit is seconds.
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
        raise ScriptError(f"expected {BEGIN_FORM}, got {text!r}") from None


def _clock_time(word: str, now: datetime) -> datetime:
    """Return a date, or a time of day: the next one that comes."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(t[0-9:]+)?", word):
        date, _, clock = word.partition("t")
        year, month, day = map(int, date.split("-"))
        return datetime(year, month, day) + _hours(clock or "0:00")
    clock = f"{_HOURS[word]}:00" if word in _HOURS else word
    today = datetime(now.year, now.month, now.day) + _hours(clock)
    return today if today.timestamp() > now.timestamp() else today + timedelta(days=1)


def _hours(clock: str) -> timedelta:
    """Return the time since midnight of a time of day."""
    parsed = re.fullmatch("([0-1]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", clock)
    if parsed is None:
        raise ValueError(clock)
    return timedelta(hours=int(parsed[1]), minutes=int(parsed[2]), seconds=int(parsed[3] or 0))


# --- --dependency ---------------------------------------------------------------------------------

KINDS = ("afterok", "afterany", "afternotok", "aftercorr")
MOST = 1000
"""Maximum number of jobs that a job depends on."""

DEPENDENCY_FORM = (
    "dependencies like afterok:7:8_2 (afterany, afternotok, aftercorr) or singleton, separated by "
    "commas (all of them) or by ? (any of them)"
)
_ONE = re.compile(rf"({'|'.join(KINDS)})((?::[0-9]{{1,18}}(?:_[0-9]{{1,18}})?)+)")


@dataclass(frozen=True)
class Dependencies:
    """Dependencies: kinds with ids of jobs; ``singleton``: all earlier jobs of its name."""

    after: tuple[tuple[str, str], ...]
    any_of: bool = False
    singleton: bool = False


def parse_dependency(text: str) -> Dependencies:
    """Read ``afterok:7:8_2,afterany:9``, ``afterok:7?afterok:8`` or ``singleton``."""
    any_of = "?" in text
    after: list[tuple[str, str]] = []
    singleton = False
    for part in text.split("?" if any_of else ","):
        if part == "singleton" and not any_of:
            singleton = True
            continue
        parsed = _ONE.fullmatch(part)
        if parsed is None:
            raise ScriptError(f"expected {DEPENDENCY_FORM}, got {shown(text)!r}")
        after += [(parsed[1], job) for job in parsed[2].split(":")[1:]]
    if len(after) > MOST:
        raise ScriptError(f"expected at most {MOST} jobs to depend on, got {len(after)}")
    return Dependencies(tuple(dict.fromkeys(after)), any_of, singleton)


# --- --signal -------------------------------------------------------------------------------------

SIGNAL_FORM = "a signal like USR1@120 or B:10@60, its seconds from 0 to 65535"

_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]{1,8})(?:@([0-9]{1,5}))?")


@dataclass(frozen=True)
class SignalRequest:
    """A signal that a job gets before the end of its time limit.

    Attributes:
        batch: whether the script gets it; else all processes of its launcher lines.
    """

    number: int
    before_s: float = 60.0
    batch: bool = False


def parse_signal(text: str) -> SignalRequest:
    """Read ``USR1@120``, ``SIGUSR1``, ``10@5`` or ``B:TERM@60``; without a time it is 60 s.

    ``R:``, which concerns reservations, is ignored.
    """
    where, name, before = match(_SIGNAL, text, SIGNAL_FORM).groups()
    numbers = {member.name.removeprefix("SIG"): int(member) for member in signal.Signals}
    number = int(name) if name.isdigit() else numbers.get(name, 0)
    before_s = float(before or 60)
    if number not in numbers.values() or before_s > 65535:
        raise ScriptError(f"expected {SIGNAL_FORM}, got {text!r}")
    return SignalRequest(number, before_s, "B" in (where or ""))
