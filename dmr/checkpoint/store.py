"""Checkpoints of a run: whole at every moment, continued on any number of ranks.

A file (:mod:`dmr.checkpoint.format`) is written beside its place, flushed to disk, and renamed; the
one before stays until the new one is whole. Of several ranks each writes a part first
(:mod:`dmr.checkpoint.format`), and that file says what they hold.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from dmr.checkpoint.format import (
    BrokenCheckpointError,
    Parts,
    Writer,
    existing,
    joined,
    parts_at,
    parts_of,
    path_of,
    problem_of_share,
    read,
    rows_of,
    verify,
    verify_share,
    write_part,
)
from dmr.data.distributed import Distributed
from dmr.errors import UsageError, print_line, words_of
from dmr.plan import Schedule
from dmr.state.progress import Progress
from dmr.world import World


class Lock:
    """The right to write checkpoints in a folder, held by one run at a time (rank 0's).

    It is a lock on the folder itself, so it leaves nothing behind and ends with its process.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._handle = -1

    def acquire(self) -> bool:
        """Return whether it is this process's now."""
        if self._handle < 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._directory, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            self._handle = handle
        return True

    def release(self) -> None:
        """Let another world, or another run, have it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def prepare() -> None:
    """Load the library for files now: where it is loaded during a resize, that adds 25 ms twice."""
    import h5py  # noqa: F401


def write(
    schedule: Schedule,
    world: World,
    fields: Mapping[str, Distributed],
    progress: Progress,
    options: Mapping[str, Any],
    log: TextIO,
) -> Path | None:
    """Write a checkpoint (collective); return its path, or None where it could not be written.

    Each rank writes what it has to a file of its own; where it is one rank alone, there is but one.
    A failure (a full disk, say) leaves the earlier checkpoints as they are and the run going.
    """
    path, comm = path_of(schedule.directory, progress.step), world.internal_comm
    edges = {name: block.edges for name, block in fields.items() if block.edges}
    fields = {name: block.carried() for name, block in fields.items()}
    problem = None

    def begun() -> Writer:
        return Writer(path, progress, options, edges)

    if comm.size > 1:
        problem = _write_parts(path, world, fields, begun)
    else:
        writer = begun()
        for name, block in fields.items():
            shape, pieces = block.gathered(comm)
            writer.add(name, shape, block.dtype, pieces)
        problem = writer.finish()
    if problem is not None and world.rank == 0:
        words = f"warning: checkpoint at step {progress.step} not written: {problem}"
        print_line(words, log)
    return None if problem is not None else path


def _write_parts(
    path: Path,
    world: World,
    fields: Mapping[str, Distributed],
    begun: Callable[[], Writer],
) -> str | None:
    """Write a checkpoint of a part for each rank (collective); return what went wrong."""
    comm, problem = world.internal_comm, None
    folder = parts_of(path, secrets.token_hex(4))
    if world.rank == 0:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            problem = words_of(error)
    problem, folder = comm.bcast((problem, folder))
    if problem is not None:
        return str(problem)
    told = comm.gather(write_part(folder, world.rank, fields))
    if told is not None:
        problem = next((wrong for wrong, _ in told if wrong is not None), None)
        missing = [rank for rank in range(comm.size) if not (folder / f"{rank}.h5").exists()]
        if problem is None and missing:
            problem = f"expected {path.parent} on all nodes, got no file of rank {missing[0]}"
        if problem is None:
            parts = joined(folder, fields, [found for _, found in told])
            writer = begun()
            wholes = {
                name: (block.spec.stored_shape(rows_of(parts.fields[name])), block.dtype)
                for name, block in fields.items()
            }
            writer.link(parts, wholes)
            problem = writer.finish()
        if problem is not None:
            shutil.rmtree(folder, ignore_errors=True)
    found: str | None = comm.bcast(problem)
    return found


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

    found = existing(schedule.directory) if world.rank == 0 else []
    broken: list[str] = []
    for path in reversed(world.internal_comm.bcast(found)):
        problem, refused, parts = world.internal_comm.bcast(
            _wrong_with(path, fields, options) if world.rank == 0 else None
        )
        if refused is not None:
            raise UsageError(refused)
        if problem is None:  # every rank reads some of it, and checks what it reads
            progress, problem = _read(path, parts, fields, world)
        if problem is None and progress is not None:
            progress.answered_request = 0  # another life of the job, another count of requests
            say(f"restarted from {path} at step {progress.step}")
            return progress
        broken.append(f"{path.name}: {problem}")
        say(f"warning: {path} is not whole ({problem}); trying the one before it")
    if broken:
        raise UsageError(
            f"expected a whole checkpoint in {schedule.directory}, got {'; '.join(broken)}"
        )
    say(f"no checkpoint in {schedule.directory}: starting from the beginning")
    return None


def lock(schedule: Schedule, world: World) -> Lock:
    """Take a folder for this run (collective).

    Raises:
        UsageError: another run holds it, or it cannot be made.
    """
    found = Lock(schedule.directory)
    problem = None
    if world.rank == 0:
        try:
            if not found.acquire():
                problem = "another run writes checkpoints there"
        except OSError as error:
            problem = words_of(error)
    problem = world.internal_comm.bcast(problem)
    if problem is not None:
        raise UsageError(f"expected {schedule.directory} for this run alone, got: {problem}")
    return found


def refuse_others(schedule: Schedule, world: World) -> None:
    """Refuse a folder with checkpoints where none is to be continued (collective).

    They would be taken for this run's, or pruned in favour of its own.

    Raises:
        UsageError: the folder has checkpoints.
    """
    found = world.internal_comm.bcast(len(existing(schedule.directory)) if world.rank == 0 else 0)
    if found:
        raise UsageError(
            f"expected no checkpoints in {schedule.directory}, or --restart to continue from "
            f"them, got {found}"
        )


def load(
    path: Path, world: World, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> Progress:
    """Fill the fields from one file, which rank 0 checks first, and all ranks its parts.

    Raises:
        BrokenCheckpointError: it is not whole; perhaps on some ranks only.
        UsageError: it is of another grid, or of other options.
    """
    parts = verify(path, fields, options) if world.rank == 0 else parts_at(path)
    if parts is not None:
        verify_share(path, parts, fields, world.rank, world.size)
    return read(path, fields)


def _read(
    path: Path, parts: Parts | None, fields: Mapping[str, Distributed], world: World
) -> tuple[Progress | None, str | None]:
    """Fill the fields (collective); return the progress, or None and what a rank found wrong."""
    progress, wrong = None, None
    if parts is not None:
        wrong = problem_of_share(path, parts, fields, world.rank, world.size)
    if wrong is None:
        try:
            progress = read(path, fields)
        except (BrokenCheckpointError, OSError, KeyError, RuntimeError) as error:
            wrong = words_of(error)
    found = world.internal_comm.allgather(wrong)
    return progress, next((one for one in found if one is not None), None)


def _wrong_with(
    path: Path, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> tuple[str | None, str | None, Parts | None]:
    """Return why a checkpoint is broken, why it is not one of this run, and its parts."""
    try:
        return None, None, verify(path, fields, options)
    except BrokenCheckpointError as error:
        return str(error), None, None
    except UsageError as error:
        return None, str(error), None
