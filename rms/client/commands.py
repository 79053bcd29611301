"""The client commands: thin requests to the daemon, and their tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from rms.formats.jobscript import (
    Options,
    ScriptError,
    fold_ids,
    parse_nodes,
    parse_script,
    parse_time,
    read_option,
)
from rms.wire.http import UnreachableError, request
from rms.wire.terminal import emit_json

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
ONE_WORD = """
-n -np -ppn -N -c -p -t -J -o -e -w -A -D -x -H -f -host -hosts --host -hostfile --hostfile
-machinefile --machinefile -map-by --map-by -bind-to --bind-to -rmk -wdir --wdir -launcher -iface
--ntasks --nodes --cpus-per-task --mpi --time --partition --job-name --output --error --nodelist
--account --chdir
"""
TWO_WORDS = "-genv -env -mca --mca -gmca --gmca"
WORDS_TAKEN = dict.fromkeys(ONE_WORD.split(), 1) | dict.fromkeys(TWO_WORDS.split(), 2)
"""Options of srun, mpirun and mpiexec that take the next words with them, and how many."""


class ServerError(Exception):
    """The daemon refused, or is not there; one sentence and an exit status."""

    def __init__(self, sentence: str, exit_code: int = 2) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def state_folder(env: Mapping[str, str]) -> Path:
    """Return where the daemon keeps its state: ``RMS_STATE``, else the user's state folder."""
    if "RMS_STATE" in env:
        return Path(env["RMS_STATE"]).absolute()
    base = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "rms"


def server_address(given: str | None, env: Mapping[str, str]) -> str:
    """Return the address of the daemon to talk to."""
    return given or env.get("RMS_SERVER") or f"unix:{state_folder(env) / 'socket'}"


def call(
    server: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str = "",
    timeout_s: float = 30.0,
) -> Any:
    """Send a request and return the answer.

    Raises:
        ServerError: the daemon is not there, or said no.
    """
    if not token and not server.startswith("unix:"):
        token = _server_token(os.environ)
    try:
        data = b"" if body is None else msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise ServerError(f"expected text in UTF-8, got {error.object[:60]!r}") from None
    try:
        status, answer = request(server, method, path, data, token=token, timeout_s=timeout_s)
    except UnreachableError as error:
        raise ServerError(f"{error}; expected a running daemon (rms serve)", 1) from None
    except ValueError as error:
        raise ServerError(str(error)) from None
    try:
        found = json.loads(answer or b"null")
    except ValueError:
        found = answer.decode(errors="replace")
    if status != 200:
        text = found["error"] if isinstance(found, dict) else f"status {status} for {path}: {found}"
        raise ServerError(text)
    return found


def _server_token(env: Mapping[str, str]) -> str:
    """Return the token for a server on TCP: RMS_TOKEN, or the file in the state folder."""
    if "RMS_TOKEN" in env:
        return env["RMS_TOKEN"]
    with contextlib.suppress(OSError):
        return (state_folder(env) / "token").read_text()
    return ""


def submit(arguments: argparse.Namespace) -> int:
    """``rms submit``: print the id of the job or array."""
    server = server_address(arguments.server, os.environ)
    if arguments.command_line:
        line = shlex.join([sys.executable, "-m", "rms", "launch", "--", *arguments.command_line])
        text, name = f"#!/bin/sh\nexec {line}\n", Path(arguments.command_line[0]).name
        if arguments.script is not None:
            raise ScriptError("expected a SCRIPT or -- COMMAND, got both")
    elif arguments.script is None:
        raise ScriptError("expected a SCRIPT or -- COMMAND, got neither")
    else:
        text, name = read_script(arguments.script), arguments.script.name
    ids = send(server, text, name, options_of(arguments))
    number = ids[0].partition("_")[0]
    if arguments.json is not None:
        emit_json(arguments.json, {"id": number, "ids": ids})
    if arguments.json != "-":
        print(number)
    if arguments.wait:
        return wait_for(server, number)
    return 0


def read_script(path: Path) -> str:
    """Return a script's text, after a look at whether it can be one."""
    if path.is_dir():
        raise ScriptError(f"expected a job script, got {path}, which is a directory")
    parse_script(path)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"expected a job script, got {path}: {error}") from None


def options_of(arguments: argparse.Namespace) -> Options:
    """Return what a command line sets."""
    nodes = None if arguments.nodes is None else parse_nodes(arguments.nodes)
    time_s = None if arguments.time is None else parse_time(arguments.time)
    mode = None if arguments.mode is None else read_option("mode", arguments.mode).mode
    cooldown = arguments.cooldown
    return Options(
        array=arguments.array,
        nodes=nodes,
        preferred=arguments.preferred,
        mode=mode,
        time_s=time_s,
        job_name=arguments.job_name,
        output=arguments.output,
        cooldown_s=None if cooldown is None else read_option("cooldown", cooldown).cooldown_s,
    )


def send(
    server: str,
    text: str,
    name: str,
    options: Options,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> list[str]:
    """Submit a script; return the ids of its jobs."""
    keep = {key: value for key, value in sendable(env).items() if not key.startswith("RMS_")}
    raw = {k: v for k, v in msgspec.to_builtins(options).items() if v is not None}
    body = {"text": text, "name": name, "cwd": str(cwd or Path.cwd()), "env": keep, "options": raw}
    ids: list[str] = call(server, "POST", "/jobs", body)["ids"]
    return ids


def sendable(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that JSON can carry: those in UTF-8."""
    return {
        key: value
        for key, value in env.items()
        if os.fsencode(key + value).decode(errors="replace") == key + value
    }


def wait_for(server: str, wanted: str) -> int:
    """Return when the jobs are over: 0 if all are COMPLETED, 1 otherwise."""
    while True:
        rows = call(server, "GET", f"/jobs?id={quote(wanted)}")
        if all(row["state"] in OVER for row in rows):
            return 0 if all(row["state"] == "COMPLETED" for row in rows) else 1
        time.sleep(0.1)


def launch(arguments: argparse.Namespace) -> int:
    """``rms launch``: hand a launcher line to the daemon; return as its last world did."""
    env = dict(os.environ)
    job, token = env.get("RMS_JOB_ID"), env.get("RMS_TOKEN", "")
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
    body = {
        "command": command,
        "cwd": str(Path.cwd()),
        "env": sendable(env),
        "output": own_output(1),
        "errors": own_output(2),
        "key": secrets.token_hex(8),
    }
    number = patiently(server, "POST", f"/jobs/{job}/steps", body, token)["step"]
    while True:
        answer = patiently(server, "GET", f"/jobs/{job}/steps/{number}", None, token)
        if answer["exit_code"] is not None:
            if answer["message"]:
                print(f"rms: {answer['message']}", file=sys.stderr)
            return int(answer["exit_code"])


def patiently(server: str, method: str, path: str, body: Any, token: str) -> Any:
    """Ask until a daemon that is being restarted is back."""
    while True:
        try:
            return call(server, method, path, body, token=token)
        except ServerError as error:
            if error.exit_code != 1:
                raise
            time.sleep(0.5)


def own_output(number: int) -> str | None:
    """Return the file that standard output or error goes to, so that a world's goes there too."""
    try:
        target = Path(f"/proc/self/fd/{number}").readlink()
    except OSError:
        return None
    return str(target) if target.is_file() or target == Path(os.devnull) else None


def strip_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a launcher's own options from the command after them."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 + WORDS_TAKEN.get(words[at], 0)
    return list(words[at:]), list(words[:at])


def queue(arguments: argparse.Namespace) -> int:
    """``rms queue``: jobs that wait or run, array tasks that wait folded into one row."""
    rows = _jobs(arguments)
    rows = [row for row in rows if row["state"] not in OVER]
    waiting: dict[tuple[str, str], list[dict[str, Any]]] = {}
    shown: list[list[str]] = []
    for row in rows:
        if row["state"] == "PENDING" and "_" in row["id"]:
            waiting.setdefault((row["id"].partition("_")[0], row["reason"]), []).append(row)
        else:
            shown.append(_queue_row(row["id"], row))
    for (_, _), group in waiting.items():
        shown += [_queue_row(i, group[0]) for i in fold_ids(row["id"] for row in group)]
    return _show(
        arguments,
        rows,
        ["JOBID", "NAME", "STATE", "MODE", "NODES", "STEP", "NODELIST(REASON)"],
        shown,
    )


def _queue_row(name: str, row: Mapping[str, Any]) -> list[str]:
    where = ",".join(row["nodes"]) if row["state"] == "RUNNING" else f"({row['reason']})"
    steps = f"{row['step']}/{row['steps']}" if row["steps"] else ""
    return [
        name,
        row["name"],
        row["state"],
        row["mode"],
        str(row["size"] or row["nodes_max"]),
        steps,
        where,
    ]


def acct(arguments: argparse.Namespace) -> int:
    """``rms acct``: every job, its times and energy."""
    rows = _jobs(arguments)
    table = [
        [
            row["id"],
            row["name"],
            row["state"],
            row["mode"],
            f"{(row['start_s'] or row['submit_s']) - row['submit_s']:.1f}",
            f"{(row['end_s'] or 0) - row['start_s']:.1f}"
            if row["end_s"] and row["start_s"]
            else "",
            str(len(row["resizes"])),
            f"{row['energy_j']:.1f}",
            row["energy_source"],
        ]
        for row in rows
    ]
    return _show(
        arguments,
        rows,
        ["JOBID", "NAME", "STATE", "MODE", "WAIT_S", "RUN_S", "RESIZES", "ENERGY_J", "SOURCE"],
        table,
    )


def show(arguments: argparse.Namespace) -> int:
    """``rms show ID``: all that is known of a job."""
    rows = _jobs(arguments)
    table = [[key, str(value)] for row in rows for key, value in row.items()]
    return _show(arguments, rows, ["KEY", "VALUE"], table)


def nodes(arguments: argparse.Namespace) -> int:
    """``rms nodes``: like sinfo."""
    rows = call(server_address(arguments.server, os.environ), "GET", "/nodes")
    table = [[row["name"], row["state"], ",".join(row["slots"]), row["job"] or ""] for row in rows]
    return _show(arguments, rows, ["NODE", "STATE", "SLOTS", "JOB"], table)


def drain(arguments: argparse.Namespace) -> int:
    """``rms drain NODE``: who runs there is left alone."""
    return _drain(arguments, "/drain", "DRAINED")


def resume(arguments: argparse.Namespace) -> int:
    """``rms resume NODE``."""
    return _drain(arguments, "/resume", "RESUMED")


def _drain(arguments: argparse.Namespace, path: str, head: str) -> int:
    server = server_address(arguments.server, os.environ)
    found = call(server, "POST", path, {"node": arguments.node})
    return _show(arguments, found, [head], [[name] for name in found["nodes"]])


def cancel(arguments: argparse.Namespace) -> int:
    """``rms cancel ID``."""
    found = call(
        server_address(arguments.server, os.environ), "POST", "/cancel", {"id": arguments.id}
    )
    return _show(arguments, found, ["CANCELLED"], [[job] for job in found["ids"]])


def wait(arguments: argparse.Namespace) -> int:
    """``rms wait ID``: 0 if all its jobs are COMPLETED."""
    return wait_for(server_address(arguments.server, os.environ), arguments.id)


def resize(arguments: argparse.Namespace) -> int:
    """``rms resize ID NODES``: 0 only if the resize was taken on."""
    found = call(
        server_address(arguments.server, os.environ),
        "POST",
        "/resize",
        {
            "id": arguments.id,
            "nodes": arguments.nodes,
            "strategy": arguments.strategy,
            "on": arguments.on,
        },
    )
    taken = found["decision"] == "Resize"
    if not taken:
        never = found["reason"].startswith("never")
        raise ServerError(f"not resized: {found['reason']}", 2 if never else 1)
    return _show(arguments, found, ["DECISION"], [["requested"]])


def policy(arguments: argparse.Namespace) -> int:
    """``rms policy [NAME|FILE.toml]``: a file is read here, the daemon gets what it says."""
    server = server_address(arguments.server, os.environ)
    name = arguments.name
    if name is not None and name.endswith(".toml"):
        from rms.core.policies import PolicyError, read_policy

        try:
            name = read_policy(Path(name)).text
        except PolicyError as error:
            raise ServerError(str(error)) from None
    body = None if name is None else {"name": name}
    found = call(server, "GET" if body is None else "POST", "/policy", body)
    return _show(arguments, found, ["POLICY"], [[found["name"]]])


def shutdown(arguments: argparse.Namespace) -> int:
    """``rms shutdown``."""
    call(server_address(arguments.server, os.environ), "POST", "/shutdown", {})
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """``rms explain ID``: the decisions about a job and their reasons."""
    found = call(
        server_address(arguments.server, os.environ), "GET", f"/history/{quote(arguments.id)}"
    )
    table = [
        [
            time.strftime("%H:%M:%S", time.localtime(entry["at_s"])),
            entry["kind"],
            ",".join(entry["nodes"]),
            entry["reason"],
        ]
        for entry in found
    ]
    return _show(arguments, found, ["TIME", "DECISION", "NODES", "REASON"], table)


def _jobs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    wanted = getattr(arguments, "id", None)
    path = "/jobs" if wanted is None else f"/jobs?id={quote(wanted)}"
    rows: list[dict[str, Any]] = call(server_address(arguments.server, os.environ), "GET", path)
    return rows


def _show(arguments: argparse.Namespace, data: Any, heads: list[str], rows: list[list[str]]) -> int:
    if arguments.json is not None:
        emit_json(arguments.json, data)
    if arguments.json != "-":
        widths = [max(len(row[c]) for row in [heads, *rows]) for c in range(len(heads))]
        for row in [heads, *rows]:
            print("  ".join(f"{cell:{w}s}" for cell, w in zip(row, widths, strict=True)).rstrip())
    return 0
