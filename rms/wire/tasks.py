"""Tasks with several kernels: what a program and the scheduler say of them to each other.

Words of Süß et al., "Impact of the Scheduling Strategy in Heterogeneous Systems That Provide
Co-Scheduling" (2017): a kernel is the code of a task for one kind of resource, a kernel collection
all kernels of a task, an affinity says how well a kernel runs there.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec


class Resource(StrEnum):
    """A kind of device that a kernel is written for."""

    CORE = "core"
    CORES = "cores"
    GPU = "gpu"
    NODE = "node"


class Affinity(IntEnum):
    """How well a kernel runs on its resource; one with ``NEVER`` is not run."""

    NEVER = 0
    LOW = 1
    MED = 2
    HIGH = 3


class KernelSpec(msgspec.Struct, frozen=True):
    """What the scheduler knows of a kernel.

    Attributes:
        expected_s: its run time as far as known, 0 where it is not.
    """

    resource: Resource
    affinity: Affinity = Affinity.HIGH
    expected_s: float = 0.0
