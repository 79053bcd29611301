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


MOST_BYTES = 4095
MOST_NAME_BYTES = 255
MOST_NAMES = 256
"""Limits of Linux for a path and each name in it, and our limit of names in a path."""

MOST_LINKS = 40
"""Symbolic links that Linux follows in a path."""


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
        ValueError: the path is invalid (:func:`check_path`), a variable holds a NUL or cannot be
            encoded, or its name is empty or has a ``=``.
    """
    check_path(path)
    for name, value in env.items():
        if not name or "=" in name or not _encodes(name):
            raise ValueError(f"expected names of variables without = and NUL, got {name!r}")
        if not _encodes(value):
            raise ValueError(f"expected variables without NUL, got {name}={value!r}")


def check_path(path: str) -> None:
    """Refuse a path that no file can have.

    Raises:
        ValueError: it holds a NUL, cannot be encoded, or it or a name in it is too long.
    """
    if not _encodes(path):
        raise ValueError(f"expected a path without NUL, got {path[:60]!r}")
    whole = os.fsencode(path)
    names = whole.split(b"/")
    if len(whole) > MOST_BYTES or len(names) > MOST_NAMES or max(map(len, names)) > MOST_NAME_BYTES:
        form = f"a path of {MOST_BYTES} bytes, {MOST_NAMES} names, {MOST_NAME_BYTES} bytes in each"
        raise ValueError(f"expected at most {form}, got {path[:60]!r}... of {len(whole)} bytes")


def check_own_file(path: Path, state: Path) -> None:
    """Refuse an output that is one of the daemon's own files.

    Raises:
        ValueError: it is in the state folder, or one of the open files of the process.
    """
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(state)):
        raise ValueError(f"expected an output outside the daemon's state folder, got {path}")
    for _ in range(MOST_LINKS):
        if os.path.realpath(path.parent).startswith("/proc/"):
            raise ValueError(f"expected an output outside /proc, got {path}")
        if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises without permission
            return
        path = path.parent / path.readlink()


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
