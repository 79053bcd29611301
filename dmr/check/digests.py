"""Hashes of a job's declared data, independent of its ranks, for ``dmr check``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from dmr.data.constant import bytes_of
from dmr.data.distributed import Array, Distributed
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
        unchanged_state: values of ``run.state`` that are the initial ones.
        variables: of every rank, the hashes of variables that are not declared.
        values: the values of ``run.state``, encoded, where a tolerance is given.
        stopped: whether it was stopped, after far more steps than without resizes.
    """

    ranks: int
    step: int
    sizes: list[int]
    fields: dict[str, str]
    unchanged: list[str]
    state: dict[str, str]
    unchanged_state: list[str] = []
    variables: list[dict[str, str]] = []
    values: dict[str, Any] = {}
    stopped: bool = False


STATE = "state:"
"""Before the names of values of the state among the initial hashes."""


def values_folder(record: Path) -> Path:
    """Return the folder for the values of the fields, beside the record, if there is one."""
    return record.with_suffix(".values")


def state_digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of every value of the state."""
    digests = {}
    for name, value in values.items():
        try:
            data = msgspec.json.encode(encode_values({name: value}))
        except ValuesError as error:
            data = str(error).encode()
        digests[name] = xxhash.xxh3_128_hexdigest(data)
    return digests


def note_initial_state(progress: Progress) -> None:
    """Record the hashes of the initial values of the state."""
    initial = state_digests(progress.values)
    progress.digests |= {f"{STATE}{name}": one for name, one in initial.items()}


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
    path: Path,
    comm: MPI.Intracomm,
    fields: Mapping[str, Distributed],
    progress: Progress,
    variables: Mapping[str, str],
    *,
    stopped: bool = False,
) -> None:
    """Write the end of a run (collective; rank 0 writes).

    Args:
        variables: hashes of this rank's variables that are not declared.
        stopped: whether it was stopped before its end.
    """
    hashes = digests_of(comm, fields)
    all_variables = comm.gather(dict(variables)) or []
    folder = values_folder(path)
    with_values = comm.bcast(folder.is_dir() if comm.rank == 0 else None)
    if with_values:
        _write_values(folder, comm, fields)
    if comm.rank:
        return
    state, values = state_digests(progress.values), dict[str, Any]()
    for name, value in progress.values.items() if with_values else ():
        with contextlib.suppress(ValuesError):
            values[name] = encode_values({name: value})
    unchanged_state = [
        name for name, one in state.items() if progress.digests.get(f"{STATE}{name}") == one
    ]
    unchanged = [
        name
        for name, digest in hashes.items()
        if progress.digests.get(name) == digest and not fields[name].spec.constant
    ]
    sizes = [resize.to_ranks for resize in progress.resizes]
    record = Digests(
        comm.size,
        progress.step,
        sizes,
        hashes,
        unchanged,
        state,
        unchanged_state,
        all_variables,
        values,
        stopped,
    )
    path.write_bytes(msgspec.json.encode(record))


def _write_values(folder: Path, comm: MPI.Intracomm, fields: Mapping[str, Distributed]) -> None:
    """Write every field as a file of NumPy, by its number (collective; rank 0 writes)."""
    for number, block in enumerate(fields.values()):
        shape, pieces = block.gathered(comm)
        if comm.rank:
            for _ in pieces:
                pass
            continue
        path, at = folder / f"{number}.npy", 0
        if isinstance(block, Items) and not block.ordered:
            np.save(path, _sorted(np.concatenate([piece for piece in pieces if piece is not None])))
            continue
        whole = np.lib.format.open_memmap(path, "w+", block.dtype, shape)
        for piece in pieces:
            if piece is not None:
                whole[at : at + len(piece)] = piece
                at += len(piece)
        whole.flush()


def _sorted(items: Array) -> Array:
    """Return items in the order of their members, the first one first."""
    if items.dtype.names is not None:
        return np.sort(items, order=items.dtype.names, kind="stable")
    columns = items.reshape(len(items), -1)
    return items[np.lexsort(columns.T[::-1])] if columns.size else items
