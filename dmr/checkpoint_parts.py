"""The parts of a checkpoint: every rank writes and reads a file of its own, not by way of rank 0.

A part holds ``fields/NAME``, what its rank has of each field. Which part holds which box of the
whole, and the hash of it, is written in the file of the checkpoint (:mod:`dmr.checkpoint_file`);
whoever reads takes the pieces that it needs from the parts. Each piece is checked as it is read
(:mod:`dmr.checkpoint_pieces`), unless ranks need but narrow shares of pieces: then ranks share the
parts to be checked, and read after that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.checkpoint_pieces import CheckedDataset, PieceHashes
from dmr.data.decomposition import Box, Decomposition
from dmr.data.field import Field
from dmr.data.gather import SLAB_BYTES
from dmr.errors import words_of
from dmr.sink import Sink

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]


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
    folder: Path, rank: int, fields: Mapping[str, Field]
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
    folder: Path, fields: Mapping[str, Field], written: Sequence[Mapping[str, Part]]
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


def read_by_pieces(parts: Sequence[Part], layout: Decomposition) -> bool:
    """Return whether ranks of a layout check pieces of a field as they read them."""
    columns = len({part.start[1:] for part in parts})
    return needs_whole_rows(layout, columns)


def needs_whole_rows(layout: Decomposition, columns: int = 1) -> bool:
    """Return whether ranks need half or more of each row that they read some cells of.

    Args:
        columns: into how many parts rows are cut that are stored together.
    """
    return prod(map(layout.parts_along, range(1, len(layout.shape)))) <= 2 * columns


def read_once(shape: tuple[int, ...], layout: Decomposition) -> bool:
    """Return whether each rank of a layout reads rows of its own of an array of this shape."""
    return layout.shape == shape and layout.parts_along(0) == layout.size


def problem_of_share(
    path: Path, parts: Parts, fields: Mapping[str, Field], rank: int, ranks: int
) -> str | None:
    """Read this rank's share of the parts; return the first that is not as it was written.

    Those of fields that are checked as they are read are left out.
    """
    import h5py

    every = [
        (name, part)
        for name, found in parts.fields.items()
        if not read_by_pieces(found, fields[name].layout)
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
        layout: of those who read.
        files: closes what has been opened.
    """

    def __init__(
        self,
        name: str,
        whole: h5py.Dataset,
        parts: Sequence[Part],
        folder: Path,
        layout: Decomposition,
        files: contextlib.ExitStack,
    ) -> None:
        self.shape: tuple[int, ...] = tuple(whole.shape)
        self.dtype: np.dtype[Any] = whole.dtype
        self._name, self._parts, self._folder, self._files = name, parts, folder, files
        self._by_pieces = read_by_pieces(parts, layout)
        self._once = read_once(self.shape, layout)
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
