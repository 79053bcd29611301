"""Distributed fields: what the application states, and one rank's padded block of it.

Nothing here knows which array module holds the data: NumPy, CuPy, or any module with
``zeros``, ``asarray``, ``ascontiguousarray`` and (where its arrays do not live in host memory)
``asnumpy``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from dmr.data import gather
from dmr.data.decomposition import (
    ALIGNMENT_BYTES,
    Box,
    Decomposition,
    Halo,
    MemoryLayout,
    common_edges,
    memory_order,
)
from dmr.data.distributed import (
    Getter,
    Ranges,
    Setter,
    Spec,
    Steps,
    StoredPieces,
    check_accessors,
)
from dmr.data.exchange import (
    Boundary,
    DeviceHaloExchange,
    End,
    HaloExchange,
    boundaries_of,
)
from dmr.errors import UsageError, outside_block
from dmr.state.values import refuse_memmap

if TYPE_CHECKING:
    from mpi4py import MPI

Array = Any
"""An array of the field's own module (numpy.ndarray, cupy.ndarray, ...)."""

ArrayModule = Any
"""numpy, cupy, or a module that offers the same few functions."""


@dataclass(frozen=True)
class FieldSpec(Spec):
    """What an application states about one distributed array.

    ``initial`` returns values of shape ``box.shape``, or broadcastable to it.

    Attributes:
        halo: cells of halo: one number for all sides, or for each axis a number or
            ``(below, above)``.
        xp: array module that holds the blocks.
        order: axes from slowest to contiguous in memory; the paper's N, L, M by default.
        thinnest: least block thickness where an axis is cut, by default the halo's.
        alignment: bytes that rows are padded to; less saves memory and traffic on a CPU. Ignored
            for items whose size does not divide it.
        edge: whether the halo at the edge of the domain is moved and stored with the interior; or
            the cells there, given as ``halo`` is, if they are not as many as the halo between
            ranks: these are moved and stored.
        extra: layers of memory above the halo of each axis that has one. No exchange fills them:
            scratch arrays, which have them too, hold the last of the faces there.
        edges: cells of this halo below and above each axis; set when a run is entered.
        exchange_problem: why :meth:`Field.exchange` is not available; set when a run is entered.
    """

    halo: int | Sequence[int | tuple[int, int]] = 0
    _: KW_ONLY
    xp: ArrayModule = field(default=np, compare=False)
    order: tuple[int, ...] | None = None
    thinnest: int | None = None
    alignment: int = ALIGNMENT_BYTES
    edge: bool | int | Sequence[int | tuple[int, int]] = False
    extra: int = 0
    edges: Halo = ()
    exchange_problem: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = len(self.shape)
        if self.alignment % np.dtype(self.dtype).itemsize:
            object.__setattr__(self, "alignment", np.dtype(self.dtype).itemsize)
        if self.order is not None and sorted(self.order) != list(range(axes)):
            raise ValueError(f"expected an order of {axes} axes, got {self.order}")
        for name, sides in (("a halo", self.halo), ("an edge", self.edge)):
            if not _are_sides(sides, axes):
                raise ValueError(
                    f"expected {name} of 0 or more on each of {axes} axes, got {sides}"
                )

    @property
    def halos(self) -> Halo:
        """The halo of every axis as (below, above)."""
        return _sides(self.halo, len(self.shape))

    @property
    def edge_halos(self) -> Halo:
        """The halo at the edge of the domain, of every axis as (below, above)."""
        return self.halos if isinstance(self.edge, bool) else _sides(self.edge, len(self.shape))

    def halos_of(self, box: Box) -> Halo:
        """Return the halo of a block as (below, above)."""
        sides = zip(self.halos, self.edge_halos, box.start, box.stop, self.shape, strict=True)
        return tuple(
            (edge[0] if start == 0 else halo[0], edge[1] if stop == cells else halo[1])
            for halo, edge, start, stop, cells in sides
        )

    def thinnest_blocks(self) -> tuple[int, ...]:
        """Return the least thickness of a block along each split axis."""
        if self.thinnest is not None:
            return (self.thinnest,) * len(self.split)
        return tuple(max(1, *self.halos[axis]) for axis in self.split)

    def agreed(self, name: str, decomposition: Decomposition, halos: Sequence[Halo]) -> Self:
        """Return this specification with the attributes that depend on the halos of all ranks."""
        other = next((rank for rank, halo in enumerate(halos) if halo != halos[0]), None)
        problem = ""
        if other is not None:
            problem = (
                f"field {name}: expected one halo on all ranks for exchange(), got {halos[0]} on "
                f"rank 0 and {halos[other]} on rank {other}: exchange such halos by your own "
                "messages, on run.comm"
            )
        if self.edge is False:
            return replace(self, edges=(), exchange_problem=problem)
        if self.edge is not True:
            cells = self.edge_halos
            carried = cells if any(map(any, cells)) else ()
            return replace(self, edges=carried, exchange_problem=problem)
        ranks = [(halo, decomposition.box(rank)) for rank, halo in enumerate(halos)]
        edges = []
        for axis, extent in enumerate(self.shape):
            low = {halo[axis][0] for halo, box in ranks if box.start[axis] == 0}
            high = {halo[axis][1] for halo, box in ranks if box.stop[axis] == extent}
            edges.append((low.pop() if len(low) == 1 else 0, high.pop() if len(high) == 1 else 0))
        carried = tuple(edges) if any(map(any, edges)) else ()
        return replace(self, edges=carried, exchange_problem=problem)

    def memory_layout(self, interior: tuple[int, ...], halos: Halo | None = None) -> MemoryLayout:
        """Return how a block with this interior lies in memory.

        Args:
            halos: of the block, by default those between ranks.
        """
        order = memory_order(self.shape) if self.order is None else self.order
        itemsize = np.dtype(self.dtype).itemsize
        halo = tuple(
            (low, high + self.extra) if low or high else (0, 0)
            for low, high in (halos or self.halos)
        )
        return MemoryLayout(interior, halo, itemsize, order, self.alignment)

    def block(self, decomposition: Decomposition, rank: int) -> Field:
        """Return a rank's block, zeroed."""
        return Field(self, decomposition, rank)

    def storage(self, box: Box, memory_layout: MemoryLayout) -> Array:
        """Return the memory of a block, C-contiguous, slowest axis first."""
        return allocate(self.xp, memory_layout, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the global interior."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def stored_shape(self, rows: int, edges: Halo = ()) -> tuple[int, ...]:
        """Return the shape that a checkpoint holds, if it has so many rows and these edges."""
        return widened_shape(self.shape, edges)

    def signature(self) -> dict[str, Any]:
        """Return what both sides of a resize, or a file and a run, must agree on."""
        return {
            "shape": list(self.shape),
            "dtype": np.dtype(self.dtype).str,
            "split": list(self.split),
            **({"row_major": True} if self.row_major else {}),
            **({"constant": True} if self.constant else {}),
        }


STAGED_BYTES = 64 << 20
"""Bytes of a block on a device that are made contiguous there before they go to the host."""


class Field:
    """One rank's block of a distributed array.

    Attributes:
        spec: what the application stated.
        decomposition: who owns which cells in this world.
        rank: whose block it is.
        box: the interior in global indices.
        storage: the C-contiguous memory, slowest axis first, rows with their padding.
        padded: interior, halo and :attr:`FieldSpec.extra` in axis order, a view of ``storage``.
        interior: the owned cells in axis order, a view of ``storage``.
        comm: the library's own ranks of the world that the block is part of, once it is.
    """

    comm: MPI.Intracomm | None = None

    def __init__(self, spec: FieldSpec, decomposition: Decomposition, rank: int) -> None:
        self.spec = spec
        self.decomposition, self.rank = decomposition, rank
        self.box = decomposition.box(rank)
        self.memory_layout = spec.memory_layout(self.box.shape, spec.halos_of(self.box))
        self.storage = spec.storage(self.box, self.memory_layout)
        self._spare: Array | None = None
        self._exchange: HaloExchange | None = None
        self._set_views()

    def update(self) -> None:
        """Read the block by the application's getter, if it has one.

        Raises:
            ValueError: on this rank alone: the getter returns an array of another shape or type.
        """
        if self.spec.getter is None:
            return
        array = host_array(self.spec.getter())
        if array.shape != self.padded.shape or array.dtype != self.dtype:
            raise ValueError(
                f"expected get() to return an array of shape {self.padded.shape} and type "
                f"{self.dtype}, got {array.shape} and {array.dtype}"
            )
        self.storage = writable(array, self.memory_layout.order)
        self._set_views()

    def deliver(self) -> None:
        """Give ``padded`` to the application's setter, if it has one."""
        if self.spec.setter is not None:
            self.spec.setter(self.padded)

    def release(self) -> None:
        """Do nothing: the block is the application's own memory."""

    def scratch(self) -> Array:
        """Return a zeroed array laid out as ``padded``, for the application's own use."""
        return logical_view(
            allocate(self.spec.xp, self.memory_layout, self.spec.dtype), self.memory_layout
        )

    @property
    def spare(self) -> Array:
        """A second array laid out as ``padded``, for steps that cannot work in place."""
        if self._spare is None:
            self._spare = allocate(self.spec.xp, self.memory_layout, self.spec.dtype)
        return logical_view(self._spare, self.memory_layout)

    def flip(self) -> None:
        """Make the spare array the field, and the field's memory the spare."""
        if self._spare is None:
            raise RuntimeError("expected a step written into Field.spare before Field.flip")
        self.storage, self._spare = self._spare, self.storage
        self._set_views()

    def rebind(self, padded: Array) -> None:
        """Make another array the field, as it is: of the shape and memory order of ``padded``.

        For programs that step from one array of their own into another and swap the two.

        Raises:
            ValueError: it is laid out in another way, or mapped from a file.
        """
        refuse_memmap(padded)
        refuse_masked(padded)
        storage = padded.transpose(self.memory_layout.order)
        if storage.shape != self.storage.shape or storage.dtype != self.storage.dtype:
            raise ValueError(
                f"expected an array of shape {self.padded.shape} and type {self.storage.dtype}, "
                f"got {padded.shape} and {padded.dtype}"
            )
        if not storage.flags.c_contiguous:
            raise ValueError("expected an array in the field's own memory order, without gaps")
        self.storage = storage
        self._set_views()

    def exchange(self, boundary: End | Sequence[Boundary] = None) -> None:
        """Fill the halo from the neighbours, corners included (collective among them).

        Args:
            boundary: beyond the edges of the domain: ``"periodic"``, ``"edge"`` (the nearest
                cell's value), a number, or None to leave what is there. One for all axes, or for
                each axis one or a pair (low, high); an axis is periodic at both ends or at none.

        Raises:
            ExchangeError: the boundary is none of these, or a block of an axis that is cut is
                thinner than its halo.
            UsageError: on all ranks together, if the halo differs from rank to rank.
            RuntimeError: the field is not part of a run.
        """
        self.start_exchange(boundary)
        self.finish_exchange()

    def start_exchange(self, boundary: End | Sequence[Boundary] = None) -> None:
        """Do as much of :meth:`exchange` as needs no message along the first axis; post those.

        Until :meth:`finish_exchange` cells may be read but those of the first axis's halo, and
        none be changed. :meth:`ready` returns the layers that a step can take meanwhile.
        """
        self.update()
        if self._exchange is None or self._exchange.boundary != boundary:
            self._prepare_exchange(boundary)
        if self._exchange is not None:
            self._exchange.start(self.padded)

    def ready(self, boundary: End | Sequence[Boundary] = None) -> tuple[int, int]:
        """Return the interior's layers of axis 0 that a step can take before the messages arrive.

        They are a range: all layers but those within a halo of a neighbour; empty (low >= high)
        where the block is thin, or axis 0 has no halo.
        """
        below, above = boundaries_of(boundary, len(self.spec.shape))[0]
        reach, cells = self.spec.halos_of(self.box)[0], self.box.shape[0]
        if not any(reach):
            return 0, 0
        neighbours = self.neighbours(0, periodic=below == above == "periodic")
        low, high = (rank not in (None, self.rank) for rank in neighbours)
        return reach[0] * low, cells - reach[1] * high

    def _prepare_exchange(self, boundary: End | Sequence[Boundary]) -> None:
        if self.comm is None:
            raise outside_block("exchange()")
        if self.spec.exchange_problem:
            raise UsageError(self.spec.exchange_problem)
        if self._exchange is not None:
            self._exchange.free()
            self._exchange = None
        kind = HaloExchange if self.spec.xp is np else DeviceHaloExchange
        self._exchange = kind(
            self.comm,
            self.decomposition,
            self.rank,
            self.memory_layout,
            self.spec.halos_of(self.box),
            boundary,
            (self.dtype, self.spec.xp),
            None if isinstance(self.spec.edge, bool) else (self.spec.halos, self.spec.edge_halos),
        )

    def finish_exchange(self) -> None:
        """Wait for what :meth:`start_exchange` has left under way."""
        if self._exchange is not None:
            self._exchange.finish()
        self.deliver()

    def neighbours(self, axis: int, *, periodic: bool = False) -> tuple[int | None, int | None]:
        """Return the ranks whose blocks lie below and above along an axis, None for none.

        On a periodic axis that is not cut both are this rank.
        """
        below, above = (
            self.decomposition.neighbour(self.rank, axis, way, periodic=periodic) for way in (-1, 1)
        )
        return below, above

    def join(self, comm: MPI.Intracomm | None) -> None:
        """Enter a world with these ranks of the library's own; None: leave the one before."""
        if self._exchange is not None and self.comm is not None:
            self._exchange.free()
        self.comm, self._exchange = comm, None

    @property
    def nbytes(self) -> int:
        """Bytes of the block, of :attr:`spare` and of the messages of an exchange."""
        arrays = self.memory_layout.allocation_bytes * (1 if self._spare is None else 2)
        return arrays + (0 if self._exchange is None else self._exchange.nbytes)

    @property
    def edges(self) -> Halo:
        """Cells of the halo at the edge of the domain that are transferred and stored, or ()."""
        return self.spec.edges

    def carried(self, edges: Halo | None = None) -> Field:
        """Return this block with the halo at the edge of the domain as part of its interior.

        Args:
            edges: cells of it, no more than :attr:`edges`, which is the default.
        """
        edges = self.edges if edges is None else edges
        if not edges:
            return self
        block = copy.copy(self)
        block.decomposition = decomposition = widened(self.decomposition, edges)
        block.box = box = decomposition.box(self.rank)
        rest = tuple(
            (
                low - (0 if box.start[axis] else edges[axis][0]),
                high - (edges[axis][1] if box.stop[axis] == decomposition.shape[axis] else 0),
            )
            for axis, (low, high) in enumerate(self.memory_layout.halo)
        )
        block.memory_layout = replace(self.memory_layout, interior=box.shape, halo=rest)
        block.spec = replace(self.spec, shape=decomposition.shape, edges=())
        block._set_views()
        return block

    def gather(self) -> npt.NDArray[Any] | None:
        """Return the whole array on rank 0, None on the others (collective)."""
        self.update()
        return gather.whole(self.comm, self)

    def _set_views(self) -> None:
        self.padded = logical_view(self.storage, self.memory_layout)
        self.interior = self.padded[self.memory_layout.interior_slices()]

    def prefault(self) -> None:
        """Have the pages of the block's memory exist before its data arrives.

        The move of a warm resize of 256 MiB from 1 to 2 ranks (``dmr bench``, by turns) took 95 ms;
        without this it took 1.8 s, on a virtual machine that gets new memory from its host.
        """
        if not isinstance(self.spec, WrappedSpec):  # there the program may have set a boundary
            self.storage.view(np.uint8)[...] = 0

    def moved_to(self, decomposition: Decomposition, rank: int) -> Field:
        """Return a rank's zeroed block of another decomposition; this one is of no use then.

        It lies in this one's memory where it fits, whose pages are there. To move to 128 MiB of 256
        took 9 ms of CPU time so, with new memory 25 ms (wall time 80 and 280 ms): medians of 30
        moves by turns, on a busy virtual machine that gets new memory from its host.
        """
        box = decomposition.box(rank)
        layout = self.spec.memory_layout(box.shape, self.spec.halos_of(box))
        memory: Any = self.storage.base if self.on_host else None
        own = isinstance(memory, np.ndarray) and memory.flags.owndata and memory.ndim == 1
        wrapped = isinstance(self.spec, WrappedSpec)
        if wrapped or not own or memory.nbytes < layout.allocation_bytes:
            return self.spec.block(decomposition, rank)
        del self.storage, self.padded, self.interior
        with contextlib.suppress(ValueError):  # the program has a view of it
            memory.resize(layout.allocation_bytes)
        memory[...] = 0
        self.decomposition, self.rank, self.box = decomposition, rank, box
        self.memory_layout, self._spare = layout, None
        self.storage = laid_out(memory, layout, self.spec.dtype)
        self._set_views()
        return self

    def initialise(self) -> None:
        """Set the interior to the application's initial values."""
        if not isinstance(self.spec, WrappedSpec):  # its array holds them
            values = self.spec.xp.asarray(self.spec.initial(self.box), dtype=self.spec.dtype)
            self.interior[...] = values

    def pack(self, box: Box) -> npt.NDArray[Any]:
        """Return a contiguous host copy of the cells of ``box``, in axis order."""
        xp: Any = self.spec.xp
        values = xp.ascontiguousarray(self.padded[box.slices(self._origin)])
        return xp.asnumpy(values) if hasattr(xp, "asnumpy") else np.asarray(values)

    def unpack(self, box: Box, values: npt.NDArray[Any]) -> None:
        """Set the cells of ``box`` from a contiguous host array of shape ``box.shape``."""
        self.padded[box.slices(self._origin)] = self.spec.xp.asarray(values)

    @property
    def _origin(self) -> tuple[int, ...]:
        """Global indices of the first cell of ``padded``."""
        return tuple(
            start - low
            for start, (low, _) in zip(self.box.start, self.memory_layout.halo, strict=True)
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a cell."""
        return np.dtype(self.spec.dtype)

    @property
    def on_host(self) -> bool:
        """Whether the block lies in host memory, where MPI can use it in place."""
        return isinstance(self.storage, np.ndarray)

    def sending(self, comm: MPI.Comm, new: Decomposition, *, on_host: bool) -> Steps[int]:
        """Send the interior to its owners in another decomposition; see :mod:`dmr.data.streams`."""
        from dmr.data import streams

        return streams.sending(comm, self, new, on_host=on_host)

    def receiving(self, comm: MPI.Comm, old: Decomposition, *, on_host: bool) -> Steps[bool]:
        """Fill the interior from its owners in another decomposition."""
        from dmr.data import streams

        return streams.receiving(comm, self, old, on_host=on_host)

    def keep(self, old: Field) -> int:
        """Copy what ``old``, of the same rank, holds of this block; return its bytes (merge)."""
        box = old.box.intersect(self.box)
        if not box.size:
            return 0
        box = self.decomposition.widened(box, common_edges(self.edges, old.edges))
        self.padded[box.slices(self._origin)] = old.padded[box.slices(old._origin)]
        return box.size * self.dtype.itemsize

    def gathered(
        self, comm: MPI.Intracomm
    ) -> tuple[tuple[int, ...], Iterator[npt.NDArray[Any] | None]]:
        """Return the shape of the whole, and its rows in pieces, on rank 0 (collective)."""
        return self.spec.shape, (values for _, values in gather.slabs(comm, self))

    def stored_box(self) -> Box | None:
        """Return the extent of what this rank writes, None where another rank writes it."""
        return self.box if self.decomposition.split or self.rank == 0 else None

    def stored_pieces(self, limit_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Return what this rank writes, contiguous and on the host, in pieces along axis 0."""
        return (self.pack(box) for box in gather.own_boxes(self, limit_bytes))

    @property
    def stored_order(self) -> tuple[int, ...]:
        """The axes of what this rank writes, from the slowest in memory to the contiguous one."""
        return self.memory_layout.order

    def store_into(self, out: npt.NDArray[Any]) -> None:
        """Copy the interior into a host array with its axes in :attr:`stored_order`."""
        xp, values = self.spec.xp, self.interior.transpose(self.memory_layout.order)
        if not self.on_host:
            row_bytes = max(1, prod(values.shape[1:]) * self.dtype.itemsize)
            rows = max(1, STAGED_BYTES // row_bytes)
            for at in range(0, len(out), rows):
                part = xp.ascontiguousarray(values[at : at + rows])
                xp.asnumpy(part, out=out[at : at + rows])
            return
        if self.dtype.names is not None:  # all bytes at once, not member by member
            raw = np.dtype((np.void, self.dtype.itemsize))
            out, values = out.view(raw), values.view(raw)
        out[...] = values

    def restore(self, read: StoredPieces) -> None:
        """Set the interior from a checkpoint."""
        for box, values in read(self.box):
            self.unpack(box, values.view(self.dtype))


def _are_sides(value: Any, axes: int) -> bool:
    """Return whether a value states numbers of cells below and above each axis."""
    try:
        sides = _sides(value, axes)
        return [len(one) for one in sides] == [2] * axes and min(map(min, sides), default=0) >= 0
    except TypeError:
        return False


def _sides(value: int | Sequence[int | tuple[int, int]], axes: int) -> Halo:
    """Return numbers of cells as (below, above) for each axis."""
    if isinstance(value, int):
        return ((value, value),) * axes
    return tuple((one, one) if isinstance(one, int) else one for one in value)


def widened_shape(shape: Sequence[int], edges: Halo) -> tuple[int, ...]:
    """Return a shape with the cells of edges below and above each axis."""
    rows = zip(shape, edges or ((0, 0),) * len(shape), strict=False)
    return tuple(cells + sum(edge) for cells, edge in rows)


def widened(decomposition: Decomposition, edges: Halo) -> Decomposition:
    """Return a decomposition whose outermost blocks include the halo at the edge of the domain."""
    shape = widened_shape(decomposition.shape, edges)
    bounds = []
    for at, axis in enumerate(decomposition.split):
        inner = [decomposition.part(at, index)[0] for index in range(1, decomposition.grid[at])]
        bounds.append((0, *(start + edges[axis][0] for start in inner), shape[axis]))
    return replace(decomposition, shape=shape, bounds=tuple(bounds))


def refuse_masked(array: Array) -> None:
    """Refuse a masked array, whose mask would not be moved with its data.

    Raises:
        ValueError: the array is masked.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            "expected an array without a mask, got a masked array: declare its data and its mask "
            "as two fields"
        )


def host_array(array: Any) -> npt.NDArray[Any]:
    """Return an array of the application's own as NumPy's.

    Raises:
        ValueError: it is masked or mapped from a file.
    """
    refuse_memmap(array)
    refuse_masked(array)
    return np.asarray(array)


def writable(array: npt.NDArray[Any], order: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array with its axes in an order, without gaps: its own memory if possible."""
    storage = array.transpose(order)
    return storage if storage.flags.c_contiguous and storage.flags.writeable else storage.copy("C")


def allocate(xp: ArrayModule, memory_layout: MemoryLayout, dtype: npt.DTypeLike) -> Array:
    """Return zeroed storage whose first interior element of every row is aligned."""
    return laid_out(xp.zeros(memory_layout.allocation_bytes, dtype=np.uint8), memory_layout, dtype)


def laid_out(raw: Array, memory_layout: MemoryLayout, dtype: npt.DTypeLike) -> Array:
    """Return bytes, of which there are enough, as the storage of a block."""
    interface = getattr(raw, "__cuda_array_interface__", None) or raw.__array_interface__
    shift = memory_layout.shift_bytes(int(interface["data"][0]))
    items = raw[shift : shift + int(np.prod(memory_layout.storage)) * memory_layout.itemsize]
    return items.view(np.dtype(dtype)).reshape(memory_layout.storage)


def logical_view(storage: Array, memory_layout: MemoryLayout) -> Array:
    """Return interior and halo of a block in axis order, without the padding of its rows."""
    row = memory_layout.padded[memory_layout.order[-1]]
    inverse = tuple(memory_layout.order.index(axis) for axis in range(len(memory_layout.order)))
    return storage[..., :row].transpose(inverse)


# --- fields over arrays that the application owns: wrapped, not copied ---------------------------


def adapt(
    array: npt.NDArray[Any] | None = None,
    shape: tuple[int, ...] = (),
    *,
    get: Getter | None = None,
    set: Setter | None = None,  # noqa: A002
    halo: int | Sequence[int | tuple[int, int]] = 0,
    edge: int | Sequence[int | tuple[int, int]] | None = None,
    split: tuple[int, ...] = (0,),
    ranges: Ranges | None = None,
    grid: Callable[[int], Sequence[int]] | None = None,
    row_major: bool = False,
    constant: bool = False,
) -> FieldSpec:
    """State a field that lives in an array of the application's own, or that it gets and sets::

        dmr.adapt(u, (N, M), halo=1)
        dmr.adapt(get=lambda: model.u, set=lambda u: setattr(model, "u", u), shape=(N, M), halo=1)

    The field's ``padded`` is a view of ``array``. In the first world its interior holds the
    initial values; in one that takes over, the moved data is written into it, including the halo at
    the edge of the domain. A rank that strategy merge keeps gets another array, laid out alike, so
    read ``padded`` in ``build``.

    Args:
        array: this rank's padded array, interior and halo, in C or Fortran order (or any other
            order of the axes without gaps).
        shape: global extents, without halo.
        get: in place of ``array``, for arrays that a program replaces or that a library holds:
            returns this rank's padded array, of any memory order. Called here, before each resize,
            checkpoint and copy in memory, and by ``exchange`` and ``gather``.
        set: ``set(array)`` has the program take this rank's padded array. Called on all ranks of a
            world that goes on, after ``build`` and before ``load``, and by ``exchange``.
        halo, split, grid, row_major: as of :class:`FieldSpec`.
        edge: cells of the array beyond the edge of the domain, given as ``halo`` is, if they are
            not as many as the halo between ranks. They are the program's own data: they move, and
            ``exchange`` changes them only by a boundary.
        ranges: ``ranges(cells, parts)`` returns where the parts of an axis begin, then ``cells``;
            by default those of :func:`dmr.split_range`.
        constant: whether the program sets it before the block in every set of ranks, to the same,
            and never again: then a resize does not send it, but compares.

    Raises:
        ValueError: the array has other axes, or gaps, or a mask, or is mapped from a file; or there
            are both an array and ``get``, or only one of ``get`` and ``set``. A shape other than
            that of this rank's block is refused when the run is entered.
    """
    check_accessors(array, get, set)
    array = host_array(array if get is None else get())
    if array.ndim != len(shape):
        raise ValueError(f"expected an array of {len(shape)} axes, got {array.ndim}")
    axes = tuple(range(array.ndim))
    falling = np.argsort([-abs(step) for step in array.strides], kind="stable")
    orders = (axes, axes[::-1], tuple(falling.tolist()))
    order = next((one for one in orders if array.transpose(one).flags.c_contiguous), None)
    if get is not None:
        order = order or axes
        array = writable(array, order).transpose(np.argsort(order))
    if order is None:
        raise ValueError(
            f"expected an array in C or Fortran order, without gaps, got strides {array.strides}"
        )
    return WrappedSpec(
        shape,
        array.dtype,
        lambda box: None,
        halo,
        split=split,
        order=order,
        alignment=max(1, array.dtype.itemsize),
        ranges=ranges,
        grid=grid,
        row_major=row_major,
        constant=constant,
        getter=get,
        setter=set,
        edge=True if edge is None else edge,
        source=[array],
    )


@dataclass(frozen=True)
class WrappedSpec(FieldSpec):
    """A field over an array of the application's own, whose rows have no padding.

    Attributes:
        source: the array, which holds the initial values, until a block has it.
    """

    source: list[Array] = field(default_factory=list, compare=False)

    def storage(self, box: Box, memory_layout: MemoryLayout) -> Array:
        """Return the memory of the application's array, or of a new one laid out alike.

        Raises:
            ValueError: the application's array is not the block of this box.
        """
        if not self.source:
            return np.zeros(memory_layout.storage, self.dtype)
        array = self.source.pop()
        if array.shape != memory_layout.padded:
            raise ValueError(
                f"expected an array of shape {memory_layout.padded} for cells {box.start} to "
                f"{box.stop} and their halo, got {array.shape}; "
                "cut axes by dmr.split_range, or state the cut with ranges="
            )
        return array.transpose(memory_layout.order)
