"""Let an iterative mpi4py program change its number of ranks while it computes."""

from dmr.checkpoint import Schedule
from dmr.errors import CollectiveError, UsageError, agree
from dmr.field import Field, FieldSpec
from dmr.layout import Box
from dmr.session import STRATEGIES, Application, Plan, Run, run
from dmr.world import Runtime, World
from rms._version import __version__

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
