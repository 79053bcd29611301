"""Equal constants of longdouble were refused as different: their padding bytes were hashed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import dmr
from dmr.check.digests import digests_of
from dmr.data import constant
from dmr.data.constant import bytes_of
from dmr.data.field import Field

ALIGNED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "g", (2,))], align=True)


def padded(dtype: Any, byte: int) -> Any:
    """Return some values of a dtype, the padding of whose items has this byte."""
    values = np.zeros(7, dtype)
    for name in values.dtype.names or ("",):
        part = values[name] if name else values
        part[...] = np.arange(part.size).reshape(part.shape) / 3
    raw = values.view("u1").reshape(7, -1)
    raw[:, constant._value_bytes(values.dtype) == 0] = byte
    return values


def block_of(values: Any, *, constant: bool) -> Field:
    spec = dmr.adapt(values, values.shape, constant=constant)
    return spec.block(spec.decompose((1,)), 0)


@pytest.mark.parametrize("dtype", ["g", "G", ">g", ">G", ALIGNED], ids=str)
def test_padding_is_no_part_of_a_value(dtype: Any) -> None:
    one, other = padded(dtype, 1), padded(dtype, 2)
    assert (one == other).all()
    hashes = [constant.hashes({"k": block_of(each, constant=True)}) for each in (one, other)]
    assert hashes[0] == hashes[1]
    digests = [
        digests_of(MPI.COMM_SELF, {"k": block_of(each, constant=False)}) for each in (one, other)
    ]
    assert digests[0] == digests[1]  # what dmr check compares


@pytest.mark.parametrize("dtype", ["g", "G", ">g", ALIGNED, "f8", "U2", "M8[s]"], ids=str)
def test_every_bit_of_a_value_counts(dtype: Any) -> None:
    values = np.zeros(1, dtype)
    distinct = {bytes_of(values).tobytes()}
    for at in np.flatnonzero(constant._value_bytes(values.dtype)):
        raw = np.zeros(values.nbytes, "u1")
        raw[at] = 1
        distinct.add(bytes_of(raw.view(dtype)).tobytes())
    real = 10 if np.finfo("g").nmant == 63 else np.dtype("g").itemsize  # x87 has padding
    expected = {"g": real, ">g": real, "G": 2 * real}.get(str(dtype), values.nbytes)
    if dtype is ALIGNED:
        expected = 1 + 8 + 2 * real
    assert len(distinct) == 1 + expected
