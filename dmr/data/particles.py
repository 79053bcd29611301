"""A list of items on every rank, of a length that varies: particles, cells of a mesh, agents.

The application says by one function on which rank each item belongs; that is all a resize needs.
An item is a row of a NumPy array: a number, a record of a structured type, or an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash
from mpi4py import MPI

from dmr.data.decomposition import Box, Decomposition
from dmr.data.field import Field, FieldSpec
from dmr.errors import words_of

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]
Owner = Callable[[Array, Decomposition], npt.ArrayLike]
"""Returns the rank in a layout of every item: whole numbers, as many as there are items."""

TAG, COUNT_TAG, DIGEST_TAG = 79, 80, 81
DIGEST_BYTES = 8
CHUNK_BYTES = 1 << 20


class OwnerError(Exception):
    """The application does not say where its items belong; one sentence."""


@dataclass(frozen=True)
class ListSpec(FieldSpec):
    """What an application states about a list that every rank has a part of.

    Attributes:
        shape, split: the grid that the items live on, cut over the ranks as a field would be;
            ``owner`` is told of that layout (:func:`rank_of`).
        dtype: of an item, or of its numbers; may be structured.
        initial: returns the items that belong to the box of a rank in the beginning, in order.
        item: shape of an item, () for a number or a record.
        owner: on which rank of a layout each item belongs.
    """

    item: tuple[int, ...] = ()
    owner: Owner | None = None

    def _check_dtype(self) -> None:
        if self.owner is None:
            raise ValueError("expected a function that says who owns an item, got none")
        if np.dtype(self.dtype).hasobject:
            raise ValueError(f"expected items of plain memory, got {np.dtype(self.dtype)}")

    def block(self, layout: Decomposition, rank: int) -> Field:
        """Return a rank's part, empty."""
        return Items(self, layout, rank)

    @property
    def nbytes(self) -> int:
        """Bytes that are known beforehand: none."""
        return 0

    def owners(self, items: Array, layout: Decomposition) -> npt.NDArray[np.int64]:
        """Return the rank of every item.

        Raises:
            OwnerError: the application's function failed, or gave something else.
        """
        try:
            found = np.asarray(self.owner(items, layout) if self.owner is not None else ())
        except Exception as error:
            raise OwnerError(f"who owns an item is not known: {error!r}") from error
        good = found.shape == (len(items),) and (
            not len(items)
            or (found.dtype.kind in "iu" and found.min() >= 0 and found.max() < layout.size)
        )
        if not good:
            raise OwnerError(
                f"expected {len(items)} owners of 0 to {layout.size - 1}, got shape {found.shape}"
                f" and type {found.dtype}"
            )
        return found.astype(np.int64)

    def signature(self) -> dict[str, Any]:
        """Return what both sides of a resize must agree on."""
        kind = np.dtype(self.dtype)
        return {
            "grid": list(self.shape),
            "split": list(self.split),
            "item": list(self.item),
            "dtype": str(kind.descr),
        }


class Items(Field):
    """One rank's part of a list.

    Attributes:
        items: array of shape (count, *item), the application's to replace or to change.
    """

    spec: ListSpec

    def __init__(self, spec: ListSpec, layout: Decomposition, rank: int) -> None:
        self.spec, self.layout, self.rank = spec, layout, rank
        self.box = layout.box(rank)
        self._kept: dict[int, Array] = {}
        self.items = self.none()

    def none(self, count: int = 0) -> Array:
        """Return room for items."""
        return np.zeros((count, *self.spec.item), self.spec.dtype)

    @property
    def items(self) -> Array:
        """The items that this rank has."""
        found: Array = self.storage
        return found

    @items.setter
    def items(self, values: npt.ArrayLike) -> None:
        found = np.asarray(values, self.spec.dtype)
        if found.shape[1:] != self.spec.item:
            raise ValueError(
                f"expected items of shape {self.spec.item}, got an array of shape {found.shape}"
            )
        self.storage = found

    def initialise(self) -> None:
        """Set the application's initial items."""
        self.items = self.spec.initial(self.box)

    def keep(self, old: Items) -> int:
        """Take what stays on this rank; return its bytes (strategy merge)."""
        mine = old.parts(self.layout)[self.rank]
        self._kept[self.rank] = mine
        return mine.nbytes

    def parts(self, layout: Decomposition) -> list[Array]:
        """Return the items by their ranks in a layout, in their order here."""
        owners = self.spec.owners(self.items, layout)
        return [np.ascontiguousarray(self.items[owners == rank]) for rank in range(layout.size)]

    def settle(self, parts: dict[int, Array]) -> None:
        """Set the items: those of each rank they come from, in that order."""
        parts = {**parts, **self._kept}
        self._kept = {}
        self.items = np.concatenate([self.none(), *(parts[rank] for rank in sorted(parts))])


def adapt_list(
    items: npt.NDArray[Any], shape: tuple[int, ...], owner: Owner, *, split: tuple[int, ...] = (0,)
) -> ListSpec:
    """State a list of items, of which every rank has its own and not always as many.

    Args:
        items: those of this rank in the beginning, along the first axis (a structured type, or
            numbers with further axes). Read and set those of now as ``run.fields[name].items``.
        shape: global extents of the grid that the items live on.
        owner: ``owner(items, layout)`` returns the rank of each item in a layout of that grid,
            of ``layout.size`` ranks; :func:`dmr.rank_of` says whose a cell is.
        split: the axes of the grid that are cut over the ranks.
    """
    return ListSpec(
        shape, items.dtype, lambda box: items, split=split, item=items.shape[1:], owner=owner
    )


def rank_of(layout: Decomposition, *cells: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the ranks that own cells, given by their global index along each split axis."""
    if len(cells) != len(layout.split):
        raise ValueError(f"expected indices along axes {layout.split}, got {len(cells)} of them")
    found = np.zeros(np.shape(cells[0]), np.int64)
    stride = 1
    for axis, parts, index in zip(layout.split, layout.grid, cells, strict=True):
        base, extra = divmod(layout.shape[axis], parts)  # as dmr.split_range deals them
        at, fat = np.asarray(index, np.int64), extra * (base + 1)
        place = np.where(at < fat, at // (base + 1), extra + (at - fat) // max(1, base))
        found += stride * place
        stride *= parts
    return found


Wait = Callable[[], bool]


def sending(comm: MPI.Comm, field: Items, new: Decomposition, sent: list[int]) -> Iterator[Wait]:
    """Send items to their owners in another layout; yield what has to be waited for."""
    alone = not comm.Is_inter()
    for peer, part in enumerate(field.parts(new)):
        if alone and peer == field.rank:
            continue
        count = np.array([len(part)], np.int64)
        yield comm.Isend(count, peer, COUNT_TAG).Test
        data = _bytes(part)
        digest = xxhash.xxh3_64(count.data)
        for at in range(0, data.size, CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            digest.update(chunk.data)
            yield comm.Isend(chunk, peer, TAG).Test
            sent.append(chunk.size)
        yield comm.Isend(np.frombuffer(digest.digest(), np.uint8), peer, DIGEST_TAG).Test


def receiving(
    comm: MPI.Comm, field: Items, old: Decomposition, broken: list[Box]
) -> Iterator[Wait]:
    """Take the items from every rank of another layout; yield what has to be waited for."""
    alone = not comm.Is_inter()
    parts: dict[int, Array] = {}
    for peer in range(old.size):
        if alone and peer == field.rank:
            continue
        count = np.zeros(1, np.int64)
        yield comm.Irecv(count, peer, COUNT_TAG).Test
        part = field.none(int(count[0]))
        data = part.reshape(-1).view(np.uint8)
        digest = xxhash.xxh3_64(count.data)
        for at in range(0, data.size, CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            yield comm.Irecv(chunk, peer, TAG).Test
            digest.update(chunk.data)
        word = np.empty(DIGEST_BYTES, np.uint8)
        yield comm.Irecv(word, peer, DIGEST_TAG).Test
        if word.tobytes() != digest.digest():
            broken.append(field.box)
        parts[peer] = part
    field.settle(parts)


def gathered(comm: MPI.Intracomm, field: Items) -> Array | None:
    """Return the items of all ranks, in the order of the ranks, on rank 0 (collective)."""
    counts = comm.gather(len(field.items))
    if comm.rank:
        comm.Send(_bytes(field.items), 0, TAG)
        return None
    parts = [field.items]
    for rank in range(1, comm.size):
        part = field.none((counts or [])[rank])
        comm.Recv(part.reshape(-1).view(np.uint8), rank, TAG)
        parts.append(part)
    return np.concatenate(parts)


def write(
    comm: MPI.Intracomm, file: h5py.File | None, name: str, field: Items, problem: str | None
) -> str | None:
    """Write a list into a checkpoint through rank 0 (collective); return what went wrong."""
    values = gathered(comm, field)
    if file is None or values is None or problem is not None:
        return problem
    try:
        dataset = file.create_dataset(f"fields/{name}", data=values)
        dataset.attrs["xxh3_128"] = xxhash.xxh3_128_hexdigest(_bytes(values).data)
    except OSError as error:
        return words_of(error)
    return None


def read(dataset: h5py.Dataset, field: Items) -> None:
    """Take from a checkpoint the items that belong here, a piece at a time."""
    row = max(1, field.none(1).nbytes)
    step = max(1, CHUNK_BYTES // row)
    found = [field.none()]
    for at in range(0, dataset.shape[0], step):
        values = dataset[at : at + step].astype(field.spec.dtype)
        found.append(values[field.spec.owners(values, field.layout) == field.rank])
    field.items = np.concatenate(found)


def _bytes(values: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
