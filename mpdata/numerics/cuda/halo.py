"""The halo of blocks in device memory: boxes of cells copied there, messages by pinned memory.

A message is a box of cells, contiguous in axis order, as the exchange of host arrays has it; so
ranks with and without a GPU can be neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import LayerCopy
from mpdata.numerics.cuda.device import CupyLauncher, load_cupy
from mpdata.numerics.cuda.job import CELL_BLOCK, Macros, job_type
from mpdata.numerics.cuda.memory import address
from mpdata.numerics.cuda.stepper import Launch, Launcher, LaunchPlan, Triple, cell_grid

Array = Any
Where = tuple[slice, ...]
Pair = tuple[Array, Array]
"""Two views of one shape: from the first into the second."""

FEW_CELLS = 16
PLANS_KEPT = 256


def packing_macros(dtype: npt.DTypeLike) -> Macros:
    """Return the options of kernels.cu for copying boxes."""
    real = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    flags = ("LIMITER", "GAUGE", "THIRD_ORDER", "DIVERGENT", "UNIT_DENSITY")
    return {
        "REAL": real,
        "EPSILON": "0",
        "AXES": "1",
        **{f"FILL_{n}": "0" for n in range(3)},
        **dict.fromkeys(flags, "0"),
        "CELL_THREADS": str(CELL_BLOCK[0] * CELL_BLOCK[1] * CELL_BLOCK[2]),
        "TILE_X": "0",
        "TILE_Y": "0",
        "TILE_BLOCKS": "0",
        "TILE_UNROLL": "0",
    }


def copy_plan(source: Array, target: Array) -> LaunchPlan:
    """Return the launch that copies one strided view into another of its shape (three axes).

    Raises:
        ValueError: shapes or types that differ.
    """
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(
            f"expected two boxes of one shape and type, got {source.shape} {source.dtype} and "
            f"{target.shape} {target.dtype}"
        )
    job = np.zeros(1, job_type(source.dtype))
    # Threads side by side take cells side by side in memory, of the array with the rows; but not
    # along an axis of a few cells, on which most of them would have none.
    steps = [a + b for a, b in zip(source.strides, target.strides, strict=True)]
    axes = sorted(range(3), key=lambda axis: (source.shape[axis] < FEW_CELLS, steps[axis]))
    size = source.dtype.itemsize
    job["stride"][0] = [source.strides[axis] // size for axis in axes]
    job["out_stride"][0] = [target.strides[axis] // size for axis in axes]
    job["count"][0] = [source.shape[axis] for axis in axes]
    job["psi"], job["out"] = address(source), address(target)
    x, y, z = (int(n) for n in job["count"][0])
    return LaunchPlan([Launch("copy_box", cell_grid(x, y, z), CELL_BLOCK, job)])


class Copies:
    """Runs copies, planned once: a halo is filled from the same boxes of an array in every step."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._kept: dict[tuple[Any, ...], list[LaunchPlan]] = {}

    def run(self, array: Array, key: tuple[Any, ...], pairs: Callable[[], Iterable[Pair]]) -> None:
        """Enqueue copies in and out of ``array``, which ``pairs`` states if they are new."""
        key = (address(array), *key)
        if key not in self._kept:
            if len(self._kept) >= PLANS_KEPT:
                self._kept.clear()
            self._kept[key] = [copy_plan(source, target) for source, target in pairs()]
        for plan in self._kept[key]:
            self._launcher.run(plan)


class Message:
    """One halo message's buffers: contiguous on the device, and pinned on the host.

    Args:
        launcher: the kernels built with :func:`packing_macros`.
        shape: of the box.
        device: a contiguous device array of that shape.
        host: a host array of that shape (pinned, so that copies go by themselves).
        transfer: copies (target, source) between the two, on the current stream.
    """

    def __init__(
        self, launcher: Launcher, shape: Triple, device: Array, host: Array, transfer: Any
    ) -> None:
        self.shape, self.device, self.host = shape, device, host
        self._copies, self._transfer = Copies(launcher), transfer

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return int(self.device.nbytes + self.host.nbytes)

    def pack(self, array: Array, where: Where) -> None:
        """Enqueue: a box of ``array`` into the host buffer. Wait for the stream before sending."""
        self._copies.run(array, ("pack", *bounds(where)), lambda: [(array[where], self.device)])
        self._transfer(self.host, self.device)

    def unpack(self, array: Array, where: Where) -> None:
        """Enqueue: what has arrived in the host buffer into a box of ``array``."""
        self._transfer(self.device, self.host)
        self._copies.run(array, ("unpack", *bounds(where)), lambda: [(self.device, array[where])])


def bounds(where: Where) -> list[tuple[int, int]]:
    """Return a box as something that can be looked up."""
    return [(part.start, part.stop) for part in where]


def cupy_message(cupy: Any, launcher: Launcher, shape: Triple, dtype: npt.DTypeLike) -> Message:
    """Return a message of CuPy arrays with pinned host memory."""
    device = cupy.empty(shape, dtype)
    host = pinned(cupy, shape, dtype)

    def transfer(target: Array, source: Array) -> None:
        stream = cupy.cuda.get_current_stream()
        if source is device:
            source.get(stream, out=target, blocking=False)
        else:
            target.set(source, stream)

    return Message(launcher, shape, device, host, transfer)


def pinned(cupy: Any, shape: Triple, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a host array in pinned memory, which lives as long as the array."""
    kind = np.dtype(dtype)
    items = int(np.prod(shape))
    memory = cupy.cuda.alloc_pinned_memory(items * kind.itemsize)
    array: npt.NDArray[Any] = np.frombuffer(memory, kind, items).reshape(shape)
    return array


class DeviceHaloCopier:
    """What the halo exchange copies, on a device (:class:`mpdata.parallel.halo.HaloCopier`).

    Args:
        dtype: of the arrays.
        apart: whether copies go to a stream of their own, beside what is being computed; the
            exchange of messages needs that, a rank without neighbours does not.

    Raises:
        InputError: no CuPy, or no GPU that it can use.
    """

    deferred = True

    def __init__(self, dtype: npt.DTypeLike, *, apart: bool) -> None:
        self._cupy, self._dtype = load_cupy(), np.dtype(dtype)
        self._launcher = CupyLauncher(packing_macros(dtype))
        self._copies = Copies(self._launcher)
        self._values: dict[float, Array] = {}
        cuda = self._cupy.cuda
        # Ahead of the step's own blocks, which fill the device: neighbours wait for messages.
        self._stream = cuda.Stream(non_blocking=True, priority=-1) if apart else None
        self._events = [cuda.Event(disable_timing=True) for _ in range(2)]

    def message(self, shape: Triple) -> Message:
        """Return room for a box of cells on its way from or to another rank."""
        return cupy_message(self._cupy, self._launcher, shape, self._dtype)

    def begin(self) -> None:
        """Copy from now on what has been computed so far; all messages' host memory is free."""
        if self._stream is not None:
            self._stream.synchronize()  # what last arrived has left the host
            computed = self._events[0]
            self._cupy.cuda.get_current_stream().record(computed)
            self._stream.wait_event(computed)

    def wait(self) -> None:
        """Wait until what has been packed is in host memory."""
        if self._stream is not None:
            self._stream.synchronize()

    def release(self) -> None:
        """Compute from now on with what has been copied so far."""
        if self._stream is not None:
            copied = self._events[1]
            self._stream.record(copied)
            self._cupy.cuda.get_current_stream().wait_event(copied)

    def pack(self, message: Message, array: Array, where: Where) -> None:
        """Enqueue: a box of ``array`` into a message."""
        with self._streaming():
            message.pack(array, where)

    def unpack(self, message: Message, array: Array, where: Where) -> None:
        """Enqueue: a message that has arrived into a box of ``array``."""
        with self._streaming():
            message.unpack(array, where)

    def layers(self, array: Array, axis: int, copies: Iterable[LayerCopy]) -> None:
        """Enqueue :func:`mpdata.grid.copy_layers`."""
        wanted = tuple(copies)

        def pairs() -> Iterator[Pair]:
            layers = array.swapaxes(0, axis)
            for copy in wanted:
                to = layers[copy.to]
                of = self._value(copy.value) if copy.of is None else layers[copy.of]
                yield self._cupy.broadcast_to(of, to.shape), to

        with self._streaming():
            parts = [(c.to.start, c.to.stop, c.of and (c.of.start, c.of.stop)) for c in wanted]
            values = [c.value for c in wanted]
            self._copies.run(array, ("layers", axis, *parts, *values), pairs)

    def _streaming(self) -> Any:
        return nullcontext() if self._stream is None else self._stream

    def _value(self, value: float) -> Array:
        """Return one cell of this value, written on the stream that reads it."""
        if value not in self._values:
            self._values[value] = self._cupy.asarray(np.full((1, 1, 1), value, self._dtype))
        return self._values[value]
