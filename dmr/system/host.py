"""Memory of this host and of this process, as Linux reports it."""

from __future__ import annotations

import re
from pathlib import Path


def held_on_host() -> int | None:
    """Return the bytes of this process apart from mapped files, None if not known."""
    return _kib(Path("/proc/self/status"), "RssAnon")


def free_on_host() -> int | None:
    """Return the bytes that this node has free without swapping, None if not known."""
    return _kib(Path("/proc/meminfo"), "MemAvailable")


def _kib(path: Path, name: str) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    match = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
