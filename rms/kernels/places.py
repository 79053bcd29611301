"""A kernel, the place where it runs, and its data, moved there and back."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rms.kernels.model import Affinity, Resource


@dataclass(frozen=True)
class Kernel:
    """The code of a computation for one kind of device.

    Attributes:
        function: takes the data, or the result of ``copy_in``. A generator function has yield
            points and must leave its progress in the data. A function for another node must belong
            to a module (or to the script, whose main part is behind ``if __name__ ==
            "__main__"``), and its data must be picklable.
        copy_in: makes the function's argument out of the data; by default the data itself, on a
            GPU with its NumPy arrays as CuPy arrays.
        copy_out: takes the result of ``copy_in``, and the data, and brings back the changes. By
            default the opposite of ``copy_in``'s default.
        expected_s: run time, 0 if unknown.
        malleable: whether a kernel for all cores with yield points can go on with fewer cores, and
            more again. ``place()`` has their number, and Numba (and threadpoolctl, if loaded) as
            many threads.
    """

    function: Callable[[Any], Any]
    resource: Resource
    affinity: Affinity = Affinity.HIGH
    copy_in: Callable[[Any], Any] | None = None
    copy_out: Callable[[Any, Any], None] | None = None
    expected_s: float = 0.0
    malleable: bool = False

    @property
    def interruptible(self) -> bool:
        """Whether it has yield points."""
        return inspect.isgeneratorfunction(self.function)

    def work(self, data: Any, stop: Callable[[], bool]) -> bool:
        """Run on data in host memory; return whether the kernel is done."""
        on_gpu = self.resource is Resource.GPU and not (self.copy_in or self.copy_out)
        copy_in, copy_out = (to_gpu, to_host) if on_gpu else (self.copy_in, self.copy_out)
        moved = data if copy_in is None else copy_in(data)
        done = work(self.function, moved, stop)
        if copy_out is not None:
            copy_out(moved, data)
        return done


# --- The place -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The cores or the GPU that a kernel has for itself.

    Attributes:
        device: its name, "" without a daemon.
        slots: as ``cpu:3`` or ``gpu:0``.
    """

    resource: Resource
    device: str = ""
    slots: tuple[str, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        """The numbers of its cores."""
        return self._numbers("cpu")

    @property
    def gpu(self) -> int | None:
        """The number of its GPU."""
        return next(iter(self._numbers("gpu")), None)

    def _numbers(self, kind: str) -> tuple[int, ...]:
        pairs = (slot.partition(":") for slot in self.slots)
        return tuple(int(number) for name, _, number in pairs if name == kind)


_here = threading.local()


def place() -> Place | None:
    """Return the place of the calling kernel, None outside of one.

    A kernel that starts threads of its own may start ``len(place().cpus)`` of them.
    """
    return getattr(_here, "place", None)


def go_on(cores: tuple[str, ...], device: str) -> None:
    """Let the kernel of this thread go on with other cores, and with as many threads."""
    before = place()
    assert before is not None
    where = _here.place = Place(before.resource, device, cores)
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, where.cpus)
    use_threads(len(where.cpus))


def use_threads(number: int) -> None:
    """Set the number of threads of this thread's kernels.

    That is Numba's number and, if the program has loaded threadpoolctl, that of BLAS and OpenMP.
    """
    numba = sys.modules.get("numba")
    if numba is not None:
        numba.set_num_threads(max(1, min(number, numba.config.NUMBA_NUM_THREADS)))
    threadpoolctl = sys.modules.get("threadpoolctl")
    if threadpoolctl is not None:
        threadpoolctl.threadpool_limits(max(1, number))


@contextlib.contextmanager
def bound(where: Place) -> Iterator[None]:
    """Bind this thread to the cores of a place, and CuPy, if installed, to its GPU."""
    before, cores = place(), None
    if where.cpus and hasattr(os, "sched_setaffinity"):
        cores = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # they may be taken away by now
            os.sched_setaffinity(0, where.cpus)
    if where.gpu is not None:
        with contextlib.suppress(ImportError):
            import cupy

            cupy.cuda.Device(where.gpu).use()
    _here.place = where
    try:
        yield
    finally:
        _here.place = before
        if cores is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cores)


# --- The data --------------------------------------------------------------------------------


def to_gpu(data: Any) -> Any:
    """Return data with its NumPy arrays on the GPU, as CuPy arrays.

    Data is an array, or a mapping or an object with arrays as items or attributes.
    """
    import cupy
    import numpy as np

    if isinstance(data, np.ndarray):
        return cupy.asarray(data)
    moved = copy.copy(data)
    for name, value in _items(data).items():
        if isinstance(value, np.ndarray):
            _put(moved, name, cupy.asarray(value))
    return moved


def to_host(moved: Any, data: Any) -> None:
    """Bring a kernel's results on the GPU back into the data that was moved there."""
    import cupy

    put_back(moved, data, lambda value: value.get() if isinstance(value, cupy.ndarray) else value)


def put_back(moved: Any, data: Any, to_host: Callable[[Any], Any] = lambda value: value) -> None:
    """Bring a kernel's results in a copy of the data back into the data.

    The data is an array, a list, a mapping, or an object with attributes. Arrays of the same shape
    and type are filled, all other items are replaced.
    """
    if hasattr(data, "shape"):
        data[...] = to_host(moved)
        return
    if isinstance(data, list):
        data[:] = moved
        return
    own = _items(data)
    for name, value in list(_items(moved).items()):
        item, before = to_host(value), own.get(name)
        if before is not None and _kind(before)[1] is not None and _kind(before) == _kind(item):
            before[...] = item
        else:
            _put(data, name, item)


def work(function: Callable[[Any], Any], data: Any, stop: Callable[[], bool]) -> bool:
    """Run a function to its end, or to a yield point to stop at; return whether it is done."""
    steps = function(data)
    if inspect.isgenerator(steps):
        for _ in steps:
            if stop():
                steps.close()
                return False
    return True


def _kind(array: Any) -> tuple[Any, ...]:
    return type(array), getattr(array, "shape", None), getattr(array, "dtype", None)


def _items(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else vars(data)


def _put(data: Any, name: str, value: Any) -> None:
    if isinstance(data, Mapping):
        data[name] = value  # type: ignore[index]
    else:
        setattr(data, name, value)
