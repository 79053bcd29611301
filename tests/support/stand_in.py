"""A second array module: NumPy behind arrays that NumPy itself must not touch.

Like CuPy, its arrays convert to host memory by ``asnumpy`` alone, take no NumPy array in an
assignment, and state their address by ``__cuda_array_interface__``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt


def cupy() -> ModuleType:
    """Return a new stand-in for CuPy (tests/stand_in), which ``import cupy`` does not find."""
    place = Path(__file__).parents[1] / "stand_in" / "cupy" / "__init__.py"
    spec = importlib.util.spec_from_file_location("stand_in_cupy", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DeviceArray:
    """An array that refuses to be taken for a NumPy array."""

    __array_ufunc__ = None

    def __init__(self, held: npt.NDArray[Any]) -> None:
        self._held = held

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self._held[key])

    def __setitem__(self, key: Any, values: Any) -> None:
        if isinstance(values, np.ndarray):
            raise TypeError("a NumPy array cannot be assigned to a device array")
        self._held[key] = values._held if isinstance(values, DeviceArray) else values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": self._held.__array_interface__["data"], "version": 3}

    @property
    def shape(self) -> tuple[int, ...]:
        return self._held.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._held.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._held.dtype

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        return DeviceArray(self._held.view(dtype))

    def reshape(self, *shape: Any) -> DeviceArray:
        return DeviceArray(self._held.reshape(*shape))

    def transpose(self, *axes: Any) -> DeviceArray:
        return DeviceArray(self._held.transpose(*axes))


class DeviceModule:
    """The few functions that dmr.data.field asks of an array module."""

    @staticmethod
    def zeros(shape: Any, dtype: npt.DTypeLike = float) -> DeviceArray:
        return DeviceArray(np.zeros(shape, dtype))

    @staticmethod
    def asarray(values: Any, dtype: npt.DTypeLike | None = None) -> DeviceArray:
        held = values._held if isinstance(values, DeviceArray) else values
        return DeviceArray(np.asarray(held, dtype))

    @staticmethod
    def ascontiguousarray(array: DeviceArray) -> DeviceArray:
        return DeviceArray(np.ascontiguousarray(array._held))

    @staticmethod
    def asnumpy(array: DeviceArray, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        if out is None:
            return array._held.copy()
        out[...] = array._held
        return out
