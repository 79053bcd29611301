"""Let an iterative mpi4py program change its number of ranks while it computes.

Names are loaded when first used, so that what needs no MPI works where none can be loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rms._version import __version__

if TYPE_CHECKING:
    from dmr.checkpoint import Schedule
    from dmr.errors import CollectiveError, UsageError, agree
    from dmr.field import Field, FieldSpec
    from dmr.layout import Box
    from dmr.session import STRATEGIES, Application, Plan, Run, run
    from dmr.world import Runtime, World

_HOMES = {
    "Application": "session",
    "Box": "layout",
    "CollectiveError": "errors",
    "Field": "field",
    "FieldSpec": "field",
    "Plan": "session",
    "Run": "session",
    "Runtime": "world",
    "STRATEGIES": "session",
    "Schedule": "checkpoint",
    "UsageError": "errors",
    "World": "world",
    "agree": "errors",
    "run": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dmr' has no attribute {name!r}")
    return getattr(import_module(f"dmr.{_HOMES[name]}"), name)


__all__ = [
    "STRATEGIES",
    "Application",
    "Box",
    "CollectiveError",
    "Field",
    "FieldSpec",
    "Plan",
    "Run",
    "Runtime",
    "Schedule",
    "UsageError",
    "World",
    "__version__",
    "agree",
    "run",
]
