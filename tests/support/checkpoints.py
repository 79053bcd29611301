"""Checkpoints as several ranks write them, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dmr.checkpoint.format import index_of_parts, write_index, write_part
from dmr.checkpoint.store import path_of
from dmr.data.field import Field
from dmr.data.gather import SLAB_BYTES
from dmr.state.progress import Progress


def write(
    folder: Path, blocks: Sequence[Field], step: int = 7, piece_bytes: int = SLAB_BYTES
) -> Path:
    """Write a checkpoint of field ``a``, of which each rank has a block; return its path."""
    path = path_of(folder, step)
    parts_folder = path.with_name(f"{path.stem}-{'0' * 8}.parts")
    parts_folder.mkdir(parents=True)
    reports = [
        write_part(parts_folder, rank, {"a": block}, piece_bytes)
        for rank, block in enumerate(blocks)
    ]
    assert [problem for problem, _ in reports] == [None] * len(blocks)
    fields = {"a": blocks[0]}
    index = index_of_parts(parts_folder, fields, {}, [parts for _, parts in reports])
    assert write_index(path, index, fields, Progress(step=step), {}) is None
    return path
