"""Computations with kernels for several kinds of devices, run on the device ``rms serve`` chooses::

    from rms.kernels import Affinity, Kernel, KernelCollection, Resource

    KernelCollection(
        data,
        Kernel(on_one_core, Resource.CORE, Affinity.LOW),
        Kernel(on_all_cores, Resource.CORES, Affinity.MED),
        Kernel(on_gpu, Resource.GPU),
    ).run()

Kernels run in the application's own process (docs/rms/kernels.md). Without a daemon the best one
runs.

The library of applications is ``collection``, ``connection``, ``places`` and ``remote``; the
scheduler of tasks is ``model``, ``scheduler`` and ``record``; ``served`` is its part in the daemon,
which lends it nodes, and ``admission`` lets its strategies start jobs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rms.kernels.collection import KernelCollection, on_device
    from rms.kernels.connection import TaskDroppedError
    from rms.kernels.model import Affinity, Resource
    from rms.kernels.places import Kernel, Place, place

__all__ = [
    "Affinity",
    "Kernel",
    "KernelCollection",
    "Place",
    "Resource",
    "TaskDroppedError",
    "on_device",
    "place",
]


def __getattr__(name: str) -> Any:
    """Import the library of applications at its first use: the daemon does not need it."""
    if name in __all__:
        for module in ("collection", "places"):
            part = importlib.import_module(f"rms.kernels.{module}")
            if hasattr(part, name):
                return getattr(part, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
