"""Let an iterative mpi4py program change its number of ranks while it computes.

Names are loaded when first used, so that what needs no MPI works where none can be loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rms._version import __version__

if TYPE_CHECKING:
    from dmr.api import malleable, run
    from dmr.application import Application, Run
    from dmr.boot.environment import Runtime
    from dmr.data.decomposition import Box, split_range
    from dmr.data.field import Field, FieldSpec, adapt
    from dmr.data.particles import Items, ListSpec, adapt_list, rank_of
    from dmr.errors import CollectiveError, UsageError, raise_on_all
    from dmr.plan import Deadlines, Plan, Schedule
    from dmr.resize.strategy import STRATEGIES
    from dmr.state.progress import PerRank
    from dmr.world import World

_HOMES = {
    "Application": "application",
    "Box": "data.decomposition",
    "CollectiveError": "errors",
    "Field": "data.field",
    "FieldSpec": "data.field",
    "Items": "data.particles",
    "ListSpec": "data.particles",
    "PerRank": "state.progress",
    "Plan": "plan",
    "Run": "application",
    "Runtime": "boot.environment",
    "Deadlines": "plan",
    "STRATEGIES": "resize.strategy",
    "Schedule": "plan",
    "UsageError": "errors",
    "World": "world",
    "adapt": "data.field",
    "adapt_list": "data.particles",
    "raise_on_all": "errors",
    "malleable": "api",
    "rank_of": "data.particles",
    "run": "api",
    "split_range": "data.decomposition",
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
    "PerRank",
    "Plan",
    "Run",
    "Runtime",
    "Schedule",
    "UsageError",
    "World",
    "__version__",
    "adapt",
    "adapt_list",
    "malleable",
    "raise_on_all",
    "rank_of",
    "run",
    "split_range",
]
