"""The CUDA source on a GPU: the reference's bits however it is run, no races."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_blocks as check
from cuda_on_host import build_in, compiler
from processes import program

from mpdata.errors import InputError
from mpdata.numerics.cuda.device import CupyStepper, load_cupy
from mpdata.numerics.cuda.job import GpuTile
from mpdata.numerics.cuda.stepper import CudaStepper, is_streamable
from mpdata.numerics.cuda.tuning import candidates
from mpdata.options import Scheme, parse_boundaries

try:
    cupy = load_cupy()
except InputError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.promise("gpu")
Triple = tuple[int, int, int]

BOUNDARIES = [
    *("periodic", "wall,open,fixed:1.5", "fixed:1.2,periodic,fixed:0.7"),
    *("fixed:1.2/wall,open/fixed:0.9,fixed:0.7/fixed:1.1", "periodic,pole/fixed:1.5,open/wall"),
]
ALL = Scheme(2, True, True, True, True)
SCHEMES = [Scheme(1), *(Scheme(n, *on) for n in (2, 3) for on in product((False, True), repeat=4))]
"""Every combination of options (on one pass they change nothing)."""
# More than one tile of 32 x 16 and more than one chunk, no side a multiple of either.
GRID: Triple = (45, 70, 31)
FLAT: list[Triple] = [(45, 70, 1), (70, 1, 31), (1, 1, 70)]


def block_of(
    xp: Any, grid: Triple, scheme: Scheme, boundaries: str = "periodic", dtype: str = "f8"
) -> check.Block:
    return check.random_block(xp, grid, scheme, parse_boundaries(boundaries), dtype)


def stepper_on(
    block: check.Block, variant: str = "auto", tile: GpuTile | None = None, **more: Any
) -> CupyStepper:
    return CupyStepper(block.geo, block.scheme, block.h, block.allocate, variant, tile, **more)


def on_device(block: check.Block, *given: Any, steps: int = 2, **more: Any) -> Any:
    return cupy.asnumpy(check.after(block, stepper_on(block, *given, **more), steps))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_variant_has_the_bits_of_the_reference(scheme: Scheme, dtype: str) -> None:
    grids = [GRID, *(FLAT if scheme in (Scheme(2), ALL) else [])]
    for grid in grids:
        for boundaries in BOUNDARIES:
            host = block_of(np, grid, scheme, boundaries, dtype)
            expected = check.after(host, check.reference(host))
            device = block_of(cupy, grid, scheme, boundaries, dtype)
            fast = is_streamable(scheme, len(host.geo.active))
            variants = ("four", "fused") if fast else ("four",)
            for variant in variants:
                answer = on_device(device, variant)
                assert answer.tobytes() == expected.tobytes(), (grid, boundaries, variant)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_the_host_check_stands_for_the_device(dtype: str, tmp_path: Path) -> None:
    host, device = (block_of(xp, GRID, Scheme(2), BOUNDARIES[1], dtype) for xp in (np, cupy))
    stepper = CudaStepper(host.geo, host.scheme, host.h, host.allocate, build_in(tmp_path), "four")
    assert check.after(host, stepper).tobytes() == on_device(device, "four").tobytes()


@pytest.mark.parametrize("variant", ["four", "fused"])
@pytest.mark.parametrize("boundaries", BOUNDARIES[:2])
def test_cuts_change_no_bit(boundaries: str, variant: str) -> None:
    whole = block_of(cupy, GRID, Scheme(2), boundaries)
    expected = on_device(whole, variant, steps=1)
    n, m, el = GRID
    for rows in ((0, n // 2 - 2), (n // 2 - 2, n)):
        for columns in ((0, m // 2 - 2), (m // 2 - 2, m)):
            part = check.cut(whole, (rows[0], columns[0], 0), (rows[1], columns[1], el))
            out = part.allocate()
            stepper_on(part, variant).advance(part.psi, out, part.C)
            wanted = expected[rows[0] : rows[1], columns[0] : columns[1]]
            assert cupy.asnumpy(out[part.geo.cells(0)]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_tiles_and_repetition_change_no_bit(dtype: str) -> None:
    # A race would most likely differ from run to run and from tile to tile.
    block = block_of(cupy, (100, 130, 40), Scheme(2), "open,periodic,wall", dtype)
    tiles = [*candidates(dtype), GpuTile(16, 9, 20), GpuTile(64, 7, 64)]
    answers = {on_device(block, "fused", tile).tobytes() for tile in tiles for _ in range(4)}
    assert len(answers) == 1


@pytest.mark.parametrize("variant", ["four", "fused"])
def test_layers_by_themselves_make_the_whole(variant: str) -> None:
    block = block_of(cupy, GRID, Scheme(2), "wall,open,periodic")
    expected = on_device(block, variant, steps=1)
    stepper, out = stepper_on(block, variant), block.allocate()
    n = GRID[0]
    for layers in ((3, n - 3), (0, 3), (n - 3, n)):
        stepper.advance(block.psi, out, block.C, layers)
    assert cupy.asnumpy(out[block.geo.cells(0)]).tobytes() == expected.tobytes()


def test_graphs_change_no_bit() -> None:
    block = block_of(cupy, GRID, Scheme(2), "open")
    plain = on_device(block, "four", steps=6)
    assert on_device(block, "four", steps=6, graphs=True).tobytes() == plain.tobytes()


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer here")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    done = subprocess.run(
        [*command, *program("small_steps")], capture_output=True, text=True, check=False
    )
    assert "steps done" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.returncode == 0, done.stdout[-4000:]
