"""Every backend has the reference's bits, and threads change none of them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from selection import all_wide_but

from mpdata.backends import make_stepper
from mpdata.cases import Request, Setup, make_setup
from mpdata.flow.faces import Flow
from mpdata.numerics.numba import fused_stepper
from mpdata.options import Scheme, parse_boundaries
from mpdata.solver import Solver

WITHOUT_FMA = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}
"""Numba compiles for a processor that has no fused multiply-add."""

Array = npt.NDArray[np.floating]
Triple = tuple[int, int, int]

SCHEMES = [
    Scheme(1),
    *(
        Scheme(iterations, limiter, gauge, third, divergent)
        for iterations, gauge in ((2, False), (2, True), (3, False))
        for limiter in (False, True)
        for third in (False, True)
        for divergent in (False, True)
    ),
]
"""All that differ in what they compute."""

SOME = [Scheme(1), Scheme(2), Scheme(2, False, True, True), Scheme(3, True, False, True, True)]
BOUNDARIES = ["periodic", "open", "wall", "fixed:1.5", "periodic,wall,open"]
GRIDS: list[Triple] = [(9, 1, 1), (1, 9, 1), (1, 1, 9)]
"""Lines: test_combinations has planes and cubes."""

LINE: Triple = (9, 1, 1)

STEPS = 3


def random_setup(grid: Triple, boundaries: str = "periodic") -> Setup:
    return make_setup("random", Request(grid=grid, boundaries=parse_boundaries(boundaries)))


def answer(
    setup: Setup, scheme: Scheme, backend: str, dtype: str = "f8", threads: int = 1
) -> Array:
    solver = Solver(setup, scheme, dtype, backend, threads)
    solver.advance(STEPS)
    return solver.psi


@pytest.mark.parametrize("scheme", SOME, ids=str)
@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.covering(0)
def test_numba_has_the_bits_of_numpy_on_lines(
    grid: Triple, dtype: str, boundaries: str, scheme: Scheme
) -> None:
    setup = random_setup(grid, boundaries)
    a, b = (answer(setup, scheme, backend, dtype) for backend in ("numpy", "numba"))
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("grid", [(7, 6, 5), (2, 3, 2), (4, 40, 32)], ids=str)
@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize(
    ("scheme", "dtype"),
    all_wide_but(
        [
            (Scheme(3), "f8"),
            (Scheme(3, False), "f8"),
            (Scheme(3, False), "f4"),
            (Scheme(3, True, False, True, True), "f8"),
            (Scheme(3, True, False, True, True), "f4"),
        ],
        (Scheme(3), "f8"),
    ),
    ids=str,
)
def test_three_fused_passes_have_the_bits_of_numpy(
    scheme: Scheme, dtype: str, boundaries: str, grid: Triple
) -> None:
    setup = random_setup(grid, boundaries)
    expected = answer(setup, scheme, "numpy", dtype)
    for threads in (1, 2):
        assert answer(setup, scheme, "numba", dtype, threads).tobytes() == expected.tobytes()


PROGRAM = """
from sys import argv
from test_backends_agree import Scheme, answer, random_setup
grid, passes, dtype = tuple(map(int, argv[1].split(","))), int(argv[2]), argv[3]
print(answer(random_setup(grid), Scheme(passes), "numba", dtype).tobytes().hex())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not an x86 processor")
@pytest.mark.parametrize(
    ("grid", "passes", "dtype"),
    all_wide_but([(LINE, 2, "f8"), (LINE, 2, "f4"), ((5, 4, 3), 3, "f8")], (LINE, 2, "f8")),
    ids=str,
)
def test_a_processor_without_fma_computes_the_same_bits(
    grid: Triple, passes: int, dtype: str, tmp_path: Path
) -> None:
    env = {**os.environ, **WITHOUT_FMA, "NUMBA_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    words = [",".join(map(str, grid)), str(passes), dtype]
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = answer(random_setup(grid), Scheme(passes), "numpy", dtype)
    assert done.stdout.strip() == expected.tobytes().hex()
    name = b"\0fma\0" if dtype == "f8" else b"\0fmaf\0"
    assert any(name in path.read_bytes() for path in tmp_path.glob("*.o")), "no call of libm"


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("grid", [(7, 6, 5), (8, 7, 1), (9, 1, 1)], ids=str)
@pytest.mark.covering(0)
def test_threads_change_no_bit(grid: Triple, dtype: str, scheme: Scheme, threads: int) -> None:
    setup = random_setup(grid, "periodic,wall,open")
    one = answer(setup, scheme, "numba", dtype)
    assert answer(setup, scheme, "numba", dtype, threads).tobytes() == one.tobytes()


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.covering(0)
def test_float32_stays_float32_from_end_to_end(backend: str, scheme: Scheme) -> None:
    solver = Solver(random_setup((7, 6, 5)), scheme, "f4", backend)
    solver.advance(STEPS)
    held = [solver.psi, solver.density, *solver.flow.C, *scratch(solver)]
    found = {array.dtype for array in held if array.size and array.dtype.kind == "f"}
    assert found == {np.dtype("f4")}


def scratch(solver: Solver) -> list[Array]:
    """Return every array that the stepper holds, wherever it keeps them."""
    found: list[Array] = []
    todo: list[object] = list(vars(stepper_of(solver)).values())
    while todo:
        item = todo.pop()
        if isinstance(item, (list, tuple)):
            todo += item
        elif isinstance(item, np.ndarray):
            found.append(item)
    return found


def stepper_of(solver: Solver) -> object:
    return next(value for value in vars(solver).values() if hasattr(value, "warm"))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_float32_is_computed_in_float32(backend: str) -> None:
    # Were the passes done in float64 and rounded, one step would be the rounded float64 one.
    setup = random_setup((7, 6, 5))
    narrow = Solver(setup, Scheme(2), "f4", backend)
    wide = Solver(setup, Scheme(2), "f8", backend)
    for array, other in zip(held(wide), held(narrow), strict=True):
        array[...] = other
    narrow.advance(1)
    wide.advance(1)
    assert (narrow.psi != wide.psi.astype("f4")).mean() > 0.2


def held(solver: Solver) -> list[npt.NDArray[np.floating]]:
    return [solver.psi, solver.flow.h, *solver.flow.C]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.covering(0)
def test_a_single_cell_stays_as_it_is(backend: str, scheme: Scheme) -> None:
    setup = random_setup((1, 1, 1))
    before = Solver(setup, scheme, backend="numpy").psi.copy()
    assert answer(setup, scheme, backend).tobytes() == before.tobytes()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.covering(0)
def test_steppers_follow_the_order_in_memory(scheme: Scheme, backend: str, order: Triple) -> None:
    # dmr's blocks lie in the paper's order N, L, M, and their rows are padded.
    solver = Solver(random_setup((7, 6, 5)), scheme, backend=backend)
    plain = answer(solver.setup, scheme, "numpy")
    geo = solver.geometry

    def allocate() -> Array:
        n, m, el = (geo.shape[axis] for axis in order)
        padded = np.zeros((n, m, el + 3))[:, :, :el]
        return padded.transpose([order.index(axis) for axis in range(3)])

    def laid_out(array: Array) -> Array:
        copy = allocate()
        copy[...] = array
        return copy

    cells = geo.cells(0)
    flow = Flow(list(map(laid_out, solver.flow.C)), laid_out(solver.flow.h))
    around = np.ix_(*geo.global_cells())
    psi, spare = laid_out(solver.psi[around]), allocate()
    stepper = make_stepper(backend, geo, scheme, flow, allocate)
    for _ in range(STEPS):
        stepper.advance(psi, spare, flow.C)
        psi[...] = spare[cells][around]
    assert np.abs(psi[cells] - plain).max() <= 1e-13 * np.abs(plain).max()


@pytest.mark.wide
def test_rows_in_segments_have_the_bits_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And timing the arithmetic in cache changes nothing of the field."""
    setup = random_setup((5, 6, 2 * fused_stepper.SEGMENT))
    solver = Solver(setup, Scheme(2, True), "f8", "numba")
    timed = solver.in_cache()
    assert timed is not None
    solver.advance(1)
    timed()
    solver.advance(STEPS - 1)
    monkeypatch.setattr(fused_stepper, "SEGMENT", 1 << 20)
    assert solver.psi.tobytes() == answer(setup, Scheme(2, True), "numba").tobytes()
