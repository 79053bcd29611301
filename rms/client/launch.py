"""``rms launch``, the command behind srun, mpirun and mpiexec of a job script.

It runs on compute nodes for every launcher line, so it imports only :mod:`rms.wire` and
:mod:`rms.client.connection`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rms.client.connection import ServerError, ask, sendable, server_address
from rms.wire.messages import (
    JOB_VARIABLE,
    RUN_VARIABLE,
    TOKEN_VARIABLE,
    LaunchRequest,
    StepNumber,
    StepState,
)
from rms.wire.mpiexec import is_program

T = TypeVar("T")

RETRY_S = 0.5

NOTE_S = 30.0
"""A longer wait for the daemon is reported."""

WITH_ONE_VALUE = """
-n -np -ppn -N -c -p -t -J -o -e -w -A -D -x -H -f -host -hosts --host -hostfile --hostfile
-machinefile --machinefile -map-by --map-by -bind-to --bind-to -rmk -wdir --wdir -launcher -iface
--ntasks --nodes --cpus-per-task --mpi --time --partition --job-name --output --error --nodelist
--account --chdir
"""
WITH_TWO_VALUES = "-genv -env -mca --mca -gmca --gmca"
VALUES_TAKEN = dict.fromkeys(WITH_ONE_VALUE.split(), 1) | dict.fromkeys(WITH_TWO_VALUES.split(), 2)
"""Options of srun, mpirun and mpiexec with separate values, and how many."""


def add_launch(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms launch``."""
    command.add_argument(
        "--as", dest="launcher", metavar="NAME", help="the launcher whose options are ignored"
    )


def launch(arguments: argparse.Namespace) -> int:
    """Hand a launcher line to the daemon; return the status of its last world."""
    env = dict(os.environ)
    job, token = env.get(JOB_VARIABLE), env.get(TOKEN_VARIABLE, "")
    if job is None:
        raise ServerError("rms launch works inside a job script; expected RMS_JOB_ID to be set")
    server = server_address(None, env)
    command = list(arguments.command_line)
    if arguments.launcher is not None:
        command, dropped = strip_options(command)
        if dropped:
            print(
                f"rms: note: {arguments.launcher} {' '.join(dropped)} ignored, the RMS decides",
                file=sys.stderr,
            )
    if not command:
        raise ServerError("expected a command after --, got none")
    if not is_program(command[0], Path.cwd(), env.get("PATH", os.defpath)):
        raise ServerError(f"expected a program that can be run, got {command[0]!r}", 127)
    body = LaunchRequest(
        command, str(Path.cwd()), sendable(env), own_output(1), own_output(2), os.urandom(8).hex()
    )
    steps, run = f"/jobs/{job}/steps", f"?run={env.get(RUN_VARIABLE, '0')}"
    number = until_answered(StepNumber, server, "POST", f"{steps}{run}", body, token).step
    while True:
        state = until_answered(StepState, server, "GET", f"{steps}/{number}{run}", None, token)
        if state.exit_code is not None:
            if state.message:
                print(f"rms: {state.message}", file=sys.stderr)
            return state.exit_code


def until_answered(
    answer: type[T], server: str, method: str, path: str, body: object, token: str
) -> T:
    """Repeat a request until the daemon answers; after a while print the reason, once."""
    note_s = time.monotonic() + NOTE_S
    while True:
        try:
            return ask(answer, server, method, path, body, token=token)
        except ServerError as error:
            if error.exit_code != 1:
                raise
            if time.monotonic() > note_s:
                print(f"rms: waiting for the daemon: {error}", file=sys.stderr, flush=True)
                note_s = math.inf
            time.sleep(RETRY_S)


def own_output(number: int) -> str | None:
    """Return the file of standard output or error, for the worlds."""
    try:
        target = Path(f"/proc/self/fd/{number}").readlink()
    except OSError:
        return None
    return str(target) if target.is_file() or target == Path(os.devnull) else None


def strip_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a launcher's own options from the command after them."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 1 + VALUES_TAKEN.get(words[at], 0)
    return list(words[at:])[words[at : at + 1] == ["--"] :], list(words[:at])
