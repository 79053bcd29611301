"""Backends: a small value chosen once, and all that differs between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpdata.errors import InputError
from mpdata.flow.faces import Flow
from mpdata.grid import Geometry
from mpdata.numerics.step import ReferenceStepper, Stepper
from mpdata.options import Scheme

BACKENDS = ("numpy", "numba", "cupy")
INSTALL = "pip install 'malleable-mpi[mpdata]'"


def choose_backend(name: str) -> str:
    """Return the backend meant by ``name``, loaded: a new world should do that while it boots.

    ``auto`` is cupy where a GPU answers, else numba.

    Raises:
        InputError: no such backend, nothing here that it can run on, or no Numba, which also has
            the fused multiply-add of the NumPy backend.
    """
    if name not in ("auto", *BACKENDS):
        raise InputError(f"expected a backend of auto, {', '.join(BACKENDS)}, got {name!r}")
    if name == "auto":
        name = "cupy" if _gpu_available() else "numba"
    if name != "cupy" and not _installed("numba"):
        raise InputError(f"backend {name}: expected Numba, got none; {INSTALL}")
    array_module(name)
    if name == "numba":
        import_module("mpdata.numerics.numba.stepper")
    return name


def _installed(module: str) -> bool:
    """Return whether a module can be imported, without doing so."""
    return sys.modules.get(module) is not None or find_spec(module) is not None


def _gpu_available() -> bool:
    """Return whether there is CuPy with a GPU to use."""
    if not _installed("cupy"):
        return False
    from mpdata.numerics.cuda.device import answers

    return answers()


def array_module(name: str) -> Any:
    """Return the module whose arrays a backend works on.

    Raises:
        InputError: no CuPy, or no GPU that it can use.
    """
    if name != "cupy":
        return np
    from mpdata.numerics.cuda.device import load_cupy

    return load_cupy()


@dataclass(frozen=True)
class StepperResources:
    """What a stepper computes with.

    Attributes:
        threads: of the CPU.
        tuned: the file of tuned tiles of GPUs.
    """

    threads: int = 1
    tuned: Path | None = None


def make_stepper(
    name: str,
    geometry: Geometry,
    scheme: Scheme,
    flow: Flow,
    allocate: Callable[[], Any],
    means: StepperResources | None = None,
) -> Stepper:
    """Return a backend's scheme on one block whose arrays are laid out as ``allocate`` does."""
    means = means or StepperResources()
    # Imported where chosen: who uses NumPy should not pay half a second for Numba.
    if name == "cupy":
        from mpdata.numerics.cuda.device import CupyStepper

        return CupyStepper(geometry, scheme, flow.h, allocate, tuned=means.tuned)
    if name == "numpy" or not geometry.active:
        return ReferenceStepper(geometry, scheme, flow.h, allocate)
    from mpdata.numerics.numba.stepper import NumbaStepper

    return NumbaStepper(geometry, scheme, flow.h, allocate, means.threads)


def scratch_arrays(name: str, scheme: Scheme, active: int) -> int:
    """Return how many arrays a stepper on a device adds on so many axes (0 for the host's)."""
    if name != "cupy":
        return 0
    from mpdata.numerics.cuda.stepper import scratch_of

    return scratch_of(scheme, active).arrays


class Stopwatch(Protocol):
    """Times steps; where those are under way when the call returns, without waiting for them."""

    def start(self) -> None:
        """A step begins."""
        ...

    def stop(self) -> None:
        """It ends."""
        ...

    def taken(self) -> list[float]:
        """Wait for the last step, and return the seconds of every step since last asked."""
        ...

    def settle(self) -> None:
        """Wait for all that is under way."""
        ...


class HostStopwatch:
    """Times what is done when the call returns, by a clock of seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._begun = clock, 0.0
        self._taken: list[float] = []

    def start(self) -> None:
        """A step begins."""
        self._begun = self._clock()

    def stop(self) -> None:
        """It ends."""
        self._taken.append(self._clock() - self._begun)

    def taken(self) -> list[float]:
        """Return the seconds of every step since last asked."""
        found, self._taken = self._taken, []
        return found

    def settle(self) -> None:
        """Nothing is under way."""


def make_stopwatch(name: str, clock: Callable[[], float]) -> Stopwatch:
    """Return what times a backend's steps."""
    if name != "cupy":
        return HostStopwatch(clock)
    from mpdata.numerics.cuda.device import DeviceStopwatch

    return DeviceStopwatch()
