"""Computations that have a kernel for each kind of device, run where ``rms serve`` says.

    from rms.kernels import Affinity, Kernel, KernelCollection, Resource

    KernelCollection(
        data,
        Kernel(on_one_core, Resource.CORE, Affinity.LOW),
        Kernel(on_all_cores, Resource.CORES, Affinity.MED),
        Kernel(on_gpu, Resource.GPU),
    ).run()

Kernels run in the application's own process. Each is a function of the data object, in which it
leaves its result and, if it can be interrupted, how far it is. A generator function has yield
points: at each the kernel may be stopped, and the kernel for another device goes on with the same
data. Where no daemon answers, the best kernel runs here.
"""

from rms.kernels.collection import Kernel, KernelCollection, on_device
from rms.kernels.connection import TaskDroppedError
from rms.kernels.places import Place, place
from rms.kernels.wire import Affinity, Resource

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
