"""Requests of users to a daemon: actions on a job, submission, waiting, following its output."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

import msgspec

from rms.client.connection import ServerError, ask, sendable
from rms.client.launch import strip_options
from rms.formats.jobscript import ScriptError, parse_script, parse_text
from rms.formats.profiles import Program, read
from rms.formats.values import fold_ids
from rms.wire.mpiexec import LAUNCHERS
from rms.wire.users import (
    OVER,
    WAIT_PATH,
    JobIds,
    JobRow,
    JobSelection,
    Options,
    ResizeAnswer,
    ResizeCommand,
    Submission,
    WaitAnswer,
    WaitQuery,
    restart_words,
)

PAGE = 500
"""Rows in a request."""

HOLD_S = 20.0
"""Time for the daemon to hold a request that waits for jobs to end."""

COPY_S = 0.2
"""Interval at which the output of a running job is copied."""

SUMMARY_S = 10.0
"""Longest wait for the last lines of ended jobs."""

COPY_BYTES = 1 << 16

_QUOTED = re.compile(r"""\\.|'[^']*'|"[^"$`\\]*\"""")
"""Quoted words without expansion by a shell."""

_EXPANDED = re.compile(r"""[$`*?|<>;&~{["]|\S#""")
"""Unquoted characters that a shell expands, or that end a simple command."""


# --- actions on a job ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """An action that is possible on a job now.

    Attributes:
        do: name of the command, and last part of its path.
        label: text of the button.
        say: the effect, in a sentence.
        nodes: nodes of the job if the action needs a number of nodes, else 0.
    """

    do: str
    label: str
    say: str
    nodes: int = 0


def actions(job: JobRow, ids: str) -> list[Action]:
    """Return the actions on a job; ``ids`` are all jobs of its row, such as ``8_[3-10]``."""
    if job.state in OVER:
        return []
    runs = job.state == "RUNNING"
    nodes = f"{job.size} node{'s' if job.size != 1 else ''}"
    end = (
        f"it gets SIGTERM, then SIGKILL if it does not end, and releases its {nodes}"
        if job.nodes
        else "it is pending and will not start"
    )
    choices = [Action("cancel", "Cancel job", f"Cancel job {ids} ({job.name}): {end}.")]
    if runs and job.mode in ("malleable", "flexible") and job.nodes_max > job.nodes_min:
        say = (
            f"Resize job {ids} ({job.name}), which has {nodes}, to another number from "
            f"{job.nodes_min} to {job.nodes_max}, at its next resize point."
        )
        choices.append(Action("resize", "Resize", say, job.size))
    if runs:
        choices.append(
            Action("requeue", "Requeue", f"Requeue job {ids} ({job.name}): {requeue_words(job)}.")
        )
    if job.state == "PENDING" and job.reason.startswith("JobHeldUser"):
        say = f"Release job {ids} ({job.name}): it starts when its turn comes."
        choices.append(Action("release", "Release", say))
    elif job.state == "PENDING":
        say = f"Hold job {ids} ({job.name}): it does not start until it is released."
        choices.append(Action("hold", "Hold", say))
    return choices


def requeue_words(job: JobRow) -> str:
    """Return the effect of requeueing a job."""
    end = "it ends at a checkpoint" if job.restartable else "it ends"
    return f"{end} and waits again; {restart_words(job.restartable, job.step, job.steps)}"


def act(server: str, do: str, ids: str, nodes: int) -> str:
    """Carry out an action; return the daemon's answer in words."""
    if do == "resize":
        answer = ask(ResizeAnswer, server, "POST", "/resize", ResizeCommand(ids, nodes))
        if answer.decision in ("Resize", "Waits"):
            return f"resize of job {ids} to {nodes}: {answer.reason or 'requested'}"
        return f"not resized: {answer.reason}"
    done = ask(JobIds, server, "POST", f"/{do}", JobSelection(ids)).ids
    jobs = "1 job" if len(done) == 1 else f"{len(done)} jobs"
    return f"{do}: {jobs}"


# --- submission ---------------------------------------------------------------------------------


def read_script(path: Path) -> str:
    """Return the text of a job script after a check."""
    if path.is_dir():
        raise ScriptError(f"expected a job script, got {path}, which is a directory")
    parse_script(path)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"expected a job script, got {path}: {error}") from None


def script_of(command: Sequence[str]) -> str:
    """Return a script that runs a command on the job's nodes.

    A command that begins with a launcher is used as the launcher line.
    """
    words = command if command[0] in LAUNCHERS else ["srun", "--", *command]
    return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def launcher_words(text: str) -> list[str]:
    """Return the command of a script's only launcher line, if the shell expands nothing in it."""
    commands: list[list[str]] = []
    for line in text.replace("\\\n", " ").split("\n"):
        with contextlib.suppress(ValueError):
            words = shlex.split(line, comments=True)
            expanded = _EXPANDED.search(_QUOTED.sub("_", line))
            if words[:1] == ["exec"]:
                words = words[1:]
            if words and words[0] in LAUNCHERS:
                commands.append([] if expanded else strip_options(words[1:])[0])
    return commands[0] if len(commands) == 1 else []


def submit(
    server: str,
    text: str,
    name: str,
    options: Options,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> JobIds:
    """Submit a script; return the ids of its jobs, and the daemon's warnings."""
    keep = {key: value for key, value in sendable(env).items() if not key.startswith("RMS_")}
    try:
        msgspec.convert(msgspec.to_builtins(options), Options)
    except msgspec.ValidationError as error:
        raise ScriptError(f"expected options in range, got: {error}") from None
    folder, words = cwd or Path.cwd(), launcher_words(text)
    stated = parse_text(text, name).options
    within = folder / (options.chdir or stated.chdir or "")
    program = Program.find(words, within, keep.get("PATH", os.defpath)) if words else None
    wanted = options.profile or stated.profile or ""
    body = Submission(
        text=text,
        name=name,
        cwd=str(folder),
        env=keep,
        options=options,
        command=words,
        program="" if program is None else program.sha256,
        profile=_profile_text(folder / wanted) if wanted.endswith(".json") else "",
    )
    return ask(JobIds, server, "POST", "/jobs", body)


def _profile_text(path: Path) -> str:
    try:
        read(path)
        return path.read_text()
    except (OSError, ValueError) as error:
        raise ScriptError(f"--profile: {error}") from None


# --- rows, waiting, output ----------------------------------------------------------------------


def jobs(server: str, wanted: str | None = None, **filters: str | None) -> list[JobRow]:
    """Return all jobs, or those of these ids and of a ``state``, ``name``, ``user``.

    They come in pages, between which the daemon answers other clients.
    """
    query = {key: text for key, text in {"id": wanted, **filters}.items() if text is not None}
    query["limit"] = str(PAGE)
    rows: list[JobRow] = []
    while True:
        page = ask(list[JobRow], server, "GET", f"/jobs?{urlencode(query)}")
        rows += page
        if len(page) < PAGE:
            return rows
        query["after"] = page[-1].id


def unfinished(server: str, wanted: str, hold_s: float, *, lines: bool = False) -> int:
    """Return the number of unfinished jobs: when there is none, or after a time.

    Args:
        lines: a job counts as unfinished until the last line of its output is written.
    """
    return ask(WaitAnswer, server, "POST", WAIT_PATH, WaitQuery(wanted, lines, hold_s)).left


def wait_for(
    server: str, wanted: str, say: Callable[[str], None], *, only_failed: bool = False
) -> int:
    """Wait until the jobs have ended; return 0 if all are COMPLETED, else the highest status.

    The status of a job that did not complete is its script's, or 1 if that is 0 or missing.

    Args:
        say: called with the results of the jobs, in words.
        only_failed: report only jobs that did not complete.
    """
    while unfinished(server, wanted, HOLD_S):
        pass
    if not only_failed:  # the lines wait for the last readings of meters
        unfinished(server, wanted, SUMMARY_S, lines=True)
    rows, results = jobs(server, wanted), dict[str, list[str]]()
    for job in rows:
        if job.summary and not only_failed:
            say(job.summary)
        elif job.state != "COMPLETED" or not only_failed:
            why = f" ({job.reason})" if job.reason else ""
            status = "" if job.exit_code is None else f", exit status {job.exit_code}"
            results.setdefault(f"{job.state}{why}{status}", []).append(job.id)
    for result, ids in results.items():
        for name in fold_ids(ids):
            say(f"job {name} {result}")
    return _status(rows)


def follow(
    server: str, wanted: str, out: BinaryIO, say: Callable[[str], None]
) -> tuple[int, JobRow]:
    """Copy a job's output as it grows, until the job has ended; return its status and its row.

    Args:
        say: called with the reason if the job has not started.
    """
    rows = jobs(server, wanted)
    if len(rows) != 1:
        raise ServerError(f"expected the id of one job, got {wanted}, of {len(rows)}")
    path, files = Path(rows[0].output), list[BinaryIO]()
    if rows[0].state == "PENDING":
        say(f"job {rows[0].id} waits: {rows[0].reason}")

    def copy() -> None:
        try:
            if not files:
                files.append(opened.enter_context(path.open("rb")))
            while part := files[0].read(COPY_BYTES):
                out.write(part)
        except FileNotFoundError:
            return  # it has not started
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ServerError(f"expected to read the job's output here, got {error}") from None
        out.flush()

    with contextlib.ExitStack() as opened:
        while unfinished(server, wanted, COPY_S):
            copy()
        unfinished(server, wanted, SUMMARY_S, lines=True)
        copy()
    return _status(rows := jobs(server, wanted)), rows[0]


def _status(rows: Sequence[JobRow]) -> int:
    return max(0 if job.state == "COMPLETED" else job.exit_code or 1 for job in rows)
