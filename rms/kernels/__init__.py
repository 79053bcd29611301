"""Computations with kernels for several kinds of devices, run on the device ``rms serve`` chooses.

    from rms.kernels import Affinity, Kernel, KernelCollection, Resource

    KernelCollection(
        data,
        Kernel(on_one_core, Resource.CORE, Affinity.LOW),
        Kernel(on_all_cores, Resource.CORES, Affinity.MED),
        Kernel(on_gpu, Resource.GPU),
    ).run()

Kernels run in the application's own process (see the README). Without a daemon the best one runs.

The library of applications is ``collection``, ``connection``, ``places`` and ``remote``; the
scheduler of tasks is ``model``, ``scheduler`` and ``record``; ``served`` is its part in the daemon,
which lends it nodes, and ``admission`` lets its strategies start jobs.
"""

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
