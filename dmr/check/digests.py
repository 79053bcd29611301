"""Hashes of all that travels with a job, whatever its ranks: what ``dmr check`` compares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from dmr.data.constant import bytes_of
from dmr.data.distributed import Distributed
from dmr.data.particles import Items
from dmr.state.progress import Progress
from dmr.state.values import ValuesError, encode_values

if TYPE_CHECKING:
    from mpi4py import MPI


class Digests(msgspec.Struct):
    """What a run was at its end.

    Attributes:
        ranks, step: how many ranks it ended on, and how many steps it had done.
        sizes: ranks after each resize.
        fields: the hash of every field and list.
        unchanged: those that have the bytes they began with.
        state: the hash of everything in ``run.state``.
    """

    ranks: int
    step: int
    sizes: list[int]
    fields: dict[str, str]
    unchanged: list[str]
    state: dict[str, str]


def digests_of(comm: MPI.Intracomm, fields: Mapping[str, Distributed]) -> dict[str, str]:
    """Return the hash of every field and list, on rank 0 (collective); "" on the others."""
    found = {}
    for name, block in fields.items():
        digest, items = xxhash.xxh3_128(), 0
        _, pieces = block.gathered(comm)
        for piece in pieces:
            if piece is None:
                continue
            if isinstance(block, Items):  # in no order: which rank has an item tells it
                rows = bytes_of(piece).reshape(len(piece), -1) if len(piece) else ()
                items += sum(xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows)
            else:
                digest.update(bytes_of(piece).tobytes())
        digest.update(str(items).encode())
        found[name] = digest.hexdigest() if comm.rank == 0 else ""
    return found


def write_digests(
    path: Path, comm: MPI.Intracomm, fields: Mapping[str, Distributed], progress: Progress
) -> None:
    """Write what a run is at its end (collective; rank 0 writes)."""
    found = digests_of(comm, fields)
    if comm.rank:
        return
    state = {}
    for name, value in progress.values.items():
        try:
            data = msgspec.json.encode(encode_values({name: value}))
        except ValuesError as error:
            data = str(error).encode()
        state[name] = xxhash.xxh3_128_hexdigest(data)
    unchanged = [
        name
        for name, digest in found.items()
        if progress.digests.get(name) == digest and not fields[name].spec.constant
    ]
    sizes = [resize.to_ranks for resize in progress.resizes]
    record = Digests(comm.size, progress.step, sizes, found, unchanged, state)
    path.write_bytes(msgspec.json.encode(record))
