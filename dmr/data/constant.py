"""Fields that never change: not sent, but made again by every set of ranks, and compared.

A new world has them from the program's set-up while the old one still steps. The worlds compare a
hash that does not depend on the decomposition: the sum, modulo 2**64, of the hashes of all cells.
That of a cell mixes its index and its bytes (the finaliser of SplitMix64: G. Steele, D. Lea,
C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dmr.data import gather
from dmr.data.field import Field

PIECE_BYTES = 1 << 20
"""Cells are hashed in pieces of so many bytes, which stay in cache."""

DIFFERS = "not the same on all ranks"

X87_BYTES, X87_MANTISSA_BITS = 10, 63
"""Of numpy.longdouble on x86, whose other bytes (of 12 or 16) are padding."""

Words = npt.NDArray[np.uint64]


def hashes(fields: Mapping[str, Field]) -> dict[str, int]:
    """Return the sum over this rank's cells, of every constant field."""
    return {name: _hash_of(block) for name, block in fields.items() if block.spec.constant}


def combined(fields: Mapping[str, Field], parts: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Return the hash of every constant field as a whole, from the sums of all ranks."""
    wholes = {}
    for name in parts[0]:
        sums = [part[name] for part in parts]
        if fields[name].decomposition.split:
            wholes[name] = f"{sum(sums) % 2**64:016x}"
        else:  # every rank has the whole
            wholes[name] = f"{sums[0]:016x}" if len(set(sums)) == 1 else DIFFERS
    return wholes


def problem_with(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """Return a sentence if the constant data of a new world is not that of the old one."""
    for name, digest in new.items():
        if old.get(name) != digest:
            return (
                f"field {name}: expected the constant data of the ranks before, got "
                f"{'data ' + DIFFERS if digest == DIFFERS else 'other data'}: set it before the "
                "block, the same in every set of ranks"
            )
    return None


def _hash_of(block: Field) -> int:
    total = 0
    for box in gather.own_boxes(block, PIECE_BYTES):
        index = np.zeros((), np.uint64)
        for first, end, extent in zip(box.start, box.stop, block.decomposition.shape, strict=True):
            along = np.arange(first, end, dtype=np.uint64)
            index = index[..., None] * np.uint64(extent) + along
        mixed = _mixed(index.reshape(-1) + np.uint64(1))
        for word in _words(block.pack(box)).T:
            mixed = _mixed(mixed ^ word)
        total += int(np.add.reduce(mixed, dtype=np.uint64))
    return total % 2**64


def bytes_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of the items of a contiguous array, with padding bytes set to 0."""
    data = values.reshape(-1).view(np.uint8).reshape(values.size, values.dtype.itemsize)
    mask = _value_bytes(values.dtype)
    return data if mask.all() else data * mask


def _value_bytes(dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    """Return a mask of the bytes of an item: 1 for its value, 0 for padding."""
    mask = np.zeros(dtype.itemsize, np.uint8)
    if dtype.fields is not None:
        for member, at, *_ in dtype.fields.values():
            mask[at : at + member.itemsize] |= _value_bytes(member)
    elif dtype.subdtype is not None:
        mask[:] = np.tile(_value_bytes(dtype.base), prod(dtype.shape))
    elif dtype.char in "gG" and np.finfo(np.longdouble).nmant == X87_MANTISSA_BITS:
        part = np.arange(dtype.itemsize // (2 if dtype.char == "G" else 1)) < X87_BYTES
        mask[:] = np.tile(part if dtype.isnative else part[::-1], mask.size // part.size)
    else:
        mask[:] = 1
    return mask


def _words(values: npt.NDArray[Any]) -> Words:
    """Return the bytes of the cells, padded to 64-bit words."""
    size = values.dtype.itemsize
    padded = np.zeros((values.size, -(-size // 8) * 8), np.uint8)
    padded[:, :size] = bytes_of(values)
    return padded.view(np.uint64)


def _mixed(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
