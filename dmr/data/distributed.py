"""What a run needs of distributed data: how it is stated, and one rank's part of it.

Fields (:mod:`dmr.data.field`) and lists (:mod:`dmr.data.particles`) are the two kinds. A resize, a
checkpoint and ``dmr check`` use what stands here and nothing else of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dmr.data.decomposition import Box, Decomposition, Halo

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T", covariant=True)

Array = npt.NDArray[Any]

Ranges = Callable[[int, int], Sequence[int]]
"""``ranges(cells, parts)``: where the parts begin, then ``cells``. The same in every world."""

Getter = Callable[[], Any]
"""Returns a rank's data as the program has it now."""

Setter = Callable[[Any], object]
"""Has the program take an array as a rank's data."""

Wait = Callable[[], bool]
"""Returns whether what a step of a transfer waits for has happened."""

StoredPieces = Callable[[Box | None], Iterator[tuple[Box, Array]]]
"""Yields what a checkpoint holds of a box, or with None all of it, in pieces and their boxes."""

Steps = Generator[Wait, None, T]
"""A transfer under way: yields what it waits for before it can go on, returns its result."""


class Distributed(Protocol):
    """One rank's part of distributed data: a block of a field, or some items of a list.

    Attributes:
        decomposition: who owns which cells in this world.
        rank: whose part it is.
    """

    decomposition: Decomposition
    rank: int

    @property
    def spec(self) -> Spec:
        """What the application stated."""

    @property
    def storage(self) -> Any:
        """The array that holds the part."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a cell or an item."""

    @property
    def on_host(self) -> bool:
        """Whether the storage lies in host memory, where MPI can use it in place."""

    @property
    def edges(self) -> Halo:
        """Cells of the halo at the edge of the domain that move and are stored, or ()."""

    def join(self, comm: MPI.Intracomm | None) -> None:
        """Enter a world with these ranks of the library's own; None: leave the one before."""

    def initialise(self) -> None:
        """Set the application's initial values."""

    def update(self) -> None:
        """Read the part by the application's getter, if it has one.

        Raises:
            ValueError: on this rank alone: the getter returns other data than was declared.
        """

    def deliver(self) -> None:
        """Give the part to the application's setter, if it has one."""

    def release(self) -> None:
        """Free the memory of what only travels: the ranks go on as they are."""

    def prefault(self) -> None:
        """Have the pages of the part's memory exist before its data arrives."""

    def sending(self, comm: MPI.Comm, new: Decomposition, *, on_host: bool) -> Steps[int]:
        """Send the part to its owners in a new decomposition; return the bytes.

        Over an intra-communicator (merge) what stays here is not sent. ``on_host``: whether the
        parts of both worlds lie in host memory.
        """

    def receiving(self, comm: MPI.Comm, old: Decomposition, *, on_host: bool) -> Steps[bool]:
        """Fill the part from its old owners; return whether every hash agrees."""

    def keep(self, old: Self) -> int:
        """Take what stays on this rank from the part of an old world; return its bytes."""

    def moved_to(self, decomposition: Decomposition, rank: int) -> Self:
        """Return a rank's empty part of another decomposition; this one is of no use then."""

    def carried(self, edges: Halo | None = None) -> Self:
        """Return the part with edges as cells of its own: :attr:`edges`, or no more than these."""

    def stored_box(self) -> Box | None:
        """Return the extent of what this rank writes, None where another rank writes it."""

    def stored_pieces(self, limit_bytes: int) -> Iterator[Array]:
        """Return what this rank writes, contiguous and on the host, in pieces along axis 0.

        All pieces have as many rows, the last may have less. ``limit_bytes`` is the size of a
        piece, but a row is never cut.
        """

    @property
    def stored_order(self) -> tuple[int, ...]:
        """The axes of what this rank writes, from the slowest in memory to the contiguous one."""

    def store_into(self, out: Array) -> None:
        """Copy what this rank writes into a host array with its axes in :attr:`stored_order`."""

    def restore(self, read: StoredPieces) -> None:
        """Set the part from a checkpoint."""

    def gathered(self, comm: MPI.Intracomm) -> tuple[tuple[int, ...], Iterator[Array | None]]:
        """Return the shape of the whole; on rank 0 its rows in pieces, elsewhere None (collective).

        All ranks have to go through the pieces.
        """


@dataclass(frozen=True)
class Spec(ABC):
    """What an application states about distributed data.

    Attributes:
        shape: global extents of the array, or of the grid that items live on, 1 to 4 axes.
        dtype: any ``numpy.dtype`` of fixed-size items without references (no objects).
        initial: returns the initial values of a box of global indices. Called only where nothing
            is restored.
        split: the axes that are cut over the ranks, rows first; () for an array that every rank
            has the whole of.
        ranges: where the parts of a split axis begin, and its end (see :data:`Ranges`).
        grid: ``grid(size)`` returns the process grid of so many ranks, by default the library's.
        row_major: whether ranks run along the last split axis first (MPI_Cart_create, mpi4py-fft).
        constant: whether every set of ranks has its values from ``initial``, which never change.
        getter, setter: the application's functions that return and take this rank's data; None
            where it is in an array that the library has.
    """

    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    initial: Callable[[Box], Any]
    _: KW_ONLY
    split: tuple[int, ...] = (0, 1)
    ranges: Ranges | None = field(default=None, compare=False)
    grid: Callable[[int], Sequence[int]] | None = field(default=None, compare=False)
    row_major: bool = False
    constant: bool = False
    getter: Getter | None = field(default=None, compare=False)
    setter: Setter | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        axes = len(self.shape)
        if not 1 <= axes <= 4 or min(self.shape) < 1:
            raise ValueError(f"expected 1 to 4 axes of at least 1 cell, got shape {self.shape}")
        split = (0,) if axes == 1 and self.split == (0, 1) else self.split
        if len(set(split)) != len(split) or not all(0 <= axis < axes for axis in split):
            raise ValueError(f"expected axes of 0 to {axes - 1} to split, got {self.split}")
        object.__setattr__(self, "split", split)
        dtype = np.dtype(self.dtype)
        if dtype.hasobject or dtype.subdtype is not None or not dtype.itemsize:
            raise ValueError(
                "expected items of fixed size without references (numbers, fixed-length text, "
                f"dates, records of these), got dtype {dtype}"
            )
        problem = dtype_problem(dtype)
        if problem:
            raise ValueError(f"expected a dtype that a checkpoint can hold, got {problem}: {dtype}")

    @property
    def halos(self) -> Halo:
        """The halo of every axis as (below, above)."""
        return ((0, 0),) * len(self.shape)

    def thinnest_blocks(self) -> tuple[int, ...]:
        """Return the least thickness of a block along each split axis."""
        return (1,) * len(self.split)

    def decompose(self, grid: tuple[int, ...], copies: int = 1) -> Decomposition:
        """Return the shape cut over a process grid.

        Args:
            copies: the ranks that each have all of it, where no axis is split.

        Raises:
            ValueError: ``ranges`` are none, or leave a block thinner than it may be.
        """
        bounds = None
        if self.ranges is not None:
            bounds = tuple(map(self._bounds, self.split, grid, self.thinnest_blocks()))
        return Decomposition(self.shape, self.split, grid, self.row_major, copies, bounds)

    def _bounds(self, axis: int, parts: int, least: int) -> tuple[int, ...]:
        """Return where the parts of an axis begin, and its end."""
        cells = self.shape[axis]
        bounds = tuple(map(int, () if self.ranges is None else self.ranges(cells, parts)))
        ends = len(bounds) == parts + 1 and (bounds[0], bounds[-1]) == (0, cells)
        if not ends or (parts > 1 and min(b - a for a, b in pairwise(bounds)) < least):
            raise ValueError(
                f"expected ranges({cells}, {parts}) to be {parts + 1} numbers from 0 to {cells} "
                f"that rise by at least {least}, got {bounds}"
            )
        return bounds

    def agreed(self, name: str, decomposition: Decomposition, halos: Sequence[Halo]) -> Self:
        """Return this specification with the attributes that depend on the halos of all ranks.

        Args:
            name: of the data.
            decomposition: of this world.
            halos: of its ranks.
        """
        return self

    @abstractmethod
    def block(self, decomposition: Decomposition, rank: int) -> Distributed:
        """Return a rank's part, zeroed or empty."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the whole, 0 where they are not known beforehand."""

    @abstractmethod
    def stored_shape(self, rows: int, edges: Halo = ()) -> tuple[int, ...]:
        """Return the shape that a checkpoint holds, if it has so many rows and these edges."""

    def extents_in_checkpoint(self, parts: Sequence[Box]) -> Sequence[Box]:
        """Return where the data of the ranks lies in the whole of a checkpoint."""
        return parts

    @abstractmethod
    def signature(self) -> dict[str, Any]:
        """Return what both sides of a resize, or a file and a run, must agree on."""


def check_accessors(given: object, getter: object, setter: object) -> None:
    """Raise :class:`ValueError` unless there is either data, or a getter and a setter."""
    if (given is None) != (getter is not None) or (getter is None) != (setter is None):
        present = {"data": given, "get=": getter, "set=": setter}
        names = [name for name, one in present.items() if one is not None]
        raise ValueError(
            f"expected either data, or get= and set=, got {' and '.join(names) or 'neither'}"
        )


def dtype_problem(dtype: np.dtype[Any]) -> str:
    """Return why a dtype cannot be stored in HDF5 files, "" if it can."""
    if dtype.subdtype is not None and dtype.itemsize:
        return dtype_problem(dtype.base)
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic":
        return "dates or times without a unit"
    if not dtype.itemsize:
        return "a record with a member of no bytes"
    fields: Mapping[str, Any] = dtype.fields or {}
    members = sorted((fields[name][:2] for name in dtype.names or ()), key=lambda one: one[1])
    if any(one[1] + one[0].itemsize > other[1] for one, other in pairwise(members)):
        return "a record whose members overlap"
    return next(filter(None, (dtype_problem(member[0]) for member in members)), "")
