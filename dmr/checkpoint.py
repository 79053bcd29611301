"""HDF5 checkpoints keyed by global index, whole at every moment.

Layout: attributes ``format``, ``progress`` and ``options`` (JSON); ``/fields/NAME`` with the
global interior in axis order and its hash as an attribute. A file is written beside its place,
flushed to disk, and renamed; the one before stays until the new one is whole.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.data.field import Field
from dmr.data.gather import SLAB_BYTES
from dmr.errors import UsageError, words_of
from dmr.plan import Schedule
from dmr.progress import Progress, decode, encode
from dmr.sink import Sink
from dmr.values import ValuesError
from dmr.world import World

if TYPE_CHECKING:
    import h5py

FORMAT = 1
KEEP = 2
NAME = re.compile(r"checkpoint-(\d{10})\.h5")


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
    path = path_of(schedule.directory, progress.step)
    writer = Writer(path, progress, options) if world.rank == 0 else None
    for name, block in fields.items():
        shape, pieces = block.gathered(world.internal_comm)
        if writer is None:
            collections.deque(pieces, maxlen=0)  # which sends them
        else:
            writer.add(name, shape, block.dtype, pieces)
    problem = None
    if writer is not None:
        problem = writer.finish()
        if problem is not None:
            words = f"warning: checkpoint at step {progress.step} not written: {problem}"
            print(words, file=log, flush=True)
    return None if world.internal_comm.bcast(problem) is not None else path


class Writer:
    """Rank 0's new checkpoint, under its name once it is whole.

    The first failure is kept; from then on nothing is written, but fields are still received.
    """

    def __init__(self, path: Path, progress: Progress, options: Mapping[str, Any]) -> None:
        import h5py  # not before it is needed: every world that boots would pay for it

        self._path, self._part = path, path.with_suffix(".part")
        self._problem: str | None = None
        self._sink: Sink | None = None
        self._file: h5py.File | None = None
        with self._noting():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = Sink(self._part)
            self._file = h5py.File(self._sink, "w", libver="latest")
            self._file.attrs["format"] = FORMAT
            texts = encode(progress).decode(), json.dumps(dict(options), sort_keys=True)
            self._file.attrs["progress"], self._file.attrs["options"] = texts
            self._file.attrs["xxh3_128"] = _digest_of(texts)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        pieces: Iterable[npt.NDArray[Any] | None],
    ) -> None:
        """Write one field or list from its pieces along the first axis, in order."""
        digest = xxhash.xxh3_128()
        dataset: h5py.Dataset | None = None
        at = 0
        for values in pieces:
            if self._file is None or values is None or self.problem is not None:
                continue
            with self._noting():
                if dataset is None:
                    dataset = self._file.create_dataset(f"fields/{name}", shape, dtype)
                if len(values):
                    dataset[at : at + len(values)] = values
                    digest.update(values.reshape(-1).view(np.uint8).data)
                at += len(values)
        if dataset is not None and self.problem is None:
            dataset.attrs["xxh3_128"] = digest.hexdigest()

    def finish(self) -> str | None:
        """Make the file durable under its name, or remove it; return what went wrong."""
        with self._noting():
            if self._file is not None:
                self._file.close()
            if self._sink is not None:
                self._sink.close()
            if self.problem is None:
                _sync(self._part)
                self._part.replace(self._path)
                _sync(self._path.parent)
        if self.problem is None:
            _prune(self._path)
        else:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)
        return self.problem

    @property
    def problem(self) -> str | None:
        """The first failure, in words, or None."""
        if self._problem is None and self._sink is not None and self._sink.problem is not None:
            self._problem = words_of(self._sink.problem)
        return self._problem

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValuesError) as error:
            self._problem = self.problem or words_of(error)


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

    def say(text: str) -> None:
        if world.rank == 0:
            print(text, file=log, flush=True)

    found = sorted(_existing(schedule.directory)) if world.rank == 0 else []
    broken: list[str] = []
    for path in reversed(world.internal_comm.bcast(found)):
        problem, refused = world.internal_comm.bcast(
            _wrong_with(path, fields, options) if world.rank == 0 else None
        )
        if refused is not None:
            raise UsageError(refused)
        if problem is None:
            progress = _read(path, fields)
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
    found = world.internal_comm.bcast(len(_existing(schedule.directory)) if world.rank == 0 else 0)
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


def _prune(newest: Path) -> None:
    """Remove all but the newest ``KEEP`` checkpoints, and what lies ahead of the newest step.

    The latter was found damaged when the run was restarted before it.
    """
    found = sorted(_existing(newest.parent))
    kept = [path for path in found if path <= newest][-KEEP:]
    for other in found:
        if other not in kept:
            with contextlib.suppress(OSError):
                other.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _wrong_with(
    path: Path, fields: Mapping[str, Field], options: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """Return why a checkpoint is broken, and why it is not one of this run."""
    try:
        _verify(path, fields, options)
    except BrokenCheckpointError as error:
        return str(error), None
    except UsageError as error:
        return None, str(error)
    return None, None


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
            decode(texts[0], trusted=_is_own(path))
            stated = json.loads(texts[1])
            for name, block in fields.items():
                _verify_field(path, file["fields"][name], name, block)
    except ValuesError as error:
        raise UsageError(
            f"{path}: {error}"
            + ("" if _is_own(path) else "; expected a file of this user's that others cannot write")
        ) from None
    except (OSError, KeyError, RuntimeError, ValueError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(str(error)) from None
    for key, value in json.loads(json.dumps(dict(options))).items():
        if stated.get(key) != value:
            raise UsageError(
                f"{path}: expected {key} {value}, got a checkpoint of {key} {stated.get(key)}"
            )


def _is_own(path: Path) -> bool:
    """Return whether nobody but this user can have written a file: only then its pickles are read.

    A pickle runs code, so one of somebody else's would run theirs.
    """
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH


def _verify_field(path: Path, dataset: h5py.Dataset, name: str, block: Field) -> None:
    shape, dtype = block.spec.stored_shape(dataset.shape[0]), block.dtype
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
            block.restore(file["fields"][name])
        return decode(file.attrs["progress"], trusted=_is_own(path))
