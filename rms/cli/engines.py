"""What ``rms serve`` and ``rms compare`` have in common: the choice of engine and nodes."""

from __future__ import annotations

from rms.launch.machine import this_machine
from rms.wire.terminal import CommandError

ENGINES = ("local", "slurm-pilot", "slurm")
ON_DEMAND = "pilot on demand"
"""The engine of ``rms pilot``."""


def check_engine(name: str) -> None:
    """Refuse an engine that there is not."""
    if name not in ENGINES:
        raise CommandError(f"expected an engine of {', '.join(ENGINES)}, got {name!r}")


def local_nodes(asked: int | None) -> int:
    """Return how many cores serve as nodes: never more than there are."""
    most = len(this_machine().names)
    if asked is not None and not 1 <= asked <= most:
        raise CommandError(
            f"expected 1 to {most} nodes, as this machine has cores, got {asked}: an "
            "oversubscribed timing is no result"
        )
    return most if asked is None else asked
