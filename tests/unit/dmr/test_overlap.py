"""Moving a field between two process grids, emulated in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decompositions import everything, halos, pairs
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_ranks import Network, run_all
from stand_in import DeviceArray, DeviceModule

from dmr.data import streams
from dmr.data.decomposition import Box, Decomposition, Transfer, chunks, transfers
from dmr.data.field import Field, FieldSpec
from dmr.data.streams import Form, offer

Pair = tuple[Decomposition, Decomposition]
Host = npt.NDArray[Any]

LIMITS = st.integers(1, 400)


def world(spec: FieldSpec, decomposition: Decomposition) -> list[Field]:
    return [Field(spec, decomposition, rank) for rank in range(decomposition.size)]


def spec_of(shape: tuple[int, ...], xp: Any = np, **stated: Any) -> FieldSpec:
    """Return a field whose initial values tell its cells apart."""
    everywhere = unique_values(shape, stated.get("dtype", "f8"))
    return FieldSpec(
        shape,
        xp=xp,
        initial=lambda box: everywhere[box.slices()],
        **{"dtype": "f8", **stated},
    )


def unique_values(shape: tuple[int, ...], dtype: str) -> Host:
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)


def move(old: list[Field], new: list[Field], limit: int) -> None:
    """Do what dmr.data.streams does, with a bytes object as the network."""
    dtype = np.dtype(old[0].spec.dtype)
    for sender, block in enumerate(old):
        for transfer in transfers(block.decomposition, sender, new[0].decomposition):
            for box in chunks(transfer.box, dtype.itemsize, limit):
                message = block.pack(box).tobytes()
                new[transfer.peer].unpack(box, np.frombuffer(message, dtype).reshape(box.shape))


def gathered(blocks: list[Field]) -> Host:
    shape = blocks[0].spec.shape
    whole = np.zeros(shape, blocks[0].spec.dtype)
    for block in blocks:
        whole[block.box.slices()] = block.pack(block.box)
    return whole


@st.composite
def moves(draw: st.DrawFn) -> tuple[Pair, tuple[tuple[int, int], ...]]:
    """Return two grids of one array, and a halo that may be thicker than the blocks."""
    pair = draw(pairs())
    return pair, draw(halos(len(pair[0].shape)))


@given(moves(), st.sampled_from(["i2", "f4", "f8", "c16"]), LIMITS)
@example(
    (
        (Decomposition((2, 7), (0, 1), (5, 3)), Decomposition((2, 7), (0, 1), (1, 5))),
        ((3, 3), (3, 4)),
    ),
    "f8",
    16,
)
def test_new_interiors_hold_the_old_field_bit_for_bit(
    case: tuple[Pair, tuple[tuple[int, int], ...]], dtype: str, limit: int
) -> None:
    (old_layout, new_layout), halo = case
    spec = spec_of(old_layout.shape, dtype=dtype, halo=halo, split=old_layout.split)
    old, new = world(spec, old_layout), world(spec, new_layout)
    for block in old:
        block.padded[...] = 99
        block.initialise()
    move(old, new, limit)
    assert gathered(new).tobytes() == unique_values(spec.shape, dtype).tobytes()


@given(moves())
def test_a_move_leaves_the_new_halos_alone(
    case: tuple[Pair, tuple[tuple[int, int], ...]],
) -> None:
    (old_layout, new_layout), halo = case
    spec = spec_of(old_layout.shape, halo=halo, split=old_layout.split)
    old, new = world(spec, old_layout), world(spec, new_layout)
    for block in old:
        block.initialise()
    move(old, new, 1 << 20)
    for block in new:
        block.interior[...] = 0
        assert not block.padded.any()


@given(pairs())
def test_what_is_sent_is_what_is_received(pair: Pair) -> None:
    old, new = pair
    sent = {(s, t.peer, t.box) for s in range(old.size) for t in transfers(old, s, new)}
    received = {
        (t.peer, r, t.box) for r in range(new.size) for t in transfers(new, r, old, sending=False)
    }
    assert sent == received


@given(pairs())
def test_peers_rise_so_that_no_two_ranks_wait_for_each_other(pair: Pair) -> None:
    old, new = pair
    for rank in range(old.size):
        peers = [transfer.peer for transfer in transfers(old, rank, new)]
        assert peers == sorted(set(peers))


@given(pairs())
def test_each_cell_is_sent_exactly_once(pair: Pair) -> None:
    old, new = pair
    times = np.zeros(old.shape, int)
    for rank in range(old.size):
        for transfer in transfers(old, rank, new):
            times[transfer.box.slices()] += 1
    assert (times == 1).all()


@given(pairs())
def test_there_are_as_many_transfers_as_overlapping_boxes(pair: Pair) -> None:
    old, new = pair
    for rank in range(old.size):
        overlaps = [
            Transfer(peer, common)
            for peer in range(new.size)
            if (common := old.box(rank).intersect(new.box(peer))).size
        ]
        assert transfers(old, rank, new) == overlaps


@given(st.integers(1, 9), st.integers(1, 9))
def test_what_every_rank_has_goes_to_each_new_rank_once(old_ranks: int, new_ranks: int) -> None:
    old, new = (Decomposition((3, 2), (), (), copies=n) for n in (old_ranks, new_ranks))
    sent = [(s, t.peer) for s in range(old_ranks) for t in transfers(old, s, new)]
    taken = [(t.peer, r) for r in range(new_ranks) for t in transfers(new, r, old, sending=False)]
    assert sorted(sent) == sorted(taken)
    assert sorted(peer for _, peer in sent) == list(range(new_ranks))


@given(st.integers(1, 9), st.integers(1, 12), st.data())
def test_what_every_rank_has_goes_to_each_node_once(
    old_ranks: int, new_ranks: int, data: st.DataObject
) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(0, new_ranks - 1), min_size=1)))
    old = Decomposition((3, 2), (), (), copies=old_ranks)
    new = Decomposition((3, 2), (), (), copies=new_ranks, receivers=tuple(chosen))
    sent = [(s, t.peer) for s in range(old_ranks) for t in transfers(old, s, new)]
    taken = [(t.peer, r) for r in range(new_ranks) for t in transfers(new, r, old, sending=False)]
    assert sorted(sent) == sorted(taken)
    assert sorted(peer for _, peer in sent) == chosen
    busiest = max(sum(sender == s for sender, _ in sent) for s in range(old_ranks))
    assert busiest <= -(-len(chosen) // old_ranks)


class Counting(Decomposition):
    """Counts how often a box is asked for."""

    asked = 0

    def box(self, rank: int) -> Box:
        Counting.asked += 1
        return super().box(rank)


def test_finding_transfers_costs_overlaps_and_not_ranks() -> None:
    old = Decomposition((4000, 4000), (0, 1), (2000, 2000))
    new = Counting((4000, 4000), (0, 1), (1500, 1000))
    found = transfers(old, old.size // 2, new)
    assert Counting.asked == len(found) <= 4


@pytest.mark.parametrize(
    "other",
    [Decomposition((4, 5), (0, 1), (2, 2)), Decomposition((4, 6), (1, 0), (2, 2))],
)
def test_decompositions_of_two_arrays_are_refused(other: Decomposition) -> None:
    with pytest.raises(ValueError, match=r"expected two decompositions of one array, got"):
        transfers(Decomposition((4, 6), (0, 1), (2, 2)), 0, other)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    axes = draw(st.integers(1, 4))
    start = draw(st.tuples(*[st.integers(0, 9)] * axes))
    shape = draw(st.tuples(*[st.integers(1, 6)] * axes))
    return Box(start, tuple(a + n for a, n in zip(start, shape, strict=True)))


@given(boxes(), st.sampled_from([1, 4, 8]), LIMITS)
def test_chunks_follow_each_other_through_the_box(box: Box, itemsize: int, limit: int) -> None:
    numbers = np.arange(box.size).reshape(box.shape)
    walked = [numbers[c.slices(box.start)].ravel() for c in chunks(box, itemsize, limit)]
    assert np.concatenate(walked).tolist() == list(range(box.size))


@given(boxes(), st.sampled_from([1, 4, 8]), LIMITS)
def test_chunks_respect_the_limit_down_to_single_cells(box: Box, itemsize: int, limit: int) -> None:
    sizes = [chunk.size for chunk in chunks(box, itemsize, limit)]
    assert max(sizes) * itemsize <= max(limit, itemsize)
    assert min(sizes) > 0


def test_a_box_within_the_limit_is_one_chunk() -> None:
    assert list(chunks(Box((1, 2), (4, 4)), 8, 48)) == [Box((1, 2), (4, 4))]


@pytest.mark.parametrize(
    ("xp_old", "xp_new"), [(np, DeviceModule), (DeviceModule, np), (DeviceModule, DeviceModule)]
)
@given(case=moves(), limit=LIMITS)
def test_a_move_may_change_the_array_module(
    xp_old: Any, xp_new: Any, case: tuple[Pair, tuple[tuple[int, int], ...]], limit: int
) -> None:
    (old_layout, new_layout), halo = case
    stated = {"halo": halo, "split": old_layout.split}
    old = world(spec_of(old_layout.shape, xp_old, **stated), old_layout)
    new = world(spec_of(old_layout.shape, xp_new, **stated), new_layout)
    for block in old:
        block.initialise()
    move(old, new, limit)
    assert gathered(new).tobytes() == unique_values(old_layout.shape, "f8").tobytes()


def test_the_stand_in_refuses_to_be_taken_for_numpy() -> None:
    array = DeviceModule.zeros(3)
    with pytest.raises(TypeError, match="implicit"):
        np.asarray(array)
    with pytest.raises(TypeError, match="assigned"):
        array[...] = np.ones(3)


def device_field() -> Field:
    spec = spec_of((5, 6, 4), DeviceModule, halo=2)
    return Field(spec, spec.decompose((2, 1)), 1)


def test_a_field_of_another_module_holds_only_its_arrays() -> None:
    block = device_field()
    block.initialise()
    assert {type(a) for a in (block.storage, block.padded, block.interior)} == {DeviceArray}


def test_initialise_hands_host_values_to_the_module() -> None:
    block = device_field()
    block.initialise()
    found = DeviceModule.asnumpy(block.interior)
    assert found.tobytes() == unique_values((5, 6, 4), "f8")[3:].tobytes()


def test_initialise_takes_values_of_the_module_itself() -> None:
    spec = FieldSpec((4, 3), "f4", lambda box: DeviceModule.zeros(box.shape), xp=DeviceModule)
    block = Field(spec, spec.decompose((1, 1)), 0)
    block.interior[...] = 7
    block.initialise()
    assert not DeviceModule.asnumpy(block.interior).any()


def test_pack_returns_host_values_of_any_module() -> None:
    block = device_field()
    block.initialise()
    packed = block.pack(block.box)
    assert isinstance(packed, np.ndarray)
    assert packed.flags.c_contiguous


@pytest.mark.parametrize("xp", [np, DeviceModule])
def test_scratch_is_zero_and_lies_like_the_block_but_elsewhere(xp: Any) -> None:
    spec = spec_of((5, 6, 4), xp, halo=2)
    block = Field(spec, spec.decompose((1, 1)), 0)
    block.padded[...] = 3.0
    scratch = block.scratch()
    assert (scratch.shape, scratch.strides) == (block.padded.shape, block.padded.strides)
    assert type(scratch) is type(block.padded)
    on_host = getattr(xp, "asnumpy", np.asarray)
    assert not on_host(scratch).any()
    assert (on_host(block.padded) == 3.0).all()


def test_initial_values_may_be_broadcast() -> None:
    spec = FieldSpec((4, 3), "f4", lambda box: 2.5, halo=1)
    block = Field(spec, spec.decompose((1, 1)), 0)
    block.initialise()
    assert block.interior.dtype == np.float32
    assert (block.interior == 2.5).all()
    assert block.padded.sum() == 2.5 * everything(spec.shape).size


def test_a_field_counts_its_spare_array() -> None:
    spec = spec_of((5, 6, 4), halo=2)
    block = Field(spec, spec.decompose((2, 1)), 1)
    one = block.memory_layout.allocation_bytes
    assert block.nbytes == one
    block.spare[...] = 0.0
    assert block.nbytes == 2 * one
    block.flip()
    assert block.nbytes == 2 * one


def test_a_field_without_a_spare_array_cannot_be_flipped() -> None:
    spec = spec_of((5, 6, 4), halo=2)
    block = Field(spec, spec.decompose((1, 1)), 0)
    storage = block.storage
    with pytest.raises(RuntimeError, match=r"expected a step written into Field\.spare"):
        block.flip()
    assert block.storage is storage


def test_a_rank_that_stays_keeps_the_cells_that_are_in_both_its_blocks() -> None:
    spec = spec_of((12, 3), halo=1, split=(0,))
    old = Field(spec, spec.decompose((3,)), 1)  # rows 4 to 7
    old.initialise()
    new = Field(spec, spec.decompose((2,)), 1)  # rows 6 to 11
    assert new.keep(old) == 2 * 3 * 8
    assert new.interior[:2].tolist() == [[19, 20, 21], [22, 23, 24]]
    new.interior[:2] = 0
    assert not new.padded.any()
    apart = Field(spec, spec.decompose((6,)), 1)  # rows 2 and 3
    assert apart.keep(old) == 0 and not apart.padded.any()


@pytest.mark.parametrize(
    ("limit", "messages"),
    [(16, 6), (32, 6), (64, 3), (100, 2), (1 << 20, 1)],
)
def test_a_message_has_as_many_layers_as_fit_and_one_at_least(
    limit: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six layers of 32 bytes; how the block lies and the hash are messages, too."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", limit)
    spec = spec_of((6, 4), split=(0,), alignment=8)
    cut = spec.decompose((1,))
    old, new, network = Field(spec, cut, 0), Field(spec, cut, 0), Network((1, 1))
    old.initialise()
    (here,), (there,) = network.comms(0), network.comms(1)
    ends: list[Any] = [
        old.sending(here, cut, on_host=True),
        new.receiving(there, cut, on_host=True),
    ]
    assert run_all(ends) == [6 * 32, True] and np.array_equal(new.interior, old.interior)
    assert network.sent == {(0, 0): 2 + messages, (1, 0): 1}


@pytest.mark.parametrize(
    ("halo", "alike"),
    [
        (((1, 1), (1, 1), (2, 2)), True),
        (((3, 2), (1, 1), (2, 2)), True),  # along the slowest axis
        (((1, 1), (1, 1), (2, 1)), False),
        (((1, 1), (0, 1), (2, 2)), False),
    ],
)
def test_layers_lie_alike_where_their_halos_are_the_same(halo: Any, alike: bool) -> None:
    def form(halo: Any) -> Form:
        spec = FieldSpec((5, 6, 4), "f8", lambda _: 0.0, halo=halo, row_major=True)
        return Form.of(Field(spec, spec.decompose((1, 1)), 0))

    assert form(((1, 1), (1, 1), (2, 2))).alike(form(halo)) is alike


def test_a_device_field_offers_no_memory_of_the_host() -> None:
    assert np.array_equal(Form.of(device_field()).memory, offer(0))
