"""What ``rms serve`` and ``rms compare`` have in common: the choice of engine and nodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rms.core.policies import DEFAULT, POLICIES
from rms.launch.machine import this_machine
from rms.wire.terminal import CommandError, completed_by

ENGINES = ("local", "slurm-pilot", "slurm")
ON_DEMAND = "pilot on demand"
"""The engine of ``rms pilot``."""


def add_engine(add: Callable[..., argparse.Action]) -> None:
    """Add the option ``--engine``."""
    text = f"source of the nodes: {', '.join(ENGINES)} (default: local, this machine)"
    completed_by(add("--engine", default="local", metavar="NAME", help=text), lambda: ENGINES)


def add_policy(add: Callable[..., argparse.Action]) -> None:
    """Add the option ``--policy``."""
    text = f"scheduling policy: {', '.join(POLICIES)} or a file (default: {DEFAULT})"
    policy = add("--policy", default=DEFAULT, metavar="NAME|FILE.toml", help=text)
    completed_by(policy, lambda: POLICIES)


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
