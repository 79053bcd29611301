"""Shells around scripts and worlds, which keep their status and are the parents of what they leave.

A process may drop the environment and the session that it was given, but not its parent: when that
ends, Linux gives it to the nearest ancestor that is a *subreaper* (``PR_SET_CHILD_SUBREAPER``,
prctl(2)), and these shells are. So whatever a job has started is found below one of them, and ends
with it: a shell ends its children, and then theirs, before it ends itself. It is left to do so
where a job is killed. A process that kills its own shell is contained no more.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

_END_CHILDREN = """
children=/proc/$$/task/$$/children
while left=; { read -r left < $children || [ -n "$left" ]; } 2>/dev/null; do
    [ -n "$left" ] || break
    kill -KILL $left 2>/dev/null
    /bin/sleep 0.05
done
exit $code
"""

KEEP_STATUS = f"""trap : TERM
"$@"
code=$?
echo $code > "$RMS_STATUS.part" && mv "$RMS_STATUS.part" "$RMS_STATUS"
{_END_CHILDREN}"""
"""Shell around a job script: writes down its status for a daemon that was away when it ended.

It outlives a SIGTERM that the script handles in its own time.
"""

KEEP_WORLD_STATUS = f""""$@" &
world=$!
trap 'kill -TERM $world' TERM
{{ wait $world; }} 2>/dev/null
code=$?
while kill -0 $world 2>/dev/null; do {{ wait $world; }} 2>/dev/null; code=$?; done
echo $code > "$0.part" && mv "$0.part" "$0"
trap : TERM
{_END_CHILDREN}"""
"""The same around a world, which is told of a SIGTERM: not every program leaves a record."""

_SHELLS = KEEP_STATUS, KEEP_WORLD_STATUS


def _find_prctl() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):  # another system than Linux
        return None


_prctl = _find_prctl()


def uncontained() -> str:
    """Return why processes of a job may escape it, "" where they cannot."""
    if _prctl is None:
        return "expected Linux, whose subreapers hold what a job leaves, got another system"
    if not Path("/proc/thread-self/children").exists():
        return "expected a kernel that tells of children (CONFIG_PROC_CHILDREN), got another"
    return ""


def is_shell(command: list[str]) -> bool:
    """Return whether a command is one of these shells."""
    return command[:2] == ["/bin/sh", "-c"] and command[2:3] in [[text] for text in _SHELLS]


def hold_orphans() -> None:
    """Make this process the parent of what its descendants leave; for a child about to exec."""
    if _prctl is not None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def runs_shell(pid: int) -> bool:
    """Return whether a process is one of these shells."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return is_shell([os.fsdecode(word) for word in words[:3]])


def descendants(pids: list[int]) -> list[int]:
    """Return the processes below these, but not these themselves."""
    known, new = set(pids), list(pids)
    found: list[int] = []
    while new:
        below = {child for pid in new for child in children(pid)}
        new = sorted(below - known)
        known.update(new)
        found += new
    return found


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, none of one that has ended."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return found
