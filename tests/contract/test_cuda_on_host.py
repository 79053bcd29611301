"""The CUDA source without a GPU: it compiles, and on the host it has the reference's bits.

The host runs the threads of a block in turns, so a race shows only where their order matters; the
tests in ``tests/gpu`` are for the rest.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
import random_blocks as check
from cuda_on_host import HostLauncher, build_in, compiled, compiler, kept
from hypothesis import given
from hypothesis import strategies as st
from selection import all_wide_but

from mpdata.backends import choose_backend
from mpdata.errors import InputError
from mpdata.grid import Geometry, copy_layers, fill_halo, wrap_copies
from mpdata.numerics.cuda import device, tuning
from mpdata.numerics.cuda.job import (
    SHARED_BYTES,
    GpuTile,
    Macros,
    default_tile,
    job_type,
    macros,
    source,
)
from mpdata.numerics.cuda.stepper import Build, CudaStepper, is_streamable, scratch_of
from mpdata.options import Scheme, parse_boundaries

Triple = tuple[int, int, int]
Bits = npt.NDArray[Any]

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")

TILE = GpuTile(8, 7, chunk=3)
"""Small, so that the grids below have many tiles; their sides are no multiples of it."""

GRIDS: list[Triple] = [(12, 9, 7), (7, 8, 1), (9, 1, 8), (1, 1, 9)]
BOUNDARIES = [
    *("periodic", "wall,open,fixed:1.5", "fixed:1.2,periodic,fixed:0.7"),
    *("fixed:1.2/wall,open/fixed:0.9,fixed:0.7/fixed:1.1", "periodic,pole/fixed:1.5,open/wall"),
]
STREAMING = [
    Scheme(2, limiter=False),
    Scheme(2),
    Scheme(2, infinite_gauge=True),
    Scheme(2, divergent_flow=True),
    Scheme(2, limiter=False, infinite_gauge=True, divergent_flow=True),
]
OTHERS = [
    Scheme(1),
    Scheme(3, limiter=False),
    Scheme(3),
    Scheme(2, third_order=True),
    Scheme(3, third_order=True, divergent_flow=True),
    Scheme(2, infinite_gauge=True, third_order=True, divergent_flow=True),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return kept(os.environ)


@pytest.fixture(scope="module")
def build(folder: Path) -> Build:
    return build_in(folder)


def block_of(
    grid: Triple, scheme: Scheme, boundaries: str = "periodic", dtype: str = "f8", **more: Any
) -> check.Block:
    return check.random_block(np, grid, scheme, parse_boundaries(boundaries), dtype, **more)


def stepper_on(
    block: check.Block, build: Build, variant: str = "auto", tile: GpuTile = TILE
) -> CudaStepper:
    return CudaStepper(block.geo, block.scheme, block.h, block.allocate, build, variant, tile)


CASES = [("f8", scheme) for scheme in (*STREAMING, *OTHERS)]
CASES += [("f4", scheme) for scheme in (STREAMING[1], STREAMING[4], OTHERS[2], OTHERS[4])]


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "scheme"),
    all_wide_but(CASES, ("f8", Scheme(2)), ("f8", OTHERS[4]), ("f4", STREAMING[1])),
    ids=str,
)
@pytest.mark.promise("cuda-source")
def test_every_variant_has_the_bits_of_the_reference(
    scheme: Scheme, dtype: str, build: Build
) -> None:
    # Each number of axes is compiled anew, so the flat grids go with some schemes only.
    flat_too = dtype == "f8" and scheme in (Scheme(2), STREAMING[4], *OTHERS)
    for grid in GRIDS if flat_too else GRIDS[:1]:
        for boundaries in BOUNDARIES:
            if "pole" in boundaries and grid[0] % 2:
                continue
            block = block_of(grid, scheme, boundaries, dtype)
            expected = check.after(block, check.reference(block))
            fast = is_streamable(scheme, len(block.geo.active))
            variants = ("four", "fused") if fast else ("four",)
            for name in variants:
                answer = check.after(block, stepper_on(block, build, name))
                assert answer.dtype == np.dtype(dtype)
                assert answer.tobytes() == expected.tobytes(), (grid, boundaries, name)


@needs_compiler
def test_float32_is_computed_in_float32(build: Build) -> None:
    narrow = block_of((12, 9, 7), Scheme(2), dtype="f4")
    wide = block_of((12, 9, 7), Scheme(2))
    for target, values in zip((wide.psi, wide.h, *wide.C), held(narrow), strict=True):
        target[...] = values
    one, other = (check.after(block, stepper_on(block, build), 1) for block in (narrow, wide))
    assert (one != other.astype("f4")).mean() > 0.2


def held(block: check.Block) -> list[Bits]:
    return [block.psi, block.h, *block.C]


@needs_compiler
@pytest.mark.parametrize("variant", ["four", "fused"])
@pytest.mark.parametrize("limiter", [False, True])
@pytest.mark.covering(0)
def test_the_order_of_threads_changes_no_bit(limiter: bool, variant: str, folder: Path) -> None:
    block = block_of((12, 9, 7), Scheme(2, limiter), "wall,open,fixed:1.5")
    up, down = (
        check.after(block, stepper_on(block, build_in(folder, downwards=downwards), variant))
        for downwards in (False, True)
    )
    assert up.tobytes() == down.tobytes()


@needs_compiler
@pytest.mark.parametrize("limiter", [False, True])
@pytest.mark.covering(0)
def test_tiles_and_chunks_change_no_bit(limiter: bool, build: Build) -> None:
    block = block_of((40, 13, 9), Scheme(2, limiter), "open,periodic,wall")
    answers = {
        check.after(block, stepper_on(block, build, "fused", tile)).tobytes()
        for tile in (TILE, GpuTile(5, 6, 40), GpuTile(32, 16, 17))
    }
    assert len(answers) == 1


@needs_compiler
@pytest.mark.parametrize("boundaries", ["periodic", "fixed:1.2,wall,open"])
@pytest.mark.parametrize(
    ("scheme", "variant"),
    [
        (Scheme(2), "fused"),
        (Scheme(2), "four"),
        (Scheme(2, limiter=False), "fused"),
        (Scheme(3), "four"),
        (Scheme(3, third_order=True, divergent_flow=True), "four"),
    ],
    ids=str,
)
@pytest.mark.covering(0)
def test_cuts_change_no_bit(scheme: Scheme, variant: str, boundaries: str, build: Build) -> None:
    grid = (12, 11, 7)
    whole = block_of(grid, scheme, boundaries)
    expected = check.after(whole, stepper_on(whole, build, variant), 1)
    for rows in ((0, 6), (6, 12)):
        for columns in ((0, 5), (5, 11)):
            start, stop = (rows[0], columns[0], 0), (rows[1], columns[1], 7)
            part = check.cut(whole, start, stop)
            out = part.allocate()
            stepper_on(part, build, variant).advance(part.psi, out, part.C)
            wanted = expected[rows[0] : rows[1], columns[0] : columns[1]]
            assert out[part.geo.cells(0)].tobytes() == wanted.tobytes()


@needs_compiler
@pytest.mark.parametrize("variant", ["four", "fused"])
@pytest.mark.covering(0)
def test_layers_by_themselves_make_the_whole(variant: str, build: Build) -> None:
    block = block_of((12, 9, 7), Scheme(2), "wall,open,periodic")
    expected = check.after(block, stepper_on(block, build, variant), 1)
    stepper, out = stepper_on(block, build, variant), block.allocate()
    for layers in ((3, 9), (0, 3), (9, 12)):
        stepper.advance(block.psi, out, block.C, layers)
    assert out[block.geo.cells(0)].tobytes() == expected.tobytes()


@needs_compiler
@pytest.mark.parametrize(
    "scheme", all_wide_but([Scheme(2), Scheme(3, third_order=True)], Scheme(2)), ids=str
)
def test_a_unit_density_is_left_out_and_changes_no_bit(scheme: Scheme, build: Build) -> None:
    block = block_of((12, 9, 7), scheme, unit=True)
    asked: list[str] = []

    def watched(options: Macros, dtype: npt.DTypeLike) -> Any:
        asked.append(options["UNIT_DENSITY"])
        return build({**options, "UNIT_DENSITY": "0"}, dtype)

    with_h = check.after(block, stepper_on(block, watched))
    assert asked == ["1"]
    assert check.after(block, stepper_on(block, build)).tobytes() == with_h.tobytes()


@needs_compiler
def test_a_single_cell_stays_as_it_is(build: Build) -> None:
    block = block_of((1, 1, 1), Scheme(2))
    assert check.after(block, stepper_on(block, build)).tobytes() == block.inside.tobytes()


@needs_compiler
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_job_is_laid_out_as_the_compiler_has_it(dtype: str, folder: Path) -> None:
    options = macros(Scheme(2), np.dtype(dtype), (1, 2, 0), unit=False, tile=TILE)
    assert HostLauncher(compiled(options, folder)).job_bytes == job_type(dtype).itemsize


def test_fused_needs_no_scratch_and_four_six_arrays() -> None:
    block = block_of((12, 9, 7), Scheme(2))
    sizes = {
        name: stepper_on(block, lambda *_: HostLauncher.__new__(HostLauncher), name).nbytes
        for name in ("fused", "four")
    }
    assert sizes == {"fused": 0, "four": 6 * block.psi.nbytes}


def test_what_cannot_be_is_refused() -> None:
    block = block_of((12, 9, 7), Scheme(2))
    for name in ("two", "three"):
        with pytest.raises(ValueError, match="expected a variant of auto, four, fused, got"):
            stepper_on(block, lambda *_: pytest.fail("built"), name)
    with pytest.raises(ValueError, match="expected tiles of more than 4 columns"):
        stepper_on(block, lambda *_: pytest.fail("built"), tile=GpuTile(4, 8))
    with pytest.raises(ValueError, match=r"expected tiles of at most 49152 bytes .* got 56320"):
        stepper_on(block, lambda *_: pytest.fail("built"), tile=GpuTile(32, 20))


def test_tuned_tiles_are_kept_by_device_and_options(tmp_path: Path) -> None:
    path = tmp_path / "there" / "tiles.json"
    key = tuning.key_of("A GPU", Scheme(2), "f4")
    assert key != tuning.key_of("A GPU", Scheme(2), "f8")
    assert tuning.recall(path, key) is None
    tiles = tuning.TILES[:4]
    seconds = dict(zip(tiles, (3.0, None, 1.0, 2.0), strict=True))
    best, _ = tuning.best(tiles, seconds.__getitem__)
    tuning.keep(path, key, best)
    tuning.keep(path, "another", TILE)
    assert tuning.recall(path, key) == tiles[2]
    assert tuning.recall(path, "another") is None, "it is no candidate"
    path.write_text("{")
    assert tuning.recall(path, key) is None


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_default_tile_is_a_candidate(dtype: str) -> None:
    assert default_tile(dtype) in tuning.candidates(dtype)
    assert all(tile.shared_bytes(dtype) <= SHARED_BYTES for tile in tuning.candidates(dtype))


@needs_compiler
@pytest.mark.parametrize("limiter", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_zeros_of_both_signs_and_tiny_values_have_the_bits_of_the_reference(
    dtype: str, limiter: bool, build: Build
) -> None:
    block = block_of((12, 9, 7), Scheme(2, limiter), "open,wall,periodic", dtype)
    rng, least = np.random.default_rng(3), float(np.finfo(dtype).smallest_subnormal)
    for array, usual in ((block.psi, (1.0, 0.5)), *((c, (0.1, -0.1)) for c in block.C)):
        array[...] = rng.choice([0.0, -0.0, least, *usual], array.shape)
    fill_halo(block.psi, block.geo)
    expected = check.after(block, check.reference(block))
    for variant in ("four", "fused"):
        assert check.after(block, stepper_on(block, build, variant)).tobytes() == expected.tobytes()


@given(st.integers(1, 6), st.integers(1, 20))
def test_the_copies_of_a_periodic_halo_fill_each_layer_once(reach: int, cells: int) -> None:
    geo = Geometry((cells, 1, 1), (0, 0, 0), (cells, 1, 1), reach, parse_boundaries("periodic"))
    layers = np.arange(2 * reach + cells)
    found = layers.copy()
    runs = list(wrap_copies(geo, 0))
    copy_layers(found, 0, runs)
    assert np.array_equal(found, reach + (layers - reach) % cells)
    assert sum(run.to.stop - run.to.start for run in runs) == 2 * reach
    assert cells < reach or len(runs) == 2


@pytest.mark.parametrize("variant", ["auto", "four"])
@pytest.mark.parametrize("scheme", [*STREAMING, *OTHERS], ids=str)
@pytest.mark.covering(1)
def test_scratch_is_as_foreseen(scheme: Scheme, variant: str) -> None:
    for grid in [*GRIDS, (1, 1, 1)]:
        block = block_of(grid, scheme)
        stepper = stepper_on(block, lambda *_: HostLauncher.__new__(HostLauncher), variant)
        foreseen = scratch_of(scheme, len(block.geo.active), variant).arrays
        assert stepper.nbytes == foreseen * block.psi.nbytes


def module_with(**cuda: Any) -> ModuleType:
    module = ModuleType("cupy")
    runtime = SimpleNamespace(getDeviceCount=lambda: 1)
    given = {"runtime": runtime, "nvrtc": SimpleNamespace(getVersion=lambda: (12, 0)), **cuda}
    vars(module)["cuda"] = SimpleNamespace(**given)
    return module


def failing(error: Exception) -> Any:
    def fail() -> NoReturn:
        raise error

    return fail


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        (
            {"runtime": SimpleNamespace(getDeviceCount=failing(RuntimeError("driver too old")))},
            "backend cupy: expected an NVIDIA GPU and its driver, got none (driver too old)",
        ),
        (
            {"runtime": SimpleNamespace(getDeviceCount=lambda: 0)},
            "backend cupy: expected an NVIDIA GPU and its driver, got none",
        ),
        (
            {"nvrtc": SimpleNamespace(getVersion=failing(OSError("no libnvrtc\nsearched in ...")))},
            f"backend cupy: expected NVRTC, got none (no libnvrtc); {device.INSTALL}",
        ),
    ],
)
def test_what_cupy_lacks_is_said_and_auto_goes_without(
    cuda: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", module_with(**cuda))
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        choose_backend("cupy")
    assert choose_backend("auto") == "numba"


def test_a_cupy_that_does_not_load_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('\\n=====\\nnot installed right')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(InputError, match="expected CuPy, got one that fails: not installed right"):
        device.load_cupy()


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_missing_cupy_is_said_with_what_to_install() -> None:
    with pytest.raises(InputError, match=r"got none; pip install 'malleable-mpi\[cuda12\]'"):
        device.load_cupy()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
@pytest.mark.parametrize(
    ("dtype", "architecture"), [("f8", "sm_80"), ("f4", "sm_90"), ("f8", "sm_90")]
)
def test_nvcc_compiles_the_source(dtype: str, architecture: str, tmp_path: Path) -> None:
    everything = Scheme(2, True, True, True, True)
    for scheme in (Scheme(2), everything):
        options = macros(scheme, np.dtype(dtype), (1, 2, 0), unit=False, tile=default_tile(dtype))
        program = tmp_path / "kernels.cu"
        program.write_text(source(), encoding="utf-8")
        defines = [f"-D{name}={value}" for name, value in options.items()]
        flags = ["-std=c++17", "--fmad=false", f"-arch={architecture}", "-cubin"]
        command = ["nvcc", *flags, *defines, "-o", str(tmp_path / "k.cubin"), str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr, done.stderr


def nvrtc_library() -> Path | None:
    spec = find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [path for place in places for path in Path(place).glob("*/lib/libnvrtc.so.*")]
    return min(found, default=None)


@pytest.mark.skipif(nvrtc_library() is None, reason="no NVRTC in this environment")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nvrtc_compiles_the_source(dtype: str) -> None:
    nvrtc = ctypes.CDLL(str(nvrtc_library()))
    options = macros(Scheme(2), np.dtype(dtype), (1, 2, 0), unit=False, tile=default_tile(dtype))
    flags = ["-std=c++17", "--fmad=false", "-arch=sm_90"]
    flags += [f"-D{name}={value}" for name, value in options.items()]
    program = ctypes.c_void_p()
    text = source().encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"k.cu", 0, None, None) == 0
    given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    result = nvrtc.nvrtcCompileProgram(program, len(flags), given)
    log = ctypes.create_string_buffer(1 << 16)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()
