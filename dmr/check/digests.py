"""Hashes of a job's declared data, independent of its ranks, for ``dmr check``."""

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
    """The end of a run.

    Attributes:
        ranks, step: number of ranks, and of steps done.
        sizes: ranks after each resize.
        fields: the hash of every field and list.
        unchanged: fields and lists with their initial bytes.
        state: the hash of every value of ``run.state``.
    """

    ranks: int
    step: int
    sizes: list[int]
    fields: dict[str, str]
    unchanged: list[str]
    state: dict[str, str]


def digests_of(comm: MPI.Intracomm, fields: Mapping[str, Distributed]) -> dict[str, str]:
    """Return the hash of every field and list, on rank 0 (collective); "" on the others."""
    hashes = {}
    for name, block in fields.items():
        digest, items = xxhash.xxh3_128(), 0
        _, pieces = block.gathered(comm)
        for piece in pieces:
            if piece is None:
                continue
            if (
                isinstance(block, Items) and not block.ordered
            ):  # in no order: which rank has an item tells it
                rows = bytes_of(piece).reshape(len(piece), -1) if len(piece) else ()
                items += sum(xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows)
            else:
                digest.update(bytes_of(piece).tobytes())
        digest.update(str(items).encode())
        hashes[name] = digest.hexdigest() if comm.rank == 0 else ""
    return hashes


def write_digests(
    path: Path, comm: MPI.Intracomm, fields: Mapping[str, Distributed], progress: Progress
) -> None:
    """Write the end of a run (collective; rank 0 writes)."""
    hashes = digests_of(comm, fields)
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
        for name, digest in hashes.items()
        if progress.digests.get(name) == digest and not fields[name].spec.constant
    ]
    sizes = [resize.to_ranks for resize in progress.resizes]
    record = Digests(comm.size, progress.step, sizes, hashes, unchanged, state)
    path.write_bytes(msgspec.json.encode(record))
