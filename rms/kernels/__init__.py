"""Computations with kernels for several kinds of devices, run on the device ``rms serve`` chooses.

    from rms.kernels import Affinity, Kernel, KernelCollection, Resource

    KernelCollection(
        data,
        Kernel(on_one_core, Resource.CORE, Affinity.LOW),
        Kernel(on_all_cores, Resource.CORES, Affinity.MED),
        Kernel(on_gpu, Resource.GPU),
    ).run()

Kernels run in the application's own process. A kernel is a function of the data object, in which
it leaves its result and, if it can be interrupted, its progress. A generator function has yield
points: at a yield point the kernel may be stopped, and the kernel for another device goes on with
the same data. Without a daemon the best kernel runs here.

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
