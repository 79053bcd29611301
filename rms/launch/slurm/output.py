"""The output of Slurm's commands as values. Pure: text in, rows out.

Output of an unexpected shape, or without its end, is a ValueError.

Times are seconds since the epoch: commands run with ``SLURM_TIME_FORMAT=%s``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rms.formats.jobscript import parse_time
from rms.formats.values import ScriptError, expand

QUEUE_FORMAT = "%A|%F|%K|%T|%D|%N|%r|%l|%V|%S|%u|%j"  # the name, which may hold |, comes last
HOLDERS_FORMAT = "%A|%N"  # without names: those of other users may hold line breaks and any column
NODES_FORMAT = "%N|%P|%T|%c|%G|%E"
PARTITIONS_FORMAT = "%l|%N|%P"

NO_TEXT = ("", "(null)", "None assigned", "N/A", "None", "none", "Unknown")
SYMBOLS = "*~#!%$@^-+"  # after a node's state
DEAD = ("down", "fail", "failing", "error")  # states of a node whose jobs do not go on
_WHOLE_LINE = ("Command=", "WorkDir=", "StdErr=", "StdIn=", "StdOut=", "Comment=", "AdminComment=")


@dataclass(frozen=True)
class QueuedJob:
    """A row of the queue. ``job_id`` is the id of its own that an array's task has too."""

    job_id: int
    array_id: int | None
    task: int | None
    name: str
    user: str
    state: str  # Slurm's name for it, in capitals
    reason: str
    nodes: int  # held or requested
    hosts: tuple[str, ...]
    limit_s: float | None  # inf: none; None: unknown
    submit_s: float | None
    start_s: float | None  # of a pending job: Slurm's estimate


@dataclass(frozen=True)
class SiteNode:
    """A node as Slurm sees it, once for all of its partitions."""

    name: str
    partitions: tuple[str, ...]
    state: str  # idle, allocated, mixed, completing, down, drained, draining, ...
    responds: bool
    cpus: int
    gres: str
    reason: str


@dataclass(frozen=True)
class Partition:
    """A partition, its nodes in Slurm's order, and its longest time limit (inf: none)."""

    name: str
    default: bool
    hosts: tuple[str, ...]
    limit_s: float | None


@dataclass(frozen=True)
class JobDetails:
    """The controller's details of a job; ``hosts`` are its real nodes."""

    job_id: int
    name: str
    state: str
    hosts: tuple[str, ...]
    batch_host: str | None
    has_gres: bool
    start_s: float | None
    end_s: float | None  # by its time limit, while it runs
    resized_s: float | None


def hosts(text: str) -> tuple[str, ...]:
    """Return the names in ``n[1-3,7],gpu2``; none of ``(null)`` and its like."""
    if text in NO_TEXT:
        return ()
    try:
        return tuple(expand(text))
    except ScriptError as error:
        raise ValueError(f"expected a list of nodes, got {text!r} ({error})") from None


def queue_from_text(text: str) -> list[QueuedJob]:
    """Read ``squeue --noheader --array --states=all --format=QUEUE_FORMAT``.

    A line that does not begin with a number and have all columns is more of the name before it.
    """
    columns, found = QUEUE_FORMAT.count("|") + 1, list[list[str]]()
    for line in _lines(text):
        words = line.split("|", columns - 1)
        if len(words) == columns and words[0].isdecimal():
            found.append(words)
        elif found:
            found[-1][-1] += f"\n{line}"
        else:
            raise ValueError(f"expected {columns} columns, got {line!r}")
    rows = []
    for words in found:
        job, array, task, state, nodes, names, reason, limit, submit, start, user, name = words
        in_array = task not in NO_TEXT
        rows.append(
            QueuedJob(
                job_id=_whole(job),
                array_id=_whole(array) if in_array else None,
                task=_whole(task) if in_array else None,
                name=name,
                user=user,
                state=state,
                reason=reason,
                nodes=_whole(nodes.partition("-")[0]),
                hosts=hosts(names),
                limit_s=_limit(limit),
                submit_s=_time(submit),
                start_s=_time(start),
            )
        )
    return rows


def holders_from_text(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """Read ``squeue --noheader --array --format=HOLDERS_FORMAT``: jobs with their nodes."""
    return [(_whole(job), hosts(names)) for job, names in _rows(text, 2)]


def nodes_from_text(text: str) -> list[SiteNode]:
    """Read ``sinfo --noheader --format=NODES_FORMAT``; a node of several partitions is one."""
    nodes: dict[str, SiteNode] = {}
    for names, partition, state, cpus, gres, reason in _rows(text, NODES_FORMAT.count("|") + 1):
        kind = SiteNode(
            name="",
            partitions=(partition.rstrip("*"),),
            state=state.rstrip(SYMBOLS),
            responds="*" not in state,
            cpus=_whole(cpus),
            gres="" if gres in NO_TEXT else gres,
            reason="" if reason in NO_TEXT else reason,
        )
        for name in hosts(names):
            before = nodes[name].partitions if name in nodes else ()
            nodes[name] = replace(kind, name=name, partitions=(*before, *kind.partitions))
    return list(nodes.values())


def partitions_from_text(text: str) -> list[Partition]:
    """Read ``sinfo --noheader --format=PARTITIONS_FORMAT``: a row a partition and kind of node."""
    partitions: dict[str, Partition] = {}
    for limit, names, word in _rows(text, PARTITIONS_FORMAT.count("|") + 1):
        name = word.rstrip("*")
        before = partitions[name].hosts if name in partitions else ()
        partitions[name] = Partition(
            name, word.endswith("*"), (*before, *hosts(names)), _limit(limit)
        )
    return list(partitions.values())


def steps_from_text(text: str) -> list[tuple[str, str]]:
    """Read ``squeue --steps --noheader --format=%i|%j``: (id, name) of each."""
    rows = (line.strip().partition("|") for line in _lines(text))
    return [(step, name.strip()) for step, _, name in rows if step[:1].isdecimal()]


def details_from_text(text: str) -> JobDetails:
    """Read ``scontrol --details show job ID`` by lines: names may look like other fields."""
    fields: dict[str, str] = {}
    gres = []
    if not text.endswith("\n\n"):
        raise ValueError(f"expected an empty line after a job, got {text[-80:]!r}")
    words_of_the_user = False
    for line in text.splitlines():
        # Since Slurm 25.11; a command may hold newlines.
        words_of_the_user |= line.lstrip().startswith("SubmitLine=")
        words_of_the_user &= not line.lstrip().startswith("WorkDir=")
        if words_of_the_user:
            continue
        if line.startswith("JobId="):
            line, _, fields["JobName"] = line.partition(" JobName=")
            line = line.partition(" ")[0]
        line = line.strip()
        if line.startswith(_WHOLE_LINE):
            continue
        for word in line.split():
            key, equals, value = word.partition("=")
            if key in ("GRES", "JOB_GRES", "TresPerNode", "TresPerJob", "Gres"):
                gres.append(value)
            elif equals and not line.startswith("Nodes="):
                fields.setdefault(key, value)
    try:
        return JobDetails(
            job_id=_whole(fields["JobId"]),
            name=fields["JobName"],
            state=fields["JobState"],
            hosts=hosts(fields["NodeList"]),
            batch_host=fields.get("BatchHost"),
            has_gres=any(value not in NO_TEXT for value in gres),
            start_s=_time(fields["StartTime"]),
            end_s=_time(fields["EndTime"]),
            resized_s=_time(fields.get("ResizeTime", "")),
        )
    except KeyError as error:
        raise ValueError(f"expected {error.args[0]}= of a job, got {text[:200]!r}") from None


def version_from_text(text: str) -> tuple[int, ...]:
    """Read ``sinfo --version``: ``slurm-wlm 22.05.8`` is (22, 5, 8)."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise ValueError(f"expected a version of Slurm, got {text.strip()!r}")
    return tuple(int(part) for part in match.groups() if part)


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [line.split("|", columns - 1) for line in _lines(text) if line.strip()]
    for row in rows:
        if len(row) != columns:
            raise ValueError(f"expected {columns} columns, got {'|'.join(row)!r}")
    return rows


def _lines(text: str) -> list[str]:
    if text and not text.endswith("\n"):
        raise ValueError(f"expected whole lines, got {text[-80:]!r} at the end")
    return text.split("\n")[:-1]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


def _time(text: str) -> float | None:
    return None if text in NO_TEXT else float(_whole(text))


def _limit(text: str) -> float | None:
    try:
        return parse_time(text)
    except ScriptError:  # NOT_SET, INVALID, Partition_Limit
        return None
