"""HDF5 checkpoints keyed by global index, whole at every moment.

Layout: attributes ``format``, ``progress`` and ``options`` (JSON); ``/fields/NAME`` with the
global interior in axis order and its hash as an attribute. A file is written beside its place,
flushed to disk, and renamed; the one before stays until the new one is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import numpy as np
import xxhash

from dmr.data import particles
from dmr.data.field import Field
from dmr.data.gather import SLAB_BYTES, slabs
from dmr.data.particles import Items
from dmr.errors import UsageError, words_of
from dmr.progress import Progress, decode, encode
from dmr.sink import Sink
from dmr.world import World

if TYPE_CHECKING:
    import h5py

FORMAT = 1
KEEP = 2
NAME = re.compile(r"checkpoint-(\d{10})\.h5")


@dataclass(frozen=True)
class Schedule:
    """Where checkpoints go, and after how many steps each (0: at SIGTERM only)."""

    directory: Path
    every: int = 0

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is to be written when ``step`` steps are done."""
        return self.every > 0 and step > 0 and step % self.every == 0


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


class BrokenCheckpointError(Exception):
    """A file that cannot be continued from, and why."""


def write(
    schedule: Schedule,
    world: World,
    fields: Mapping[str, Field],
    progress: Progress,
    options: Mapping[str, Any],
    log: TextIO,
) -> Path | None:
    """Write a checkpoint (collective); return its path, or None where it could not be written.

    A failure (a full disk, say) leaves the earlier checkpoints as they are and the run going.
    """
    import h5py  # not before it is needed: every world that boots would pay for it

    path = path_of(schedule.directory, progress.step)
    part = path.with_suffix(".part")
    problem: str | None = None
    file: h5py.File | None = None
    sink: Sink | None = None
    if world.rank == 0:
        try:
            schedule.directory.mkdir(parents=True, exist_ok=True)
            sink = Sink(part)
            file = h5py.File(sink, "w", libver="latest")
            file.attrs["format"] = FORMAT
            texts = encode(progress).decode(), json.dumps(dict(options), sort_keys=True)
            file.attrs["progress"], file.attrs["options"] = texts
            file.attrs["xxh3_128"] = _digest_of(texts)
        except OSError as error:
            problem = words_of(error)
    for name, block in fields.items():
        if problem is None and sink is not None and sink.problem is not None:
            problem = words_of(sink.problem)
        problem = _write_field(world, file, name, block, problem)
    if world.rank == 0:
        problem = _settle(schedule, file, sink, (part, path), problem)
        if problem is not None:
            print(
                f"warning: checkpoint at step {progress.step} not written: {problem}",
                file=log,
                flush=True,
            )
    return None if world.comm.bcast(problem) is not None else path


def restore(
    schedule: Schedule,
    world: World,
    fields: Mapping[str, Field],
    options: Mapping[str, Any],
    log: TextIO,
) -> Progress | None:
    """Fill the fields from the newest whole checkpoint (collective); None where there is none.

    Raises:
        UsageError: the checkpoint is of another grid or other options, or none is whole.
    """
    found = sorted(_existing(schedule.directory)) if world.rank == 0 else []
    broken: list[str] = []
    for path in reversed(world.comm.bcast(found)):
        problem: str | None = None
        refused: str | None = None
        if world.rank == 0:
            try:
                _verify(path, fields, options)
            except BrokenCheckpointError as error:
                problem = str(error)
            except UsageError as error:
                refused = str(error)
        problem, refused = world.comm.bcast((problem, refused))
        if refused is not None:
            raise UsageError(refused)
        if problem is None:
            progress = _read(path, fields)
            progress.wish = 0  # another life of the job, another count of wishes
            if world.rank == 0:
                print(f"restarted from {path} at step {progress.step}", file=log, flush=True)
            return progress
        broken.append(f"{path.name}: {problem}")
        if world.rank == 0:
            print(
                f"warning: {path} is not whole ({problem}); trying the one before it",
                file=log,
                flush=True,
            )
    if broken:
        raise UsageError(
            f"expected a whole checkpoint in {schedule.directory}, got {'; '.join(broken)}"
        )
    if world.rank == 0:
        print(
            f"no checkpoint in {schedule.directory}: starting from the beginning",
            file=log,
            flush=True,
        )
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
    problem = world.comm.bcast(problem)
    if problem is not None:
        raise UsageError(f"expected {schedule.directory} for this run alone, got: {problem}")
    return found


def refuse_others(schedule: Schedule, world: World) -> None:
    """Refuse a folder with checkpoints where none is to be continued (collective).

    They would be taken for this run's, or pruned in favour of its own.

    Raises:
        UsageError: the folder has checkpoints.
    """
    found = world.comm.bcast(len(_existing(schedule.directory)) if world.rank == 0 else 0)
    if found:
        raise UsageError(
            f"expected no checkpoints in {schedule.directory}, or --restart to continue from "
            f"them, got {found}"
        )


def path_of(directory: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return directory / f"checkpoint-{step:010d}.h5"


def load(
    path: Path, world: World, fields: Mapping[str, Field], options: Mapping[str, Any]
) -> Progress:
    """Fill the fields from one file, which rank 0 checks first.

    Raises:
        BrokenCheckpointError: it is not whole.
        UsageError: it is of another grid, or of other options.
    """
    if world.rank == 0:
        _verify(path, fields, options)
    return _read(path, fields)


def _digest_of(texts: tuple[str, str]) -> str:
    return str(xxhash.xxh3_128_hexdigest("\0".join(texts).encode()))


def _existing(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if NAME.fullmatch(path.name)]


def _write_field(
    world: World, file: h5py.File | None, name: str, block: Field, problem: str | None
) -> str | None:
    """Stream one field through rank 0; go on receiving even when writing has failed."""
    if isinstance(block, Items):
        return particles.write(world.comm, file, name, block, problem)
    digest = xxhash.xxh3_128()
    dataset = None
    for slab, values in slabs(world.comm, block):
        if file is None or values is None or problem is not None:
            continue
        try:
            if dataset is None:
                dataset = file.create_dataset(f"fields/{name}", block.spec.shape, values.dtype)
            dataset[slab.slices((0,) * len(slab.start))] = values
            digest.update(values.data)
        except OSError as error:
            problem = words_of(error)
    if dataset is not None and problem is None:
        dataset.attrs["xxh3_128"] = digest.hexdigest()
    return problem


def _settle(
    schedule: Schedule,
    file: h5py.File | None,
    sink: Sink | None,
    paths: tuple[Path, Path],
    problem: str | None,
) -> str | None:
    """Make the new file durable under its name, or remove it."""
    part, path = paths
    try:
        if file is not None:
            file.close()
        if sink is not None:
            sink.close()
            if sink.problem is not None:
                problem = problem or words_of(sink.problem)
        if problem is None:
            _sync(part)
            part.replace(path)
            _sync(schedule.directory)
    except (OSError, RuntimeError) as error:
        problem = problem or words_of(error)
    if problem is not None:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        return problem
    kept = [old for old in sorted(_existing(schedule.directory)) if old <= path][-KEEP:]
    for other in _existing(schedule.directory):
        # What lies ahead of this step was found damaged when the run was restarted before it.
        if other not in kept:
            with contextlib.suppress(OSError):
                other.unlink()
    return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verify(path: Path, fields: Mapping[str, Field], options: Mapping[str, Any]) -> None:
    """Read a whole checkpoint once, before any rank trusts it."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            version = int(file.attrs["format"])
            if version != FORMAT:
                raise UsageError(f"{path}: expected checkpoint format {FORMAT}, got {version}")
            texts = str(file.attrs["progress"]), str(file.attrs["options"])
            if _digest_of(texts) != file.attrs["xxh3_128"]:
                raise BrokenCheckpointError("progress or options changed since")
            decode(texts[0])
            stated = json.loads(texts[1])
            for name, block in fields.items():
                _verify_field(path, file["fields"][name], name, block)
    except (OSError, KeyError, RuntimeError, ValueError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(str(error)) from None
    for key, value in json.loads(json.dumps(dict(options))).items():
        if stated.get(key) != value:
            raise UsageError(
                f"{path}: expected {key} {value}, got a checkpoint of {key} {stated.get(key)}"
            )


def _verify_field(path: Path, dataset: h5py.Dataset, name: str, block: Field) -> None:
    shape, dtype = block.spec.shape, np.dtype(block.spec.dtype)
    if isinstance(block, Items):
        shape = (dataset.shape[0], *block.spec.item)
    if dataset.shape != shape or dataset.dtype != dtype:
        raise UsageError(
            f"{path}: expected field {name} of shape {shape} and type {dtype}, "
            f"got {dataset.shape} and {dataset.dtype}"
        )
    digest = xxhash.xxh3_128()
    step = max(1, SLAB_BYTES // (int(np.prod(shape[1:])) * dtype.itemsize))
    for start in range(0, shape[0], step):
        digest.update(np.ascontiguousarray(dataset[start : start + step]).data)
    if digest.hexdigest() != dataset.attrs["xxh3_128"]:
        raise BrokenCheckpointError(f"field {name} does not have the hash it was written with")


def _read(path: Path, fields: Mapping[str, Field]) -> Progress:
    """Read this rank's interiors; every rank reads the same file on its own."""
    import h5py

    with h5py.File(path, "r", locking=False) as file:
        for name, block in fields.items():
            dataset = file["fields"][name]
            if isinstance(block, Items):
                particles.read(dataset, block)
                continue
            values = dataset[block.box.slices((0,) * len(block.spec.shape))]
            block.unpack(block.box, values)
        return decode(file.attrs["progress"])
