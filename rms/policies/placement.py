"""Part ``placement``: which nodes."""

from __future__ import annotations

from collections.abc import Sequence

from rms.model import Node


def first_fit(free: Sequence[Node], count: int) -> tuple[Node, ...]:
    """Return the first free nodes."""
    return tuple(free[:count])


def resize(have: tuple[Node, ...], size: int, free: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes of a job at its new size: its first ones stay its own."""
    if size <= len(have):
        return have[:size]
    return (*have, *first_fit(free, size - len(have)))
