"""One step as a few launches: which kernels, on which cells, in which order.

Knows neither CuPy nor a compiler: a :class:`Launcher` runs kernels on arrays by their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry
from mpdata.numerics.cuda.job import (
    CELL_BLOCK,
    SHARED_BYTES,
    GpuTile,
    Macros,
    default_tile,
    edges,
    job_type,
    macros,
    memory_axes,
)
from mpdata.numerics.cuda.memory import address
from mpdata.options import Scheme

Array = Any
Layers = tuple[int, int]
Triple = tuple[int, int, int]

VARIANTS = ("auto", "four", "fused")
MOST_BLOCKS = 65535
"""Along y and z of a launch; the kernels that go cell by cell come round for the rest."""

LEAST_CHUNK = 16
"""Planes: the first few of a chunk are computed for the others' sake only."""

PLANS_KEPT = 32


@dataclass(frozen=True)
class Launch:
    """One kernel on one job; threads and blocks along x, y, z."""

    kernel: str
    grid: Triple
    block: Triple
    job: npt.NDArray[Any]


@dataclass
class LaunchPlan:
    """The launches of a step between given arrays; a launcher may keep its own form of them."""

    launches: list[Launch]
    recorded: Any = None


class Launcher(Protocol):
    """The kernels compiled for some options."""

    @property
    def units(self) -> int:
        """How many blocks run at once at the least (multiprocessors)."""
        ...

    def run(self, plan: LaunchPlan) -> None:
        """Run all launches in their order."""
        ...


Build = Callable[[Macros, npt.DTypeLike], Launcher]


def is_streamable(scheme: Scheme, active: int) -> bool:
    """Return whether the kernels that stream along z serve a scheme on so many active axes."""
    return active == 3 and scheme.passes == 2 and not scheme.third_order


@dataclass(frozen=True)
class Scratch:
    """Arrays of a block's size that a variant needs.

    Attributes:
        iterates: psi between the passes.
        betas: the limiter's.
        velocities: corrective ones, a set for each pass, an array for each axis of a set.
    """

    iterates: int
    betas: int
    velocities: tuple[int, int]

    @property
    def arrays(self) -> int:
        """All of them."""
        sets, axes = self.velocities
        return self.iterates + self.betas + sets * axes


def scratch_of(scheme: Scheme, active: int, variant: str = "auto") -> Scratch:
    """Return the scratch of a variant on a grid with so many axes of more than one cell."""
    if active == 0 or (variant != "four" and is_streamable(scheme, active)):
        return Scratch(0, 0, (0, 0))
    corrective = scheme.passes - 1
    return Scratch(corrective, 2 if scheme.limiter and corrective else 0, (corrective, active))


class CudaStepper:
    """A scheme on one block by the CUDA source (a :class:`~mpdata.numerics.step.Stepper`).

    Args:
        geometry: the block.
        scheme: passes and options.
        h: density, laid out as ``allocate`` does.
        allocate: returns a zeroed array of the block's shape in its memory order.
        build: compiles the kernels for some options.
        variant: ``four``: four kernels; ``fused``: one kernel, where the options and
            the grid allow it, else four; ``auto``: fused.
        tile: shape of the streaming kernel's blocks.

    Raises:
        ValueError: an unknown variant, a tile too small or too large, no contiguous axis.
    """

    splits = True

    def __init__(
        self,
        geometry: Geometry,
        scheme: Scheme,
        h: Array,
        allocate: Callable[[], Array],
        build: Build,
        variant: str = "auto",
        tile: GpuTile | None = None,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"expected a variant of {', '.join(VARIANTS)}, got {variant!r}")
        self.geo, self.scheme, self.h = geometry, scheme, h
        self.tile = tile or default_tile(h.dtype)
        self.variant = "fused" if variant == "auto" else variant
        if not is_streamable(scheme, len(geometry.active)):
            self.variant = "four"
        self.reach = 2 if scheme.limiter else 1
        if min(self.tile.x, self.tile.y) <= 2 * self.reach:
            raise ValueError(
                f"expected tiles of more than {2 * self.reach} columns a side, got "
                f"{self.tile.x} x {self.tile.y}"
            )
        shared = self.tile.shared_bytes(h.dtype)
        if shared > SHARED_BYTES:
            raise ValueError(
                f"expected tiles of at most {SHARED_BYTES} bytes of shared memory, got {shared} "
                f"({self.tile.x} x {self.tile.y})"
            )
        self.order = memory_axes(geometry, h.strides)
        if self.order and h.strides[self.order[0]] != h.dtype.itemsize:
            raise ValueError(f"expected a contiguous axis, got strides {h.strides}")
        self._job = self._common_job()
        self._allocate_scratch(allocate)
        unit = bool((h == 1).all())
        options = macros(scheme, h.dtype, self.order, unit=unit, tile=self.tile)
        self.launcher = build(options, h.dtype) if self.order else None
        self._plans: dict[tuple[Any, ...], LaunchPlan] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        arrays = [*self._iterates, *self._betas, *(v for vs in self._velocities for v in vs)]
        return sum(int(array.nbytes) for array in arrays)

    def warm(self) -> None:
        """The kernels were compiled when the stepper was made."""

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step.

        Only ``layers`` along axis 0 if given, for which psi is needed as far around as the halo.
        On a GPU this returns before the step is done.
        """
        if self.launcher is None:
            out[...] = psi
            return
        arrays = (psi, out, *(C[axis] for axis in self.order))
        key = (*map(address, arrays), layers)
        if key not in self._plans:
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()
            self._plans[key] = LaunchPlan(self._launches(psi, out, C, layers))
        self.launcher.run(self._plans[key])

    def _allocate_scratch(self, allocate: Callable[[], Array]) -> None:
        scratch = scratch_of(self.scheme, len(self.order), self.variant)
        sets, axes = scratch.velocities
        self._iterates = [allocate() for _ in range(scratch.iterates)]
        self._betas = [allocate() for _ in range(scratch.betas)]
        self._velocities = [[allocate() for _ in range(axes)] for _ in range(sets)]

    @property
    def _limited(self) -> bool:
        return self.scheme.limiter and self.scheme.passes > 1

    def _common_job(self) -> npt.NDArray[Any]:
        """Return the job with all that does not change from launch to launch."""
        job = np.zeros(1, job_type(self.h.dtype))
        for name, values in edges(self.geo, self.order).items():
            job[name][0] = values
        for at, axis in enumerate(self.order):
            job["stride"][0, at] = self.h.strides[axis] // self.h.dtype.itemsize
        job["h"] = self._at(self.h)
        return job

    def _at(self, array: Array) -> int:
        """Return the address of the first interior cell."""
        into = sum(self.geo.halo * int(array.strides[axis]) for axis in self.order)
        return address(array) + into

    def _launches(
        self, psi: Array, out: Array, C: list[Array], layers: Layers | None
    ) -> list[Launch]:
        """Return a step's launches; see ReferenceStepper for how far each pass reaches."""
        now, faces, depth = [*self._iterates, out], [C[axis] for axis in self.order], 0
        if self.variant == "fused":
            return [self._streaming("fused_step", layers, before=psi, out=out, c=faces)]
        depth = self.geo.halo - 1
        launches = [self._cells("donor_cell_pass", layers, depth, before=psi, out=now[0], c=faces)]
        for number in range(self.scheme.passes - 1):
            third = self.scheme.third_order and number == 0
            depth -= 2 if third else 1
            # The set that does not hold this pass' flow; what is kept of it goes into the other.
            V = self._velocities[0 if faces is not self._velocities[0] else 1]
            kept = self._velocities[-1]
            keeps = self._limited and number < self.scheme.passes - 2
            common = {"before": psi, "psi": now[number], "v": V}
            launches.append(
                self._cells(
                    "pseudo_velocities",
                    layers,
                    depth,
                    extra=int(number == 0),
                    faces=1,
                    c=faces,
                    **common,
                )
            )
            if self._limited:
                common |= {"up": self._betas[0], "down": self._betas[1]}
                launches.append(self._cells("limiter_betas", layers, depth, **common))
                depth -= 1
                if keeps:
                    common["kept"] = kept
            update = self._cells("limited_update", layers, depth, out=now[number + 1], **common)
            launches.append(update)
            faces = kept if keeps else V
        return launches

    def _region(self, layers: Layers | None, depth: int, faces: int) -> tuple[list[int], list[int]]:
        """Return first cell and number of cells along each axis of memory."""
        first, count = [0, 0, 0], [1, 1, 1]
        for at, axis in enumerate(self.order):
            start, stop = 0, self.geo.interior[axis]
            if axis == 0 and layers is not None:
                start, stop = layers
            first[at], count[at] = start - depth, stop - start + 2 * depth + faces
        return first, count

    def _job_on(
        self, layers: Layers | None, depth: int, faces: int, arrays: dict[str, Any]
    ) -> npt.NDArray[Any]:
        job = self._job.copy()
        job["first"][0], job["count"][0] = self._region(layers, depth, faces)
        for name, value in arrays.items():
            if isinstance(value, list):
                job[name][0, : len(value)] = [self._at(array) for array in value]
            else:
                job[name] = self._at(value)
        return job

    def _cells(
        self,
        kernel: str,
        layers: Layers | None,
        depth: int,
        *,
        extra: int = 0,
        faces: int = 0,
        **arrays: Any,
    ) -> Launch:
        """Return a launch of a kernel that goes cell by cell."""
        job = self._job_on(layers, depth, faces, arrays)
        job["extra"] = extra
        x, y, z = (int(n) for n in job["count"][0])
        return Launch(kernel, cell_grid(x, y, z), CELL_BLOCK, job)

    def _streaming(self, kernel: str, layers: Layers | None, **arrays: Any) -> Launch:
        """Return a launch of a kernel that streams along z, in chunks enough to busy all units."""
        job = self._job_on(layers, 0, 0, arrays)
        x, y, z = (int(n) for n in job["count"][0])
        columns = (
            -(-x // (self.tile.x - 2 * self.reach)),
            -(-y // (self.tile.y - 2 * self.reach)),
        )
        units = self.launcher.units if self.launcher is not None else 1
        wanted = -(-2 * units // (columns[0] * columns[1]))
        chunk = max(min(self.tile.chunk, -(-z // wanted)), LEAST_CHUNK, -(-z // MOST_BLOCKS))
        job["chunk"] = chunk
        return Launch(kernel, (*columns, -(-z // chunk)), (self.tile.x, self.tile.y, 1), job)


def cell_grid(x: int, y: int, z: int) -> Triple:
    """Return the blocks of a kernel that goes cell by cell."""
    bx, by, bz = CELL_BLOCK
    return -(-x // bx), min(-(-y // by), MOST_BLOCKS), min(-(-z // bz), MOST_BLOCKS)
