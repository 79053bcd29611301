"""Halo messages of blocks in device memory: packed there, staged in pinned memory.

A message is a box of cells, contiguous in axis order, as the exchange of host arrays has it; so
ranks with and without a GPU can be neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.numerics.cuda.job import CELL_BLOCK, Macros, job_type
from mpdata.numerics.cuda.stepper import Launch, Launcher, Plan, Triple, address, cell_grid

Array = Any
Where = tuple[slice, ...]


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


def copy_plan(source: Array, target: Array) -> Plan:
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
    # Threads side by side take cells side by side in memory, of the array with the rows.
    axes = sorted(range(3), key=lambda axis: source.strides[axis])
    size = source.dtype.itemsize
    job["stride"][0] = [source.strides[axis] // size for axis in axes]
    job["out_stride"][0] = [target.strides[axis] // size for axis in axes]
    job["count"][0] = [source.shape[axis] for axis in axes]
    job["psi"], job["out"] = address(source), address(target)
    x, y, z = (int(n) for n in job["count"][0])
    return Plan([Launch("copy_box", cell_grid(x, y, z), CELL_BLOCK, job)])


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
        self._launcher, self._transfer = launcher, transfer

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return int(self.device.nbytes + self.host.nbytes)

    def pack(self, array: Array, where: Where) -> None:
        """Enqueue: a box of ``array`` into the host buffer. Wait for the stream before sending."""
        self._launcher.run(copy_plan(array[where], self.device))
        self._transfer(self.host, self.device)

    def unpack(self, array: Array, where: Where) -> None:
        """Enqueue: what has arrived in the host buffer into a box of ``array``."""
        self._transfer(self.device, self.host)
        self._launcher.run(copy_plan(self.device, array[where]))


def cupy_message(cupy: Any, launcher: Launcher, shape: Triple, dtype: npt.DTypeLike) -> Message:
    """Return a message of CuPy arrays with pinned host memory."""
    device = cupy.empty(shape, dtype)
    host = pinned(cupy, shape, dtype)

    def transfer(target: Array, source: Array) -> None:
        if source is device:
            source.get(out=target, blocking=False)
        else:
            target.set(source)

    return Message(launcher, shape, device, host, transfer)


def pinned(cupy: Any, shape: Triple, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a host array in pinned memory, which lives as long as the array."""
    kind = np.dtype(dtype)
    items = int(np.prod(shape))
    memory = cupy.cuda.alloc_pinned_memory(items * kind.itemsize)
    array: npt.NDArray[Any] = np.frombuffer(memory, kind, items).reshape(shape)
    return array
