"""Solvers of arrays in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence
from whole_grids import Whole, as_setup

import mpdata
from mpdata.errors import InputError
from mpdata.options import Scheme, parse_boundaries
from mpdata.solver import Solver

README = Path(mpdata.__file__).parent / "README.md"
PSI = np.linspace(1.0, 2.0, 12).reshape(4, 3)
CALM = (0.0, 0.0)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Return arguments of ``Solver.of``: arrays of any shape, with or without the last faces."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    ends = st.sampled_from(["periodic", "open", "wall", "open/wall", "fixed:1.5/open"])
    kinds = [draw(ends) for _ in shape]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    faces: list[npt.NDArray[Any]] = []
    for axis, kind in enumerate(kinds):
        longer = kind != "periodic" or draw(st.booleans())
        extents = [n + (a == axis and longer) for a, n in enumerate(shape)]
        c = rng.uniform(-0.1, 0.1, extents)
        if kind == "periodic" and longer:
            layers = c.swapaxes(0, axis)
            layers[-1] = layers[0]
        faces.append(c)
    h = rng.uniform(0.8, 1.2, shape) if draw(st.booleans()) else None
    return {
        "psi": rng.uniform(0.5, 2.0, shape),
        "face_values": faces,
        "h": h,
        "boundaries": draw(st.sampled_from([kinds, ",".join(kinds)])),
    }


@given(arrays())
def test_arrays_of_any_shape_have_the_bits_of_the_same_case(given: dict[str, Any]) -> None:
    solver = Solver.of(**given, backend="numpy")
    psi, shape = given["psi"], given["psi"].shape
    flat = (1,) * (3 - len(shape))
    faces = []
    for axis in range(3):
        full = [n + (a == axis) for a, n in enumerate((*shape, *flat))]
        c = given["face_values"][axis] if axis < len(shape) else np.zeros(full)
        if c.ndim == len(shape) and c.shape == shape:
            c = np.concatenate([c, c.take([0], axis)], axis)
        faces.append(c.reshape(full))
    h = np.ones(shape) if given["h"] is None else given["h"]
    whole = Whole(psi.reshape(*shape, *flat), h.reshape(*shape, *flat), tuple(faces))  # type: ignore[arg-type]
    kinds = given["boundaries"]
    text = kinds if isinstance(kinds, str) else ",".join(kinds)
    same = Solver(as_setup(whole, parse_boundaries(text, len(shape))), backend="numpy")
    solver.advance(3)
    same.advance(3)
    assert solver.psi.shape == solver.density.shape == shape
    assert solver.psi.tobytes() == same.psi.tobytes()


def test_the_arrays_stay_as_they_are() -> None:
    psi, c = PSI.copy(), np.full((5, 3), 0.25)
    solver = Solver.of(psi, (c, 0.25), boundaries="open")
    solver.advance(2)
    assert psi.tobytes() == PSI.tobytes()
    before = solver.psi.copy()
    c[...] = np.nan
    psi[...] = np.nan
    solver.resume(before, 2)
    solver.advance(1)
    assert np.isfinite(solver.psi).all()


@pytest.mark.parametrize(("given", "kept"), [("f4", "f4"), ("f8", "f8"), ("i4", "f8")])
def test_the_type_is_that_of_psi(given: str, kept: str) -> None:
    assert Solver.of(np.ones(6, given), [0.5]).psi.dtype == np.dtype(kept)


def test_nothing_passes_the_wall_at_one_end_only() -> None:
    for boundaries, inside in (("wall/open", True), ("open/wall", False)):
        solver = Solver.of(np.ones(8), [0.5], boundaries=boundaries, scheme=Scheme(1))
        solver.advance(1)
        assert solver.psi[0] == (0.5 if inside else 1.0)
        assert solver.psi[-1] == (1.0 if inside else 1.5)


@pytest.mark.parametrize("scheme", [Scheme(1), Scheme(2), Scheme(3)], ids=str)
def test_each_end_has_its_own_value(scheme: Scheme) -> None:
    for c, wanted in ((1.0, [7, 7, 1, 2, 3]), (-1.0, [3, 4, 5, 9, 9])):
        rising = np.arange(1.0, 6.0)
        solver = Solver.of(rising, [c], boundaries="fixed:7/fixed:9", scheme=scheme)
        solver.advance(2)
        assert solver.psi == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"psi": np.ones((2, 2, 2, 2))}, "expected psi of 1 to 3 axes"),
        ({"psi": 1.0}, "expected psi of 1 to 3 axes"),
        ({"psi": np.ones((3, 0))}, "expected psi of 1 to 3 axes of at least 1 cell"),
        ({"psi": PSI > 1}, "expected numbers in psi, got bool"),
        ({"psi": [[1.0, 2.0], [3.0]]}, "expected an array of numbers in psi"),
        ({"psi": np.where(PSI > 1.5, np.nan, PSI)}, "expected finite numbers in psi, got nan"),
        ({"psi": PSI - 1.5}, "expected psi of one sign"),
        ({"face_values": [0.1]}, "one for each axis of psi (2), got 1"),
        ({"face_values": 0.1}, "one for each axis of psi (2), got no sequence"),
        (
            {"face_values": [0.1, None]},
            "since axis 1 is periodic, (4, 3), got none",
        ),
        ({"face_values": [np.ones((4, 4)), 0.1]}, "expected c1 of shape (5, 3) or, since axis 0"),
        (
            {"face_values": [np.ones((4, 3)), 0.1], "boundaries": "open"},
            "shape (5, 3), got (4, 3)",
        ),
        ({"face_values": [np.arange(15.0).reshape(5, 3) / 50, 0.1]}, "first and the last face"),
        ({"face_values": [np.inf, 0.1]}, "expected finite numbers in c1, got inf"),
        ({"face_values": ["fast", 0.1]}, "expected numbers in c1, got"),
        ({"face_values": [0.6, 0.6]}, "at most 1 in every cell, got 1.2"),
        ({"h": np.ones(4)}, "expected h of shape (4, 3), got (4,)"),
        ({"h": np.zeros((4, 3))}, "expected positive numbers in h, got 0"),
        ({"h": -1.0}, "expected positive numbers in h, got -1"),
        ({"boundaries": "open,open,open"}, "expected one boundary or two, got 3"),
        ({"boundaries": ["open", "closed"]}, "expected a boundary of"),
        ({"boundaries": "open,pole"}, "expected a periodic axis 0"),
        ({"boundaries": "open/periodic,wall"}, "expected both ends of an axis periodic or none"),
        ({"backend": "abacus"}, "expected a backend"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_sentence(
    given: dict[str, Any], sentence: str
) -> None:
    with one_sentence(InputError, sentence):
        Solver.of(**{"psi": PSI, "face_values": CALM, **given})


def test_the_example_of_the_readme_runs() -> None:
    text = README.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(README), "exec"), names)
    assert names["solver"].psi.shape == names["psi"].shape
    assert names["solver"].psi.sum() == pytest.approx(names["psi"].sum(), rel=1e-13)
