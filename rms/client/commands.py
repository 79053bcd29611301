"""What users ask of a daemon: requests with their answers, nothing printed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from rms.client.connection import ask, sendable
from rms.formats.jobscript import Options, ScriptError, parse_script
from rms.wire.users import OVER, JobIds, JobRow, Submission, SubmitOptions

POLL_S = 0.1


def read_script(path: Path) -> str:
    """Return a script's text, after a look at whether it can be one.

    Raises:
        ScriptError: it cannot.
    """
    if path.is_dir():
        raise ScriptError(f"expected a job script, got {path}, which is a directory")
    parse_script(path)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"expected a job script, got {path}: {error}") from None


def submit(
    server: str,
    text: str,
    name: str,
    options: Options,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> list[str]:
    """Submit a script; return the ids of its jobs."""
    keep = {key: value for key, value in sendable(env).items() if not key.startswith("RMS_")}
    given = msgspec.convert(options, SubmitOptions, from_attributes=True)
    body = Submission(text, name, str(cwd or Path.cwd()), keep, given)
    return ask(JobIds, server, "POST", "/jobs", body).ids


def jobs(server: str, wanted: str | None = None) -> list[JobRow]:
    """Return all jobs, or those that an id names."""
    path = "/jobs" if wanted is None else f"/jobs?id={quote(wanted)}"
    return ask(list[JobRow], server, "GET", path)


def wait_for(server: str, wanted: str) -> int:
    """Return when the jobs are over: 0 if all are COMPLETED, 1 otherwise."""
    while True:
        states = {job.state for job in jobs(server, wanted)}
        if states <= set(OVER):
            return 0 if states <= {"COMPLETED"} else 1
        time.sleep(POLL_S)
