"""The CUDA source on a GPU, by CuPy; CuPy is imported when this backend is chosen, not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpdata.errors import InputError
from mpdata.grid import Geometry
from mpdata.numerics.cuda.job import GpuTile, Macros, source
from mpdata.numerics.cuda.stepper import CudaStepper, LaunchPlan
from mpdata.numerics.cuda.tuning import key_of, recall
from mpdata.options import Scheme

Array = Any

INSTALL = "pip install 'malleable-mpi[cuda12]' (or [cuda13])"
NO_GPU = "expected an NVIDIA GPU and its driver, got none"


def load_cupy() -> Any:
    """Return CuPy, with a GPU to use and a compiler for its kernels.

    Raises:
        InputError: any of them is missing.
    """
    try:
        import cupy
    except ModuleNotFoundError:
        raise InputError(f"backend cupy: expected CuPy, got none; {INSTALL}") from None
    except ImportError as error:
        raise InputError(
            f"backend cupy: expected CuPy, got one that fails: {short(error)}"
        ) from None
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # a driver too old, or none: CuPy has a class of its own for each
        raise InputError(f"backend cupy: {NO_GPU} ({short(error)})") from None
    if not devices:
        raise InputError(f"backend cupy: {NO_GPU}")
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        raise InputError(
            f"backend cupy: expected NVRTC, got none ({short(error)}); {INSTALL}"
        ) from None
    return cupy


def short(error: BaseException) -> str:
    """Return the first line of what an error says that says anything."""
    return next((line.strip(" =\n") for line in str(error).splitlines() if line.strip(" =")), "")


def answers() -> bool:
    """Return whether there is CuPy with a GPU to use."""
    try:
        load_cupy()
    except InputError:
        return False
    return True


def device_name() -> str:
    """Return the name of the GPU in use."""
    cupy = load_cupy()
    name: bytes = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return name.decode()


class CupyLauncher:
    """The kernels for some options, loaded; all launches go to CuPy's current stream.

    Args:
        options: the options of kernels.cu.
        graphs: record a step of more than one launch as a CUDA graph and replay that, so that no
            gaps arise between small kernels.
    """

    def __init__(self, options: Macros, *, graphs: bool = False) -> None:
        self._cupy, self._graphs = load_cupy(), graphs
        defines = (f"-D{name}={value}" for name, value in options.items())
        # No contraction: multiply-adds are where the source has them, on the host as well.
        self._module = self._cupy.RawModule(
            code=source(), options=("-std=c++17", "--fmad=false", *defines)
        )
        self._module.compile()
        self._kernels: dict[str, Any] = {}

    @property
    def units(self) -> int:
        """Multiprocessors of the device."""
        return int(self._cupy.cuda.Device().attributes["MultiProcessorCount"])

    def run(self, plan: LaunchPlan) -> None:
        """Enqueue all launches in their order."""
        if not self._graphs or len(plan.launches) == 1:
            self._enqueue(plan)
            return
        if plan.recorded is None:
            # Kernels are loaded first: that cannot be captured.
            for launch in plan.launches:
                self._kernel(launch.kernel)
            stream = self._cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                self._enqueue(plan)
                plan.recorded = stream.end_capture()
        plan.recorded.launch(self._cupy.cuda.get_current_stream())

    def attributes(self, kernel: str) -> dict[str, int]:
        """Return what the compiler made of a kernel: registers, local and shared memory."""
        wanted = ("num_regs", "local_size_bytes", "shared_size_bytes", "max_threads_per_block")
        return {name: int(getattr(self._kernel(kernel), name)) for name in wanted}

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            self._kernels[name] = self._module.get_function(name)
        return self._kernels[name]

    def _enqueue(self, plan: LaunchPlan) -> None:
        for launch in plan.launches:
            self._kernel(launch.kernel)(launch.grid, launch.block, (launch.job,))


class CupyStepper(CudaStepper):
    """A scheme on one block of CuPy arrays (a :class:`~mpdata.numerics.step.Stepper`).

    Args:
        geometry: the block.
        scheme: passes and options.
        h: density, laid out as ``allocate`` does.
        allocate: returns a zeroed CuPy array of the block's shape in its memory order.
        variant: see :class:`~mpdata.numerics.cuda.stepper.CudaStepper`.
        tile: shape of the streaming kernel's blocks; by default what ``tuned`` has of this device.
        graphs: replay a step of several kernels as a CUDA graph.
        tuned: the file of tuned tiles.

    Raises:
        InputError: no CuPy, or no GPU that it can use.
    """

    def __init__(
        self,
        geometry: Geometry,
        scheme: Scheme,
        h: Array,
        allocate: Callable[[], Array],
        variant: str = "auto",
        tile: GpuTile | None = None,
        *,
        graphs: bool = False,
        tuned: Path | None = None,
    ) -> None:
        if tile is None and tuned is not None:
            tile = recall(tuned, key_of(device_name(), scheme, h.dtype))

        def build(options: Macros, _: npt.DTypeLike) -> CupyLauncher:
            return CupyLauncher(options, graphs=graphs)

        super().__init__(geometry, scheme, h, allocate, build, variant, tile)


class DeviceStopwatch:
    """Times spans of work on the current stream without waiting for it (see mpdata.backends)."""

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._spans: list[tuple[Any, Any]] = []
        self._spare: list[tuple[Any, Any]] = []

    def start(self) -> None:
        """A span begins when the device gets here."""
        event = self._cupy.cuda.Event
        self._spans.append(self._spare.pop() if self._spare else (event(), event()))
        self._spans[-1][0].record()

    def stop(self) -> None:
        """It ends when the device gets here."""
        self._spans[-1][1].record()

    def taken(self) -> list[float]:
        """Wait, and return the seconds of every span since last asked."""
        if self._spans:
            self._spans[-1][1].synchronize()
        elapsed = self._cupy.cuda.get_elapsed_time
        seconds = [float(elapsed(start, stop)) / 1e3 for start, stop in self._spans]
        self._spare += self._spans
        self._spans = []
        return seconds

    def settle(self) -> None:
        """Wait for all that is under way, and give back memory that nothing holds."""
        self._cupy.cuda.Device().synchronize()
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
