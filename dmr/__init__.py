"""Let an iterative mpi4py program change its number of ranks while it computes.

Names are loaded at their first use: those without MPI work where no MPI can be loaded.
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
    from dmr.data.files import File
    from dmr.data.named import adapt_all
    from dmr.data.particles import Items, ListSpec, adapt_list, rank_of
    from dmr.errors import CollectiveError, UsageError, raise_on_all
    from dmr.plan import Deadlines, Plan, Schedule
    from dmr.resize.strategy import STRATEGIES
    from dmr.state.progress import PerRank
    from dmr.world import World

_HOMES = {
    "api": ("malleable", "run"),
    "application": ("Application", "Run"),
    "boot.environment": ("Runtime",),
    "data.decomposition": ("Box", "split_range"),
    "data.field": ("Field", "FieldSpec", "adapt"),
    "data.files": ("File",),
    "data.named": ("adapt_all",),
    "data.particles": ("Items", "ListSpec", "adapt_list", "rank_of"),
    "errors": ("CollectiveError", "UsageError", "raise_on_all"),
    "plan": ("Deadlines", "Plan", "Schedule"),
    "resize.strategy": ("STRATEGIES",),
    "state.progress": ("PerRank",),
    "world": ("World",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"dmr.{module}"), name)
    raise AttributeError(f"module 'dmr' has no attribute {name!r}")


__all__ = [
    "STRATEGIES",
    "Application",
    "Box",
    "CollectiveError",
    "Deadlines",
    "Field",
    "FieldSpec",
    "File",
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
    "adapt_all",
    "adapt_list",
    "malleable",
    "raise_on_all",
    "rank_of",
    "run",
    "split_range",
]
