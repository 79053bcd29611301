"""What jobs may be started with: output that takes what is written, strings that exec takes."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_output(place: Path | int, name: Path | None = None) -> None:
    """Refuse an output that is neither a regular file, nor to be made, nor ``/dev/null``.

    Args:
        place: a path, or an open file, of this ``name``.

    Raises:
        ValueError: it is something else, or no path at all.
    """
    try:
        found = os.fstat(place) if isinstance(place, int) else place.stat()
    except OSError:
        return  # there is none yet; whether one can be made shows when it is
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev:
        return
    got = next((words for is_one, words in KINDS if is_one(found.st_mode)), "something else")
    where = place if name is None else name
    raise ValueError(f"expected a regular file as output, got {where}, which is {got}")


def check_strings(path: str, env: Mapping[str, str]) -> None:
    """Refuse what no process can be started with.

    Raises:
        ValueError: a path or a variable holds a NUL or cannot be encoded, or a variable's name is
            empty or has a ``=``.
    """
    if not _encodes(path):
        raise ValueError(f"expected a path without NUL, got {path!r}")
    for name, value in env.items():
        if not name or "=" in name or not _encodes(name):
            raise ValueError(f"expected names of variables without = and NUL, got {name!r}")
        if not _encodes(value):
            raise ValueError(f"expected variables without NUL, got {name}={value!r}")


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
