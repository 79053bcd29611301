"""The backend ``cupy``: the scheme on a GPU (see the package ``cuda``)."""

from __future__ import annotations

from mpdata.numerics.cuda.device import CupyStepper, load_cupy

__all__ = ["CupyStepper", "load_cupy"]
