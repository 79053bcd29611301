"""What is left of a daemon whose journal was cut, zeroed or deleted, and what is missing.

A journal that SQLite cannot read is set aside, and what can be read of it is copied to a new one
(:func:`open_journal`). Numbers of jobs are never given again (:func:`restore_notes`). Once the
daemon is back, it is said what is missing, and what runs of jobs that nobody knows is ended
(:func:`settle`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from rms.core.model.events import Ended
from rms.core.model.jobs import JobState
from rms.daemon.daemon import Daemon
from rms.daemon.journal import Journal
from rms.daemon.journal_file import RECORDS, Count, DamagedError, prepare, said
from rms.daemon.log import warning
from rms.daemon.recovery import LOST, is_copy

NO_NOTE = "what it was submitted with is missing from the journal"
MOST_NAMED = 20
"""Of more ids than this the first and the number are said."""

_ID = re.compile(r"([0-9]+)(?:_[0-9]+)?")


def open_journal(path: Path, say: Callable[[str], None]) -> Journal:
    """Open a journal; one that is broken is set aside, and what can be read of it goes on.

    Raises:
        JournalError: as :meth:`rms.daemon.journal.Journal.open`; a broken file beside which no
            count is kept may be no journal at all, and is left alone.
    """
    whole = path.with_name(f"{path.name}.salvaged")
    if whole.exists():  # a daemon was killed while it did this
        _replace(path, whole)
    try:
        return Journal.open(path)
    except DamagedError as error:
        if not any(each.exists() for each in Count(path).paths):
            raise
        say(warning(str(error)))
    part = path.with_name(f"{path.name}.salvaging")
    part.unlink(missing_ok=True)
    found = _copy(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(whole)
    aside = _replace(path, whole)
    words = f"{path}: {found} records could be read, and go on; the file is kept as {aside.name}"
    say(warning(words))
    return Journal.open(path)


def _replace(path: Path, whole: Path) -> Path:
    """Put a whole journal in the place of a broken one; return where that is now."""
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.{n}")).exists())
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        os.link(path, aside)
    with contextlib.suppress(FileNotFoundError):
        log.rename(aside.with_name(f"{aside.name}-wal"))
    whole.replace(path)
    return aside


def _copy(path: Path, part: Path) -> int:
    """Copy what can be read of a journal to a new one; return how many records that were."""
    found = 0
    with (
        said(path),
        contextlib.closing(sqlite3.connect(path.absolute(), timeout=0)) as old,
        contextlib.closing(sqlite3.connect(part.absolute())) as new,
    ):
        prepare(new, part)
        new.execute("PRAGMA journal_mode = DELETE")
        new.execute("BEGIN")
        for table in (*RECORDS, "over", "energy", "tasks"):
            for row in _rows(old, table):
                places = ", ".join("?" * len(row))
                found += new.execute(
                    f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({places})",
                    tuple(row.values()),
                ).rowcount
        new.execute("COMMIT")
    return found


def _rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table up to the first page that cannot be read, and from the last on."""
    try:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    except sqlite3.Error:
        return
    key = "rowid" if table != "energy" else "node, begin_s, owner, device, source"
    for order in (key, ", ".join(f"{part} DESC" for part in key.split(", "))):
        try:
            for row in db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"):
                yield dict(zip(columns, row, strict=True))
        except sqlite3.Error:
            continue
        return


# --- what may not be given again -----------------------------------------------------------------


def restore_notes(journal: Journal, jobs: Path) -> None:
    """Bring back whose processes are the journal's own, and let no number be given twice.

    Args:
        jobs: folder with one of each job.
    """
    kept = {} if journal.counted is None else journal.counted.notes
    notes = journal.notes()
    if "mark" in kept and "mark" not in notes:
        journal.note("mark", kept["mark"])
    known = notes.get("next", {"id": 1})["id"]
    used = max((int(match[1]) for match in map(_ID.fullmatch, _names(jobs)) if match), default=0)
    following = max(known, kept.get("next", {"id": 1})["id"], used + 1)
    if following > known:
        journal.note("next", {"id": following})


def own_mark(journal: Journal, state: Path) -> str:
    """Return the mark of this folder's processes, which a restart or a rename does not change.

    It belongs to the folder's file system and inode, or to the inodes of the folder and of its
    journal, as XFS may have another id after a reboot. A copy of the folder gets a new mark and
    port, and does not take over the processes of the original. A note without either is of a
    version that recorded neither, and taken for the folder's own.
    """
    inode = state.stat().st_ino
    place = {
        "folder": f"{os.statvfs(state).f_fsid:x}-{inode}",
        "inodes": [inode, journal.path.stat().st_ino],
    }
    note = journal.notes("mark").get("mark", {})
    known = place.keys() & note.keys()
    if not note or (known and all(note[key] != place[key] for key in known)):
        note = {"mark": secrets.token_hex(8), **place, "copied": bool(note)}
        journal.keep({"mark": note, "port": {"port": 0}})
        journal.flush()
    elif note != note | place:
        note |= place
        journal.note("mark", note)
    return str(note["mark"])


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208


# --- what is missing -----------------------------------------------------------------------------


def settle(daemon: Daemon) -> None:
    """Say what is missing; end what runs of jobs that nobody knows, and jobs that cannot start."""
    state, journal = daemon.context.state, daemon.journal
    for sentence in journal.damage:
        daemon.say(warning(f"{journal.path}: {sentence}"))
    for job_id, job in state.waiting.items():
        if job.state is JobState.PENDING and daemon.jobs[job_id].note is LOST:
            daemon.scheduler.reasons[job_id] = NO_NOTE
            daemon.handle(Ended(daemon.time(), job_id, "FAILED"))
            daemon.say(f"job {job_id} FAILED: {NO_NOTE}")
    if journal.damage:
        known = {*state.waiting, *state.running, *state.ended, *journal.archived_ids()}
        names = {name for name in _names(daemon.launcher.state / "jobs") if _ID.fullmatch(name)}
        arrays = {job_id.partition("_")[0] for job_id in known}
        lost = sorted(names - known - arrays, key=lambda name: [int(n) for n in name.split("_")])
        if lost:
            daemon.say(warning(f"not known any more, or refused at the time: {_listed(lost)}"))
    if is_copy(journal):
        daemon.say(
            warning(
                f"{journal.path.parent} is a copy of another state folder: the processes of its "
                "jobs are not touched, and waiting jobs run here as well"
            )
        )
        journal.note("mark", journal.notes("mark")["mark"] | {"copied": False})
    for name in daemon.launcher.jobs():
        if _ID.fullmatch(name) and name not in state.running:
            daemon.launcher.kill(name)
            daemon.say(f"job {name}: ended what was left of it, as it is not known to run")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"jobs {', '.join(names[:MOST_NAMED])}{more}"
