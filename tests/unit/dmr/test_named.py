"""Fields by the names of their dimensions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dmr


def test_fields_have_the_extents_cuts_and_halos_of_their_dimensions() -> None:
    model = {"v": np.zeros((3, 14))}
    fields = dmr.adapt_all(
        {
            "u": (np.zeros((14, 12, 4), order="F"), ("x", "y", "z")),
            "v": (lambda: model["v"], lambda a: model.update(v=a), ("z", "x")),
            "depth": (np.zeros(12), "y"),
            "xarray": SimpleNamespace(values=np.zeros((14, 2)), dims=("x", "n")),
        },
        cut={"x"},
        shape={"x": 20},
        halo={"x": 2, "y": (1, 0)},
    )
    assert {name: one.shape for name, one in fields.items()} == {
        "u": (20, 11, 4),
        "v": (3, 20),
        "depth": (11,),
        "xarray": (20, 2),
    }
    assert {name: one.split for name, one in fields.items()} == {
        "u": (0,),
        "v": (1,),
        "depth": (),
        "xarray": (0,),
    }
    assert fields["u"].halos == ((2, 2), (1, 0), (0, 0)) and fields["v"].getter is not None
    assert fields["u"].memory_layout((10, 11, 4)).padded == (14, 12, 4)


def test_a_number_is_the_halo_of_what_is_cut() -> None:
    fields = dmr.adapt_all(
        {"u": (np.zeros((8, 5)), ("x", "y"))}, {"x"}, {"x": 4}, halo=1, edge={"x": 2}
    )
    assert fields["u"].halos == ((1, 1), (0, 0)) and fields["u"].edge_halos == ((2, 2), (0, 0))


def test_an_attribute_is_read_and_set_by_its_name() -> None:
    model = SimpleNamespace(u=np.zeros((6, 3)))
    field = dmr.adapt_all({"u": (model, "u", ("x", "y"))}, {"x"}, {"x": 4}, halo=1)["u"]
    model.u = np.ones((6, 3))
    assert field.shape == (4, 3) and field.getter is not None and field.setter is not None
    assert field.getter() is model.u
    field.setter(np.full((6, 3), 2.0))
    assert model.u[0, 0] == 2.0
    with pytest.raises(ValueError, match="field v: expected an object with an attribute v"):
        dmr.adapt_all({"v": (model, "v", ("x", "y"))}, {"x"}, {"x": 4})


def test_scalars_are_whole_on_every_rank() -> None:
    model, time = {"step": np.array(3, "i4")}, np.array(0.5)
    fields = dmr.adapt_all(
        {
            "step": (lambda: model["step"], lambda a: model.update(step=a), ()),
            "time": (time, ()),
            "u": (np.zeros(4), "x"),
        },
        {"x"},
        {"x": 4},
    )
    step, time_field = fields["step"], fields["time"]
    assert [one.shape for one in (step, time_field)] == [(1,), (1,)]
    assert step.split == time_field.split == () and step.dtype == np.dtype("i4")
    assert step.getter is not None and step.setter is not None
    assert step.getter().tolist() == [3]
    step.setter(np.array([7], "i4"))
    assert model["step"].shape == () and model["step"] == 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cut": {"q"}}, r"expected cut to name dimensions of the arrays \(x, y\), got q"),
        ({"halo": {"q": 1}}, r"expected halo to name dimensions of the arrays \(x, y\), got q"),
        ({"shape": {"y": 3}}, "field u: expected the extent of x, which is cut, in shape, got y"),
        (
            {"arrays": {"u": (np.zeros(3), ("x", "y"))}},
            r"field u: expected names of 1 dimensions, got \('x', 'y'\)",
        ),
        (
            {"arrays": {"u": (0.5, ())}},
            "field u: expected an array, or get and set, for a scalar, got float",
        ),
        ({"arrays": {"u": np.zeros(3)}}, r"field u: expected \(array, dimensions\), .* ndarray"),
        ({"arrays": {"u": (np.zeros((3, 4))[:, ::2], ("x", "y"))}}, "field u: .* without gaps"),
    ],
)
def test_bad_statements_name_the_field(given: Any, words: str) -> None:
    stated: Any = {
        "arrays": {"u": (np.zeros((3, 4)), ("x", "y"))},
        "cut": {"x"},
        "shape": {"x": 3},
    }
    with pytest.raises(ValueError, match=words):
        dmr.adapt_all(**{**stated, **given})
