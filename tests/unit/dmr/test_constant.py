"""Hashes of constant fields: the same however they are cut, another for any other byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dmr
from dmr.data import constant
from dmr.data.decomposition import Box
from dmr.data.particles import ListSpec
from dmr.world import decompositions_for

TYPES = ["f8", "f4", "i2", "u1", np.dtype([("a", "i4"), ("b", "f8")]), "c16"]


def hash_on(ranks: int, whole: Any, split: tuple[int, ...]) -> str:
    spec = dmr.FieldSpec(
        whole.shape,
        whole.dtype,
        lambda box: whole[box.slices((0,) * whole.ndim)],
        split=split,
        constant=True,
        alignment=whole.dtype.itemsize,
    )
    decomposition = decompositions_for(ranks, {"k": spec})["k"]
    blocks = [spec.block(decomposition, rank) for rank in range(ranks)]
    for block in blocks:
        block.initialise()
    parts = [constant.hashes({"k": block}) for block in blocks]
    return constant.combined({"k": blocks[0]}, parts)["k"]


@settings(max_examples=15)
@given(
    st.lists(st.integers(3, 9), min_size=1, max_size=3),
    st.sampled_from(TYPES),
    st.integers(1, 3),
    st.data(),
)
def test_a_hash_is_of_the_whole_however_it_is_cut(
    shape: list[int], dtype: Any, ranks: int, data: st.DataObject
) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.frombuffer(np.random.default_rng(size).bytes(size), "u1").copy()
    whole = raw.view(dtype).reshape(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    first = hash_on(1, whole, (0,))
    assert hash_on(ranks, whole, (axis,)) == first
    assert hash_on(ranks, whole, ()) == first
    raw[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert hash_on(ranks, whole, (axis,)) != first


@pytest.mark.parametrize("dtype", [*TYPES, "U3", "S11", ">c8", "m8[s]"])
def test_every_byte_of_an_item_counts(dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    found = set()
    for changed in (None, *range(2 * size)):
        raw = np.full(2 * size, 1, "u1")
        if changed is not None:
            raw[changed] = 2
        found.add(hash_on(1, raw.view(dtype), (0,)))
    assert len(found) == 1 + 2 * size


def test_cells_that_are_swapped_are_noticed() -> None:
    whole = np.arange(12.0)
    assert hash_on(2, whole, (0,)) != hash_on(2, whole[::-1].copy(), (0,))


def test_the_cells_of_every_piece_count(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.arange(12.0)
    found = {hash_on(1, whole, (0,))}
    monkeypatch.setattr(constant, "PIECE_BYTES", 32)  # four cells
    found.add(hash_on(1, whole, (0,)))
    assert len(found) == 1
    for cell in (0, 4, 11):
        found.add(hash_on(1, np.where(whole == cell, 99.0, whole), (0,)))
    assert len(found) == 4


def test_cells_are_hashed_a_mebibyte_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = list[int]()

    def noted(block: dmr.Field, box: Box) -> Any:
        packed.append(8 * box.size)
        return pack(block, box)

    pack = dmr.Field.pack
    monkeypatch.setattr(dmr.Field, "pack", noted)
    hash_on(1, np.zeros((320, 1024)), (0,))
    assert packed == [1 << 20, 1 << 20, 1 << 19]


def test_constants_that_differ_are_named() -> None:
    assert constant.problem_with({"k": "1"}, {"k": "1"}) is None
    said = constant.problem_with({"k": "1"}, {"k": "2"})
    assert said is not None and said.startswith("field k: expected the constant data of the ranks")
    said = constant.problem_with({}, {"k": constant.DIFFERS})
    assert said is not None and "got data not the same on all ranks" in said
    with pytest.raises(ValueError, match="expected a list that may change"):
        ListSpec((4,), "f8", lambda box: [], owner=lambda *_: [], constant=True)
