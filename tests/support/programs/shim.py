"""Stands in for a command: records each call, and does what a rule tells it to.

It runs under the command's name from a folder ``bin``. Beside that folder are ``rules``, with a
file for every rule, and ``calls``, to which every call appends a line of JSON. See ``shims``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER, NAME = Path(sys.argv[0]).parent.parent, Path(sys.argv[0]).name
POLL_S = 0.01
LONG = ("srun", "mpiexec")
"""Commands that run for as long as what they start: they take the place of this program."""

AFTER = frozenset(("status", "cut", "garble", "lose", "twice"))
"""Rules that change an answer."""


def main() -> int:
    """Answer a call in the command's place."""
    began_s, arguments = time.time(), sys.argv[1:]
    rule, claim = claimed(" ".join(arguments))
    hold_while(rule, claim, "before")
    if "message" in rule:
        status, out, err = int(rule.get("status", 1)), "", f"{rule['message']}\n"
    elif NAME in LONG and not AFTER.intersection(rule) and rule.get("hold") != "after":
        record(began_s, arguments, rule, None, "", "")
        command = real_command()
        os.execv(command, [command, *arguments])  # mpiexec looks for its proxies beside itself
    else:
        if rule.get("twice"):
            call(arguments)
        status, out, err = call(arguments)
        hold_while(rule, claim, "after")
    record(began_s, arguments, rule, status, out, err)
    out, err, status = changed(rule, out), changed(rule, err), int(rule.get("status", status))
    sys.stdout.buffer.write(out.encode(errors="surrogateescape"))
    sys.stderr.buffer.write(err.encode(errors="surrogateescape"))
    return status


def claimed(words: str) -> tuple[dict[str, Any], Path]:
    """Return the first rule for a call, and the file that tells the test of it."""
    for file in sorted((FOLDER / "rules").glob("*.json")):
        try:
            rule = json.loads(file.read_text())
        except FileNotFoundError:  # lifted meanwhile
            continue
        if rule.pop("command") != NAME or not re.search(rule.pop("pattern"), words):
            continue
        for number in range(1, 1 + (rule.get("times") or 1000)):
            claim = file.with_suffix(f".{number}")
            try:
                claim.touch(exist_ok=False)
            except FileExistsError:
                continue
            return rule, claim
    return {}, FOLDER


def hold_while(rule: dict[str, Any], claim: Path, when: str) -> None:
    """Wait until the rule is lifted, if it holds calls at this time."""
    if rule.get("hold") == when:
        claim.with_name(f"{claim.name}.held").touch()
        while claim.with_suffix(".json").exists():
            time.sleep(POLL_S)


def real_command() -> str:
    """Return the command on PATH that this one stands before."""
    own = (FOLDER / "bin").resolve()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        file = Path(folder or ".") / NAME
        if os.access(file, os.X_OK) and Path(folder).resolve() != own:
            return str(file)
    sys.exit(f"expected another {NAME} on PATH, got none")


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Run the command, which gets the signals that come here; return what it answers."""
    pipe = subprocess.PIPE
    with subprocess.Popen([real_command(), *arguments], stdout=pipe, stderr=pipe) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda got, _: process.send_signal(got))
        out, err = process.communicate()
        status = process.returncode
    return status, *(part.decode(errors="surrogateescape") for part in (out, err))


def changed(rule: dict[str, Any], text: str) -> str:
    """Return an answer as a rule lets it through."""
    if rule.get("lose"):
        return ""
    if "cut" in rule:
        return text[: int(len(text) * rule["cut"])]
    if "garble" in rule:
        old, new = rule["garble"]
        return re.sub(old, new, text)
    return text


def record(
    began_s: float,
    arguments: list[str],
    rule: dict[str, Any],
    status: int | None,
    out: str,
    err: str,
) -> None:
    """Append a call to the file of calls."""
    row = {"began_s": began_s, "ended_s": time.time(), "command": NAME, "arguments": arguments}
    row |= {"rule": rule, "status": status, "out": out, "err": err}
    line = json.dumps(row).encode() + b"\n"
    calls = os.open(FOLDER / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(calls, line)
    os.close(calls)


sys.exit(main())
