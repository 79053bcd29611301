"""Arrays of jobs and ids of jobs, in Slurm's forms. What does not parse is a ScriptError."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from rms.formats.nodelist import split_list

MAX_TASKS = 10_000  # of one job array
SHOWN = 200  # characters of what is quoted

_ID = re.compile("([0-9]{1,18})(?:_([0-9]{1,18}))?")
_RANGE = re.compile("([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")


class ScriptError(ValueError):
    """A script, option or id that does not say what it should; one sentence, expected and got."""


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
        found = _ID.fullmatch(job_id)
        if found is None or int(found[1]) != self.job:
            return False
        return self.indices is None or (found[2] is not None and int(found[2]) in self.indices)


def match(form: str | re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """Return how a text matches, all of it.

    Raises:
        ScriptError: it does not.
    """
    found = re.fullmatch(form, text)
    if found is None:
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        raise ScriptError(f"expected {expected}, got {shown!r}")
    return found


def parse_array(spec: str) -> Array:
    """Read ``0-11%4`` or ``1,3,5-9:2``; repeated indices count once."""
    form = "an array like 0-11%4 or 1,3,5-9:2, its limit after % at least 1"
    ranges, limit = match("([^%]*)(?:%(0*[1-9][0-9]{0,8}))?", spec, form).groups()
    indices: set[int] = set()
    spanned = 0  # by ranges, overlapping ones too: each takes time
    spec = spec if len(spec) <= SHOWN else f"{spec[:SHOWN]}..."
    expected = f"indices like 3, 0-11 or 5-9:2, up to 7 digits, in {spec!r}"
    for part in ranges.split(","):
        found = match(_RANGE, part, expected)
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
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
    """Read ``7``, ``7_3`` or ``7_[1-3,5]``; a ``%limit``, as squeue prints it, is let pass."""
    if several := re.fullmatch(r"([0-9]{1,18})_\[(.*)\]", text):
        return IdSelection(int(several[1]), frozenset(parse_array(several[2]).indices))
    job, index = match(_ID, text, "a job id like 7, 7_3 or 7_[1-3,5]").groups()
    return IdSelection(int(job), None if index is None else frozenset([int(index)]))


def parse_id_list(text: str) -> list[IdSelection]:
    """Read ids with commas between: ``7,8_[1-3,5]``, of at most so many jobs as an array has."""
    found, count = [], 0
    for part in split_list(text):
        found.append(parse_ids(part))
        count += len(found[-1].indices or ()) or 1
        if count > MAX_TASKS:
            raise ScriptError(f"expected ids of at most {MAX_TASKS} jobs, got more")
    return found


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
