"""The CUDA source on the host: compiled with a small shim, so that its arithmetic can be checked.

Threads are fibres that take turns, thousands of times slower than a GPU. Races show only where the
order of the turns matters. What is compiled is kept between test runs, by the hash of all that it
is made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpdata.numerics.cuda.job import Macros, source
from mpdata.numerics.cuda.stepper import LaunchPlan, Triple

FLAGS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-x", "c++"),
    *("-ffp-contract=off", "-Wno-unknown-pragmas", "-DON_HOST"),
)


SHIM = Path(__file__).with_name("host.hpp")


def kept(env: Mapping[str, str]) -> Path:
    """Return the folder of what was compiled in earlier runs."""
    base = env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "malleable-mpi" / "host-kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def version(tool: str) -> str:
    """Return what a compiler says of itself."""
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout


def compiler() -> str | None:
    """Return the host's C++ compiler, or None."""
    return next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


class HostLauncher:
    """The kernels in a shared library; ``downwards`` is the order in which threads take turns."""

    units = 1

    def __init__(self, library: Path, *, downwards: bool = False) -> None:
        self._kernels, self._downwards = ctypes.CDLL(str(library)), downwards

    @property
    def job_bytes(self) -> int:
        """Size of ``struct Job`` as the compiler lays it out."""
        return int(self._kernels.job_bytes())

    def run(self, plan: LaunchPlan) -> None:
        """Run all launches in their order."""
        for launch in plan.launches:
            self.launch(launch.kernel, launch.grid, launch.block, launch.job)

    def launch(self, kernel: str, grid: Triple, block: Triple, job: npt.NDArray[Any]) -> None:
        """Run one kernel."""
        sizes = ((ctypes.c_int * 3)(*size) for size in (grid, block))
        address = ctypes.c_void_p(job.ctypes.data)
        getattr(self._kernels, kernel)(address, *sizes, int(self._downwards))


def build_in(
    folder: Path, *, downwards: bool = False
) -> Callable[[Macros, npt.DTypeLike], HostLauncher]:
    """Return what compiles the kernels for the host, once for the same options.

    Raises:
        RuntimeError: no compiler, or the source does not compile.
    """

    def build(options: Macros, dtype: npt.DTypeLike) -> HostLauncher:
        return HostLauncher(compiled(options, folder), downwards=downwards)

    return build


def compiled(options: Macros, folder: Path) -> Path:
    """Return the library for some options, compiled if ``folder`` has none yet."""
    defines = [f"-D{name}={value}" for name, value in options.items()]
    tool = compiler()
    if tool is None:
        raise RuntimeError("expected a C++ compiler (g++, c++ or clang++), got none")
    text = source()
    made_from = [text, SHIM.read_text(encoding="utf-8"), version(tool), *FLAGS, *defines]
    name = hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:16]
    library = folder / f"kernels-{name}.so"
    if library.exists():
        return library
    # Beside its place first: several ranks may want it at once.
    part = library.with_suffix(f".{os.getpid()}")
    command = [tool, *FLAGS, *defines, f"-I{SHIM.parent}", "-o", str(part), "-"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"expected the CUDA source to compile for the host, got:\n{done.stderr}")
    part.replace(library)
    return library
