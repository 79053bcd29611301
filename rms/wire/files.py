"""Files that are written whole or not at all, and the daemon's folder."""

from __future__ import annotations

import csv
import io
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

FORMULA = tuple("=+-@＝＋－＠\t\r")
"""First characters that make a spreadsheet read a cell as a formula."""

STREAMS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


def open_own(mode: int = 0o666) -> Callable[[str, int], int]:
    """Return an opener with this mode (less the umask) that does not follow a symbolic link."""
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)


def write_whole(path: Path, content: str | bytes, *, sync: bool = False, mode: int = 0o666) -> None:
    """Replace a file by new content; readers get the old or the new one, whole.

    Args:
        sync: return only once the content is on the disk.
        mode: of the file, less the umask.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(part, "wb", opener=open_own(mode)) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def check_finite(value: object, where: str = "") -> None:
    """Refuse infinite numbers and NaN in nested lists and dicts."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number in {where}, got {value}")
    if isinstance(value, dict):
        for key, item in value.items():
            check_finite(item, f"{where}.{key}" if where else key)
    if isinstance(value, list | tuple):
        for at, item in enumerate(value):
            check_finite(item, f"{where}[{at}]")


class OutputError(OSError):
    """A file that a user names cannot be written; its text is one sentence."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


def regular_file(path: Path) -> Path | None:
    """Return the file of a path, which may not exist yet; None for a device or pipe.

    Symbolic links are followed.
    """
    if descriptor_of(path) is not None:
        return None  # even of a regular file: the shell may have opened it to append
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path.resolve()
    return path.resolve() if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None


def descriptor_of(path: Path) -> int | None:
    """Return the file descriptor that ``/dev/stdout`` or ``/dev/fd/N`` names."""
    folder, _, name = STREAMS.get(str(path), str(path)).rpartition("/")
    return int(name) if folder in ("/dev/fd", "/proc/self/fd") and name.isdecimal() else None


def _open_existing(name: str, _: int) -> int:
    number = descriptor_of(Path(name))
    return os.open(name, os.O_WRONLY) if number is None else os.dup(number)


def write_output(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write a file of the user's: a regular one is replaced, a device or pipe is written to.

    Raises:
        OutputError: it cannot be written; a regular file that was there before is unchanged.
    """
    try:
        file = regular_file(path)
        if file is not None:
            write_whole(file, content, sync=sync)
            return
        with open(path, "wb", opener=_open_existing) as opened:
            opened.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OutputError(error.errno, error.strerror, str(path)) from None


def remove_output(path: Path) -> None:
    """Delete the regular file of a path, if there is one."""
    try:
        file = regular_file(path)
        if file is not None:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(error.errno, error.strerror, str(path)) from None


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV; a ``'`` is put before text that a spreadsheet would read as a formula."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_without_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _without_formula(cell: object) -> object:
    if not isinstance(cell, str) or cell[:1] not in FORMULA:
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def tail(path: Path, most_bytes: int) -> list[str]:
    """Return the last lines of a file."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - most_bytes))
        return file.read(most_bytes).decode(errors="replace").splitlines()


def sync_folder(folder: Path) -> None:
    """Write a folder's list of files to the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def state_folder(env: Mapping[str, str]) -> Path:
    """Return the folder of the daemon's state: ``RMS_STATE``, else the user's state folder."""
    if "RMS_STATE" in env:
        return Path(env["RMS_STATE"]).absolute()
    base = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "rms"
