"""The marks by which processes of jobs are recognized: a variable of their environment.

Compute nodes import this module, so it needs only :mod:`rms.wire.messages`.
"""

from __future__ import annotations

import os

from rms.wire.messages import MARK_VARIABLE, WORLD_VARIABLE

METER, AGENT = "meter", "agent"
"""The marks of agents, in place of a job's id: of meters, and of hosts."""

KEEPERS = ".keepers"
"""End of the name of the owner of a job's keepers (:mod:`dmr.memory.keeper`)."""

NO_ENVIRONMENT = ("", "")
"""A process without an environment: one of the kernel's, or one that is about to get one."""


def environment(pid: int) -> list[bytes] | None:
    """Return the environment of a process at its start, None if it cannot be read."""
    try:
        file, parts = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC), []
        try:
            while part := os.read(file, 1 << 16):
                parts.append(part)
        finally:
            os.close(file)
    except OSError:
        return None
    return b"".join(parts).split(b"\0")


def owner_of(pid: int, instance_id: str) -> tuple[str, str] | None:
    """Return the job and launch of a daemon's that a process belongs to, None for a foreign one."""
    variables = environment(pid)
    if variables is None:
        return None
    if variables == [b""]:
        return NO_ENVIRONMENT
    before = f"{MARK_VARIABLE}={instance_id}:".encode()
    own = [v[len(before) :].decode(errors="replace") for v in variables if v.startswith(before)]
    if not own:
        return None
    before = f"{WORLD_VARIABLE}=".encode()
    launch = [v[len(before) :].decode(errors="replace") for v in variables if v.startswith(before)]
    return own[0], (launch or [""])[0]
