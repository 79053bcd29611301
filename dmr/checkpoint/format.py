"""One checkpoint in HDF5: written whole or not at all, verified before it is read.

Layout: attributes ``format``, ``progress``, ``options`` and ``edges`` (JSON); ``/fields/NAME`` with
the global interior in axis order, with ``edges`` (cells of the halo at the edge of the domain), and
its hash as an attribute; ``/hashes/NAME`` with 16 bytes for each piece of so many rows (its
attribute ``rows``), so that pieces are checked as they are read, on the only pass through the file.

Where more ranks than one have written it, every rank has written and reads a file of its own, a
part with ``fields/NAME`` and ``hashes/NAME`` of its cells. ``/parts`` says which part holds which
box of the whole and the hash of it; ``/fields/NAME`` is a virtual dataset of the parts for other
readers. Where ranks need but narrow shares of pieces, they share the parts to be checked, and read
after that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.checkpoint.files import PlainReader, Sink
from dmr.data import gather
from dmr.data.decomposition import Box, Decomposition, Halo, common_edges
from dmr.data.distributed import Distributed
from dmr.data.gather import SLAB_BYTES
from dmr.errors import UsageError, words_of
from dmr.state.progress import Progress, decode, encode
from dmr.state.values import ValuesError

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]

FORMAT = 1
"""**Raise it with every change** of the layout, of :class:`~dmr.state.progress.Progress`, of what
fields store, or of the trees of :mod:`dmr.state.values`: a checkpoint of another format is
refused."""

DIGEST_BYTES = 16

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
    path: Path, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> Parts | None:
    """Look through a checkpoint once, before any rank reads it; return its parts, if it has any.

    What ranks check as they read it (:func:`read`) is left to them.

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
                hashed = parts is None and not needs_whole_rows(block.decomposition)
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
    path: Path, parts: Parts, fields: Mapping[str, Distributed], rank: int, ranks: int
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
    block: Distributed,
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


def read(path: Path, fields: Mapping[str, Distributed]) -> Progress:
    """Fill this rank's part of every field; every rank reads the same files on its own.

    Raises:
        BrokenCheckpointError: what it has read is not as it was written. Some has been filled then.
    """
    try:
        return _read(path, fields)
    except BrokenPieceError as error:
        raise BrokenCheckpointError(str(error)) from None


def _read(path: Path, fields: Mapping[str, Distributed]) -> Progress:
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
                stored = PartedArray(name, whole, found, folder, block.decomposition, files)
            elif needs_whole_rows(block.decomposition):
                once = read_once(tuple(whole.shape), block.decomposition)
                stored = CheckedDataset(file, name, once=once)
                files.callback(stored.close)
            block.restore(stored, first or (0,) * len(whole.shape))
        return decode(file.attrs["progress"], trusted=_is_own(file))


# --- the parts of a checkpoint, a file for each rank --------------------------------------------


class Part(msgspec.Struct, frozen=True):
    """What one file holds of one field.

    Attributes:
        file: its name in the folder of the parts.
        start, stop: where it lies in the whole, along each axis.
        xxh3_128: hash of its bytes.
        pieces: hash of the hashes of its pieces.
    """

    file: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    xxh3_128: str
    pieces: str

    @property
    def box(self) -> Box:
        """Where it lies in the whole."""
        return Box(self.start, self.stop)


class Parts(msgspec.Struct):
    """All parts of a checkpoint.

    Attributes:
        folder: that they are in, beside the checkpoint's file.
        fields: the parts of each field or list, those that are empty left out.
    """

    folder: str
    fields: dict[str, list[Part]]


def write_part(
    folder: Path, rank: int, fields: Mapping[str, Distributed]
) -> tuple[str | None, dict[str, Part]]:
    """Write what this rank has; return what went wrong, and what has been written."""
    import h5py  # not before it is needed: every world that boots would pay for it

    name, found = f"{rank}.h5", dict[str, Part]()
    sink: Sink | None = None
    try:
        sink = Sink(folder / name)
        with h5py.File(sink, "w", libver="latest") as file:
            for field, block in fields.items():
                box = block.stored_box()
                if box is None or sink.problem is not None:
                    continue
                stored = stored_type(block.dtype)
                dataset = file.create_dataset(f"fields/{field}", box.shape, stored)
                hashes = PieceHashes(row_bytes(dataset))
                at = 0
                for values in block.stored_pieces():
                    if values.size and sink.problem is None:
                        dataset[at : at + len(values)] = values.view(stored)
                        hashes.update(values)
                    at += len(values)
                whole, pieces = hashes.whole.hexdigest(), hashes.store(file, field)
                found[field] = Part(name, box.start, box.stop, whole, pieces)
        sink.close()
        if sink.problem is None:
            sync(folder / name)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        if sink is None:
            return words_of(error), found
        with contextlib.suppress(OSError):
            sink.close()
        return words_of(sink.problem or error), found
    return None if sink.problem is None else words_of(sink.problem), found


def joined(
    folder: Path, fields: Mapping[str, Distributed], written: Sequence[Mapping[str, Part]]
) -> Parts:
    """Return all parts of what each rank has written."""
    found: dict[str, list[Part]] = {}
    for name, block in fields.items():
        parts = [each[name] for each in written if name in each]
        places = block.spec.places([part.box for part in parts])
        found[name] = [
            msgspec.structs.replace(part, start=box.start, stop=box.stop)
            for part, box in zip(parts, places, strict=True)
            if box.size
        ]
    return Parts(folder.name, found)


def rows_of(parts: Sequence[Part]) -> int:
    """Return how many rows parts have together, along the first axis of the whole."""
    return max((part.stop[0] for part in parts), default=0)


def stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the same bytes that HDF5 can store.

    HDF5 has no type for dates and NumPy's text: they are stored as opaque, with a tag from which
    h5py restores the dtype.
    """
    import h5py

    if dtype.names is not None and dtype.fields is not None:
        members = [dtype.fields[name] for name in dtype.names]
        return np.dtype(
            {
                "names": list(dtype.names),
                "formats": [stored_type(member[0]) for member in members],
                "offsets": [member[1] for member in members],
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.subdtype is not None:
        return np.dtype((stored_type(dtype.base), dtype.shape))
    if dtype.isbuiltin == 2:  # a user-defined dtype
        return np.dtype((np.void, dtype.itemsize))
    stored: np.dtype[Any] = h5py.opaque_dtype(dtype) if dtype.kind in "mMU" else dtype
    return stored


def row_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of a row along the first axis of a dataset."""
    return int(np.prod(dataset.shape[1:])) * int(dataset.dtype.itemsize)


def read_by_pieces(parts: Sequence[Part], decomposition: Decomposition) -> bool:
    """Return whether ranks of a decomposition check pieces of a field as they read them."""
    columns = len({part.start[1:] for part in parts})
    return needs_whole_rows(decomposition, columns)


def needs_whole_rows(decomposition: Decomposition, columns: int = 1) -> bool:
    """Return whether ranks need half or more of each row that they read some cells of.

    Args:
        columns: into how many parts rows are cut that are stored together.
    """
    return prod(map(decomposition.parts_along, range(1, len(decomposition.shape)))) <= 2 * columns


def read_once(shape: tuple[int, ...], decomposition: Decomposition) -> bool:
    """Return whether no two ranks read the same row of an array of this shape."""
    return decomposition.shape == shape and decomposition.parts_along(0) == decomposition.size


def problem_of_share(
    path: Path, parts: Parts, fields: Mapping[str, Distributed], rank: int, ranks: int
) -> str | None:
    """Read this rank's share of the parts; return the first that is not as it was written.

    Those of fields that are checked as they are read are left out.
    """
    import h5py

    every = [
        (name, part)
        for name, found in parts.fields.items()
        if not read_by_pieces(found, fields[name].decomposition)
        for part in found
    ]
    for name, part in every[rank::ranks]:
        digest = xxhash.xxh3_128()
        try:
            with h5py.File(path.parent / parts.folder / part.file, "r", locking=False) as file:
                dataset = file["fields"][name]
                shape, itemsize = part.box.shape, dataset.dtype.itemsize
                if dataset.shape != shape:
                    return f"part {part.file} has another shape of field {name}"
                step = max(1, SLAB_BYTES // max(1, int(np.prod(shape[1:])) * itemsize))
                for at in range(0, shape[0], step):
                    piece = np.ascontiguousarray(dataset[at : at + step])
                    digest.update(piece.reshape(-1).view(np.uint8).data)
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            return f"part {part.file}: {words_of(error)}"
        if digest.hexdigest() != part.xxh3_128:
            return f"field {name} does not have the hash it was written with, in part {part.file}"
    return None


class PartedArray:
    """A field of a checkpoint in parts, to be read by slices along each axis, or the first.

    Args:
        shape, dtype: of the whole.
        folder: that the parts are in.
        decomposition: of those who read.
        files: closes what has been opened.
    """

    def __init__(
        self,
        name: str,
        whole: h5py.Dataset,
        parts: Sequence[Part],
        folder: Path,
        decomposition: Decomposition,
        files: contextlib.ExitStack,
    ) -> None:
        self.shape: tuple[int, ...] = tuple(whole.shape)
        self.dtype: np.dtype[Any] = whole.dtype
        self._name, self._parts, self._folder, self._files = name, parts, folder, files
        self._by_pieces = read_by_pieces(parts, decomposition)
        self._once = read_once(self.shape, decomposition)
        self._open: dict[str, h5py.Dataset | CheckedDataset] = {}

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        given = key if isinstance(key, tuple) else (key,)
        given = (*given, *[slice(None)] * (len(self.shape) - len(given)))
        ranges = [one.indices(n)[:2] for one, n in zip(given, self.shape, strict=True)]
        box = Box(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))
        found = np.empty(box.shape, self.dtype)
        for part in self._parts:
            shared = part.box.intersect(box)
            if shared.size:
                values: Array = self._dataset(part)[shared.slices(part.start)]
                if shared == box:
                    return values
                found[shared.slices(box.start)] = values
        return found

    def _dataset(self, part: Part) -> h5py.Dataset | CheckedDataset:
        import h5py

        if part.file not in self._open:
            opened = h5py.File(self._folder / part.file, "r", locking=False)
            file = self._files.enter_context(opened)
            self._open[part.file] = file["fields"][self._name]
            if self._by_pieces:
                stated = (part.file, part.pieces)
                checked = CheckedDataset(file, self._name, stated, once=self._once)
                self._files.callback(checked.close)
                self._open[part.file] = checked
        return self._open[part.file]


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- the pieces of a dataset, hashed one by one -------------------------------------------------


class BrokenPieceError(ValueError):
    """A piece that is not as it was written; one sentence."""


class PieceHashes:
    """The hashes of a dataset that is written row by row: of the whole, and of each piece.

    Args:
        row_bytes: of one row along the first axis.

    Attributes:
        whole: hash of all bytes so far.
        rows: of a piece.
    """

    def __init__(self, row_bytes: int) -> None:
        self.rows = max(1, gather.SLAB_BYTES // max(1, row_bytes))
        self.whole = xxhash.xxh3_128()
        self._found: list[bytes] = []
        self._piece, self._left = xxhash.xxh3_128(), self.rows

    def update(self, values: Array) -> None:
        """Go on with contiguous rows."""
        at = 0
        while at < len(values):
            taken = values[at : at + self._left]
            bytes_ = taken.reshape(-1).view(np.uint8).data
            self.whole.update(bytes_)
            self._piece.update(bytes_)
            at, self._left = at + len(taken), self._left - len(taken)
            if not self._left:
                self._end_piece()

    def _end_piece(self) -> None:
        self._found.append(self._piece.digest())
        self._piece, self._left = xxhash.xxh3_128(), self.rows

    def store(self, file: h5py.File, name: str) -> str:
        """Write what there is to say of the pieces of a field; return the hash of that."""
        if self._left < self.rows:
            self._end_piece()
        digests = np.frombuffer(b"".join(self._found), np.uint8).reshape(-1, DIGEST_BYTES)
        file.create_dataset(f"hashes/{name}", data=digests).attrs["rows"] = self.rows
        return xxhash.xxh3_128_hexdigest(digests.tobytes())


class CheckedDataset:
    """A dataset of an open file, whose pieces are checked as they are read.

    Args:
        file: that holds it, with hashes of its pieces.
        name: of the field.
        part: its file's name and what the hashes of the pieces are to hash to, where it is a part.
        once: whether no other rank reads the same, for whom the system would keep it.

    Raises:
        BrokenPieceError: the hashes are not those of this dataset.
    """

    def __init__(
        self, file: h5py.File, name: str, part: tuple[str, str] | None = None, *, once: bool
    ) -> None:
        self._dataset: h5py.Dataset = file["fields"][name]
        self.shape: tuple[int, ...] = tuple(self._dataset.shape)
        self.dtype: np.dtype[Any] = self._dataset.dtype
        hashes = file["hashes"][name]
        self._rows, self._digests = int(hashes.attrs["rows"]), np.ascontiguousarray(hashes)
        count = -(-self.shape[0] // max(1, self._rows))
        where = "" if part is None else f", in part {part[0]}"
        self._wrong = f"field {name} does not have the hash it was written with{where}"
        if self._rows < 1 or self._digests.shape != (count, DIGEST_BYTES):
            raise BrokenPieceError(self._wrong)
        if part is not None and xxhash.xxh3_128_hexdigest(self._digests.tobytes()) != part[1]:
            raise BrokenPieceError(self._wrong)
        self._at = -1
        self._buffer = np.empty((min(self._rows, self.shape[0]), *self.shape[1:]), self.dtype)
        self._last = self._buffer
        self._plain = (
            PlainReader(file.filename, self._dataset, self._buffer.nbytes) if once else None
        )

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        """Return some cells, which are good until others are asked for.

        Raises:
            BrokenPieceError: they, or others of the same piece, are not as they were written.
        """
        rows, *others = key if isinstance(key, tuple) else (key,)
        start, stop, _ = rows.indices(self.shape[0])
        first = self._piece(start // self._rows) if start < stop else self._buffer[:0]
        at = start // self._rows * self._rows
        if stop - at <= len(first) or start >= stop:
            return first[(slice(start - at, max(start, stop) - at), *others)]
        found = np.empty((stop - start, *first[(slice(0), *others)].shape[1:]), self.dtype)
        for begin in range(at, stop, self._rows):
            piece = self._piece(begin // self._rows)
            low, high = max(start, begin), min(stop, begin + self._rows)
            taken = piece[(slice(low - begin, high - begin), *others)]
            found[low - start : high - start] = taken
        return found

    def _piece(self, number: int) -> Array:
        """Return a piece, read and checked; the one before is gone."""
        if number != self._at:
            self._at = -1
            piece = self._read(number * self._rows)
            digest = xxhash.xxh3_128_digest(piece.reshape(-1).view(np.uint8).data)
            if digest != self._digests[number].tobytes():
                raise BrokenPieceError(self._wrong)
            self._at, self._last = number, piece
        return self._last

    def _read(self, start: int) -> Array:
        """Return the piece that begins with a row."""
        piece = self._buffer[: min(self._rows, self.shape[0] - start)]
        if self._plain is not None:
            found = self._plain.read(start * self._buffer[:1].nbytes, piece.nbytes)
            if found is not None:
                return np.frombuffer(found, self.dtype).reshape(piece.shape)
        if piece.size:
            self._dataset.read_direct(piece, np.s_[start : start + len(piece)])
        return piece

    def close(self) -> None:
        """Let go of what it has beside the file."""
        if self._plain is not None:
            self._plain.close()
