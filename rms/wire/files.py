"""Files that a reader sees whole or not at all, and the folder that the daemon keeps its own in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, sync: bool = False, mode: int = 0o666) -> None:
    """Replace a file by new content; who reads it meanwhile gets the old or the new one, whole.

    Args:
        content: text is written as UTF-8.
        sync: return only once the content is on the disk.
        mode: of the file, less the umask.

    Raises:
        OSError: it cannot be written; what was there before is unchanged.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Return only once it is on the disk which files a folder has.

    Raises:
        OSError: it cannot be.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def state_folder(env: Mapping[str, str]) -> Path:
    """Return where the daemon keeps its state: ``RMS_STATE``, else the user's state folder."""
    if "RMS_STATE" in env:
        return Path(env["RMS_STATE"]).absolute()
    base = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "rms"
