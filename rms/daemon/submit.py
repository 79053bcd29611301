"""From a submitted script to jobs: options, array, sizes, files."""

from __future__ import annotations

import getpass
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rms.core.model import JobId, JobSpec, Mode
from rms.formats.jobscript import (
    DEFAULT_ARRAY_OUTPUT,
    DEFAULT_OUTPUT,
    Options,
    ScriptError,
    expand_output,
    parse_array,
    parse_script,
)
from rms.wire.messages import COOLDOWN_VARIABLE

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon


class Submission(msgspec.Struct, forbid_unknown_fields=True):
    """What ``rms submit`` sends: the script as it is now, and where and how to run it."""

    text: str
    name: str
    cwd: str
    env: dict[str, str]
    options: dict[str, Any]


def admit(daemon: Daemon, body: Submission) -> list[str]:
    """Make jobs of a submission and hand them to the daemon; return their ids.

    Raises:
        ScriptError: the script or its options cannot be run.
    """
    number = daemon.next_id()
    folder = daemon.launcher.state / "jobs" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script"
    script.write_text(body.text)
    script.chmod(0o700)
    options = _options(body.options).over(parse_script(script).options)
    array = None if options.array is None else parse_array(options.array)
    low, high = options.nodes or (1, 1)
    name = options.job_name or body.name
    indices: list[int | None] = [None] if array is None else list(array.indices)
    if options.dependency is not None:
        raise ScriptError("--dependency is not in this version; expected a script without it")
    specs: list[JobSpec] = []
    notes: dict[JobId, dict[str, Any]] = {}
    for index in indices:
        job_id = JobId(str(number) if index is None else f"{number}_{index}")
        specs.append(_spec(job_id, daemon.time(), options, low, high, number, array))
        pattern = options.output or (DEFAULT_OUTPUT if array is None else DEFAULT_ARRAY_OUTPUT)
        output = expand_output(
            pattern,
            array_id=str(number),
            index=index,
            job_id=job_id,
            name=name,
            node=daemon.cluster.names[0],
            user=getpass.getuser(),
        )
        notes[job_id] = {
            "script": str(script),
            "name": name,
            "cwd": body.cwd,
            "env": body.env | _cooldown(options),
            "output": str(Path(body.cwd) / output),
            "array": str(number),
            "index": index,
            "requeue": (
                daemon.launcher.requeue_by_default if options.requeue is None else options.requeue
            ),
        }
        (daemon.launcher.state / "jobs" / job_id).mkdir(parents=True, exist_ok=True)
    daemon.submit(specs, notes)
    return [spec.id for spec in specs]


def _options(raw: dict[str, Any]) -> Options:
    try:
        return msgspec.convert(raw, Options)
    except msgspec.ValidationError as error:
        raise ScriptError(str(error)) from None


def _cooldown(options: Options) -> dict[str, str]:
    return {} if options.cooldown_s is None else {COOLDOWN_VARIABLE: f"{options.cooldown_s:g}"}


def _spec(
    job_id: JobId, now: float, options: Options, low: int, high: int, number: int, array: Any
) -> JobSpec:
    limit = None if options.time_s is None or math.isinf(options.time_s) else options.time_s
    try:
        return JobSpec(
            id=job_id,
            submit_s=now,
            nodes_min=low,
            nodes_max=high,
            preferred=high if options.preferred is None else options.preferred,
            mode=options.mode or Mode.FIXED,
            limit_s=limit,
            array=None if array is None else str(number),
            array_limit=None if array is None else array.limit,
            power_w=options.power_w,
        )
    except ValueError as error:
        raise ScriptError(str(error)) from None
