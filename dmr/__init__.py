"""Let an iterative mpi4py program change its number of ranks while it computes.

Names are loaded when first used, so that what needs no MPI works where none can be loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rms._version import __version__

if TYPE_CHECKING:
    from dmr.adapted import adapt, adapt_list
    from dmr.checkpoint import Schedule
    from dmr.errors import CollectiveError, UsageError, agree
    from dmr.field import Field, FieldSpec
    from dmr.items import Items, ListSpec, rank_of
    from dmr.layout import Box, split_range
    from dmr.loop import malleable
    from dmr.session import Application, Plan, Run, run
    from dmr.strategies import STRATEGIES
    from dmr.transaction import Deadlines
    from dmr.world import Runtime, World

_HOMES = {
    "Application": "session",
    "Box": "layout",
    "CollectiveError": "errors",
    "Field": "field",
    "FieldSpec": "field",
    "Items": "items",
    "ListSpec": "items",
    "Plan": "session",
    "Run": "session",
    "Runtime": "world",
    "Deadlines": "transaction",
    "STRATEGIES": "strategies",
    "Schedule": "checkpoint",
    "UsageError": "errors",
    "World": "world",
    "adapt": "adapted",
    "adapt_list": "adapted",
    "agree": "errors",
    "malleable": "loop",
    "rank_of": "items",
    "run": "session",
    "split_range": "layout",
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
    "Deadlines",
    "Field",
    "FieldSpec",
    "Items",
    "ListSpec",
    "Plan",
    "Run",
    "Runtime",
    "Schedule",
    "UsageError",
    "World",
    "__version__",
    "adapt",
    "adapt_list",
    "agree",
    "malleable",
    "rank_of",
    "run",
    "split_range",
]
