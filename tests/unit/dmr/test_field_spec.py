"""What an application may state about a field, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentences import one_sentence

import dmr
from dmr.data.decomposition import Box
from dmr.data.field import FieldSpec


def spec(**stated: Any) -> FieldSpec:
    return FieldSpec(**{"shape": (4, 5, 6), "dtype": "f8", "initial": zero, **stated})


def zero(box: Box) -> float:
    return 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"shape": ()},
        {"shape": (2, 2, 2, 2, 2)},
        {"shape": (4, 0, 6)},
        {"shape": (4, -1, 6)},
        {"split": (0, 1, 2, 3)},
        {"split": (1, 1)},
        {"split": (0, 3)},
        {"split": (-1, 0)},
        {"order": (0, 1)},
        {"order": (0, 1, 1)},
        {"order": (1, 2, 3)},
        {"halo": -1},
        {"halo": ((1, 1), (1, 1))},
        {"halo": ((1, 1), (1, -1), (1, 1))},
    ],
    ids=str,
)
def test_bad_specs_are_refused_in_one_sentence(bad: dict[str, Any]) -> None:
    with one_sentence(ValueError):
        spec(**bad)


@pytest.mark.parametrize("split", [(0,), (0, 1)])
def test_one_axis_is_split_along_itself(split: tuple[int, ...]) -> None:
    assert spec(shape=(8,), split=split).split == (0,)


def test_one_number_is_the_halo_of_all_sides() -> None:
    assert spec(halo=2).halos == ((2, 2), (2, 2), (2, 2))


def test_extra_layers_lie_above_the_halo_of_axes_that_have_one() -> None:
    layout = spec(halo=((1, 2), (0, 0), (0, 3)), extra=1).memory_layout((4, 5, 6))
    assert layout.halo == ((1, 3), (0, 0), (0, 4)) and layout.padded == (8, 5, 10)


def test_blocks_are_at_least_as_thick_as_the_thicker_halo() -> None:
    assert spec(halo=((2, 3), (1, 0), (9, 9))).thinnest_blocks() == (3, 1)
    assert spec(split=(2,), halo=((2, 3), (1, 0), (9, 9))).thinnest_blocks() == (9,)


def test_blocks_without_halo_have_a_cell_at_least() -> None:
    assert spec(halo=0).thinnest_blocks() == (1, 1)


def test_the_application_may_state_the_thinnest_block() -> None:
    assert spec(halo=((3, 4), (3, 4), (0, 0)), thinnest=3).thinnest_blocks() == (3, 3)


@pytest.mark.parametrize(
    "other", [{"shape": (4, 6, 5)}, {"dtype": "f4"}, {"dtype": ">f8"}, {"split": (1, 0)}], ids=str
)
def test_signatures_tell_fields_apart_that_cannot_be_moved(other: dict[str, Any]) -> None:
    assert spec(**other).signature() != spec().signature()


def test_signatures_ignore_how_a_field_lies_in_memory() -> None:
    here, there = spec(halo=1), spec(halo=3, order=(2, 1, 0), dtype=np.float64)
    assert here.signature() == there.signature()


def test_the_halo_at_the_edge_of_the_domain_may_differ() -> None:
    one = dmr.adapt(np.zeros((9, 10)), (6, 8), halo=1, edge=(2, (0, 1)))
    assert one.edge_halos == ((2, 2), (0, 1)) and one.halos == ((1, 1), (1, 1))
    cut = one.decompose((2,))
    assert [one.halos_of(cut.box(n)) for n in range(2)] == [((2, 1), (0, 1)), ((1, 2), (0, 1))]
    assert one.agreed("u", cut, [one.halos] * 2).edges == ((2, 2), (0, 1))
    none = dmr.adapt(np.zeros(6), (6,), halo=1, edge=0)
    assert none.agreed("u", none.decompose((1,)), [none.halos]).edges == ()
    assert none.block(none.decompose((1,)), 0).padded.shape == (6,)
    with pytest.raises(ValueError, match="expected an edge of 0 or more on each of 1 axes, got -1"):
        dmr.adapt(np.zeros(6), (6,), halo=1, edge=-1)
