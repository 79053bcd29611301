"""What Slurm's commands print as JSON, as values. Pure: text in, rows out.

It is read in the shape of 22.05 and in that of later versions, where states are lists and numbers
are objects; whatever has neither shape raises :class:`OutputError`, and the text is read instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rms.formats.values import NodeListError, expand
from rms.launch.slurm.output import (
    OutputError,
    QueuedJob,
    Record,
    ReportedError,
    SiteNode,
    hosts,
    oldest_first,
)


def queue_from_json(text: str) -> list[QueuedJob]:
    """Read ``squeue --json``."""
    rows = []
    for job in _entries(text, "jobs"):
        array = _number(job["array_job_id"])
        limit = _number(job["time_limit"], infinite=math.inf)
        row = QueuedJob(
            job_id=_known(job, "job_id"),
            array_id=array or None,
            task=_number(job["array_task_id"]) if array else None,  # without an array it may be 0
            name=job["name"],
            user=job["user_name"],
            state=_state(job["job_state"]),
            reason=job["state_reason"],
            nodes=_known(job, "node_count"),
            hosts=hosts(job["nodes"]),
            limit_s=math.inf if limit is None else limit * 60,
            submit_s=_moment(job["submit_time"]),
            start_s=_moment(job["start_time"]),
        )
        waiting = job["array_task_string"]  # of the tasks that are still one job
        rows += [replace(row, task=task) for task in _tasks(waiting)] if waiting else [row]
    return rows


def _tasks(text: str) -> list[int]:
    """Return the tasks of ``1-6%4``; Slurm cuts a long list short, and then the text is read."""
    try:
        return [int(name) for name in expand(f"[{text.partition('%')[0]}]")]
    except NodeListError:
        raise OutputError(f"expected a list of tasks in Slurm's JSON, got {text!r}") from None


def nodes_from_json(text: str) -> list[SiteNode]:
    """Read ``sinfo --json`` of 22.05; later versions group nodes, and the text is read there."""
    rows = []
    for node in _entries(text, "nodes"):
        flags = {str(flag).upper() for flag in node["state_flags"]}
        state = _state(node["state"]).lower()
        if "DRAIN" in flags:
            state = "draining" if state in ("allocated", "mixed") else "drained"
        elif "COMPLETING" in flags:
            state = "completing"
        rows.append(
            SiteNode(
                name=node["name"],
                partitions=tuple(node["partitions"]),
                state=state,
                responds="NOT_RESPONDING" not in flags,
                cpus=_known(node, "cpus"),
                gres=node["gres"],
                reason=node["reason"],
            )
        )
    return rows


def records_from_json(text: str) -> list[Record]:
    """Read ``sacct --json --duplicates``."""
    rows = [
        Record(
            job_id=_known(job, "job_id"),
            name=job["name"],
            state=_state(job["state"]["current"]),
            nodes=_known(job, "allocation_nodes"),
            hosts=hosts(job["nodes"]),
            submit_s=_moment(job["time"]["submission"]),
            start_s=_moment(job["time"]["start"]),
            end_s=_moment(job["time"]["end"]),
        )
        for job in _entries(text, "jobs")
    ]
    return sorted(rows, key=oldest_first)


class _Entry(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise OutputError(f"expected {key!r} in Slurm's JSON, got {', '.join(sorted(self))[:200]}")


def _entries(text: str, name: str) -> Sequence[Any]:
    try:
        read = json.loads(text, object_hook=_Entry)
    except ValueError as error:
        raise OutputError(f"expected JSON, got {text[:80]!r} ({error})") from None
    if isinstance(read, dict) and read.get("errors"):
        raise ReportedError(f"expected {name}, got errors: {read['errors']}")
    entries = read[name] if isinstance(read, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise OutputError(f"expected a list {name!r} in Slurm's JSON, got {text[:80]!r}")
    return entries


def _number(value: Any, infinite: float | None = None) -> Any:
    """Return a number of either shape; None where it is not set."""
    if isinstance(value, dict):
        if value["infinite"]:
            return infinite
        value = value["number"] if value["set"] else None
    if value is not None and not isinstance(value, int | float):
        raise OutputError(f"expected a number in Slurm's JSON, got {value!r}")
    return value


def _known(entry: Any, key: str) -> int:
    value = _number(entry[key])
    if value is None:
        raise OutputError(f"expected {key!r} to be set in Slurm's JSON, got {entry[key]!r}")
    return int(value)


def _moment(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _state(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, str):
        raise OutputError(f"expected a state in Slurm's JSON, got {value!r}")
    return first
