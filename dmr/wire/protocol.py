"""The messages that two worlds of a job exchange over their control channel during a resize."""

from __future__ import annotations

from typing import Any

import msgspec

from dmr.progress import OpenResize


class Header(msgspec.Struct, tag=True):
    """Old to new: what is to move, before anything does."""

    ranks: int
    from_ranks: int
    strategy: str
    progress: msgspec.Raw
    """As :func:`dmr.progress.encode` writes it."""
    signature: dict[str, Any]
    options: dict[str, Any]
    in_host: bool
    """Whether all fields lie in host memory, so that blocks of one shape need no packing."""
    measure: bool
    """Whether plain sends of as many bytes are to be timed as well."""
    joined: tuple[tuple[int, int], ...] = ()
    """Launches that are to join (merge) and ranks of each, in order; none if spawned."""
    place: int = 0
    """Index in ``joined`` of the launch that this header is sent to."""


class Accepted(msgspec.Struct, tag=True):
    """New to old: the fields and options are those it would have.

    Attributes:
        in_host: whether its blocks lie in host memory.
        receivers: one rank of each of its nodes, which share what is the same on every rank.
    """

    in_host: bool
    receivers: tuple[int, ...] = ()


class Refused(msgspec.Struct, tag=True):
    """Either way: the resize is refused, and why."""

    why: str


class Stored(msgspec.Struct, tag=True):
    """Old to new: the fields are in this checkpoint."""

    folder: str
    step: int


class Arrived(msgspec.Struct, tag=True):
    """New to old (merge): every cell is here with its right hash."""

    move_s: float


class Build(msgspec.Struct, tag=True):
    """Old to new (merge): every cell is where it belongs, on all ranks; build with us."""


class Acknowledged(msgspec.Struct, tag=True):
    """New to old: every cell is here with its right hash, and ``build`` has run."""

    move_s: float
    raw_s: float
    aside_s: float
    build_s: float


class Committed(msgspec.Struct, tag=True):
    """Old to new: the job is yours."""

    cost: OpenResize


class TakenOver(msgspec.Struct, tag=True):
    """New to old: this world has taken the job over; leave."""


Message = (
    Header | Accepted | Refused | Stored | Arrived | Build | Acknowledged | Committed | TakenOver
)
_decoder = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message)


def decode(data: bytes) -> Message:
    """Read what :func:`encode` wrote; raises msgspec.DecodeError for anything else."""
    found: Message = _decoder.decode(data)
    return found
