"""One checkpoint: an index and a part for each rank, all in HDF5.

A part is the file that one rank has written: ``/fields/NAME`` with the cells or items of that
rank, and ``/hashes/NAME`` with 16 bytes for each piece of it, a piece being a few rows along the
first axis. The index is written last. It has the attributes ``format``, ``progress`` and
``options``, the dataset ``/index`` (JSON of :class:`Index`: which part holds which box of the
whole), and a hash of these. For other readers it has ``/fields/NAME`` too: the whole as a virtual
dataset over the parts, in axis order, including the halo at the edge of the domain where a field
stores that.

Every rank reads the index, and of the parts the pieces that it needs cells of. It checks a piece
by its hash before it uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.checkpoint.files import new_hdf5, sync
from dmr.data.decomposition import Box, Halo, common_edges
from dmr.data.distributed import Distributed
from dmr.data.gather import SLAB_BYTES
from dmr.errors import UsageError, words_of
from dmr.state.progress import Progress, decode, encode
from dmr.state.values import ValuesError

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]

FORMAT = 2
"""**Raise it with every change** of the files, of :class:`~dmr.state.progress.Progress`, of what
fields store, or of the trees of :mod:`dmr.state.values`: a checkpoint of another format is
refused."""

DIGEST_BYTES = 16

TEXTS = ("progress", "options")
"""Attributes of the index that its hash includes."""


class BrokenCheckpointError(Exception):
    """A checkpoint whose files are not as they were written; one sentence."""


class Part(msgspec.Struct, frozen=True):
    """The data of one field in the file of one rank.

    Attributes:
        file: name of the file in the folder of the parts.
        box: where the data lies in the whole.
        rows: of a piece, along the first axis; the last piece may have less.
        digest: hash of the hashes of the pieces.
    """

    file: str
    box: Box
    rows: int
    digest: str


ReadPart = Callable[[str, Part, Box, Box], Iterator[tuple[Box, Array]]]
"""``read(name, part, extent, wanted)``: yields the wanted cells of a field in a part, whose cells
are those of ``extent`` in the block that is filled."""


class Index(msgspec.Struct):
    """The parts of a checkpoint.

    Attributes:
        folder: that holds the parts, beside the index.
        edges: cells of the halo at the edge of the domain that are stored, of fields with any.
        fields: the parts of each field or list, without empty ones.
    """

    folder: str
    edges: dict[str, Halo]
    fields: dict[str, list[Part]]


# --- write --------------------------------------------------------------------------------------


def write_part(
    folder: Path, rank: int, fields: Mapping[str, Distributed], piece_bytes: int = SLAB_BYTES
) -> tuple[str | None, dict[str, Part]]:
    """Write the part of this rank; return why that failed, or None, and its data by field."""
    name = f"{rank}.h5"
    parts: dict[str, Part] = {}
    try:
        with new_hdf5(folder / name) as (file, disk):
            for field, block in fields.items():
                box = block.stored_box()
                if box is None:
                    continue
                stored = stored_type(block.dtype)
                dataset = file.create_dataset(f"fields/{field}", box.shape, stored)
                digests: list[bytes] = []
                at, rows = 0, 0
                for values in block.stored_pieces(piece_bytes):
                    if disk.problem is not None:
                        break
                    if values.size:
                        dataset[at : at + len(values)] = values.view(stored)
                    digests.append(_digest(values))
                    at, rows = at + len(values), rows or len(values)
                hashes = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
                file.create_dataset(f"hashes/{field}", data=hashes)
                parts[field] = Part(name, box, rows, _digest(hashes).hex())
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        return words_of(error), parts
    return None, parts


def index_of_parts(
    folder: Path,
    fields: Mapping[str, Distributed],
    edges: Mapping[str, Halo],
    written: Sequence[Mapping[str, Part]],
) -> Index:
    """Return the index over the parts that the ranks have written.

    Args:
        edges: those that are stored, of fields that have any.
        written: by each rank.
    """
    index = Index(folder.name, dict(edges), {})
    for name, block in fields.items():
        parts = [of_rank[name] for of_rank in written if name in of_rank]
        extents = block.spec.extents_in_checkpoint([part.box for part in parts])
        index.fields[name] = [
            msgspec.structs.replace(part, box=box)
            for part, box in zip(parts, extents, strict=True)
            if box.size
        ]
    return index


def write_index(
    path: Path,
    index: Index,
    fields: Mapping[str, Distributed],
    progress: Progress,
    options: Mapping[str, Any],
) -> str | None:
    """Write the index, under its name once it is whole; return why that failed, or None."""
    temporary = path.with_suffix(".part")
    try:
        texts = [encode(progress).decode(), json.dumps(dict(options), sort_keys=True)]
        parts = msgspec.json.encode(index)
        sync(path.with_name(index.folder))
        with new_hdf5(temporary) as (file, _):
            file.attrs["format"] = FORMAT
            for name, text in zip(TEXTS, texts, strict=True):
                file.attrs[name] = text
            file.create_dataset("index", data=np.frombuffer(parts, np.uint8))
            file.attrs["xxh3_128"] = _digest_of_texts([*texts, parts.decode()])
            for name, block in fields.items():
                _link(file, index, name, block)
        temporary.replace(path)
        sync(path.parent)
    except (OSError, RuntimeError, TypeError, ValueError, ValuesError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return words_of(error)
    return None


def _link(file: h5py.File, index: Index, name: str, block: Distributed) -> None:
    """Add the whole of a field to an index, for other readers."""
    import h5py

    parts, dtype = index.fields[name], stored_type(block.dtype)
    rows = max((part.box.stop[0] for part in parts), default=0)
    shape = block.spec.stored_shape(rows)
    if not parts:
        file.create_dataset(f"fields/{name}", shape, dtype)
        return
    whole = h5py.VirtualLayout(shape, dtype)
    for part in parts:
        target = part.box.slices()
        source = f"{index.folder}/{part.file}", f"fields/{name}"
        whole[target] = h5py.VirtualSource(*source, part.box.shape, dtype)
    file.create_virtual_dataset(f"fields/{name}", whole)


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


def _digest(values: Array) -> bytes:
    """Return the hash of a contiguous array."""
    return xxhash.xxh3_128_digest(values.reshape(-1).view(np.uint8).data)


def _digest_of_texts(texts: Sequence[str]) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join(texts).encode())


# --- read ---------------------------------------------------------------------------------------


def read_checkpoint(
    path: Path, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> Progress:
    """Fill this rank's part of every field; return the progress.

    Every rank does this on its own. When it raises, some of the fields may have been filled.

    Raises:
        BrokenCheckpointError: a file is missing, or is not as it was written.
        UsageError: the checkpoint is of another format or grid, or of other options.
    """
    progress, index = _read_index(path, fields, options)
    fill(fields, index, partial(_pieces_of_part, path.with_name(index.folder)))
    return progress


def fill(fields: Mapping[str, Distributed], index: Index, read: ReadPart) -> None:
    """Fill this rank's part of every field from the parts of an index."""
    for name, own in fields.items():
        edges = index.edges.get(name, ())
        common = common_edges(own.edges, edges)
        lows = [low for low, _ in common or ((0, 0),) * len(edges)]
        first = [low - edge[0] for low, edge in zip(lows, edges, strict=True)]
        pieces = partial(stored_pieces, name, index.fields[name], read, first)
        own.carried(common).restore(pieces)


def check_options(options: Mapping[str, Any], stored: Mapping[str, Any], where: object) -> None:
    """Raise :class:`~dmr.errors.UsageError` for an option that differs from the stored one."""
    for key, value in json.loads(json.dumps(dict(options))).items():
        if stored.get(key) != value:
            raise UsageError(
                f"{where}: expected {key} {value}, got a checkpoint of {key} {stored.get(key)}"
            )


def _read_index(
    path: Path, fields: Mapping[str, Distributed], options: Mapping[str, Any]
) -> tuple[Progress, Index]:
    """Read and check the index of a checkpoint."""
    import h5py

    own = False
    try:
        with h5py.File(path, "r", locking=False) as file:
            version = int(file.attrs["format"])
            if version != FORMAT:
                raise UsageError(f"{path}: expected checkpoint format {FORMAT}, got {version}")
            texts = [str(file.attrs[name]) for name in TEXTS]
            parts = file["index"][:].tobytes().decode()
            if _digest_of_texts([*texts, parts]) != file.attrs["xxh3_128"]:
                raise BrokenCheckpointError("progress, options, edges or parts changed since")
            own = _is_own(file)
            progress = decode(texts[0], trusted=own)
            stored_options = json.loads(texts[1])
            index = msgspec.json.decode(parts, type=Index)
            for name, block in fields.items():
                dataset = file["fields"][name]
                shape = block.spec.stored_shape(dataset.shape[0], index.edges.get(name, ()))
                if dataset.shape != shape or dataset.dtype != stored_type(block.dtype):
                    raise UsageError(
                        f"{path}: expected field {name} of shape {shape} and type {block.dtype}, "
                        f"got {dataset.shape} and {dataset.dtype}"
                    )
    except ValuesError as error:
        raise UsageError(
            f"{path}: {error}"
            + ("" if own else "; expected a file of this user's that others cannot write")
        ) from None
    except (OSError, KeyError, RuntimeError, ValueError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(words_of(error)) from None
    check_options(options, stored_options, path)
    return progress, index


def _is_own(file: h5py.File) -> bool:
    """Return whether only this user can have written a file: only then its pickles are read.

    A pickle runs code, so one of another user would run the code of that user.
    """
    status = os.fstat(file.id.get_vfd_handle())  # the path may have been replaced since
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH


def stored_pieces(
    name: str, parts: Sequence[Part], read: ReadPart, first: Sequence[int], box: Box | None
) -> Iterator[tuple[Box, Array]]:
    """Yield the stored cells of a box, or of all, in the order of the parts.

    Each array is valid until the next one.

    Args:
        name: of the field.
        parts: that hold it.
        read: yields the wanted cells of a part.
        first: indices, in the block that is filled, of the first cell that is stored; () for 0.

    Raises:
        BrokenCheckpointError: a part is missing, or a piece is not as it was written.
    """
    for part in parts:
        origin = first or (0,) * len(part.box.start)
        start = tuple(at + low for at, low in zip(part.box.start, origin, strict=True))
        stop = tuple(at + low for at, low in zip(part.box.stop, origin, strict=True))
        extent = Box(start, stop)
        wanted = extent if box is None else extent.intersect(box)
        if not wanted.size:
            continue
        try:
            yield from read(name, part, extent, wanted)
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise BrokenCheckpointError(f"part {part.file}: {words_of(error)}") from None


def _pieces_of_part(
    folder: Path, name: str, part: Part, extent: Box, wanted: Box
) -> Iterator[tuple[Box, Array]]:
    """Yield the wanted cells of a part with this extent."""
    import h5py

    broken = BrokenCheckpointError(
        f"field {name} does not have the hash it was written with, in part {part.file}"
    )
    with h5py.File(folder / part.file, "r", locking=False) as file:
        dataset, digests = file["fields"][name], np.ascontiguousarray(file["hashes"][name])
        if _digest(digests).hex() != part.digest:
            raise broken
        if dataset.shape != extent.shape:
            raise BrokenCheckpointError(f"part {part.file} has another shape of field {name}")
        (first, *starts), (last, *stops) = extent.start, extent.stop
        buffer = np.empty((min(part.rows, last - first), *dataset.shape[1:]), dataset.dtype)
        number = (wanted.start[0] - first) // part.rows
        for at in range(first + number * part.rows, wanted.stop[0], part.rows):
            box = Box((at, *starts), (min(at + part.rows, last), *stops))
            piece = buffer[: box.shape[0]]
            dataset.read_direct(piece, np.s_[at - first : box.stop[0] - first])
            if _digest(piece) != digests[number].tobytes():
                raise broken
            number += 1
            shared = box.intersect(wanted)
            yield shared, piece[shared.slices(box.start)]
