"""Checkpoints of a run: whole at every moment, continued on any number of ranks.

A checkpoint is ``checkpoint-STEP.h5``, its index, beside a folder of one part for each rank
(:mod:`dmr.checkpoint.format`). The parts are written first. The index gets its name once all of
it is on the disk; only then earlier checkpoints are removed, but for the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from dmr.checkpoint.format import (
    BrokenCheckpointError,
    Part,
    index_of_parts,
    read_checkpoint,
    write_index,
    write_part,
)
from dmr.data.distributed import Distributed
from dmr.errors import LostRunError, UsageError, print_line, words_of
from dmr.plan import Schedule
from dmr.state.progress import Progress
from dmr.world import World
from rms.wire.files import write_whole

LOST = "a later run of this job has taken over its folder"
KEEP = 2
"""Checkpoints that a folder keeps."""

NAME = re.compile(r"checkpoint-(\d{10})\.h5")
PARTS_NAME = re.compile(r"checkpoint-(\d{10})-[0-9a-f]{8}\.parts")


# --- the folder ---------------------------------------------------------------------------------


OWNER = ".owner"
"""File in a folder of checkpoints that names the run of a job that may write there."""


class _Owner(msgspec.Struct):
    """The content of that file: the job of an RMS, the number of its run, and a world of it."""

    job: str
    run: int
    world: str


class Lock:
    """The right to write checkpoints in a folder, held by one run at a time (rank 0's).

    It is a lock on the folder itself, so it leaves nothing behind and ends with its process. Under
    an RMS a later run of the same job takes it over, from a host that is cut off or paused and
    cannot release it, or where the file system has locks for one host only: a file names the owner,
    and only the owner's checkpoints get their names.

    Args:
        run: the job of an RMS and the number of this run of it, None without one.
    """

    def __init__(self, directory: Path, run: tuple[str, int] | None = None) -> None:
        self._directory, self._file = directory, directory / OWNER
        self._handle: int | None = None
        self._own = None if run is None else _Owner(*run, secrets.token_hex(8))

    def acquire(self) -> bool:
        """Return whether this process holds it now."""
        locked, own = self._lock(), self._own
        if own is None:
            return locked
        other = self._owner()
        if other is not None and other.job == own.job and other.run > own.run:
            locked = False
        elif not locked:
            locked = other is not None and other.job == own.job and other.run < own.run
        if locked:
            try:
                write_whole(self._file, msgspec.json.encode(own))
            except OSError:  # a full disk: the lock of the file system has to do
                if self._handle is None:
                    raise
                self._own = None
        else:
            self._unlock()
        return locked

    def is_lost(self) -> bool:
        """Return whether another run, or another world of this one, has taken it over."""
        return self._own is not None and self._owner() != self._own

    def release(self) -> None:
        """Let another world, or another run, have it."""
        if self._own is not None and not self.is_lost():
            self._file.unlink(missing_ok=True)
        self._unlock()

    def _owner(self) -> _Owner | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Owner)
        except (OSError, msgspec.DecodeError):
            return None

    def _lock(self) -> bool:
        if self._handle is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._directory, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            self._handle = handle
        return True

    def _unlock(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def lock(schedule: Schedule, world: World, run: tuple[str, int] | None = None) -> Lock:
    """Lock a folder for this run (collective).

    Args:
        run: the job of an RMS and the number of this run of it, None without one.

    Raises:
        UsageError: another run holds it, it cannot be made, or not all ranks see it.
    """
    folder = Lock(schedule.folder, run)
    problem = None
    if world.rank == 0:
        try:
            if not folder.acquire():
                problem = "another run writes checkpoints there"
        except OSError as error:
            problem = words_of(error)
    problem = world.internal_comm.bcast(problem)
    if problem is not None:
        raise UsageError(f"expected {schedule.folder} for this run alone, got: {problem}")
    if apart := _hosts_apart(schedule.folder, world):
        folder.release()
        raise UsageError(
            f"expected {schedule.folder} in a file system that all hosts of this run share, "
            f"got another folder or none on {', '.join(apart)}"
        )
    return folder


def _hosts_apart(directory: Path, world: World) -> list[str]:
    """Return the hosts that do not see what rank 0 writes in a folder (collective)."""
    if world.size == 1:
        return []
    comm, mark = world.internal_comm, None
    if world.rank == 0:
        with contextlib.suppress(OSError):  # on a full disk the checkpoints report it
            made = directory / f".seen-{secrets.token_hex(4)}"
            made.touch()
            mark = made
    mark = comm.bcast(mark)
    seen = comm.allgather((socket.gethostname(), mark is None or mark.exists()))
    if world.rank == 0 and mark is not None:
        mark.unlink()
    return sorted({host for host, sees in seen if not sees})


def path_of(directory: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return directory / f"checkpoint-{step:010d}.h5"


def existing(directory: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest step first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))


def refuse_others(schedule: Schedule, world: World) -> None:
    """Refuse a folder with checkpoints where none is to be continued (collective).

    They would be taken for this run's, or pruned in favour of its own.

    Raises:
        UsageError: the folder has checkpoints.
    """
    count = world.internal_comm.bcast(len(existing(schedule.folder)) if world.rank == 0 else 0)
    if count:
        raise UsageError(
            f"expected no checkpoints in {schedule.folder}, or --restart to continue from "
            f"them, got {count}"
        )


def prepare() -> None:
    """Load the library for files now: where it is loaded during a resize, that adds 25 ms twice."""
    import h5py  # noqa: F401


# --- write --------------------------------------------------------------------------------------


def write(
    schedule: Schedule,
    world: World,
    fields: Mapping[str, Distributed],
    progress: Progress,
    options: Mapping[str, Any],
    log: TextIO,
    lock: Lock | None = None,
) -> Path | None:
    """Write a checkpoint (collective); return its path, or None where it could not be written.

    Each rank writes its part, rank 0 the index. A failure (a full disk, for example) leaves the
    earlier checkpoints as they are, and the run goes on.

    Args:
        lock: rank 0's, of the folder.

    Raises:
        LostRunError: another run of the job has taken the folder over.
    """
    path, comm = path_of(schedule.folder, progress.step), world.internal_comm
    edges = {name: block.edges for name, block in fields.items() if block.edges}
    fields = {name: block.carried() for name, block in fields.items()}
    problem, folder = comm.bcast(_new_folder(path) if world.rank == 0 else None)
    if problem is None:
        missing = f"expected {folder.parent} on all nodes, got none on {socket.gethostname()}"
        part = write_part(folder, world.rank, fields) if folder.is_dir() else (missing, {})
        reports = comm.gather(part)
        if reports is not None:
            problem = _problem_of_parts(folder, reports)
            if lock is not None and lock.is_lost():
                problem = LOST
            if problem is None:
                index = index_of_parts(folder, fields, edges, [parts for _, parts in reports])
                problem = write_index(path, index, fields, progress, options)
            if problem is None:
                _prune(path, folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        problem = comm.bcast(problem)
    if problem == LOST:
        raise LostRunError(f"checkpoint at step {progress.step} not written: {problem}")
    if problem is not None and world.rank == 0:
        words = f"warning: checkpoint at step {progress.step} not written: {problem}"
        print_line(words, log)
    return None if problem is not None else path


def _new_folder(path: Path) -> tuple[str | None, Path]:
    """Make the folder of the parts of a checkpoint; return why that failed, or None, and its path.

    A checkpoint that is written again has another folder.
    """
    folder = path.with_name(f"{path.stem}-{secrets.token_hex(4)}.parts")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        return words_of(error), folder
    return None, folder


def _problem_of_parts(
    folder: Path, reports: Sequence[tuple[str | None, Mapping[str, Part]]]
) -> str | None:
    """Return the first reason why the parts of all ranks are not there, or None."""
    for problem, _ in reports:
        if problem is not None:
            return problem
    for rank in range(len(reports)):
        if not (folder / f"{rank}.h5").exists():
            return f"expected {folder.parent} on all nodes, got no file of rank {rank}"
    return None


def _prune(newest: Path, parts: Path) -> None:
    """Remove all but the newest ``KEEP`` checkpoints, and those ahead of the newest step.

    The latter were damaged when the run was restarted before them. A checkpoint goes before its
    parts. Parts without an index go as well.

    Args:
        parts: of the newest one.
    """
    paths = existing(newest.parent)
    kept = [path for path in paths if path <= newest][-KEEP:]
    for path in paths:
        if path not in kept:
            with contextlib.suppress(OSError):
                path.unlink()
    steps = {path.stem for path in kept} - {newest.stem}
    for folder in newest.parent.iterdir():
        of_others = folder.name.rpartition("-")[0] in steps
        if PARTS_NAME.fullmatch(folder.name) and not of_others and folder != parts:
            shutil.rmtree(folder, ignore_errors=True)


# --- read ---------------------------------------------------------------------------------------


def restore(
    schedule: Schedule,
    world: World,
    fields: Mapping[str, Distributed],
    options: Mapping[str, Any],
    log: TextIO,
) -> Progress | None:
    """Fill the fields from the newest whole checkpoint (collective); None where there is none.

    Raises:
        UsageError: the checkpoint is of another grid or other options, or none is whole.
    """

    def say(text: str) -> None:
        if world.rank == 0:
            print_line(text, log)

    paths = existing(schedule.folder) if world.rank == 0 else []
    broken: list[str] = []
    for path in reversed(world.internal_comm.bcast(paths)):
        progress, problem = _read_on_all(path, world, fields, options)
        if progress is not None:
            progress.answered_request = 0  # another life of the job, another count of requests
            say(f"restarted from {path} at step {progress.step}")
            return progress
        broken.append(f"{path.name}: {problem}")
        say(f"warning: {path} is not whole ({problem}); trying the one before it")
    if broken:
        raise UsageError(
            f"expected a whole checkpoint in {schedule.folder}, got {'; '.join(broken)}"
        )
    say(f"no checkpoint in {schedule.folder}: starting from the beginning")
    return None


def _read_on_all(
    path: Path, world: World, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> tuple[Progress | None, str | None]:
    """Fill the fields (collective); return the progress, or None and why it is not whole.

    Raises:
        UsageError: the checkpoint is of another grid or other options.
    """
    progress, broken, refused = None, None, None
    try:
        progress = read_checkpoint(path, fields, options)
    except BrokenCheckpointError as error:
        broken = str(error)
    except UsageError as error:
        refused = str(error)
    problems = world.internal_comm.allgather((refused, broken))
    refused = next((words for words, _ in problems if words is not None), None)
    if refused is not None:
        raise UsageError(refused)
    broken = next((words for _, words in problems if words is not None), None)
    return (progress if broken is None else None), broken
