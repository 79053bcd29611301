"""What a job and its launcher tell each other: typed, versioned messages.

Compute nodes import this module, so it needs nothing but msgspec.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

COMPLETION_FORMAT = 1
"""Version of :class:`CompletionRecord`; raise it with every change of meaning."""

COMPLETION_VARIABLE = "DMR_COMPLETION"
"""Environment variable by which a launcher says where the record is to be written."""

EndState = Literal["COMPLETED", "FAILED", "CANCELLED"]


class ProtocolError(ValueError):
    """A message that does not follow the protocol."""


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One world replaced by the next, as observed.

    ``boot_s`` runs from the launch of the new world until it is ready, ``stall_s`` is the time
    the application does not step, ``move_s`` the part of it in which data moves.
    """

    step: int
    from_ranks: int = msgspec.field(name="from")
    to_ranks: int = msgspec.field(name="to")
    strategy: str
    boot_s: float
    stall_s: float
    move_s: float
    bytes: int
    gb_per_s: float


class CompletionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a job ended, written by its last world.

    mpiexec's exit status cannot tell: once the first world has left, a spawned rank that dies
    still gives 0. A job is COMPLETED only if this record says so; no record means it died.
    """

    state: EndState
    exit_code: int
    message: str
    step: int
    generation: int
    ranks: int
    format: int = COMPLETION_FORMAT


def write_completion(path: Path, record: CompletionRecord) -> None:
    """Write the record so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(msgspec.json.encode(record) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_completion(path: Path) -> CompletionRecord:
    """Read a record.

    Raises:
        FileNotFoundError: there is none; the job has not ended, or died without a word.
        ProtocolError: the file is not a record of a format known here.
    """
    data = path.read_bytes()
    try:
        record = msgspec.json.decode(data, type=CompletionRecord)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{path}: expected a completion record, got {error}") from None
    if record.format != COMPLETION_FORMAT:
        raise ProtocolError(
            f"{path}: expected completion format {COMPLETION_FORMAT}, got {record.format}"
        )
    return record
