"""One checkpoint in HDF5: written whole or not at all, verified before it is read.

Layout: attributes ``format``, ``progress``, ``options`` and ``edges`` (JSON); ``/fields/NAME`` with
the global interior in axis order, with ``edges`` (cells of the halo at the edge of the domain), and
its hash as an attribute; ``/hashes/NAME`` with those of its pieces (:mod:`dmr.checkpoint_pieces`).
Where more ranks than one have written it ``/fields/NAME`` is a virtual dataset of their files, for
other readers, and ``/parts`` says what those hold (:mod:`dmr.checkpoint_parts`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.checkpoint_parts import (
    PartedArray,
    Parts,
    needs_whole_rows,
    problem_of_share,
    read_once,
    row_bytes,
    stored_type,
    sync,
)
from dmr.checkpoint_pieces import BrokenPieceError, CheckedDataset, PieceHashes
from dmr.data.decomposition import Halo, common_edges
from dmr.data.field import Field
from dmr.data.gather import SLAB_BYTES
from dmr.errors import UsageError, words_of
from dmr.progress import Progress, decode, encode
from dmr.sink import Sink
from dmr.values import ValuesError

if TYPE_CHECKING:
    import h5py

FORMAT = 1
"""**Raise it with every change** of the layout, of :class:`~dmr.progress.Progress`, of what fields
store, or of the trees of :mod:`dmr.values`: a checkpoint of another format is refused."""

KEEP = 2
"""Checkpoints that a folder keeps."""

TEXTS = ("progress", "options", "edges")

NAME = re.compile(r"checkpoint-(\d{10})\.h5")
PARTS_NAME = re.compile(r"checkpoint-(\d{10})-[0-9a-f]{8}\.parts")


class BrokenCheckpointError(Exception):
    """A file that cannot be continued from, and why."""


def path_of(directory: Path, step: int) -> Path:
    """Return where the checkpoint of a step is."""
    return directory / f"checkpoint-{step:010d}.h5"


def parts_of(path: Path, token: str) -> Path:
    """Return the folder of the parts of a checkpoint; each time it is written has its own."""
    return path.with_name(f"{path.stem}-{token}.parts")


def _digest_of(texts: Sequence[str]) -> str:
    return str(xxhash.xxh3_128_hexdigest("\0".join(texts).encode()))


def existing(directory: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest step first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))


def _prune(newest: Path, parts: str | None) -> None:
    """Remove all but the newest ``KEEP`` checkpoints, and what lies ahead of the newest step.

    The latter was found damaged when the run was restarted before it. A checkpoint goes before its
    parts, and parts go that nobody has finished.

    Args:
        parts: the folder of the newest one's parts, if it has any.
    """
    found = existing(newest.parent)
    kept = [path for path in found if path <= newest][-KEEP:]
    for other in found:
        if other not in kept:
            with contextlib.suppress(OSError):
                other.unlink()
    steps = {path.stem for path in kept} - {newest.stem}
    for folder in newest.parent.iterdir():
        of_others = folder.name.rpartition("-")[0] in steps
        if PARTS_NAME.fullmatch(folder.name) and not of_others and folder.name != parts:
            shutil.rmtree(folder, ignore_errors=True)


class Writer:
    """Rank 0's new checkpoint, under its name once it is whole.

    The first failure is kept; from then on nothing is written, but fields are still received.

    Args:
        edges: those that are stored, of fields that have any.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress,
        options: Mapping[str, Any],
        edges: Mapping[str, Halo] | None = None,
    ) -> None:
        import h5py  # not before it is needed: every world that boots would pay for it

        self._path, self._part = path, path.with_suffix(".part")
        self._problem: str | None = None
        self._sink: Sink | None = None
        self._file: h5py.File | None = None
        self._parts: Parts | None = None
        with self._noting():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = Sink(self._part)
            self._file = h5py.File(self._sink, "w", libver="latest")
            self._file.attrs["format"] = FORMAT
            self._texts = (
                encode(progress).decode(),
                json.dumps(dict(options), sort_keys=True),
                json.dumps(dict(edges or {})),
            )
            for name, text in zip(TEXTS, self._texts, strict=True):
                self._file.attrs[name] = text
            self._file.attrs["xxh3_128"] = _digest_of(self._texts)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        pieces: Iterable[npt.NDArray[Any] | None],
    ) -> None:
        """Write one field or list from its pieces along the first axis, in order."""
        hashes: PieceHashes | None = None
        dataset: h5py.Dataset | None = None
        at, stored = 0, stored_type(dtype)
        for values in pieces:
            if self._file is None or values is None or self.problem is not None:
                continue
            with self._noting():
                if dataset is None or hashes is None:
                    dataset = self._file.create_dataset(f"fields/{name}", shape, stored)
                    hashes = PieceHashes(row_bytes(dataset))
                if len(values):
                    dataset[at : at + len(values)] = values.view(stored)
                    hashes.update(values)
                at += len(values)
        with self._noting():
            written = self._file is not None and self.problem is None
            if written and dataset is not None and hashes is not None:
                dataset.attrs["xxh3_128"] = hashes.whole.hexdigest()
                hashes.store(self._file, name)

    def link(
        self, parts: Parts, wholes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    ) -> None:
        """Say what the files of the ranks hold; ``wholes`` has shape and type of each field."""
        import h5py

        with self._noting():
            if self._file is None or self.problem is not None:
                return
            sync(self._path.with_name(parts.folder))
            self._parts = parts
            text = msgspec.json.encode(parts).decode()
            self._file.create_dataset("parts", data=np.frombuffer(text.encode(), np.uint8))
            self._file.attrs["xxh3_128"] = _digest_of([*self._texts, text])
            for name, (shape, kind) in wholes.items():
                dtype = stored_type(kind)
                if not parts.fields[name]:
                    self._file.create_dataset(f"fields/{name}", shape, dtype)
                    continue
                layout = h5py.VirtualLayout(shape, dtype)
                for part in parts.fields[name]:
                    file, box = f"{parts.folder}/{part.file}", part.box
                    source = h5py.VirtualSource(file, f"fields/{name}", box.shape, dtype)
                    layout[box.slices((0,) * len(shape))] = source
                self._file.create_virtual_dataset(f"fields/{name}", layout)

    def finish(self) -> str | None:
        """Make the file durable under its name, or remove it; return what went wrong."""
        with self._noting():
            if self._file is not None:
                self._file.close()
            if self._sink is not None:
                self._sink.close()
            if self.problem is None:
                sync(self._part)
                self._part.replace(self._path)
                sync(self._path.parent)
        if self.problem is None:
            _prune(self._path, None if self._parts is None else self._parts.folder)
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
        except (OSError, RuntimeError, TypeError, ValueError, ValuesError) as error:
            self._problem = self.problem or words_of(error)


def verify(
    path: Path, fields: Mapping[str, Field], options: Mapping[str, Any], *, alone: bool = True
) -> Parts | None:
    """Look through a checkpoint once, before any rank reads it; return its parts, if it has any.

    What ranks check as they read it (:func:`read`) is left to them.

    Args:
        alone: whether this rank reads all parts, too; else they are for others to share.

    Raises:
        BrokenCheckpointError: it is not whole.
        UsageError: it is of another grid, or of other options.
    """
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            version = int(file.attrs["format"])
            if version != FORMAT:
                raise UsageError(f"{path}: expected checkpoint format {FORMAT}, got {version}")
            texts = [str(file.attrs[name]) for name in TEXTS]
            parts = _parts_in(file, texts)
            if _digest_of(texts) != file.attrs["xxh3_128"]:
                raise BrokenCheckpointError("progress, options, edges or parts changed since")
            own = _is_own(file)
            decode(texts[0], trusted=own)
            stated = json.loads(texts[1])
            edges = _edges_in(file)
            for name, block in fields.items():
                dataset = file["fields"][name]
                shape = block.spec.stored_shape(dataset.shape[0], edges.get(name, ()))
                hashed = parts is None and not needs_whole_rows(block.layout)
                _verify_field(path, dataset, shape, name, block, hashed=hashed)
    except ValuesError as error:
        raise UsageError(
            f"{path}: {error}"
            + ("" if own else "; expected a file of this user's that others cannot write")
        ) from None
    except (OSError, KeyError, RuntimeError, ValueError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(str(error)) from None
    for key, value in json.loads(json.dumps(dict(options))).items():
        if stated.get(key) != value:
            raise UsageError(
                f"{path}: expected {key} {value}, got a checkpoint of {key} {stated.get(key)}"
            )
    if alone and parts is not None:
        verify_share(path, parts, fields, 0, 1)
    return parts


def _parts_in(file: h5py.File, texts: list[str]) -> Parts | None:
    """Return what a file says of its parts, if it has any; add that to its texts."""
    if "parts" not in file:
        return None
    texts.append(file["parts"][:].tobytes().decode())
    return msgspec.json.decode(texts[-1], type=Parts)


def parts_at(path: Path) -> Parts | None:
    """Return what a checkpoint says of its parts, if it has any.

    Raises:
        BrokenCheckpointError: it cannot be read.
    """
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            return _parts_in(file, [])
    except (OSError, KeyError, RuntimeError, ValueError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(str(error)) from None


def verify_share(
    path: Path, parts: Parts, fields: Mapping[str, Field], rank: int, ranks: int
) -> None:
    """Read this rank's share of the parts, but of those that are checked as they are read.

    Raises:
        BrokenCheckpointError: one is not as it was written.
    """
    problem = problem_of_share(path, parts, fields, rank, ranks)
    if problem is not None:
        raise BrokenCheckpointError(problem)


def _edges_in(file: h5py.File) -> dict[str, Halo]:
    """Return the edges that are stored, of fields that have any."""
    return msgspec.json.decode(file.attrs["edges"], type=dict[str, Halo])


def _is_own(file: h5py.File) -> bool:
    """Return whether nobody but this user can have written a file: only then its pickles are read.

    A pickle runs code, so one of somebody else's would run theirs.
    """
    status = os.fstat(file.id.get_vfd_handle())  # the path may have been replaced since
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH


def _verify_field(
    path: Path,
    dataset: h5py.Dataset,
    shape: tuple[int, ...],
    name: str,
    block: Field,
    *,
    hashed: bool,
) -> None:
    dtype = block.dtype
    if dataset.shape != shape or dataset.dtype != stored_type(dtype):
        raise UsageError(
            f"{path}: expected field {name} of shape {shape} and type {dtype}, "
            f"got {dataset.shape} and {dataset.dtype}"
        )
    if not hashed:
        return
    digest = xxhash.xxh3_128()
    step = max(1, SLAB_BYTES // (int(np.prod(shape[1:])) * dtype.itemsize))
    for start in range(0, shape[0], step):
        piece = np.ascontiguousarray(dataset[start : start + step])
        digest.update(piece.reshape(-1).view(np.uint8).data)
    if digest.hexdigest() != dataset.attrs["xxh3_128"]:
        raise BrokenCheckpointError(f"field {name} does not have the hash it was written with")


def read(path: Path, fields: Mapping[str, Field]) -> Progress:
    """Fill this rank's part of every field; every rank reads the same files on its own.

    Raises:
        BrokenCheckpointError: what it has read is not as it was written. Some has been filled then.
    """
    try:
        return _read(path, fields)
    except BrokenPieceError as error:
        raise BrokenCheckpointError(str(error)) from None


def _read(path: Path, fields: Mapping[str, Field]) -> Progress:
    import h5py

    with contextlib.ExitStack() as files:
        file = files.enter_context(h5py.File(path, "r", locking=False))
        parts, edges = _parts_in(file, []), _edges_in(file)
        for name, own in fields.items():
            there = edges.get(name, ())
            common = common_edges(own.edges, there)
            block = own.carried(common)
            lows = [low for low, _ in common or ((0, 0),) * len(there)]
            first = [low - edge[0] for low, edge in zip(lows, there, strict=True)]
            whole = file["fields"][name]
            stored: h5py.Dataset | PartedArray | CheckedDataset = whole
            if parts is not None:
                folder, found = path.parent / parts.folder, parts.fields[name]
                stored = PartedArray(name, whole, found, folder, block.layout, files)
            elif needs_whole_rows(block.layout):
                once = read_once(tuple(whole.shape), block.layout)
                stored = CheckedDataset(file, name, once=once)
                files.callback(stored.close)
            block.restore(stored, first or (0,) * len(whole.shape))
        return decode(file.attrs["progress"], trusted=_is_own(file))
