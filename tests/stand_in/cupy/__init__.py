"""A stand-in for CuPy, for tests: device memory is host memory, kernels are compiled for the host.

Put its folder on PYTHONPATH and ``import cupy`` finds it. It is strict where CuPy is, and late
where a GPU may be: what goes to a stream waits in a queue, and nothing of it is done before
somebody waits for it (the host for a stream, a stream for an event). So a wait that is missing
gives a wrong answer here in every run, where on a GPU it would in some.

The environment says what there is: ``STAND_IN_GPUS`` (1), ``STAND_IN_GPU_BYTES`` of each (1 GiB)
and, as for CUDA, ``CUDA_VISIBLE_DEVICES``; ``CUPY_CACHE_DIR`` is where compiled kernels are kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import float32, float64, uint8  # noqa: F401 - names that CuPy has

sys.path.append(str(Path(__file__).parents[2] / "support"))
import cuda_on_host as host

__version__ = "stand-in"

# ---------------------------------------------------------------- streams and events


class Stream:
    """A queue of work; ``at_once``: not late (the other extreme of what a GPU may do)."""

    at_once = False

    def __init__(
        self, null: bool = False, non_blocking: bool = False, priority: int | None = None
    ) -> None:
        if not (null or non_blocking):
            raise NotImplementedError("expected a stream that does not wait for the null stream")
        self._queue: deque[Callable[[], None]] = deque()
        self._captured: list[Callable[[], None]] | None = None
        _streams.append(self)

    def add(self, work: Callable[[], None]) -> None:
        (self._queue if self._captured is None else self._captured).append(work)
        if self.at_once:
            self.run()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while self._queue and not until():
            self._queue.popleft()()

    def synchronize(self) -> None:
        self.run()

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        mark = event.mark
        if mark is not None:
            self.add(mark.reach)

    def use(self) -> Stream:
        _current[-1] = self
        return self

    def __enter__(self) -> Stream:
        _current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.pop()

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> Graph:
        works, self._captured = self._captured or [], None
        return Graph(works)


class Graph:
    """Recorded work."""

    def __init__(self, works: list[Callable[[], None]]) -> None:
        self._works = works

    def launch(self, stream: Stream | None = None) -> None:
        for work in self._works:
            (stream or get_current_stream()).add(work)


class Mark:
    """A place in a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.at = stream, None
        stream.add(self._pass)

    def _pass(self) -> None:
        self.at = time.perf_counter()

    def reach(self) -> None:
        self._stream.run(until=lambda: self.at is not None)


class Event:
    """The place in a stream where it was last recorded."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.mark: Mark | None = None
        self.timed = not disable_timing

    def record(self, stream: Stream | None = None) -> None:
        self.mark = Mark(stream or get_current_stream())

    def synchronize(self) -> None:
        if self.mark is not None:
            self.mark.reach()

    @property
    def done(self) -> bool:
        return self.mark is None or self.mark.at is not None


def get_elapsed_time(start: Event, end: Event) -> float:
    if not (start.timed and end.timed and start.mark and end.mark):
        raise RuntimeError("cudaErrorInvalidResourceHandle: expected two recorded, timed events")
    if start.mark.at is None or end.mark.at is None:
        raise RuntimeError("cudaErrorNotReady: device not ready")
    # As short as it is, a span takes time.
    return max(end.mark.at - start.mark.at, 1e-9) * 1e3


_streams: list[Stream] = []
Stream.null = Stream(null=True)  # type: ignore[attr-defined]
_current: list[Stream] = [Stream.null]  # type: ignore[attr-defined]


def get_current_stream() -> Stream:
    return _current[-1]


# ---------------------------------------------------------------- devices and memory


def _visible() -> list[int]:
    there = list(range(int(os.environ.get("STAND_IN_GPUS", "1"))))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return there
    return [int(n) for n in shown.split(",") if n.strip().isdigit() and int(n) in there]


_held_bytes = 0
_device = [0]


_freed: list[np.ndarray] = []


def _forget(raw: np.ndarray, size: int) -> None:
    """Count memory as free; it stays while work may be under way that knows its address.

    CuPy's pool gives it to later work of the same stream only.
    """
    global _held_bytes
    _held_bytes -= size
    if not any(stream._queue for stream in _streams):
        _freed.clear()
    _freed.append(raw)


class CUDARuntimeError(RuntimeError):
    """As CuPy has it."""


class OutOfMemoryError(MemoryError):
    """As CuPy has it."""


class Device:
    """A device, or the one in use."""

    attributes = {"MultiProcessorCount": 2}  # noqa: RUF012 - as CuPy has it

    def __init__(self, number: int | None = None) -> None:
        self.id = _device[0] if number is None else number

    def use(self) -> Device:
        if not 0 <= self.id < len(_visible()):
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        _device[0] = self.id
        return self

    @property
    def mem_info(self) -> tuple[int, int]:
        total = int(os.environ.get("STAND_IN_GPU_BYTES", str(1 << 30)))
        return total - _held_bytes, total

    def synchronize(self) -> None:
        while any(stream._queue for stream in _streams):
            for stream in _streams:
                stream.run()


def _count() -> int:
    if not _visible():
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return len(_visible())


def _properties(number: int) -> dict[str, Any]:
    return {
        "name": b"Stand-in GPU",
        "uuid": b"stand-in GPU" + _visible()[number].to_bytes(4, "big"),
        "multiProcessorCount": 2,
    }


_pinned: list[tuple[int, int]] = []


def alloc_pinned_memory(size: int) -> Any:
    memory = np.full(-(-size // 512) * 512, 0xA5, np.uint8)
    _pinned.append((memory.ctypes.data, memory.nbytes))
    return memory


def _is_pinned(array: np.ndarray) -> bool:
    at = array.ctypes.data
    return any(start <= at and at + array.nbytes <= start + size for start, size in _pinned)


class _Pool:
    def free_all_blocks(self) -> None:
        pass

    def total_bytes(self) -> int:
        return _held_bytes


def get_default_memory_pool() -> _Pool:
    return _Pool()


get_default_pinned_memory_pool = get_default_memory_pool

# ---------------------------------------------------------------- arrays


def _host(value: Any) -> Any:
    return value._held if isinstance(value, ndarray) else value


class ndarray:  # noqa: N801 - as CuPy has it
    """An array on the device: nothing in it is known to the host without a copy."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: np.ndarray, base: ndarray | None = None) -> None:
        self._held, self._base = held, base

    @property
    def base(self) -> ndarray | None:
        return self._base

    def _view(self, held: np.ndarray) -> ndarray:
        return ndarray(held, self if self._base is None else self._base)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, key: Any) -> ndarray:
        return self._view(self._held[key])

    def __setitem__(self, key: Any, values: Any) -> None:
        if isinstance(values, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        target, source = self._held[key], _host(values)
        np.broadcast_to(source, target.shape)  # what does not fit is said at once
        get_current_stream().add(lambda: np.copyto(target, source, casting="unsafe"))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": self._held.__array_interface__["data"], "version": 3}

    def view(self, dtype: Any) -> ndarray:
        return self._view(self._held.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        return self._view(self._held.reshape(*shape))

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._held.transpose(*axes))

    def swapaxes(self, one: int, other: int) -> ndarray:
        return self._view(self._held.swapaxes(one, other))

    def get(
        self,
        stream: Stream | None = None,
        order: str = "C",
        out: np.ndarray | None = None,
        blocking: bool = True,
    ) -> np.ndarray:
        stream = stream or get_current_stream()
        target = np.empty(self.shape, self.dtype) if out is None else out
        if target.shape != self.shape or target.dtype != self.dtype:
            raise ValueError("Shape mismatch.")
        if not blocking and not (out is not None and _is_pinned(out)):
            raise ValueError("expected pinned memory for a copy that nobody waits for")
        stream.add(lambda: np.copyto(target, self._held))
        if blocking:
            stream.synchronize()
        return target

    def set(self, values: np.ndarray, stream: Stream | None = None) -> None:
        if not isinstance(values, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError("Shape mismatch.")
        if not self._held.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        # Memory that is not pinned is read before the call returns.
        source = values if _is_pinned(values) else values.copy()
        (stream or get_current_stream()).add(lambda: np.copyto(self._held, source))

    def item(self) -> Any:
        return self.get().item()

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def min(self) -> ndarray:
        return _reduced(np.min, self)

    def max(self) -> ndarray:
        return _reduced(np.max, self)

    def sum(self) -> ndarray:
        return _reduced(np.sum, self)

    def all(self) -> ndarray:
        return _reduced(np.all, self)

    def __eq__(self, other: object) -> ndarray:  # type: ignore[override]
        return _elementwise(np.equal, self, other)

    def __add__(self, other: Any) -> ndarray:
        return _elementwise(np.add, self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> ndarray:
        return _elementwise(np.multiply, self, other)

    def __iadd__(self, other: Any) -> ndarray:
        return _in_place(np.add, self, other)

    def __imul__(self, other: Any) -> ndarray:
        return _in_place(np.multiply, self, other)


for _name in ("shape", "strides", "dtype", "nbytes", "size", "ndim", "itemsize"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._held, name)))


def _elementwise(ufunc: Any, *arguments: Any, dtype: Any = None) -> ndarray:
    if any(isinstance(a, np.ndarray) for a in arguments):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    given = [_host(a) for a in arguments]
    like = [np.ones((), a.dtype) if isinstance(a, np.ndarray) else a for a in given]
    shape = np.broadcast_shapes(*(np.shape(a) for a in given))
    out = empty(shape, ufunc(*like, dtype=dtype).dtype)
    held = out._held
    get_current_stream().add(lambda: ufunc(*given, out=held, dtype=dtype))
    return out


def _in_place(ufunc: Any, array: ndarray, other: Any) -> ndarray:
    if isinstance(other, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    held, given = array._held, _host(other)
    get_current_stream().add(lambda: ufunc(held, given, out=held))
    return array


def _reduced(function: Any, array: ndarray) -> ndarray:
    held = array._held
    out = empty((), function(np.ones(1, held.dtype)).dtype)
    found = out._held
    get_current_stream().add(lambda: np.copyto(found, function(held)))
    return out


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Return an array that is full of what must not be read."""
    global _held_bytes
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    if size > Device().mem_info[0]:
        raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
    # As the pool does: at multiples of 512 bytes.
    raw = np.full(size + 512, 0xFF, np.uint8)
    start = -raw.ctypes.data % 512
    array = ndarray(raw[start : start + size].view(kind).reshape(shape))
    _held_bytes += size
    weakref.finalize(array, _forget, raw, size)
    return array


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    array = empty(shape, dtype)
    held = array._held  # work under way keeps the bytes, but not the array from being counted gone
    get_current_stream().add(lambda: held.fill(0))
    return array


def asarray(values: Any, dtype: Any = None) -> ndarray:
    if isinstance(values, ndarray):
        if dtype is None or values.dtype == np.dtype(dtype):
            return values
        array = empty(values.shape, dtype)
        array[...] = values
        return array
    given = np.array(values, dtype)  # read before the call returns
    array = empty(given.shape, given.dtype)
    held = array._held
    get_current_stream().add(lambda: np.copyto(held, given))
    return array


def ascontiguousarray(array: ndarray) -> ndarray:
    if array._held.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def asnumpy(array: Any, out: Any = None) -> np.ndarray:
    return array.get(out=out) if isinstance(array, ndarray) else np.asarray(array)


def broadcast_to(array: ndarray, shape: Any) -> ndarray:
    return array._view(np.broadcast_to(array._held, shape))


def copyto(target: ndarray, source: Any) -> None:
    target[...] = source


def subtract(one: Any, other: Any, dtype: Any = None) -> ndarray:
    return _elementwise(np.subtract, one, other, dtype=dtype)


class _Random:
    def seed(self, number: int) -> None:
        self._rng = np.random.default_rng(number)

    def random(self, shape: Any, dtype: Any = float) -> ndarray:
        return asarray(self._rng.random(shape, dtype=dtype))


random = _Random()

# ---------------------------------------------------------------- kernels


class RawModule:
    """The kernels of kernels.cu for some options."""

    def __init__(self, code: str, options: tuple[str, ...] = ()) -> None:
        self._code, self._options = code, options

    def compile(self) -> None:
        given = (option[2:].split("=", 1) for option in self._options if option[:2] == "-D")
        given_folder = os.environ.get("CUPY_CACHE_DIR")
        folder = Path(given_folder) if given_folder else host.kept(os.environ)
        folder.mkdir(parents=True, exist_ok=True)
        self._kernels = host.HostLauncher(host.compiled(dict(given), folder))

    def get_function(self, name: str) -> _Kernel:
        return _Kernel(self._kernels, name)


class _Kernel:
    num_regs = local_size_bytes = shared_size_bytes = 0
    max_threads_per_block = 1024

    def __init__(self, kernels: host.HostLauncher, name: str) -> None:
        self._kernels, self._name = kernels, name

    def __call__(self, grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
        (job,) = arguments
        if job.size != 1:
            raise TypeError("Only numpy.ndarrays of size one can be passed by value")
        by_value = job.copy()
        get_current_stream().add(lambda: self._kernels.launch(self._name, grid, block, by_value))


cuda = SimpleNamespace(
    Device=Device,
    Event=Event,
    Stream=Stream,
    alloc_pinned_memory=alloc_pinned_memory,
    get_current_stream=get_current_stream,
    get_elapsed_time=get_elapsed_time,
    nvrtc=SimpleNamespace(getVersion=lambda: (12, 0)),
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        driverGetVersion=lambda: 0,
        getDeviceCount=_count,
        getDeviceProperties=_properties,
    ),
)


@contextlib.contextmanager
def all_done() -> Iterator[None]:
    """Leave nothing in any queue (not CuPy's)."""
    try:
        yield
    finally:
        Device().synchronize()
